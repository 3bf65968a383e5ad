package handoff

import (
	"errors"
	"testing"

	"pgregory.net/rapid"

	"github.com/batonkv/baton/transfer/layout"
)

const propLayers = 3

// drawReach draws a reach of a prompt.
func drawReach(t *rapid.T, tokens int32, name string) Reach {
	r := All(rapid.Int32Range(0, tokens).Draw(t, name+" tokens"))
	if r.Tokens < tokens && rapid.Bool().Draw(t, name+" strip") {
		r.Ahead, r.Layers = rapid.Int32Range(r.Tokens+1, tokens).Draw(t, name+" ahead"), rapid.Int32Range(1, propLayers).Draw(t, name+" layers")
	}
	return r
}

// has reports whether one token of one layer is within r, the plain way.
func (r Reach) has(token, layer int32) bool {
	return token < r.Tokens || token < r.Ahead && layer < r.Layers
}

func span(lo int32) layout.Span { return layout.Span{Lo: lo, Hi: lo + 1} }

// TestReachProperty: Covers, Follows and Meet agree with a table of tokens and layers.
func TestReachProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tokens := rapid.Int32Range(1, 6).Draw(t, "tokens")
		a, b := drawReach(t, tokens, "a"), drawReach(t, tokens, "b")
		if !a.Within(tokens) || !b.Within(tokens) {
			t.Fatalf("%v, %v of %d", a, b, tokens)
		}
		m, beyond := a.Meet(b), true
		follows := a.Follows(b)
		if !m.Within(tokens) || m != b.Meet(a) {
			t.Fatalf("%v meets %v at %v, and the other way at %v", a, b, m, b.Meet(a))
		}
		for token := range tokens {
			for layer := range int32(propLayers) {
				if a.has(token, layer) != a.Covers(span(token), span(layer)) {
					t.Fatalf("%v: token %d of layer %d", a, token, layer)
				}
				if m.has(token, layer) && !(a.has(token, layer) && b.has(token, layer)) {
					t.Fatalf("%v meets %v at %v: token %d of layer %d", a, b, m, token, layer)
				}
				beyond = beyond && (a.has(token, layer) || !b.has(token, layer))
			}
		}
		if follows && (!beyond || m != b) {
			t.Fatalf("%v does not follow %v, which it meets at %v", a, b, m)
		}
	})
}

// TestPiecesProperty: whatever is told and however late it is read, pieces read nothing that
// may not be read, each token of each layer once, and all of it in the end, the last with
// what is per request.
func TestPiecesProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tokens := rapid.Int32Range(1, 8).Draw(t, "tokens")
		cached := rapid.Int32Range(0, tokens).Draw(t, "cached")
		d := NewDest(Decision{Tokens: tokens, Extent: Extent{More: true, Part: 1, Reach: drawReach(t, tokens, "first")}})
		d.Hold(Reserved{Cached: cached}, []Read{{}})
		read := map[[2]int32]int{}
		whole := false
		for steps := 0; !whole; steps++ {
			p, ok := d.Next(0)
			if grow := rapid.IntRange(0, 2).Draw(t, "grow"); (!ok || grow == 0) && d.D.More {
				e := Extent{Part: d.D.Part + 1}
				if next := drawReach(t, tokens, "next"); steps < 20 && rapid.Bool().Draw(t, "more") {
					if !next.Follows(d.D.Reach) {
						continue
					}
					e.More, e.Reach = true, next
				}
				d.Grows(Part{Extent: e})
				continue
			}
			if !ok {
				t.Fatalf("nothing more is read at %v", d.D.Extent)
			}
			whole = p.Whole
			for token := p.Tokens.Lo; token < p.Tokens.Hi; token++ {
				for layer := p.Layers.Lo; layer < min(p.Layers.Hi, propLayers); layer++ {
					if read[[2]int32{token, layer}]++; !d.D.Extent.Of(tokens).has(token, layer) {
						t.Fatalf("token %d of layer %d is read at %v", token, layer, d.D.Extent)
					}
				}
			}
			d.Submitted(0, p, 1+uint64(steps), 1)
			if r := d.TicketDone(1+uint64(steps), 1, "", 2); (r != nil) != whole {
				t.Fatalf("%+v is to be checked after %+v", r, p)
			}
		}
		for token := cached; token < tokens; token++ {
			for layer := range int32(propLayers) {
				if n := read[[2]int32{token, layer}]; n != 1 {
					t.Fatalf("token %d of layer %d was read %d times", token, layer, n)
				}
			}
		}
		if n := len(read); n != int(tokens-cached)*propLayers {
			t.Fatalf("%d were read of %d tokens", n, tokens-cached)
		}
	})
}

