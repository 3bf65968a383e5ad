//go:build cgo

package gpu

import (
	"context"
	"errors"
	"fmt"

	"github.com/batonkv/baton/cmd/bench"
	"github.com/batonkv/baton/kernels/cuda"
	"github.com/batonkv/baton/kernels/dma"
	"github.com/batonkv/baton/transfer"
)

const ratio = "x of memcpy peer"

// lines are the lines in the order of measuring.
func lines(variants bool) []row {
	out := []row{
		one("gpu/memcpy-peer", "", shape{}, "GB/s", 0, flat),
	}
	for _, c := range []struct {
		tokens int32
		target float64
	}{{8192, 0.96}, {1024, 0.85}, {256, 0.65}} {
		out = append(out, pulled(fmt.Sprintf("gpu/consecutive-%d", c.tokens),
			fmt.Sprintf("llama-70b TP4 to TP8, %d tokens of consecutive blocks", c.tokens), llama70B(c.tokens, false), ratio, c.target))
	}
	fds := llama70B(8192, false)
	fds.kind = transfer.CUDAFD
	out = append(out,
		pulled("gpu/consecutive-8192-descriptors", "the same over descriptors of physical allocations", fds, ratio, 0.96),
		pulled("gpu/scattered-8192", "llama-70b TP4 to TP8, 8192 tokens in scattered 64-token blocks", llama70B(8192, true), "GB/s", 260),
		pulled("gpu/scattered-1024", "the same, 1024 tokens", llama70B(1024, true), "GB/s", 0),
		pulled("gpu/fragments-16k", "a tensor a layer, scattered fragments of 16 KiB", fragments(4, 16, 2048), "GB/s", 20),
		pulled("gpu/fragments-128k", "a tensor a layer, scattered fragments of 128 KiB", fragments(8, 64, 4096), "GB/s", 110),
		pulled("gpu/one-block", "one block of 64 tokens, from Pull to Done, the mover's process included", llama70B(64, false), "us", 60),
		row{"gpu/stand-ins", standIns},
	)
	if variants {
		out = append(out, row{"gpu/variants", variantsOf})
	}
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
			took, err := timed(func() error { return errors.Join(r.lane.Submit(&p), r.lane.Wait()) })
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
	try := func(name string, x shape, cfg dma.Config) {
		if err != nil || ctx.Err() != nil {
			return
		}
		b, d, e := r.inProcess(cfg)
		if e == nil {
			var res bench.Result
			res, e = r.measure(ctx, b, x, bench.Result{Name: "gpu/variant/" + name, Unit: "GB/s", Met: true})
			if e == nil {
				c := d.Counts()
				res.Note = fmt.Sprintf("%d calls, %d batched, %d graphs a pull", c.Calls/c.Jobs, c.Batched/c.Jobs, c.Graphs/c.Jobs)
				out = append(out, res)
			}
			e = errors.Join(e, b.Close(ctx), d.Close())
		}
		if e != nil {
			err = fmt.Errorf("%s: %w", name, e)
		}
	}
	scattered := llama70B(8192, true)
	for _, streams := range []int{1, 2, 4, 8} {
		try(fmt.Sprintf("scattered/calls-%d-streams", streams), scattered, dma.Config{Streams: streams, GraphFrom: -1})
	}
	for _, streams := range []int{1, 2, 4} {
		for _, ops := range []int{16, 32, 64, 128} {
			for _, branches := range []int{1, 2, 4, 8} {
				try(fmt.Sprintf("scattered/graphs-of-%d-branches-%d-streams-%d", ops, branches, streams), scattered,
					dma.Config{Streams: streams, GraphOps: ops, Branches: branches})
			}
		}
	}
	for _, c := range []struct {
		name string
		x    shape
	}{{"fragments-16k", fragments(4, 16, 2048)}, {"fragments-128k", fragments(8, 64, 4096)}} {
		try(c.name+"/batch", c.x, dma.Config{})
		try(c.name+"/calls", c.x, dma.Config{BatchFrom: -1, GraphFrom: -1})
		try(c.name+"/graphs", c.x, dma.Config{BatchFrom: -1})
		try(c.name+"/strided-graphs", c.x, dma.Config{FlattenRows: -1})
	}
	for _, tokens := range []int32{64, 256, 1024, 8192} {
		try(fmt.Sprintf("consecutive-%d", tokens), llama70B(tokens, false), dma.Config{})
	}
	return out, err
}
