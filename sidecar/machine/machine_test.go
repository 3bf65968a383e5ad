package machine

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/batonkv/baton/discovery"
	"github.com/batonkv/baton/sidecar/handoff"
)

func pair(t *testing.T, src, dst int32) *world {
	w := newWorld(t)
	w.group("p", src)
	w.group("d", dst)
	return w
}

func (w *world) ended(c Call) Reply {
	w.t.Helper()
	r, ok := w.calls[c]
	if !ok {
		w.t.Fatalf("import has not ended: %+v", w.at("d", 0).m.lead.imports)
	}
	return r
}

// TestHandoff walks the whole path, and counts what crosses processes: TP1 takes the
// same path as TPn.
func TestHandoff(t *testing.T) {
	for _, c := range []struct{ src, dst, decisions int32 }{{1, 1, 0}, {2, 1, 0}, {1, 2, 2}, {4, 2, 2}, {2, 4, 6}} {
		t.Run(fmt.Sprintf("tp%d-tp%d", c.src, c.dst), func(t *testing.T) {
			w := pair(t, c.src, c.dst)
			man := w.export("p", "r1", 40)
			clear(w.sent)
			call := w.importStart("d", man)
			w.run()
			r := w.ended(call)
			if r.Err != nil {
				t.Fatal(r.Err)
			}
			want := int64(2*4)*(40*8*2) + 2*4*16*4
			if r.Imported.Bytes != want {
				t.Errorf("moved %d bytes, want %d", r.Imported.Bytes, want)
			}
			for rank := range c.dst {
				e := w.at("d", int(rank)).eng
				if len(e.admitted) != 1 || e.reserves != 1 {
					t.Errorf("rank %d: %d admits, %d reserves", rank, len(e.admitted), e.reserves)
				}
			}
			for rank := range c.src {
				n := w.at("p", int(rank))
				if len(n.eng.freed) != 1 || len(n.m.pins) != 0 {
					t.Errorf("source rank %d: %d frees, %d pins", rank, len(n.eng.freed), len(n.m.pins))
				}
			}
			checks := int(max(c.src, c.dst))
			got := [4]int{w.sent["Open"], w.sent["Check"], w.sent["Done"], w.sent["Decision"] - int(c.src-1)}
			if got != [4]int{1, checks, 1, int(c.decisions)} {
				t.Errorf("open, check, done, decisions = %v, want 1 %d 1 %d", got, checks, c.decisions)
			}
			for _, p := range w.order {
				if n := w.nodes[p]; len(n.closed) > 0 || len(n.refused) > 0 {
					t.Errorf("%v: closed %v, refused %v", p, n.closed, n.refused)
				}
			}
		})
	}
}

func TestSecondImportIsTakenOrGone(t *testing.T) {
	w := pair(t, 2, 1)
	man := w.export("p", "r1", 16)
	w.importStart("d", man)
	w.run()
	c := w.importStart("d", man)
	w.run()
	if r := w.ended(c); !errors.Is(r.Err, handoff.ErrGone) {
		t.Fatalf("a consumed hand-off answers %v", r.Err)
	}
}

func TestWrongKeyReadsNothing(t *testing.T) {
	w := pair(t, 1, 1)
	man := w.export("p", "r1", 16)
	man.Key[0] ^= 1
	c := w.importStart("d", man)
	w.run()
	if r := w.ended(c); !errors.Is(r.Err, handoff.ErrGone) || w.at("d", 0).eng.reserves != 0 {
		t.Fatalf("err %v, %d reserves", r.Err, w.at("d", 0).eng.reserves)
	}
}

func TestFailedCopyDropsAndFrees(t *testing.T) {
	w := pair(t, 2, 2)
	man := w.export("p", "r1", 40)
	w.onPull = func(n *node, p Pull) error {
		if n.self.Rank == 1 {
			return errors.New("boom")
		}
		return nil
	}
	c := w.importStart("d", man)
	w.run()
	if r := w.ended(c); !errors.Is(r.Err, handoff.ErrTransfer) {
		t.Fatal(r.Err)
	}
	for rank := range 2 {
		if e := w.at("d", rank).eng; len(e.admitted) != 0 || len(e.released) != 1 {
			t.Errorf("rank %d: %d admits, %d releases", rank, len(e.admitted), len(e.released))
		}
	}
	w.onPull = nil // the source waits for another try
	c = w.importStart("d", man)
	w.run()
	if r := w.ended(c); r.Err != nil {
		t.Fatal(r.Err)
	}
}

