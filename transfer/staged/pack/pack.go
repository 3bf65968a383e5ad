// Package pack says how the bytes that one pair of ranks moves lie in the chunks of a
// staging arena. Both ends compute it from the same moves, so that only a chunk's number
// travels: the source copies chunk n from its engine's memory into any chunk of its arena,
// the destination copies the same bytes from any chunk of its own arena into its engine's.
//
// A chunk is memory like any other: a shard of it has a box, a type and strides, and the
// planner and package lower make the copies of either half. Pure.
package pack

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/batonkv/baton/transfer/layout"
	"github.com/batonkv/baton/transfer/reshard"
)

// ErrMoves reports moves that cannot be packed: of states that the model lacks, or with a
// unit that is larger than a chunk.
var ErrMoves = errors.New("pack: bad moves")

const (
	// goodTokens is how many tokens a chunk of paged state has where that can be: a few
	// blocks of the usual sizes, so that runs are as long as the engines' own.
	goodTokens = 64
	// maxMoves bounds what a peer can make this process plan.
	maxMoves = 1 << 16
	// maxPanels and maxChunks bound what small chunks make of large moves.
	maxPanels = 1 << 14
	maxChunks = 1<<31 - 1
)

// Move is one box of a state that the pair moves, as it lies in chunks.
type Move struct {
	State int32
	Box   layout.Box
	Rows  int32 // window columns that travel; 1 for a paged state
	DType layout.DType
}

// Of are the moves of a plan's pair, in the plan's order. Of two types the smaller one
// travels, and the end that has the other converts.
func Of(p *reshard.Plan, pair uint32) []Move {
	m := p.Model()
	var out []Move
	for part := range p.Parts(pair) {
		v := Move{State: part.State, Box: part.Box, Rows: 1, DType: part.To.DType}
		if part.From.DType.Size() < part.To.DType.Size() {
			v.DType = part.From.DType
		}
		if m.States[part.State].Paging == layout.PerRequest {
			v.Rows = min(part.From.Rows, part.To.Rows)
		}
		out = append(out, v)
	}
	return out
}

// Paged are those of moves that are of these layers of paged states, counted within each
// state. That may be none.
func Paged(m layout.Model, moves []Move, layers layout.Span) []Move {
	var out []Move
	for _, v := range moves {
		v.Box.Layers = v.Box.Layers.Intersect(layers)
		if m.States[v.State].Paging == layout.PerBlock && !v.Box.Empty() {
			out = append(out, v)
		}
	}
	return out
}

// Packing is a pair's moves, cut into chunks. Immutable, safe for concurrent use.
//
// A panel is some of the moves: those whose bytes of one token, or of one slot, share a
// chunk. Chunks are numbered panel by panel, and within a paged panel by tokens.
type Packing struct {
	model  layout.Model
	room   int64
	panels []panel
}

type panel struct {
	moves  []Move
	paged  bool
	unit   int64 // bytes of one token, or of the slot
	tokens int32 // of a full chunk; 1 if not paged
}

// New cuts moves for chunks that hold room bytes between their stamps.
func New(m layout.Model, moves []Move, room int64) (*Packing, error) {
	if len(moves) == 0 || len(moves) > maxMoves || room < 1 {
		return nil, fmt.Errorf("%w: %d moves into chunks of %d bytes, want 1 to %d", ErrMoves, len(moves), room, maxMoves)
	}
	c := cutter{p: &Packing{model: m, room: room}}
	for i, v := range moves {
		if v.State < 0 || int(v.State) >= len(m.States) || v.DType.Size() == 0 {
			return nil, fmt.Errorf("%w: move %d is of state %d, type %d", ErrMoves, i, v.State, v.DType)
		}
		st := &m.States[v.State]
		whole := layout.Box{Layers: layout.Span{Hi: st.Layers}, Units: layout.Span{Hi: st.Units}}
		if paged := st.Paging == layout.PerBlock; v.Box.Empty() || v.Box.Intersect(whole) != v.Box || v.Rows < 1 ||
			v.Rows > layout.MaxRows || paged && v.Rows != 1 {
			return nil, fmt.Errorf("%w: move %d: %v with %d rows of state %q, which is %v", ErrMoves, i, v.Box, v.Rows, st.Name, whole)
		}
		if err := c.add(st, v); err != nil {
			return nil, fmt.Errorf("move %d: %w", i, err)
		}
	}
	c.close()
	return c.p, nil
}

// cutter fills panels in the order of the moves.
type cutter struct{ p *Packing }

