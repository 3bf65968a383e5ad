package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/batonkv/baton/cmd/dev"
	"github.com/batonkv/baton/internal/pause"
	"github.com/batonkv/baton/sidecar/handoff"
)

// partShape is 2048 tokens of a model with 32 layers of 8 KV heads, 256 MiB, in chunks of
// partTokens that an engine computes in partTime each.
var partShape = loadShape{layers: 32, units: 8, elems: 256, block: 64, blocks: 64, tokens: 2048}

const (
	partTokens = 256
	partTime   = 100 * time.Millisecond
)

// early measures what a caller waits for after the last chunk of a prompt was computed: of
// hand-offs whose chunks left as they were, and of those that leave whole, in turn.
func early(ctx context.Context, o Options) (out []Result, err error) {
	for _, backend := range []string{"shm", "tcp"} {
		o.Progress("parts: " + backend)
		r, err := earlyOver(ctx, o, backend)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", backend, err)
		}
		out = append(out, AtMost(r, 0.5))
	}
	return out, nil
}

func earlyOver(ctx context.Context, o Options, backend string) (r Result, err error) {
	r = Result{Name: "parts/" + backend, Unit: "x of leaving whole", BaseUnit: "ms",
		What: fmt.Sprintf("last chunk to admitted, %d tokens, %d MiB, in chunks of %d, one each %v, %s", partShape.tokens, partShape.bytes()>>20, partTokens, partTime, backend)}
	p, err := pairOfLoads(ctx, dev.Options{Binary: o.Binary, Backend: backend}, 1, partShape)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, p.close()) }()
	var times []float64
	for i := range o.Rounds + 1 {
		whole, err := p.handOff(ctx)
		if err != nil {
			return r, err
		}
		parts, err := p.inParts(ctx)
		if err != nil {
			return r, err
		}
		if i == 0 {
			continue // the first of each pays for connections, caches and page tables
		}
		r.Samples = append(r.Samples, parts.Seconds()/whole.Seconds())
		r.Baseline = append(r.Baseline, whole.Seconds()*1e3)
		times = append(times, parts.Seconds()*1e3)
	}
	r.Note = fmt.Sprintf("%.1f ms, whole %.1f", Median(times), Median(r.Baseline))
	return r, ctx.Err()
}

// inParts is the time from Export, which closes the parts, to the answer of an Import that
// was asked for at the first of them.
func (p *loads) inParts(ctx context.Context) (time.Duration, error) {
	p.n++
	e, label := p.src[0], fmt.Sprintf("b%d", p.n)
	imported := make(chan error, 1)
	parts := uint32(0)
	for at := int32(partTokens); at < e.tokens; at += partTokens {
		if err := compute(ctx); err != nil {
			return 0, err
		}
		parts++
		m := handoff.ExportPart{Label: label, Part: parts, Tokens: e.tokens, Position: e.tokens, Reach: handoff.All(at)}
		if parts > 1 {
			if err := e.c.Send(m); err != nil {
				return 0, err
			}
			continue
		}
		m.Blocks = e.table(1)
		man, err := e.exports(ctx, label, m)
		if err != nil {
			return 0, err
		}
		go func() { // ends with ctx
			_, err := p.c.Groups[1].Leader.Import(ctx, p.dst[0].wants(label, man))
			imported <- err
		}()
	}
	if err := compute(ctx); err != nil {
		return 0, err
	}
	began := time.Now()
	err := e.c.Send(handoff.Export{Label: label, Blocks: e.table(1), Slot: -1, Tokens: e.tokens, Position: e.tokens, Resume: handoff.Resume{Tokens: []int32{1}}, Parts: parts})
	if err != nil {
		return 0, err
	}
	select {
	case err = <-imported:
	case <-ctx.Done():
		err = ctx.Err()
	}
	return time.Since(began), err
}

// compute is the time of a chunk.
func compute(ctx context.Context) error {
	pause.For(ctx, partTime)
	return ctx.Err()
}