// A copy that never settles keeps its blocks out of use, whatever the deadline says.
func TestStuckCopyIsNotFreedByTime(t *testing.T) {
	w := pair(t, 2, 1)
	man := w.export("p", "r1", 40)
	w.onPull = func(*node, Pull) error { return errStuck }
	c := w.importStart("d", man)
	w.run()
	w.advance(time.Minute)
	if r := w.ended(c); !errors.Is(r.Err, handoff.ErrDeadline) {
		t.Fatal(r.Err)
	}
	d := w.at("d", 0)
	if len(d.eng.released) != 0 {
		t.Fatal("blocks were released while copies may write them")
	}
	for tk := range d.open {
		d.step(PullDone{Ticket: tk, Err: errors.New("mover died")})
	}
	w.run()
	if len(d.eng.released) != 1 {
		t.Fatal("blocks were not released once every copy had ended")
	}
}

func TestLeaseEnds(t *testing.T) {
	w := pair(t, 2, 1)
	man := w.export("p", "r1", 40)
	w.advance(31 * time.Second)
	if p := w.at("p", 1); len(p.eng.freed) != 1 || len(p.m.pins) != 0 {
		t.Fatalf("rank 1: %d frees, %d pins", len(p.eng.freed), len(p.m.pins))
	}
	c := w.importStart("d", man)
	w.run()
	if r := w.ended(c); !errors.Is(r.Err, handoff.ErrGone) {
		t.Fatal(r.Err)
	}
}

// A lease that ends between the last read and Check must not be admitted.
func TestLeaseEndsWhileReading(t *testing.T) {
	w := pair(t, 2, 1)
	man := w.export("p", "r1", 40)
	w.onPull = func(*node, Pull) error {
		w.onPull = nil
		w.now += time.Minute
		for rank := range 2 {
			w.at("p", rank).step(Tick{})
		}
		return nil
	}
	c := w.importStart("d", man)
	w.run()
	w.advance(0)
	if r := w.ended(c); r.Err == nil || len(w.at("d", 0).eng.admitted) != 0 {
		t.Fatalf("admitted what was not proved: %v", r.Err)
	}
}

func TestFullWaitsInOrder(t *testing.T) {
	w := pair(t, 1, 1)
	a, b := w.export("p", "a", 16), w.export("p", "b", 16)
	d := w.at("d", 0)
	d.eng.full = true
	ca, cb := w.importStart("d", a), w.importStart("d", b)
	w.run()
	if len(w.calls) != 0 || d.eng.reserves != 1 {
		t.Fatalf("%d replies, %d reserves", len(w.calls), d.eng.reserves)
	}
	d.eng.full = false
	d.step(FromEngine{d.eng.session, handoff.Freed{Blocks: 9}})
	w.run()
	if w.ended(ca).Err != nil || w.ended(cb).Err != nil || d.eng.admitted[0].ID != a.ID {
		t.Fatal("waiting imports were not served in order")
	}
}

func TestDivergedAllocators(t *testing.T) {
	w := pair(t, 1, 2)
	man := w.export("p", "r1", 16)
	w.at("d", 1).eng.twist = true
	c := w.importStart("d", man)
	w.run()
	if r := w.ended(c); !errors.Is(r.Err, handoff.ErrEngine) {
		t.Fatal(r.Err)
	}
	if d := w.at("d", 0); len(d.closed) < 1 || !errors.Is(d.closed[0], handoff.ErrEngine) || d.m.lead.roster != nil {
		t.Fatalf("closed %v: nothing that the allocators say can be trusted", d.closed)
	}
}

// An importer may be faster than the leader's word to its own ranks.
func TestCheckBeforeLeased(t *testing.T) {
	w := pair(t, 2, 1)
	w.drop = func(_, _ handoff.Member, msg handoff.PeerMessage) bool { _, ok := msg.(handoff.Leased); return ok }
	c := w.importStart("d", w.export("p", "r1", 40))
	w.run()
	if r := w.ended(c); r.Err != nil {
		t.Fatal(r.Err)
	}
	if p := w.at("p", 1); len(p.eng.freed) != 1 || len(p.m.pins) != 0 {
		t.Fatalf("rank 1: %d frees, %d pins", len(p.eng.freed), len(p.m.pins))
	}
}

func TestPendingUntilExport(t *testing.T) {
	w := pair(t, 2, 1)
	p := w.at("p", 0)
	p.step(FromEngine{p.eng.session, handoff.Announce{Label: "r1"}})
	man := *p.notices[len(p.notices)-1].Manifest
	w.lastC++
	w.at("d", 0).step(Import{Call: w.lastC, Import: handoff.Import{Manifest: man, Tokens: make([]int32, 20)}})
	w.run()
	if len(w.calls) != 0 {
		t.Fatal("answered before the export")
	}
	w.export("p", "r1", 20)
	if r := w.ended(w.lastC); r.Err != nil {
		t.Fatal(r.Err)
	}
}

