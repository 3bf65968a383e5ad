package direct

import (
	"context"
	"fmt"

	"github.com/batonkv/baton/transfer"
	"github.com/batonkv/baton/transfer/layout"
	"github.com/batonkv/baton/transfer/lower"
	"github.com/batonkv/baton/transfer/sums"
)

// gather adds up one place of a GPU's memory: piece by piece its rows are brought to host
// memory, one token behind the other, and added up there. A sum is one of rows, so that of a
// range in several pieces is the sum of theirs.
type gather struct {
	b  *Backend
	a  adder
	j  *sums.Job
	p  *sums.Place
	in transfer.Buffers
	to transfer.Mapped

	ns     []lower.Nest
	blocks []int32
	out    []uint64
}

// group is how many rows what is gathered has to an item: every range is a multiple of it.
const group = sums.MinRange

// extents of one piece: so many units, rows and layers at most.
type extents struct{ units, rows, layers int32 }

// cutFor is how large pieces are. Rows of a paged state are whole ranges of them, or a part
// of one that divides it.
func (g *gather) cutFor(rows int32) (e extents, err error) {
	row := int64(g.p.Elems) * int64(g.p.Size)
	least := int64(rows) // of a slot: all
	if g.p.Paged() {
		least = group
	}
	if row*least > g.to.Len {
		return e, fmt.Errorf("%w: %d rows of %d bytes of GPU memory are more than the %d bytes that are added up at once: set verify to off", transfer.ErrMemory, least, row, g.to.Len)
	}
	e.units = int32(min(int64(g.p.Box.Units.Len()), g.to.Len/(row*least)))
	room := g.to.Len / (row * int64(e.units)) // rows
	e.rows = rows
	if size := int64(g.j.Range); g.p.Paged() && room >= size {
		e.rows = int32(min(room/size, (int64(rows)+size-1)/size) * size)
	} else if g.p.Paged() {
		for e.rows = group; int64(e.rows)*2 <= room; {
			e.rows *= 2
		}
	}
	e.layers = int32(min(int64(g.p.Box.Layers.Len()), room/int64(e.rows)))
	return e, nil
}

// sum is the place's sums, [layer][unit][range].
func (g *gather) sum(ctx context.Context) ([]uint64, error) {
	rows := layout.Span{Lo: g.p.Depth - g.p.Rows, Hi: g.p.Depth}
	if g.p.Paged() {
		if g.j.Range&(g.j.Range-1) != 0 {
			return nil, fmt.Errorf("%w: ranges of %d tokens: want a power of two", transfer.ErrBounds, g.j.Range)
		}
		rows = g.p.Tokens
		g.blocks = make([]int32, (rows.Hi+group-1)/group)
	}
	g.out = make([]uint64, g.p.Count(g.j.Range))
	e, err := g.cutFor(rows.Len())
	if err != nil {
		return nil, err
	}
	box := g.p.Box
	for l := box.Layers.Lo; l < box.Layers.Hi; l += e.layers {
		for u := box.Units.Lo; u < box.Units.Hi; u += e.units {
			part := layout.Box{Layers: layout.Span{Lo: l, Hi: min(l+e.layers, box.Layers.Hi)}, Units: layout.Span{Lo: u, Hi: min(u+e.units, box.Units.Hi)}}
			for r := rows.Lo; r < rows.Hi; r += e.rows {
				if ctx.Err() != nil {
					return nil, canceled(ctx, 0)
				}
				if err := g.piece(ctx, part, layout.Span{Lo: r, Hi: min(r+e.rows, rows.Hi)}, e.rows); err != nil {
					return nil, err
				}
			}
		}
	}
	return g.out, nil
}

// piece gathers rows of a box and adds them to the place's sums.
func (g *gather) piece(ctx context.Context, box layout.Box, rows layout.Span, most int32) error {
	p := g.p
	unit := int64(p.Elems) * int64(p.Size)
	row := unit * int64(box.Units.Len())
	s := sums.Place{State: p.State, Box: box, Elems: p.Elems, Size: p.Size}
	own := sums.Job{Range: min(g.j.Range, most)}
	if p.Paged() {
		s.Tokens, s.Items, s.Depth = rows, (rows.Len()+group-1)/group, group
		for i := range s.Items {
			g.blocks[rows.Lo/group+i] = i
		}
		own.Blocks = g.blocks
	} else {
		s.Rows, s.Items, s.Depth = rows.Len(), 1, rows.Len()
	}
	item := int64(s.Depth) * row
	s.View = layout.View{Layer: int64(s.Items) * item, Item: item, Row: row, Unit: unit, Elem: int64(p.Size)}
	own.Places = []sums.Place{s}
	to := transfer.Buffers{g.to}
	if _, err := g.b.device.Copy(ctx, g.nests(&s, rows), g.in, to); err != nil {
		return err
	}
	made, err := g.a.Sum(ctx, &own, to)
	if err != nil {
		return err
	}
	g.put(made, &s, own.Range)
	return nil
}

// nests bring rows of s.Box to where s says.
func (g *gather) nests(s *sums.Place, rows layout.Span) []lower.Nest {
	p, v := g.p, &g.p.View
	n := lower.Nest{Src: v.Buffer, Run: int64(p.Size), From: layout.U8, To: layout.U8, Rank: 4}
	n.Dims = [lower.MaxDims]lower.Dim{
		{N: s.Box.Layers.Len(), SrcStride: v.Layer, DstStride: s.View.Layer},
		{SrcStride: v.Row, DstStride: s.View.Row},
		{N: s.Box.Units.Len(), SrcStride: v.Unit, DstStride: s.View.Unit},
		{N: p.Elems, SrcStride: v.Elem, DstStride: s.View.Elem},
	}
	off := v.Off + int64(s.Box.Layers.Lo-p.Box.Layers.Lo)*v.Layer + int64(s.Box.Units.Lo-p.Box.Units.Lo)*v.Unit
	g.ns = g.ns[:0]
	for at := rows.Lo; at < rows.Hi; {
		item, from, to := g.j.Slot, at, rows.Hi
		if p.Paged() {
			item, from = g.j.Blocks[at/p.Depth], at%p.Depth
			to = min(rows.Hi, at-from+p.Depth)
		}
		n.SrcOff, n.DstOff = off+int64(item)*v.Item+int64(from)*v.Row, int64(at-rows.Lo)*s.View.Row
		n.Dims[1].N = to - at
		g.ns = append(g.ns, n)
		at = to
	}
	return g.ns
}

// put adds a piece's sums, of ranges of a size, to the place's.
func (g *gather) put(made []uint64, s *sums.Place, size int32) {
	all, some := g.p.Ranges(g.j.Range), s.Ranges(size)
	for l := s.Box.Layers.Lo; l < s.Box.Layers.Hi; l++ {
		for u := s.Box.Units.Lo; u < s.Box.Units.Hi; u++ {
			at := (int64(l-g.p.Box.Layers.Lo)*int64(g.p.Box.Units.Len()) + int64(u-g.p.Box.Units.Lo)) * all
			for i := range some {
				to := at
				if s.Paged() {
					to += (int64(s.Tokens.Lo-g.p.Tokens.Lo) + i*int64(size)) / int64(g.j.Range)
				}
				g.out[to] += made[0]
				made = made[1:]
			}
		}
	}
}
