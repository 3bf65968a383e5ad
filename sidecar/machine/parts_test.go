package machine

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/batonkv/baton/sidecar/handoff"
	"github.com/batonkv/baton/transfer/layout"
)

// growing is a prompt of 80 tokens that leaves group p in parts, "r1".
type growing struct {
	w     *world
	parts map[*node]uint32
	named map[*node]int32
	pulls []string
}

const promptTokens = 80

func grows(w *world) *growing {
	g := &growing{w: w, parts: map[*node]uint32{}, named: map[*node]int32{}}
	w.onPull = func(n *node, p Pull) error {
		if p.Piece.Whole != (p.Job.SrcSlot >= 0) {
			w.t.Errorf("%v reads slot %d by %+v", n.self, p.Job.SrcSlot, p.Piece)
		}
		s := fmt.Sprintf("%d-%d", p.Job.Tokens.Lo, p.Job.Tokens.Hi)
		if p.Piece.Layers != (layout.Span{Hi: p.Piece.Layers.Hi}) || p.Piece.Layers.Hi < 2 {
			s += fmt.Sprintf(" of layers %d-%d", p.Piece.Layers.Lo, min(p.Piece.Layers.Hi, 2))
		}
		if p.Piece.Whole {
			s += " whole"
		}
		g.pulls = append(g.pulls, s)
		return nil
	}
	return g
}

// says has one rank say a part.
func (g *growing) says(n *node, r handoff.Reach) {
	g.parts[n]++
	p := handoff.ExportPart{Label: "r1", Part: g.parts[n], Tokens: promptTokens, Position: promptTokens, Reach: r}
	for need := (r.Ahead + 15) / 16; g.named[n] < need; g.named[n]++ {
		p.Blocks = append(p.Blocks, g.named[n])
	}
	n.eng.pins["r1"] = true
	n.step(FromEngine{n.eng.session, p})
}

// part has every rank say it.
func (g *growing) part(r handoff.Reach) {
	for _, p := range g.w.order {
		if p.Group == "p" {
			g.says(g.w.nodes[p], r)
		}
	}
	g.w.run()
}

// last closes the parts on every rank.
func (g *growing) last() {
	for _, p := range g.w.order {
		if n := g.w.nodes[p]; p.Group == "p" {
			n.step(FromEngine{n.eng.session, handoff.Export{Label: "r1", Blocks: []int32{0, 1, 2, 3, 4}, Slot: 2, Tokens: promptTokens, Position: promptTokens,
				Resume: handoff.Resume{Tokens: []int32{42}}, Parts: g.parts[n]}})
		}
	}
	g.w.run()
}

// manifest is the newest that rank 0's engine got.
func (g *growing) manifest() handoff.Manifest {
	for _, msg := range slices.Backward(g.w.at("p", 0).eng.got) {
		if x, ok := msg.(handoff.Exported); ok {
			return x.Manifest
		}
	}
	g.w.t.Fatal("no manifest")
	return handoff.Manifest{}
}