// add puts a move into panels: whole if it fits, else by layers, else by units.
func (c *cutter) add(st *layout.State, v Move) error {
	paged := st.Paging == layout.PerBlock
	unit := int64(v.Rows) * int64(st.Elems) * v.DType.Size() // of one layer; < 2^20 * 2^28 * 2^3
	good := c.p.room
	if paged {
		good = max(1, good/goodTokens)
	}
	if unit > c.p.room {
		return fmt.Errorf("%w: one unit of state %q has %d bytes, a chunk has room for %d: use larger chunks", ErrMoves, st.Name, unit, c.p.room)
	}
	units := int64(v.Box.Units.Len())
	for rest := v.Box.Layers; !rest.Empty(); {
		open := c.open(paged)
		layers := (good - open.unit) / (unit * units)
		switch {
		case layers > 0:
			n := int32(min(layers, int64(rest.Len())))
			c.put(open, v, layout.Box{Layers: layout.Span{Lo: rest.Lo, Hi: rest.Lo + n}, Units: v.Box.Units}, unit)
			rest.Lo += n
		case open.unit > 0:
			c.close()
		default: // one layer is larger than a good chunk
			step := min(units, c.p.room/unit)
			for u := int64(v.Box.Units.Lo); u < int64(v.Box.Units.Hi); u += step {
				span := layout.Span{Lo: int32(u), Hi: int32(min(u+step, int64(v.Box.Units.Hi)))}
				c.put(c.open(paged), v, layout.Box{Layers: layout.Span{Lo: rest.Lo, Hi: rest.Lo + 1}, Units: span}, unit)
				c.close()
			}
			rest.Lo++
		}
		if len(c.p.panels) > maxPanels {
			return fmt.Errorf("%w: over %d chunks of one token or slot: use larger ones", ErrMoves, maxPanels)
		}
	}
	return nil
}

// open is the panel that is filled: the last one, if it is of that kind and not closed.
func (c *cutter) open(paged bool) *panel {
	if n := len(c.p.panels); n > 0 && c.p.panels[n-1].paged == paged && c.p.panels[n-1].tokens == 0 {
		return &c.p.panels[n-1]
	}
	c.close()
	c.p.panels = append(c.p.panels, panel{paged: paged})
	return &c.p.panels[len(c.p.panels)-1]
}

func (c *cutter) put(to *panel, v Move, box layout.Box, unit int64) {
	v.Box = box
	to.moves = append(to.moves, v)
	to.unit += box.Area() * unit
}

// close ends the last panel: it says how many tokens a chunk of it has.
func (c *cutter) close() {
	if n := len(c.p.panels); n > 0 && c.p.panels[n-1].tokens == 0 {
		last := &c.p.panels[n-1]
		last.tokens = 1
		if last.paged {
			last.tokens = int32(min(c.p.room/last.unit, layout.MaxRows))
		}
	}
}

// Chunks is how many chunks tokens of a request fill, with its slot; an error when they
// cannot be numbered.
func (p *Packing) Chunks(tokens layout.Span) (int32, error) {
	n := int64(0)
	for i := range p.panels {
		n += p.panels[i].count(tokens)
	}
	if n > maxChunks || tokens.Lo < 0 || tokens.Hi < tokens.Lo {
		return 0, fmt.Errorf("%w: tokens %v fill %d chunks", ErrMoves, tokens, n)
	}
	return int32(n), nil
}

func (n *panel) count(tokens layout.Span) int64 {
	if !n.paged {
		return 1
	}
	return (int64(tokens.Len()) + int64(n.tokens) - 1) / int64(n.tokens)
}

// part is chunk seq: its panel and, if that is paged, its tokens.
type part struct {
	panel  int
	tokens layout.Span
}

func (p *Packing) part(tokens layout.Span, seq int32) (part, error) {
	left := int64(seq)
	for i := range p.panels {
		n := &p.panels[i]
		if k := n.count(tokens); left >= k {
			left -= k
			continue
		}
		if left < 0 {
			break
		}
		if !n.paged {
			return part{panel: i}, nil
		}
		lo := tokens.Lo + int32(left)*n.tokens
		return part{i, layout.Span{Lo: lo, Hi: min(lo+n.tokens, tokens.Hi)}}, nil
	}
	return part{}, fmt.Errorf("%w: chunk %d of tokens %v", ErrMoves, seq, tokens)
}

// rows are the tokens of a chunk, 1 for a slot.
func (t part) rows() int32 { return cmp.Or(t.tokens.Len(), 1) }

// Bytes is what chunk seq holds between its stamps.
func (p *Packing) Bytes(tokens layout.Span, seq int32) (int64, error) {
	t, err := p.part(tokens, seq)
	if err != nil {
		return 0, err
	}
	return p.panels[t.panel].unit * int64(t.rows()), nil
}
