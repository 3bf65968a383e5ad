package machine

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/batonkv/baton/internal/walk"
	"github.com/batonkv/baton/sidecar/handoff"
)

// prompt is the tokens of whole blocks, one letter each.
func prompt(blocks string) (tokens []int32) {
	for _, b := range blocks {
		for range 16 {
			tokens = append(tokens, int32(b))
		}
	}
	return tokens
}

// queueWorld is a source and decode groups of one rank with few blocks, whose copies end
// when a test says so.
func queueWorld(t *testing.T, blocks int, groups ...string) *world {
	w := newWorld(t)
	w.onPull = func(*node, Pull) error { return errStuck }
	w.group("p", 1)
	for _, g := range groups {
		w.group(g, 1)
		w.at(g, 0).eng.pool = newPool(blocks)
	}
	return w
}

func (w *world) bring(group, label, blocks string) Call {
	w.change = func(e *handoff.Export) { e.Copies = 2 }
	defer func() { w.change = nil }()
	man, ok := w.mans[label]
	if !ok {
		man = w.export("p", label, int32(16*len(blocks)))
		w.mans[label] = man
	}
	c := w.importTokens(group, man, prompt(blocks))
	w.run()
	return c
}

// labels are those of n's imports whose copies are open, by ticket.
func (n *node) pulling() map[string]uint64 {
	out := map[string]uint64{}
	for tk := range n.open {
		if d := n.m.dests[n.m.tickets[tk].reserve]; d != nil {
			out[d.D.Label] = tk
		}
	}
	return out
}

func (n *node) copied(label string, err error) {
	tk := n.pulling()[label]
	delete(n.open, tk)
	n.step(PullDone{Ticket: tk, Err: err})
	n.w.run()
}

// reserves are the labels in the order in which they were reserved.
func (n *node) order() (out []string) {
	for _, d := range n.eng.reserved {
		out = append(out, d.Label)
	}
	return out
}

// An import whose prefix another brings waits without blocking anybody, and finds it in
// the cache.
func TestSharedPrefixIsDeferred(t *testing.T) {
	w := queueWorld(t, 9, "d")
	d := w.at("d", 0)
	a, b := w.bring("d", "a", "xy"), w.bring("d", "b", "xyz")
	w.bring("d", "c", "z")
	if got := d.order(); !slices.Equal(got, []string{"a", "c"}) {
		t.Fatalf("reserved %v: b waits for a, and c does not", got)
	}
	d.copied("a", nil)
	if w.ended(a).Err != nil || !slices.Equal(d.order(), []string{"a", "c", "b"}) {
		t.Fatalf("a: %v; reserved %v", w.ended(a).Err, d.order())
	}
	d.copied("b", nil)
	if r := w.ended(b); r.Err != nil || r.Imported.Cached != 32 {
		t.Fatalf("%v, %d tokens cached", r.Err, r.Imported.Cached)
	}
}

// What is not admitted everywhere is in nobody's cache.
func TestDeferredUntilApplied(t *testing.T) {
	w := queueWorld(t, 9, "d")
	d := w.at("d", 0)
	w.bring("d", "a", "xy")
	w.bring("d", "b", "xy")
	w.drop = dropType[handoff.RankApplied]
	d.copied("a", nil)
	w.bring("d", "c", "u") // passes b
	if len(d.eng.admitted) != 1 || !slices.Equal(d.order(), []string{"a", "c"}) {
		t.Fatalf("%d admitted, reserved %v", len(d.eng.admitted), d.order())
	}
}

// One Reserve is under way at a time, also with an engine that applies before it answers.
func TestOneReserveAtATime(t *testing.T) {
	w := queueWorld(t, 9, "d")
	d := w.at("d", 0)
	d.eng.late = true
	w.bring("d", "a", "x")
	w.bring("d", "b", "y")
	if len(d.order()) != 1 || d.m.engine.applied != 1 {
		t.Fatalf("reserved %v, %d applied", d.order(), d.m.engine.applied)
	}
	d.eng.late = false
	d.step(FromEngine{d.eng.session, handoff.Reserved{N: 1, Slot: 1, Blocks: []int32{3}}})
	w.run()
	if got := d.order(); !slices.Equal(got, []string{"a", "b"}) {
		t.Fatalf("reserved %v", got)
	}
}

