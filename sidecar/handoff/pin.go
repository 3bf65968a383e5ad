package handoff

import (
	"fmt"
	"slices"
	"time"
)

// Pin is a rank's half: memory of its engine that stays untouched until Free, Unpin
// or the rank's own deadline. That is counted from the arrival of the leader's word, so
// it is later than the leader's by the margin at least.
type Pin struct {
	Info     PinInfo // as far as it may be read: of parts, without the slot until the last
	Label    string
	ID       ID // zero until Leased
	Deadline time.Duration
	// WeightsEpoch is of the weights that made the state, for prompts of this Salt.
	WeightsEpoch uint64
	Salt         Salt
	Extent

	parts  uint32   // that the engine exported
	table  []int32  // blocks that it named
	closed bool     // it named all
	growth []growth // that its steps may still write, in order

	packed map[packing]bool // pulls that it is or was packed for; true: their session has ended
}

// packing is a staged pull of a peer.
type packing struct {
	by Member
	of Check
}

// Answers reports whether c asks about exactly this pin. The pin and its generation
// name it; the leader's word that it belongs to c.ID may still be on its way, since an
// importer can be faster than the leader's message to its own rank.
func (p *Pin) Answers(c Check) bool {
	return (p.ID == c.ID || p.ID == ID{}) && p.Info.Pin == c.Pin && p.Info.Generation == c.Generation
}

// Pack says that p is about to be packed for a staged pull of a peer, and reports whether
// it may be: not for one whose session has ended, nor for more pulls than importers.
func (p *Pin) Pack(by Member, of Check) bool {
	k := packing{by, of}
	if broken, again := p.packed[k]; again {
		return !broken
	}
	if !p.Answers(of) || len(p.packed) >= maxClaims {
		return false
	}
	if p.packed == nil {
		p.packed = map[packing]bool{}
	}
	p.packed[k] = false
	return true
}

// Lost says that the session with a peer has ended.
func (p *Pin) Lost(by Member) {
	for k := range p.packed {
		p.packed[k] = p.packed[k] || k.by == by
	}
}

// Broken reports whether the session in which a peer pulled by staging has ended: no later
// one proves what came through chunks that others have used since.
func (p *Pin) Broken(by Member, c Check) bool { return p.packed[packing{by, c}] }

// Leased takes the hand-off and the first deadline. It comes once: a repetition would
// count from its own arrival.
func (p *Pin) Leased(l Leased, now time.Duration) {
	if p.ID == (ID{}) && p.Info.Pin == l.Pin && p.Label == l.Label {
		p.ID, p.Deadline = l.ID, now+l.Hold
	}
}

// Extend moves the deadline, never to an earlier instant, and reports whether the pin is
// held for that long: only then may the leader hear so.
func (p *Pin) Extend(e Extend, now time.Duration) bool {
	if p.ID != e.ID || p.Info.Pin != e.Pin || now >= p.Deadline {
		return false
	}
	p.Deadline = max(p.Deadline, now+e.Hold)
	return true
}

// growth is what an export, or a part, adds once its fence is over.
type growth struct {
	blocks []int32
	slot   int32
	extent Extent
	fence  uint64
}

// NewPin is a pin of nothing: Exports or Grow says of what. Slot of i does not count.
func NewPin(label string, i PinInfo, weights uint64, salt Salt, deadline time.Duration) *Pin {
	i.Blocks, i.Slot = nil, -1
	return &Pin{Label: label, Info: i, WeightsEpoch: weights, Salt: salt, Deadline: deadline}
}

