package load

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/batonkv/baton/cmd/dev"
	"github.com/batonkv/baton/sidecar/control"
	"github.com/batonkv/baton/sidecar/control/client"
)

// kills says what was killed and what that cost. Caller holds mu.
func (d *driver) kills() string {
	line := fmt.Sprintf(", %d of %d movers killed, %d imports tried again", d.killed, d.opt.KillMovers, d.retried)
	if d.opt.KillSidecars > 0 {
		line += fmt.Sprintf(", %d of %d sidecars killed, %d requests cut by that", d.ended, d.opt.KillSidecars, d.cut)
	}
	return line
}

// killer kills a random rank's mover or sidecar each time that a share of the requests
// has finished.
func (d *driver) killer(ctx context.Context, finished <-chan struct{}) {
	rnd := rand.New(rand.NewPCG(d.opt.Seed, 1<<63))
	movers, sidecars := d.opt.KillMovers, d.opt.KillSidecars
	share := max(d.opt.Requests/(movers+sidecars+1), 1)
	for movers+sidecars > 0 {
		for range share {
			select {
			case <-finished:
			case <-ctx.Done():
				return
			}
		}
		g := d.groups[rnd.IntN(len(d.groups))]
		rank, kill := rnd.Int32N(g.Size()), d.killMover
		if d.opt.Dev.Backend != dev.Backends[0] && rnd.IntN(2) == 0 {
			kill = d.killWire
		}
		if rnd.IntN(movers+sidecars) < sidecars {
			sidecars, kill = sidecars-1, d.killSidecar
		} else {
			movers--
		}
		if err := kill(ctx, g, rank); err != nil && ctx.Err() == nil {
			d.stop(fmt.Errorf("kill a process of %s/%d: %w", g.Name, rank, err))
			return
		}
	}
}

// killWire kills a wire mover of a rank's sidecar, once there is one.
func (d *driver) killWire(ctx context.Context, g *group, rank int32) error {
	parent := d.cluster.Sidecar(g.Running, rank).PID
	killed := false
	if err := d.until(ctx, func() bool {
		for _, pid := range wires(parent) {
			killed = killed || unix.Kill(pid, unix.SIGKILL) == nil
		}
		return killed
	}); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.killed++
	return nil
}

// wires are the wire movers among a process's children.
func wires(parent int) (pids []int) {
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range stats {
		b, err := os.ReadFile(path)
		if err != nil {
			continue // it ended
		}
		_, rest, _ := strings.Cut(string(b), ") ")
		fields := strings.Fields(rest) // state, parent, …
		if len(fields) < 2 || fields[1] != strconv.Itoa(parent) {
			continue
		}
		line, _ := os.ReadFile(filepath.Join(filepath.Dir(path), "cmdline"))
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path))); err == nil && bytes.HasSuffix(line, []byte("\x00mover\x00wire\x00")) {
			pids = append(pids, pid)
		}
	}
	return pids
}

func (d *driver) killMover(ctx context.Context, g *group, rank int32) error {
	c, err := client.Dial(d.cluster.Sidecar(g.Running, rank).Addr, d.cluster.ClientTLS(g.Name, rank))
	if err != nil {
		return err
	}
	defer c.Close()
	var st control.Status
	var asked error
	if err := d.until(ctx, func() bool { // the last one's successor may be starting
		st, asked = c.Status(ctx)
		return asked != nil || st.MoverPID != 0
	}); err != nil {
		return err
	}
	if asked != nil {
		return asked
	}
	if err := unix.Kill(int(st.MoverPID), unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.killed++
	return nil
}

// killSidecar waits until the next one stands, and its group is complete.
func (d *driver) killSidecar(ctx context.Context, g *group, rank int32) error {
	old := d.cluster.Sidecar(g.Running, rank).PID
	if err := unix.Kill(old, unix.SIGKILL); err != nil {
		return err
	}
	d.mu.Lock()
	d.ended++
	d.mu.Unlock()
	if err := d.until(ctx, func() bool { return d.cluster.Sidecar(g.Running, rank).PID != old }); err != nil {
		return err
	}
	return d.ready(ctx)
}

// until looks until ok says yes: no event tells of it.
func (d *driver) until(ctx context.Context, ok func() bool) error {
	look := time.NewTicker(10 * time.Millisecond)
	defer look.Stop()
	for !ok() {
		select {
		case <-look.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// ready waits until every group is complete, where sidecars are killed.
func (d *driver) ready(ctx context.Context) error {
	if d.opt.KillSidecars == 0 {
		return nil
	}
	return d.until(ctx, func() bool {
		for _, g := range d.groups {
			if st, err := g.Leader.Status(ctx); err != nil || !st.Ready {
				return false
			}
		}
		return true
	})
}

// after runs requests when all kills are over: each must go well.
func (d *driver) after(ctx context.Context) error {
	if d.opt.KillSidecars == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, d.opt.Deadline, fmt.Errorf("not done within %v", d.opt.Deadline))
	defer cancel()
	if err := d.ready(ctx); err != nil {
		return fmt.Errorf("%w: a group is not complete after its sidecars were started again: %w", ErrUnexpected, err)
	}
	for i := range 4 * len(d.prefill) * len(d.decode) {
		r := &request{d: d, rnd: rand.New(rand.NewPCG(d.opt.Seed, 1<<62+uint64(i))), label: fmt.Sprintf("after%d", i), src: d.prefill[i%len(d.prefill)]}
		if err := plain(ctx, r); err != nil {
			return fmt.Errorf("%w: request %s, after all kills: %w", ErrUnexpected, r.label, err)
		}
	}
	return nil
}
