package engine_test

import (
	"github.com/batonkv/baton/sidecar/handoff"
	"github.com/batonkv/baton/transfer/layout"
)

// copyInto fills what a rank reserved, cell by cell, from whoever holds the cell.
func (w *world) copyInto(dst *session, r handoff.Reserved, src *group, exports []handoff.Export) {
	states := dst.attach.Model.Layout.States
	for _, d := range dst.attach.Shards {
		st := states[d.State]
		for l := d.Box.Layers.Lo; l < d.Box.Layers.Hi; l++ {
			for u := d.Box.Units.Lo; u < d.Box.Units.Hi; u++ {
				rank, from := holder(src, d.State, l, u)
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
						n := d.DType.Size()
						w.bytes += int64(copy(dst.mem[d.View.Buffer][a+i*d.View.Elem:][:n], src.sessions[rank].mem[from.View.Buffer][b+i*from.View.Elem:][:n]))
					}
				}
			}
		}
	}
}

func holder(g *group, state, l, u int32) (int, layout.Shard) {
	for rank, s := range g.sessions {
		for _, sh := range s.attach.Shards {
			if sh.State == state && sh.Box.Layers.Lo <= l && l < sh.Box.Layers.Hi && sh.Box.Units.Lo <= u && u < sh.Box.Units.Hi {
				return rank, sh
			}
		}
	}
	panic("no holder")
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