// Grow takes the next part. An error says what the engine broke.
func (p *Pin) Grow(e ExportPart) error {
	before := p.Reach
	if n := len(p.growth); n > 0 {
		before = p.growth[n-1].extent.Reach
	}
	switch {
	case p.closed || e.Part != p.parts+1:
		return fmt.Errorf("%w: part %d of label %q follows %d", ErrEngine, e.Part, p.Label, p.parts)
	case e.Tokens != p.Info.Tokens || e.Position != p.Info.Position:
		return fmt.Errorf("%w: part %d of label %q is of %d tokens at position %d, the first of %d at %d", ErrPosition, e.Part, p.Label,
			e.Tokens, e.Position, p.Info.Tokens, p.Info.Position)
	case e.WeightsEpoch != p.WeightsEpoch:
		return fmt.Errorf("%w: part %d of label %q is of epoch %d, the first of %d", ErrWeights, e.Part, p.Label, e.WeightsEpoch, p.WeightsEpoch)
	case e.Salt != p.Salt:
		return fmt.Errorf("%w: part %d of label %q has another salt than the first", ErrEngine, e.Part, p.Label)
	case !e.Reach.Within(e.Tokens) || !e.Reach.Follows(before):
		return fmt.Errorf("%w: part %d of label %q reaches %+v of %d tokens, after %+v", ErrEngine, e.Part, p.Label, e.Reach, e.Tokens, before)
	case len(p.table)+len(e.Blocks) > maxTable:
		return fmt.Errorf("%w: label %q has over %d blocks", ErrEngine, p.Label, maxTable)
	}
	p.parts++
	p.add(growth{e.Blocks, -1, Extent{More: true, Part: p.parts, Reach: e.Reach}, e.Fence})
	return nil
}

// Table is what blocks the engine named. It is p's.
func (p *Pin) Table() []int32 { return p.table }

// Exports takes all of it, and closes the parts before. An error says what the engine broke.
func (p *Pin) Exports(e Export) error {
	switch {
	case p.closed || e.Parts != p.parts:
		return fmt.Errorf("%w: export of %q closes %d parts of %d, or again", ErrEngine, p.Label, e.Parts, p.parts)
	case e.Tokens != p.Info.Tokens || e.Position != p.Info.Position:
		return fmt.Errorf("%w: export of %q is of %d tokens at position %d, its parts of %d at %d", ErrPosition, p.Label,
			e.Tokens, e.Position, p.Info.Tokens, p.Info.Position)
	case e.WeightsEpoch != p.WeightsEpoch:
		return fmt.Errorf("%w: export of %q is of epoch %d, its parts of %d", ErrWeights, p.Label, e.WeightsEpoch, p.WeightsEpoch)
	case e.Salt != p.Salt:
		return fmt.Errorf("%w: export of %q has another salt than its parts", ErrEngine, p.Label)
	case len(e.Blocks) < len(p.table) || !slices.Equal(e.Blocks[:len(p.table)], p.table):
		return fmt.Errorf("%w: export of %q names other blocks than its parts", ErrEngine, p.Label)
	}
	g := growth{blocks: e.Blocks[len(p.table):], slot: e.Slot, fence: e.Fence}
	if p.closed = true; p.parts > 0 {
		g.extent.Part = p.parts + 1
	}
	p.add(g)
	return nil
}

func (p *Pin) add(g growth) {
	p.table = append(p.table, g.blocks...)
	p.growth = append(p.growth, g)
}

// Clear takes what no step of the engine writes any more, and returns what the leader is to
// hear, one at a time.
func (p *Pin) Clear(fenced uint64) (Pinned, bool) {
	if len(p.growth) == 0 || p.growth[0].fence > fenced {
		return Pinned{}, false
	}
	g := p.growth[0]
	p.growth = p.growth[1:]
	p.Info.Blocks = slices.Concat(p.Info.Blocks, g.blocks)
	p.Info.Slot, p.Extent = g.slot, g.extent
	out := Pinned{Label: p.Label, Pin: p.Info, WeightsEpoch: p.WeightsEpoch, Extent: g.extent}
	out.Pin.Blocks = g.blocks
	return out, true
}

// Growing reports whether the engine adds to it.
func (p *Pin) Growing() bool { return !p.closed }
