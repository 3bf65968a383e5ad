package client

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/batonkv/baton/sidecar/handoff"
)

// pair is an engine with its record, a sidecar that leads a group of one, and the two
// directions of a session between them, of which a loss takes what is under way.
type pair struct {
	t    *rapid.T
	rec  *record
	up   bool
	out  []handoff.FromEngine
	in   []handoff.ToEngine
	next int

	// the engine's own books
	holds   map[string]bool   // exported memory
	said    map[string]bool   // announced, and neither exported nor refused
	waits   map[string]bool   // imports that it waits for
	blocks  map[uint64]bool   // memory of a Reserve
	got     []decision        // all that it took
	through uint64            // that it may take
	ended   map[string]int    // ends that it heard of an import
	asked   map[string]uint64 // imports by label

	// the sidecar's
	n, applied uint64
	log        []decision
	open       []uint64        // Reserves whose Admit is not applied, or that are not given back
	known      map[string]bool // announced labels
	pins       map[string]bool
	imports    map[string]uint64 // label to its Reserve, 0 before
	admits     map[uint64]string // Admit to the label that ends with it
}

func newPair(t *rapid.T) *pair {
	p := &pair{t: t, rec: newRecord(handoff.Attach{}, noon), holds: map[string]bool{}, said: map[string]bool{}, waits: map[string]bool{}, blocks: map[uint64]bool{},
		ended: map[string]int{}, asked: map[string]uint64{}}
	p.attach(false)
	return p
}

// say is the engine's Send: what a lost session takes is not said again.
func (p *pair) say(m handoff.FromEngine) {
	told, err := p.rec.sends(m, noon)
	if err != nil || told {
		p.t.Fatalf("%+v: told %v, %v", m, told, err)
	}
	if im, ok := m.(handoff.Import); ok && !p.up {
		delete(p.rec.imports, im.Label)
		p.hear(handoff.Failed{Label: im.Label})
		return
	}
	if p.up {
		p.out = append(p.out, m)
	}
}

func (p *pair) label(kind string) string {
	p.next++
	return fmt.Sprint(kind, p.next)
}

func (p *pair) hear(m handoff.ToEngine) {
	switch m := m.(type) {
	case handoff.Failed:
		switch {
		case p.waits[m.Label]:
			delete(p.waits, m.Label)
			p.ended[m.Label]++
		case p.holds[m.Label] && !m.SourceSafe:
			delete(p.holds, m.Label)
		case p.said[m.Label] && m.SourceSafe:
			delete(p.said, m.Label)
		default:
			p.t.Fatalf("%+v ends nothing", m)
		}
	case handoff.Imported:
		if !p.waits[m.Label] {
			p.t.Fatalf("%+v ends nothing", m)
		}
		delete(p.waits, m.Label)
		p.ended[m.Label]++
	case handoff.Through:
		p.through = max(p.through, m.N)
	}
}

// step is an engine's step: it applies what it may.
func (p *pair) step() {
	ds := p.rec.take(p.through)
	if len(ds) == 0 {
		return
	}
	for _, d := range ds {
		if want := uint64(len(p.got)) + 1; d.N != want {
			p.t.Fatalf("decision %d is taken, want %d", d.N, want)
		}
		p.got = append(p.got, d)
		switch d.Kind {
		case handoff.Free:
			delete(p.holds, d.Label)
		case handoff.Reserve:
			p.blocks[d.N] = true
		case handoff.Admit, handoff.ReleaseQuarantine:
			if !p.blocks[d.Of] {
				p.t.Fatalf("%v of %d, which holds nothing", d.Kind, d.Of)
			}
			delete(p.blocks, d.Of)
		}
	}
	p.say(handoff.Applied{N: ds[len(ds)-1].N})
}

// deliver takes the oldest message of one direction to its end.
func (p *pair) deliver(toEngine bool) {
	switch {
	case toEngine && len(p.in) > 0:
		m := p.in[0]
		p.in = p.in[1:]
		if d, ok := m.(decision); ok {
			if err := p.rec.holds(d); err != nil {
				p.t.Fatal(err)
			}
		} else if p.rec.hears(m) {
			p.hear(m)
		}
	case !toEngine && len(p.out) > 0:
		m := p.out[0]
		p.out = p.out[1:]
		p.served(m)
	}
}

func (p *pair) tell(m handoff.ToEngine) { p.in = append(p.in, m) }

