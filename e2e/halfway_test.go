package e2e

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/batonkv/baton/cmd/dev"
	"github.com/batonkv/baton/examples/engine/front"
	"github.com/batonkv/baton/sidecar/control"
	"github.com/batonkv/baton/sidecar/events"
	"github.com/batonkv/baton/sidecar/handoff"
)

// half is an import whose copies are submitted and stand still.
type half struct {
	man    handoff.Manifest
	prompt []int32
	movers []proc
	done   chan error
}

// halfway stops an import of decode between the first and the last byte.
func (w *world) halfway(label string, deadline time.Duration) *half {
	w.t.Helper()
	w.handoff("first "+label, prompt(9, 5)) // links stand
	h := &half{prompt: prompt(1, 4*block), done: make(chan error, 1)}
	var err error
	if h.man, err = w.export(bounded(w.t), w.prefill, label, h.prompt); err != nil {
		w.t.Fatal(err)
	}
	ch := w.events(w.decode)
	for _, k := range w.decode.Ranks {
		m := watch(w.t, k.Sidecar.MoverPID)
		m.halt(w.t)
		w.t.Cleanup(func() { _ = unix.PidfdSendSignal(m.fd, unix.SIGCONT, nil, 0) })
		h.movers = append(h.movers, m)
	}
	ctx := bounded(w.t)
	go func() {
		_, err := w.decode.Leader.Import(ctx, handoff.Import{Label: label, Manifest: h.man, Tokens: h.prompt, Deadline: deadline})
		h.done <- err
	}()
	for range h.movers {
		w.next(ch, events.Moving, label)
	}
	return h
}

func (h *half) goOn(t *testing.T) {
	t.Helper()
	for _, m := range h.movers {
		m.signal(t, unix.SIGCONT)
	}
}

// ended waits for the import's end, which has to be one of these errors.
func (h *half) ended(t *testing.T, want ...error) {
	t.Helper()
	select {
	case err := <-h.done:
		t.Logf("the import ended: %v", err)
		for _, w := range want {
			if errors.Is(err, w) {
				return
			}
		}
		t.Errorf("the import ended with %v, want %v", err, want)
	case <-bounded(t).Done():
		t.Error("the import has not ended")
	}
}

// TestQuarantine: an import that is over for its caller keeps its memory until the last
// copy into it has ended, whether it was aborted or its deadline passed.
func TestQuarantine(t *testing.T) {
	w := up(t, "tp=2,role=prefill+tp=2,role=decode", "hybrid")
	for _, c := range []struct {
		label    string
		deadline time.Duration
		want     error
	}{{"aborted", patience, handoff.ErrAborted}, {"late", 300 * time.Millisecond, handoff.ErrDeadline}} {
		h := w.halfway(c.label, c.deadline)
		if c.want == handoff.ErrAborted {
			if err := w.decode.Leader.Abort(bounded(t), h.man.ID, h.man.Key); err != nil {
				t.Error(err)
			}
		}
		h.ended(t, c.want)
		// Drop has been applied when a later step was taken.
		if _, err := generate(bounded(t), w.decode, front.Request{Tokens: prompt(7, 3), MaxNew: 3, Mode: front.Full}, nil); err != nil {
			t.Error(err)
		}
		if got := w.pool(w.decode); got.Imports != 1 || got.FreeSlots != poolSlots-1 || got.FreeBlocks > poolBlocks-4 {
			t.Errorf("%s: memory that is written was given back: %+v", c.label, got)
		}
		h.goOn(t)
		w.allFree(w.decode, poolBlocks, poolSlots)
		m, err := w.bring(bounded(t), w.decode, h.man, c.label+", again", h.prompt)
		if err != nil {
			t.Fatalf("the same manifest, again: %v", err)
		}
		w.equal(c.label, h.prompt, m.tokens)
		w.allFree(w.prefill, poolBlocks, poolSlots)
	}
}

// TestSourceDiesWhileRead: what was read from a source that is gone is never decoded.
func TestSourceDiesWhileRead(t *testing.T) {
	eachOfSource(t, func(t *testing.T, victim func(w *world) int) {
		w := up(t, "tp=2,dp=2,role=prefill+tp=1,role=decode", "hybrid")
		h := w.halfway("a", patience)
		killed(t, victim(w))
		eventually(t, "its group is not ready", func() bool { return !w.ready(w.prefill) })
		h.goOn(t)
		w.endsWithItsSource(h)
	})
}

