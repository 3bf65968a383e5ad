//go:build cgo

package gpu

import (
	"context"
	"fmt"
	"time"

	"github.com/batonkv/baton/cmd/bench"
)

// paced moves a hand-off at a steady pace and nothing else, so that who watches an engine on
// the same GPUs sees what it does to that. An end of ctx ends it well.
func paced(ctx context.Context, r *rig) (_ []bench.Result, err error) {
	res := bench.Result{Name: fmt.Sprintf("gpu/paced-%d", r.o.Tokens), Unit: "us", Met: true}
	s, err := r.set(ctx, r.mover, llama70B(r.o.Tokens, false))
	if err != nil {
		return nil, err
	}
	defer s.close(&err)
	if _, err := s.pull(ctx); err != nil { // pays for mappings
		return nil, err
	}
	r.o.Progress("gpu/paced begins")
	every := time.NewTicker(r.o.Every)
	defer every.Stop()
	for end := time.Now().Add(r.o.For); time.Now().Before(end) && ctx.Err() == nil; {
		took, err := s.pull(ctx)
		if err != nil {
			return nil, err
		}
		res.Samples = append(res.Samples, took*1e6)
		select {
		case <-every.C:
		case <-ctx.Done():
		}
	}
	res.Value = bench.Median(res.Samples)
	res.What = fmt.Sprintf("a hand-off of %.1f MiB every %v, from Pull to Done by the mover", float64(s.bytes)/(1<<20), r.o.Every)
	return []bench.Result{res}, nil
}
