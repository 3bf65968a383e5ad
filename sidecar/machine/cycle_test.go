package machine

import (
	"errors"
	"testing"
	"time"

	"github.com/batonkv/baton/sidecar/handoff"
)

// ends are how an engine heard that label ended.
func (e *fakeEngine) heard(label string) (out []error) {
	for _, m := range e.got {
		switch m := m.(type) {
		case handoff.Imported:
			if m.Label == label {
				out = append(out, nil)
			}
		case handoff.Failed:
			if m.Label == label {
				out = append(out, m.Err)
			}
		}
	}
	return out
}

// edge is a state of an import that a test stops in.
type edge struct {
	name  string
	state handoff.LeaderState
	hold  func(w *world)
	free  func(w *world)
	want  error // how an abort there ends it; nil: admitted all the same
}

func edges() []edge {
	none := func(w *world) {}
	undrop := func(w *world) { w.drop = nil }
	return []edge{
		{"finding", handoff.Finding, func(w *world) { w.drop = dropType[handoff.Geometry] }, undrop, handoff.ErrAborted},
		{"opening", handoff.Opening, func(w *world) { w.drop = dropType[handoff.Opened] }, undrop, handoff.ErrAborted},
		{"waiting", handoff.Waiting, func(w *world) { w.at("d", 0).eng.full, w.at("d", 1).eng.full = true, true }, none, handoff.ErrAborted},
		{"granting", handoff.Granting, func(w *world) { w.drop = dropType[handoff.RankReserved] }, undrop, handoff.ErrAborted},
		{"pulling", handoff.Pulling, func(w *world) { w.onPull = func(*node, Pull) error { return errStuck } }, func(w *world) {
			w.at("d", 0).settle(errors.New("cancelled"))
			w.at("d", 1).settle(nil)
		}, handoff.ErrAborted},
		{"consuming", handoff.Consuming, func(w *world) { w.drop = dropType[handoff.Done] }, func(w *world) {
			w.drop = nil
			i := w.at("d", 0).m.lead.imports[0]
			w.deliver(w.at("d", 0).self, ToPeer{i.Source, handoff.Done{ID: i.ID(), Importer: i.importer, Attempt: i.Attempt}})
		}, nil},
		{"admitting", handoff.Admitting, func(w *world) { w.drop = dropType[handoff.RankApplied] }, func(w *world) {
			w.drop = nil
			for r := range 2 {
				n := w.at("d", r)
				w.deliver(n.self, ToPeer{w.at("d", 0).self, handoff.RankApplied{N: n.m.engine.applied}})
			}
		}, nil},
		{"draining", handoff.Draining, func(w *world) {
			w.onPull = func(n *node, _ Pull) error {
				if n.self.Rank == 0 {
					return errors.New("boom")
				}
				return errStuck
			}
		}, func(w *world) { w.at("d", 1).settle(nil) }, handoff.ErrTransfer},
		{"finished", handoff.Finished, none, none, nil},
	}
}

// An abort at any edge ends in exactly one Imported or Failed, whoever asked for the
// import, and nothing is left behind.
func TestAbortAtEveryEdge(t *testing.T) {
	for _, byEngine := range []bool{true, false} {
		for _, e := range edges() {
			w := pair(t, 2, 2)
			d := w.at("d", 0)
			man := w.export("p", "r1", 40)
			e.hold(w)
			im := handoff.Import{Label: "x", Manifest: man, Tokens: make([]int32, 40)}
			if byEngine {
				d.step(FromEngine{d.eng.session, im})
			} else {
				d.step(Import{Call: 98, Import: im})
			}
			w.run()
			if at := d.m.lead.imports; e.state != handoff.Finished && (len(at) != 1 || at[0].State() != e.state) {
				t.Fatalf("%s: the import is not there: %+v", e.name, at)
			}
			d.step(FromEngine{d.eng.session, handoff.AbortImport{Label: "x"}})
			d.step(FromEngine{d.eng.session, handoff.AbortImport{Label: "x"}})
			w.run()
			e.free(w)
			w.run()
			d.step(FromEngine{d.eng.session, handoff.AbortImport{Label: "x"}}) // crosses its end
			w.run()
			heard := d.eng.heard("x")
			if len(heard) != 1 || !errors.Is(heard[0], e.want) {
				t.Errorf("%s, by engine %v: heard %v, want one %v", e.name, byEngine, heard, e.want)
			}
			if !byEngine && !errors.Is(w.ended(98).Err, e.want) {
				t.Errorf("%s: the caller hears %v", e.name, w.ended(98).Err)
			}
			for r := range 2 {
				if got := len(w.at("d", r).eng.admitted) + len(w.at("d", r).eng.released); e.state >= handoff.Granting && got != 1 || len(w.at("d", r).m.dests) != 0 {
					t.Errorf("%s: rank %d admits or releases %d times, %d imports left", e.name, r, got, len(w.at("d", r).m.dests))
				}
			}
			if len(d.m.lead.imports) != 0 {
				t.Errorf("%s: %d imports left", e.name, len(d.m.lead.imports))
			}
		}
	}
}