// What an import finds in the cache it does not bring: others may use it meanwhile.
func TestCachedBlocksAreNotReserved(t *testing.T) {
	w := queueWorld(t, 9, "d")
	d := w.at("d", 0)
	w.bring("d", "a", "x")
	d.copied("a", nil)
	w.bring("d", "b", "xy")
	w.bring("d", "c", "xz")
	if got := d.order(); !slices.Equal(got, []string{"a", "b", "c"}) {
		t.Fatalf("reserved %v", got)
	}
}

// A Drop lets in who waited for the prefix, though copies still write the dropped blocks.
func TestDropEndsTheReservation(t *testing.T) {
	w := queueWorld(t, 9, "d")
	d := w.at("d", 0)
	w.bring("d", "a", "xy")
	b := w.bring("d", "b", "xy")
	d.step(Abort{Call: 99, ID: w.mans["a"].ID})
	w.run()
	if !slices.Equal(d.order(), []string{"a", "b"}) || len(d.eng.released) != 0 {
		t.Fatalf("reserved %v, %d released", d.order(), len(d.eng.released))
	}
	d.copied("b", nil)
	if r := w.ended(b); r.Err != nil || r.Imported.Cached != 0 {
		t.Fatalf("%v, %d cached", r.Err, r.Imported.Cached)
	}
}

// A deferred import has its old place, before one that came later and finds no room.
func TestDeferredHasItsPlace(t *testing.T) {
	w := queueWorld(t, 3, "d")
	d := w.at("d", 0)
	w.bring("d", "a", "xy")
	w.bring("d", "b", "xyz")    // deferred
	w.bring("d", "c", "uv")     // no room
	e := w.bring("d", "e", "u") // fits, and does not overtake c
	if got := d.order(); !slices.Equal(got, []string{"a", "c"}) {
		t.Fatalf("reserved %v", got)
	}
	d.copied("a", nil)
	if got := d.order(); len(got) < 3 || got[2] != "b" {
		t.Fatalf("reserved %v, want b next", got)
	}
	d.copied("b", nil)
	for range 2 {
		d.eng.pool.end(d, d.eng.pool.decoding()[0])
		w.run()
	}
	d.copied("c", nil)
	d.copied("e", nil)
	if r := w.ended(e); r.Err != nil {
		t.Fatal(r.Err)
	}
}

// fifo says which import of n overtook one that waited for room alone.
func (n *node) fifo() string {
	for _, i := range n.m.lead.imports {
		if i.State() == handoff.Waiting && !n.m.deferred(i) {
			for _, o := range n.m.lead.imports[slices.Index(n.m.lead.imports, i):] {
				if o.State() == handoff.Granting {
					return fmt.Sprintf("%s overtakes %s", o.Import.Label, i.Import.Label)
				}
			}
		}
	}
	return n.eng.pool.twice
}

// Requests that share prefixes, in opposite order in two groups with room for two: all of
// them come to their end, whatever ends first.
func TestOppositeOrder(t *testing.T) {
	reqs := [][2]string{{"a", "xy"}, {"b", "xyz"}, {"c", "uv"}, {"d", "x"}, {"e", "uvw"}, {"f", "xyw"}}
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 1))
		w := queueWorld(t, 3, "d", "e")
		var calls []Call
		for i := range reqs {
			x, y := reqs[i], reqs[len(reqs)-1-i]
			calls = append(calls, w.bring("d", x[0], x[1]), w.bring("e", y[0], y[1]))
		}
		for {
			var can []func()
			for _, g := range []string{"d", "e"} {
				n := w.at(g, 0)
				for label := range n.pulling() {
					can = append(can, func() { n.copied(label, nil) })
				}
				for _, of := range n.eng.pool.decoding() {
					can = append(can, func() { n.eng.pool.end(n, of); w.run() })
				}
				if bad := n.fifo(); bad != "" {
					t.Fatalf("seed %d: %s: %s", seed, g, bad)
				}
			}
			if len(can) == 0 {
				break
			}
			can[r.IntN(len(can))]()
		}
		for _, c := range calls {
			if r, ok := w.calls[c]; !ok || r.Err != nil {
				t.Fatalf("seed %d: call %d ended %v: %v", seed, c, ok, r.Err)
			}
		}
	}
}

