// Package measure sets up re-shards over shared memory beside one big memcpy of the
// same bytes, for benchmarks: both read and write the same pre-faulted memory, with
// the same number of workers, and the caller lets them take turns.
package measure

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/batonkv/baton/kernels/rows"
	"github.com/batonkv/baton/transfer"
	"github.com/batonkv/baton/transfer/direct"
	"github.com/batonkv/baton/transfer/layout"
	"github.com/batonkv/baton/transfer/layout/parallel"
	"github.com/batonkv/baton/transfer/lower"
	"github.com/batonkv/baton/transfer/reshard"
)

// Case is one shape: what destination rank 0 pulls for one request.
type Case struct {
	Name        string
	Desc        parallel.Desc
	SrcTP       int32
	DstTP       int32
	Tokens      int32
	BlockTokens int32
	Scattered   bool    // block tables that are no run of neighbours
	Target      float64 // least ratio to memcpy, 0: none stated
}

// Llama70B is the paged state of Llama 3 70B; NemotronH8B has both kinds of state.
var (
	Llama70B    = parallel.Desc{Attention: &parallel.Attention{Layers: 80, Heads: 8, Dim: 128}}
	NemotronH8B = parallel.Desc{
		Attention: &parallel.Attention{Layers: 4, Heads: 8, Dim: 128},
		Mamba:     &parallel.Mamba{Layers: 24, Heads: 128, HeadDim: 64, StateDim: 128, Groups: 8, Window: 4},
	}
)

// Cases are the shapes of the target table: scatter of 256 B to 1 KiB rows, and
// gather of the same; 64-token blocks.
func Cases() []Case {
	var out []Case
	add := func(model string, d parallel.Desc, src, dst, tokens int32, target float64) {
		for _, scattered := range []bool{false, true} {
			how := "consecutive"
			if scattered {
				how = "scattered"
			}
			out = append(out, Case{Name: fmt.Sprintf("%s tp%d to tp%d %s", model, src, dst, how), Desc: d,
				SrcTP: src, DstTP: dst, Tokens: tokens, BlockTokens: 64, Scattered: scattered, Target: target})
		}
	}
	add("llama-70b", Llama70B, 2, 1, 1024, 0.85)
	add("llama-70b", Llama70B, 1, 2, 1024, 0.7)
	add("llama-70b", Llama70B, 8, 1, 1024, 0.85)
	add("llama-70b", Llama70B, 1, 8, 2048, 0.7)
	add("nemotron-h-8b", NemotronH8B, 2, 1, 8192, 0.85)
	add("nemotron-h-8b", NemotronH8B, 1, 2, 8192, 0.7)
	return out
}

// Rig is a Case in memory. Its owner calls Close. One goroutine uses it.
type Rig struct {
	workers int
	b       *direct.Backend
	pulls   []pull
	bytes   int64
	from    transfer.Mapped // the largest source buffer, for Memcpy
	to      transfer.Mapped // the largest destination buffer
	maps    [][]byte
}

type pull struct {
	link transfer.Link
	t    *lower.Template
	j    lower.Job
}

// New builds c's memory, all of it touched, and opens the links. workers: 0 is one
// per CPU.
func New(ctx context.Context, c Case, workers int) (*Rig, error) {
	if workers == 0 {
		workers = runtime.GOMAXPROCS(0)
	}
	cp, err := rows.New(rows.Config{Workers: workers})
	if err != nil {
		return nil, err
	}
	b, err := direct.New(direct.Config{Copier: cp, Workers: 1})
	if err != nil {
		return nil, err
	}
	r := &Rig{b: b, workers: workers}
	if err := r.build(ctx, c); err != nil {
		return nil, errors.Join(err, r.Close(ctx))
	}
	return r, nil
}

