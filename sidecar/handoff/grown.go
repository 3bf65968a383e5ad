package handoff

import (
	"fmt"
	"slices"

	"github.com/batonkv/baton/transfer/sums"
)

// grown is what a Source knows of parts. Ranks run at their own pace: importers are told
// what all of them have.
type grown struct {
	of      Export // what the leader's engine says of the whole, until it exports that
	own     uint32 // parts that it exported
	ranks   []rankGrown
	told    Extent // to importers
	readers []Open // who were told of parts, and hear of the next
}

// rankGrown is one rank's. The zero one has stated nothing, or all at once.
type rankGrown struct {
	extent Extent
	blocks []int32 // that importers were not told
	slot   int32   // once all is stated,
	sums   sums.Sums
}

// Exporting takes a part of the leader's own.
func (s *Source) Exporting(e ExportPart) error {
	g := &s.grown
	if s.export != nil || e.Part != g.own+1 || s.state != Announced && !s.Growing() {
		return fmt.Errorf("%w: part %d of label %q follows %d", ErrEngine, e.Part, s.Label, g.own)
	}
	g.own++
	if g.own == 1 {
		s.copies = 1 // Export says how many; until then none is consumed
		g.of = Export{Label: e.Label, Tokens: e.Tokens, Position: e.Position, WeightsEpoch: e.WeightsEpoch, Salt: e.Salt}
	}
	return nil
}

// Growing reports whether importers read parts of s, and others follow.
func (s *Source) Growing() bool { return s.state == Leasing && s.grown.told.More }

// Whole is what the leader's engine exported, or says of the whole while parts leave; nil
// before.
func (s *Source) Whole() *Export {
	if s.export == nil && s.grown.own > 0 {
		return &s.grown.of
	}
	return s.export
}

// Held reports whether the leader's engine holds memory for s.
func (s *Source) Held() bool { return s.export != nil || s.grown.own > 0 }

// Begins reports whether every rank, and the leader's engine, pins a first part or all.
func (s *Source) Begins() bool { return s.state == Announced && s.Held() && s.pinned() }

func (g *grown) more() bool {
	return slices.ContainsFunc(g.ranks, func(r rankGrown) bool { return r.extent.More })
}

// first takes a rank's first statement.
func (g *grown) first(m Pinned, ranks int) {
	if !m.More {
		return
	}
	if g.ranks == nil {
		g.ranks = make([]rankGrown, ranks)
	}
	g.ranks[m.Pin.Rank] = rankGrown{extent: m.Extent, slot: -1}
}

// grow takes a later one.
func (s *Source) grow(m Pinned) error {
	p := m.Pin
	if s.state == Over || p.Rank < 0 || int(p.Rank) >= len(s.grown.ranks) || s.pins[p.Rank].Pin == 0 {
		return fmt.Errorf("%w: rank %d continues no part of label %q", ErrEngine, p.Rank, s.Label)
	}
	r, o := &s.grown.ranks[p.Rank], s.pins[p.Rank]
	if o.Tokens != p.Tokens || o.Position != p.Position {
		return fmt.Errorf("%w: label %q: rank %d held %d tokens at position %d before, and holds %d at %d",
			ErrPosition, s.Label, p.Rank, o.Tokens, o.Position, p.Tokens, p.Position)
	}
	so := PinInfo{Rank: o.Rank, Pin: o.Pin, Generation: o.Generation, Blocks: slices.Concat(o.Blocks, r.blocks)}
	if err := continues(r.extent, o.Tokens, []PinInfo{so}, Part{Pins: []PinInfo{p}, Extent: m.Extent}); err != nil {
		return fmt.Errorf("%w: label %q: %w", ErrEngine, s.Label, err)
	}
	r.extent, r.blocks, r.slot, r.sums = m.Extent, append(r.blocks, p.Blocks...), p.Slot, p.Sums
	return nil
}

// begin is what importers are told of first.
func (s *Source) begin() {
	if s.grown.more() || s.export == nil {
		s.grown.told = Extent{More: true, Part: 1, Reach: s.reach()}
	}
	s.pins = grownPins(s.pins, s.news())
}

// reach is what every rank has.
func (s *Source) reach() Reach {
	all := All(s.pins[0].Tokens)
	for i, r := range s.grown.ranks {
		all = all.Meet(r.extent.Of(s.pins[i].Tokens))
	}
	return all
}

// news is what the ranks stated since importers were told.
func (s *Source) news() []PinInfo {
	out := slices.Clone(s.pins)
	for i := range out {
		out[i].Blocks = nil
		if s.grown.ranks != nil && s.grown.ranks[i].extent.Part > 0 {
			r := &s.grown.ranks[i]
			out[i].Blocks, out[i].Slot, out[i].Sums, r.blocks = r.blocks, r.slot, r.sums, nil
			if s.grown.more() {
				out[i].Slot, out[i].Sums = -1, sums.Sums{}
			}
		}
	}
	return out
}

// Tell returns the next part for those that read s, if there is one; the caller gives each
// its attempt. After the last, whoever waited with an Open may have all.
func (s *Source) Tell() (p Part, to []Open, ok bool) {
	g := &s.grown
	if !s.Growing() {
		return Part{}, nil, false
	}
	last, reach := s.Complete(), s.reach()
	if !last && (reach == g.told.Reach || !reach.Follows(g.told.Reach)) {
		return Part{}, nil, false
	}
	p = Part{ID: s.ID, Pins: s.news(), Extent: Extent{More: !last, Part: g.told.Part + 1}}
	if !last {
		p.Reach = reach
	} else {
		p.Resume = s.export.Resume
	}
	s.pins = grownPins(s.pins, p.Pins)
	g.told, to = p.Extent, g.readers
	if last {
		g.readers = nil
	}
	return p, to, true
}

// tell remembers a reader of parts.
func (g *grown) tell(o Open) {
	g.leave(claim{o.Importer, o.Attempt})
	g.readers = append(g.readers, o)
}

func (g *grown) leave(c claim) {
	g.readers = slices.DeleteFunc(g.readers, func(o Open) bool { return claim{o.Importer, o.Attempt} == c })
}