func TestRefusals(t *testing.T) {
	w := pair(t, 2, 1)
	man := w.export("p", "r1", 20)
	d := w.at("d", 0)
	for name, c := range map[string]struct {
		change func(*handoff.Import)
		want   error
	}{
		"another model":  {func(i *handoff.Import) { i.Manifest.Model[0] ^= 1 }, handoff.ErrModel},
		"too few tokens": {func(i *handoff.Import) { i.Tokens = i.Tokens[:3] }, handoff.ErrPosition},
		"restarted":      {func(i *handoff.Import) { i.Manifest.ID.Leader++ }, handoff.ErrGone},
		"never minted":   {func(i *handoff.Import) { i.Manifest.ID.N = 99 }, handoff.ErrGone},
		"no label":       {func(i *handoff.Import) { i.Manifest.Label = "" }, handoff.ErrUnknown},
		"own group":      {func(i *handoff.Import) { i.Manifest.ID.Group = "d" }, handoff.ErrPlan},
	} {
		t.Run(name, func(t *testing.T) {
			im := handoff.Import{Manifest: man, Tokens: make([]int32, 20)}
			c.change(&im)
			w.lastC++
			d.step(Import{Call: w.lastC, Import: im})
			w.run()
			if r := w.ended(w.lastC); !errors.Is(r.Err, c.want) {
				t.Fatalf("got %v, want %v", r.Err, c.want)
			}
		})
	}
}

func TestAttachTwiceAndWrong(t *testing.T) {
	w := pair(t, 1, 1)
	n := w.at("d", 0)
	n.step(FromEngine{999, n.eng.attach})
	if len(n.closed) != 1 || !errors.Is(n.closed[0], handoff.ErrAttached) {
		t.Fatalf("second attach: %v", n.closed)
	}
	bad := n.eng.attach
	bad.Buffers = []handoff.BufferDecl{{ID: 0, Len: 10}}
	n.step(EngineDown{n.eng.session})
	n.step(FromEngine{1000, bad})
	if len(n.closed) != 2 || !errors.Is(n.closed[1], handoff.ErrAttach) {
		t.Fatalf("short buffer: %v", n.closed)
	}
}

// A rank that leaves ends what its group held and imports.
func TestRankLeaves(t *testing.T) {
	w := pair(t, 2, 2)
	man := w.export("p", "r1", 40)
	w.onPull = func(*node, Pull) error { return errStuck }
	c := w.importStart("d", man)
	w.run()
	d1 := w.at("d", 1)
	d1.step(EngineDown{d1.eng.session})
	w.run()
	if r := w.ended(c); !errors.Is(r.Err, handoff.ErrEngine) {
		t.Fatal(r.Err)
	}
	c = w.importStart("d", man)
	if r := w.ended(c); !errors.Is(r.Err, handoff.ErrNotReady) {
		t.Fatal(r.Err)
	}
}

// An engine that is launched anew has other memory: links to the old one's are not
// read again, also while copies from it are not finished.
func TestSourceRelaunched(t *testing.T) {
	for _, busy := range []bool{false, true} {
		w := pair(t, 2, 2)
		w.onPull = func(*node, Pull) error {
			if busy {
				return errStuck
			}
			return nil
		}
		w.importStart("d", w.export("p", "r1", 40))
		w.run()
		for rank := range 2 {
			n := w.at("p", rank)
			n.step(EngineDown{n.eng.session})
			w.run()
			a := n.eng.attach
			a.Instance++
			n.attach(a)
			w.run()
		}
		w.advance(time.Second) // ranks dial their leader again
		w.onPull = nil
		clear(w.sent)
		c := w.importStart("d", w.export("p", "r2", 40))
		w.run()
		for rank := range 2 {
			d := w.at("d", rank)
			for tk := range d.open {
				delete(d.open, tk)
				d.step(PullDone{Ticket: tk, Err: errors.New("ended")})
			}
		}
		w.run()
		if r := w.ended(c); r.Err != nil {
			t.Fatalf("busy %v: %v", busy, r.Err)
		}
		if n := w.sent["WantBuffers"]; n != 2 {
			t.Errorf("busy %v: %d ranks asked for the new engine's buffers, want 2", busy, n)
		}
	}
}

func TestRoles(t *testing.T) {
	w := pair(t, 1, 1)
	p, d := w.at("p", 0), w.at("d", 0)
	man := w.export("p", "r1", 16)
	p.m.cfg.Role, d.m.cfg.Role = discovery.Decode, discovery.Prefill
	p.step(FromEngine{p.eng.session, handoff.Export{Label: "r2", Blocks: []int32{5}, Tokens: 16, Position: 16}})
	c := w.importStart("d", man)
	w.run()
	if r := w.ended(c); !errors.Is(r.Err, handoff.ErrRole) {
		t.Errorf("a prefill group imports: %v", r.Err)
	}
	if f, ok := p.eng.got[len(p.eng.got)-1].(handoff.Failed); !ok || !errors.Is(f.Err, handoff.ErrRole) {
		t.Errorf("a decode group exports: %v", p.eng.got[len(p.eng.got)-1])
	}
}
