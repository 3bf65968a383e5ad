package transfertest

import (
	"errors"
	"sync"
	"testing"

	"github.com/batonkv/baton/transfer"
	"github.com/batonkv/baton/transfer/layout"
	"github.com/batonkv/baton/transfer/layout/parallel"
)

func testFull(t *testing.T, e Env) {
	if e.MaxOpen == 0 {
		t.Skip("no bound to reach")
	}
	s, release := set(t, e), hold(t, e)
	tm, j := s.template(t, 0), s.shape.job(0, layout.Span{Hi: 20})
	var open []transfer.Ticket
	for range e.MaxOpen {
		open = append(open, pull(t, s.link, tm, j))
	}
	if _, err := s.link.Pull(t.Context(), tm, j); !errors.Is(err, transfer.ErrFull) {
		t.Errorf("pull %d: %v, want ErrFull", e.MaxOpen+1, err)
	}
	release()
	for _, k := range open {
		if err := wait(t, k); err != nil {
			t.Error(err)
		}
	}
	if err := try(t, s.link, tm, j); err != nil {
		t.Errorf("pull after the others were done: %v", err)
	}
}

// One job of more than 100,000 copies of 16 bytes: rows and heads change places.
func testManyCopies(t *testing.T, e Env) {
	s := Shape{Desc: parallel.Desc{Attention: &parallel.Attention{Layers: 2, Heads: 8, Dim: 8}}}
	s.SrcMem, s.DstMem = memory(256, 16), memory(256, 16)
	s.SrcMem.HeadsFirst = true
	w := newWorld(t, s, e)
	w.register(t, e.Backend, 0)
	j := s.job(0, layout.Span{Lo: 1, Hi: 4090})
	want := w.shadow(t, 0, nil, nil)
	copyInto(want, w, t, 0, 0, j)
	if err := try(t, w.open(t, e.Backend, 0), w.template(t, 0), j); err != nil {
		t.Fatal(err)
	}
	equal(t, w.dst[0], want)
}

// Pulls one after another, and as many at once as the bound lets in.
func testManyPulls(t *testing.T, e Env) {
	s := set(t, e)
	tm := s.template(t, 0)
	want := s.shadow(t, 0, nil, nil)
	var open []transfer.Ticket
	for i := range int32(1000) {
		lo := i % 500
		j := s.shape.job(0, layout.Span{Lo: lo, Hi: lo + 1})
		copyInto(want, s.world, t, 0, 0, j)
		k, err := s.link.Pull(t.Context(), tm, j)
		for errors.Is(err, transfer.ErrFull) && len(open) > 0 {
			if err := wait(t, open[0]); err != nil {
				t.Fatal(err)
			}
			open = open[1:]
			k, err = s.link.Pull(t.Context(), tm, j)
		}
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, k)
	}
	for _, k := range open {
		if err := wait(t, k); err != nil {
			t.Fatal(err)
		}
	}
	equal(t, s.dst[0], want)
}

// Both sources of a destination, pulled over many links by many goroutines, each its
// own tokens; other links open and close meanwhile.
func testConcurrent(t *testing.T, e Env) {
	s := set(t, e)
	want := s.shadow(t, 0, nil, nil)
	for pair := range 2 {
		copyInto(want, s.world, t, 0, pair, s.shape.job(pair, layout.Span{Hi: 480}))
	}
	var wg sync.WaitGroup
	for pair := range 2 {
		tm := s.template(t, pair)
		for part := range int32(8) {
			wg.Go(func() {
				l, err := e.Backend.Open(t.Context(), s.peer(tm.Ranks().Src))
				if err != nil {
					t.Error(err)
					return
				}
				for lo := part * 60; lo < part*60+60; lo += 20 {
					k, err := l.Pull(t.Context(), tm, s.shape.job(pair, layout.Span{Lo: lo, Hi: lo + 20}))
					if err != nil {
						t.Error(err)
						return
					}
					<-k.Done()
					if k.Err() != nil {
						t.Error(k.Err())
					}
				}
				if err := l.Close(); err != nil {
					t.Error(err)
				}
			})
		}
	}
	wg.Wait()
	equal(t, s.dst[0], want)
}

// The death of the copying process settles its tickets with ErrMover and kills its
// links; regions are there again for the next link.
func testKilled(t *testing.T, e Env) {
	if e.Kill == nil {
		t.Skip("the copying process is the test's own")
	}
	s, release := set(t, e), hold(t, e)
	tm, j := s.template(t, 0), s.shape.job(0, layout.Span{Hi: 300})
	var open []transfer.Ticket
	for range 5 {
		open = append(open, pull(t, s.link, tm, j))
	}
	e.Kill()
	for _, k := range open {
		if err := wait(t, k); !errors.Is(err, transfer.ErrMover) || k.Bytes() != 0 {
			t.Errorf("ticket of a dead mover: %v, %d bytes; want ErrMover", err, k.Bytes())
		}
	}
	release()
	reborn(t, e, s)
}

func testKilledIdle(t *testing.T, e Env) {
	if e.Kill == nil {
		t.Skip("the copying process is the test's own")
	}
	s := set(t, e)
	if err := try(t, s.link, s.template(t, 0), s.shape.job(0, layout.Span{Hi: 20})); err != nil {
		t.Fatal(err)
	}
	e.Kill()
	reborn(t, e, s)
}

// reborn checks the scene after a kill: the old link is dead, a new one works.
func reborn(t *testing.T, e Env, s *scene) {
	t.Helper()
	tm, j := s.template(t, 0), s.shape.job(0, layout.Span{Hi: 300})
	want := s.shadow(t, 0, nil, nil)
	copyInto(want, s.world, t, 0, 0, j)
	l, err := e.Backend.Open(t.Context(), s.peer(0)) // waits for the next process
	for errors.Is(err, transfer.ErrMover) {          // the dying one took the request
		l, err = e.Backend.Open(t.Context(), s.peer(0))
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := try(t, s.link, tm, j); !errors.Is(err, transfer.ErrMover) {
		t.Errorf("pull on a link of the dead: %v, want ErrMover", err)
	}
	if err := try(t, l, tm, j); err != nil {
		t.Fatalf("pull after the restart: %v", err)
	}
	equal(t, s.dst[0], want)
	for _, l := range []transfer.Link{s.link, l} {
		if err := l.Close(); err != nil {
			t.Errorf("link close: %v", err)
		}
	}
	for _, r := range s.reg {
		if err := r.Close(); err != nil {
			t.Errorf("region close: %v", err)
		}
	}
}
