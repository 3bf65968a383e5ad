package machine

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/batonkv/baton/discovery"
	"github.com/batonkv/baton/sidecar/handoff"
)

// restart ends a sidecar's process, with its movers, and starts another: its engine lives
// and attaches again.
func (w *world) restart(group string, rank int) *node {
	n := w.start(w.end(group, rank))
	n.reattach()
	return n
}

// end ends a sidecar's process.
func (w *world) end(group string, rank int) *node {
	old := w.at(group, rank)
	old.dead = true
	for _, p := range slices.SortedFunc(maps.Keys(old.up), compareMember) {
		w.cut(old.self, p)
	}
	return old
}

// start starts the successor of a sidecar, and discovery shows it.
func (w *world) start(old *node) *node {
	n := &node{w: w, self: old.self, eng: old.eng, up: map[handoff.Member]bool{}, open: map[uint64]bool{}}
	n.self.Incarnation = handoff.Incarnation(w.mint())
	n.m = New(Config{Self: n.self, Mint: w.mint})
	w.nodes[n.self] = n
	w.order[slices.Index(w.order, old.self)] = n.self
	w.show(n.self)
	return n
}

// show makes discovery show p for its rank.
func (w *world) show(p handoff.Member) {
	i := slices.IndexFunc(w.records, func(r discovery.Record) bool { return r.Group == p.Group && r.Rank == int32(p.Rank) })
	w.records[i].Incarnation, w.records[i].Addr = uint64(p.Incarnation), p.String()
	for _, o := range w.order {
		w.nodes[o].step(Found{slices.Clone(w.records)})
	}
}

// lose ends the engine session of a sidecar that lives; the engine attaches again.
func (w *world) lose(group string, rank int) {
	n := w.at(group, rank)
	if n.eng.session == 0 {
		return // it is lost already
	}
	n.step(EngineDown{n.eng.session})
	n.eng.session = 0
	n.reattach()
}

// reattach makes n's engine attach with what it kept, once no copy is open any more.
func (n *node) reattach() {
	if n.dead {
		return // the engine is with its successor
	}
	if n.m.openTickets() > 0 {
		n.w.later = append(n.w.later, n.reattach)
		return
	}
	e := n.eng
	e.session = Session(n.w.mint())
	n.step(FromEngine{e.session, e.statement()})
	n.step(FromEngine{e.session, handoff.BuffersReady{}})
}

func (e *fakeEngine) statement() handoff.Attach {
	a := e.attach
	a.Pins, a.Imports = slices.Sorted(maps.Keys(e.pins)), slices.Sorted(maps.Keys(e.imports))
	a.Applied, a.Held, a.Decisions = e.applied, e.last, slices.Clone(e.tail)
	a.Model.WeightsEpoch, a.Draining = e.weights, e.draining
	return a
}

// importAsked imports by rank 0's engine.
func (w *world) importAsked(group string, man handoff.Manifest) {
	n := w.at(group, 0)
	n.eng.imports[man.Label] = true
	n.step(FromEngine{n.eng.session, handoff.Import{Label: man.Label, Manifest: man, Tokens: make([]int32, man.Tokens)}})
}

