package machine

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/batonkv/baton/sidecar/events"
	"github.com/batonkv/baton/sidecar/handoff"
	"github.com/batonkv/baton/transfer/layout"
	"github.com/batonkv/baton/transfer/sums"
)

// sum answers with numbers that depend on a cell and its tokens alone, as equal bytes have.
func (n *node) sum(f Sum) {
	e := Summed{Ticket: f.Ticket}
	for _, p := range f.Job.Places {
		for l := p.Box.Layers.Lo; l < p.Box.Layers.Hi; l++ {
			for u := p.Box.Units.Lo; u < p.Box.Units.Hi; u++ {
				for r := range p.Ranges(f.Job.Range) {
					lo := p.Tokens.Lo + int32(r)*f.Job.Range
					e.Sums = append(e.Sums, uint64(p.State)<<48^uint64(l)<<40^uint64(u)<<32^uint64(lo)<<12^uint64(min(lo+f.Job.Range, p.Tokens.Hi)))
				}
			}
		}
	}
	if n.w.onSum != nil {
		n.w.onSum(n, &e)
	}
	n.step(e)
}

// makeSums makes the sums that were held.
func (n *node) makeSums() {
	all := n.sums
	n.sums = nil
	for _, f := range all {
		n.sum(f)
	}
	n.w.run()
}

func verified(t *testing.T, mode sums.Mode, src, dst int32) *world {
	w := newWorld(t)
	w.verify = mode
	w.group("p", src)
	w.group("d", dst)
	return w
}

func (w *world) equal(group string) (n int64) {
	for _, p := range w.order {
		if p.Group == group {
			n += w.nodes[p].equal
		}
	}
	return n
}

// TestEqualSumsLand: whatever the cuts, equal bytes are admitted, and every sum of what
// moved was compared.
func TestEqualSumsLand(t *testing.T) {
	for _, c := range []struct {
		src, dst, cached int32
		mode             sums.Mode
		want             int64 // 8 cells in ranges of 16 tokens, and 8 of the per-request state
	}{{1, 1, 0, sums.All, 8*3 + 8}, {2, 1, 0, sums.All, 8*3 + 8}, {1, 2, 0, sums.All, 8*3 + 8}, {4, 2, 32, sums.All, 8 + 8}, {2, 4, 48, sums.All, 8},
		{2, 1, 0, sums.Sample, 8/2 + 8/2}, {2, 1, 0, sums.Off, 0}} {
		t.Run(fmt.Sprintf("%v tp%d-tp%d cached %d", c.mode, c.src, c.dst, c.cached), func(t *testing.T) {
			w := verified(t, c.mode, c.src, c.dst)
			for r := range c.dst {
				w.at("d", int(r)).eng.cached = c.cached
			}
			call := w.importStart("d", w.export("p", "r1", max(40, c.cached)))
			w.run()
			if r := w.ended(call); r.Err != nil {
				t.Fatal(r.Err)
			}
			if got := w.equal("d"); got != c.want {
				t.Errorf("%d sums were equal, want %d", got, c.want)
			}
			for _, p := range w.order {
				if n := w.nodes[p]; n.m.Load() != (Load{}) || len(n.said) > 0 && c.cached != 48 {
					t.Errorf("%v: left with %+v, said %+v", p, n.m.Load(), n.said)
				}
			}
		})
	}
}

