package model

import (
	"fmt"

	"github.com/batonkv/baton/transfer/layout"
	"github.com/batonkv/baton/transfer/layout/parallel"
)

// Part is what one rank of tp holds, equal on every layer. Units are its own; a KV head
// or a group may be on other ranks too, and a latent is on all of them.
type Part struct {
	Queries layout.Span // units of query heads
	KV      layout.Span // KV heads that they read
	Heads   layout.Span // units of SSM heads
	Groups  layout.Span // B/C groups that they read
	MLP     layout.Span // groups of MLP columns
}

// Cut gives rank its part of the model. tp has to divide every kind of unit that the
// model has. Of KV heads it is a divisor, or a multiple: then several ranks hold one.
func (c Config) Cut(rank, tp int) (Part, error) {
	if err := c.Check(); err != nil {
		return Part{}, err
	}
	if tp < 1 || rank < 0 || rank >= tp {
		return Part{}, fmt.Errorf("%w: rank %d of tp %d", ErrConfig, rank, tp)
	}
	for _, k := range []struct {
		name  string
		units int
		has   bool
	}{
		{"units of query heads", c.QueryUnits, c.AttentionLayers()+c.LatentLayers() > 0},
		{"units of SSM heads", c.SSMUnits, c.SSMLayers() > 0}, {"MLP groups", c.MLPGroups, true},
	} {
		if k.has && k.units%tp != 0 {
			return Part{}, fmt.Errorf("%w: tp %d does not divide %d %s: choose a divisor", ErrConfig, tp, k.units, k.name)
		}
	}
	if c.AttentionLayers() > 0 && c.KVHeads%tp != 0 && tp%c.KVHeads != 0 {
		return Part{}, fmt.Errorf("%w: tp %d neither divides %d KV heads nor is a multiple", ErrConfig, tp, c.KVHeads)
	}
	span := func(units int) layout.Span {
		n := units / tp
		return layout.Span{Lo: int32(rank * n), Hi: int32((rank + 1) * n)}
	}
	p := Part{Queries: span(c.QueryUnits), Heads: span(c.SSMUnits), MLP: span(c.MLPGroups)}
	p.KV, p.Groups = readBy(p.Queries, c.QueryUnits/c.KVHeads), readBy(p.Heads, c.SSMUnits/c.Groups)
	return p, nil
}

// readBy is what units read of which each serves per.
func readBy(units layout.Span, per int) layout.Span {
	return layout.Span{Lo: units.Lo / int32(per), Hi: (units.Hi + int32(per) - 1) / int32(per)}
}

// sharesOf are the shares of one KV head or group, of which units has some.
func sharesOf(whole int32, units layout.Span, per int) layout.Span {
	lo := whole * int32(per)
	return layout.Span{Lo: max(units.Lo-lo, 0), Hi: min(units.Hi-lo, int32(per))}
}

// Desc is the model's state for the builders of shards: layers of each kind of state
// count on their own.
func (c Config) Desc() parallel.Desc {
	var d parallel.Desc
	if n := c.AttentionLayers(); n > 0 {
		d.Attention = &parallel.Attention{Layers: int32(n), Heads: int32(c.KVHeads), Dim: int32(c.HeadDim)}
	}
	if n := c.LatentLayers(); n > 0 {
		d.Latent = &parallel.Latent{Layers: int32(n), Dim: int32(c.latentRow())}
	}
	if n := c.SSMLayers(); n > 0 {
		d.Mamba = &parallel.Mamba{Layers: int32(n), Heads: int32(c.SSMHeads), HeadDim: int32(c.SSMHeadDim),
			StateDim: int32(c.StateDim), Groups: int32(c.Groups), Window: int32(c.Window)}
	}
	return d
}

// Shards says where the states of one rank of tp lie in the buffers of a Memory, each
// left out when the model has none of it.
func (c Config) Shards(rank, tp int, s Sizes) (parallel.RankMemory, error) {
	if _, err := c.Cut(rank, tp); err != nil {
		return parallel.RankMemory{}, err
	}
	return c.Desc().Rank(parallel.Cut{TP: int32(tp)}, s.Geometry(), layout.Rank(rank))
}

// Geometry is how memory of these sizes nests.
func (s Sizes) Geometry() parallel.Memory {
	t := s.Types.WithDefaults()
	return parallel.Memory{Order: parallel.Planes, Blocks: s.Blocks, BlockTokens: s.BlockTokens, KV: t.KV,
		Slots: s.Slots, Conv: t.Conv, SSM: t.SSM}
}
