package e2e

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/batonkv/baton/cmd/dev"
	"github.com/batonkv/baton/examples/engine/front"
	"github.com/batonkv/baton/internal/need"
	"github.com/batonkv/baton/sidecar/events"
	"github.com/batonkv/baton/sidecar/handoff"
	"github.com/batonkv/baton/transfer/staged/nixl"
)

// overEach runs f over each transport of staging, by its name.
func overEach(t *testing.T, f func(t *testing.T, over string)) {
	for _, over := range []string{"tcp", "nixl"} {
		t.Run(over, func(t *testing.T) {
			if over == "nixl" {
				t.Setenv(nixl.EnvLibrary, need.NIXL(t))
			}
			f(t, over)
		})
	}
}

// wireMovers are the processes that bring chunks for a group, here or on another host.
func (w *world) wireMovers(g *dev.Running) (out []proc) {
	w.t.Helper()
	parents := map[string]bool{}
	for n := range g.Ranks {
		parents[strconv.Itoa(w.Sidecar(g, int32(n)).PID)] = true
	}
	for _, pid := range running() {
		line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		_, rest, ok := strings.Cut(string(stat), ") ")
		if ok && strings.HasSuffix(string(line), "\x00mover\x00wire\x00") && parents[strings.Fields(rest)[1]] {
			out = append(out, watch(w.t, pid))
		}
	}
	return out
}

// localMovers are the processes that pack and unpack for a group.
func (w *world) localMovers(g *dev.Running) (out []proc) {
	w.t.Helper()
	for n := range g.Ranks {
		out = append(out, watch(w.t, w.Sidecar(g, int32(n)).MoverPID))
	}
	return out
}

func (w *world) sidecars(g *dev.Running) (out []proc) {
	w.t.Helper()
	for n := range g.Ranks {
		out = append(out, watch(w.t, w.Sidecar(g, int32(n)).PID))
	}
	return out
}

// midway stops processes and starts an import that cannot end while they stand still.
func (w *world) midway(label string, deadline time.Duration, still []proc) *half {
	w.t.Helper()
	h := &half{prompt: prompt(1, 4*block), movers: still, done: make(chan error, 1)}
	ctx := bounded(w.t)
	var err error
	if h.man, err = w.export(ctx, w.prefill, label, h.prompt); err != nil {
		w.t.Fatal(err)
	}
	ch := w.events(w.decode)
	for _, p := range still {
		p.halt(w.t)
		w.t.Cleanup(func() { _ = unix.PidfdSendSignal(p.fd, unix.SIGCONT, nil, 0) })
	}
	go func() {
		_, err := w.decode.Leader.Import(ctx, handoff.Import{Label: label, Manifest: h.man, Tokens: h.prompt, Deadline: deadline})
		h.done <- err
	}()
	for range w.decode.Ranks {
		w.next(ch, events.Moving, label)
	}
	return h
}

// staged brings a cluster up in which one hand-off has gone by a transport.
func staged(t *testing.T, over string) *world {
	t.Helper()
	w := up(t, "tp=2,role=prefill+tp=1,role=decode", "hybrid", func(o *dev.Options) { o.Backend, o.Restart = over, true })
	w.handoff("first", prompt(9, 50))
	if all, by := w.metric(w.decode, "baton_moved_bytes_total"), w.by(w.decode, over); by == 0 || by != all {
		t.Fatalf("%v of %v bytes came by %s", by, all, over)
	}
	return w
}