// decide issues a decision; a group of one may apply it when it holds it.
func (p *pair) decide(d decision) uint64 {
	p.n++
	d.N, d.Settled = p.n, p.applied
	for _, of := range p.open { // a later sidecar must know it
		d.Settled = min(d.Settled, of-1)
	}
	switch d.Kind {
	case handoff.Reserve:
		p.open = append(p.open, d.N)
	case handoff.ReleaseQuarantine:
		p.over(d.Of)
	}
	p.log = append(p.log, d)
	p.tell(d)
	p.tell(handoff.Through{N: d.N})
	return d.N
}

func (p *pair) over(of uint64) {
	p.open = slices.DeleteFunc(p.open, func(n uint64) bool { return n == of })
}

// served is what the sidecar does with a message.
func (p *pair) served(m handoff.FromEngine) {
	switch m := m.(type) {
	case handoff.Announce:
		if p.next%4 == 0 {
			p.tell(handoff.Failed{Label: m.Label, SourceSafe: true})
			return
		}
		p.known[m.Label] = true
	case handoff.Export:
		if p.next%5 == 0 {
			p.tell(handoff.Failed{Label: m.Label})
			return
		}
		p.pins[m.Label] = true
	case handoff.Import:
		p.imports[m.Label] = 0
	case handoff.Applied:
		p.applied = m.N
		for _, n := range slices.Sorted(maps.Keys(p.admits)) {
			if n <= m.N {
				p.tell(handoff.Imported{Label: p.admits[n], ID: handoff.ID{N: p.asked[p.admits[n]]}})
				delete(p.admits, n)
				p.over(p.log[slices.IndexFunc(p.log, func(d decision) bool { return d.N == n })].Of)
			}
		}
	}
}

// moves is the sidecar's own: it frees an export, or takes an import one step on.
func (p *pair) moves(pick int) {
	if labels := slices.Sorted(maps.Keys(p.pins)); len(labels) > 0 && pick%3 == 0 {
		delete(p.pins, labels[pick%len(labels)])
		p.decide(decision{Kind: handoff.Free, Label: labels[pick%len(labels)]})
		return
	}
	labels := slices.Sorted(maps.Keys(p.imports))
	if len(labels) == 0 {
		return
	}
	l := labels[pick%len(labels)]
	switch of := p.imports[l]; {
	case of == 0:
		p.imports[l] = p.decide(decision{Kind: handoff.Reserve, Label: l})
	case pick%2 == 0:
		p.admits[p.decide(decision{Kind: handoff.Admit, Of: of})] = l
		delete(p.imports, l)
	default:
		p.drop(of)
		p.tell(handoff.Failed{Label: l})
		delete(p.imports, l)
	}
}

func (p *pair) drop(of uint64) {
	p.decide(decision{Kind: handoff.Drop, Of: of})
	p.decide(decision{Kind: handoff.ReleaseQuarantine, Of: of})
}

// lose ends the session: what is under way is lost.
func (p *pair) lose() {
	p.up, p.in, p.out = false, nil, nil
}

// attach states what the engine has, and the next sidecar makes of it what rules 4 to 6
// of a hand-off say. again: rank 0's engine gave its imports up meanwhile.
func (p *pair) attach(again bool) {
	if again {
		for _, l := range p.rec.giveUp(noon, true) {
			p.hear(handoff.Failed{Label: l})
		}
	}
	a := p.rec.state(handoff.Attach{})
	p.check(a)
	p.out = p.rec.afterwards()
	p.up, p.known, p.pins, p.imports, p.admits = true, map[string]bool{}, map[string]bool{}, map[string]uint64{}, map[uint64]string{}
	p.log, p.n, p.applied, p.open = slices.Clone(a.Decisions), a.Held, a.Applied, nil
	open := map[uint64]string{} // Reserve without Admit or ReleaseQuarantine
	dropped := map[uint64]bool{}
	stated := slices.Clone(a.Imports)
	for _, d := range p.log {
		switch d.Kind {
		case handoff.Reserve:
			open[d.N] = d.Label
		case handoff.Admit:
			if d.N > p.applied {
				if open[d.Of] == "" {
					p.t.Fatalf("admit %d is stated without its Reserve", d.N)
				}
				p.admits[d.N] = open[d.Of]
			} else if l := open[d.Of]; slices.Contains(stated, l) {
				p.tell(handoff.Imported{Label: l, ID: handoff.ID{N: p.asked[l]}})
			}
			stated = slices.DeleteFunc(stated, func(l string) bool { return l == open[d.Of] })
			delete(open, d.Of)
		case handoff.Drop:
			dropped[d.Of] = true
		case handoff.ReleaseQuarantine:
			delete(open, d.Of)
		}
	}
	p.open = slices.Collect(maps.Keys(open))
	for n := range p.admits {
		p.open = append(p.open, p.log[n-p.log[0].N].Of)
	}
	if p.n > 0 {
		p.tell(handoff.Through{N: p.n})
	}
	for _, of := range slices.Sorted(maps.Keys(open)) {
		if !dropped[of] {
			p.decide(decision{Kind: handoff.Drop, Of: of})
		}
		p.decide(decision{Kind: handoff.ReleaseQuarantine, Of: of})
	}
	for _, l := range stated {
		p.tell(handoff.Failed{Label: l})
	}
	for _, l := range a.Pins {
		p.decide(decision{Kind: handoff.Free, Label: l})
	}
}

