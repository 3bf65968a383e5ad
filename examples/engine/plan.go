package engine

import (
	"fmt"
	"slices"

	"github.com/batonkv/baton/examples/engine/admission"
	"github.com/batonkv/baton/examples/engine/front"
)

// batch is what a step computes, while it is put together.
type batch struct {
	admission.Batch
	left int32 // tokens that still fit; drafts may take a few more
}

// plan puts the next step together: everything that is due, then what is computed.
func (s *scheduler) plan() {
	s.due()
	if !s.r.life.Held() {
		s.compute()
	}
	s.settled()
}

// compute fills the step's batch: one token of every request that decodes, then chunks of
// prompts, oldest first, as far as the step's tokens reach. So a long prompt never stops a
// decode.
func (s *scheduler) compute() {
	short := s.preempt()
	b := batch{left: s.r.cfg.StepTokens}
	s.decodes(&b)
	if s.prompts(&b) && !short {
		s.begins()
	}
}

// due is what the sidecars' word asks for.
func (s *scheduler) due() {
	if s.through > s.r.applied { // every rank's client holds them, whatever its sidecar does
		s.st.Through = s.through
	}
	for label, ranks := range s.letGo {
		if len(ranks) == s.r.cfg.Ranks() {
			s.st.Unpin = append(s.st.Unpin, label)
			delete(s.letGo, label)
		}
	}
	slices.Sort(s.st.Unpin)
	for _, t := range s.tasks {
		if t.phase == computed && s.r.exports[t.req.Label] == nil {
			s.pin(t)
		}
	}
}

// decodes lets every request that decodes, or drafts before it is exported, into the batch.
func (s *scheduler) decodes(b *batch) {
	for _, t := range s.tasks {
		switch {
		case b.left <= 0:
			return
		case t.phase == decode && s.mayFit(t):
			b.Decodes++
			op := s.decodeOp(t)
			s.join(b, t, op, int32(len(op.Tokens)))
		case t.phase == proposing:
			b.Decodes++
			s.join(b, t, s.proposeOp(t), 1)
		}
	}
}

// prompts lets chunks of prompts in and reports whether others may begin: nobody overtakes
// a prompt that waits for a captured shape.
func (s *scheduler) prompts(b *batch) bool {
	for _, t := range slices.Clone(s.tasks) {
		if t.phase != prefill || b.left <= 0 {
			continue
		}
		verdict, n, err := s.gate.Admit(b.Batch, admission.Prompt{Left: t.left, Started: t.chunked}, min(b.left, s.r.cfg.Chunk))
		switch {
		case err != nil:
			s.fail(t, fmt.Errorf("%w: %w", ErrConfig, err))
			continue
		case verdict == admission.Wait:
			s.warnWaits()
			return false
		}
		q := s.r.requests[t.id]
		t.chunk = admission.Shorten(n, t.left, q.pos, s.r.cfg.BlockTokens, false)
		b.Prefills++
		s.join(b, t, runOp{ID: t.id, Prompt: t.chunk}, t.chunk)
		if verdict == admission.Eager {
			return false
		}
	}
	return true
}

// join puts a run of n tokens into the batch.
func (s *scheduler) join(b *batch, t *task, op runOp, n int32) {
	s.st.Run = append(s.st.Run, op)
	s.running = append(s.running, t)
	b.Tokens += n
	b.left -= n
}

// begins asks for the memory of queued prompts, first in, first out, until those that hold
// theirs fill a step.
func (s *scheduler) begins() {
	var ahead, spare int32
	for _, t := range s.tasks {
		switch t.phase {
		case prefill:
			ahead += t.left
			spare++
		case decode:
			spare++
		}
	}
	for _, t := range s.tasks {
		if t.phase != queued {
			continue
		}
		if ahead >= s.r.cfg.StepTokens || !s.mayFit(t) {
			return
		}
		s.start(t, spare)
		ahead += int32(len(t.req.Tokens) + len(t.emitted))
		spare++
	}
}

// mayFit says whether a task that was refused memory may get it in this step.
func (s *scheduler) mayFit(t *task) bool {
	return t.blocked != s.r.frees+1 || len(s.st.End)+len(s.st.Unpin) > 0 || s.st.Through > 0
}

// start asks for the memory of a prompt, and of what was emitted before it was preempted.
// spare blocks stay for those that run.
func (s *scheduler) start(t *task, spare int32) {
	s.lastID++
	t.id = s.lastID
	op := startOp{ID: t.id, Tokens: slices.Concat(t.req.Tokens, t.emitted), Spare: spare, Parts: s.partsOf(t)}
	if t.req.Mode != front.Export {
		op.Room = max(int32(len(t.req.Tokens))+t.req.MaxNew-1-int32(len(op.Tokens)), 0) // the last token is not computed
	}
	s.st.Start = append(s.st.Start, op)
	s.starts = append(s.starts, t)
}
