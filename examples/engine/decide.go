package engine

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/batonkv/baton/examples/engine/front"
	"github.com/batonkv/baton/examples/engine/paged"
	"github.com/batonkv/baton/sidecar/handoff"
)

// decisions applies the leader's word up to through, in order.
func (r *Rank) decisions(through uint64) error {
	if r.session == nil || through <= r.applied {
		return nil
	}
	for _, d := range r.session.Decisions(through) {
		if d.N != r.applied+1 {
			return fmt.Errorf("%w: decision %d after %d", ErrDiverged, d.N, r.applied)
		}
		if err := r.decide(d); err != nil {
			return err
		}
		r.applied = d.N
	}
	if r.applied < through {
		if r.session.Err() != nil {
			return fmt.Errorf("%w: it ended before decision %d was applied by all ranks: %w", ErrSidecar, through, r.session.Err())
		}
		return fmt.Errorf("%w: decisions %d to %d are not held", ErrDiverged, r.applied+1, through)
	}
	return r.send(handoff.Applied{N: r.applied})
}

func (r *Rank) decide(d handoff.Decision) error {
	switch d.Kind {
	case handoff.Reserve:
		return r.reserve(d)
	case handoff.Admit:
		return r.admit(d)
	case handoff.Drop:
		return r.drop(d)
	case handoff.ReleaseQuarantine:
		q := r.imports[d.Of]
		if q == nil {
			return nil // its Reserve held nothing
		}
		delete(r.imports, d.Of)
		t, err := r.pool.ReleaseQuarantine(q.hold)
		r.gaveBack(t)
		return err
	case handoff.Free:
		return r.freeExport(d.Label)
	case handoff.SetWeightsEpoch:
		r.cfg.WeightsEpoch = d.WeightsEpoch // the salt of every prompt that starts from here on
		r.forgot()
		return nil
	case handoff.Lifecycle:
		err := r.life.Do(d)
		r.tellShut()
		return r.send(handoff.LifecycleAck{N: d.N, Err: err})
	}
	return fmt.Errorf("%w: decision %d is of kind %d", ErrDiverged, d.N, d.Kind)
}

// reserve takes memory for an import, all or nothing, and answers.
func (r *Rank) reserve(d handoff.Decision) error {
	res, err := r.beginningOf(d)
	ans := handoff.Reserved{N: d.N, Slot: -1, Why: r.refuse(d, err)}
	if ans.Why == "" {
		need := paged.Need{Hashes: d.Hashes, Tokens: d.Tokens, Slot: r.hybrid()}
		// Blocks that begin behind the prompt, for what decode computes first.
		uncomputed := res.uncomputed()
		if d.More {
			uncomputed = 1
		}
		need.Continuation = r.pool.BlocksFor(d.Tokens+uncomputed) - r.pool.BlocksFor(d.Tokens)
		t, err := r.pool.Reserve(need)
		switch {
		case errors.Is(err, paged.ErrFull):
			ans.Full = true
		case err != nil:
			ans.Why = err.Error()
		default:
			r.poison(t)
			r.imports[d.N] = &request{id: importBit | reqID(d.N), hold: t.ID, table: t, hashes: slices.Clone(d.Hashes),
				pos: d.Position, last: res.last, epoch: d.WeightsEpoch, label: d.Label, resume: res, late: d.More}
			ans.Blocks, ans.Cached, ans.Slot = slices.Clone(t.Blocks), t.Cached, t.Slot
		}
	}
	ans.Digest = r.mirror(ans)
	return r.send(ans)
}

// beginningOf is what a Reserve says of the answers; nothing yet of what is not exported whole.
func (r *Rank) beginningOf(d handoff.Decision) (beginning, error) {
	if d.More {
		return beginning{last: -1}, nil
	}
	return parseResume(d.Resume, r.cfg.Model.Vocab)
}

