package engine

import (
	"github.com/batonkv/baton/examples/engine/model"
	"github.com/batonkv/baton/sidecar/handoff"
	"github.com/batonkv/baton/transfer/layout"
)

// shards says where each state of a rank lies in its buffers.
func shards(cfg Config, part model.Part) []layout.Shard {
	m, rank := cfg.Model, layout.Rank(cfg.Rank)
	var out []layout.Shard
	var buf uint32
	if m.AttentionLayers() > 0 {
		out = kvShards(cfg, part, rank)
		buf++
	}
	if m.SSMLayers() > 0 {
		out = append(out, stateShards(cfg, part, rank, int32(len(out)), buf)...)
	}
	return out
}

// kvShards is [2, L, B, T, H, d] bf16.
func kvShards(cfg Config, part model.Part, rank layout.Rank) []layout.Shard {
	m := cfg.Model
	unit := int64(m.HeadDim) * 2
	row := unit * int64(part.KV.Len())
	item := row * int64(cfg.BlockTokens)
	lay := item * int64(cfg.Blocks)
	plane := lay * int64(m.AttentionLayers())
	k := layout.Shard{Rank: rank, Rows: cfg.BlockTokens, Items: cfg.Blocks, DType: layout.BF16,
		Box:  layout.Box{Layers: layout.Span{Hi: int32(m.AttentionLayers())}, Units: part.KV},
		View: layout.View{Layer: lay, Item: item, Row: row, Unit: unit, Elem: 2}}
	v := k
	v.State, v.View.Off = 1, plane
	return []layout.Shard{k, v}
}

// stateShards is [Lm, S, C, k] with local bands x|B|C, and behind it [Lm, S, h, hd, ds]
// fp32. A row of a convolution is one column of its window.
func stateShards(cfg Config, part model.Part, rank layout.Rank, first int32, buf uint32) []layout.Shard {
	m := cfg.Model
	layers := layout.Span{Hi: int32(m.SSMLayers())}
	per := int32(m.SSMHeads / m.Groups)
	heads := layout.Span{Lo: part.Groups.Lo * per, Hi: part.Groups.Hi * per}
	dt := layout.F32
	if cfg.ConvBF16 {
		dt = layout.BF16
	}
	k, el := int64(m.Window), dt.Size()
	xs, bs := int64(heads.Len())*int64(m.SSMHeadDim), int64(part.Groups.Len())*int64(m.StateDim)
	channels := xs + 2*bs
	band := func(i int32, units layout.Span, elems int, from int64) layout.Shard {
		return layout.Shard{State: first + i, Rank: rank, Rows: int32(m.Window), Items: cfg.Slots, DType: dt,
			Box: layout.Box{Layers: layers, Units: units},
			View: layout.View{Buffer: buf, Off: from * k * el, Layer: int64(cfg.Slots) * channels * k * el,
				Item: channels * k * el, Row: el, Unit: int64(elems) * k * el, Elem: k * el}}
	}
	_, conv, _ := m.Bytes(part, cfg.sizes())
	unit := int64(m.SSMHeadDim) * int64(m.StateDim) * 4
	item := unit * int64(heads.Len())
	return []layout.Shard{
		band(0, heads, m.SSMHeadDim, 0),
		band(1, part.Groups, m.StateDim, xs),
		band(2, part.Groups, m.StateDim, xs+bs),
		{State: first + 3, Rank: rank, Rows: 1, Items: cfg.Slots, DType: layout.F32,
			Box: layout.Box{Layers: layers, Units: heads},
			View: layout.View{Buffer: buf, Off: conv, Layer: item * int64(cfg.Slots), Item: item,
				Row: unit, Unit: unit, Elem: 4}},
	}
}

// Attach is what this rank states to its sidecar. Files are the descriptors of its
// buffers, in order.
func (r *Rank) Attach() handoff.Attach {
	c := r.cfg
	a := handoff.Attach{Group: c.Group, Instance: c.Instance, Rank: layout.Rank(c.Rank), Ranks: int32(c.TP),
		Model:     handoff.ModelIdentity{Name: c.Model.Name, WeightsEpoch: c.WeightsEpoch, Layout: c.Model.States()},
		Shards:    shards(c, r.model.Part()),
		Capacity:  handoff.Capacity{Blocks: c.Blocks, Slots: c.Slots, BlockTokens: c.BlockTokens},
		Scheduler: handoff.SchedulerRank, OnDown: handoff.OnDownFail}
	for i, b := range r.bufs {
		a.Buffers = append(a.Buffers, handoff.BufferDecl{ID: uint32(i), Len: int64(len(b.mem))})
	}
	return a
}

// Files are the descriptors of the rank's buffers; the rank owns them.
func (r *Rank) Files() []int {
	var fds []int
	for _, b := range r.bufs {
		fds = append(fds, b.fd)
	}
	return fds
}

// Bytes is the size of the rank's shard of the paged cache and of its per-request state.
func (r *Rank) Bytes() (kv, state int64) {
	kv, conv, ssm := r.cfg.Model.Bytes(r.model.Part(), r.cfg.sizes())
	return kv, conv + ssm
}
