package engine_test

import (
	"github.com/batonkv/baton/sidecar/handoff"
	"github.com/batonkv/baton/transfer/layout"
	"github.com/batonkv/baton/transfer/layout/float"
)

// copyInto fills what a rank reserved, cell by cell, from one of those who hold the cell,
// and converts each element to the type that it is stored in here.
func (w *world) copyInto(dst *session, r handoff.Reserved, src *group, exports []handoff.Export) {
	states := dst.attach.Model.Layout.States
	for _, d := range dst.attach.Shards {
		st := states[d.State]
		for l := d.Box.Layers.Lo; l < d.Box.Layers.Hi; l++ {
			for u := d.Box.Units.Lo; u < d.Box.Units.Hi; u++ {
				rank, from := holder(src, d.State, l, u, dst.rank)
				e := exports[rank]
				rows := d.Rows
				if st.Paging == layout.PerBlock {
					rows = e.Tokens
				}
				for row := int32(0); row < rows; row++ {
					if st.Paging == layout.PerBlock && row < r.Cached {
						continue
					}
					a := cell(dst, d, st, r.Blocks, r.Slot, l, u, row)
					b := cell(src.sessions[rank], from, st, e.Blocks, e.Slot, l, u, row)
					for i := range int64(st.Elems) {
						to := dst.mem[d.View.Buffer][a+i*d.View.Elem:][:d.DType.Size()]
						is := src.sessions[rank].mem[from.View.Buffer][b+i*from.View.Elem:][:from.DType.Size()]
						w.bytes += int64(len(to))
						if w.into != nil {
							w.into[dst.rank] += int64(len(to))
						}
						if d.DType == from.DType {
							copy(to, is)
						} else {
							float.Store(d.DType, to, float.Load(from.DType, is))
						}
						if w.spoil != nil {
							w.spoil(st, l, to)
						}
					}
				}
			}
		}
	}
}

// holder is a rank that holds a cell: of several another one for each rank that asks.
func holder(g *group, state, l, u int32, asks int) (int, layout.Shard) {
	var ranks []int
	var shards []layout.Shard
	for rank, s := range g.sessions {
		for _, sh := range s.attach.Shards {
			if sh.State == state && sh.Box.Layers.Lo <= l && l < sh.Box.Layers.Hi && sh.Box.Units.Lo <= u && u < sh.Box.Units.Hi {
				ranks, shards = append(ranks, rank), append(shards, sh)
			}
		}
	}
	return ranks[asks%len(ranks)], shards[asks%len(ranks)]
}

// cell is the first byte of one unit in one row.
func cell(s *session, sh layout.Shard, st layout.State, blocks []int32, slot, l, u, row int32) int64 {
	item, in := slot, row
	if st.Paging == layout.PerBlock {
		item, in = blocks[row/sh.Rows], row%sh.Rows
	}
	v := sh.View
	return v.Off + int64(l-sh.Box.Layers.Lo)*v.Layer + int64(item)*v.Item + int64(in)*v.Row + int64(u-sh.Box.Units.Lo)*v.Unit
}
