// Package engine is the reference engine: a small, real inference engine whose ranks are
// processes, and whose requests may leave it, or enter it, between prefill and decode.
//
// Rank 0 schedules: it starts a step by telling the other ranks what to do, every rank
// does that in the same order, and a report of each ends the step. Everything that
// moves a block, a slot or a request's position is part of a step, so the ranks'
// allocators stay mirrored. Decisions of the sidecars are applied through the same
// number in the same step; nobody waits inside one.
//
// Where things are: plan.go says what a step computes, preempt.go who gives memory back,
// quiet.go what a reset waits for, roles.go which side of a hand-off is taken, decide.go
// what the sidecars decided, draft.go how several tokens are predicted, steplog.go what is
// told of a step. Package model is the arithmetic, paged the allocator, admission the
// captured shapes, sample the choice of tokens, life what the group was told, tp the
// collectives, front the caller's side.
package engine

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/batonkv/baton/examples/engine/admission"
	"github.com/batonkv/baton/examples/engine/front"
	"github.com/batonkv/baton/examples/engine/model"
	"github.com/batonkv/baton/examples/engine/paged"
	"github.com/batonkv/baton/sidecar/handoff"
)

var (
	// ErrConfig reports a setting that the engine cannot run with.
	ErrConfig = errors.New("engine: bad config")
	// ErrCapacity: the request does not fit, whatever is freed or at this moment; what can
	// never fit is front.ErrRequest too. Callers know it as handoff.ErrCapacity.
	ErrCapacity = error(&named{"engine: no capacity", handoff.ErrCapacity})
	// ErrSidecar: no sidecar, or none at the moment; only mode full goes on. Callers know it
	// as handoff.ErrPeer.
	ErrSidecar = error(&named{"engine: no sidecar", handoff.ErrPeer})
	// ErrDeadline: the request's deadline passed.
	ErrDeadline = errors.New("engine: deadline passed")
	// ErrLabel: another request has this label.
	ErrLabel = errors.New("engine: label in use")
	// ErrEnded: the engine stops.
	ErrEnded = errors.New("engine: ended")
	// ErrDiverged: the ranks do not agree; the group ends.
	ErrDiverged = errors.New("engine: ranks diverged")
)

// named is an error of the engine that callers elsewhere know by another.
type named struct {
	text string
	is   error
}

func (e *named) Error() string { return e.text }
func (e *named) Unwrap() error { return e.is }

// neverFits is err, by which a request does not fit the pool whatever is freed.
func neverFits(err error) error {
	return fmt.Errorf("%w: %w", ErrCapacity, &named{err.Error(), front.ErrRequest})
}

// Corrupt is damage that the engine does to an import when it is admitted, so that a
// check of tokens can show that it would notice. In role prefill rank 0 does it to what was
// exported, once its manifest is out, so that sums can show the same.
type Corrupt string

const (
	CorruptNone     Corrupt = ""
	CorruptKV       Corrupt = "kv"        // all imported K and V, or latents
	CorruptState    Corrupt = "state"     // recurrent state and convolution windows
	CorruptHeadSwap Corrupt = "head-swap" // two local KV heads exchanged
	CorruptOneBlock Corrupt = "one-block" // K and V, or latents, of the first block
	CorruptPosition Corrupt = "position"  // the resume position, one too low
)

// Config is one rank of an engine.
type Config struct {
	Model    model.Config
	Group    string
	Instance handoff.Instance // random, one per launch, equal on all ranks
	Rank     int
	Role     Role // "": both
	// NoPrefixCache computes every prompt whole. A hand-off needs the cache.
	NoPrefixCache bool
	// How the ranks divide the model, as in model.Split.
	TP, PP, EP, ExptTP int
	Layers             []int
	Blocks             int32
	Slots              int32 // ignored by models without per-request state
	BlockTokens        int32
	WeightsEpoch       uint64
	Types              model.Types // of the state in memory
	Poison             bool        // fill blocks and slots with NaN when they are handed out
	Corrupt            Corrupt
	Profiles           string // directory of profiles, empty: none are made
	MaxQueue           int    // requests that rank 0 takes at once, 0: 256
	StepTokens         int32  // most tokens that a step computes, 0: 512
	Chunk              int32  // most tokens of one prompt in a step, 0: model.MaxChunk
	// ExportParts lets chunks of a prompt that is to be exported leave as they are computed.
	ExportParts bool
	// Shapes are what was captured, in the order of preference: a prompt joins a step
	// only where one takes both. None: prompts join by tokens alone.
	Shapes   []admission.Shape
	Log      *slog.Logger  // of each step, at level debug, and of what is odd; nil: none
	Deadline time.Duration // of a request that brings none, 0: 5 minutes
	// AdoptHold is how long an admitted import waits for the request that adopts it,
	// before its memory is freed. 0: one minute.
	AdoptHold time.Duration
}

