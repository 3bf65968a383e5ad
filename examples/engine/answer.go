package engine

import (
	"fmt"

	"github.com/batonkv/baton/examples/engine/front"
	"github.com/batonkv/baton/examples/engine/sample"
	"github.com/batonkv/baton/sidecar/handoff"
)

// beginning is how a prompt's answers begin: what a hand-off says of them. Each has one
// token, whose state decode has to compute, and drafts of those behind it.
type beginning struct {
	params   sample.Params
	last     int32 // token of the prompt, -1: not known
	answers  []sample.First
	finished bool // all of them ended with their first token
}

// begin samples the first token of each answer behind a prompt's last token.
func begin(req front.Request, logits []float32, eos int32) beginning {
	b := beginning{params: req.Sample, last: req.Tokens[len(req.Tokens)-1], finished: true}
	for n := range max(req.Sample.Answers, 1) {
		a := sample.NewAnswer(req.Sample, n, req.MaxNew, eos)
		tok := a.Pick(logits)
		b.answers = append(b.answers, sample.First{Token: tok})
		if a.Add(tok.ID) == "" {
			b.finished = false // somebody has to decode
		}
	}
	return b
}

// uncomputed is how many tokens an answer has, drafts among them, that have no state.
func (b beginning) uncomputed() (n int32) {
	if b.finished {
		return 0
	}
	for _, a := range b.answers {
		n = max(n, 1+int32(len(a.Proposed)))
	}
	return n
}

// resume is the packet that travels.
func (b beginning) resume() handoff.Resume {
	first := b.answers[0]
	res := handoff.Resume{Finished: b.finished, Tokens: append([]int32{first.Token.ID}, first.Proposed...),
		Sampler: sample.Packet{Params: b.params, Last: b.last, Others: b.answers[1:]}.Append(nil)}
	if b.params.Logprobs {
		res.Logprobs = []float32{first.Token.Logprob}
	}
	return res
}

// parseResume takes a resume packet, which comes from another engine. Without a sampler's
// state it is that of a greedy engine.
func parseResume(r handoff.Resume, vocab int32) (beginning, error) {
	p, err := sample.ParsePacket(r.Sampler, vocab)
	if err != nil {
		return beginning{}, err
	}
	if len(r.Tokens) < 1 || len(r.Tokens) > 1+sample.MaxProposed {
		return beginning{}, fmt.Errorf("%w: %d tokens: want a sampled one and at most %d drafts", sample.ErrPacket, len(r.Tokens), sample.MaxProposed)
	}
	for _, t := range r.Tokens {
		if t < 0 || t >= vocab {
			return beginning{}, fmt.Errorf("%w: token %d: want 0 to %d", sample.ErrPacket, t, vocab-1)
		}
	}
	first := sample.First{Token: sample.Token{ID: r.Tokens[0]}, Proposed: r.Tokens[1:]}
	if p.Params.Logprobs {
		if len(r.Logprobs) < 1 || !sample.ValidLogprob(r.Logprobs[0]) {
			return beginning{}, fmt.Errorf("%w: logprobs %v of a request that wants them", sample.ErrPacket, r.Logprobs)
		}
		first.Token.Logprob = r.Logprobs[0]
	}
	return beginning{params: p.Params, last: p.Last, answers: append([]sample.First{first}, p.Others...), finished: r.Finished}, nil
}

// prompted takes the logits behind a prompt. An export is pinned once tokens behind each
// of its answers' first ones are drafted.
func (s *scheduler) prompted(t *task, logits []float32) {
	t.left = 0
	if t.req.Mode != front.Export {
		t.phase, t.draft.made, t.draft.proposed, t.draft.kept = decode, false, nil, 0
		s.conclude(t, s.emit(t, t.answer.Pick(logits)))
		return
	}
	t.phase, t.begun, t.answered = proposing, begin(t.req, logits, s.r.cfg.Model.EOS), 0
	if t.begun.finished || s.mostDrafts(t.req.MaxNew-1) == 0 {
		s.pin(t)
	}
}

// proposeOp drafts behind the first token of the next answer that is to be exported.
func (s *scheduler) proposeOp(t *task) runOp {
	return runOp{ID: t.id, Propose: s.mostDrafts(t.req.MaxNew - 1), Tokens: []int32{t.begun.answers[t.answered].Token.ID}}
}

// proposed takes those drafts; what does not fit goes without.
func (s *scheduler) proposed(t *task, res ran) {
	if res.err != nil && !lacks(res.err) {
		s.fail(t, res.err)
		return
	}
	t.begun.answers[t.answered].Proposed = res.proposed
	if t.answered++; t.answered == len(t.begun.answers) {
		s.pin(t)
	}
}

// pin exports a task in the next step, once nobody reads what was given up under its label.
func (s *scheduler) pin(t *task) {
	if s.r.exports[t.req.Label] != nil {
		t.phase = computed
		return
	}
	s.resumes[t.req.Label] = t.begun.resume()
	s.st.Export = append(s.st.Export, exportOp{ID: t.id, Label: t.req.Label, Copies: int32(len(t.begun.answers))})
	t.phase = pinned
}

// goOn lets an adopted import's answer go on behind its first token, which was sampled
// where the prompt ran.
func (s *scheduler) goOn(t *task, b beginning) {
	if int(t.req.Answer) >= len(b.answers) {
		s.fail(t, fmt.Errorf("%w: answer %d of %d", front.ErrRequest, t.req.Answer, len(b.answers)))
		return
	}
	t.answer = sample.NewAnswer(b.params, t.req.Answer, t.req.MaxNew, s.r.cfg.Model.EOS)
	t.logprobs = b.params.Logprobs
	first := b.answers[t.req.Answer]
	why := s.emit(t, first.Token)
	if why == "" && b.finished {
		why = sample.Length // of the prefill engine's request
	}
	// Nothing was computed here that more could be drafted from.
	t.draft.made = true
	t.draft.proposed = first.Proposed[:min(len(first.Proposed), int(s.mostDrafts(t.answer.Left())))]
	s.conclude(t, why)
}

// emit gives the caller a token, which is computed next, and says whether the answer ends
// with it.
func (s *scheduler) emit(t *task, tok sample.Token) sample.Reason {
	ev := front.Event{Token: tok.ID}
	if t.logprobs {
		ev.Logprob = &tok.Logprob
	}
	t.events <- ev
	t.next, t.emitted = tok.ID, append(t.emitted, tok.ID)
	return t.answer.Add(tok.ID)
}

// conclude finishes a task whose answer is over.
func (s *scheduler) conclude(t *task, why sample.Reason) {
	if why != "" {
		s.finish(t, string(why), nil)
	}
}
