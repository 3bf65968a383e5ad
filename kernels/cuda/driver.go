//go:build cgo

package cuda

/*
#cgo CFLAGS: -O2 -Wall -Wextra
#include "shim.h"
*/
import "C"

import (
	"fmt"
	"unsafe"

	"github.com/batonkv/baton/kernels/dl"
)

// Driver is the loaded driver. Safe for concurrent use.
type Driver struct {
	api     *C.struct_cuda_api
	version int32
	devices []Device
}

// Open loads the driver: libcuda.so.1, or the files named instead of it.
func Open(names ...string) (*Driver, error) {
	if len(names) == 0 {
		names = []string{"libcuda.so.1"}
	}
	lib, err := dl.Open(names...)
	if err != nil {
		return nil, fmt.Errorf("%w: %w: install the NVIDIA driver, or in a container ask for the utility and compute capabilities", ErrNone, err)
	}
	lookup, err := lib.Symbol("cuGetProcAddress_v2")
	if err != nil {
		return nil, fmt.Errorf("%w: %w: Baton needs %s or later", ErrOld, err, Version(Oldest))
	}
	d := &Driver{}
	var version C.int32_t
	var missing [96]C.char
	rc := C.cuda_load(C.uint64_t(lookup), Oldest, &d.api, &version, &missing[0], C.size_t(len(missing)))
	d.version = int32(version)
	switch rc {
	case C.CUDA_OLD:
		return nil, fmt.Errorf("%w: it is %s: Baton needs %s or later", ErrOld, Version(d.version), Version(Oldest))
	case C.CUDA_MISSING:
		return nil, fmt.Errorf("%w: %s lacks %s", ErrOld, lib.Name(), C.GoString(&missing[0]))
	case C.CUDA_NOMEM:
		return nil, fmt.Errorf("%w: no memory for its table", ErrNone)
	}
	if err := d.fail("init", rc); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNone, err)
	}
	return d, d.look()
}

// look describes the devices.
func (d *Driver) look() error {
	var n C.int32_t
	if err := d.fail("count devices", C.cuda_count(d.api, &n)); err != nil {
		return err
	}
	for i := range n {
		var c C.struct_cuda_device
		if err := d.fail("describe a device", C.cuda_describe(d.api, i, &c)); err != nil {
			return err
		}
		g := Device{Ordinal: int(c.ordinal), Name: C.GoString(&c.name[0]), SMs: int(c.multiprocessors), Copies: int(c.copy_engines)}
		for k, b := range c.uuid {
			g.UUID[k] = byte(b)
		}
		d.devices = append(d.devices, g)
	}
	return nil
}

// fail is nil for 0, else the driver's error.
func (d *Driver) fail(call string, rc C.int32_t) error {
	if rc == 0 {
		return nil
	}
	var name, text [160]C.char
	C.cuda_error(d.api, rc, &name[0], &text[0], C.size_t(len(name)))
	return &Error{Call: call, Code: int32(rc), Name: C.GoString(&name[0]), Text: C.GoString(&text[0])}
}

// Version is the driver's, as it counts: 13000 is 13.0.
func (d *Driver) Version() int32 { return d.version }

// Batches reports whether the driver copies batches.
func (d *Driver) Batches() bool { return C.cuda_batches(d.api) != 0 }

// Devices are the GPUs that this process sees.
func (d *Driver) Devices() []Device { return d.devices }

// Find is the GPU with a UUID.
func (d *Driver) Find(uuid [16]byte) (Device, error) {
	for _, g := range d.devices {
		if g.UUID == uuid {
			return g, nil
		}
	}
	return Device{}, fmt.Errorf("%w: %x among %d: let the mover see every GPU of the host (unset CUDA_VISIBLE_DEVICES, and ask the container for all)", ErrGPU, uuid, len(d.devices))
}

// Reaches is nil when the GPU with ordinal from can copy to and from the memory of to.
func (d *Driver) Reaches(from, to int) error {
	var yes C.int32_t
	if err := d.fail("ask for access to a peer", C.cuda_reaches(d.api, C.int32_t(from), C.int32_t(to), &yes)); err != nil {
		return err
	}
	if yes == 0 {
		return fmt.Errorf("%w: GPU %d cannot reach GPU %d: stage through the host", ErrPeer, from, to)
	}
	return nil
}

// Context is one GPU's memory and streams in this process. Safe for concurrent use.
type Context struct {
	d   *Driver
	dev Device
	ctx C.uint64_t
}

// Context retains the primary context of the GPU with an ordinal. Its owner calls Close.
func (d *Driver) Context(ordinal int) (*Context, error) {
	if ordinal < 0 || ordinal >= len(d.devices) {
		return nil, fmt.Errorf("%w: %d among %d", ErrGPU, ordinal, len(d.devices))
	}
	c := &Context{d: d, dev: d.devices[ordinal]}
	if err := d.fail("retain a context", C.cuda_retain(d.api, C.int32_t(ordinal), &c.ctx)); err != nil {
		return nil, err
	}
	return c, nil
}

// Device is the context's GPU.
func (c *Context) Device() Device { return c.dev }

// EnablePeer lets the context's GPU reach what p allocates in this process.
func (c *Context) EnablePeer(p *Context) error {
	return c.d.fail("enable access to a peer", C.cuda_enable_peer(c.d.api, c.ctx, p.ctx))
}

// Driver is what made the context.
func (c *Context) Driver() *Driver { return c.d }

// Close lets the context go. What was allocated or opened in it must be gone.
func (c *Context) Close() error {
	return c.d.fail("release a context", C.cuda_release(c.d.api, C.int32_t(c.dev.Ordinal)))
}

// Alloc allocates n bytes of GPU memory.
func (c *Context) Alloc(n int64) (uint64, error) {
	var at C.uint64_t
	if n <= 0 {
		return 0, fmt.Errorf("%w: %d bytes", ErrMemory, n)
	}
	err := c.d.fail(fmt.Sprintf("allocate %d bytes", n), C.cuda_alloc(c.d.api, c.ctx, C.int64_t(n), &at))
	return uint64(at), err
}

// Free frees what Alloc gave.
func (c *Context) Free(at uint64) error {
	return c.d.fail("free", C.cuda_free(c.d.api, c.ctx, C.uint64_t(at)))
}

// Put copies b to GPU memory, and is done when it returns.
func (c *Context) Put(at uint64, b []byte) error {
	if len(b) == 0 {
		return nil
	}
	return c.d.fail("copy to the GPU", C.cuda_put(c.d.api, c.ctx, C.uint64_t(at), unsafe.Pointer(&b[0]), C.int64_t(len(b))))
}

// Get copies GPU memory to b, and is done when it returns.
func (c *Context) Get(b []byte, at uint64) error {
	if len(b) == 0 {
		return nil
	}
	return c.d.fail("copy from the GPU", C.cuda_get(c.d.api, c.ctx, unsafe.Pointer(&b[0]), C.uint64_t(at), C.int64_t(len(b))))
}

// Pin makes n bytes of host memory at a page's start fit for copies without a stop. readOnly
// says that it is mapped for reading alone, which not every driver takes.
func (c *Context) Pin(at uint64, n int64, readOnly bool) error {
	var only C.int32_t
	if readOnly {
		only = 1
	}
	return c.d.fail("pin host memory", C.cuda_pin(c.d.api, c.ctx, C.uint64_t(at), C.int64_t(n), only))
}

// Unpin undoes Pin, before the memory is unmapped.
func (c *Context) Unpin(at uint64) error {
	return c.d.fail("unpin host memory", C.cuda_unpin(c.d.api, c.ctx, C.uint64_t(at)))
}
