package bench

import (
	"context"
	"fmt"
	"runtime"

	"github.com/batonkv/baton/transfer/layout"
	"github.com/batonkv/baton/transfer/layout/parallel"
	"github.com/batonkv/baton/transfer/lower"
	"github.com/batonkv/baton/transfer/models"
	"github.com/batonkv/baton/transfer/reshard"
)

// side is one end of a measured re-shard.
type side struct {
	cut    parallel.Cut
	memory parallel.Memory
}

func megatron(blocks, blockTokens int32) parallel.Memory {
	return parallel.Memory{Blocks: blocks, BlockTokens: blockTokens, KV: layout.BF16, Slots: 4, Conv: layout.BF16, SSM: layout.F32}
}

// geometry is a model's states and the shards of both ends.
func geometry(slug string, src, dst side) (layout.Model, []layout.Shard, []layout.Shard, error) {
	m, err := models.ByName(slug)
	if err != nil {
		return layout.Model{}, nil, nil, err
	}
	s, err := m.Desc.Shards(m.Cut(src.cut), src.memory)
	if err != nil {
		return layout.Model{}, nil, nil, err
	}
	d, err := m.Desc.Shards(m.Cut(dst.cut), dst.memory)
	return m.Desc.Model(), s, d, err
}

// plan measures the planner at the design's sizes.
func plan(ctx context.Context, o Options) ([]Result, error) {
	var out []Result
	for _, c := range []struct {
		ranks    string
		src, dst parallel.Cut
		target   float64
	}{
		{"32", parallel.Cut{TP: 8, PP: 4}, parallel.Cut{TP: 4, PP: 8}, 0.3},
		{"128", parallel.Cut{TP: 8, PP: 8, EP: 2}, parallel.Cut{TP: 8, PP: 8, EP: 2}, 2},
	} {
		m, src, dst, err := geometry("nemotron-h-8b", side{c.src, megatron(64, 64)}, side{c.dst, megatron(64, 64)})
		if err != nil {
			return nil, err
		}
		r := Result{Name: "plan/" + c.ranks + "x" + c.ranks, Unit: "ms", What: "plan between groups of " + c.ranks + " ranks, Nemotron-H-8B"}
		if r.Samples, err = planned(ctx, o.Rounds, m, src, dst); err != nil {
			return nil, err
		}
		out = append(out, AtMost(r, c.target))
	}
	m, src, dst := weightTensors(1000, 8, 4)
	r := Result{Name: "plan/1000-weights", Unit: "ms", What: "plan a refit of 1,000 weight tensors, TP8 to TP4"}
	var err error
	if r.Samples, err = planned(ctx, o.Rounds, m, src, dst); err != nil {
		return nil, err
	}
	return append(out, AtMost(r, 100)), nil
}

func planned(ctx context.Context, rounds int, m layout.Model, src, dst []layout.Shard) ([]float64, error) {
	var ms []float64
	for range rounds {
		s, err := timed(func() error { _, err := reshard.New(m, src, dst); return err })
		if err != nil {
			return nil, err
		}
		ms = append(ms, s*1e3)
	}
	return ms, ctx.Err()
}

// lowering measures a template with scattered blocks, and that it allocates nothing.
func lowering(ctx context.Context, o Options) ([]Result, error) {
	var out []Result
	for _, c := range []struct {
		blocks int32
		target float64
	}{{512, 20}, {12000, 250}} {
		mem := megatron(4*c.blocks, 64)
		m, src, dst, err := geometry("llama-3.1-70b", side{parallel.Cut{TP: 4}, mem}, side{parallel.Cut{TP: 2}, mem})
		if err != nil {
			return nil, err
		}
		p, err := reshard.New(m, src, dst)
		if err != nil {
			return nil, err
		}
		t, err := lower.New(p, 0)
		if err != nil {
			return nil, err
		}
		j := lower.ScatteredJob(t, c.blocks, 64, 64, false)
		ns, err := t.Nests(nil, j)
		if err != nil {
			return nil, err
		}
		r := Result{Name: fmt.Sprintf("lower/%d-scattered", c.blocks), Unit: "us", What: "lower one rank pair, Llama-3.1-70B TP4 to TP2"}
		r.Samples = make([]float64, 0, o.Rounds)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for range o.Rounds {
			s, err := timed(func() (err error) { ns, err = t.Nests(ns[:0], j); return err })
			if err != nil {
				return nil, err
			}
			r.Samples = append(r.Samples, s*1e6)
		}
		runtime.ReadMemStats(&after)
		r.Note = fmt.Sprintf("%d nests, %.1f allocations a call", len(ns), float64(after.Mallocs-before.Mallocs)/float64(o.Rounds))
		out = append(out, AtMost(r, c.target))
	}
	return out, ctx.Err()
}
