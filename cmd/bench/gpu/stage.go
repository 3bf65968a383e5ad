//go:build cgo

package gpu

import (
	"context"
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/batonkv/baton/cmd/bench"
	"github.com/batonkv/baton/kernels/cuda"
	"github.com/batonkv/baton/transfer"
	"github.com/batonkv/baton/transfer/layout"
	"github.com/batonkv/baton/transfer/layout/parallel"
	"github.com/batonkv/baton/transfer/mover"
	"github.com/batonkv/baton/transfer/reshard"
	"github.com/batonkv/baton/transfer/staged"
	"github.com/batonkv/baton/transfer/staged/pack"
)

// arenaBytes is the staging arena of the bench, and what one flat copy has.
const arenaBytes = 256 << 20

// depth is how many chunks are under way at once.
const depth = 8

// station is GPU 0 with an engine's cache, a staging arena in host memory, and a mover of its
// own that packs and unpacks between them, as a sidecar's does.
type station struct {
	r       *rig
	m       *mover.Mover
	host    []byte // the arena in this process, pinned
	lane    *cuda.Lane
	out, in transfer.Link // from the engine's memory, and from the arena
	model   layout.Model
	shards  []layout.Shard
	moves   []pack.Move
	own     pack.Own
	bytes   int64
	chunk   int64
	keep    scene // the engine's memory
	undo    []func() error
}

const arenaRegion = 100

// staging measures packing and unpacking of a rank pair's share, beside flat copies of the
// same direction.
func staging(ctx context.Context, r *rig) (out []bench.Result, err error) {
	for _, chunk := range []int64{1 << 20, 4 << 20, 16 << 20} {
		rs, err := r.station(ctx, max(chunk/int64(r.o.Shrink), 64<<10))
		if err != nil {
			return out, err
		}
		out = append(out, rs...)
	}
	return out, nil
}

func (r *rig) station(ctx context.Context, chunk int64) (out []bench.Result, err error) {
	s := &station{r: r, chunk: chunk}
	defer func() {
		for i := len(s.undo) - 1; i >= 0; i-- {
			err = errors.Join(err, s.undo[i]())
		}
	}()
	if err := s.open(ctx); err != nil {
		return nil, err
	}
	k, err := pack.New(s.model, s.moves, staged.BodyRoom(chunk))
	if err != nil {
		return nil, err
	}
	arena := pack.Arena{Chunks: int32(s.arena() / chunk), Chunk: chunk, Head: staged.StampBytes}
	in := arena
	arena.Buffer = arenaRegion
	for _, w := range []struct {
		name, what string
		kind       cuda.Kind
		link       transfer.Link
		copies     *pack.Copies
	}{
		{"pack", "packing into host memory", cuda.ToHost, s.out, k.Pack(s.shards, arena)},
		{"unpack", "unpacking from host memory", cuda.FromHost, s.in, k.Unpack(s.shards, in)},
	} {
		res := bench.Result{Name: fmt.Sprintf("gpu/host-%s-%dk", w.name, chunk>>10), Unit: "x of flat copy", BaseUnit: "GB/s"}
		res.What = fmt.Sprintf("%s, llama-70b TP4 to TP8, %.1f MiB in chunks of %d KiB, by the mover", w.what, float64(s.bytes)/(1<<20), chunk>>10)
		for i := range r.o.Rounds + 1 {
			flat, err := s.flat(w.kind)
			if err != nil {
				return out, err
			}
			took, err := timed(func() error { return s.all(ctx, w.link, w.copies, k) })
			if err != nil {
				return out, err
			}
			if i > 0 { // the first pays for mappings, and pins
				base := float64(s.arena()) / flat / 1e9
				res.Baseline = append(res.Baseline, base)
				res.Samples = append(res.Samples, float64(s.bytes)/took/1e9/base)
			}
		}
		res.Value = bench.Median(res.Samples)
		res.Note = fmt.Sprintf("%.1f GB/s", res.Value*bench.Median(res.Baseline))
		out = append(out, bench.AtLeast(res, 0.9))
	}
	return out, ctx.Err()
}

func (s *station) arena() int64 { return max(arenaBytes/int64(s.r.o.Shrink), 2*s.chunk) }