// maxQueue keeps a step's operations below what a rank takes.
const maxQueue = maxStepOps / 4

// Check reports the first setting that is wrong.
func (c Config) Check() error {
	part, err := c.Model.Cut(c.Rank, c.Split())
	if err != nil {
		return fmt.Errorf("%w: %w", ErrConfig, err)
	}
	if err := errors.Join(c.pool().Check(), c.Types.Check()); err != nil {
		return fmt.Errorf("%w: %w", ErrConfig, err)
	}
	if err := c.checkRole(); err != nil {
		return err
	}
	hybrid := c.Model.SSMLayers() > 0
	switch {
	case c.Group == "":
		return fmt.Errorf("%w: group has no name", ErrConfig)
	case c.Instance == 0:
		return fmt.Errorf("%w: instance 0: want a random number, equal on all ranks of one launch", ErrConfig)
	case hybrid && c.Slots < 1:
		return fmt.Errorf("%w: slots 0: model %s keeps per-request state", ErrConfig, c.Model.Name)
	case c.MaxQueue < 0 || c.MaxQueue > maxQueue:
		return fmt.Errorf("%w: %d requests at once: want at most %d", ErrConfig, c.MaxQueue, maxQueue)
	case c.Deadline < 0 || c.AdoptHold < 0 || c.StepTokens < 0:
		return fmt.Errorf("%w: negative bound", ErrConfig)
	case c.Chunk < 0 || c.Chunk > model.MaxChunk:
		return fmt.Errorf("%w: chunk of %d tokens: want 1 to %d", ErrConfig, c.Chunk, model.MaxChunk)
	case c.Corrupt == CorruptState && !hybrid:
		return fmt.Errorf("%w: corrupt state: model %s has none", ErrConfig, c.Model.Name)
	case c.Corrupt == CorruptHeadSwap && c.Model.AttentionLayers() == 0:
		return fmt.Errorf("%w: corrupt head-swap: model %s has no KV heads", ErrConfig, c.Model.Name)
	case c.Corrupt == CorruptHeadSwap && part.KV.Len() < 2:
		return fmt.Errorf("%w: corrupt head-swap: a rank of tp %d has one KV head, choose a smaller tp", ErrConfig, c.TP)
	}
	switch c.Corrupt {
	case CorruptNone, CorruptKV, CorruptState, CorruptHeadSwap, CorruptOneBlock, CorruptPosition:
		return nil
	}
	return fmt.Errorf("%w: corrupt %q: want kv, state, head-swap, one-block or position", ErrConfig, c.Corrupt)
}

// Split is how the ranks divide the model.
func (c Config) Split() model.Split {
	return model.Split{TP: c.TP, PP: c.PP, EP: c.EP, ExptTP: c.ExptTP, Layers: c.Layers}
}

// Ranks is the number of ranks.
func (c Config) Ranks() int { return c.Split().Ranks() }

// withDefaults fills the zero bounds in.
func (c Config) withDefaults() Config {
	if c.Role == "" {
		c.Role = RoleBoth
	}
	if c.MaxQueue == 0 {
		c.MaxQueue = 256
	}
	if c.StepTokens == 0 {
		c.StepTokens = 2 * model.MaxChunk
	}
	if c.Chunk == 0 {
		c.Chunk = model.MaxChunk
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Deadline == 0 {
		c.Deadline = 5 * time.Minute
	}
	if c.AdoptHold == 0 {
		c.AdoptHold = time.Minute
	}
	if c.Model.SSMLayers() == 0 {
		c.Slots = 0
	}
	return c
}

func (c Config) pool() paged.Config {
	return paged.Config{Blocks: c.Blocks, Slots: c.Slots, BlockTokens: c.BlockTokens}
}

func (c Config) sizes() model.Sizes {
	s := model.Sizes{Blocks: c.Blocks, Slots: c.Slots, BlockTokens: c.BlockTokens, Types: c.Types}
	if c.dummies() {
		s.Blocks++
		if c.Model.SSMLayers() > 0 {
			s.Slots++
		}
	}
	return s
}

// Identity is equal on all ranks of one launch: the ranks compare it when they meet.
func (c Config) Identity() string {
	return fmt.Sprintf("%s/%x %s %q %v blocks %dx%d slots %d %v poison %v corrupt %s role %s cache %v", c.Group, uint64(c.Instance),
		c.Model.Name, c.Model.Pattern, c.Split(), c.Blocks, c.BlockTokens, c.Slots, c.Types, c.Poison, c.Corrupt,
		c.Role, !c.NoPrefixCache)
}
