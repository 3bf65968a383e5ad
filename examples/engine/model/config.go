// Package model is the arithmetic of the reference engine: a small hybrid language
// model (grouped-query attention, Mamba2 mixers, MLPs) with seeded weights, of which a
// rank holds and computes only its own units.
//
// Equality across layouts is exact. A unit (a KV head with its query heads, an SSM
// group with its heads, a group of MLP columns) makes its own weights from the seed,
// computes alone, and gives one partial sum; the partial sums of all units are added
// in one fixed order, whoever holds them. So one rank or four give equal bits. The
// package knows neither processes nor sockets.
package model

import (
	"errors"
	"fmt"

	"github.com/batonkv/baton/transfer/layout"
	"github.com/batonkv/baton/transfer/layout/parallel"
)

// ErrConfig reports a model, a cut or a memory that cannot be.
var ErrConfig = errors.New("model: bad config")

// Tokens of the byte-level vocabulary.
const (
	BOS   int32 = 256
	EOS   int32 = 257
	Vocab int32 = 258
)

// Config is a model. Sizes are small, counts are per layer.
type Config struct {
	Name    string
	Pattern string // one mixer per layer: '*' attention, 'M' Mamba2; an MLP follows each
	Hidden  int

	QueryHeads, KVHeads, HeadDim int

	SSMHeads, SSMHeadDim, Groups, StateDim, Window int

	MLPGroups, MLPColumns int // columns per group
	Seed                  uint64
}

// Hybrid is the model of two Mamba2 and two attention layers.
func Hybrid(seed uint64) Config { return sized("hybrid", "M*M*", seed) }

// Attention is the model of four attention layers: no per-request state.
func Attention(seed uint64) Config { return sized("attention", "****", seed) }

// ByName is the model of a command line.
func ByName(name string, seed uint64) (Config, error) {
	switch name {
	case "hybrid":
		return Hybrid(seed), nil
	case "attention":
		return Attention(seed), nil
	}
	return Config{}, fmt.Errorf("%w: model %q: want hybrid or attention", ErrConfig, name)
}

func sized(name, pattern string, seed uint64) Config {
	return Config{Name: fmt.Sprintf("baton-tiny-%s-%d", name, seed), Pattern: pattern, Hidden: 64,
		QueryHeads: 8, KVHeads: 4, HeadDim: 16,
		SSMHeads: 8, SSMHeadDim: 16, Groups: 4, StateDim: 16, Window: 4,
		MLPGroups: 4, MLPColumns: 64, Seed: seed}
}

// Check reports sizes that the arithmetic cannot take.
func (c Config) Check() error {
	switch {
	case len(c.Pattern) < 1 || len(c.Pattern) > 256:
		return fmt.Errorf("%w: pattern of %d layers: want 1 to 256", ErrConfig, len(c.Pattern))
	case c.Hidden < 1 || c.Hidden > 1<<13 || c.MLPGroups < 1 || c.MLPColumns < 1 || c.MLPColumns > 1<<15:
		return fmt.Errorf("%w: hidden %d, %d MLP groups of %d columns", ErrConfig, c.Hidden, c.MLPGroups, c.MLPColumns)
	case c.KVHeads < 1 || c.QueryHeads%c.KVHeads != 0 || c.QueryHeads < 1 || c.HeadDim < 2 || c.HeadDim%2 != 0:
		return fmt.Errorf("%w: %d query heads over %d KV heads of %d", ErrConfig, c.QueryHeads, c.KVHeads, c.HeadDim)
	case c.Groups < 1 || c.SSMHeads < 1 || c.SSMHeads%c.Groups != 0 || c.SSMHeadDim < 1 || c.StateDim < 1 || c.Window < 2:
		return fmt.Errorf("%w: %d SSM heads over %d groups, window %d", ErrConfig, c.SSMHeads, c.Groups, c.Window)
	}
	for _, m := range c.Pattern {
		if m != '*' && m != 'M' {
			return fmt.Errorf("%w: mixer %q in pattern %q: want * or M", ErrConfig, m, c.Pattern)
		}
	}
	return nil
}

// AttentionLayers and SSMLayers count the layers of each kind.
func (c Config) AttentionLayers() int { return c.count('*') }

// SSMLayers counts the Mamba2 layers; 0 means that there is no per-request state.
func (c Config) SSMLayers() int { return c.count('M') }

func (c Config) count(kind rune) (n int) {
	for _, m := range c.Pattern {
		if m == kind {
			n++
		}
	}
	return n
}

// Part is what one rank of tp holds: spans of units, equal on every layer.
type Part struct {
	KV, Groups, MLP layout.Span // KV heads, SSM groups, MLP column groups
}

// Cut gives rank its part of the model; tp has to divide every kind of unit.
func (c Config) Cut(rank, tp int) (Part, error) {
	if err := c.Check(); err != nil {
		return Part{}, err
	}
	if tp < 1 || rank < 0 || rank >= tp {
		return Part{}, fmt.Errorf("%w: rank %d of tp %d", ErrConfig, rank, tp)
	}
	kinds := []struct {
		name  string
		units int
	}{{"KV heads", c.KVHeads}, {"MLP groups", c.MLPGroups}, {"SSM groups", c.Groups}}
	if c.SSMLayers() == 0 {
		kinds = kinds[:2]
	}
	for _, k := range kinds {
		if k.units%tp != 0 {
			return Part{}, fmt.Errorf("%w: tp %d does not divide %d %s: choose a divisor", ErrConfig, tp, k.units, k.name)
		}
	}
	span := func(units int) layout.Span {
		n := units / tp
		return layout.Span{Lo: int32(rank * n), Hi: int32((rank + 1) * n)}
	}
	return Part{KV: span(c.KVHeads), Groups: span(c.Groups), MLP: span(c.MLPGroups)}, nil
}

// headsPerGroup is the SSM heads that share one B and one C.
func (c Config) headsPerGroup() int { return c.SSMHeads / c.Groups }

// Desc is the model's state for the builders of shards: attention layers and SSM layers
// count on their own.
func (c Config) Desc() parallel.Desc {
	var d parallel.Desc
	if n := c.AttentionLayers(); n > 0 {
		d.Attention = &parallel.Attention{Layers: int32(n), Heads: int32(c.KVHeads), Dim: int32(c.HeadDim)}
	}
	if n := c.SSMLayers(); n > 0 {
		d.Mamba = &parallel.Mamba{Layers: int32(n), Heads: int32(c.SSMHeads), HeadDim: int32(c.SSMHeadDim),
			StateDim: int32(c.StateDim), Groups: int32(c.Groups), Window: int32(c.Window)}
	}
	return d
}

// Shards says where the states of one rank of tp lie in the buffers of a Memory: KV,
// convolution windows, recurrent state, each left out when the model has none.
func (c Config) Shards(rank, tp int, s Sizes) (parallel.RankMemory, error) {
	if _, err := c.Cut(rank, tp); err != nil {
		return parallel.RankMemory{}, err
	}
	conv := layout.F32
	if s.ConvBF16 {
		conv = layout.BF16
	}
	return c.Desc().Rank(parallel.Cut{TP: int32(tp)}, parallel.Memory{Order: parallel.Planes, Blocks: s.Blocks,
		BlockTokens: s.BlockTokens, KV: layout.BF16, Slots: s.Slots, Conv: conv, SSM: layout.F32}, layout.Rank(rank))
}
