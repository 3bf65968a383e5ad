// Package transfertest is the one suite that every transfer backend passes, and the
// memory that it and other tests copy between.
package transfertest

import (
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/batonkv/baton/transfer"
)

// Buffer is memory that the test sees as Bytes and hands to backends any number of
// times. The test's own mapping lives until the test ends.
type Buffer struct {
	Bytes []byte
	// Memory is a fresh description: its descriptor, if any, is the receiver's to close.
	Memory func() transfer.Memory
	// Store and Load bring Bytes to the memory and the memory to Bytes, where Bytes is a
	// copy of it: of GPU memory. nil where it is the memory itself.
	Store, Load func()
	// Gone plays the death of the process that made the memory: it lets go of the
	// mapping and the descriptor, and Bytes must not be used any more. nil for
	// memory that cannot outlive its maker.
	Gone func()
}

func (b *Buffer) store() {
	if b.Store != nil {
		b.Store()
	}
}

func (b *Buffer) load() {
	if b.Load != nil {
		b.Load()
	}
}

// Alloc makes a Buffer of n bytes.
type Alloc func(t testing.TB, n int64) Buffer

// Local is memory of this process.
func Local(t testing.TB, n int64) Buffer {
	t.Helper()
	b, err := unix.Mmap(-1, 0, int(n), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(b) })
	m := transfer.Memory{Kind: transfer.Local, Addr: address(b), Len: n}
	return Buffer{Bytes: b, Memory: func() transfer.Memory { return m }}
}

// Memfd is shared memory as an engine makes it: sealed, and starting at an odd
// place of its file, as a buffer in a larger arena does.
func Memfd(t testing.TB, n int64) Buffer {
	t.Helper()
	const off = 4096 + 256
	fd := File(t, off+n, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW)
	b, err := unix.Mmap(fd, 0, int(off+n), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	live := true
	gone := func() {
		if live {
			live = false
			_ = unix.Munmap(b)
			_ = unix.Close(fd)
		}
	}
	t.Cleanup(gone)
	return Buffer{Bytes: b[off:], Gone: gone, Memory: func() transfer.Memory {
		return transfer.Memory{Kind: transfer.Memfd, FD: Dup(t, fd), Off: off, Len: n}
	}}
}

// Arena is staging memory: a memfd of n bytes, and this process's mapping of it. Both end
// with the test.
func Arena(t testing.TB, n int64) (transfer.Memory, []byte) {
	t.Helper()
	fd := File(t, n, unix.F_SEAL_SHRINK)
	b, err := unix.Mmap(fd, 0, int(n), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = unix.Munmap(b)
		_ = unix.Close(fd)
	})
	return transfer.Memory{Kind: transfer.Memfd, FD: fd, Len: n}, b
}

// File is the descriptor of a memfd of n bytes with the given seals, the caller's to close.
func File(t testing.TB, n int64, seals int) int {
	t.Helper()
	fd, err := unix.MemfdCreate("baton-test", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Ftruncate(fd, n); err != nil {
		t.Fatal(err)
	}
	if seals != 0 {
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
			t.Fatal(err)
		}
	}
	return fd
}

// Dup is a second descriptor of fd.
func Dup(t testing.TB, fd int) int {
	t.Helper()
	n, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func address(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(&b[0]))) }
