package pack

import (
	"fmt"

	"github.com/batonkv/baton/transfer/layout"
	"github.com/batonkv/baton/transfer/lower"
	"github.com/batonkv/baton/transfer/reshard"
)

// Arena is the memory that chunks lie in.
type Arena struct {
	Buffer uint32 // its number among the buffers of its side of a copy
	Chunks int32
	Chunk  int64 // bytes from one chunk to the next
	Head   int64 // bytes of a chunk before what is packed
}

// Own is a request's memory in the engine.
type Own struct {
	Tokens layout.Span // that move
	Blocks []int32     // from token 0
	Slot   int32       // -1: none
}

// Copies makes one end's copies of a packing. Not safe for concurrent use.
type Copies struct {
	p     *Packing
	arena Arena
	own   []layout.Shard
	out   bool              // from the engine's memory into chunks
	full  []*lower.Template // by panel: chunks of all its tokens
	last  short
}

// short is the newest template of a chunk of fewer tokens: the last ones of a request.
type short struct {
	part int
	rows int32
	t    *lower.Template
}

// Pack copies from a source rank's memory into chunks. The shards are all those of the
// rank.
func (p *Packing) Pack(own []layout.Shard, a Arena) *Copies {
	return &Copies{p: p, arena: a, own: own, out: true, full: make([]*lower.Template, len(p.panels))}
}

// Unpack copies from chunks into a destination rank's memory.
func (p *Packing) Unpack(own []layout.Shard, a Arena) *Copies {
	return &Copies{p: p, arena: a, own: own, full: make([]*lower.Template, len(p.panels))}
}

// Copy is the copy of chunk seq of what o moves into or from a chunk of the arena. The
// job's tables are o's and of this call.
func (c *Copies) Copy(o Own, seq, chunk int32) (*lower.Template, lower.Job, error) {
	t, err := c.p.part(o.Tokens, seq)
	if err != nil {
		return nil, lower.Job{}, err
	}
	if chunk < 0 || chunk >= c.arena.Chunks {
		return nil, lower.Job{}, fmt.Errorf("%w: chunk %d of an arena of %d", lower.ErrJob, chunk, c.arena.Chunks)
	}
	tm, err := c.template(t)
	if err != nil {
		return nil, lower.Job{}, err
	}
	j := lower.Job{Tokens: t.tokens, SrcBlocks: o.Blocks, SrcSlot: o.Slot, DstBlocks: []int32{chunk}, DstSlot: chunk, DstFirst: t.tokens.Lo}
	if !c.out {
		j.SrcBlocks, j.DstBlocks, j.SrcSlot, j.DstSlot = j.DstBlocks, j.SrcBlocks, j.DstSlot, j.SrcSlot
		j.SrcFirst, j.DstFirst = j.DstFirst, 0
	}
	return tm, j, nil
}

// Templates are those of full chunks: what a copier is asked about before the first byte.
func (c *Copies) Templates() ([]*lower.Template, error) {
	for i := range c.p.panels {
		if _, err := c.template(part{i, layout.Span{Hi: c.p.panels[i].tokens}}); err != nil {
			return nil, err
		}
	}
	return c.full, nil
}

func (c *Copies) template(t part) (*lower.Template, error) {
	n := &c.p.panels[t.panel]
	full := t.rows() == n.tokens
	switch {
	case full && c.full[t.panel] != nil:
		return c.full[t.panel], nil
	case c.last.t != nil && c.last.part == t.panel && c.last.rows == t.rows():
		return c.last.t, nil
	}
	chunks := c.p.shards(t, c.arena)
	src, dst := c.own, chunks
	if !c.out {
		own, err := within(c.own, n.moves)
		if err != nil {
			return nil, err
		}
		src, dst = chunks, own
	}
	plan, err := reshard.New(c.p.model, src, dst)
	if err != nil {
		return nil, err
	}
	tm, err := lower.New(plan, 0)
	if err != nil {
		return nil, err
	}
	if full {
		c.full[t.panel] = tm
	} else {
		c.last = short{t.panel, t.rows(), tm}
	}
	return tm, nil
}

// shards are a chunk's: its moves one behind the other, each [layers][rows][units][elems].
func (p *Packing) shards(t part, a Arena) []layout.Shard {
	n := &p.panels[t.panel]
	var out []layout.Shard
	at := a.Head
	for _, v := range n.moves {
		rows := v.Rows
		if n.paged {
			rows = t.rows()
		}
		s := layout.Shard{State: v.State, Box: v.Box, Rows: rows, Items: a.Chunks, DType: v.DType}
		elem := v.DType.Size()
		unit := elem * int64(p.model.States[v.State].Elems)
		row := unit * int64(v.Box.Units.Len())
		layer := row * int64(rows)
		s.View = layout.View{Buffer: a.Buffer, Off: at, Layer: layer, Item: a.Chunk, Row: row, Unit: unit, Elem: elem}
		out = append(out, s)
		at += layer * int64(v.Box.Layers.Len())
	}
	return out
}

// within are the parts of a rank's shards that moves fill.
func within(own []layout.Shard, moves []Move) ([]layout.Shard, error) {
	var out []layout.Shard
	for _, v := range moves {
		area := int64(0)
		for _, s := range own {
			box := s.Box.Intersect(v.Box)
			if s.State != v.State || box.Empty() {
				continue
			}
			s.View.Off += int64(box.Layers.Lo-s.Box.Layers.Lo)*s.View.Layer + int64(box.Units.Lo-s.Box.Units.Lo)*s.View.Unit
			s.Box = box
			out = append(out, s)
			area += box.Area()
		}
		if area != v.Box.Area() {
			return nil, fmt.Errorf("%w: %v of state %d is not this rank's", ErrMoves, v.Box, v.State)
		}
	}
	return out, nil
}
