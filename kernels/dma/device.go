//go:build cgo

package dma

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/batonkv/baton/kernels/cuda"
	"github.com/batonkv/baton/transfer"
	"github.com/batonkv/baton/transfer/lower"
)

// maxHandles bounds the allocations of other processes that are mapped at once.
const maxHandles = 4096

// Device maps GPU memory of other processes and copies it with the engines of one GPU: that
// of the first memory which is mapped for writing, or of the first of all if there is none.
// Everything is opened in the context of that GPU: opened in another one, copies go through
// the host at a tenth of the speed. The driver is loaded with the first memory.
type Device struct {
	cfg   Config
	names []string

	mu      sync.Mutex
	driver  *cuda.Driver
	ctx     *cuda.Context
	copier  *Copier
	handles map[cuda.Handle]*mapped
	live    int     // mappings
	written int     // those of live that are written: they hold the GPU
	hosts   []*host // by address
	pinned  int64   // bytes of them
}

// mapped is an allocation that one or more memories lie in.
type mapped struct {
	at   uint64
	refs int
}

// NewDevice makes a Device that loads the driver from names, or libcuda.so.1.
func NewDevice(cfg Config, names ...string) (*Device, error) {
	if err := cfg.Check(); err != nil {
		return nil, err
	}
	return &Device{cfg: cfg.withDefaults(), names: names, handles: map[cuda.Handle]*mapped{}}, nil
}

// Map maps m, whose descriptors stay the caller's, for as long as unmap is not called. Memory
// that is written chooses the GPU for as long as any of it is mapped.
func (d *Device) Map(m transfer.Memory, write bool) (at transfer.Mapped, unmap func() error, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if m.GPU == nil {
		return at, nil, fmt.Errorf("%w: GPU memory without its GPU", transfer.ErrMemory)
	}
	if err := d.start(m.GPU.UUID, write); err != nil {
		return at, nil, fmt.Errorf("%w: %w", transfer.ErrMemory, err)
	}
	var base uint64
	var size int64 // 0: the driver alone knows
	switch m.Kind {
	case transfer.CUDA:
		if base, unmap, err = d.open(m.GPU.Handle); err == nil {
			var p cuda.Pointer
			if p, err = d.ctx.Point(base); err == nil {
				size = p.Size
			}
		}
	case transfer.CUDAFD:
		base, size, unmap, err = d.importAll(m.GPU.Chunks)
	default:
		err = fmt.Errorf("memory of kind %d is not a GPU's", m.Kind)
	}
	if err == nil && (m.Off < 0 || m.Len <= 0 || m.Off > size-m.Len) {
		err = fmt.Errorf("%d bytes at offset %d of an allocation of %d", m.Len, m.Off, size)
	}
	if err != nil {
		if unmap != nil {
			err = errors.Join(err, unmap())
		}
		return at, nil, fmt.Errorf("%w: %w", transfer.ErrMemory, err)
	}
	d.live++
	if write {
		d.written++
	}
	return transfer.Mapped{Addr: base + uint64(m.Off), Len: m.Len, GPU: true}, d.locked(unmap, write), nil
}

// locked is unmap for callers outside, once.
func (d *Device) locked(unmap func() error, write bool) func() error {
	var once sync.Once
	return func() (err error) {
		once.Do(func() {
			d.mu.Lock()
			defer d.mu.Unlock()
			d.live--
			if write {
				d.written--
			}
			err = unmap()
		})
		return err
	}
}

