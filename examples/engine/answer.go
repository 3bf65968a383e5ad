package engine

import (
	"fmt"

	"github.com/batonkv/baton/examples/engine/front"
	"github.com/batonkv/baton/examples/engine/model"
	"github.com/batonkv/baton/examples/engine/sample"
	"github.com/batonkv/baton/sidecar/handoff"
)

// firsts samples the first token of each answer of a finished prompt: what the prompt's
// hand-off says of them. Decode computes that token; it has no state yet.
func firsts(p sample.Params, logits []float32, limit int32) handoff.Resume {
	res := handoff.Resume{Finished: true}
	packet := sample.Packet{Params: p}
	for n := range max(p.Answers, 1) {
		a := sample.NewAnswer(p, n, limit, model.EOS)
		tok := a.Pick(logits)
		if a.Add(tok.ID) == "" {
			res.Finished = false // somebody has to decode
		}
		if n > 0 {
			packet.Others = append(packet.Others, sample.First{Token: tok})
			continue
		}
		res.Tokens = []int32{tok.ID}
		if p.Logprobs {
			res.Logprobs = []float32{tok.Logprob}
		}
	}
	if !p.IsZero() {
		res.Sampler = packet.Append(nil)
	}
	return res
}

// resumed is how the answers of a hand-off begin.
type resumed struct {
	params   sample.Params
	answers  []sample.First
	finished bool // all of them ended with their first token
}

// parseResume takes a resume packet, which comes from another engine. Without a sampler's
// state it is that of a greedy engine.
func parseResume(r handoff.Resume) (resumed, error) {
	p, err := sample.ParsePacket(r.Sampler, model.Vocab)
	if err != nil {
		return resumed{}, err
	}
	if len(r.Tokens) < 1 {
		return resumed{}, fmt.Errorf("%w: it holds no sampled token", sample.ErrPacket)
	}
	for _, t := range r.Tokens {
		if t < 0 || t >= model.Vocab {
			return resumed{}, fmt.Errorf("%w: token %d: want 0 to %d", sample.ErrPacket, t, model.Vocab-1)
		}
	}
	first := sample.First{Token: sample.Token{ID: r.Tokens[0]}}
	if p.Params.Logprobs {
		if len(r.Logprobs) < 1 || !sample.ValidLogprob(r.Logprobs[0]) {
			return resumed{}, fmt.Errorf("%w: logprobs %v of a request that wants them", sample.ErrPacket, r.Logprobs)
		}
		first.Token.Logprob = r.Logprobs[0]
	}
	return resumed{params: p.Params, answers: append([]sample.First{first}, p.Others...), finished: r.Finished}, nil
}

// exported pins a finished prompt in the next step.
func (s *scheduler) exported(t *task, logits []float32) {
	s.resumes[t.req.Label] = firsts(t.req.Sample, logits, t.req.MaxNew)
	s.st.Export = append(s.st.Export, exportOp{ID: t.id, Label: t.req.Label, Copies: max(t.req.Sample.Answers, 1)})
	t.phase = pinned
}

// begin lets an adopted import's answer go on behind its first token, which was sampled
// where the prompt ran.
func (s *scheduler) begin(t *task, r resumed) {
	if int(t.req.Answer) >= len(r.answers) {
		s.fail(t, fmt.Errorf("%w: answer %d of %d", front.ErrRequest, t.req.Answer, len(r.answers)))
		return
	}
	t.answer = sample.NewAnswer(r.params, t.req.Answer, t.req.MaxNew, model.EOS)
	t.logprobs = r.params.Logprobs
	why := s.emit(t, r.answers[t.req.Answer].Token)
	if why == "" && r.finished {
		why = sample.Length // of the prefill engine's request
	}
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
