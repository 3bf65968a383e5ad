package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/batonkv/baton/cmd/dev"
	"github.com/batonkv/baton/transfer/sums"
)

// verifyCase is how bytes travel, and how much of them is summed up.
type verifyCase struct {
	backend string
	mode    sums.Mode
}

// verifyCost measures whole hand-offs of a long prompt whose bytes are summed up at both
// ends, in turn with hand-offs that are not.
func verifyCost(ctx context.Context, o Options) (out []Result, err error) {
	for _, c := range []verifyCase{{"shm", sums.All}, {"shm", sums.Sample}, {"tcp", sums.All}, {"tcp", sums.Sample}} {
		o.Progress(fmt.Sprintf("verify: %s %v", c.backend, c.mode))
		r, err := c.measure(ctx, o)
		if err != nil {
			return nil, fmt.Errorf("%s %v: %w", c.backend, c.mode, err)
		}
		out = append(out, r)
	}
	return out, nil
}

func (c verifyCase) measure(ctx context.Context, o Options) (r Result, err error) {
	r = Result{Name: fmt.Sprintf("verify/%s-%v", c.backend, c.mode), Unit: "x of verify off", BaseUnit: "ms",
		What: fmt.Sprintf("hand-off of %d tokens, %d MiB, TP1 to TP2, %s, verify %v", longPrompt.tokens, longPrompt.bytes()>>20, c.backend, c.mode)}
	var pairs [2]*loads // off, and on
	for i, mode := range [...]sums.Mode{sums.Off, c.mode} {
		if pairs[i], err = pairOfLoads(ctx, dev.Options{Binary: o.Binary, Backend: c.backend, Verify: mode.String()}, 2, longPrompt); err != nil {
			return r, err
		}
		defer func() { err = errors.Join(err, pairs[i].close()) }()
	}
	var added []float64
	for i := range o.Rounds + 1 {
		var took [2]time.Duration
		for k, p := range pairs {
			if took[k], err = p.handOff(ctx); err != nil {
				return r, err
			}
		}
		if i == 0 {
			continue // the first of each pays for connections, caches and page tables
		}
		r.Samples = append(r.Samples, took[1].Seconds()/took[0].Seconds())
		r.Baseline = append(r.Baseline, took[0].Seconds()*1e3)
		added = append(added, (took[1]-took[0]).Seconds()*1e3)
	}
	r.Note = fmt.Sprintf("off takes %.0f ms, this adds %.0f", Median(r.Baseline), Median(added))
	r.Value, r.Met = Median(r.Samples), true
	return r, ctx.Err()
}