// TestPinGrows: what an engine says of a pin that contradicts what it said is refused, and
// changes nothing.
func TestPinGrows(t *testing.T) {
	first := ExportPart{Label: "r", Part: 1, Blocks: []int32{7}, Tokens: 5, Position: 5, Reach: All(2)}
	last := Export{Label: "r", Blocks: []int32{7, 8}, Slot: 3, Tokens: 5, Position: 5, Parts: 1}
	part := func(change func(*ExportPart)) func(*Pin) error {
		e := first
		e.Part, e.Blocks, e.Reach = 2, []int32{8}, All(4)
		change(&e)
		return func(p *Pin) error { return p.Grow(e) }
	}
	export := func(change func(*Export)) func(*Pin) error {
		e := last
		change(&e)
		return func(p *Pin) error { return p.Exports(e) }
	}
	for name, c := range map[string]struct {
		do   func(*Pin) error
		want error
	}{
		"a part is left out":   {part(func(e *ExportPart) { e.Part = 3 }), ErrEngine},
		"a part comes again":   {part(func(e *ExportPart) { e.Part = 1 }), ErrEngine},
		"another prompt":       {part(func(e *ExportPart) { e.Tokens, e.Position = 6, 6 }), ErrPosition},
		"less than before":     {part(func(e *ExportPart) { e.Reach = All(1) }), ErrEngine},
		"more than the prompt": {part(func(e *ExportPart) { e.Reach = All(6) }), ErrEngine},
		"layers of no tokens":  {part(func(e *ExportPart) { e.Reach.Layers = 1 }), ErrEngine},
		"a good part":          {part(func(*ExportPart) {}), nil},
		"closes others":        {export(func(e *Export) { e.Parts = 2 }), ErrEngine},
		"other blocks":         {export(func(e *Export) { e.Blocks = []int32{8, 7} }), ErrEngine},
		"fewer blocks":         {export(func(e *Export) { e.Blocks = nil }), ErrEngine},
		"of another length":    {export(func(e *Export) { e.Tokens, e.Position = 4, 4 }), ErrPosition},
		"other weights":        {part(func(e *ExportPart) { e.WeightsEpoch = 2 }), ErrWeights},
		"another salt":         {part(func(e *ExportPart) { e.Salt.Namespace = "n" }), ErrEngine},
		"closes other weights": {export(func(e *Export) { e.WeightsEpoch = 2 }), ErrWeights},
		"closes another salt":  {export(func(e *Export) { e.Salt.LoRA = "l" }), ErrEngine},
		"closes":               {export(func(*Export) {}), nil},
	} {
		t.Run(name, func(t *testing.T) {
			p := NewPin("r", PinInfo{Pin: 9, Tokens: 5, Position: 5}, 0, Salt{}, lease)
			if err := p.Grow(first); err != nil {
				t.Fatal(err)
			}
			if err := c.do(p); !errors.Is(err, c.want) {
				t.Fatalf("got %v, want %v", err, c.want)
			}
			m, ok := p.Clear(0)
			if !ok || !m.More || m.Part != 1 || m.Pin.Slot != -1 || len(m.Pin.Blocks) != 1 {
				t.Fatalf("the first part is told as %+v, %v", m, ok)
			}
			if _, more := p.Clear(0); more != (c.want == nil) {
				t.Fatalf("something follows: %v", more)
			}
		})
	}
}

