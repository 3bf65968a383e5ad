package machine

import (
	"errors"
	"testing"
	"time"

	"github.com/batonkv/baton/sidecar/handoff"
)

func (n *node) fenced(to uint64) { n.step(FromEngine{n.eng.session, handoff.Fenced{N: to}}) }

// No importer reads what a step may still write: the lease starts when every rank's
// fence is over.
func TestExportFence(t *testing.T) {
	w := pair(t, 2, 1)
	p, p1 := w.at("p", 0), w.at("p", 1)
	p.step(FromEngine{p.eng.session, handoff.Announce{Label: "r1"}})
	man := *p.notices[len(p.notices)-1].Manifest
	c := w.lastC + 1
	w.lastC++
	w.at("d", 0).step(Import{Call: c, Import: handoff.Import{Manifest: man, Tokens: make([]int32, 16)}})
	for rank, n := range []*node{p, p1} {
		n.step(FromEngine{n.eng.session, handoff.Export{Label: "r1", Tokens: 16, Position: 16, Blocks: []int32{1}, Fence: uint64(3 + rank)}})
	}
	w.run()
	for _, step := range []struct {
		n      *node
		fenced uint64
	}{{p, 2}, {p, 3}, {p1, 3}} {
		step.n.fenced(step.fenced)
		w.run()
		if _, ok := w.calls[c]; ok || w.sent["Check"] != 0 || w.sent["Leased"] != 0 {
			t.Fatalf("after Fenced %d of rank %d: ended %v, sent %v", step.fenced, step.n.self.Rank, ok, w.sent)
		}
	}
	p1.fenced(9) // beyond what was handed out
	w.run()
	if r := w.ended(c); r.Err != nil {
		t.Fatal(r.Err)
	}
}

// Nothing is copied into memory that a step of its previous owner may write.
func TestReserveFence(t *testing.T) {
	w := pair(t, 1, 2)
	man := w.export("p", "r1", 40)
	for rank := range 2 {
		w.at("d", rank).eng.fence = 5
	}
	pulls := 0
	w.onPull = func(n *node, _ Pull) error {
		if n.m.engine.fenced < 5 {
			t.Errorf("rank %d pulls at fence %d", n.self.Rank, n.m.engine.fenced)
		}
		pulls++
		return nil
	}
	c := w.importStart("d", man)
	w.run()
	w.at("d", 1).fenced(5)
	w.at("d", 0).fenced(4)
	w.run()
	if pulls != 1 {
		t.Fatalf("%d pulls, one rank of two is clear", pulls)
	}
	w.at("d", 0).fenced(5)
	w.run()
	if r := w.ended(c); r.Err != nil {
		t.Fatal(r.Err)
	}
}

// An import that waits for a fence can end: nothing is open on its memory.
func TestAbortAtAFence(t *testing.T) {
	w := pair(t, 1, 1)
	man := w.export("p", "r1", 40)
	d := w.at("d", 0)
	d.eng.fence = 5
	c := w.importStart("d", man)
	w.run()
	d.step(Abort{Call: 99, ID: man.ID})
	w.run()
	d.fenced(5)
	w.run()
	if r := w.ended(c); !errors.Is(r.Err, handoff.ErrAborted) || len(d.eng.released) != 1 || len(d.open) != 0 {
		t.Fatalf("%v, %d released, %d open", r.Err, len(d.eng.released), len(d.open))
	}
}

func TestFencesRise(t *testing.T) {
	w := pair(t, 1, 1)
	d := w.at("d", 0)
	d.fenced(7)
	d.fenced(7)
	if len(d.closed) != 0 {
		t.Fatalf("closed %v", d.closed)
	}
	d.fenced(6)
	if len(d.closed) != 1 || !errors.Is(d.closed[0], handoff.ErrEngine) {
		t.Fatalf("closed %v", d.closed)
	}
}

// An export that waits for its fence when a rank leaves is given back with the rest.
func TestFenceInABreak(t *testing.T) {
	w := pair(t, 2, 1)
	p, p1 := w.at("p", 0), w.at("p", 1)
	for _, n := range []*node{p, p1} {
		n.step(FromEngine{n.eng.session, handoff.Export{Label: "r1", Tokens: 16, Position: 16, Blocks: []int32{1}, Fence: 3}})
	}
	w.run()
	w.cut(p.self, p1.self)
	w.advance(p1.m.cfg.Redial)
	p.fenced(3)
	p1.fenced(3)
	w.run()
	w.advance(p.m.cfg.MaxHold + time.Minute)
	for _, n := range []*node{p, p1} {
		if len(n.m.pins) != 0 || len(n.eng.freed)+len(n.eng.unpinned) == 0 {
			t.Errorf("rank %d: %d pins, %d freed, %d given back", n.self.Rank, len(n.m.pins), len(n.eng.freed), len(n.eng.unpinned))
		}
	}
}

// Copies that were asked to stop and do not cost the mover its life; its exit, and
// nothing before, gives their memory back.
func TestStuckCopiesEndWithTheirMover(t *testing.T) {
	w := pair(t, 2, 1)
	man := w.export("p", "r1", 40)
	w.onPull = func(*node, Pull) error { return errStuck }
	c := w.importStart("d", man)
	w.run()
	d := w.at("d", 0)
	w.advance(20 * time.Second)
	d.step(Abort{Call: 99, ID: man.ID})
	w.run()
	for d.killed == 0 && w.now < time.Hour {
		if len(d.eng.released) != 0 {
			t.Fatal("freed while copies may write")
		}
		w.advance(time.Second)
	}
	if want := 20*time.Second + d.m.cfg.KillAfter; w.now != want || !errors.Is(w.ended(c).Err, handoff.ErrAborted) {
		t.Fatalf("killed at %v, want %v; %v", w.now, want, w.ended(c).Err)
	}
	w.advance(d.m.cfg.KillAfter) // it does not exit
	if d.killed != 2 || len(d.eng.released) != 0 {
		t.Fatalf("killed %d times, %d released", d.killed, len(d.eng.released))
	}
	for tk := range d.open {
		d.step(PullDone{Ticket: tk, Err: errors.New("mover died")})
	}
	d.step(LinksLost{})
	w.run()
	w.advance(time.Hour)
	if d.killed != 2 || len(d.eng.released) != 1 {
		t.Fatalf("killed %d times, %d released", d.killed, len(d.eng.released))
	}
}

// A copy that ends when it is asked to costs nothing.
func TestCopiesThatStop(t *testing.T) {
	w := pair(t, 1, 1)
	w.onPull = func(*node, Pull) error { return errStuck }
	man := w.export("p", "r1", 40)
	d := w.at("d", 0)
	d.step(Import{Call: 98, Import: handoff.Import{Manifest: man, Tokens: make([]int32, 40), Deadline: time.Hour}})
	w.run()
	w.advance(2 * d.m.cfg.KillAfter) // a long copy is not asked to stop
	d.step(Abort{Call: 99, ID: man.ID})
	for tk := range d.open {
		d.step(PullDone{Ticket: tk, Err: errors.New("cancelled")})
	}
	w.run()
	w.advance(time.Hour)
	if d.killed != 0 {
		t.Fatalf("killed %d times", d.killed)
	}
}