// check compares what is stated with the engine's own books.
func (p *pair) check(a handoff.Attach) {
	want := func(what string, got []string, want map[string]bool) {
		if !slices.Equal(got, slices.Sorted(maps.Keys(want))) {
			p.t.Fatalf("states %s %v, the engine has %v", what, got, want)
		}
	}
	want("pins", a.Pins, p.holds)
	want("imports", a.Imports, p.waits)
	if a.Applied != uint64(len(p.got)) || a.Held < a.Applied {
		p.t.Fatalf("states %d applied and %d held, the engine applied %d", a.Applied, a.Held, len(p.got))
	}
	settled := uint64(0)
	for i, d := range a.Decisions {
		settled = max(settled, d.Settled)
		if d.N != a.Held-uint64(len(a.Decisions)-1-i) {
			p.t.Fatalf("states decisions %+v up to %d", a.Decisions, a.Held)
		}
		if d.N <= a.Applied && !reflect.DeepEqual(d, p.got[d.N-1]) {
			p.t.Fatalf("states %+v, the engine applied %+v", d, p.got[d.N-1])
		}
	}
	if n := uint64(len(a.Decisions)); a.Held-n > settled {
		p.t.Fatalf("states %d decisions up to %d, settled is %d", n, a.Held, settled)
	}
}

// settle lets everything come to its end.
func (p *pair) settle() {
	for len(p.in)+len(p.out) > 0 || p.through > p.rec.taken {
		p.deliver(true)
		p.step()
		p.deliver(false)
	}
}

// TestRecordAgainstASidecar: whatever is lost and whenever, what is stated is what the
// engine has, every import ends once, and after a last session nothing stays held.
func TestRecordAgainstASidecar(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := newPair(t)
		for range rapid.IntRange(0, 80).Draw(t, "steps") {
			switch x := rapid.IntRange(0, 12).Draw(t, "do"); x {
			case 0:
				l := p.label("e")
				p.holds[l] = true
				p.say(handoff.Announce{Label: l})
				p.say(handoff.Export{Label: l})
			case 12:
				l := p.label("a")
				p.said[l] = true
				p.say(handoff.Announce{Label: l})
			case 1:
				l := p.label("i")
				p.waits[l], p.asked[l] = true, uint64(p.next)
				p.say(importOf(l, uint64(p.next)))
			case 2, 3, 4, 5:
				p.deliver(x%2 == 0)
			case 6, 7:
				p.step()
			case 8, 9:
				if p.up {
					p.moves(rapid.IntRange(0, 11).Draw(t, "pick"))
				}
			case 10:
				p.lose()
			case 11:
				if !p.up {
					p.attach(rapid.Bool().Draw(t, "gave up"))
				}
			}
		}
		p.lose()
		p.attach(false)
		p.settle()
		if len(p.holds)+len(p.waits)+len(p.blocks) > 0 {
			t.Fatalf("still held: exports %v, imports %v, reserved %v", p.holds, p.waits, p.blocks)
		}
		for l := range p.said {
			if !p.known[l] {
				t.Fatalf("%s was announced, and the last sidecar does not know it", l)
			}
		}
		for l, n := range p.ended {
			if n != 1 {
				t.Fatalf("import %s ended %d times", l, n)
			}
		}
		if len(p.ended) != len(p.asked) {
			t.Fatalf("%d imports of %d ended", len(p.ended), len(p.asked))
		}
	})
}