// settled looks for what a fault may not leave behind, once everybody has come back.
func (w *world) settled(t *testing.T) {
	t.Helper()
	for _, p := range w.order {
		n := w.nodes[p]
		e, lead := n.eng, w.at(p.Group, 0).eng
		if !slices.Equal(e.story, lead.story) {
			t.Errorf("%v applied\n%q and rank 0\n%q", p, e.story, lead.story)
		}
		if len(e.admitted)+e.given != e.reserves-e.none {
			t.Errorf("%v: %d reserved, %d admitted, %d given back", p, e.reserves-e.none, len(e.admitted), e.given)
		}
		if len(e.pins)+len(e.imports)+len(n.m.pins)+len(n.m.kept)+len(n.m.dests)+len(n.m.tickets)+len(n.m.lead.imports)+len(n.m.lead.labels) > 0 {
			t.Errorf("%v: engine pins %v and imports %v; pins %d, kept %v, dests %d, tickets %d, imports %d, labels %v", p, e.pins, e.imports,
				len(n.m.pins), n.m.kept, len(n.m.dests), len(n.m.tickets), len(n.m.lead.imports), n.m.lead.labels)
		}
		if n.m.engine != nil && (n.m.epoch() != w.at(p.Group, 0).m.epoch() || n.m.epoch() != e.weights) {
			t.Errorf("%v is at epoch %d, its engine at %d", p, n.m.epoch(), e.weights)
		}
		if n.m.engine != nil && (n.m.engine.attach.Draining != e.draining || w.at(p.Group, 0).m.Status().Draining != e.draining) {
			t.Errorf("%v: engine draining %v, sidecar %v, leader %v", p, e.draining, n.m.engine.attach.Draining, w.at(p.Group, 0).m.Status().Draining)
		}
		if len(n.m.lead.awaited) > 0 {
			t.Errorf("%v: %d decisions are awaited", p, len(n.m.lead.awaited))
		}
		if len(n.closed) > 0 {
			t.Errorf("%v closed its engine: %v", p, n.closed)
		}
		if n.m.engine != nil && len(n.m.engine.tail) > 8 {
			t.Errorf("%v keeps %d decisions", p, len(n.m.engine.tail))
		}
	}
}

// fault is what happens to one sidecar before an event of the world.
type fault struct {
	group string
	rank  int
	edge  int
	lost  bool // it loses its engine's session; else its process ends and another starts
}

func (f fault) String() string {
	what := "restarts"
	if f.lost {
		what = "loses its engine"
	}
	return fmt.Sprintf("%s%d %s at %d", f.group, f.rank, what, f.edge)
}

func (f fault) strike(w *world) {
	if f.lost {
		w.lose(f.group, f.rank)
		return
	}
	w.restart(f.group, f.rank)
}

// tale is a hand-off that faults strike.
type tale struct {
	name     string
	src, dst int32
	begin    func(w *world)            // before it
	after    func(w *world, ticks int) // each time that nothing more happens by itself
}

// tick 0 is the first after everything that could go on by itself did.
var tales = []tale{
	{name: "plain", src: 2, dst: 2},
	{name: "four ranks", src: 1, dst: 4},
	{name: "copy fails", src: 2, dst: 2, begin: func(w *world) {
		w.onPull = func(n *node, _ Pull) error {
			if n.self.Rank == 1 {
				return errors.New("boom")
			}
			return nil
		}
	}, after: func(w *world, ticks int) { w.onPull = nil }},
	{name: "copy hangs", src: 2, dst: 2, begin: func(w *world) {
		w.onPull = func(*node, Pull) error { return errStuck }
	}, after: func(w *world, ticks int) {
		w.onPull = nil
		for rank := range 2 {
			w.at("d", rank).settle(errors.New("ended"))
		}
	}},
	{name: "no room", src: 2, dst: 2, begin: func(w *world) { w.full(true) }, after: func(w *world, ticks int) {
		if w.full(false); ticks == 0 {
			n := w.at("d", 0)
			n.step(FromEngine{n.eng.session, handoff.Freed{Blocks: 9}})
		}
	}},
	{name: "new weights", src: 2, dst: 2, begin: func(w *world) {
		for i := range 12 {
			w.post(func() { w.at("d", 0).step(SetWeightsEpoch{Call: Call(100 + i), Epoch: uint64(i / 6)}) })
		}
	}},
	{name: "actions", src: 2, dst: 2, begin: func(w *world) {
		for i, a := range []handoff.Action{handoff.ActionPause, handoff.ActionStopIntake, handoff.ActionUnpause, handoff.ActionResumeIntake} {
			w.post(func() { w.act("p", a) })
			w.post(func() { w.drain("p", i > 1) })
		}
	}},
	{name: "given up", src: 2, dst: 2, begin: func(w *world) {
		n := w.at("d", 0)
		w.post(func() { n.step(FromEngine{n.eng.session, handoff.AbortImport{Label: "a"}}) })
	}},
}

func (w *world) full(full bool) {
	for rank := range 2 {
		w.at("d", rank).eng.full = full
	}
}

