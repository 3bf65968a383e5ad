package machine

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/batonkv/baton/sidecar/handoff"
)

// A label whose Free is on its way already is not freed twice.
func TestFreeIsDecidedOnce(t *testing.T) {
	for i := range 4 {
		w := pair(t, 2, 1)
		rank := i % 2
		man := w.export("p", "a", 16)
		w.drop = dropType[handoff.RankHeld] // so that no engine applies it
		if i > 1 {
			w.drop = func(_, to handoff.Member, msg handoff.PeerMessage) bool { // so that rank 1 lacks it
				_, ok := msg.(handoff.Decision)
				return ok && to.Rank == 1
			}
		}
		w.at("p", 0).step(Release{Call: 1, ID: man.ID, Key: man.Key})
		w.run()
		w.drop = nil
		w.restart("p", rank)
		w.back()
		for r := range 2 {
			if e := w.at("p", r).eng; !slices.Equal(e.story, []string{"1 free 0a"}) {
				t.Errorf("rank %d restarted: rank %d applied %q", rank, r, e.story)
			}
		}
	}
}

// An abort before a leader that came back knows what was decided changes nothing: the
// import's end is on its way.
func TestAbortBeforeRecovery(t *testing.T) {
	w := pair(t, 2, 2)
	w.drop = dropType[handoff.RankApplied]
	w.ask(w.export("p", "a", 40))
	w.drop = nil
	one := w.end("d", 1)
	n := w.restart("d", 0)
	w.run()
	n.step(FromEngine{n.eng.session, handoff.AbortImport{Label: "a"}})
	w.run()
	if len(n.eng.ends) != 0 {
		t.Fatalf("the engine heard %q", n.eng.ends)
	}
	w.start(one).reattach()
	w.back()
	if n.eng.ends["a"] != "imported" {
		t.Fatalf("the engine heard %q", n.eng.ends)
	}
	w.restart("d", 0)
	w.back()
	if ns := w.at("d", 0).notices; slices.ContainsFunc(ns, func(n Notice) bool { return n.Kind == NoticeImported }) {
		t.Error("what ended long ago is told again by every successor")
	}
}

// A change of weights that a leader before this one decided is answered when every
// engine applied it.
func TestWeightsAfterARestart(t *testing.T) {
	w := pair(t, 1, 2)
	w.drop = func(_, to handoff.Member, msg handoff.PeerMessage) bool {
		_, ok := msg.(handoff.Decision)
		return ok && to.Rank == 1
	}
	w.at("d", 0).step(SetWeightsEpoch{Call: 1, Epoch: 3})
	w.run()
	w.restart("d", 0)
	w.back()
	w.at("d", 0).step(SetWeightsEpoch{Call: 2, Epoch: 3})
	if _, ok := w.calls[2]; ok {
		t.Fatal("answered before an engine applied it")
	}
	w.drop = nil
	w.lose("d", 1)
	w.back()
	if r := w.ended(2); r.Err != nil || w.at("d", 1).eng.weights != 3 {
		t.Fatalf("%v, epoch %d", r.Err, w.at("d", 1).eng.weights)
	}
}

// A rank that refuses an export says so: nobody waits for it until max-hold.
func TestRefusedExportIsTold(t *testing.T) {
	for _, order := range [][]int{{0, 1}, {1, 0}} {
		w := pair(t, 2, 1)
		for _, rank := range order {
			n := w.at("p", rank)
			n.eng.pins["x"] = true
			e := handoff.Export{Label: "x", Tokens: 16, Position: 16 - 2*int32(rank), Blocks: []int32{0}}
			n.step(FromEngine{n.eng.session, e})
		}
		w.run()
		p0, p1 := w.at("p", 0), w.at("p", 1)
		if len(p0.m.lead.labels)+len(p0.m.pins)+len(p1.m.pins)+len(p0.eng.pins)+len(p1.eng.pins) != 0 {
			t.Errorf("order %v: labels %v, pins %v and %v", order, p0.m.lead.labels, p0.eng.pins, p1.eng.pins)
		}
		if p0.eng.ends["x"] == "" || p1.eng.ends["x"] == "" {
			t.Errorf("order %v: the engines heard %q and %q", order, p0.eng.ends, p1.eng.ends)
		}
		w.ask(w.export("p", "x", 16)) // the label is free
		if w.at("d", 0).eng.ends["x"] != "imported" {
			t.Errorf("order %v: %q", order, w.at("d", 0).eng.ends)
		}
	}
}