// queueWalk is every order of what can happen to five requests that share prefixes in a
// group with room for few. A state is the steps that led to it: the machines are replayed.
type queueWalk struct {
	t      *testing.T
	blocks int
	faults int
	reqs   [][2]string
}

type queueState struct {
	path []walk.Step
	w    *world
}

const (
	reqCopied = "request %d is copied"
	reqFails  = "request %d fails"
	reqEnds   = "request %d ends"
	reqAborts = "request %d is aborted"
)

func (q queueWalk) replay(path []walk.Step) queueState {
	w := queueWorld(q.t, q.blocks, "d")
	d := w.at("d", 0)
	for _, r := range q.reqs {
		w.bring("d", r[0], r[1])
	}
	for _, s := range path {
		label := q.reqs[s.Args[0]][0]
		switch s.Name {
		case reqCopied:
			d.copied(label, nil)
		case reqFails:
			d.copied(label, errors.New("failed"))
		case reqAborts:
			d.step(Abort{Call: 99, ID: w.mans[label].ID})
			w.run()
		case reqEnds:
			for n, h := range d.eng.pool.holds {
				if h.label == label && h.admitted {
					d.eng.pool.end(d, n)
					w.run()
				}
			}
		}
	}
	return queueState{path, w}
}

func (q queueWalk) Init() queueState { return q.replay(nil) }

func (q queueWalk) Next(s queueState, emit func(walk.Step, queueState)) {
	d := s.w.at("d", 0)
	pulling := d.pulling()
	faults := 0
	for _, p := range s.path {
		if p.Fault {
			faults++
		}
	}
	for i, r := range q.reqs {
		do := func(name string, fault bool) {
			if st := (walk.Step{Name: name, Args: [3]int{i}, Fault: fault}); !fault || faults < q.faults {
				emit(st, q.replay(append(slices.Clone(s.path), st)))
			}
		}
		if pulling[r[0]] != 0 {
			do(reqCopied, false)
			do(reqFails, true)
		}
		if slices.ContainsFunc(d.eng.pool.decoding(), func(n uint64) bool { return d.eng.pool.holds[n].label == r[0] }) {
			do(reqEnds, false)
		}
		if slices.ContainsFunc(d.m.lead.imports, func(x *importing) bool { return x.Import.Label == r[0] && x.Abortable() }) {
			do(reqAborts, true)
		}
	}
}

func (q queueWalk) Key(s queueState, b []byte) []byte {
	d := s.w.at("d", 0)
	for _, i := range d.m.lead.imports {
		b = fmt.Append(b, i.Import.Label, i.State(), d.m.deferred(i), ";")
	}
	for _, r := range q.reqs {
		_, pulls := d.pulling()[r[0]]
		b = fmt.Append(b, pulls)
		for _, h := range d.eng.pool.holds {
			if h.label == r[0] {
				b = fmt.Append(b, h.admitted, h.private, h.shared)
			}
		}
	}
	faults := 0
	for _, p := range s.path {
		if p.Fault {
			faults++
		}
	}
	return fmt.Append(b, d.eng.pool.cached, faults)
}

func (q queueWalk) Bad(s queueState) string { return s.w.at("d", 0).fifo() }

func (q queueWalk) Stuck(s queueState) string {
	d := s.w.at("d", 0)
	switch {
	case len(d.m.lead.imports) > 0:
		return fmt.Sprintf("%d imports wait for ever", len(d.m.lead.imports))
	case len(d.m.lead.brings) > 0:
		return fmt.Sprintf("%d hashes stay reserved", len(d.m.lead.brings))
	case d.eng.pool.used() > 0 || len(d.eng.pool.holds) > 0:
		return "blocks are lost"
	}
	return ""
}

// TestQueueWalk: no order of ends, failures and aborts leaves anybody waiting, lets
// anybody overtake, brings a block twice or loses one.
func TestQueueWalk(t *testing.T) {
	for _, q := range []queueWalk{
		{t, 3, 2, [][2]string{{"a", "xy"}, {"b", "xyz"}, {"c", "uv"}, {"d", "uvx"}}},
		{t, 5, 1, [][2]string{{"a", "xy"}, {"b", "xyz"}, {"c", "uv"}, {"d", "x"}, {"e", "uvw"}}},
	} {
		r := walk.Run(q, 1<<16)
		if r.Violation != "" || !r.Full {
			t.Fatal(r)
		}
		t.Log(r)
	}
}