// TestDifferentSumsFail: one sum that differs fails the import by name, frees the memory
// once it is quiet, and leaves the source for another try.
func TestDifferentSumsFail(t *testing.T) {
	w := verified(t, sums.All, 2, 2)
	spoilt := w.at("d", 1)
	w.onSum = func(n *node, e *Summed) {
		if n == spoilt {
			e.Sums[1]++
		}
	}
	man := w.export("p", "r1", 40)
	call := w.importStart("d", man)
	w.run()
	r := w.ended(call)
	if !errors.Is(r.Err, handoff.ErrChecksum) || !strings.Contains(r.Err.Error(), "rank 1: state attn.k layer 0 unit 2 tokens [16,32) is not what source rank 1 exported: 1 of 16 sums differ") {
		t.Fatal(r.Err)
	}
	for rank := range 2 {
		if e := w.at("d", rank).eng; len(e.admitted) > 0 || len(e.released) != 1 {
			t.Errorf("rank %d: %d admitted, %d given back", rank, len(e.admitted), len(e.released))
		}
	}
	if n := w.at("d", 0).notices; !n[len(n)-1].SourceSafe {
		t.Error("the source is held, and that is not said")
	}
	told := slices.ContainsFunc(spoilt.published, func(e events.Event) bool {
		return e.Kind == events.Differs && e.Label == "r1" && strings.HasPrefix(e.Peer, "p/1@") && strings.Contains(e.Cause, "attn.k")
	})
	if !told || len(spoilt.said) != 1 || spoilt.said[0].Differ != 1 || spoilt.said[0].Equal != 15 || spoilt.said[0].Why == "" {
		t.Errorf("told %v, said %+v", told, spoilt.said)
	}
	w.onSum = nil
	call = w.importStart("d", man)
	w.run()
	if r := w.ended(call); r.Err != nil {
		t.Errorf("another try: %v", r.Err)
	}
}

// TestAllIsRefusedWithout: who wants all refuses an Open that brings less, before anything is
// reserved; who does not takes it.
func TestAllIsRefusedWithout(t *testing.T) {
	for _, c := range []struct {
		src, dst sums.Mode
		want     string
	}{{sums.Off, sums.All, "sums up off"}, {sums.Sample, sums.All, "sums up sample"}, {sums.Off, sums.Sample, ""}, {sums.All, sums.Off, ""}} {
		w := newWorld(t)
		w.verify = c.src
		w.group("p", 2)
		w.verify = c.dst
		w.group("d", 1)
		call := w.importStart("d", w.export("p", "r1", 40))
		w.run()
		r := w.ended(call)
		if c.want == "" && r.Err == nil && w.equal("d") == 0 {
			continue
		}
		if c.want == "" || !errors.Is(r.Err, handoff.ErrChecksum) || !strings.Contains(r.Err.Error(), c.want) || w.at("d", 0).eng.reserves > 0 {
			t.Errorf("%v into %v: %v", c.src, c.dst, r.Err)
		}
	}
}

// TestNothingBeforeTheSums: an export is shown, and an import lands, only when its sums are
// made, whatever else has been answered.
func TestNothingBeforeTheSums(t *testing.T) {
	w := verified(t, sums.All, 1, 1)
	w.hold = func(*node) bool { return true }
	p, d := w.at("p", 0), w.at("d", 0)
	p.step(FromEngine{p.eng.session, handoff.Export{Label: "r1", Blocks: []int32{0}, Tokens: 16, Position: 16}})
	w.run()
	if len(p.notices) > 1 || len(p.sums) != 1 {
		t.Fatalf("notices %+v before the sums; %d are made", p.notices, len(p.sums))
	}
	p.makeSums()
	man := p.notices[len(p.notices)-1].Manifest
	if man == nil {
		t.Fatal("not exported")
	}
	call := w.importStart("d", *man)
	w.run()
	if _, ended := w.calls[call]; ended || w.sent["Checked"] != 1 || w.sent["Done"] != 0 {
		t.Fatalf("ended %v, sent %v", ended, w.sent)
	}
	d.makeSums()
	if r := w.ended(call); r.Err != nil {
		t.Fatal(r.Err)
	}
}

