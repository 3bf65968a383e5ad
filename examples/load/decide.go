package load

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/batonkv/baton/examples/engine/paged"
	"github.com/batonkv/baton/sidecar/handoff"
)

// decisions applies the leader's word up to through, in order.
func (r *Rank) decisions(through uint64, out *outcome) error {
	if through <= r.applied {
		return nil
	}
	for _, d := range r.session.Decisions(through) {
		if d.N != r.applied+1 {
			return fmt.Errorf("%w: decision %d after %d", ErrDiverged, d.N, r.applied)
		}
		if err := r.decide(d, out); err != nil {
			return err
		}
		r.applied = d.N
	}
	if r.applied < through {
		return fmt.Errorf("%w: decisions %d to %d are not held: %w", ErrDiverged, r.applied+1, through, r.session.Err())
	}
	return r.send(handoff.Applied{N: r.applied})
}

func (r *Rank) decide(d handoff.Decision, out *outcome) error {
	q := r.imports[d.Of]
	switch d.Kind {
	case handoff.Reserve:
		return r.reserve(d)
	case handoff.Admit:
		if q == nil || q.dropped {
			return fmt.Errorf("%w: decision %d admits %d, which is not held", ErrDiverged, d.N, d.Of)
		}
		delete(r.imports, d.Of)
		return r.admit(q, d.Resume, out)
	case handoff.Drop:
		if q == nil || q.dropped {
			return nil // its Reserve held nothing, or it was dropped before
		}
		q.dropped = true
		return r.pool.Drop(q.hold)
	case handoff.ReleaseQuarantine:
		if q == nil {
			return nil
		}
		delete(r.imports, d.Of)
		r.frees++
		_, err := r.pool.ReleaseQuarantine(q.hold)
		return err
	case handoff.Free:
		return r.freeExport(d.Label, out)
	case handoff.SetWeightsEpoch:
		r.epoch = d.WeightsEpoch
		return nil
	case handoff.Lifecycle:
		return r.send(handoff.LifecycleAck{N: d.N, Err: r.life.Do(d)})
	}
	return fmt.Errorf("%w: decision %d is of kind %d", ErrDiverged, d.N, d.Kind)
}

// reserve takes memory for an import, all or nothing, poisons it and answers.
func (r *Rank) reserve(d handoff.Decision) error {
	if r.lead != nil {
		r.lead.reserving(d.Label)
	}
	ans := handoff.Reserved{N: d.N, Slot: -1}
	p, err := Prompt{Len: d.Tokens}, error(nil)
	if !d.More { // else Admit brings it
		p, err = unpack(d.Resume.Sampler)
	}
	switch {
	case err != nil:
		ans.Why = err.Error()
	case p.Len != d.Tokens || d.Position != d.Tokens:
		ans.Why = fmt.Sprintf("%d tokens at %d, the resume packet is of %d", d.Tokens, d.Position, p.Len)
	default:
		err = r.take(d, p, &ans)
	}
	if err != nil && ans.Why == "" && !ans.Full {
		return err
	}
	ans.Digest = r.mirror(ans)
	return r.send(ans)
}

func (r *Rank) take(d handoff.Decision, p Prompt, ans *handoff.Reserved) error {
	t, err := r.pool.Reserve(paged.Need{Hashes: d.Hashes, Tokens: d.Tokens, Slot: r.cfg.slots() > 0})
	switch {
	case errors.Is(err, paged.ErrFull):
		ans.Full = true
		return nil
	case err != nil:
		ans.Why = err.Error()
		return nil
	}
	r.state.spoil(items{t.Blocks[t.Cached/r.cfg.BlockTokens:], t.Slot})
	q := &request{label: d.Label, hold: t.ID, table: t, pos: d.Position, import_: import_{hashes: slices.Clone(d.Hashes), late: d.More}}
	if r.imports[d.N] = q; !q.late {
		q.resumes(p, d.Resume)
	}
	ans.Blocks, ans.Cached, ans.Slot = slices.Clone(t.Blocks), t.Cached, t.Slot
	return nil
}

// resumes takes what an import goes on with.
func (q *request) resumes(p Prompt, x handoff.Resume) {
	q.prompt, q.chain, q.left, q.finished = p, p.chain(p.Len), p.Steps, x.Finished
}

// mirror is the digest that all ranks must agree on: the answer and the whole allocator.
func (r *Rank) mirror(a handoff.Reserved) handoff.Digest {
	pool := r.pool.Digest()
	b := binary.LittleEndian.AppendUint32(pool[:], uint32(a.Slot))
	for _, k := range a.Blocks {
		b = binary.LittleEndian.AppendUint32(b, uint32(k))
	}
	return sha256.Sum256(b)
}

// admit compares what arrived, and what the cache gave, with the request's tokens. A
// request that ended at prefill is over without a step.
func (r *Rank) admit(q *request, x handoff.Resume, out *outcome) error {
	if q.late {
		p, err := unpack(x.Sampler)
		if err == nil && p.Len != q.pos {
			err = fmt.Errorf("%w: the resume packet is of %d tokens, %d were imported", ErrWrong, p.Len, q.pos)
		}
		if err != nil {
			return err
		}
		q.resumes(p, x)
	}
	if r.cfg.Damage {
		r.state.damage(q.at(), q.pos)
	}
	r.compare("admits", q, q.at(), q.pos)
	cached := q.table.Cached
	before := r.pool.Available()
	t, err := r.pool.Admit(q.hold, q.hashes)
	if err != nil {
		return err
	}
	if q.table = t; r.pool.Available() > before {
		r.frees++ // the cache had some of its blocks meanwhile
	}
	p := q.prompt
	out.events = append(out.events, Event{Kind: Admitted, Label: q.label, Prompt: &p, Finished: q.finished, Cached: cached, Late: q.late})
	if q.finished {
		return r.end(q, out)
	}
	r.decodes = append(r.decodes, q)
	return nil
}
