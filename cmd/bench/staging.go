package bench

import (
	"context"
	"errors"
	"fmt"

	"github.com/batonkv/baton/cmd/dev"
)

// longPrompt is 4096 tokens of a model with 32 layers of 8 KV heads: 512 MiB.
var longPrompt = loadShape{layers: 32, units: 8, elems: 256, block: 64, blocks: 64, tokens: 4096}

// staging measures hand-offs of a long prompt, whole, from Export to the answer of Import:
// packed, brought over and unpacked by the movers of sidecars that map nothing of each
// other. In turn with each, as many bytes go over one flat stream of this process.
func staging(ctx context.Context, o Options) (out []Result, err error) {
	for _, c := range []struct {
		name, backend string
		tp            int32
		secure        bool
		target        float64
	}{
		{"tcp-tls", "tcp", 1, true, 0.8},
		{"tcp-tls-tp1-to-tp2", "tcp", 2, true, 0.8},
	} {
		o.Progress("staging: " + c.name)
		p, err := pairOfLoads(ctx, dev.Options{Binary: o.Binary, Backend: c.backend}, c.tp, longPrompt)
		if err != nil {
			return nil, err
		}
		r, err := p.besideStream(ctx, o, c.secure)
		if err = errors.Join(err, p.close()); err != nil {
			return nil, fmt.Errorf("%s: %w", c.name, err)
		}
		r.Name = "staging/" + c.name
		r.What = fmt.Sprintf("hand-off of %d tokens, %d MiB, TP1 to TP%d, %s", longPrompt.tokens, longPrompt.bytes()>>20, c.tp, c.backend)
		out = append(out, AtLeast(r, c.target))
	}
	return out, nil
}

// besideStream takes hand-offs and flat streams in turn.
func (p *loads) besideStream(ctx context.Context, o Options, secure bool) (r Result, err error) {
	r = Result{Unit: "x of a flat TCP stream", BaseUnit: "GB/s"}
	if secure {
		r.Unit = "x of a flat TCP+TLS stream"
	}
	s, err := openStream(secure)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	from := p.src[0].mem
	to := make([]byte, len(from))
	for i := range o.Rounds + 1 {
		flat, err := s.move(to, from)
		if err != nil {
			return r, err
		}
		whole, err := p.handOff(ctx)
		if err != nil {
			return r, err
		}
		if i == 0 {
			continue // the first of each pays for connections, caches and page tables
		}
		r.Samples = append(r.Samples, flat.Seconds()/whole.Seconds())
		r.Baseline = append(r.Baseline, float64(len(from))/flat.Seconds()/1e9)
	}
	return r, ctx.Err()
}