// TestParts: what is told is pulled once and at once, the slot with the last part alone,
// which Check follows; the resume packet comes with Admit.
func TestParts(t *testing.T) {
	for name, c := range map[string]struct {
		reaches []handoff.Reach
		pulls   []string
	}{
		"chunks":           {[]handoff.Reach{handoff.All(20), handoff.All(40), handoff.All(70)}, []string{"0-20", "20-40", "40-70", "70-80 whole"}},
		"all, then closed": {[]handoff.Reach{handoff.All(80)}, []string{"0-80", "80-80 whole"}},
		"layers":           {[]handoff.Reach{{Tokens: 0, Ahead: 80, Layers: 1}}, []string{"0-80 of layers 0-1", "0-80 of layers 1-2", "80-80 whole"}},
		"layers of chunks": {[]handoff.Reach{{Tokens: 0, Ahead: 30, Layers: 1}, handoff.All(30), {Tokens: 30, Ahead: 60, Layers: 1}},
			[]string{"0-30 of layers 0-1", "0-30 of layers 1-2", "30-60 of layers 0-1", "30-60 of layers 1-2", "60-80 whole"}},
	} {
		t.Run(name, func(t *testing.T) {
			w := pair(t, 1, 1)
			g := grows(w)
			g.part(c.reaches[0])
			man := g.manifest()
			if man.Tokens != promptTokens || len(man.Resume.Tokens) != 0 {
				t.Fatalf("the first manifest is %+v", man)
			}
			call := w.importStart("d", man)
			w.run()
			for _, r := range c.reaches[1:] {
				g.part(r)
			}
			if _, ended := w.calls[call]; ended || w.sent["Check"] > 0 || w.sent["Done"] > 0 {
				t.Fatalf("before the last part: ended %v, %v", ended, w.sent)
			}
			g.last()
			if r := w.ended(call); r.Err != nil {
				t.Fatal(r.Err)
			}
			if !slices.Equal(g.pulls, c.pulls) {
				t.Errorf("pulls %q, want %q", g.pulls, c.pulls)
			}
			e := w.at("d", 0).eng
			if w.sent["Check"] != 1 || w.sent["Done"] != 1 || len(e.admitted) != 1 || len(e.reserved) != 1 || !e.reserved[0].More || len(e.reserved[0].Resume.Tokens) > 0 ||
				!slices.Equal(e.admitted[0].Resume.Tokens, []int32{42}) {
				t.Errorf("sent %v, reserved %+v, admitted %+v", w.sent, e.reserved, e.admitted)
			}
			if full := g.manifest(); full.ID != man.ID || len(full.Resume.Tokens) != 1 || len(w.at("p", 0).eng.freed) != 1 {
				t.Errorf("the last manifest is %+v; freed %v", full, w.at("p", 0).eng.freed)
			}
		})
	}
}

// TestPartsOfAllRanks: importers are told what every rank has stated, whatever their layouts.
func TestPartsOfAllRanks(t *testing.T) {
	for _, tp := range [][2]int32{{2, 1}, {1, 2}, {2, 4}} {
		w := pair(t, tp[0], tp[1])
		g := grows(w)
		g.part(handoff.All(16))
		call := w.importStart("d", g.manifest())
		w.run()
		for r := range tp[0] { // the last rank alone makes it known
			was := w.sent["Part"]
			g.says(w.at("p", int(r)), handoff.All(48))
			w.run()
			if told := w.sent["Part"] > was; told != (r == tp[0]-1) {
				t.Fatalf("tp %v: told %v when rank %d has stated it", tp, told, r)
			}
		}
		g.last()
		if r := w.ended(call); r.Err != nil {
			t.Fatalf("tp %v: %v", tp, r.Err)
		}
	}
}

// TestPartsPreempted: what was read is gone when the engine gives it up, at any point, and
// what it exports again under the label is another hand-off.
func TestPartsPreempted(t *testing.T) {
	for _, when := range []string{"between parts", "with a pull open", "queued"} {
		t.Run(when, func(t *testing.T) {
			w := pair(t, 1, 1)
			g := grows(w)
			g.part(handoff.All(20))
			man := g.manifest()
			d, p := w.at("d", 0), w.at("p", 0)
			switch when {
			case "with a pull open":
				w.onPull = func(*node, Pull) error { return errStuck }
			case "queued":
				d.eng.late = true
			}
			call := w.importStart("d", man)
			w.run()
			p.step(FromEngine{p.eng.session, handoff.ReleaseExport{Label: "r1"}})
			w.run()
			if r := w.ended(call); !errors.Is(r.Err, handoff.ErrGone) {
				t.Fatalf("ended by %v", r.Err)
			}
			if len(p.eng.freed) != 1 || (len(d.eng.released) == 1) != (when != "with a pull open") {
				t.Errorf("freed %v, released %v", p.eng.freed, d.eng.released)
			}
			for ticket := range d.open {
				delete(d.open, ticket)
				d.step(PullDone{Ticket: ticket})
			}
			w.run()
			if when != "queued" && len(d.eng.released) != 1 {
				t.Errorf("released %v once the copy had ended", d.eng.released)
			}
			g.says(p, handoff.All(40)) // crossed Free
			g.last()
			w.onPull, d.eng.late = nil, false
			w.export("p", "r1", 40)
			again := g.manifest()
			if again.ID == man.ID {
				t.Fatal("one hand-off twice")
			}
			call = w.importStart("d", again)
			w.run()
			if r := w.ended(call); r.Err != nil {
				t.Error(r.Err)
			}
		})
	}
}

