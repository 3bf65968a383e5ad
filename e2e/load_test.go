package e2e

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/batonkv/baton/cmd/dev"
	"github.com/batonkv/baton/examples/engine/front"
	"github.com/batonkv/baton/sidecar/handoff"
)

// TestLoad: many requests at once through pools that cannot hold them all, some
// aborted. Each gives right tokens or a clear error, and afterwards nothing is held.
func TestLoad(t *testing.T) {
	const blocks, slots, requests = 72, 6, 32
	for _, c := range []struct{ shards, model string }{
		{"tp=2,role=prefill+tp=1,role=decode", "hybrid"},
		{"tp=1,role=prefill+tp=2,role=decode", "hybrid"},
		{"tp=2,role=prefill+tp=4,role=decode", "attention"},
	} {
		t.Run(c.shards+" "+c.model, func(t *testing.T) {
			w := up(t, c.shards, c.model, func(o *dev.Options) { o.Blocks, o.Slots = blocks, slots })
			var wg sync.WaitGroup
			turns := make(chan struct{}, 16)
			rnd := rand.New(rand.NewPCG(7, uint64(len(c.shards))))
			var aborted, good int
			var mu sync.Mutex // guards aborted and good
			for i := range requests {
				p := prompt(rnd.IntN(6), 1+rnd.IntN(6*block)) // few seeds: prefixes are shared
				abort, quit := rnd.IntN(3) == 0, rnd.IntN(8) == 0
				turns <- struct{}{}
				wg.Go(func() {
					defer func() { <-turns }()
					ok := w.request(fmt.Sprintf("r%d", i), p, abort, quit)
					mu.Lock()
					defer mu.Unlock()
					if ok {
						good++
					} else {
						aborted++
					}
				})
			}
			wg.Wait()
			t.Logf("%d good, %d ended on purpose", good, aborted)
			for _, g := range w.Groups {
				w.allFree(g, blocks, slots)
			}
			w.handoff("after", prompt(40, 50))
		})
	}
}

// request runs one request; abort asks for the end of its import, quit hangs up on its
// prefill. It is true when the tokens came.
func (w *world) request(label string, p []int32, abort, quit bool) bool {
	ctx, cancel := context.WithTimeout(w.t.Context(), 2*patience)
	defer cancel()
	if quit {
		gone, hangUp := context.WithCancel(ctx)
		c, err := front.Dial(ctx, w.prefill.Front())
		if err == nil {
			_, err = c.Generate(gone, front.Request{Tokens: p, MaxNew: 400, Mode: front.Full}, func(int32) { hangUp() })
		}
		if hangUp(); err == nil || !errors.Is(err, context.Canceled) {
			w.t.Errorf("%s: a caller that hung up: %v", label, err)
		}
	}
	man, err := w.export(ctx, w.prefill, label, p)
	if err != nil {
		w.t.Errorf("%s: export: %v", label, err)
		return false
	}
	if abort {
		var wg sync.WaitGroup
		over := make(chan struct{})
		defer wg.Wait()
		defer close(over)
		wg.Go(func() { w.abort(ctx, label, man.ID, over) })
	}
	m, err := w.bring(ctx, w.decode, man, label, p)
	switch {
	case err == nil:
		w.equal(label, p, m.tokens)
		return true
	case !abort || !errors.Is(err, handoff.ErrAborted):
		w.t.Errorf("%s: import: %v", label, err)
	}
	if err := w.prefill.Leader.Release(ctx, man.ID, man.Key); err != nil {
		w.t.Errorf("%s: release: %v", label, err)
	}
	return false
}

// abort asks for the end of an import as soon as it is there, or gives up when it is over.
func (w *world) abort(ctx context.Context, label string, id handoff.ID, over <-chan struct{}) {
	for {
		err := w.decode.Leader.Abort(ctx, id, handoff.Key{})
		if err == nil || errors.Is(err, handoff.ErrInDoubt) {
			return
		}
		if !errors.Is(err, handoff.ErrUnknown) {
			w.t.Errorf("%s: abort: %v", label, err)
			return
		}
		select {
		case <-over:
			return
		default: // not there yet
		}
	}
}

// TestMoverKilledUnderLoad: kills of one rank's mover, again and again, fail imports
// that it copied for, by ErrTransfer; tried again, every one of them succeeds.
func TestMoverKilledUnderLoad(t *testing.T) {
	w := up(t, "tp=2,role=prefill+tp=2,role=decode", "hybrid")
	rank1 := w.dial(w.decode.Ranks[1].Sidecar.Addr, "control")
	ctx := bounded(t)
	const requests, kills = 32, 4
	var wg sync.WaitGroup
	finished := make(chan struct{}, requests)
	turns := make(chan struct{}, 8)
	wg.Go(func() {
		for range kills {
			for range requests / (kills + 2) {
				<-finished
			}
			st, err := rank1.Status(ctx)
			if err == nil && st.MoverPID != 0 {
				err = unix.Kill(int(st.MoverPID), unix.SIGKILL)
			}
			if err != nil && err != unix.ESRCH {
				t.Errorf("kill the mover: %v", err)
			}
		}
	})
	for i := range requests {
		turns <- struct{}{}
		wg.Go(func() {
			defer func() { <-turns; finished <- struct{}{} }()
			label, p := fmt.Sprintf("r%d", i), prompt(i, 1+i*5)
			man, err := w.export(ctx, w.prefill, label, p)
			if err != nil {
				t.Errorf("%s: export: %v", label, err)
				return
			}
			for try := range 100 {
				m, err := w.bring(ctx, w.decode, man, fmt.Sprintf("%s.%d", label, try), p)
				if errors.Is(err, handoff.ErrTransfer) {
					continue
				}
				if err != nil {
					t.Errorf("%s: %v", label, err)
					return
				}
				w.equal(label, p, m.tokens)
				return
			}
			t.Errorf("%s: never imported", label)
		})
	}
	wg.Wait()
	w.nothingHeld()
	w.handoff("after", prompt(60, 50))
}