func (r *Rig) build(ctx context.Context, c Case) error {
	blocks := (c.Tokens + c.BlockTokens - 1) / c.BlockTokens
	mem := parallel.Memory{Blocks: blocks, BlockTokens: c.BlockTokens, KV: layout.BF16,
		Slots: 1, Conv: layout.BF16, SSM: layout.F32}
	src, err := c.Desc.Shards(parallel.Cut{TP: c.SrcTP}, mem)
	if err != nil {
		return err
	}
	dst, err := c.Desc.Shards(parallel.Cut{TP: c.DstTP}, mem)
	if err != nil {
		return err
	}
	plan, err := reshard.New(c.Desc.Model(), src, dst)
	if err != nil {
		return err
	}
	err = r.memory(c.Desc, parallel.Cut{TP: c.DstTP}, mem, 0, &r.to, func(id transfer.RegionID, m transfer.Memory) error {
		_, err := r.b.Register(ctx, id, m)
		return err
	})
	if err != nil {
		return err
	}
	for i, p := range plan.Pairs() {
		if p.Dst != 0 {
			continue
		}
		peer := transfer.Peer{ID: transfer.PeerID(fmt.Sprintf("bench/%d@1", p.Src)), Regions: map[transfer.RegionID]transfer.Memory{}}
		err := r.memory(c.Desc, parallel.Cut{TP: c.SrcTP}, mem, p.Src, &r.from, func(id transfer.RegionID, m transfer.Memory) error {
			peer.Regions[id] = m
			return nil
		})
		if err != nil {
			direct.CloseAll(peer.Regions)
			return err
		}
		x := pull{}
		if x.link, err = r.b.Open(ctx, peer); err != nil {
			return err
		}
		if x.t, err = lower.New(plan, uint32(i)); err != nil {
			return err
		}
		x.j = lower.ScatteredJob(x.t, blocks, c.BlockTokens, c.BlockTokens, !c.Scattered)
		n, err := x.t.Bytes(x.j)
		if err != nil {
			return err
		}
		r.bytes += n
		r.pulls = append(r.pulls, x)
	}
	return nil
}

// memory makes a rank's buffers, touches every page, and hands each to give. big
// remembers the largest.
func (r *Rig) memory(d parallel.Desc, cut parallel.Cut, mem parallel.Memory, rank layout.Rank, big *transfer.Mapped,
	give func(transfer.RegionID, transfer.Memory) error) error {
	rm, err := d.Rank(cut, mem, rank)
	if err != nil {
		return err
	}
	for id, n := range rm.Buffers {
		fd, pages, err := Memory(n)
		if err != nil {
			return err
		}
		r.maps = append(r.maps, pages)
		if n > big.Len {
			*big = transfer.Mapped{Addr: uint64(uintptr(unsafe.Pointer(&pages[0]))), Len: n}
		}
		if err := give(transfer.RegionID(id), transfer.Memory{Kind: transfer.Memfd, FD: fd, Len: n}); err != nil {
			return err
		}
	}
	return nil
}

// Memory is a sealed memfd of n bytes and its pages, all touched. Both are the caller's.
func Memory(n int64) (fd int, pages []byte, err error) {
	if fd, err = unix.MemfdCreate("baton-bench", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING); err != nil {
		return 0, nil, fmt.Errorf("measure: memfd: %w", err)
	}
	if pages, err = touch(fd, n); err != nil {
		unix.Close(fd)
		return 0, nil, fmt.Errorf("measure: %d bytes of shared memory: %w", n, err)
	}
	return fd, pages, nil
}

func touch(fd int, n int64) ([]byte, error) {
	if err := unix.Ftruncate(fd, n); err != nil {
		return nil, err
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW); err != nil {
		return nil, err
	}
	pages, err := unix.Mmap(fd, 0, int(n), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, err
	}
	for i := range pages {
		pages[i] = byte(i >> 8)
	}
	return pages, nil
}

// Bytes is what one Reshard, and one Memcpy, writes.
func (r *Rig) Bytes() int64 { return r.bytes }

// Reshard is one hand-off, from lowering to the last Done.
func (r *Rig) Reshard(ctx context.Context) (time.Duration, error) {
	began := time.Now()
	var open []transfer.Ticket
	for _, p := range r.pulls {
		k, err := p.link.Pull(ctx, p.t, p.j)
		if err != nil {
			return 0, err
		}
		open = append(open, k)
	}
	for _, k := range open {
		if <-k.Done(); k.Err() != nil {
			return 0, k.Err()
		}
	}
	return time.Since(began), nil
}

// Memcpy copies as many bytes flat, from the largest source buffer to the largest
// destination buffer, in as few calls as they allow.
func (r *Rig) Memcpy() (time.Duration, error) {
	began := time.Now()
	for left := r.bytes; left > 0; {
		n := min(left, r.from.Len, r.to.Len)
		if err := rows.Memcpy(r.to, r.from, n, r.workers); err != nil {
			return 0, err
		}
		left -= n
	}
	return time.Since(began), nil
}

// Close releases the memory.
func (r *Rig) Close(ctx context.Context) error {
	err := r.b.Close(ctx)
	for _, m := range r.maps {
		err = errors.Join(err, unix.Munmap(m))
	}
	r.maps = nil
	return err
}
