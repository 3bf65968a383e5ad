package demo

import (
	"context"
	"fmt"
	"slices"

	"github.com/batonkv/baton/examples/engine"
	"github.com/batonkv/baton/examples/engine/front"
	"github.com/batonkv/baton/examples/engine/sample"
	"github.com/batonkv/baton/sidecar/handoff"
)

// answer is what became of one of a prompt's answers: each is an import of its own.
type answer struct {
	label     string
	imported  handoff.Imported
	got, want engine.Wanted
	moved     int64 // closed form
	forwards  int32 // prompt tokens that the decode engine computed
}

// equal compares what the caller saw; logprobs only where they are asked for.
func (a answer) equal() bool {
	return slices.Equal(a.got.Tokens, a.want.Tokens) && (a.got.Logprobs == nil || slices.Equal(a.got.Logprobs, a.want.Logprobs)) &&
		a.got.Reason == a.want.Reason
}

// firstDifference is the first token that differs, itself or in its logprob.
func (a answer) firstDifference() int {
	for i, t := range a.got.Tokens {
		if i >= len(a.want.Tokens) || t != a.want.Tokens[i] || a.got.Logprobs != nil && a.got.Logprobs[i] != a.want.Logprobs[i] {
			return i
		}
	}
	return len(a.got.Tokens)
}

// sampling is how prompt i is answered.
func (d *demo) sampling(i int) sample.Params {
	var p sample.Params
	if d.opt.Sample {
		p = sample.Params{Seed: uint64(i) + 1, Temperature: 1, Logprobs: true}
	}
	if d.opt.Answers > 1 {
		p.Answers = d.opt.Answers
	}
	return p
}

// decodeAnswer imports a prompt once more and has its n-th answer decoded.
func (d *demo) decodeAnswer(ctx context.Context, r row, man handoff.Manifest, n int32) (a answer, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if a.label = r.label; n > 0 {
		a.label = fmt.Sprintf("%s#%d", r.label, n)
	}
	adopted := make(chan error, 1)
	go func() {
		res, err := generate(ctx, r.dst, front.Request{MaxNew: d.opt.MaxNew, Label: a.label, Mode: front.Adopt, Answer: n}, func(ev front.Event) {
			a.got.Tokens = append(a.got.Tokens, ev.Token)
			if ev.Logprob != nil {
				a.got.Logprobs = append(a.got.Logprobs, *ev.Logprob)
			}
		})
		a.forwards, a.got.Reason = res.Forwarded, sample.Reason(res.Reason)
		a.got.Drafted, a.got.Accepted = res.Drafted, res.Accepted
		adopted <- err
	}()
	imp := handoff.Import{Label: a.label, Manifest: man, Tokens: r.prompt.tokens, Deadline: d.opt.Deadline}
	if a.imported, err = d.bring(ctx, r.dst, imp); err != nil {
		cancel()
		<-adopted
		return a, fmt.Errorf("import into %s: %w", r.dst.Name, err)
	}
	if err = <-adopted; err != nil {
		return a, fmt.Errorf("decode on %s: %w", r.dst.Name, err)
	}
	return a, nil
}

// compute fills in what one engine gives for a prompt's answers, and what had to move.
func (d *demo) compute(ctx context.Context, i int, r row) error {
	one := engine.Config{Model: d.model, BlockTokens: d.opt.Dev.BlockTokens, Types: types(r.src.Group)}
	for n := range r.answers {
		a := &r.answers[n]
		a.moved = closedForm(d.model, r.dst.Group, len(r.prompt.tokens)-int(a.imported.Cached))
		var err error
		req := front.Request{Tokens: r.prompt.tokens, MaxNew: d.opt.MaxNew, Mode: front.Full, Sample: d.sampling(i), Answer: int32(n)}
		if a.want, err = engine.ReferenceAnswer(ctx, one, types(r.dst.Group), req); err != nil {
			return err
		}
	}
	return nil
}
