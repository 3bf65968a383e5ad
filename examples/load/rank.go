package load

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/batonkv/baton/examples/engine/life"
	"github.com/batonkv/baton/examples/engine/paged"
	"github.com/batonkv/baton/examples/engine/tp"
	"github.com/batonkv/baton/sidecar/engine/blockhash"
	"github.com/batonkv/baton/sidecar/handoff"
	"github.com/batonkv/baton/transfer/layout"
)

// request is what a rank knows of one request: mirrored on all ranks.
type request struct {
	label  string
	prompt Prompt
	chain  []uint64 // of prompt and decoded tokens
	hold   paged.ID
	table  paged.Table
	pos    int32   // tokens whose state is held
	left   int32   // tokens to decode
	parts  uint32  // that left
	grows  *growth // while they do
	import_
}

// import_ is what only an import has.
type import_ struct {
	hashes   []uint64
	finished bool
	late     bool // its prompt comes with Admit
	dropped  bool
}

func (q *request) at() items { return items{q.table.Blocks, q.table.Slot} }

// Session is a rank's connection to its sidecar; *client.Client is one. No method waits.
type Session interface {
	Send(m handoff.FromEngine) error
	Poll(dst []handoff.ToEngine) []handoff.ToEngine
	Decisions(through uint64) []handoff.Decision
	Wake() <-chan struct{}
	Err() error
}

// Rank is one rank. Everything belongs to the goroutine in Run.
type Rank struct {
	cfg     Config
	state   *state
	pool    *paged.Pool
	group   *tp.Group
	session Session

	imports map[uint64]*request // by Reserve decision, until Admit or ReleaseQuarantine
	exports map[string]*request
	growing []*request // of exports, in order of their start
	decodes []*request // in order of Admit
	applied uint64
	life    life.Life
	epoch   uint64   // of the weights
	frees   uint64   // how often memory came back
	letGo   []string // labels whose pin this rank's sidecar gave up, to report
	wrong   []string // to report

	lead *lead // rank 0 only
}

// New makes a rank's memory. Close frees it.
func New(cfg Config) (*Rank, error) {
	if err := cfg.Check(); err != nil {
		return nil, err
	}
	pool, err := paged.New(cfg.pool())
	if err != nil {
		return nil, err
	}
	st, err := newState(cfg)
	if err != nil {
		return nil, err
	}
	r := &Rank{cfg: cfg, state: st, pool: pool, imports: map[uint64]*request{}, exports: map[string]*request{}}
	r.life = life.Life{Dir: cfg.Profiles, Forget: pool.Forget}
	if cfg.Rank == 0 {
		r.lead = newLead(r)
	}
	return r, nil
}

// Close unmaps the rank's memory, after Run has returned.
func (r *Rank) Close() error {
	r.state.close()
	return r.life.Close()
}

// Attach is what this rank states to its sidecar.
func (r *Rank) Attach() handoff.Attach {
	c := r.cfg
	a := handoff.Attach{Group: c.Group, Instance: c.Instance, Rank: layout.Rank(c.Rank), Ranks: int32(c.TP),
		Model:     r.identity(),
		Shards:    r.state.shards,
		Capacity:  handoff.Capacity{Blocks: c.Blocks, Slots: c.slots(), BlockTokens: c.BlockTokens},
		Parts:     true,
		Scheduler: handoff.SchedulerRank, OnDown: handoff.OnDownFail, Weights: handoff.WeightsRefuse}
	for _, b := range r.state.bufs {
		a.Buffers = append(a.Buffers, b.decl)
	}
	return a
}

// identity is the model with the weights that this rank runs.
func (r *Rank) identity() handoff.ModelIdentity {
	return handoff.ModelIdentity{Name: "baton-load-" + string(r.cfg.Model), WeightsEpoch: r.epoch, Layout: r.state.model}
}

// Files are the descriptors of the rank's buffers; the rank owns them.
func (r *Rank) Files() (fds []int) {
	for _, b := range r.state.bufs {
		fds = append(fds, b.fds...)
	}
	return fds
}