// open makes the memories and hands them to a mover.
func (s *station) open(ctx context.Context) (err error) {
	fd, err := unix.MemfdCreate("bench-arena", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return err
	}
	s.undo = append(s.undo, func() error { return unix.Close(fd) })
	if err := unix.Ftruncate(fd, s.arena()); err != nil {
		return err
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK); err != nil {
		return err
	}
	if s.host, err = unix.Mmap(fd, 0, int(s.arena()), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		return err
	}
	s.undo = append(s.undo, func() error { return unix.Munmap(s.host) })
	g := s.r.gpus[0]
	if err := g.Pin(s.at(), s.arena(), false); err != nil {
		return err
	}
	s.undo = append(s.undo, func() error { return g.Unpin(s.at()) })
	if s.lane, err = g.Lane(1); err != nil {
		return err
	}
	s.undo = append(s.undo, s.lane.Close)
	s.undo = append(s.undo, func() (err error) { s.keep.close(&err); return err }) // after the mover has unmapped it
	if s.m, err = mover.Start(mover.Config{Command: []string{s.r.o.Binary, "mover"}}); err != nil {
		return err
	}
	s.undo = append(s.undo, func() error { return s.m.Close(ctx) })
	arena := func() (transfer.Memory, error) {
		fd, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		return transfer.Memory{Kind: transfer.Memfd, FD: fd, Len: s.arena()}, err
	}
	a, err := arena()
	if err != nil {
		return err
	}
	if _, err := s.m.Register(ctx, arenaRegion, a); err != nil {
		return err
	}
	if a, err = arena(); err != nil {
		return err
	}
	if err := s.engine(ctx); err != nil {
		return errors.Join(err, unix.Close(a.FD))
	}
	s.in, err = s.m.Open(ctx, transfer.Peer{ID: "arena", Regions: map[transfer.RegionID]transfer.Memory{0: a}})
	return err
}

func (s *station) at() uint64 { return uint64(uintptr(unsafe.Pointer(&s.host[0]))) }

// engine allocates the cache of a TP4 rank, which the mover reads and writes, and says what
// of it a TP8 rank takes.
func (s *station) engine(ctx context.Context) error {
	d := parallel.Desc{Attention: &parallel.Attention{Layers: 80, Heads: 8, Dim: 128}}
	tokens := max(8192/s.r.o.Shrink, 64)
	mem := parallel.Memory{Order: parallel.Planes, Blocks: tokens / 64, BlockTokens: 64, KV: layout.BF16}
	s.model = d.Model()
	src, err := d.Shards(parallel.Cut{TP: 4}, mem)
	if err != nil {
		return err
	}
	dst, err := d.Shards(parallel.Cut{TP: 8}, mem)
	if err != nil {
		return err
	}
	plan, err := reshard.New(s.model, src, dst)
	if err != nil {
		return err
	}
	s.moves = pack.Of(plan, 0)
	s.own = pack.Own{Tokens: layout.Span{Hi: tokens}, Blocks: table(tokens/64, 1), Slot: -1}
	s.bytes = int64(tokens) * 80 * 2 * 128 * 2 // K and V of one head
	peer := transfer.Peer{ID: "engine", Regions: map[transfer.RegionID]transfer.Memory{}}
	err = s.r.allocate(&s.keep, 0, d, 4, mem, transfer.CUDA, func(id transfer.RegionID, m transfer.Memory) error {
		peer.Regions[id] = m
		_, err := s.m.Register(ctx, id, m)
		return err
	})
	rm, e := d.Rank(parallel.Cut{TP: 4}, mem, 0)
	if err = errors.Join(err, e); err != nil {
		return err
	}
	s.shards = rm.Shards
	s.out, err = s.m.Open(ctx, peer)
	return err
}

// flat is one copy of the whole arena, in seconds.
func (s *station) flat(kind cuda.Kind) (float64, error) {
	op := cuda.Op{Src: s.r.from, Dst: s.at(), Width: uint64(s.arena()), Height: 1, Depth: 1, Kind: kind}
	if kind == cuda.FromHost {
		op.Src, op.Dst = op.Dst, op.Src
	}
	op.SrcPitch, op.DstPitch, op.SrcRows, op.DstRows = op.Width, op.Width, 1, 1
	p := cuda.Program{Ops: []cuda.Op{op}}
	return timed(func() error { return errors.Join(s.lane.Submit(&p), s.lane.Wait(0)) })
}

// all moves every chunk, several at once.
func (s *station) all(ctx context.Context, l transfer.Link, c *pack.Copies, k *pack.Packing) error {
	n, err := k.Chunks(s.own.Tokens)
	if err != nil {
		return err
	}
	slots := min(depth, int32(s.arena()/s.chunk))
	open := make([]transfer.Ticket, slots)
	var errs []error
	for i := range n + slots {
		if t := open[i%slots]; t != nil {
			<-t.Done()
			errs = append(errs, t.Err())
			open[i%slots] = nil
		}
		if i >= n {
			continue
		}
		tm, j, err := c.Copy(s.own, i, i%slots)
		if err == nil {
			open[i%slots], err = l.Pull(ctx, tm, j)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