// TestLateSumsSayNothing: the sums of an import that was dropped do not touch the one that
// follows it, nor those of a pin that is over the next export of its label.
func TestLateSumsSayNothing(t *testing.T) {
	w := verified(t, sums.All, 1, 1)
	p, d := w.at("p", 0), w.at("d", 0)
	man := w.export("p", "r1", 40)
	w.hold = func(n *node) bool { return n == d }
	first := w.importStart("d", man)
	w.run()
	late := d.sums
	d.sums = nil
	d.step(Abort{Call: 99, ID: man.ID})
	w.run()
	if r := w.ended(first); !errors.Is(r.Err, handoff.ErrAborted) {
		t.Fatal(r.Err)
	}
	second := w.importStart("d", man)
	w.run()
	w.onSum = func(_ *node, e *Summed) { e.Sums[0]++ }
	for _, f := range late {
		d.sum(f)
	}
	w.run()
	if _, ended := w.calls[second]; ended || len(d.said) > 0 {
		t.Fatal("the sums of the first try ended the second")
	}
	w.onSum = nil
	d.makeSums()
	if r := w.ended(second); r.Err != nil {
		t.Fatal(r.Err)
	}

	w.hold = func(n *node) bool { return n == p }
	e := handoff.Export{Label: "r2", Blocks: []int32{0}, Tokens: 16, Position: 16}
	p.step(FromEngine{p.eng.session, e})
	p.step(FromEngine{p.eng.session, handoff.ReleaseExport{Label: "r2"}})
	w.run()
	if len(p.m.pins) > 0 || p.m.Load().Sums != 1 {
		t.Fatalf("%d pins, %+v", len(p.m.pins), p.m.Load())
	}
	p.makeSums()
	if n := p.notices[len(p.notices)-1]; n.Kind == NoticeExported || p.m.Load() != (Load{}) {
		t.Errorf("%+v, %+v", n, p.m.Load())
	}
}

// TestSumsKeepMemoryMapped: what is read for sums is unmapped when they end, and no engine
// attaches before.
func TestSumsKeepMemoryMapped(t *testing.T) {
	w := verified(t, sums.All, 1, 1)
	w.hold = func(*node) bool { return true }
	p := w.at("p", 0)
	p.step(FromEngine{p.eng.session, handoff.Export{Label: "r1", Blocks: []int32{0}, Tokens: 16, Position: 16}})
	w.run()
	a := p.eng.attach
	p.step(EngineDown{p.eng.session})
	w.run()
	if p.unmaps != 0 {
		t.Fatal("unmapped under a sum")
	}
	a.Instance++
	p.attach(a)
	if len(p.closed) == 0 || !errors.Is(p.closed[0], handoff.ErrAttach) {
		t.Fatalf("an engine attached under a sum: %v", p.closed)
	}
	w.run()
	if packs := len(p.packs); packs != 0 {
		t.Fatalf("a mover is to end at once: %v", p.packs)
	}
	for kills := 1; kills <= 2; kills++ { // once for each mover that does not end them
		w.tick(p.m.cfg.KillAfter)
		if len(p.packs) != kills {
			t.Fatalf("movers that were to end: %v, want %d", p.packs, kills)
		}
	}
	p.makeSums()
	if p.unmaps == 0 {
		t.Fatal("not unmapped")
	}
}

// TestPartsAreCompared: what leaves in parts is summed up when its last part is exported, and
// compared when that was read, by importers that read parts and by others.
func TestPartsAreCompared(t *testing.T) {
	for _, parts := range []bool{false, true} {
		for _, mode := range []sums.Mode{sums.Off, sums.All} {
			t.Run(fmt.Sprintf("parts %v, the source sums up %v", parts, mode), func(t *testing.T) {
				w := newWorld(t)
				w.old, w.verify = !parts, mode
				w.group("p", 2)
				w.verify = sums.All
				w.group("d", 1)
				say := func(m handoff.FromEngine) {
					for r := range 2 {
						n := w.at("p", r)
						n.step(FromEngine{n.eng.session, m})
					}
					w.run()
				}
				say(handoff.ExportPart{Label: "r1", Part: 1, Blocks: []int32{0, 1}, Tokens: 40, Position: 40, Reach: handoff.All(32)})
				man := *w.at("p", 0).notices[1].Manifest
				call := w.importTokens("d", man, make([]int32, 40))
				w.run()
				if n := w.at("d", 0); n.equal > 0 || w.sent["Check"] > 0 {
					t.Fatalf("%d sums are compared of what is not whole", n.equal)
				}
				say(handoff.Export{Label: "r1", Parts: 1, Blocks: []int32{0, 1, 2}, Tokens: 40, Position: 40})
				r := w.ended(call)
				if mode == sums.Off {
					if !errors.Is(r.Err, handoff.ErrChecksum) {
						t.Fatalf("no sums came, and %v", r.Err)
					}
				} else if r.Err != nil || w.equal("d") != 8*3+8 {
					t.Fatalf("%d sums are equal, %v", w.equal("d"), r.Err)
				}
				w.advance(time.Minute)
				for _, p := range w.order {
					if l := w.nodes[p].m.Load(); l != (Load{}) {
						t.Errorf("%v is left with %+v", p, l)
					}
				}
			})
		}
	}
}

