// Package load is an engine without a model, for driving hand-offs hard: its ranks keep
// a paged pool, slots and real shared memory, of the host or of a GPU, as an engine does, but a request's state is
// a pattern that follows from its tokens. Whatever is admitted is compared with that
// pattern, element by element, and again when the request ends; so is a source when it is
// freed. What a rank's memory holds is thereby never believed.
//
// Rank 0 takes commands from a driver (Client) and makes steps, which every rank does
// alike; their allocators stay mirrored, which digests prove at every step.
package load

import (
	"errors"
	"fmt"
	"slices"

	"github.com/batonkv/baton/examples/engine/paged"
	"github.com/batonkv/baton/sidecar/handoff"
	"github.com/batonkv/baton/transfer/layout"
	"github.com/batonkv/baton/transfer/layout/parallel"
)

var (
	// ErrConfig reports a setting or a command that the engine cannot take.
	ErrConfig = errors.New("load: bad config")
	// ErrWrong: memory does not hold what the request's tokens say.
	ErrWrong = errors.New("load: wrong state")
	// ErrDiverged: the ranks do not agree; the group ends.
	ErrDiverged = errors.New("load: ranks diverged")
	// ErrCommand reports a driver's line that cannot be acted on.
	ErrCommand = errors.New("load: bad command")
)

// Model names the states that requests have.
type Model string

const (
	Attention Model = "attention" // K and V
	Hybrid    Model = "hybrid"    // K and V, convolution windows, recurrent state
)

func (m Model) desc() parallel.Desc {
	d := parallel.Desc{Attention: &parallel.Attention{Layers: 2, Heads: 4, Dim: 8}}
	if m == Hybrid {
		d.Mamba = &parallel.Mamba{Layers: 2, Heads: 8, HeadDim: 4, StateDim: 4, Groups: 2, Window: 4}
	}
	return d
}

// Config is one rank.
type Config struct {
	Group       string
	Instance    handoff.Instance
	Rank, TP    int
	Model       Model
	Order       string // how the paged cache nests: planes, layer-planes, layer-blocks or block-major
	Blocks      int32
	Slots       int32 // ignored by the attention model
	BlockTokens int32
	Memory      Memory // empty: OnHost
	Profiles    string // directory; empty: none are made
	Damage      bool   // flip one bit of every import that is admitted: the check must notice
	ExportParts bool   // a prompt leaves while it is computed, by chunks or by their layers
}

var orders = map[string]parallel.Order{"planes": parallel.Planes, "layer-planes": parallel.LayerPlanes,
	"layer-blocks": parallel.LayerBlocks, "block-major": parallel.BlockMajor}

// Check reports the first setting that is wrong.
func (c Config) Check() error {
	if err := c.pool().Check(); err != nil {
		return fmt.Errorf("%w: %w", ErrConfig, err)
	}
	_, order := orders[c.Order]
	switch {
	case c.Group == "" || c.Instance == 0:
		return fmt.Errorf("%w: group %q, instance %d: want a name and a random number", ErrConfig, c.Group, c.Instance)
	case c.TP < 1 || c.Rank < 0 || c.Rank >= c.TP:
		return fmt.Errorf("%w: rank %d of tp %d", ErrConfig, c.Rank, c.TP)
	case c.Model != Attention && c.Model != Hybrid:
		return fmt.Errorf("%w: model %q: want attention or hybrid", ErrConfig, c.Model)
	case c.Memory != "" && !slices.Contains(Memories, c.Memory):
		return fmt.Errorf("%w: memory %q: want %s, %s or %s", ErrConfig, c.Memory, OnHost, OnGPU, OnSegments)
	case !order:
		return fmt.Errorf("%w: order %q: want planes, layer-planes, layer-blocks or block-major", ErrConfig, c.Order)
	case c.Model == Hybrid && c.Slots < 1:
		return fmt.Errorf("%w: slots 0: the hybrid model keeps per-request state", ErrConfig)
	}
	return nil
}

func (c Config) slots() int32 {
	if c.Model == Attention {
		return 0
	}
	return c.Slots
}

func (c Config) pool() paged.Config {
	return paged.Config{Blocks: c.Blocks, Slots: c.slots(), BlockTokens: c.BlockTokens}
}

func (c Config) memory() parallel.Memory {
	return parallel.Memory{Order: orders[c.Order], Blocks: c.Blocks, BlockTokens: c.BlockTokens, KV: layout.BF16,
		HeadsFirst: c.Order == "layer-blocks", ColumnsFirst: c.Order == "block-major", LayerStates: c.Order == "layer-planes",
		Slots: c.slots(), Conv: layout.F32, SSM: layout.F32}
}

// Identity is equal on all ranks of one launch.
func (c Config) Identity() string {
	c.Rank, c.Profiles = 0, ""
	return fmt.Sprintf("%+v", c)
}
