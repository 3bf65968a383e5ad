package engine

import (
	"github.com/batonkv/baton/examples/engine/model"
	"github.com/batonkv/baton/sidecar/handoff"
	"github.com/batonkv/baton/transfer/layout"
)

// Attach is what this rank states to its sidecar. Files are the descriptors of its
// buffers, in order.
func (r *Rank) Attach() handoff.Attach {
	c := r.cfg
	a := handoff.Attach{Group: c.Group, Instance: c.Instance, Rank: layout.Rank(c.Rank), Ranks: int32(c.Ranks()),
		Model:     r.identity(),
		Shards:    r.shards,
		Capacity:  handoff.Capacity{Blocks: c.Blocks, Slots: c.Slots, BlockTokens: c.BlockTokens},
		Scheduler: handoff.SchedulerRank, OnDown: handoff.OnDownFail, Weights: handoff.WeightsRefuse, Parts: true, TellsBlocks: c.Rank == 0}
	for i, b := range r.bufs {
		a.Buffers = append(a.Buffers, handoff.BufferDecl{ID: uint32(i), Len: int64(len(b.Mem))})
	}
	return a
}

// identity is the model with the weights that this rank runs.
func (r *Rank) identity() handoff.ModelIdentity {
	return handoff.ModelIdentity{Name: r.cfg.Model.Name, WeightsEpoch: r.cfg.WeightsEpoch, Layout: r.cfg.Model.Desc().Model()}
}

// Files are the descriptors of the rank's buffers; the rank owns them.
func (r *Rank) Files() []int {
	var fds []int
	for _, b := range r.bufs {
		fds = append(fds, b.FD)
	}
	return fds
}

// Bytes is the size of the rank's shard of the paged cache and of its per-request state.
func (r *Rank) Bytes() (kv, state int64) {
	b := r.cfg.Model.Bytes(r.model.Part(), r.cfg.sizes())
	return b[model.BufferKV] + b[model.BufferLatent], b[model.BufferConv] + b[model.BufferSSM]
}
