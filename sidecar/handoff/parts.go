package handoff

import (
	"fmt"
	"math"
	"slices"

	"github.com/batonkv/baton/transfer/layout"
)

// A hand-off may leave in parts, while its prompt is still computed. What its ranks may read
// of it only grows, in tokens and in layers, until Export closes it; what is per request has
// one position and leaves with the last part alone. A part is no hand-off of its own: pins,
// attempts, Check and Done are those of the whole.

// Reach says how much of a prompt's paged states may be read: all layers of tokens
// [0, Tokens), and the first Layers layers of tokens [Tokens, Ahead). Layers count within
// each state.
type Reach struct{ Tokens, Ahead, Layers int32 }

// All is the reach of a prompt that is computed whole.
func All(tokens int32) Reach { return Reach{Tokens: tokens, Ahead: tokens} }

// Within reports whether r is a reach of a prompt of so many tokens.
func (r Reach) Within(tokens int32) bool {
	return r.Tokens >= 0 && r.Ahead >= r.Tokens && r.Ahead <= tokens && r.Layers >= 0 && (r.Layers == 0) == (r.Ahead == r.Tokens)
}

// Covers reports whether r has all of these tokens in all of these layers.
func (r Reach) Covers(tokens, layers layout.Span) bool {
	return tokens.Hi <= r.Tokens || tokens.Hi <= r.Ahead && layers.Hi <= r.Layers || tokens.Empty()
}

// Follows reports whether r may come after o, or is o: more layers of the same tokens, or all
// of those and more. Of reaches that follow each other so, the lesser of two is where they meet.
func (r Reach) Follows(o Reach) bool {
	return r.Tokens >= o.Ahead || r.Tokens == o.Tokens && r.Ahead == o.Ahead && r.Layers >= o.Layers
}

// Meet is a reach that both have.
func (r Reach) Meet(o Reach) Reach {
	if o.Tokens < r.Tokens {
		r, o = o, r
	}
	ahead, layers := min(r.Ahead, o.Tokens), r.Layers
	if o.Tokens == r.Tokens {
		ahead, layers = min(r.Ahead, o.Ahead), min(r.Layers, o.Layers)
	}
	return Reach{r.Tokens, ahead, layers}.normal()
}

func (r Reach) normal() Reach {
	if r.Layers == 0 || r.Ahead <= r.Tokens {
		return All(r.Tokens)
	}
	return r
}

// Extent says how much of a hand-off may be read. That of one which was exported whole is
// zero.
type Extent struct {
	More  bool   // parts follow
	Part  uint32 // parts so far
	Reach Reach  // while More
}

// Of is how far e goes in a prompt of so many tokens.
func (e Extent) Of(tokens int32) Reach {
	if e.More {
		return e.Reach
	}
	return All(tokens)
}

// allLayers is a span that no state is longer than.
var allLayers = layout.Span{Hi: math.MaxInt32}

// Piece is what one pull reads.
type Piece struct {
	Tokens layout.Span
	Layers layout.Span // of the paged states
	Whole  bool        // the last pull: of all layers, with what is per request

	at Reach // what is read when it has ended
}

// next is what a reader that has r pulls when it may read e of a prompt of so many tokens. A
// strip of tokens that is read layer by layer is finished before others are begun.
func (r Reach) next(e Extent, tokens int32) (Piece, bool) {
	to := e.Of(tokens)
	to.Tokens = max(to.Tokens, r.Tokens)
	to = Reach{to.Tokens, max(to.Ahead, to.Tokens), to.Layers}.normal()
	strip := func(at Reach) (Piece, bool) {
		return Piece{Tokens: layout.Span{Lo: r.Tokens, Hi: at.Ahead}, Layers: layout.Span{Lo: r.Layers, Hi: at.Layers}, at: at}, true
	}
	switch {
	case r.Ahead > r.Tokens && to.Tokens >= r.Ahead:
		return Piece{Tokens: layout.Span{Lo: r.Tokens, Hi: r.Ahead}, Layers: layout.Span{Lo: r.Layers, Hi: math.MaxInt32}, at: All(r.Ahead)}, true
	case !e.More:
		return Piece{Tokens: layout.Span{Lo: r.Tokens, Hi: tokens}, Layers: allLayers, Whole: true, at: to}, true
	case r.Ahead > r.Tokens:
		if to.Ahead < r.Ahead || to.Layers <= r.Layers {
			return Piece{}, false
		}
		return strip(Reach{r.Tokens, r.Ahead, to.Layers})
	case to.Tokens > r.Tokens:
		return Piece{Tokens: layout.Span{Lo: r.Tokens, Hi: to.Tokens}, Layers: allLayers, at: All(to.Tokens)}, true
	case to.Ahead > r.Tokens:
		return strip(to)
	}
	return Piece{}, false
}

// continues says why part m of a hand-off whose pins are ps does not follow e, or nil. The
// pins of a part have the blocks behind those that were named before.
func continues(e Extent, tokens int32, ps []PinInfo, m Part) error {
	switch {
	case !e.More || m.Part != e.Part+1:
		return fmt.Errorf("%w: part %d follows %d", ErrPlan, m.Part, e.Part)
	case len(m.Pins) != len(ps):
		return fmt.Errorf("%w: part %d has %d pins of %d", ErrPlan, m.Part, len(m.Pins), len(ps))
	case m.More && (!m.Reach.Within(tokens) || !m.Reach.Follows(e.Reach)):
		return fmt.Errorf("%w: part %d reaches %v, and %v was reached before", ErrPlan, m.Part, m.Reach, e.Reach)
	}
	for i, p := range m.Pins {
		if o := ps[i]; p.Rank != o.Rank || p.Pin != o.Pin || p.Generation != o.Generation {
			return fmt.Errorf("%w: part %d is of other pins", ErrPlan, m.Part)
		}
		if len(ps[i].Blocks)+len(p.Blocks) > maxTable {
			return fmt.Errorf("%w: over %d blocks", ErrPlan, maxTable)
		}
	}
	return nil
}

// maxTable bounds what parts make of a block table.
const maxTable = 1 << 20

// grownPins are ps and what a part adds. Slots and sums come with the last part: before it
// nobody can name what is per request.
func grownPins(ps, part []PinInfo) []PinInfo {
	out := slices.Clone(ps)
	for i := range out {
		out[i].Blocks = slices.Concat(out[i].Blocks, part[i].Blocks)
		out[i].Slot, out[i].Sums = part[i].Slot, part[i].Sums
	}
	return out
}