func TestAbortOfNothing(t *testing.T) {
	w := pair(t, 1, 1)
	d := w.at("d", 0)
	d.step(FromEngine{d.eng.session, handoff.AbortImport{Label: "x"}})
	w.run()
	if h := d.eng.heard("x"); len(h) != 1 || !errors.Is(h[0], handoff.ErrUnknown) {
		t.Fatalf("heard %v", h)
	}
}

// Retracted between landing and admission: the outcome is the source's, the caller is told
// so, and what is admitted the engine ends by itself.
func TestRetractBetweenLandingAndAdmit(t *testing.T) {
	w := pair(t, 1, 1)
	d := w.at("d", 0)
	man := w.export("p", "r1", 40)
	w.drop = dropType[handoff.Done]
	c := w.importStart("d", man)
	w.run()
	d.step(Abort{Call: 99, ID: man.ID})
	if err := w.ended(99).Err; !errors.Is(err, handoff.ErrInDoubt) {
		t.Fatalf("abort while the source is asked: %v", err)
	}
	edges()[5].free(w)
	w.run()
	if r := w.ended(c); r.Err != nil || len(d.eng.admitted) != 1 {
		t.Fatalf("%v, %d admits", r.Err, len(d.eng.admitted))
	}
	if o, ok := d.m.Get(man.ID); !ok || o.State != handoff.Finished || o.Err != nil {
		t.Errorf("Get: %+v", o)
	}
}

// A call that is repeated joins the import under way; after its end the copy is spent.
func TestRetriedImport(t *testing.T) {
	w := pair(t, 1, 1)
	d := w.at("d", 0)
	man := w.export("p", "r1", 40)
	w.onPull = func(*node, Pull) error { return errStuck }
	a, b := w.importStart("d", man), w.importStart("d", man)
	d.step(FromEngine{d.eng.session, handoff.Import{Manifest: man, Tokens: make([]int32, 40)}})
	w.run()
	d.settle(nil)
	if w.ended(a).Err != nil || w.ended(b).Err != nil || len(d.eng.admitted) != 1 || len(d.eng.heard("r1")) != 1 {
		t.Fatalf("%v, %v, %d admits, engine heard %v", w.ended(a).Err, w.ended(b).Err, len(d.eng.admitted), d.eng.heard("r1"))
	}
	c := w.importStart("d", man)
	w.run()
	if r := w.ended(c); !errors.Is(r.Err, handoff.ErrGone) || len(d.eng.admitted) != 1 {
		t.Fatalf("%v, %d admits", r.Err, len(d.eng.admitted))
	}
	if o, ok := d.m.Get(man.ID); !ok || o.Err != nil {
		t.Errorf("what the first call did is not told any more: %v", o.Err)
	}
}

