//go:build cgo

package gpu

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/batonkv/baton/cmd/bench"
	"github.com/batonkv/baton/kernels/cuda"
	"github.com/batonkv/baton/kernels/dma"
	"github.com/batonkv/baton/transfer"
)

const ratio = "x of memcpy peer"

// lines are the lines that o asks for, in the order of measuring.
func lines(o Options) []row {
	switch {
	case o.Every > 0:
		return []row{{"gpu/paced", paced}}
	case o.Variants:
		return []row{{"gpu/variants", variantsOf}}
	}
	return slices.DeleteFunc(all(), func(r row) bool {
		return len(o.Only) > 0 && !slices.ContainsFunc(o.Only, func(s string) bool { return strings.HasPrefix(r.name, s) })
	})
}

func all() []row {
	out := []row{
		one("gpu/memcpy-peer", "", shape{}, "GB/s", 0, flat),
	}
	for _, c := range []struct {
		tokens int32
		target float64
	}{{8192, 0.96}, {1024, 0.85}, {256, 0.65}} {
		out = append(out, copied(fmt.Sprintf("gpu/consecutive-%d", c.tokens),
			fmt.Sprintf("llama-70b TP4 to TP8, %d tokens of consecutive blocks", c.tokens), llama70B(c.tokens, false), ratio, c.target))
	}
	fds := llama70B(8192, false)
	fds.kinds = descriptors
	out = append(out,
		copied("gpu/consecutive-8192-descriptors", "the same over descriptors of physical allocations, 8192 tokens", fds, ratio, 0.96),
		copied("gpu/scattered-8192", "llama-70b TP4 to TP8, 8192 tokens in scattered 64-token blocks", llama70B(8192, true), "GB/s", 260),
		copied("gpu/scattered-1024", "the same, 1024 tokens", llama70B(1024, true), "GB/s", 0),
		copied("gpu/fragments-16k", "a tensor a layer, scattered fragments of 16 KiB", fragments(4, 16, 2048), "GB/s", 20),
		copied("gpu/fragments-128k", "a tensor a layer, scattered fragments of 128 KiB", fragments(8, 64, 8192), "GB/s", 110),
		copied("gpu/one-block", "one block of 64 tokens, by the copier alone", llama70B(64, false), "us", 0),
		pulled("gpu/pull-one-block", "the same from Pull to Done, the mover's process included", llama70B(64, false), "us", 60),
		one("gpu/pull-one-block-idle", "the same when nothing was pulled for 20 ms", llama70B(64, false), "us", 0, idle),
		pulled("gpu/pull-consecutive-8192", "consecutive blocks from Pull to Done by the mover", llama70B(8192, false), ratio, 0),
		pulled("gpu/pull-consecutive-1024", "the same", llama70B(1024, false), ratio, 0),
		pulled("gpu/pull-scattered-8192", "scattered blocks from Pull to Done by the mover", llama70B(8192, true), "GB/s", 0),
		row{"gpu/stand-ins", standIns},
		row{"gpu/host", staging},
	)
	return out
}

// one is a row of one result.
func one(name, what string, x shape, unit string, target float64, f func(context.Context, *rig, shape, bench.Result) (bench.Result, error)) row {
	return row{name, func(ctx context.Context, r *rig) ([]bench.Result, error) {
		res, err := f(ctx, r, x, bench.Result{Name: name, What: what, Unit: unit})
		if err != nil {
			return nil, err
		}
		switch {
		case target == 0:
			res.Met = true
		case unit == "us":
			res = bench.AtMost(res, target)
		default:
			res = bench.AtLeast(res, target)
		}
		return []bench.Result{res}, nil
	}}
}

// pulled is a row of pulls by the mover.
func pulled(name, what string, x shape, unit string, target float64) row {
	return one(name, what, x, unit, target, func(ctx context.Context, r *rig, x shape, res bench.Result) (bench.Result, error) {
		return r.measure(ctx, r.mover, x, res)
	})
}

// idle measures pulls before each of which everybody sleeps.
func idle(ctx context.Context, r *rig, x shape, res bench.Result) (bench.Result, error) {
	return r.measureBy(ctx, r.mover, x, res, func(ctx context.Context, s *scene) (float64, error) {
		time.Sleep(20 * time.Millisecond)
		return s.pull(ctx)
	})
}

