package demo

import (
	"context"
	"fmt"

	"github.com/batonkv/baton/examples/engine/front"
	"github.com/batonkv/baton/sidecar/handoff"
)

// inParts has a prompt imported as soon as it is announced: its chunks leave while the rest
// is computed.
func (d *demo) inParts(ctx context.Context, i int, r row, failed <-chan error) (row, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	prefilled := make(chan error, 1)
	go func() {
		_, err := generate(ctx, r.src, front.Request{Tokens: r.prompt.tokens, MaxNew: d.opt.MaxNew, Label: r.label, Mode: front.Export, Sample: d.sampling(i)}, nil)
		prefilled <- err
	}()
	var man handoff.Manifest
	select {
	case man = <-d.begun[r.label]:
	case err := <-prefilled:
		return r, fmt.Errorf("prefill on %s, before it was announced: %w", r.src.Name, err)
	case err := <-failed:
		return r, err
	case <-ctx.Done():
		return r, context.Cause(ctx)
	}
	for n := range d.opt.Answers {
		a, err := d.decodeAnswer(ctx, r, man, n)
		if err != nil {
			return r, err
		}
		r.answers = append(r.answers, a)
	}
	if err := <-prefilled; err != nil {
		return r, fmt.Errorf("prefill on %s: %w", r.src.Name, err)
	}
	return r, nil
}

// parts is how many parts the prefill leaders told importers of.
func (d *demo) parts(ctx context.Context) (n uint64, err error) {
	for _, g := range d.prefill {
		s, err := g.Leader.Status(ctx)
		if err != nil {
			return 0, fmt.Errorf("status of %s: %w", g.Name, err)
		}
		n += s.Counters["sent.Part"]
	}
	return n, nil
}
