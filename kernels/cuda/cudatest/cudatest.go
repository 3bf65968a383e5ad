// Package cudatest builds a CUDA driver that needs no GPU, for tests: its device memory is
// shared memory of the host, it executes copies when it is asked for their end, and it counts
// what is live and what a real driver would punish. Environment variables of the process make
// it fail; testdata/ says which.
package cudatest

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"unsafe"

	"github.com/batonkv/baton/internal/need"
	"github.com/batonkv/baton/kernels/dl"
	"github.com/batonkv/baton/kernels/rows/plain"
)

// Counts are the fake's, in its own order.
type Counts struct {
	Allocs, Opens, Phys, Reserved, Maps, Streams, Events, Contexts, Pins int64 // live

	Violations int64 // use of freed memory, or of memory without access
	Slow       int64 // copies of memory that was opened in another context

	Strided, Flat, Batches, Batched, Sets, Bytes int64

	Pinned, Pageable int64 // copies between a GPU and host memory

	hold, holdPins, heldPins int64
}

// Leaks are the Counts without what only counts up, to be compared with the zero value.
func (f Fake) Leaks() Counts {
	if *f.forgotten {
		return Counts{}
	}
	c := f.Counts()
	return Counts{Allocs: c.Allocs, Opens: c.Opens, Phys: c.Phys, Reserved: c.Reserved, Maps: c.Maps, Streams: c.Streams,
		Events: c.Events, Contexts: c.Contexts, Pins: c.Pins, Violations: c.Violations, Slow: c.Slow}
}

var build = sync.OnceValues(func() ([]byte, error) {
	_, self, _, _ := runtime.Caller(0)
	dir := filepath.Dir(self)
	out, err := os.MkdirTemp("", "fake-cuda")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(out)
	so := filepath.Join(out, "libcuda.so.1")
	args := append([]string{"-shared", "-fPIC", "-g", "-O1", "-Wall", "-Wextra", "-Werror", "-I", filepath.Dir(dir), "-o", so}, sanitize...)
	args = append(args, filepath.Join(dir, "testdata", "memory.c"), filepath.Join(dir, "testdata", "stream.c"), "-lpthread")
	if said, err := exec.Command("gcc", args...).CombinedOutput(); err != nil {
		return said, err
	}
	return os.ReadFile(so)
})

// Library is a fresh copy of the fake, named libcuda.so.1 in a folder of its own: a process
// that starts with that folder in LD_LIBRARY_PATH finds it.
func Library(t testing.TB) string {
	t.Helper()
	if _, err := exec.LookPath("gcc"); err != nil {
		need.Skip(t, "gcc", "the fake CUDA driver is C: %v", err)
	}
	so, err := build()
	if err != nil {
		t.Fatalf("gcc: %v\n%s", err, so)
	}
	path := filepath.Join(t.TempDir(), "libcuda.so.1")
	if err := os.WriteFile(path, so, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// Fake is a copy that this process has loaded.
type Fake struct {
	at        []byte
	forgotten *bool
}

// Loaded finds the counters of a library that is, or will be, loaded by its path.
func Loaded(t testing.TB, path string) Fake {
	t.Helper()
	l, err := dl.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	at, err := l.Symbol("fake_cuda")
	if err != nil {
		t.Fatal(err)
	}
	return Fake{plain.Bytes(at, int64(unsafe.Sizeof(Counts{}))), new(bool)}
}

func (f Fake) counts() *Counts { return (*Counts)(unsafe.Pointer(&f.at[0])) }

// Counts are what the fake has counted. No call may be under way.
func (f Fake) Counts() Counts { return *f.counts() }

// Forget makes Leaks say nothing, for a test whose point is what stays behind.
func (f Fake) Forget() { *f.forgotten = true }