// An import that failed and drains hides neither the next one of its hand-off nor its end.
func TestRetriedWhileDraining(t *testing.T) {
	w := pair(t, 2, 2)
	d := w.at("d", 0)
	man := w.export("p", "r1", 40)
	w.onPull = func(n *node, _ Pull) error {
		if n.self.Rank == 0 {
			return errors.New("boom")
		}
		return errStuck
	}
	a := w.importStart("d", man)
	w.run()
	if o, ok := d.m.Get(man.ID); !errors.Is(w.ended(a).Err, handoff.ErrTransfer) || !ok || !errors.Is(o.Err, handoff.ErrTransfer) || o.State != handoff.Draining {
		t.Fatalf("%v, Get: %+v", w.ended(a).Err, o)
	}
	w.onPull, w.drop = nil, dropType[handoff.Opened]
	b := w.importStart("d", man)
	w.run()
	if o, ok := d.m.Get(man.ID); !ok || o.Err != nil || o.State != handoff.Opening {
		t.Errorf("Get of the one that goes on: %+v", o)
	}
	w.drop = nil
	d.step(Abort{Call: 99, ID: man.ID})
	c := w.importStart("d", man)
	w.run()
	if len(d.m.lead.imports) != 1 || !errors.Is(w.ended(b).Err, handoff.ErrAborted) || w.ended(c).Err != nil {
		t.Fatalf("%d imports left, %v, %v", len(d.m.lead.imports), w.ended(b).Err, w.ended(c).Err)
	}
	if o, ok := d.m.Get(man.ID); !ok || o.Err != nil || o.State != handoff.Finished {
		t.Errorf("Get of the one that was admitted: %+v", o)
	}
}

// One pin serves as many imports as the export says.
func TestTwoCopies(t *testing.T) {
	w := pair(t, 2, 1)
	w.group("e", 1)
	w.change = func(e *handoff.Export) { e.Copies = 2 }
	man := w.export("p", "r1", 40)
	for i, g := range []string{"d", "e", "d"} {
		c := w.importStart(g, man)
		w.run()
		if err := w.calls[c].Err; (err == nil) != (i < 2) || i == 2 && !errors.Is(err, handoff.ErrGone) {
			t.Errorf("import %d into %s: %v", i, g, err)
		}
		if n := len(w.at("p", 1).eng.freed); (n == 1) != (i >= 1) {
			t.Errorf("after import %d: %d frees", i, n)
		}
	}
}

// A failed import leaves the source to another group; it waits for that until its lease
// ends, and no longer.
func TestReroute(t *testing.T) {
	for _, again := range []bool{true, false} {
		w := pair(t, 2, 1)
		w.group("e", 1)
		man := w.export("p", "r1", 40)
		w.onPull = func(n *node, _ Pull) error {
			if n.self.Group == "d" {
				return errors.New("boom")
			}
			return nil
		}
		c := w.importStart("d", man)
		w.run()
		if r := w.ended(c); !errors.Is(r.Err, handoff.ErrTransfer) {
			t.Fatal(r.Err)
		}
		w.advance(w.at("p", 0).m.cfg.Lease - 1)
		if n := len(w.at("p", 1).eng.freed); n != 0 {
			t.Fatal("the source did not wait")
		}
		if again {
			c = w.importStart("e", man)
			w.run()
			if r := w.ended(c); r.Err != nil {
				t.Fatal(r.Err)
			}
		}
		w.advance(1)
		if n := len(w.at("p", 1).eng.freed); n != 1 {
			t.Errorf("re-routed %v: %d frees", again, n)
		}
	}
}

// A request that ended at prefill is handed over like any other, and says so.
func TestFinishedAtPrefill(t *testing.T) {
	w := pair(t, 1, 2)
	w.change = func(e *handoff.Export) { e.Resume = handoff.Resume{Tokens: []int32{7}, Finished: true} }
	man := w.export("p", "r1", 40)
	man.Resume.Finished = false // passed through clients: the source's word counts
	c := w.importStart("d", man)
	w.run()
	if r := w.ended(c); r.Err != nil || !w.at("d", 1).eng.reserved[0].Resume.Finished {
		t.Fatalf("%v, %+v", r.Err, w.at("d", 1).eng.reserved[0].Resume)
	}
}

// Nothing left to pull still consumes the source.
func TestNothingLeftToPull(t *testing.T) {
	w := newWorld(t)
	w.kvOnly = true
	w.group("p", 2)
	w.group("d", 1)
	w.at("d", 0).eng.cached = 48
	w.onPull = func(*node, Pull) error { t.Error("pulled"); return nil }
	c := w.importStart("d", w.export("p", "r1", 48))
	w.run()
	if r := w.ended(c); r.Err != nil || r.Imported.Bytes != 0 || r.Imported.Cached != 48 || w.sent["Done"] != 1 || len(w.at("p", 1).eng.freed) != 1 {
		t.Fatalf("%+v, sent %v, %d frees", r, w.sent, len(w.at("p", 1).eng.freed))
	}
}

