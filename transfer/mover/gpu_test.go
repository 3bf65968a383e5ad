//go:build cgo

package mover

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/batonkv/baton/internal/need"
	"github.com/batonkv/baton/kernels/cuda"
	"github.com/batonkv/baton/kernels/cuda/cudatest"
	"github.com/batonkv/baton/kernels/cuda/owner"
	"github.com/batonkv/baton/kernels/dma"
	"github.com/batonkv/baton/transfer"
	"github.com/batonkv/baton/transfer/transfertest"
)

// gpus are two GPUs, or what stands in for them.
type gpus struct {
	env   []string // of processes that shall see them
	names []string // of the driver, for this process
}

// fakeGPUs are those of the driver without a GPU.
func fakeGPUs(t *testing.T) gpus {
	lib := cudatest.Library(t)
	return gpus{env: append(os.Environ(), "LD_LIBRARY_PATH="+filepath.Dir(lib)), names: []string{lib}}
}

// realGPUs skips where there are none.
func realGPUs(t *testing.T) gpus {
	d, err := cuda.Open()
	if err == nil && len(d.Devices()) < 2 {
		err = errors.New("there is one GPU")
	}
	if err != nil {
		need.Skip(t, "gpus", "two GPUs: %v", err)
	}
	return gpus{env: os.Environ()}
}

func (g gpus) config() Config {
	cfg := config("mover")
	cfg.Env = append(append([]string(nil), g.env...), envRole+"=mover")
	cfg.Look = 100 * time.Microsecond // also where processors are few
	return cfg
}

// owner starts a process that owns memory.
func (g gpus) owner(t testing.TB) *owner.Owner {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(append([]string(nil), g.env...), envRole+"=owner")
	o, err := owner.Start(cmd)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = o.Close() })
	return o
}

// bench is one test's view of memory that other processes own: the sources' on GPU 0, the
// destinations' on GPU 1.
type bench struct {
	g      gpus
	kind   transfer.Kind
	owners [2]*owner.Owner
	device *dma.Device // this process's own mappings
	ctx    *cuda.Context
}

func (g gpus) bench(t testing.TB, kind transfer.Kind) *bench {
	b := &bench{g: g, kind: kind, owners: [2]*owner.Owner{g.owner(t), g.owner(t)}}
	d, err := cuda.Open(g.names...)
	must(t, err)
	b.ctx, err = d.Context(0)
	must(t, err)
	b.device, err = dma.NewDevice(dma.Config{Lanes: 1, Streams: 1}, g.names...)
	must(t, err)
	t.Cleanup(func() {
		must(t, b.device.Close())
		must(t, b.ctx.Close())
	})
	return b
}

// alloc allocates on one of the GPUs.
func (b *bench) alloc(gpu int) transfertest.Alloc {
	return func(t testing.TB, n int64) transfertest.Buffer {
		t.Helper()
		o := b.owners[gpu]
		m, _, err := o.Alloc(gpu, b.kind, n)
		must(t, err)
		at, unmap, err := b.device.Map(m, false)
		must(t, err)
		out := transfertest.Buffer{Bytes: make([]byte, n), Gone: o.Kill}
		out.Memory = func() transfer.Memory { return dup(t, m) }
		out.Store = func() { must(t, b.ctx.Put(at.Addr, out.Bytes)) }
		out.Load = func() { must(t, b.ctx.Get(out.Bytes, at.Addr)) }
		t.Cleanup(func() {
			closeMemory(m)
			must(t, unmap())
		})
		return out
	}
}

// dup is m with descriptors of its own.
func dup(t testing.TB, m transfer.Memory) transfer.Memory {
	var fds []int
	for _, fd := range m.FDs() {
		fds = append(fds, transfertest.Dup(t, fd))
	}
	return m.WithFDs(fds)
}

var gpuKinds = map[string]transfer.Kind{"handles": transfer.CUDA, "descriptors": transfer.CUDAFD}

func runGPUSuite(t *testing.T, g gpus) {
	for name, kind := range gpuKinds {
		t.Run(name, func(t *testing.T) {
			g.suite(t, kind, func(b *bench) (src, dst transfertest.Alloc) { return b.alloc(0), b.alloc(1) })
		})
	}
}

// suite runs over memory of two places.
func (g gpus) suite(t *testing.T, kind transfer.Kind, ends func(*bench) (src, dst transfertest.Alloc)) {
	transfertest.Run(t, func(t *testing.T) transfertest.Env {
		b, m := g.bench(t, kind), start(t, g.config())
		src, dst := ends(b)
		return transfertest.Env{Backend: m, Source: src, Alloc: dst, MaxOpen: 40, Sums: true,
			Kill: m.Kill, Hold: func() func() { return transfertest.Freeze(t, m.PID()) }}
	})
}

// runMixedSuite has one end on a GPU and the other in memory of the host.
func runMixedSuite(t *testing.T, g gpus) {
	t.Run("to the host", func(t *testing.T) {
		g.suite(t, transfer.CUDA, func(b *bench) (src, dst transfertest.Alloc) { return b.alloc(0), transfertest.Memfd })
	})
	t.Run("from the host", func(t *testing.T) {
		g.suite(t, transfer.CUDAFD, func(b *bench) (src, dst transfertest.Alloc) { return transfertest.Memfd, b.alloc(0) })
	})
}

func init() { serveOwner = owner.Serve }

// The whole suite over GPU memory of other processes, on a driver without a GPU.
func TestFakeGPU(t *testing.T) { runGPUSuite(t, fakeGPUs(t)) }

// The same on two GPUs.
func TestRealGPU(t *testing.T) { runGPUSuite(t, realGPUs(t)) }

// The whole suite between a GPU and the host.
func TestFakeMixed(t *testing.T) { runMixedSuite(t, fakeGPUs(t)) }

// A driver that pins no host memory copies it all the same.
func TestFakePageable(t *testing.T) {
	g := fakeGPUs(t)
	g.env = append(g.env, "FAKE_CUDA_FAIL=cuMemHostRegister:0:801")
	for name, ends := range map[string]func(transfertest.Alloc) (src, dst transfertest.Alloc){
		"to the host":   func(gpu transfertest.Alloc) (src, dst transfertest.Alloc) { return gpu, transfertest.Memfd },
		"from the host": func(gpu transfertest.Alloc) (src, dst transfertest.Alloc) { return transfertest.Memfd, gpu },
	} {
		t.Run(name, func(t *testing.T) {
			src, dst := ends(fakeGPUs(t).bench(t, transfer.CUDA).alloc(0))
			x := setEnds(t, start(t, g.config()), 1<<20, src, dst)
			for i := range 2 {
				k := x.pull(t, i)
				if <-k.Done(); k.Err() != nil {
					t.Fatal(k.Err())
				}
				x.check(t, i)
			}
		})
	}
}

// The same on real ones.
func TestRealMixed(t *testing.T) { runMixedSuite(t, realGPUs(t)) }
