package engine

import (
	"errors"
	"fmt"

	"github.com/batonkv/baton/examples/engine/model"
	"github.com/batonkv/baton/examples/engine/paged"
)

// Multi-token prediction takes two runs: one drafts tokens behind the newest, the next
// computes the newest and the drafts at once. Rank 0 samples behind each of them and goes
// on as long as what it sampled is what was drafted, so the answer is that of single
// steps. The run after that says how many tokens stay, and every rank takes the others
// back. A hand-off carries the drafts: decode begins with the second of the two runs.

// trial is a request's last run, of which tokens may be taken back.
type trial struct {
	before int32 // the token before it
	tokens []int32
	hidden []float32   // behind each of tokens, for a draft layer
	saved  model.Saved // the slot before it
}

// run computes tokens behind a request's position, with the logits after each or, of a
// prompt, after the last.
func (r *Rank) forward(q *request, tokens []int32, prompt bool) ([][]float32, error) {
	last := trial{before: q.last, tokens: tokens}
	var logits [][]float32
	var err error
	if prompt {
		last.tokens = tokens[len(tokens)-1:] // nothing of it is taken back
		logits = make([][]float32, 1)
		logits[0], err = r.run.Forward(q.seq(), tokens, q.pos)
	} else {
		if len(tokens) > 1 && r.hybrid() {
			last.saved = r.mem.Save(q.table.Slot)
		}
		logits, err = r.run.Verify(q.seq(), tokens, q.pos)
	}
	if err != nil {
		return nil, err
	}
	if r.cfg.Model.Drafts() {
		last.hidden = r.run.Hidden(len(last.tokens))
	}
	q.trial, q.last, q.pos = last, tokens[len(tokens)-1], q.pos+int32(len(tokens))
	return logits, nil
}

// settle keeps the first kept tokens of a request's last run, 0: all. A recurrent state
// goes back to where it was and takes those again; to a paged cache the position is enough.
func (r *Rank) settle(q *request, kept int32) error {
	t := &q.trial
	if kept == 0 || int(kept) == len(t.tokens) {
		return nil
	}
	if kept < 0 || int(kept) > len(t.tokens) {
		return fmt.Errorf("%w: request %d keeps %d of %d tokens", ErrDiverged, q.id, kept, len(t.tokens))
	}
	q.pos -= int32(len(t.tokens))
	q.last, t.tokens = t.before, t.tokens[:kept]
	if r.hybrid() {
		r.mem.Restore(q.table.Slot, t.saved)
		// What only rank 0 sees, it sees again in the run that follows.
		if _, err := r.run.Forward(q.seq(), t.tokens, q.pos); err != nil && !errors.Is(err, model.ErrState) {
			return err
		}
	}
	q.pos, q.last = q.pos+kept, t.tokens[kept-1]
	return nil
}

// propose drafts tokens behind token, a request's newest.
func (r *Rank) propose(q *request, token, n int32) (ran, error) {
	if err := r.room(q, n); err != nil {
		return ran{err: err}, nil
	}
	h, tokens := r.cfg.Model.Hidden, len(q.trial.tokens)
	if tokens == 0 || len(q.trial.hidden) < tokens*h {
		return ran{}, fmt.Errorf("%w: request %d drafts before anything was computed", ErrDiverged, q.id)
	}
	out, err := r.run.Propose(q.seq(), token, q.pos, q.trial.hidden[(tokens-1)*h:tokens*h], int(n))
	if errors.Is(err, model.ErrState) {
		return ran{err: err}, nil
	}
	return ran{proposed: out}, err
}

func (q *request) seq() model.Seq {
	return model.Seq{Blocks: q.table.Blocks, Slot: q.table.Slot, Prev: q.last}
}

// drafting is where a task on rank 0 stands with its drafts.
type drafting struct {
	proposed []int32 // behind the newest token
	made     bool    // proposed is what there is: the newest token is computed next
	kept     int32   // tokens of the last run that stay
	// Over the whole answer:
	drafted, accepted int32
}

// mostDrafts is how many tokens may be drafted when left more may come: one of them is
// sampled behind the last draft.
func (s *scheduler) mostDrafts(left int32) int32 {
	return max(min(int32(s.r.cfg.Model.Proposals), left-1), 0)
}

// decodeOp is a decoding task's next run.
func (s *scheduler) decodeOp(t *task) runOp {
	op := runOp{ID: t.id, Tokens: []int32{t.next}, Kept: t.draft.kept}
	if n := s.mostDrafts(t.answer.Left()); n > 0 && !t.draft.made {
		op.Propose = n
	} else {
		op.Tokens = append(op.Tokens, t.draft.proposed...)
	}
	return op
}

// decoded takes the end of a decoding task's run.
func (s *scheduler) decoded(t *task, res ran) {
	switch {
	case lacks(res.err) && (!t.draft.made || len(t.draft.proposed) > 0):
		t.draft.made, t.draft.proposed = true, nil // what does not fit goes without
	case errors.Is(res.err, paged.ErrFull):
		t.blocked = s.r.frees + 1
	case errors.Is(res.err, paged.ErrNever):
		s.fail(t, neverFits(res.err))
	case res.err != nil:
		s.fail(t, res.err)
	case res.logits == nil:
		t.draft.made, t.draft.proposed = true, res.proposed
	default:
		s.verified(t, res.logits)
	}
}

// lacks says that blocks are missing.
func lacks(err error) bool { return errors.Is(err, paged.ErrFull) || errors.Is(err, paged.ErrNever) }

// verified emits what was sampled behind the newest token and behind each draft that came
// true.
func (s *scheduler) verified(t *task, logits [][]float32) {
	proposed := t.draft.proposed
	t.blocked = 0
	t.draft.made, t.draft.proposed, t.draft.kept = false, nil, 0
	t.draft.drafted += int32(len(proposed))
	for i, l := range logits {
		tok := t.answer.Pick(l)
		hit := i < len(proposed) && proposed[i] == tok.ID
		t.draft.kept++
		if hit {
			t.draft.accepted++
		}
		if why := s.emit(t, tok); why != "" || !hit {
			s.conclude(t, why)
			return
		}
	}
}
