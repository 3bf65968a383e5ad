// Package memfd makes the memory that an engine shares with its sidecar's mover: a file
// of memory, sealed against changes of its size and mapped here.
package memfd

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Buffer is one such file. A mover maps the same file; the mapping outlives neither.
type Buffer struct {
	FD  int
	Mem []byte
}

// New makes a buffer of n bytes, all zero.
func New(name string, n int64) (Buffer, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return Buffer{}, fmt.Errorf("memfd %s: %w", name, err)
	}
	fail := func(what string, err error) (Buffer, error) {
		_ = unix.Close(fd)
		return Buffer{}, fmt.Errorf("memfd: %s %s of %d bytes: %w", what, name, n, err)
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
	return Buffer{FD: fd, Mem: mem}, nil
}

// Close unmaps and closes it here.
func (b Buffer) Close() {
	_ = unix.Munmap(b.Mem)
	_ = unix.Close(b.FD)
}
