package sums

import "github.com/batonkv/baton/transfer/layout"

// Job is what a mover adds up of the memory that it maps. The answer is the sums of its
// places in order, each [layer][unit][range].
type Job struct {
	Range  int32   // tokens of one sum
	Blocks []int32 // block table from token 0
	Slot   int32
	Places []Place
}

// Place is where one Part lies in the buffers of a rank.
type Place struct {
	State  int32
	Box    layout.Box
	Tokens layout.Span // of a paged state
	Rows   int32       // newest columns of a per-request state; 0: paged
	Elems  int32       // of one unit in one row
	Size   int32       // bytes of an element
	Items  int32       // that the buffer holds
	Depth  int32       // rows of an item
	View   layout.View // of the shard's first layer and unit that lie in Box
}

// At is where p lies in the memory of a shard that holds all of it.
func At(m layout.Model, sh *layout.Shard, p *Part) Place {
	v := sh.View
	v.Off += int64(p.Box.Layers.Lo-sh.Box.Layers.Lo)*v.Layer + int64(p.Box.Units.Lo-sh.Box.Units.Lo)*v.Unit
	return Place{State: p.State, Box: p.Box, Tokens: p.Tokens, Rows: p.Rows, Elems: m.States[p.State].Elems,
		Size: int32(sh.DType.Size()), Items: sh.Items, Depth: sh.Rows, View: v}
}

// Paged reports whether p is of a paged state.
func (p *Place) Paged() bool { return p.Rows == 0 }

// Ranges is how many sums each layer and unit of p has.
func (p *Place) Ranges(size int32) int64 {
	q := Part{Tokens: p.Tokens, Rows: p.Rows}
	return q.ranges(size)
}

// Count is how many sums p has.
func (p *Place) Count(size int32) int64 { return p.Box.Area() * p.Ranges(size) }

// Here places a rank's own parts in its shards.
func (s *Sums) Here(m layout.Model, shards []layout.Shard) (out []Place) {
	for i := range s.Parts {
		p := &s.Parts[i]
		for k := range shards {
			if sh := &shards[k]; sh.State == p.State && sh.Box.Intersect(p.Box) == p.Box {
				out = append(out, At(m, sh, p))
				break
			}
		}
	}
	return out
}

// There places what is to be compared in the destination's shards.
func (x *Match) There(m layout.Model) (out []Place) {
	for i := range x.Want {
		out = append(out, At(m, x.To[i], &x.Want[i]))
	}
	return out
}
