// Package load drives hand-offs hard over real processes: made-up requests of many
// kinds, at once and from a seed, between groups of load engines. Each that is admitted
// is compared with what its tokens say, and at the end nothing may be held anywhere.
package load

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/batonkv/baton/cmd/dev"
	"github.com/batonkv/baton/discovery"
	engine "github.com/batonkv/baton/examples/load"
)

var (
	// ErrOptions is a fault of Options; its text names the flag.
	ErrOptions = errors.New("load")
	// ErrWrong: something was admitted, or is held, that is not what it must be.
	ErrWrong = errors.New("WRONG STATE")
	// ErrLeaked: blocks, slots or imports are held by nobody's request.
	ErrLeaked = errors.New("LEAKED")
	// ErrUnexpected: a request ended otherwise than its kind may.
	ErrUnexpected = errors.New("UNEXPECTED END")
)

// Options is one run.
type Options struct {
	Dev   dev.Options // Groups, Binary, Stderr, log; Engine is set here
	Model engine.Model
	// Where engines keep state; empty: on the host.
	Prefill, Decode engine.Memory
	Requests        int
	AtOnce          int // requests that run at once; 0: all, DefaultAtOnce at most
	Seed            uint64
	// KillSidecars kills -9 so many sidecars too, which are started again: requests under
	// way may end by any error then, but nothing may be wrong, nothing held, and later ones go.
	KillSidecars int
	KillMovers   int           // kill -9 so many movers, one by one, while requests run
	Blocks       int32         // of each prefill engine; decode has half of its tokens and slots. 0: DefaultBlocks
	Slots        int32         // 0: DefaultSlots
	Deadline     time.Duration // of one request; 0: a minute, or 20 s where sidecars are killed
	Parts        bool          // prompts leave while they are computed
	Damage       bool          // flip a bit of what decode admits: the run must fail
}

// DefaultBlocks and DefaultSlots are too few for all requests at once.
const (
	DefaultBlocks = 384
	DefaultSlots  = 48
)

// maxImports is the sidecars' bound, low enough to be met: a full queue refuses.
const maxImports = 24

const maxRequests = 1 << 20

// DefaultAtOnce is how many requests a slow machine ends within the deadline of one.
const DefaultAtOnce = 1000

// MaxAtOnce keeps what requests ask for below the 4096 labels that a sidecar holds.
const MaxAtOnce = 2000

// The longest prompt fits into half of minBlocks, and what fits nowhere is longer than that
// half: 10 tokens for each block, which engine.MaxTokens bounds.
const (
	minBlocks, maxBlocks = 32, 1536
	minSlots, maxSlots   = 1, 4096
)

func (o Options) defaults() Options {
	if o.AtOnce == 0 {
		o.AtOnce = min(o.Requests, DefaultAtOnce)
	}
	if o.Blocks == 0 {
		o.Blocks = DefaultBlocks
	}
	if o.Slots == 0 {
		o.Slots = DefaultSlots
	}
	if o.Deadline == 0 {
		if o.Deadline = time.Minute; o.KillSidecars > 0 {
			o.Deadline = 20 * time.Second // what a kill took with it is waited for that long
		}
	}
	if o.Model == "" {
		o.Model = engine.Hybrid
	}
	return o
}

// Check refuses what cannot be run, before anything is started.
func (o Options) Check() error {
	has := func(role discovery.Role) bool {
		return slices.ContainsFunc(o.Dev.Groups, func(g dev.Group) bool { return g.Role == role })
	}
	o = o.defaults()
	switch {
	case !has(discovery.Prefill) || !has(discovery.Decode):
		return fmt.Errorf("%w: --inference-shards: want a prefill and a decode group, such as tp=2,role=prefill+tp=1,role=decode", ErrOptions)
	case slices.ContainsFunc(o.Dev.Groups, dev.Group.Typed):
		return fmt.Errorf("%w: --inference-shards: kv, state, conv and ssm: these engines compute no model, and keep bytes of one kind: leave them out", ErrOptions)
	case slices.ContainsFunc(o.Dev.Groups, func(g dev.Group) bool { return g.Size() != g.TP || g.Layers != nil }):
		return fmt.Errorf("%w: --inference-shards: pp, ep, expt_tp and layers: these engines compute no model: give tp alone", ErrOptions)
	case o.Requests < 1 || o.Requests > maxRequests:
		return fmt.Errorf("%w: --requests %d: want 1 to %d", ErrOptions, o.Requests, maxRequests)
	case o.AtOnce < 1 || o.AtOnce > MaxAtOnce:
		return fmt.Errorf("%w: --at-once %d: want 1 to %d, or 0 for all, but no more than %d", ErrOptions, o.AtOnce, MaxAtOnce, DefaultAtOnce)
	case o.Blocks < minBlocks || o.Blocks > maxBlocks:
		return fmt.Errorf("%w: --blocks %d: want %d to %d", ErrOptions, o.Blocks, minBlocks, maxBlocks)
	case o.Slots < minSlots || o.Slots > maxSlots:
		return fmt.Errorf("%w: --slots %d: want %d to %d", ErrOptions, o.Slots, minSlots, maxSlots)
	case o.KillMovers < 0 || o.KillSidecars < 0 || o.KillMovers+o.KillSidecars > o.Requests:
		return fmt.Errorf("%w: --kill-movers %d, --kill-sidecars %d: want 0 to the number of requests in all", ErrOptions, o.KillMovers, o.KillSidecars)
	case !slices.Contains(engine.Memories, cmp.Or(o.Prefill, engine.OnHost)) || !slices.Contains(engine.Memories, cmp.Or(o.Decode, engine.OnHost)):
		return fmt.Errorf("%w: --prefill-memory %q, --decode-memory %q: want one of %q", ErrOptions, o.Prefill, o.Decode, engine.Memories)
	case o.Model != engine.Attention && o.Model != engine.Hybrid:
		return fmt.Errorf("%w: --model %q: want attention or hybrid", ErrOptions, o.Model)
	}
	return nil
}
