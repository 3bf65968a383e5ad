//go:build cgo

package cuda

/*
#include "shim.h"
*/
import "C"

import (
	"fmt"
	"unsafe"
)

// MaxChunks bounds the physical allocations of one mapping.
const MaxChunks = 1 << 16

// Point asks the driver about an address.
func (c *Context) Point(at uint64) (Pointer, error) {
	var p C.struct_cuda_pointer
	if err := c.d.fail("look at a pointer", C.cuda_point(c.d.api, c.ctx, C.uint64_t(at), &p)); err != nil {
		return Pointer{}, err
	}
	return Pointer{Base: uint64(p.base), Size: int64(p.size), GPU: int(p.ordinal), Legacy: p.legacy != 0,
		FD: p.kinds&1 != 0, Pool: p.pool != 0}, nil
}

// Export is how another process reaches memory: one handle, or a descriptor for each
// physical allocation.
type Export struct {
	Handle Handle
	Off    int64   // of the memory in the allocations
	FDs    []int   // nil with a handle; the receiver's to close
	Sizes  []int64 // of the descriptors' allocations, in bytes
}

// Export makes the n bytes at an address reachable. Memory of a stream-ordered pool cannot be.
func (c *Context) Export(at uint64, n int64) (Export, error) {
	p, err := c.Point(at)
	switch {
	case err != nil:
		return Export{}, err
	case n <= 0:
		return Export{}, fmt.Errorf("%w: %d bytes", ErrMemory, n)
	case p.Pool:
		return Export{}, fmt.Errorf("%w: it is of a cudaMallocAsync pool, which other processes cannot open: allocate the cache with cudaMalloc (in PyTorch PYTORCH_CUDA_ALLOC_CONF=backend:native)", ErrMemory)
	case p.Legacy:
		return c.exportHandle(p, at, n)
	case p.FD:
		return c.exportFDs(p, at, n)
	}
	return Export{}, fmt.Errorf("%w: it was allocated without a handle that other processes can open: ask for POSIX descriptors when it is made", ErrMemory)
}

func (c *Context) exportHandle(p Pointer, at uint64, n int64) (Export, error) {
	e := Export{Off: int64(at - p.Base)}
	if e.Off+n > p.Size {
		return Export{}, fmt.Errorf("%w: %d bytes at %d of an allocation of %d: state a buffer for each allocation", ErrMemory, n, e.Off, p.Size)
	}
	err := c.d.fail("make an IPC handle", C.cuda_ipc_get(c.d.api, c.ctx, C.uint64_t(p.Base), (*C.uchar)(unsafe.Pointer(&e.Handle[0]))))
	return e, err
}

// exportFDs walks the physical allocations that follow each other under the n bytes.
func (c *Context) exportFDs(p Pointer, at uint64, n int64) (e Export, err error) {
	e.Off = int64(at - p.Base)
	for next, end := p.Base, at+uint64(n); next < end; next += uint64(p.Size) {
		if next != p.Base {
			if p, err = c.Point(next); err == nil && (p.Base != next || !p.FD) {
				err = fmt.Errorf("%w: what follows at %#x is no memory with a descriptor", ErrMemory, next)
			}
		}
		var fd C.int32_t
		if err == nil {
			err = c.d.fail("export a descriptor", C.cuda_vmm_export(c.d.api, c.ctx, C.uint64_t(next), &fd))
		}
		if err != nil {
			closeAll(e.FDs)
			return Export{}, err
		}
		e.FDs, e.Sizes = append(e.FDs, int(fd)), append(e.Sizes, p.Size)
	}
	return e, nil
}

// OpenHandle maps another process's allocation for copies of this context's GPU.
func (c *Context) OpenHandle(h Handle) (uint64, error) {
	var at C.uint64_t
	if err := c.d.fail("open an IPC handle", C.cuda_ipc_open(c.d.api, c.ctx, (*C.uchar)(unsafe.Pointer(&h[0])), &at)); err != nil {
		return 0, fmt.Errorf("%w: %w", ErrMemory, err)
	}
	return uint64(at), nil
}

// CloseHandle unmaps what OpenHandle mapped.
func (c *Context) CloseHandle(at uint64) error {
	return c.d.fail("close an IPC handle", C.cuda_ipc_close(c.d.api, c.ctx, C.uint64_t(at)))
}

// Chunks are physical allocations, one behind the other in this process.
type Chunks struct {
	At    uint64
	c     *Context
	sizes []int64
}

// Len is their bytes.
func (k *Chunks) Len() (n int64) {
	for _, s := range k.sizes {
		n += s
	}
	return n
}

// Grain is what sizes of physical allocations are multiples of, in bytes.
func (c *Context) Grain() (int64, error) {
	var g C.int64_t
	err := c.d.fail("ask for the granularity", C.cuda_vmm_grain(c.d.api, c.ctx, C.int32_t(c.dev.Ordinal), &g))
	return int64(g), err
}

// Make allocates physical memory of the sizes, multiples of Grain, that can be exported.
func (c *Context) Make(sizes ...int64) (*Chunks, error) {
	if err := checkSizes(sizes); err != nil {
		return nil, err
	}
	k := &Chunks{c: c, sizes: append([]int64(nil), sizes...)}
	var at C.uint64_t
	rc := C.cuda_vmm_make(c.d.api, c.ctx, C.int32_t(c.dev.Ordinal), (*C.int64_t)(unsafe.Pointer(&k.sizes[0])), C.int32_t(len(sizes)), &at)
	k.At = uint64(at)
	return k, c.d.fail("allocate physical memory", rc)
}

// Import maps the physical allocations behind descriptors, for copies of this context's GPU.
// The descriptors stay the caller's.
func (c *Context) Import(fds []int, sizes []int64) (*Chunks, error) {
	if err := checkSizes(sizes); err != nil {
		return nil, err
	}
	if len(fds) != len(sizes) {
		return nil, fmt.Errorf("%w: %d descriptors of %d allocations", ErrMemory, len(fds), len(sizes))
	}
	k := &Chunks{c: c, sizes: append([]int64(nil), sizes...)}
	own := make([]C.int32_t, len(fds))
	for i, fd := range fds {
		own[i] = C.int32_t(fd)
	}
	var at C.uint64_t
	rc := C.cuda_vmm_import(c.d.api, c.ctx, C.int32_t(c.dev.Ordinal), &own[0], (*C.int64_t)(unsafe.Pointer(&k.sizes[0])), C.int32_t(len(fds)), &at)
	if err := c.d.fail("import descriptors", rc); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrMemory, err)
	}
	k.At = uint64(at)
	return k, nil
}

func checkSizes(sizes []int64) error {
	if len(sizes) == 0 || len(sizes) > MaxChunks {
		return fmt.Errorf("%w: %d allocations: want 1 to %d", ErrMemory, len(sizes), MaxChunks)
	}
	var all int64
	for _, s := range sizes {
		if s <= 0 || s > 1<<48 || all > 1<<48 {
			return fmt.Errorf("%w: allocation of %d bytes", ErrMemory, s)
		}
		all += s
	}
	return nil
}

// Close unmaps, and frees what no other process maps.
func (k *Chunks) Close() error {
	if k.sizes == nil {
		return nil
	}
	rc := C.cuda_vmm_free(k.c.d.api, k.c.ctx, C.uint64_t(k.At), (*C.int64_t)(unsafe.Pointer(&k.sizes[0])), C.int32_t(len(k.sizes)))
	k.sizes, k.At = nil, 0
	return k.c.d.fail("unmap physical memory", rc)
}