// refuse says why an import can never work here, "" if it may; resume is what is wrong
// with its resume packet.
func (r *Rank) refuse(d handoff.Decision, resume error) string {
	complete := d.Tokens / r.cfg.BlockTokens
	switch {
	case r.cfg.takes(front.Import) != nil:
		return r.cfg.takes(front.Import).Error()
	case d.Tokens < 1:
		return fmt.Sprintf("%d tokens: an import brings a prompt", d.Tokens)
	case d.Position != d.Tokens:
		return fmt.Sprintf("position %d of %d tokens: this engine resumes behind the prompt", d.Position, d.Tokens)
	case int64(len(d.Hashes)) > int64(complete):
		return fmt.Sprintf("%d hashes for %d complete blocks of %d tokens", len(d.Hashes), complete, r.cfg.BlockTokens)
	case resume != nil:
		return resume.Error()
	}
	return ""
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

// admit makes an import a request of this engine.
func (r *Rank) admit(d handoff.Decision) error {
	q := r.imports[d.Of]
	if q == nil || q.dropped {
		return fmt.Errorf("%w: decision %d admits %d, which is not held", ErrDiverged, d.N, d.Of)
	}
	if err := r.live(q); err != nil {
		return err
	}
	delete(r.imports, d.Of)
	if q.late {
		q.resume, q.bad = parseResume(d.Resume, r.cfg.Model.Vocab)
		q.last = q.resume.last
	}
	r.corrupt(q)
	r.requests[q.id] = q
	if r.sched != nil {
		r.sched.admitted(q)
	}
	return nil
}

// drop ends an import. Its memory stays out of use until ReleaseQuarantine.
func (r *Rank) drop(d handoff.Decision) error {
	q := r.imports[d.Of]
	if q == nil || q.dropped {
		return nil // its Reserve held nothing, or it was dropped before
	}
	q.dropped = true
	return r.pool.Drop(q.hold)
}

// export pins a request under a label and tells the sidecar.
func (r *Rank) export(o exportOp) error {
	q := r.requests[o.ID]
	if q == nil || r.exports[o.Label] != nil || r.session == nil {
		return fmt.Errorf("%w: export %d as %q: not held, exported already, or no sidecar", ErrDiverged, o.ID, o.Label)
	}
	if err := r.pool.Pin(q.hold); err != nil {
		return err
	}
	delete(r.requests, o.ID)
	delete(r.growing, o.Label)
	r.exports[o.Label] = q
	e := handoff.Export{Label: o.Label, Blocks: slices.Clone(q.table.Blocks[:r.pool.BlocksFor(q.pos)]), Slot: q.table.Slot, Tokens: q.pos, Position: q.pos,
		Copies: o.Copies, WeightsEpoch: q.epoch, Parts: q.said}
	if r.sched != nil {
		e.Resume = r.sched.resume(o.Label)
	}
	return r.send(e)
}

// freeExport returns what a label held. It is not held any more when Free and the
// ranks' own deadlines cross.
func (r *Rank) freeExport(label string) error {
	q := r.exports[label]
	if q == nil {
		if r.partsOver(label) && r.sched != nil {
			delete(r.sched.letGo, label)
		}
		return nil
	}
	delete(r.exports, label)
	delete(r.givenUp, label)
	t, err := r.pool.Free(q.hold)
	r.gaveBack(t)
	if r.sched != nil {
		r.sched.exportOver(label)
	}
	return err
}

// tellFreed tells the leader, through rank 0, that a waiting import may fit.
func (r *Rank) tellFreed() error {
	back := r.released
	r.released = paged.Stats{}
	if r.session == nil || r.sched == nil || back.Free+back.SlotsFree == 0 {
		return nil
	}
	return r.send(handoff.Freed{Blocks: back.Free, Slots: back.SlotsFree})
}

// send queues a message. A session that ended takes the hand-offs with it, not the
// engine: what it held stays held.
func (r *Rank) send(m handoff.FromEngine) error {
	if err := r.session.Send(m); err != nil {
		if r.session.Err() == nil {
			return fmt.Errorf("%w: send %T: %w", ErrSidecar, m, err)
		}
		r.down = r.session.Err().Error()
	}
	return nil
}