// copied is a row of the copier alone.
func copied(name, what string, x shape, unit string, target float64) row {
	return one(name, what, x, unit, target, func(ctx context.Context, r *rig, x shape, res bench.Result) (bench.Result, error) {
		if r.direct == nil {
			var err error
			if r.direct, r.tap, err = r.inProcess(dma.Config{}); err != nil {
				return res, err
			}
		}
		res, c, err := r.engineOf(ctx, r.direct, r.tap, 1, x, res)
		if err == nil {
			res.Note += "; " + made(c, r.o.Rounds)
		}
		return res, err
	})
}

// made says what a copier does for one job.
func made(c dma.Counts, rounds int) string {
	n := int64(2 * (rounds + 1))
	return fmt.Sprintf("%d calls, %d batched", c.Calls/n, c.Batched/n)
}

func flat(_ context.Context, r *rig, _ shape, res bench.Result) (bench.Result, error) {
	res.What = fmt.Sprintf("one flat copy of %d MiB between the GPUs, within one process", r.flat>>20)
	for i := range r.o.Rounds + 1 {
		took, err := r.memcpy()
		if err != nil {
			return res, err
		}
		if i > 0 {
			res.Samples = append(res.Samples, float64(r.flat)/took/1e9)
		}
	}
	res.Value = bench.Median(res.Samples)
	return res, nil
}

// standIns copy with a call for each descriptor, as a list of descriptors does that nobody merges.
func standIns(ctx context.Context, r *rig) (out []bench.Result, err error) {
	for _, size := range []int64{256, 128 << 10, 2 << 20} {
		n := min(r.flat/size, 8192)
		p := cuda.Program{}
		for i := range uint64(n) {
			p.Ops = append(p.Ops, cuda.Op{Src: r.from + i*uint64(size), Dst: r.to + i*uint64(size), Width: uint64(size), Height: 1, Depth: 1})
		}
		res := bench.Result{Name: fmt.Sprintf("gpu/calls-of-%d", size), Unit: "GB/s", Met: true,
			What: fmt.Sprintf("a call for each of %d descriptors of %d bytes", n, size)}
		for range min(r.o.Rounds, 7) {
			took, err := timed(func() error { return errors.Join(r.lane.Submit(&p), r.lane.Wait(0)) })
			if err != nil {
				return out, err
			}
			res.Samples = append(res.Samples, float64(n*size)/took/1e9)
		}
		res.Value = bench.Median(res.Samples)
		out = append(out, res)
	}
	return out, ctx.Err()
}

// variantsOf measures each way of submitting scattered copies, in this process.
func variantsOf(ctx context.Context, r *rig) (out []bench.Result, err error) {
	try := func(name string, threads int, x shape, cfg dma.Config) {
		if err != nil || ctx.Err() != nil {
			return
		}
		res, c, e := r.engine(ctx, cfg, threads, x, bench.Result{Name: "gpu/variant/" + name, Unit: "GB/s", Met: true})
		if e == nil {
			res.Note += "; " + made(c, r.o.Rounds)
			out = append(out, res)
		}
		if e != nil {
			err = fmt.Errorf("%s: %w", name, e)
		}
	}
	for _, mix := range []struct {
		name  string
		kinds [2]transfer.Kind
	}{
		{"handles", handles},
		{"descriptors", descriptors},
		{"from-handles-to-descriptors", [2]transfer.Kind{transfer.CUDA, transfer.CUDAFD}},
		{"from-descriptors-to-handles", [2]transfer.Kind{transfer.CUDAFD, transfer.CUDA}},
	} {
		for _, tokens := range []int32{256, 1024, 8192} {
			x := llama70B(tokens, false)
			x.kinds = mix.kinds
			try(fmt.Sprintf("consecutive-%d/%s", tokens, mix.name), 1, x, dma.Config{})
		}
		x := llama70B(8192, true)
		x.kinds = mix.kinds
		for _, streams := range []int{1, 2, 4} {
			try(fmt.Sprintf("scattered-8192/%s/%d-streams", mix.name, streams), 1, x, dma.Config{Streams: streams})
		}
		for _, threads := range []int{2, 4} {
			try(fmt.Sprintf("scattered-8192/%s/%d-threads", mix.name, threads), threads, x, dma.Config{})
		}
	}
	for _, c := range []struct {
		name string
		x    shape
	}{{"fragments-16k", fragments(4, 16, 2048)}, {"fragments-128k", fragments(8, 64, 8192)}} {
		try(c.name+"/batch", 1, c.x, dma.Config{})
		try(c.name+"/batch-2-threads", 2, c.x, dma.Config{})
		try(c.name+"/calls", 1, c.x, dma.Config{BatchFrom: -1})
		try(c.name+"/strided-calls", 1, c.x, dma.Config{FlattenRows: -1})
	}
	return out, err
}
