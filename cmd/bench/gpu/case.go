//go:build cgo

package gpu

import (
	"context"
	"errors"
	"fmt"

	"github.com/batonkv/baton/cmd/bench"
	"github.com/batonkv/baton/transfer"
	"github.com/batonkv/baton/transfer/direct"
	"github.com/batonkv/baton/transfer/layout"
	"github.com/batonkv/baton/transfer/layout/parallel"
	"github.com/batonkv/baton/transfer/lower"
	"github.com/batonkv/baton/transfer/reshard"
)

// shape is what destination rank 0 pulls of one source rank for one request.
type shape struct {
	heads        int32 // of the whole model: 80 layers of 128 bf16 a head
	srcTP, dstTP int32
	order        parallel.Order
	blockTokens  int32
	tokens       int32
	scattered    bool
	kinds        [2]transfer.Kind // of the source's and the destination's memory
}

var (
	handles     = [2]transfer.Kind{transfer.CUDA, transfer.CUDA}
	descriptors = [2]transfer.Kind{transfer.CUDAFD, transfer.CUDAFD}
)

// llama70B is one rank pair of TP4 to TP8: rows of 256 B out of 512 B.
func llama70B(tokens int32, scattered bool) shape {
	return shape{heads: 8, srcTP: 4, dstTP: 8, order: parallel.Planes, blockTokens: 64, tokens: tokens, scattered: scattered, kinds: handles}
}

// fragments are tensors a layer, equal on both sides: contiguous pieces of a block and layer.
func fragments(heads, blockTokens, tokens int32) shape {
	return shape{heads: heads, srcTP: 1, dstTP: 1, order: parallel.LayerPlanes, blockTokens: blockTokens, tokens: tokens, scattered: true, kinds: handles}
}

// scene is a shape in memory, ready to be pulled.
type scene struct {
	link  transfer.Link
	t     *lower.Template
	j     lower.Job
	bytes int64
	undo  []func() error
}

func (s *scene) close(err *error) {
	for i := len(s.undo) - 1; i >= 0; i-- {
		*err = errors.Join(*err, s.undo[i]())
	}
}

// set allocates a shape in the owners' processes and opens it in b.
func (r *rig) set(ctx context.Context, b transfer.Backend, x shape) (s *scene, err error) {
	s = &scene{}
	defer func() {
		if err != nil {
			s.close(&err)
		}
	}()
	d := parallel.Desc{Attention: &parallel.Attention{Layers: 80, Heads: x.heads, Dim: 128}}
	blocks := max(x.tokens/x.blockTokens/r.o.Shrink, 1)
	mem := parallel.Memory{Order: x.order, Blocks: 2 * blocks, BlockTokens: x.blockTokens, KV: layout.BF16}
	src, err := d.Shards(parallel.Cut{TP: x.srcTP}, mem)
	if err != nil {
		return s, err
	}
	dst, err := d.Shards(parallel.Cut{TP: x.dstTP}, mem)
	if err != nil {
		return s, err
	}
	plan, err := reshard.New(d.Model(), src, dst)
	if err != nil {
		return s, err
	}
	peer := transfer.Peer{ID: "bench/0@1", Regions: map[transfer.RegionID]transfer.Memory{}}
	err = r.allocate(s, 1, d, x.dstTP, mem, x.kinds[1], func(id transfer.RegionID, m transfer.Memory) error {
		g, err := b.Register(ctx, id, m)
		if err == nil {
			s.undo = append(s.undo, g.Close)
		}
		return err
	})
	if err != nil {
		return s, err
	}
	err = r.allocate(s, 0, d, x.srcTP, mem, x.kinds[0], func(id transfer.RegionID, m transfer.Memory) error {
		peer.Regions[id] = m
		return nil
	})
	if err != nil {
		direct.CloseAll(peer.Regions)
		return s, err
	}
	if s.link, err = b.Open(ctx, peer); err != nil {
		return s, err
	}
	s.undo = append(s.undo, s.link.Close)
	if s.t, err = lower.New(plan, 0); err != nil {
		return s, err
	}
	s.j = lower.Job{Tokens: layout.Span{Hi: blocks * x.blockTokens}, SrcBlocks: table(blocks, 1), DstBlocks: table(blocks, 1)}
	if x.scattered {
		s.j.SrcBlocks, s.j.DstBlocks = table(blocks, 37), table(blocks, 53)
	}
	s.bytes, err = s.t.Bytes(s.j)
	return s, err
}

