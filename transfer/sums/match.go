package sums

import (
	"fmt"
	"iter"

	"github.com/batonkv/baton/transfer/layout"
	"github.com/batonkv/baton/transfer/reshard"
)

// Match is what a destination rank can compare of one pair of ranks.
type Match struct {
	Range int32
	Want  []Part // in the source's numbers, each within one shard of the destination
	To    []*layout.Shard
	// Skipped is how many sums of the source's bytes cannot be compared: converted elements,
	// window columns that the destination has not, and tokens that lie in one range with
	// some that were not moved.
	Skipped int64
	// Missing names a part that was moved and that a source which sums everything brought
	// no sums of; "": none.
	Missing string
}

// Of cuts a source rank's sums to what one pair of ranks moved: parts with their shards,
// and of paged states tokens from lo on. s must have passed Check.
func (s *Sums) Of(m layout.Model, parts iter.Seq[reshard.Part], tokens layout.Span) Match {
	out := Match{Range: s.Range}
	if s.Mode == Off {
		return out
	}
	for p := range parts {
		paged := m.States[p.State].Paging == layout.PerBlock
		if paged && tokens.Empty() {
			continue
		}
		var got int64
		for i := range s.Parts {
			q := &s.Parts[i]
			box := q.Box.Intersect(p.Box)
			if q.State != p.State || box.Empty() {
				continue
			}
			got += box.Area() * q.ranges(s.Range)
			out.add(q, p, box, tokens)
		}
		if need := p.Box.Area() * whole(paged, tokens.Hi, s.Range); s.Mode == All && got < need {
			out.Missing = fmt.Sprintf("%v of state %s", p.Box, m.States[p.State].Name)
		}
	}
	return out
}

// whole is how many sums a cell has of which everything is summed.
func whole(paged bool, tokens, size int32) int64 {
	p := Part{Tokens: layout.Span{Hi: tokens}}
	if !paged {
		p.Rows = 1
	}
	return p.ranges(size)
}

// add takes from q what lies in box and was moved.
func (m *Match) add(q *Part, p reshard.Part, box layout.Box, tokens layout.Span) {
	w := Part{State: q.State, Box: box, DType: q.DType, Tokens: q.Tokens, Rows: q.Rows}
	first := int64(0) // range
	if q.Paged() {
		if q.Tokens.Hi <= tokens.Lo {
			return // it was not moved at all
		}
		lo := max(q.Tokens.Lo, (tokens.Lo+m.Range-1)/m.Range*m.Range)
		if lo > tokens.Lo && tokens.Lo > q.Tokens.Lo {
			m.Skipped += box.Area() // of the range that the first token lies in
		}
		if lo >= q.Tokens.Hi {
			return
		}
		first = int64(lo-q.Tokens.Lo) / int64(m.Range)
		w.Tokens.Lo = lo
	}
	if p.From.DType != p.To.DType || q.DType != p.To.DType || q.Rows > p.To.Rows {
		m.Skipped += w.Count(m.Range)
		return
	}
	n := w.ranges(m.Range)
	width, depth := int64(q.Box.Units.Len()), q.ranges(m.Range)
	for l := box.Layers.Lo; l < box.Layers.Hi; l++ {
		for u := box.Units.Lo; u < box.Units.Hi; u++ {
			at := (int64(l-q.Box.Layers.Lo)*width+int64(u-q.Box.Units.Lo))*depth + first
			w.Sums = append(w.Sums, q.Sums[at:at+n]...)
		}
	}
	m.Want, m.To = append(m.Want, w), append(m.To, p.To)
}

// Total is how many sums are to be compared.
func (m *Match) Total() int64 { return count(m.Want, m.Range) }

// Compare says how many of the sums that were made at the destination, in the order of
// Want, differ, and which is the first.
func (m *Match) Compare(model layout.Model, made []uint64) (differ int64, first string) {
	for i := range m.Want {
		w := &m.Want[i]
		for k, want := range w.Sums {
			if len(made) == 0 || made[0] != want {
				if differ++; differ == 1 {
					first = w.name(model, int64(k), m.Range)
				}
			}
			if len(made) > 0 {
				made = made[1:]
			}
		}
	}
	return differ, first
}

// name is the k-th sum of w in words.
func (w *Part) name(m layout.Model, k int64, size int32) string {
	n := w.ranges(size)
	cell, at := k/n, int32(k%n)
	units := int64(w.Box.Units.Len())
	s := fmt.Sprintf("state %s layer %d unit %d", m.States[w.State].Name, w.Box.Layers.Lo+int32(cell/units), w.Box.Units.Lo+int32(cell%units))
	if !w.Paged() {
		return s
	}
	lo := w.Tokens.Lo + at*size
	return s + fmt.Sprintf(" tokens %v", layout.Span{Lo: lo, Hi: min(lo+size, w.Tokens.Hi)})
}