// What ranks keep for a recovery is bounded, also while a copy never ends; and the import
// whose Reserve nobody keeps any more still ends.
func TestTailsStayShort(t *testing.T) {
	w := pair(t, 2, 2)
	w.onPull = func(*node, Pull) error { return errStuck }
	w.ask(w.export("p", "a", 40))
	d := w.at("d", 0)
	d.step(FromEngine{d.eng.session, handoff.AbortImport{Label: "a"}})
	w.run()
	for i := range dropAgain * 3 / 2 {
		label := fmt.Sprint("x", i)
		w.export("d", label, 16)
		d.step(FromEngine{d.eng.session, handoff.ReleaseExport{Label: label}})
		w.run()
		d.eng.got, d.notices = nil, nil
		if n := len(w.at("d", 1).m.engine.tail); n > dropAgain+2 {
			t.Fatalf("rank 1 keeps %d decisions", n)
		}
	}
	if d.eng.tail[0].N == 1 {
		t.Fatal("the tail still begins with the Reserve")
	}
	w.restart("d", 1)
	w.restart("d", 0)
	w.advance(40 * time.Second) // the lease of a
	w.settled(t)
	if d.eng.given != 1 {
		t.Error("the import did not end")
	}
}

func TestStatementsAreChecked(t *testing.T) {
	for name, c := range map[string]struct {
		rank   int
		change func(*handoff.Attach)
	}{
		"imports of another rank": {1, func(a *handoff.Attach) { a.Imports = []string{"a"} }},
		"a pin twice":             {0, func(a *handoff.Attach) { a.Pins = []string{"a", "b", "a"} }},
		"a pin without a label":   {0, func(a *handoff.Attach) { a.Pins = []string{""} }},
		"an import twice":         {0, func(a *handoff.Attach) { a.Imports = []string{"a", "a"} }},
		"no decisions":            {0, func(a *handoff.Attach) { a.Decisions = nil }},
	} {
		w := pair(t, 2, 2)
		w.ask(w.export("p", "a", 40))
		n := w.start(w.end("d", c.rank))
		a := n.eng.statement()
		c.change(&a)
		if n.step(FromEngine{5, a}); len(n.closed) != 1 || !errors.Is(n.closed[0], handoff.ErrAttach) {
			t.Errorf("%s: closed %v", name, n.closed)
		}
	}
}

// One Reserve is on its way at a time, whatever became of its import: the contents of one
// are all that a rank may have to state.
func TestNoReserveBeforeTheLastIsApplied(t *testing.T) {
	w := pair(t, 1, 2)
	d := w.at("d", 0)
	var kept []func()
	w.drop = func(from, _ handoff.Member, msg handoff.PeerMessage) bool {
		_, ok := msg.(handoff.RankHeld)
		if ok {
			kept = append(kept, func() { d.step(FromPeer{from, msg}) })
		}
		return ok
	}
	a, b := w.export("p", "a", 16), w.export("p", "b", 16)
	w.ask(a)
	d.step(FromEngine{d.eng.session, handoff.AbortImport{Label: "a"}})
	w.ask(b)
	reserves := func() (n int) {
		for _, x := range d.eng.tail {
			if x.Kind == handoff.Reserve {
				n++
			}
		}
		return n
	}
	if reserves() != 1 || d.m.lead.imports[0].State() != handoff.Waiting {
		t.Fatalf("%d Reserves, the next import is %v", reserves(), d.m.lead.imports[0].State())
	}
	w.drop = nil
	for _, f := range kept {
		f()
	}
	w.run()
	if d.eng.ends["b"] != "imported" || d.eng.reserves != 2 {
		t.Fatalf("%q, %d Reserves", d.eng.ends, d.eng.reserves)
	}
}

// A pin of before an engine attached is told from one of after it.
func TestGenerationsCountAttaches(t *testing.T) {
	w := pair(t, 1, 1)
	for want := handoff.Generation(1); want < 4; want++ {
		w.export("p", fmt.Sprint("r", want), 16)
		if g := w.at("p", 0).m.sortedPins()[0].Info.Generation; g != want {
			t.Errorf("generation %d, want %d", g, want)
		}
		w.lose("p", 0)
		w.back()
	}
}

// A peer that does not answer is dialled ever more rarely, and at once when its successor
// is found.
func TestDialsBackOff(t *testing.T) {
	w := pair(t, 2, 1)
	p1, gone := w.at("p", 1), w.at("p", 0)
	gone.dead = true
	delete(w.nodes, gone.self)
	w.order = slices.DeleteFunc(w.order, func(m handoff.Member) bool { return m == gone.self })
	w.nodes[gone.self] = nil
	p1.step(PeerDown{gone.self, errors.New("cut")})
	var pauses []time.Duration
	for range 8 {
		at, _ := p1.m.Next()
		pauses = append(pauses, at-w.now)
		w.advance(at - w.now)
	}
	ms := time.Millisecond
	if want := []time.Duration{100 * ms, 200 * ms, 400 * ms, 800 * ms, 1600 * ms, 3200 * ms, 5000 * ms, 5000 * ms}; !slices.Equal(pauses, want) {
		t.Fatalf("%v", pauses)
	}
}
