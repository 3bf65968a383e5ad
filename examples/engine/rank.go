package engine

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/batonkv/baton/examples/engine/life"
	"github.com/batonkv/baton/examples/engine/memfd"
	"github.com/batonkv/baton/examples/engine/model"
	"github.com/batonkv/baton/examples/engine/paged"
	"github.com/batonkv/baton/examples/engine/tp"
	"github.com/batonkv/baton/sidecar/engine/blockhash"
	"github.com/batonkv/baton/sidecar/handoff"
	"github.com/batonkv/baton/transfer/layout"
)

// request is what a rank knows of one request: mirrored on all ranks.
type request struct {
	id     reqID
	hold   paged.ID
	table  paged.Table
	prompt []int32 // empty for an import, whose prompt only rank 0 may know
	hashes []uint64
	pos    int32 // tokens whose state is held: where the next one goes
	last   int32 // the token before pos, -1: none
	trial  trial
	epoch  uint64 // of the weights at its first token
	// exports only: the label under which chunks leave, "" when they do not, and how many did.
	parts string
	said  uint32
	// imports only:
	label   string
	resume  beginning
	late    bool  // resume came with Admit
	bad     error // why it cannot be gone on from
	dropped bool
}

// Rank is one rank of an engine: its weights, its memory and its mirrored allocator.
// Everything but Submit and Role belongs to the goroutine in Run.
type Rank struct {
	cfg     Config
	model   *model.Model
	mem     *model.Memory
	bufs    []memfd.Buffer
	shards  []layout.Shard
	pool    *paged.Pool
	run     *model.Run
	group   *tp.Group
	session Session // nil: none

	requests map[reqID]*request
	imports  map[uint64]*request // by Reserve decision, until Admit or ReleaseQuarantine
	exports  map[string]*request
	growing  map[string]*request // whose chunks leave, by label
	givenUp  map[string]bool     // of exports, those that were never exported whole
	applied  uint64
	steps    uint64
	life     life.Life
	role     atomic.Value         // Role, of cfg, for callers
	shut     atomic.Value         // string: the name of the error of new requests, for callers
	released paged.Stats          // what came back in this step, in Free and SlotsFree
	frees    uint64               // how often something came back
	unpinned []string             // to report
	news     []handoff.BlockEvent // of the prefix cache, to tell
	away     string               // why no sidecar is attached: it comes back
	down     string               // why none will be any more

	sched *scheduler // rank 0 only
}

// New makes a rank's weights and memory. Close frees the memory.
func New(cfg Config) (*Rank, error) {
	cfg = cfg.withDefaults()
	if err := cfg.Check(); err != nil {
		return nil, err
	}
	cfg.Log = cfg.Log.With("rank", cfg.Rank)
	m, err := model.New(cfg.Model, cfg.Rank, cfg.Split())
	if err != nil {
		return nil, err
	}
	pool, err := paged.New(cfg.pool())
	if err != nil {
		return nil, err
	}
	places, err := cfg.Model.Shards(cfg.Rank, cfg.Split(), cfg.sizes())
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	bufs, mem, err := newMemory(cfg, m.Part())
	if err != nil {
		return nil, err
	}
	r := &Rank{cfg: cfg, model: m, mem: mem, bufs: bufs, shards: places.Shards, pool: pool, requests: map[reqID]*request{},
		imports: map[uint64]*request{}, exports: map[string]*request{},
		growing: map[string]*request{}, givenUp: map[string]bool{}}
	r.life = life.Life{Dir: cfg.Profiles, Forget: pool.Forget}
	r.role.Store(cmp.Or(cfg.Role, RoleBoth))
	if cfg.Rank == 0 {
		r.sched, pool.Evicted = newScheduler(r), r.evicted
	}
	return r, nil
}

// Close unmaps the rank's memory, after Run has returned. A mover that maps it keeps
// its own mapping.
func (r *Rank) Close() error {
	for _, b := range r.bufs {
		b.Close()
	}
	r.bufs = nil
	return r.life.Close()
}

