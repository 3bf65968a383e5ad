package e2e

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/batonkv/baton/examples/load"
	"github.com/batonkv/baton/internal/capture"
	"github.com/batonkv/baton/plugins/host"
	"github.com/batonkv/baton/sidecar/control"
	"github.com/batonkv/baton/sidecar/handoff"
)

// hostsImports is how many imports each of ten hosts asks for; BATON_HOST_IMPORTS gives
// another number.
func hostsImports(t *testing.T) int {
	s := os.Getenv("BATON_HOST_IMPORTS")
	if s == "" {
		return 100
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < 1 {
		t.Fatalf("BATON_HOST_IMPORTS %q: want a number from 1", s)
	}
	return n
}

// crowd is many control planes at one pair of groups.
type crowd struct {
	w        *world
	src, dst *driven
	hosts    []*host.Host
	finished chan struct{} // one for each import

	admitted, refused, doubts atomic.Int64
	kills                     int
}

// TestTenHosts: control planes, each with an own plugin, bring requests in while plugins
// are killed at random, while another control plane is killed and one ends its own plugin.
// Every import ends exactly once, and in the end nothing is held anywhere.
func TestTenHosts(t *testing.T) {
	const planes, lanes = 10, 2
	each := hostsImports(t)
	program := compile(t, "../examples/hostplugin")
	w, src, dst := drivenGroups(t)
	c := &crowd{w: w, src: src, dst: dst, finished: make(chan struct{}, planes*each)}
	before := [2]load.Holding{src.ask(), dst.ask()}
	for range planes {
		c.hosts = append(c.hosts, w.host(w.pluginArgs("--log-level", "error")))
	}
	var all sync.WaitGroup
	for i, h := range c.hosts {
		var next atomic.Int64
		for range lanes {
			all.Go(func() {
				for n := next.Add(1); n <= int64(each) && !t.Failed(); n = next.Add(1) {
					if err := c.one(h, i, n); err != nil {
						t.Error(err)
					}
					c.finished <- struct{}{}
				}
			})
		}
	}
	over := make(chan struct{})
	go func() { defer close(over); all.Wait() }()
	defer func() { <-over }()
	c.disturb(over, program)
	<-over
	if got := c.admitted.Load() + c.refused.Load(); got != int64(planes*each) {
		t.Errorf("%d of %d imports ended", got, planes*each)
	}
	for i, g := range []*driven{src, dst} {
		eventually(t, g.Name+" has all of its memory back", func() bool {
			h := g.ask()
			h.Steps = before[i].Steps
			return h == before[i]
		})
	}
	if ended := dst.ended.Load(); ended != c.admitted.Load() {
		t.Errorf("%d imports were admitted and %d requests ended", c.admitted.Load(), ended)
	}
	t.Logf("seed %d: %d imports admitted, %d refused, %d plugins killed, %d answers in doubt", seed(t), c.admitted.Load(), c.refused.Load(), c.kills, c.doubts.Load())
}

// disturb kills a random plugin each time that some imports have ended, until over.
// Halfway another control plane is killed, and one ends its own plugin.
func (c *crowd) disturb(over <-chan struct{}, program string) {
	t := c.w.t
	t.Helper()
	rnd := rand.New(rand.NewPCG(seed(t), 10))
	for n := 1; ; n++ {
		select {
		case <-c.finished:
		case <-over:
			return
		}
		switch {
		case n == cap(c.finished)/2:
			c.killHost(program)
			other, err := host.Open(bounded(t), host.Config{Command: c.w.pluginArgs()})
			if err != nil {
				t.Error(err)
				return
			}
			plugin := watch(t, other.PID())
			if err := other.Close(); err != nil {
				t.Error(err)
			}
			plugin.gone(t, "the plugin of a host that closed it")
		case n%20 == 0:
			if pid := c.hosts[rnd.IntN(len(c.hosts))].PID(); pid != 0 { // else it starts
				if err := unix.Kill(pid, unix.SIGKILL); err != nil && err != unix.ESRCH {
					t.Error(err)
				}
				c.kills++
			}
		}
	}
}

// killHost kills a control plane that follows a group; its plugin ends by itself.
func (c *crowd) killHost(program string) {
	t := c.w.t
	t.Helper()
	cmd := exec.CommandContext(bounded(t), program, append([]string{c.dst.Name, c.dst.Name, "[1]"}, c.w.pluginArgs()...)...)
	said := &capture.Buffer{}
	cmd.Stderr = said
	if err := cmd.Start(); err != nil {
		t.Error(err)
		return
	}
	pid := strconv.Itoa(cmd.Process.Pid)
	var child int
	eventually(t, "a control plane has a plugin", func() bool {
		for _, p := range running() {
			stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p))
			if _, rest, ok := strings.Cut(string(stat), ") "); ok && strings.Fields(rest)[1] == pid {
				child = p
			}
		}
		return child != 0
	})
	plugin := watch(t, child)
	if err := cmd.Process.Kill(); err != nil {
		t.Error(err)
	}
	_ = cmd.Wait() // says that it was killed
	plugin.gone(t, "the plugin of a host that was killed")
}

