package bench

import (
	"context"
	"fmt"
	"strings"

	"github.com/batonkv/baton/cmd/bench/measure"
)

// shm measures re-shards through shared memory, each beside one big memcpy of the same
// bytes with as many workers.
func shm(ctx context.Context, o Options) ([]Result, error) {
	var out []Result
	for _, c := range measure.Cases() {
		o.Progress("shm: " + c.Name)
		r, err := shmCase(ctx, o, c)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", c.Name, err)
		}
		out = append(out, r)
	}
	return out, nil
}

func shmCase(ctx context.Context, o Options, c measure.Case) (r Result, err error) {
	rig, err := measure.New(ctx, c, 0)
	if err != nil {
		return r, err
	}
	defer func() { err = joinClose(ctx, err, rig.Close) }()
	r = Result{Name: "shm/" + strings.ReplaceAll(c.Name, " ", "-"), Unit: "x of memcpy", BaseUnit: "GB/s",
		What: fmt.Sprintf("%s, %d tokens, %.0f MiB", c.Name, c.Tokens, float64(rig.Bytes())/(1<<20))}
	for i := range o.Rounds + 1 {
		flat, err := rig.Memcpy()
		if err != nil {
			return r, err
		}
		cut, err := rig.Reshard(ctx)
		if err != nil {
			return r, err
		}
		if i == 0 {
			continue // the first of each pays for caches and page tables
		}
		r.Samples = append(r.Samples, flat.Seconds()/cut.Seconds())
		r.Baseline = append(r.Baseline, float64(rig.Bytes())/flat.Seconds()/1e9)
	}
	return AtLeast(r, c.Target), ctx.Err()
}