// TestFencedParts: parts are told in order, each when its fence is over, the slot with the
// last alone.
func TestFencedParts(t *testing.T) {
	p := NewPin("r", PinInfo{Pin: 9, Tokens: 5, Position: 5}, 0, Salt{}, lease)
	err := errors.Join(p.Grow(ExportPart{Part: 1, Blocks: []int32{7}, Tokens: 5, Position: 5, Reach: All(2), Fence: 3}),
		p.Exports(Export{Blocks: []int32{7, 8}, Slot: 4, Tokens: 5, Position: 5, Parts: 1, Fence: 2}))
	if err != nil {
		t.Fatal(err)
	}
	if m, ok := p.Clear(2); ok {
		t.Fatalf("%+v is told before its fence", m)
	}
	one, _ := p.Clear(3)
	if p.Info.Slot != -1 || len(p.Info.Blocks) != 1 || !p.More {
		t.Fatalf("after the first part it is %+v", p.Info)
	}
	two, ok := p.Clear(3)
	if !one.More || !ok || two.More || two.Part != 2 || two.Pin.Slot != 4 || len(two.Pin.Blocks) != 1 || len(p.Info.Blocks) != 2 {
		t.Fatalf("told %+v, then %+v", one, two)
	}
}

// TestPartsContinue: what does not follow the part before, or is of another pin, ends an
// import, and changes nothing at a source.
func TestPartsContinue(t *testing.T) {
	pins := func(pin PinID, blocks ...int32) []PinInfo {
		return []PinInfo{{Pin: pin, Generation: 1, Blocks: blocks, Slot: -1, Tokens: 8, Position: 8}}
	}
	good := Part{Pins: pins(3, 7), Extent: Extent{More: true, Part: 2, Reach: All(4)}}
	for name, c := range map[string]struct {
		change func(*Part)
		ok     bool
	}{
		"the next part":    {func(*Part) {}, true},
		"the last part":    {func(p *Part) { p.Extent = Extent{Part: 2} }, true},
		"a part left out":  {func(p *Part) { p.Part = 3 }, false},
		"of another pin":   {func(p *Part) { p.Pins = pins(4, 7) }, false},
		"reused memory":    {func(p *Part) { p.Pins[0].Generation = 2 }, false},
		"another rank":     {func(p *Part) { p.Pins[0].Rank = 1 }, false},
		"less":             {func(p *Part) { p.Reach = All(1) }, false},
		"beyond the end":   {func(p *Part) { p.Reach = All(9) }, false},
		"without its pins": {func(p *Part) { p.Pins = nil }, false},
	} {
		t.Run(name, func(t *testing.T) {
			p := good
			p.Pins = pins(3, 7)
			c.change(&p)
			l := NewLeader(Import{Tokens: make([]int32, 8)}, 1, 1, 0, lease)
			l.Open(Digest{})
			if err := l.Answered(Opened{Attempt: 1, Status: OK, Tokens: 8, Position: 8, Pins: pins(3), Extent: Extent{More: true, Part: 1, Reach: All(2)}}, 0); err != nil {
				t.Fatal(err)
			}
			if _, err := l.Parts(p); (err == nil) != c.ok {
				t.Errorf("a leader says %v", err)
			}
			d := NewDest(Decision{Tokens: 8, Sources: pins(3), Extent: Extent{More: true, Part: 1, Reach: All(2)}})
			d.Hold(Reserved{}, []Read{{Source: pins(3)[0]}})
			if d.Grows(p); (d.State() == Bad) == c.ok {
				t.Errorf("a rank is %v", d.State())
			}
			s := NewSource(ID{N: 1}, key, "r", 1, lease)
			err := errors.Join(s.Exporting(ExportPart{Label: "r", Part: 1, Tokens: 8, Position: 8}),
				s.Pinned(Pinned{Pin: pins(3)[0], Extent: Extent{More: true, Part: 1, Reach: All(2)}}))
			if err != nil || !s.Begins() {
				t.Fatal(err)
			}
			s.Lease(0, lease, lease)
			if len(p.Pins) == 0 {
				return
			}
			if err := s.Pinned(Pinned{Pin: p.Pins[0], Extent: p.Extent}); (err == nil) != c.ok {
				t.Errorf("a source says %v", err)
			}
		})
	}
}