// Run serves until ctx ends, rank 0 stops, or a rank or the sidecar is lost. nil: it was
// told to stop, and nothing ran any more.
func (r *Rank) Run(ctx context.Context, g *tp.Group, s Session) error {
	if g.Rank() != r.cfg.Rank || g.Size() != r.cfg.TP {
		return fmt.Errorf("%w: rank %d of %d in a group where it is %d of %d", ErrConfig, r.cfg.Rank, r.cfg.TP, g.Rank(), g.Size())
	}
	r.group, r.session = g, s
	if r.lead != nil {
		return r.lead.serve(ctx)
	}
	defer context.AfterFunc(ctx, func() { _ = g.Close() })()
	if err := r.follow(); err != nil && ctx.Err() == nil {
		return err
	}
	return nil
}

// follow does the steps that rank 0 sends.
func (r *Rank) follow() error {
	for {
		b, err := r.group.Receive()
		if err != nil {
			return err
		}
		st, err := decodeStep(b)
		if err != nil || st.Stop {
			return err
		}
		for _, m := range r.session.Poll(nil) {
			r.hear(m)
		}
		if _, err := r.apply(st); err != nil {
			return err
		}
		out, err := json.Marshal(r.report())
		if err != nil {
			return err
		}
		if err := r.group.Report(out); err != nil {
			return err
		}
	}
}

// hear takes what concerns every rank: its sidecar holds no pin of a label any more.
func (r *Rank) hear(m handoff.ToEngine) {
	label := ""
	switch m := m.(type) {
	case handoff.UnpinExport:
		label = m.Label
	case handoff.Failed:
		if !errors.Is(m.Err, handoff.ErrGone) { // else Free is on its way, and the label may be in use anew
			label = m.Label
		}
	}
	if r.exports[label] != nil {
		r.letGo = append(r.letGo, label)
	}
}

func (r *Rank) report() report {
	d := r.pool.Digest()
	rep := report{LetGo: r.letGo, Wrong: r.wrong, Digest: binary.LittleEndian.Uint64(d[:8])}
	if s := r.pool.Stats(); s.Free+s.Idle+s.Held != r.cfg.Blocks || s.SlotsFree+s.SlotHeld != r.cfg.slots() {
		rep.Wrong = append(rep.Wrong, fmt.Sprintf("rank %d: the pool of %d blocks and %d slots counts %+v", r.cfg.Rank, r.cfg.Blocks, r.cfg.slots(), s))
	}
	r.letGo, r.wrong = nil, nil
	return rep
}

// compare notes what memory does not hold as it must.
func (r *Rank) compare(when string, q *request, at items, tokens int32) {
	if err := r.state.check(at, q.chain[:tokens+1], layout.Span{Hi: tokens}); err != nil {
		r.wrong = append(r.wrong, fmt.Sprintf("rank %d %s %q (%+v): %v", r.cfg.Rank, when, q.label, q.prompt, err))
	}
}

// outcome is what rank 0 tells of a step.
type outcome struct {
	events []Event
	failed []startOp // that found no memory: the first of them and all behind it
}

// apply does a step, alike on every rank. The leader hears, through rank 0, that memory
// came back: a waiting import may fit.
func (r *Rank) apply(st step) (out outcome, err error) {
	before := r.frees
	if err := r.do(st, &out); err != nil {
		return out, err
	}
	if r.lead != nil && r.frees > before {
		err = r.send(handoff.Freed{Blocks: 1, Slots: 1})
	}
	return out, err
}

func (r *Rank) do(st step, out *outcome) error {
	if err := r.decisions(st.Through, out); err != nil {
		return err
	}
	for _, label := range st.Unpin {
		if err := r.freeExport(label, out); err != nil {
			return err
		}
	}
	for i, o := range st.Start {
		err := r.prefill(o)
		if errors.Is(err, paged.ErrFull) {
			out.failed = st.Start[i:]
			break
		}
		if errors.Is(err, paged.ErrNever) {
			out.events = append(out.events, failed(o.Label, err, false))
			continue
		}
		if err != nil {
			return err
		}
	}
	if st.Compute {
		if err := r.compute(); err != nil {
			return err
		}
	}
	if st.Advance {
		return r.advance(out)
	}
	return nil
}