// recovers waits until a later import of the same manifest goes well, or of another prompt
// where the source is gone, and until nothing is held anywhere.
func (w *world) recovers(h *half) {
	w.t.Helper()
	for n := 0; ; n++ {
		m, err := w.bring(bounded(w.t), w.decode, h.man, fmt.Sprint("again ", n), h.prompt)
		if err == nil {
			w.equal("again", h.prompt, m.tokens)
			break
		}
		if errors.Is(err, handoff.ErrGone) {
			break // its lease is over, or its group began anew
		}
		passing := []error{handoff.ErrTransfer, handoff.ErrPeer, handoff.ErrNotReady, handoff.ErrInDoubt} // the last: a call met the end of the connection
		if w.t.Context().Err() != nil || !slices.ContainsFunc(passing, func(e error) bool { return errors.Is(err, e) }) {
			w.t.Fatalf("again: %v", err)
		}
	}
	for n := 0; ; n++ { // a sidecar that was started again is not found at once
		label, p := fmt.Sprint("later ", n), prompt(4, 70)
		res, err := generate(bounded(w.t), w.prefill, front.Request{Tokens: p, MaxNew: maxNew, Label: label, Mode: front.Export}, nil)
		var m moved
		if err == nil {
			m, err = w.bring(bounded(w.t), w.decode, *res.Manifest, label, p)
		}
		if err == nil {
			w.equal("later", p, m.tokens)
			break
		}
		if w.t.Context().Err() != nil {
			w.t.Fatal(err)
		}
	}
	w.nothingHeld()
}

// TestStagedFailures: whatever process of either end is killed or stands still in the middle
// of a staged hand-off, the import ends within its deadline and says what failed, memory is
// given back when it is quiet, and later requests go well.
func TestStagedFailures(t *testing.T) {
	const short = 2 * time.Second
	src, dst := func(w *world) *dev.Running { return w.prefill }, func(w *world) *dev.Running { return w.decode }
	wires, locals, sidecars := (*world).wireMovers, (*world).localMovers, (*world).sidecars
	for _, c := range []struct {
		what     string
		of       func(*world) *dev.Running
		still    func(*world, *dev.Running) []proc // they stand still
		kill     func(*world, *dev.Running) []proc // and then these are killed; nil: none
		deadline time.Duration
		want     []error
		holds    bool // the destination's memory stays, until the movers go on
	}{
		{"reader's wire mover is killed", dst, wires, wires, patience, []error{handoff.ErrTransfer}, false},
		{"source's wire movers are killed", src, wires, wires, patience, []error{handoff.ErrTransfer}, false},
		{"reader's wire mover stops past the deadline", dst, wires, nil, short, []error{handoff.ErrDeadline}, false},
		{"source's wire movers stop past the deadline", src, wires, nil, short, []error{handoff.ErrDeadline}, false},
		{"reader's mover is killed", dst, locals, locals, patience, []error{handoff.ErrTransfer}, false},
		{"source's movers are killed", src, locals, locals, patience, []error{handoff.ErrTransfer}, false},
		{"reader's mover stops past the deadline", dst, locals, nil, short, []error{handoff.ErrDeadline}, true},
		{"source's movers stop past the deadline", src, locals, nil, short, []error{handoff.ErrDeadline}, false},
		{"source's sidecars are killed, their movers stand still", src, locals, sidecars, patience, []error{handoff.ErrPeer, handoff.ErrTransfer, handoff.ErrGone}, false},
		{"source's sidecars are killed, their wire movers stand still", src, wires, sidecars, patience, []error{handoff.ErrPeer, handoff.ErrTransfer, handoff.ErrGone}, false},
		{"reader's sidecar is killed, its mover stands still", dst, locals, sidecars, patience, []error{handoff.ErrInDoubt}, false},
		{"reader's sidecar is killed, its wire mover stands still", dst, wires, sidecars, patience, []error{handoff.ErrInDoubt}, false},
	} {
		t.Run(c.what, func(t *testing.T) {
			overEach(t, func(t *testing.T, over string) {
				w := staged(t, over)
				h := w.midway("a", c.deadline, c.still(w, c.of(w)))
				if c.kill != nil {
					w.killAll(c.kill(w, c.of(w)))
				}
				h.ended(t, c.want...)
				if c.holds {
					if got := w.pool(w.decode); got.Imports != 1 {
						t.Errorf("memory that is written was given back: %+v", got)
					}
				}
				if c.kill == nil {
					h.goOn(t)
				} else { // who stood still and was not killed is ended by who comes next
					for _, p := range h.movers {
						p.gone(t, "the mover of a sidecar that was killed")
					}
				}
				w.recovers(h)
			})
		})
	}
}