// Run serves until ctx ends or a rank is lost. g is the group of the rank's launch, s
// its sidecar or nil; both stay the caller's to close. When ctx ends on rank 0 the
// other ranks are told and return nil; so do all once the group was told to stop and
// nothing runs any more. ErrSwitched asks for another Run.
func (r *Rank) Run(ctx context.Context, g *tp.Group, s Session) error {
	if s != nil && r.cfg.NoPrefixCache {
		return fmt.Errorf("%w: --prefix-cache=false beside a sidecar: both sides of a hand-off need the cache", ErrConfig)
	}
	if n := r.cfg.Ranks(); g.Rank() != r.cfg.Rank || g.Size() != n {
		return fmt.Errorf("%w: rank %d of %d in a group where it is %d of %d", ErrConfig, r.cfg.Rank, n, g.Rank(), g.Size())
	}
	r.group, r.session = g, s
	r.run = model.NewRun(r.model, r.mem, g)
	if r.sched != nil {
		return r.sched.serve(ctx)
	}
	defer r.closeLate(ctx)()
	if err := r.follow(); err != nil && ctx.Err() == nil {
		return err
	}
	return nil
}

// report ends a step. The digest is left out of steps that only compute.
func (r *Rank) report(st step) report {
	rep := report{Unpinned: r.unpinned, Away: r.away, Down: r.down}
	r.unpinned = nil
	if st.Through > 0 || st.Reset || len(st.Unpin)+len(st.End)+len(st.Export)+len(st.Start) > 0 {
		d := r.pool.Digest()
		rep.Digest = binary.LittleEndian.Uint64(d[:8])
	}
	return rep
}

// outcome is what a step did, in the order of its Start and Run; rank 0 reads it.
type outcome struct {
	starts []error // nil, ErrFull or ErrNever of package paged
	runs   []ran
}

// ran is one runOp's end. Logits are set, on rank 0, when the last token of the prompt, or
// a decoded one, was computed.
type ran struct {
	logits   [][]float32 // after each decoded token
	proposed []int32
	err      error
}

// apply does a step. An error ends the rank.
func (r *Rank) apply(st step) (outcome, error) {
	var out outcome
	if err := r.decisions(st.Through); err != nil {
		return out, err
	}
	for _, label := range st.Unpin {
		if err := r.freeExport(label); err != nil {
			return out, err
		}
	}
	for _, id := range st.End {
		if err := r.end(id); err != nil {
			return out, err
		}
	}
	if st.Reset {
		if err := r.reset(); err != nil {
			return out, err
		}
	}
	for _, o := range st.Export {
		if err := r.export(o); err != nil {
			return out, err
		}
	}
	var full error
	for _, o := range st.Start {
		if full != nil { // nobody overtakes a prompt that waits for memory
			out.starts = append(out.starts, full)
			continue
		}
		err := r.start(o)
		if errors.Is(err, paged.ErrFull) {
			full = err
		}
		if err != nil && !errors.Is(err, paged.ErrFull) && !errors.Is(err, paged.ErrNever) {
			return out, err
		}
		out.starts = append(out.starts, err)
	}
	for _, o := range st.Run {
		res, err := r.compute(o)
		if err != nil {
			return out, err
		}
		out.runs = append(out.runs, res)
	}
	if len(st.Run) == 0 {
		if err := r.dummy(); err != nil {
			return out, err
		}
	}
	r.logStep(st)
	if err := r.tellFreed(); err != nil {
		return out, err
	}
	return out, r.tellBlocks()
}

// start takes blocks and a slot for a prompt. A model without per-request state finds
// cached blocks, but computes the last token itself, whose logits it needs.
func (r *Rank) start(o startOp) error {
	if r.requests[o.ID] != nil {
		return fmt.Errorf("%w: request %d starts twice", ErrDiverged, o.ID)
	}
	hashes, err := blockhash.Hashes(o.Tokens, r.cfg.BlockTokens, r.salt())
	if err != nil {
		return err
	}
	n := int32(len(o.Tokens))
	if all := r.pool.BlocksFor(n + o.Room); all > r.cfg.Blocks {
		return fmt.Errorf("%w: prompt and answer want %d blocks, the pool has %d", paged.ErrNever, all, r.cfg.Blocks)
	}
	need := paged.Need{Tokens: n, Spare: o.Spare, Slot: r.hybrid()}
	if r.cfg.NoPrefixCache {
		hashes = nil
	}
	if !r.hybrid() && len(hashes) > 0 {
		need.Hashes = hashes[:(n-1)/r.cfg.BlockTokens]
	}
	t, err := r.pool.Reserve(need)
	if err != nil {
		return err
	}
	r.poison(t)
	if t.Slot >= 0 {
		r.mem.ClearSlot(t.Slot)
	}
	q := &request{id: o.ID, hold: t.ID, table: t, prompt: o.Tokens, hashes: hashes, pos: t.Cached, last: -1, epoch: r.cfg.WeightsEpoch}
	if q.pos > 0 {
		q.last = o.Tokens[q.pos-1]
	}
	r.requests[o.ID] = q
	return r.partly(q, o.Parts)
}

