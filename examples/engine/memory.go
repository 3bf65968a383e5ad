package engine

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/batonkv/baton/examples/engine/model"
)

// buffer is a memfd sealed against changes of its size and mapped here. A sidecar's
// mover maps the same file; the mapping outlives neither.
type buffer struct {
	fd  int
	mem []byte
}

func newBuffer(name string, n int64) (buffer, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return buffer{}, fmt.Errorf("engine: memfd %s: %w", name, err)
	}
	fail := func(what string, err error) (buffer, error) {
		_ = unix.Close(fd)
		return buffer{}, fmt.Errorf("engine: %s %s of %d bytes: %w", what, name, n, err)
	}
	if err := unix.Ftruncate(fd, n); err != nil {
		return fail("size", err)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW); err != nil {
		return fail("seal", err)
	}
	mem, err := unix.Mmap(fd, 0, int(n), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return fail("map", err)
	}
	return buffer{fd: fd, mem: mem}, nil
}

func (b buffer) close() {
	_ = unix.Munmap(b.mem)
	_ = unix.Close(b.fd)
}

// newMemory makes a rank's buffers, each exactly as large as what it holds: paged KV,
// convolution windows, recurrent state. A model without a state has no buffer of it.
func newMemory(cfg Config, part model.Part) (bufs []buffer, mem *model.Memory, err error) {
	defer func() {
		if err != nil {
			for _, b := range bufs {
				b.close()
			}
		}
	}()
	kv, conv, ssm := cfg.Model.Bytes(part, cfg.sizes())
	var views [3][]byte
	for i, n := range []int64{kv, conv, ssm} {
		if n == 0 {
			continue
		}
		b, err := newBuffer(fmt.Sprintf("baton-%.40s-%d-%s", cfg.Group, cfg.Rank, [...]string{"kv", "conv", "ssm"}[i]), n)
		if err != nil {
			return bufs, nil, err
		}
		bufs, views[i] = append(bufs, b), b.mem
	}
	mem, err = model.NewMemory(cfg.Model, part, cfg.sizes(), views[0], views[1], views[2])
	return bufs, mem, err
}