// A prefill that is preempted gives its label up: who waits hears gone, and the label can
// be announced anew, as another hand-off.
func TestPreemptedPrefill(t *testing.T) {
	w := pair(t, 2, 1)
	p := w.at("p", 0)
	p.step(FromEngine{p.eng.session, handoff.Announce{Label: "r1"}})
	man := *p.notices[len(p.notices)-1].Manifest
	im := handoff.Import{Manifest: man, Tokens: make([]int32, 40)}
	w.at("d", 0).step(Import{Call: 98, Import: im})
	w.run()
	p.step(FromEngine{p.eng.session, handoff.ReleaseExport{Label: "r1"}})
	w.run()
	if r := w.ended(98); !errors.Is(r.Err, handoff.ErrGone) {
		t.Fatal(r.Err)
	}
	again := w.export("p", "r1", 40)
	c := w.importStart("d", again)
	w.run()
	if r := w.ended(c); r.Err != nil || again.ID == man.ID || again.Key == man.Key {
		t.Fatalf("%v; %v after %v", r.Err, again.ID, man.ID)
	}
}

// Per-request state that stands elsewhere than the KV does not leave its group, nor enter
// another.
func TestUnequalPositions(t *testing.T) {
	w := pair(t, 2, 1)
	p, p1 := w.at("p", 0), w.at("p", 1)
	x := handoff.Export{Label: "r1", Tokens: 16, Position: 14, Blocks: []int32{0}}
	p.step(FromEngine{p.eng.session, x})
	w.run()
	if h := p.eng.heard("r1"); len(h) != 1 || !errors.Is(h[0], handoff.ErrPosition) {
		t.Errorf("a state two tokens behind: %v", h)
	}
	x.Label, x.Position = "r2", 16
	p.step(FromEngine{p.eng.session, x})
	x.Position = 15
	p1.step(FromEngine{p1.eng.session, x})
	w.run()
	if h := p.eng.heard("r2"); len(h) != 1 || !errors.Is(h[0], handoff.ErrPosition) || len(p.m.pins)+len(p1.m.pins) != 0 {
		t.Errorf("ranks that differ: %v, %d pins", h, len(p.m.pins)+len(p1.m.pins))
	}
	w.drop = func(_, to handoff.Member, msg handoff.PeerMessage) bool {
		o, ok := msg.(handoff.Opened)
		if ok && o.Position == 40 {
			o.Position = 38
			w.at("d", 0).step(FromPeer{p.self, o})
		}
		return ok
	}
	c := w.importStart("d", w.export("p", "r3", 40))
	w.run()
	if r := w.ended(c); !errors.Is(r.Err, handoff.ErrPosition) || w.at("d", 0).eng.reserves != 0 {
		t.Errorf("a source that says another position: %v", r.Err)
	}
}

// The deadline of an import bounds its wait wherever it is, but for what the source and
// its own engines have to say.
func TestDeadlineAtEveryEdge(t *testing.T) {
	for _, e := range edges() {
		if e.state == handoff.Finished || e.state == handoff.Draining {
			continue
		}
		w := pair(t, 2, 2)
		d := w.at("d", 0)
		man := w.export("p", "r1", 40)
		e.hold(w)
		d.step(Import{Call: 98, Import: handoff.Import{Manifest: man, Tokens: make([]int32, 40), Deadline: 5 * time.Second}})
		w.run()
		w.advance(5 * time.Second)
		w.advance(d.m.cfg.Patience)
		want := map[handoff.LeaderState]error{handoff.Consuming: handoff.ErrPeer, handoff.Admitting: handoff.ErrInDoubt}[e.state]
		if want == nil {
			want = handoff.ErrDeadline
		}
		if r := w.ended(98); !errors.Is(r.Err, want) {
			t.Errorf("%s: %v, want %v", e.name, r.Err, want)
		}
	}
}