// TestPartsWithoutSession: a session that ends between the leaders takes later parts along.
func TestPartsWithoutSession(t *testing.T) {
	w := pair(t, 1, 1)
	g := grows(w)
	g.part(handoff.All(20))
	call := w.importStart("d", g.manifest())
	w.run()
	w.cut(w.at("p", 0).self, w.at("d", 0).self)
	w.run()
	if r := w.ended(call); !errors.Is(r.Err, handoff.ErrPeer) || len(w.at("d", 0).eng.released) != 1 {
		t.Fatalf("%v, released %v", r.Err, w.at("d", 0).eng.released)
	}
	g.last()
	call = w.importStart("d", g.manifest())
	w.run()
	if r := w.ended(call); r.Err != nil {
		t.Error(r.Err)
	}
}

// TestPartsUnknown: an engine that takes no parts waits for the whole, and misses nothing.
func TestPartsUnknown(t *testing.T) {
	w := newWorld(t)
	w.old = true
	w.group("d", 1)
	w.old = false
	w.group("p", 1)
	g := grows(w)
	g.part(handoff.All(20))
	call := w.importStart("d", g.manifest())
	g.part(handoff.All(40))
	if len(w.at("d", 0).eng.reserved) > 0 || w.sent["Part"] > 0 {
		t.Fatalf("reserved %v, sent %v", w.at("d", 0).eng.reserved, w.sent)
	}
	g.last()
	if r := w.ended(call); r.Err != nil || w.at("d", 0).eng.reserved[0].More || !slices.Equal(g.pulls, []string{"0-80 whole"}) {
		t.Errorf("%v, pulls %q", r.Err, g.pulls)
	}
}

// TestDoneBeforeTheLastPart consumes nothing, whoever says so.
func TestDoneBeforeTheLastPart(t *testing.T) {
	w := pair(t, 1, 1)
	g := grows(w)
	g.part(handoff.All(20))
	call := w.importStart("d", g.manifest())
	w.run()
	p, i := w.at("p", 0), w.at("d", 0).m.lead.imports[0]
	p.step(FromPeer{w.at("d", 0).self, handoff.Done{ID: i.ID(), Importer: i.importer, Attempt: i.Attempt}})
	w.run()
	if s := p.m.lead.sources[i.ID()]; s.State() != handoff.Leasing || s.Copies() != 1 {
		t.Fatalf("%v with %d copies", s.State(), s.Copies())
	}
	g.last() // the claim has its answer
	if r := w.ended(call); !errors.Is(r.Err, handoff.ErrGone) {
		t.Errorf("ended by %v", r.Err)
	}
}

// TestPartsCached: nothing is left to pull, and the last part is waited for all the same.
func TestPartsCached(t *testing.T) {
	w := newWorld(t)
	w.kvOnly = true
	w.group("p", 1)
	w.group("d", 1)
	g := grows(w)
	w.at("d", 0).eng.cached = promptTokens
	g.part(handoff.All(20))
	call := w.importStart("d", g.manifest())
	w.run()
	if _, ended := w.calls[call]; ended || w.sent["Done"] > 0 {
		t.Fatalf("ended %v, sent %v", ended, w.sent)
	}
	p := w.at("p", 0)
	p.step(FromEngine{p.eng.session, handoff.Export{Label: "r1", Blocks: []int32{0, 1, 2, 3, 4}, Slot: -1, Tokens: promptTokens, Position: promptTokens, Parts: g.parts[p]}})
	w.run()
	if r := w.ended(call); r.Err != nil || len(g.pulls) > 0 {
		t.Errorf("%v, pulls %q", r.Err, g.pulls)
	}
}

