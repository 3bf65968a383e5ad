//go:build cgo

package drive_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/batonkv/baton/kernels/cuda/cudatest"
	"github.com/batonkv/baton/kernels/cuda/owner"
	"github.com/batonkv/baton/kernels/dma"
	"github.com/batonkv/baton/kernels/rows/plain"
	"github.com/batonkv/baton/transfer"
	"github.com/batonkv/baton/transfer/mover"
	"github.com/batonkv/baton/transfer/transfertest"
)

func init() { roles["owner"] = owner.Serve }

// onGPU is memory of a GPU of the driver without one, which a process of its own holds, and a
// local mover in a process of its own. env is added to the mover's.
func onGPU(gpu int, kind transfer.Kind, env ...string) func(testing.TB) home {
	return func(t testing.TB) home {
		lib := cudatest.Library(t)
		child := func(role string) []string {
			return append(os.Environ(), envChild+"="+role, "LD_LIBRARY_PATH="+filepath.Dir(lib), "GORACE=atexit_sleep_ms=0")
		}
		cmd := exec.Command(os.Args[0])
		cmd.Env = child("owner")
		o, err := owner.Start(cmd)
		if err != nil {
			t.Fatal(err)
		}
		d, err := dma.NewDevice(dma.Config{Lanes: 1}, lib)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := errors.Join(d.Close(), o.Close()); err != nil {
				t.Error(err)
			}
		})
		local := func(t testing.TB) *mover.Mover {
			m, err := mover.Start(mover.Config{Command: []string{os.Args[0]}, Env: append(child("local"), env...)})
			if err != nil {
				t.Fatal(err)
			}
			return m
		}
		return home{local, func(t testing.TB, n int64) transfertest.Buffer {
			m, _, err := o.Alloc(gpu, kind, n)
			if err != nil {
				t.Fatal(err)
			}
			at, unmap, err := d.Map(m, false)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				for _, fd := range m.FDs() {
					_ = os.NewFile(uintptr(fd), "chunk").Close()
				}
				if err := unmap(); err != nil {
					t.Error(err)
				}
			})
			// The fake's memory is the host's, so that the mapping is the memory itself.
			return transfertest.Buffer{Bytes: plain.Bytes(at.Addr, n), Memory: func() transfer.Memory {
				var fds []int
				for _, fd := range m.FDs() {
					fds = append(fds, transfertest.Dup(t, fd))
				}
				return m.WithFDs(fds)
			}}
		}}
	}
}

// linked waits until both local movers reach their engines' memory.
func (p *pair) linked(t *testing.T) *pair {
	t.Helper()
	for _, n := range []*node{p.src, p.dst} {
		for up := false; !up; runtime.Gosched() {
			n.sync(func() { up = n.stage.Linked() })
			if t.Context().Err() != nil {
				t.Fatal("the local mover does not reach the engine's memory")
			}
		}
	}
	return p
}

// TestStagedOnGPUs: a hand-off from or to memory of a GPU, over TCP, lands as a direct copy
// does, whether the driver pins the arena or not, and all comes back.
func TestStagedOnGPUs(t *testing.T) {
	pageable := "FAKE_CUDA_FAIL=cuMemHostRegister:0:801"
	for name, ends := range map[string][2]func(testing.TB) home{
		"GPU to host":          {onGPU(0, transfer.CUDA), onHost},
		"host to GPU":          {onHost, onGPU(0, transfer.CUDA)},
		"GPU to GPU":           {onGPU(0, transfer.CUDA), onGPU(1, transfer.CUDAFD)},
		"GPU to GPU, unpinned": {onGPU(1, transfer.CUDAFD, pageable), onGPU(0, transfer.CUDA, pageable)},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPairAt(t, small, 3, 0, 256<<10, ends[0], ends[1]).linked(t)
			for n := range uint64(3) {
				p.wipe()
				p.pull(n + 1)
				r := p.wait(t)
				if r.err != nil || r.bytes != p.plan.Bytes(p.index(), p.tokens.Len()) {
					t.Fatalf("job %d: %d bytes, %v", n, r.bytes, r.err)
				}
				p.landed(t)
				p.quiet(t)
			}
		})
	}
}

// TestStagedGPULost: a local mover whose context is lost ends the pull with a mover's death.
func TestStagedGPULost(t *testing.T) {
	p := newPairAt(t, small, 3, 0, 0, onHost, onGPU(0, transfer.CUDA, "FAKE_CUDA_FAIL=exec:2:700")).linked(t)
	p.pull(1)
	if r := p.wait(t); !errors.Is(r.err, transfer.ErrMover) {
		t.Errorf("%d bytes, %v; want ErrMover", r.bytes, r.err)
	}
	p.quiet(t)
}