// eachOfSource runs f for the sidecar and the engine of each rank of a prefill group of two.
func eachOfSource(t *testing.T, f func(t *testing.T, victim func(w *world) int)) {
	for what, pid := range map[string]func(k *dev.Rank) int{
		"sidecar": func(k *dev.Rank) int { return k.Sidecar.PID },
		"engine":  func(k *dev.Rank) int { return k.Engine.PID },
	} {
		for rank := range 2 {
			t.Run(fmt.Sprintf("%s of rank %d", what, rank), func(t *testing.T) {
				f(t, func(w *world) int { return pid(w.prefill.Ranks[rank]) })
			})
		}
	}
}

// killed ends a process and sees its exit.
func killed(t *testing.T, pid int) {
	t.Helper()
	p := watch(t, pid)
	p.signal(t, unix.SIGKILL)
	p.gone(t, fmt.Sprint("process ", pid))
}

// endsWithItsSource waits until an import whose source died has failed and its memory is back;
// another group's hand-offs go well.
func (w *world) endsWithItsSource(h *half) {
	w.t.Helper()
	h.ended(w.t, handoff.ErrPeer, handoff.ErrTransfer, handoff.ErrGone)
	w.allFree(w.decode, poolBlocks, poolSlots)
	w.between(w.Groups[1], w.decode, "from another group", prompt(4, 40))
}

// ready is false also when the leader does not answer.
func (w *world) ready(g *dev.Running) bool {
	ctx, cancel := context.WithTimeout(w.t.Context(), time.Second)
	defer cancel()
	st, err := g.Leader.Status(ctx)
	return err == nil && st.Ready
}

// TestDestinationDiesWhileRead: the source waits for another importer.
func TestDestinationDiesWhileRead(t *testing.T) {
	for _, c := range []struct {
		what string
		pid  func(g *dev.Running) int
		want []error
	}{
		{"sidecar of rank 1", func(g *dev.Running) int { return g.Ranks[1].Sidecar.PID }, []error{handoff.ErrPeer, handoff.ErrEngine, handoff.ErrNotReady, handoff.ErrTransfer}},
		{"leader", func(g *dev.Running) int { return g.Ranks[0].Sidecar.PID }, []error{handoff.ErrInDoubt}},
		{"engine of rank 1", func(g *dev.Running) int { return g.Ranks[1].Engine.PID }, []error{handoff.ErrEngine}},
		{"engine of rank 0", func(g *dev.Running) int { return g.Ranks[0].Engine.PID }, []error{handoff.ErrEngine}},
	} {
		t.Run(c.what, func(t *testing.T) {
			w := up(t, "tp=2,role=prefill+tp=2,dp=2,role=decode", "hybrid")
			h := w.halfway("a", patience)
			p := watch(t, c.pid(w.decode))
			p.signal(t, unix.SIGKILL)
			p.gone(t, c.what)
			h.ended(t, c.want...)
			if info, err := w.prefill.Leader.Get(bounded(t), h.man.ID); err != nil || info.Phase != control.Held || info.Copies != 1 {
				t.Errorf("the source is %+v, %v", info, err)
			}
			m, err := w.bring(bounded(t), w.Groups[2], h.man, "elsewhere", h.prompt)
			if err != nil {
				t.Fatalf("another group imports it: %v", err)
			}
			w.equal("elsewhere", h.prompt, m.tokens)
			h.goOn(t)
			w.allFree(w.prefill, poolBlocks, poolSlots)
			w.allFree(w.Groups[2], poolBlocks, poolSlots)
		})
	}
}

// TestSourceReleasedWhileRead: bytes that were read after their memory was given back
// are never decoded: each read is proved by a Check after its last byte.
func TestSourceReleasedWhileRead(t *testing.T) {
	w := up(t, "tp=2,role=prefill+tp=2,role=decode", "hybrid")
	h := w.halfway("a", patience)
	if err := w.prefill.Leader.Release(bounded(t), h.man.ID, h.man.Key); err != nil {
		t.Fatal(err)
	}
	w.allFree(w.prefill, poolBlocks, poolSlots)
	w.alone("reuses the memory", prompt(5, 6*block))
	h.goOn(t)
	h.ended(t, handoff.ErrGone, handoff.ErrTransfer)
	w.allFree(w.decode, poolBlocks, poolSlots)
	w.handoff("after", prompt(6, 40))
}

// alone runs a prompt on prefill alone.
func (w *world) alone(label string, p []int32) {
	w.t.Helper()
	var got []int32
	if _, err := generate(bounded(w.t), w.prefill, front.Request{Tokens: p, MaxNew: maxNew, Mode: front.Full}, &got); err != nil {
		w.t.Fatalf("%s: %v", label, err)
	}
	w.equal(label, p, got)
}