// table names n neighbours for a step of 1, else every second of 2n blocks in that step.
func table(n, step int32) (out []int32) {
	for i := range n {
		if step == 1 {
			out = append(out, i)
		} else {
			out = append(out, i*step%n*2)
		}
	}
	return out
}

// allocate makes rank 0's buffers on a GPU.
func (r *rig) allocate(s *scene, gpu int, d parallel.Desc, tp int32, mem parallel.Memory, kind transfer.Kind,
	give func(transfer.RegionID, transfer.Memory) error) error {
	rm, err := d.Rank(parallel.Cut{TP: tp}, mem, 0)
	if err != nil {
		return err
	}
	for id, n := range rm.Buffers {
		m, number, err := r.owners[gpu].Alloc(gpu, kind, n)
		if err != nil {
			return fmt.Errorf("%d bytes on GPU %d: %w", n, gpu, err)
		}
		s.undo = append(s.undo, func() error { return r.owners[gpu].Free(number) })
		if err := give(transfer.RegionID(id), m); err != nil {
			return err
		}
	}
	return nil
}

// pull is one whole pull, from the call to the ticket's end, in seconds.
func (s *scene) pull(ctx context.Context) (float64, error) {
	return timed(func() error {
		k, err := s.link.Pull(ctx, s.t, s.j)
		if err != nil {
			return err
		}
		<-k.Done()
		return k.Err()
	})
}

// measure lets pulls of x over b and flat copies take turns.
func (r *rig) measure(ctx context.Context, b transfer.Backend, x shape, res bench.Result) (_ bench.Result, err error) {
	return r.measureBy(ctx, b, x, res, func(ctx context.Context, s *scene) (float64, error) { return s.pull(ctx) })
}

// measureBy is measure with another way to move a scene's bytes. What counts is a copy that
// follows one of its kind; the copy that follows one of the other kind, with what the GPU
// remembers of other pages and of another process, is told in the note.
func (r *rig) measureBy(ctx context.Context, b transfer.Backend, x shape, res bench.Result, pull func(context.Context, *scene) (float64, error)) (_ bench.Result, err error) {
	s, err := r.set(ctx, b, x)
	if err != nil {
		return res, err
	}
	defer s.close(&err)
	res.BaseUnit = "GB/s"
	var cold []float64
	for i := range r.o.Rounds + 1 {
		var took, flat [2]float64
		for k := range 2 {
			if flat[k], err = r.memcpy(); err != nil {
				return res, err
			}
		}
		for k := range 2 {
			if took[k], err = pull(ctx, s); err != nil {
				return res, err
			}
		}
		if i == 0 {
			continue // the first pays for mappings and templates
		}
		base := float64(r.flat) / flat[1] / 1e9
		res.Baseline = append(res.Baseline, base)
		res.Samples = append(res.Samples, in(res.Unit, s.bytes, took[1], base))
		cold = append(cold, in(res.Unit, s.bytes, took[0], base))
	}
	if res.What != "" {
		res.What += ", "
	}
	res.What += fmt.Sprintf("%.1f MiB", float64(s.bytes)/(1<<20))
	res.Note = fmt.Sprintf("%.2f after a flat copy", bench.Median(cold))
	res.Value = bench.Median(res.Samples)
	return res, ctx.Err()
}

// in is n bytes in some seconds in a unit, or as a ratio to base GB/s.
func in(unit string, n int64, seconds, base float64) float64 {
	rate := float64(n) / seconds / 1e9
	switch unit {
	case "GB/s":
		return rate
	case "us":
		return seconds * 1e6
	}
	return rate / base
}