// tell runs a tale with faults, and then another hand-off that nothing disturbs.
func (c tale) tell(t *testing.T, faults ...fault) (edges int) {
	w := newWorld(t)
	w.weights = handoff.WeightsAllow
	w.group("p", c.src)
	w.group("d", c.dst)
	man := w.export("p", "a", 40)
	if c.begin != nil {
		c.begin(w)
	}
	w.importAsked("d", man)
	run := func() {
		for len(w.queue) > 0 {
			for _, f := range faults {
				if f.edge == edges {
					f.strike(w)
				}
			}
			edges++
			f := w.queue[0]
			w.queue = w.queue[1:]
			f()
		}
	}
	run()
	for i := range 13 { // dials, patience, leases, the ranks' own deadlines
		if c.after != nil {
			c.after(w, i)
		}
		w.tick(4 * time.Second)
		run()
	}
	w.settled(t)
	if t.Failed() {
		return edges
	}
	d0 := w.at("d", 0).eng
	if admitted, end := len(d0.admitted) == 1, d0.ends["a"]; admitted != (end == "imported") || end == "" {
		t.Errorf("admitted %v, and the engine heard %q", admitted, end)
	}
	man = w.export("p", "b", 40)
	w.importAsked("d", man)
	w.run()
	if d0.ends["b"] != "imported" {
		t.Errorf("the next hand-off: %q", d0.ends["b"])
	}
	w.settled(t)
	return edges
}

// Whichever sidecar restarts or loses its engine's session, and whenever: every rank
// applies the same decisions, what is reserved is admitted or given back, what is pinned
// is freed, and the group works.
func TestEveryEdge(t *testing.T) {
	for _, c := range tales {
		t.Run(c.name, func(t *testing.T) {
			edges := c.tell(t)
			for rank := range max(c.src, c.dst) {
				for i := range 4 * edges {
					f := fault{[]string{"p", "d"}[i%2], int(rank), i / 4, i/2%2 == 1}
					if f.group == "p" && rank >= c.src || f.group == "d" && rank >= c.dst {
						continue
					}
					if c.tell(t, f); t.Failed() {
						t.Fatal(f)
					}
				}
			}
		})
	}
}

// The same with two or three faults, that may strike while the last is recovered from.
func TestFewEdges(t *testing.T) {
	edges := 2 * tales[0].tell(t)
	for seed := range uint64(1500) {
		r := rand.New(rand.NewPCG(seed, 11))
		c := tales[r.IntN(len(tales))]
		var fs []fault
		at := r.IntN(edges)
		for range 2 + r.IntN(2) {
			f := fault{"p", r.IntN(int(c.src)), at, r.IntN(2) == 0}
			if r.IntN(3) > 0 {
				f.group, f.rank = "d", r.IntN(int(c.dst))
			}
			fs = append(fs, f)
			at += r.IntN(40)
		}
		if c.tell(t, fs...); t.Failed() {
			t.Fatalf("seed %d: %s: %v", seed, c.name, fs)
		}
	}
}

// A source rank is replaced while an import is on its way to it for the first time: the
// import fails as soon as discovery says so, and does not wait for its deadline.
func TestSourceRankReplaced(t *testing.T) {
	for _, late := range []bool{false, true} { // the link is asked for after that
		w := pair(t, 2, 1)
		man := w.export("p", "r1", 40)
		var old *node
		w.drop = func(_, _ handoff.Member, msg handoff.PeerMessage) bool {
			if _, ok := msg.(handoff.Opened); ok && old == nil {
				old = w.end("p", 1)
				delete(w.nodes, old.self)
				if late {
					w.start(old)
				}
			}
			return false
		}
		c := w.importStart("d", man)
		w.run()
		if !late {
			if _, over := w.calls[c]; over {
				t.Fatal("the import ended before discovery knew")
			}
			w.start(old)
			w.run()
		}
		if r, over := w.calls[c]; !over || !errors.Is(r.Err, handoff.ErrTransfer) {
			t.Errorf("late %v: ended %v, %v", late, over, r.Err)
		}
		if d := w.at("d", 0); len(d.m.links) > 1 || len(d.m.dests) != 0 {
			t.Errorf("late %v: %d links, %d imports kept", late, len(d.m.links), len(d.m.dests))
		}
	}
}