// prefill takes memory, writes the state of a prompt and exports it, or begins to.
func (r *Rank) prefill(o startOp) error {
	if r.exports[o.Label] != nil {
		return fmt.Errorf("%w: %q is exported already", ErrDiverged, o.Label)
	}
	o.Prompt.Version = r.epoch
	hashes, err := blockhash.Hashes(o.Prompt.Tokens(), r.cfg.BlockTokens, blockhash.For(r.identity(), handoff.WeightsRefuse, handoff.Salt{}))
	if err != nil {
		return err
	}
	t, err := r.pool.Reserve(paged.Need{Hashes: hashes, Tokens: o.Prompt.Len, Slot: r.cfg.slots() > 0})
	if err != nil {
		return err
	}
	q := &request{label: o.Label, prompt: o.Prompt, chain: o.Prompt.chain(o.Prompt.Len), hold: t.ID, table: t, pos: o.Prompt.Len}
	r.state.spoil(items{t.Blocks[t.Cached/r.cfg.BlockTokens:], t.Slot})
	r.exports[o.Label] = q
	if r.cfg.ExportParts && r.partly(q, o, hashes) {
		return r.pool.Settle(q.hold)
	}
	if err := r.state.write(q.at(), q.chain, layout.Span{Lo: t.Cached, Hi: q.pos}, allLayers); err != nil {
		return err
	}
	return r.export(q, o, hashes, 0)
}

// export puts what a prompt's blocks hold into the cache, pins it and says so.
func (r *Rank) export(q *request, o startOp, hashes []uint64, parts uint32) (err error) {
	if q.table, err = r.pool.Admit(q.hold, hashes); err != nil {
		return err
	}
	if err := r.pool.Pin(q.hold); err != nil {
		return err
	}
	e := handoff.Export{Label: o.Label, Blocks: slices.Clone(q.table.Blocks), Slot: q.table.Slot, Tokens: q.pos, Position: q.pos,
		Copies: o.Copies, MaxHold: o.MaxHold, WeightsEpoch: q.prompt.Version, Parts: parts}
	if r.lead != nil {
		e.Resume = handoff.Resume{Tokens: []int32{o.Prompt.Token(q.pos)}, Sampler: o.Prompt.pack(), Finished: o.Finished}
	}
	return r.send(e)
}

// freeExport returns what a label held, once: Free and the ranks' own deadlines may cross.
func (r *Rank) freeExport(label string, out *outcome) error {
	q := r.exports[label]
	if q == nil {
		return nil
	}
	delete(r.exports, label)
	at, tokens := q.at(), q.pos
	if q.grows != nil { // it was ended before all of it was computed
		r.growing = slices.DeleteFunc(r.growing, func(o *request) bool { return o == q })
		at.slot, tokens = -1, q.grows.at.Tokens
	}
	r.compare("frees export", q, at, tokens)
	r.frees++
	out.events = append(out.events, Event{Kind: Freed, Label: label})
	if r.lead != nil {
		delete(r.lead.letGo, label)
	}
	_, err := r.pool.Free(q.hold)
	return err
}

// advance decodes one token of every live request, and ends those that are done, and
// those that find no block: an engine would retract them.
func (r *Rank) advance(out *outcome) error {
	kept := r.decodes[:0]
	for _, q := range r.decodes {
		var err error
		if q.left > 0 {
			q.table, err = r.pool.Extend(q.hold, q.pos+1)
		}
		if q.left > 0 && err == nil {
			q.left--
			q.pos++
			q.chain = append(q.chain, mix(q.chain[q.pos-1]+0x9e3779b97f4a7c15*uint64(q.prompt.Token(q.pos-1)+1)))
			if err := r.state.write(q.at(), q.chain, layout.Span{Lo: q.pos - 1, Hi: q.pos}, allLayers); err != nil {
				return err
			}
			kept = append(kept, q)
			continue
		}
		if err != nil && !errors.Is(err, paged.ErrFull) {
			return err
		}
		if err := r.end(q, out); err != nil {
			return err
		}
	}
	r.decodes = kept
	return nil
}

func (r *Rank) end(q *request, out *outcome) error {
	if t, ok := r.pool.Lookup(q.hold); ok { // Extend answers no table when it is full
		q.table = t
	}
	r.compare("ends", q, q.at(), q.pos)
	r.frees++
	out.events = append(out.events, Event{Kind: Ended, Label: q.label})
	_, err := r.pool.Free(q.hold)
	return err
}

func (r *Rank) send(m handoff.FromEngine) error {
	if err := r.session.Send(m); err != nil {
		return fmt.Errorf("send %T: %w", m, errors.Join(err, r.session.Err()))
	}
	return nil
}