// salt is what the sidecar hashes imports with.
func (r *Rank) salt() blockhash.Salt {
	return blockhash.For(r.identity(), handoff.WeightsRefuse, handoff.Salt{})
}

func (r *Rank) hybrid() bool { return r.cfg.Model.SSMLayers() > 0 }

// poison fills what was handed out, and is not cached, with NaN.
func (r *Rank) poison(t paged.Table) {
	if !r.cfg.Poison {
		return
	}
	for _, b := range t.Blocks[t.Cached/r.cfg.BlockTokens:] {
		r.mem.PoisonBlock(b)
	}
	if t.Slot >= 0 {
		r.mem.PoisonSlot(t.Slot)
	}
}

// compute runs one request's tokens of this step.
func (r *Rank) compute(o runOp) (ran, error) {
	q := r.requests[o.ID]
	if q == nil {
		return ran{}, fmt.Errorf("%w: request %d is not held", ErrDiverged, o.ID)
	}
	if err := r.settle(q, o.Kept); err != nil {
		return ran{}, err
	}
	switch {
	case o.Propose > 0:
		return r.propose(q, o.Tokens[0], o.Propose)
	case o.Prompt > 0:
		return r.prompt(q, o.Prompt)
	}
	if err := r.room(q, int32(len(o.Tokens))); err != nil {
		return ran{err: err}, nil
	}
	logits, err := r.forward(q, o.Tokens, false)
	if errors.Is(err, model.ErrState) {
		return ran{err: err}, nil // seen on rank 0 only, which ends the request in the next step
	}
	return ran{logits: logits}, err
}

// prompt computes the next n tokens of a request's prompt.
func (r *Rank) prompt(q *request, n int32) (ran, error) {
	if int64(q.pos)+int64(n) > int64(len(q.prompt)) {
		return ran{}, fmt.Errorf("%w: request %d at %d of %d", ErrDiverged, q.id, q.pos, len(q.prompt))
	}
	computed := q.pos + n
	logits, err := r.forward(q, q.prompt[q.pos:computed], true)
	if err := r.exportPart(q, computed); err != nil { // a state that rank 0 alone sees is bad: it ends the request
		return ran{}, err
	}
	if errors.Is(err, model.ErrState) {
		return ran{err: err}, nil
	}
	if err != nil || int(q.pos) < len(q.prompt) {
		return ran{}, err
	}
	return ran{logits: logits}, r.live(q)
}

// room makes sure that a live request has blocks for its next n tokens.
func (r *Rank) room(q *request, n int32) error {
	had := len(q.table.Blocks)
	t, err := r.pool.Extend(q.hold, q.pos+n)
	if err != nil {
		return err
	}
	q.table = t
	if r.cfg.Poison {
		for _, b := range t.Blocks[had:] {
			r.mem.PoisonBlock(b)
		}
	}
	return nil
}

// end frees a request that is over.
func (r *Rank) end(id reqID) error {
	q := r.requests[id]
	if q == nil {
		return fmt.Errorf("%w: request %d ends but is not held", ErrDiverged, id)
	}
	delete(r.requests, id)
	if r.keeps(q) {
		return nil
	}
	t, err := r.pool.Free(q.hold)
	r.gaveBack(t)
	return err
}

// live puts a request's complete blocks into the prefix cache; blocks that the cache
// has already come back.
func (r *Rank) live(q *request) error {
	before := r.pool.Available()
	t, err := r.pool.Admit(q.hold, q.hashes)
	if err != nil {
		return err
	}
	q.table = t
	r.cached(q, q.prompt)
	if more := r.pool.Available() - before; more > 0 {
		r.frees++
		r.released.Free += more
	}
	return nil
}

func (r *Rank) gaveBack(t paged.Table) {
	r.frees++
	r.released.Free += int32(len(t.Blocks))
	if t.Slot >= 0 {
		r.released.SlotsFree++
	}
}