// TestUnsummed: what cannot be added up is exported without, and what cannot be compared
// fails its import.
func TestUnsummed(t *testing.T) {
	fail := errors.New("no such memory")
	w := verified(t, sums.Sample, 1, 1)
	w.onSum = func(n *node, e *Summed) { e.Sums, e.Err = nil, fail }
	man := w.export("p", "r1", 40)
	call := w.importStart("d", man)
	w.run()
	if r := w.ended(call); r.Err != nil || w.equal("d") != 0 {
		t.Errorf("an export without sums: %v", r.Err)
	}
	w.onSum = nil
	man = w.export("p", "r2", 40)
	w.onSum = func(n *node, e *Summed) { e.Sums, e.Err = nil, fail }
	call = w.importStart("d", man)
	w.run()
	if r := w.ended(call); !errors.Is(r.Err, handoff.ErrTransfer) || !strings.Contains(r.Err.Error(), fail.Error()) {
		t.Errorf("sums that could not be made: %v", r.Err)
	}
}

// TestBadSumsAreRefused: sums that cannot be of the hand-off end the import, and nothing else.
func TestBadSumsAreRefused(t *testing.T) {
	for name, spoil := range map[string]func(s *sums.Sums){
		"short":     func(s *sums.Sums) { s.Parts[0].Sums = s.Parts[0].Sums[1:] },
		"elsewhere": func(s *sums.Sums) { s.Parts[0].State = 7 },
		"range":     func(s *sums.Sums) { s.Range = 7 },
		"box":       func(s *sums.Sums) { s.Parts[0].Box.Units = layout.Span{Lo: 3, Hi: 9} },
		"none":      func(s *sums.Sums) { s.Parts = s.Parts[1:] },
	} {
		w := verified(t, sums.All, 1, 1)
		man := w.export("p", "r1", 40)
		p, d := w.at("p", 0), w.at("d", 0)
		w.drop = func(_, _ handoff.Member, msg handoff.PeerMessage) bool {
			if o, ok := msg.(handoff.Opened); ok && o.Status == handoff.OK && p.up[d.self] {
				s := o.Pins[0].Sums
				o.Pins = slices.Clone(o.Pins)
				s.Parts = slices.Clone(s.Parts)
				spoil(&s)
				o.Pins[0].Sums = s
				w.drop = nil
				d.step(FromPeer{p.self, o})
				return true
			}
			return false
		}
		call := w.importStart("d", man)
		w.run()
		if r := w.ended(call); !errors.Is(r.Err, handoff.ErrChecksum) {
			t.Errorf("%s: %v", name, r.Err)
		}
		w.advance(time.Minute)
	}
}

// TestARankWantsAll: a rank that is to verify all does, whatever its leader is told to.
func TestARankWantsAll(t *testing.T) {
	w := verified(t, sums.All, 2, 2)
	for _, n := range w.nodes {
		if n.self.Group == "p" || n.self.Rank == 0 {
			n.m.cfg.Verify = sums.Off
		}
	}
	call := w.importStart("d", w.export("p", "r1", 40))
	w.run()
	if r := w.ended(call); !errors.Is(r.Err, handoff.ErrChecksum) || len(w.at("d", 1).eng.admitted) > 0 {
		t.Errorf("ended by %v", r.Err)
	}
}
