package bench

import (
	"fmt"

	"github.com/batonkv/baton/transfer/layout"
)

// weightTensors is a model of n weight matrices, cut by columns over src ranks on
// one side and over dst ranks on the other: what a refit of weights asks of the
// planner.
func weightTensors(n, src, dst int32) (layout.Model, []layout.Shard, []layout.Shard) {
	const units, elems = 64, 256
	var m layout.Model
	for i := range n {
		m.States = append(m.States, layout.State{Name: fmt.Sprintf("layers.%d.w%d", i/8, i%8), Paging: layout.PerRequest,
			Layers: 1, Units: units, Elems: elems})
	}
	cut := func(parts int32) (out []layout.Shard) {
		for r := range parts {
			var off int64
			for s := range n {
				u := layout.Span{Lo: units * r / parts, Hi: units * (r + 1) / parts}
				size := int64(u.Len()) * elems * 2
				out = append(out, layout.Shard{State: s, Rank: layout.Rank(r), Box: layout.Box{Layers: layout.Span{Hi: 1}, Units: u},
					Rows: 1, Items: 1, DType: layout.BF16,
					View: layout.View{Off: off, Layer: size, Item: size, Row: size, Unit: elems * 2, Elem: 2}})
				off += size
			}
		}
		return out
	}
	return m, cut(src), cut(dst)
}