// one hands a request over by h and sees to both of its ends.
func (c *crowd) one(h *host.Host, plane int, n int64) error {
	ctx, cancel := context.WithTimeout(c.w.t.Context(), patience)
	defer cancel()
	label, p := fmt.Sprintf("h%d.%d", plane, n), load.Prompt{Tail: uint64(plane)<<32 + uint64(n), Len: 20 + int32(n%40), Steps: 3}
	defer c.src.forget(label)
	defer c.dst.forget(label)
	if err := c.src.eng.Send(load.Command{Op: load.Export, Label: label, Prompt: &p}); err != nil {
		return err
	}
	e, err := c.src.await(ctx, label, load.Exported, load.Failed)
	if err != nil || e.Kind == load.Failed {
		return fmt.Errorf("export of %s: %s: %w", label, e.Err, err)
	}
	err = c.decide(ctx, h, handoff.Import{Label: label, Manifest: *e.Manifest, Tokens: p.Tokens()})
	switch {
	case err == nil:
		c.admitted.Add(1)
		if _, err = c.dst.await(ctx, label, load.Ended, load.Ended); err != nil {
			return err
		}
	case errors.Is(err, handoff.ErrCapacity), errors.Is(err, handoff.ErrTransfer):
		c.refused.Add(1)
		if err := c.src.eng.Send(load.Command{Op: load.Release, Label: label}); err != nil {
			return err
		}
	default:
		return fmt.Errorf("import of %s: %w", label, err)
	}
	_, err = c.src.await(ctx, label, load.Freed, load.Freed)
	return err
}

// decide imports, and asks what became of it when its answer is lost with a plugin.
func (c *crowd) decide(ctx context.Context, h *host.Host, m handoff.Import) error {
	for doubted := false; ; {
		_, err := h.Handoff().Import(ctx, c.dst.Name, m)
		// A call that is repeated finds the hand-off gone when the first one has taken it.
		again := doubted && (errors.Is(err, handoff.ErrGone) || errors.Is(err, handoff.ErrTaken))
		if !errors.Is(err, handoff.ErrHost) && !again || ctx.Err() != nil {
			return err
		}
		if errors.Is(err, handoff.ErrInDoubt) {
			c.doubts.Add(1)
			doubted = true
		}
		var i control.Info
		for err = handoff.ErrHost; errors.Is(err, handoff.ErrHost) && ctx.Err() == nil; {
			i, err = h.Handoff().Get(ctx, c.dst.Name, m.Manifest.ID)
		}
		switch {
		case err == nil && i.Phase == control.Admitted:
			return nil
		case err == nil && i.Err != nil:
			return i.Err
		case err != nil && !errors.Is(err, handoff.ErrUnknown):
			return fmt.Errorf("asked what became of it: %w", err)
		} // else it goes on, or its call was lost: the call repeated is the same import
	}
}
