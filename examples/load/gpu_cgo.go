//go:build cgo

package load

import (
	"golang.org/x/sys/unix"

	"github.com/batonkv/baton/kernels/cuda"
	"github.com/batonkv/baton/sidecar/handoff"
)

// gpuMemory is a buffer's device.
type gpuMemory struct {
	c  *cuda.Context
	at uint64
}

func (g gpuMemory) put(off int64, b []byte) error { return g.c.Put(g.at+uint64(off), b) }
func (g gpuMemory) get(b []byte, off int64) error { return g.c.Get(b, g.at+uint64(off)) }

// align is what buffers of one allocation start at multiples of, as torch's do.
const align = 512

// gpuOwner is what a rank has on its GPU, and undoes in the opposite order.
type gpuOwner struct {
	*cuda.Context
	undo []func() error
	bs   []buffer
}

func (g *gpuOwner) free() {
	for _, b := range g.bs {
		for _, f := range b.fds {
			_ = unix.Close(f) // nobody writes to it
		}
	}
	for i := len(g.undo) - 1; i >= 0; i-- {
		_ = g.undo[i]() // the process ends
	}
}

// onGPU allocates on the rank's GPU: ranks take them in turn. By handle all buffers lie in one
// allocation, as those of a caching allocator may; by descriptors each has two of its own.
func onGPU(cfg Config, sizes []int64) ([]buffer, func(), error) {
	d, err := cuda.Open()
	if err != nil {
		return nil, nil, err
	}
	c, err := d.Context(cfg.Rank % len(d.Devices()))
	if err != nil {
		return nil, nil, err
	}
	g := &gpuOwner{Context: c, undo: []func() error{c.Close}}
	ats, err := g.alloc(cfg.Memory, sizes)
	for i := 0; err == nil && i < len(sizes); i++ {
		err = g.share(i, ats[i], sizes[i])
	}
	if err != nil {
		g.free()
		return nil, nil, err
	}
	return g.bs, g.free, nil
}

// share makes a buffer of the n bytes at an address.
func (g *gpuOwner) share(i int, at uint64, n int64) error {
	x, err := g.Export(at, n)
	if err == nil {
		m := &handoff.GPUMemory{UUID: g.Device().UUID, Handle: x.Handle, Chunks: x.Sizes}
		g.bs = append(g.bs, buffer{mem: make([]byte, n), decl: handoff.BufferDecl{ID: uint32(i), Off: x.Off, Len: n, GPU: m}, fds: x.FDs, dev: gpuMemory{g.Context, at}})
	}
	return err
}

func (g *gpuOwner) alloc(m Memory, sizes []int64) ([]uint64, error) {
	if m == OnGPU {
		return g.inOne(sizes)
	}
	return g.inChunks(sizes)
}

// inOne puts all buffers into one allocation.
func (g *gpuOwner) inOne(sizes []int64) (ats []uint64, err error) {
	var all int64
	for _, n := range sizes {
		ats = append(ats, uint64(all))
		all += (n + align - 1) / align * align
	}
	at, err := g.Alloc(all)
	if err != nil {
		return nil, err
	}
	g.undo = append(g.undo, func() error { return g.Free(at) })
	for i := range ats {
		ats[i] += at
	}
	return ats, nil
}

// inChunks puts each buffer into physical allocations, the first of the smallest size.
func (g *gpuOwner) inChunks(sizes []int64) (ats []uint64, err error) {
	grain, err := g.Grain()
	if err != nil {
		return nil, err
	}
	for _, n := range sizes {
		chunks := []int64{grain}
		if n > grain {
			chunks = append(chunks, (n-1)/grain*grain)
		}
		k, err := g.Make(chunks...)
		if err != nil {
			return nil, err
		}
		g.undo = append(g.undo, k.Close)
		ats = append(ats, k.At)
	}
	return ats, nil
}
