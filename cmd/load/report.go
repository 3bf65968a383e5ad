package load

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"golang.org/x/sys/unix"

	"github.com/batonkv/baton/sidecar/control/client"
)

// stalled is after how many seconds without an end of a request progress says what is held.
const stalled = 5

// progress says every second how far the run is.
func (d *driver) progress(ctx context.Context, out io.Writer) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	before, same := 0, 0
	for {
		select {
		case <-tick.C:
			d.mu.Lock()
			line := fmt.Sprintf("%5.1f s  %d of %d requests, %.1f MiB moved", time.Since(d.began).Seconds(), d.done, d.opt.Requests, float64(d.moved)/(1<<20))
			if d.killed > 0 {
				line += fmt.Sprintf(", %d movers killed, %d imports tried again", d.killed, d.retried)
			}
			if same++; d.done > before {
				before, same = d.done, 0
			}
			d.mu.Unlock()
			fmt.Fprintln(out, line)
			for _, g := range d.groups {
				if h, err := g.holding(ctx); err == nil && same >= stalled {
					fmt.Fprintf(out, "         %s holds %+v\n", g.Name, h)
				}
			}
		case <-ctx.Done():
			return
		}
	}
}

// killer kills a random rank's mover each time that a share of the requests has finished.
func (d *driver) killer(ctx context.Context, finished <-chan struct{}) {
	rnd := rand.New(rand.NewPCG(d.opt.Seed, 1<<63))
	share := max(d.opt.Requests/(d.opt.KillMovers+1), 1)
	for range d.opt.KillMovers {
		for range share {
			select {
			case <-finished:
			case <-ctx.Done():
				return
			}
		}
		if err := d.killMover(ctx, rnd); err != nil && ctx.Err() == nil {
			d.stop(fmt.Errorf("kill a mover: %w", err))
		}
	}
}

func (d *driver) killMover(ctx context.Context, rnd *rand.Rand) error {
	g := d.groups[rnd.IntN(len(d.groups))]
	rank := rnd.IntN(len(g.Ranks))
	c, err := client.Dial(g.Ranks[rank].Sidecar.Addr, d.cluster.ClientTLS(g.Name, int32(rank)))
	if err != nil {
		return err
	}
	defer c.Close()
	st, err := c.Status(ctx)
	if err != nil {
		return err
	}
	if st.MoverPID == 0 {
		return nil // the last one's successor is starting
	}
	if err := unix.Kill(int(st.MoverPID), unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.killed++
	return nil
}

// importsOver looks for imports that a leader still has: quarantine that never ended.
func (d *driver) importsOver(ctx context.Context, g *group) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+g.Ranks[0].Sidecar.Metrics+"/metrics", nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return fmt.Errorf("metrics of %s: %w", g.Name, err)
	}
	defer resp.Body.Close()
	found := false
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		if l := lines.Text(); strings.HasPrefix(l, "baton_queue_depth") && strings.Contains(l, `queue="imports"`) {
			if found = true; !strings.HasSuffix(l, " 0") {
				return fmt.Errorf("%w: %s: %s", ErrLeaked, g.Name, l)
			}
		}
	}
	if !found {
		return fmt.Errorf("metrics of %s: no baton_queue_depth of imports", g.Name)
	}
	return nil
}

// print shows what became of the requests.
func (d *driver) print(out io.Writer) {
	d.mu.Lock()
	defer d.mu.Unlock()
	took := time.Since(d.began).Seconds()
	fmt.Fprintln(out)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "kind\trequests\tadmitted\trefused as it may")
	imports := 0
	for _, name := range slices.Sorted(maps.Keys(d.counts)) {
		t := d.counts[name]
		imports += t.imports
		fmt.Fprintf(w, "%s\t%d\t%d\t%d\n", name, t.requests, t.imports, t.refused)
	}
	_ = w.Flush()
	fmt.Fprintf(out, "\nseed %d: %d requests in %.1f s (%.0f/s), %d imports admitted and compared, %.1f MiB moved", d.opt.Seed, d.done, took,
		float64(d.done)/took, imports, float64(d.moved)/(1<<20))
	if d.opt.KillMovers > 0 {
		fmt.Fprintf(out, ", %d movers killed, %d imports tried again", d.killed, d.retried)
	}
	fmt.Fprintln(out)
}

// verdict is what engines found wrong, nil when they found nothing.
func (d *driver) verdict() error {
	var all []error
	for _, g := range d.groups {
		g.mu.Lock()
		for _, w := range g.wrong[:min(len(g.wrong), 20)] {
			all = append(all, fmt.Errorf("%w: %s", ErrWrong, w))
		}
		g.mu.Unlock()
	}
	return errors.Join(all...)
}