// start loads the driver and chooses the GPU. Caller holds mu.
func (d *Device) start(uuid [16]byte, write bool) (err error) {
	if d.driver == nil {
		if d.driver, err = cuda.Open(d.names...); err != nil {
			return err
		}
	}
	g, err := d.driver.Find(uuid)
	if err != nil {
		return err
	}
	if d.ctx != nil && write && g.Ordinal != d.ctx.Device().Ordinal && d.live == 0 {
		if err := d.stop(); err != nil { // nothing hangs on the GPU that a peer, or an engine before, chose
			return err
		}
	}
	switch {
	case d.ctx == nil:
		if err := d.choose(g.Ordinal); err != nil {
			return err
		}
	case write && g.Ordinal != d.ctx.Device().Ordinal:
		fix := "run a sidecar for each GPU"
		if d.written == 0 {
			fix = "attach again when the links to peers, whose memory it was chosen for, have ended"
		}
		return fmt.Errorf("it is of GPU %d and GPU %d copies: one sidecar serves one GPU, %s", g.Ordinal, d.ctx.Device().Ordinal, fix)
	}
	return d.driver.Reaches(d.ctx.Device().Ordinal, g.Ordinal)
}

func (d *Device) choose(ordinal int) error {
	ctx, err := d.driver.Context(ordinal)
	if err != nil {
		return err
	}
	c, err := New(ctx, d.cfg)
	if err != nil {
		return errors.Join(err, ctx.Close())
	}
	d.ctx, d.copier = ctx, c
	return nil
}

// stop lets the GPU go. Caller holds mu.
func (d *Device) stop() error {
	if d.ctx == nil {
		return nil
	}
	err := errors.Join(d.unpinAll(), d.copier.Close(), d.ctx.Close())
	d.ctx, d.copier = nil, nil
	return err
}

// open maps the allocation behind a handle once, however many memories lie in it: engines'
// allocators put many tensors into one. Caller holds mu.
func (d *Device) open(h cuda.Handle) (uint64, func() error, error) {
	k := d.handles[h]
	if k == nil {
		if len(d.handles) == maxHandles {
			return 0, nil, fmt.Errorf("%w: %d allocations are mapped: attach fewer, larger ones", transfer.ErrFull, maxHandles)
		}
		at, err := d.ctx.OpenHandle(h)
		if err != nil {
			return 0, nil, fmt.Errorf("%w: does the process that exported it live?", err)
		}
		k = &mapped{at: at}
		d.handles[h] = k
	}
	k.refs++
	return k.at, func() error {
		if k.refs--; k.refs > 0 {
			return nil
		}
		delete(d.handles, h)
		return d.ctx.CloseHandle(k.at)
	}, nil
}

func (d *Device) importAll(chunks []transfer.Chunk) (uint64, int64, func() error, error) {
	fds, sizes := make([]int, 0, len(chunks)), make([]int64, 0, len(chunks))
	for _, c := range chunks {
		fds, sizes = append(fds, c.FD), append(sizes, c.Len)
	}
	k, err := d.ctx.Import(fds, sizes)
	if err != nil {
		return 0, 0, nil, err
	}
	return k.At, k.Len(), k.Close, nil
}

// Fits implements transfer.Copier.
func (d *Device) Fits(n lower.Nest) error { return (*Copier)(nil).Fits(n) }

// Copy implements transfer.Copier, between memories that are mapped, one of which may be the
// host's.
func (d *Device) Copy(ctx context.Context, ns []lower.Nest, src, dst transfer.Buffers) (int64, error) {
	d.mu.Lock()
	c := d.copier
	var hosts []*host
	if c != nil {
		hosts = d.unpinned(nil, ns, src, dst)
	}
	d.mu.Unlock()
	if c == nil {
		return 0, fmt.Errorf("%w: no GPU memory is mapped", transfer.ErrBounds)
	}
	for _, h := range hosts {
		if err := d.pin(ctx, h); err != nil {
			return 0, err
		}
	}
	return c.Copy(ctx, ns, src, dst)
}

// Counts are those of its Copier.
func (d *Device) Counts() Counts {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.copier == nil {
		return Counts{}
	}
	return d.copier.Counts()
}

// Close lets the GPU go. Everything must be unmapped.
func (d *Device) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.live > 0 {
		return fmt.Errorf("%w: %d GPU memories are mapped", transfer.ErrBusy, d.live)
	}
	return d.stop()
}