// TestPartsContradict: an engine that contradicts what it said ends its session.
func TestPartsContradict(t *testing.T) {
	for name, msg := range map[string]handoff.FromEngine{
		"less":          handoff.ExportPart{Label: "r1", Part: 2, Tokens: promptTokens, Position: promptTokens, Reach: handoff.All(10)},
		"no blocks":     handoff.ExportPart{Label: "r1", Part: 2, Tokens: promptTokens, Position: promptTokens, Reach: handoff.All(70)},
		"left out":      handoff.ExportPart{Label: "r1", Part: 3, Tokens: promptTokens, Position: promptTokens, Reach: handoff.All(20)},
		"no slot":       handoff.Export{Label: "r1", Blocks: []int32{0, 1, 2, 3, 4}, Slot: -1, Tokens: promptTokens, Position: promptTokens, Parts: 1},
		"fewer blocks":  handoff.Export{Label: "r1", Blocks: []int32{0, 1, 2}, Slot: 1, Tokens: promptTokens, Position: promptTokens, Parts: 1},
		"other blocks":  handoff.Export{Label: "r1", Blocks: []int32{9, 1, 2, 3, 4}, Slot: 1, Tokens: promptTokens, Position: promptTokens, Parts: 1},
		"closes others": handoff.Export{Label: "r1", Blocks: []int32{0, 1, 2, 3, 4}, Slot: 1, Tokens: promptTokens, Position: promptTokens, Parts: 4},
	} {
		w := pair(t, 1, 1)
		g := grows(w)
		g.part(handoff.All(20))
		p := w.at("p", 0)
		p.step(FromEngine{p.eng.session, msg})
		if len(p.closed) != 1 || !errors.Is(p.closed[0], handoff.ErrEngine) {
			t.Errorf("%s: closed %v", name, p.closed)
		}
	}
}

// TestPartDuringABreak: what a part adds while the roster is broken is not given back by
// itself: Free is owed to that pin, for all ranks in one step.
func TestPartDuringABreak(t *testing.T) {
	w := pair(t, 4, 1)
	g := grows(w)
	g.part(handoff.All(20))
	old := w.end("p", 3)
	w.run()
	n := w.at("p", 1)
	g.says(n, handoff.All(40))
	w.run()
	if slices.ContainsFunc(n.eng.got, func(m handoff.ToEngine) bool { _, ok := m.(handoff.UnpinExport); return ok }) {
		t.Error("one rank alone gives it back")
	}
	w.start(old).reattach()
	w.back()
	if len(n.eng.freed) != 1 {
		t.Errorf("freed %v once the roster stands", n.eng.freed)
	}
}

// TestPartsThatWereNotAskedFor: a source that answers in parts who takes none is left.
func TestPartsThatWereNotAskedFor(t *testing.T) {
	w := newWorld(t)
	w.old = true
	w.group("d", 1)
	w.old = false
	w.group("p", 1)
	g := grows(w)
	g.part(handoff.All(20))
	call := w.importStart("d", g.manifest())
	w.run()
	p, d := w.at("p", 0), w.at("d", 0)
	i := d.m.lead.imports[0]
	o := p.m.lead.sources[i.ID()].Open(p.m.now, handoff.Open{ID: i.ID(), Key: i.Import.Manifest.Key, Importer: i.importer, Attempt: i.Attempt, Parts: true})
	o.Members, o.Plan = p.m.lead.roster.Members, i.Plan
	d.step(FromPeer{p.self, o})
	w.run()
	if r := w.ended(call); !errors.Is(r.Err, handoff.ErrPlan) || len(d.eng.reserved) > 0 {
		t.Errorf("ended by %v, reserved %v", r.Err, d.eng.reserved)
	}
}
