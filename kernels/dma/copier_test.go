//go:build cgo

package dma

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"pgregory.net/rapid"

	"github.com/batonkv/baton/kernels/cuda"
	"github.com/batonkv/baton/kernels/cuda/cudatest"
	"github.com/batonkv/baton/kernels/cuda/owner"
	"github.com/batonkv/baton/kernels/rows/plain"
	"github.com/batonkv/baton/transfer"
	"github.com/batonkv/baton/transfer/layout"
	"github.com/batonkv/baton/transfer/lower"
)

const envOwner = "DMA_TEST_OWNER"

// TestMain makes the test binary the owner of memory too.
func TestMain(m *testing.M) {
	if os.Getenv(envOwner) == "" {
		os.Exit(m.Run())
	}
	if err := owner.Serve(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// rig is a copier on a driver without a GPU, and two memories of it.
type rig struct {
	c        *Copier
	f        cudatest.Fake
	ctx      *cuda.Context
	src, dst transfer.Buffers
}

func newRig(t *testing.T, n int64, cfg Config) *rig {
	t.Helper()
	lib := cudatest.Library(t)
	r := &rig{f: cudatest.Loaded(t, lib)}
	d, err := cuda.Open(lib)
	must(t, err)
	r.ctx, err = d.Context(0)
	must(t, err)
	r.c, err = New(r.ctx, cfg)
	must(t, err)
	for _, b := range []*transfer.Buffers{&r.src, &r.dst} {
		at, err := r.ctx.Alloc(n)
		must(t, err)
		*b = transfer.Buffers{{Addr: at, Len: n, GPU: true}}
	}
	t.Cleanup(func() {
		err := errors.Join(r.c.Close(), r.ctx.Free(r.src[0].Addr), r.ctx.Free(r.dst[0].Addr), r.ctx.Close())
		if l := r.f.Leaks(); l != (cudatest.Counts{}) || err != nil && l == (cudatest.Counts{}) && r.f.Counts().Violations == 0 {
			t.Errorf("left behind: %+v, %v", l, err)
		}
	})
	return r
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (r *rig) fill(t testing.TB) (src []byte) {
	src = make([]byte, r.src[0].Len)
	for i := range src {
		src[i] = byte(i*7 + i>>8)
	}
	must(t, r.ctx.Put(r.src[0].Addr, src))
	must(t, r.ctx.Put(r.dst[0].Addr, bytes.Repeat([]byte{0xC5}, len(src))))
	return src
}

// want is what the reference makes of ns, and what it writes.
func (r *rig) want(t testing.TB, src []byte, ns []lower.Nest) ([]byte, int64) {
	out := bytes.Repeat([]byte{0xC5}, len(src))
	host := func(b []byte) transfer.Buffers {
		return transfer.Buffers{{Addr: uint64(uintptr(unsafe.Pointer(&b[0]))), Len: int64(len(b))}}
	}
	n, err := plain.Copier{}.Copy(t.Context(), ns, host(src), host(out))
	runtime.KeepAlive(src) // the copier has numbers
	must(t, err)
	return out, n
}

func (r *rig) check(t testing.TB, want []byte) {
	t.Helper()
	got := make([]byte, len(want))
	must(t, r.ctx.Get(got, r.dst[0].Addr))
	if !bytes.Equal(got, want) {
		t.Error("bytes differ")
	}
}

// Nests of every shape have the bytes of the reference, whatever is batched or called.
func TestCopyEqualsReference(t *testing.T) {
	const size = 1 << 16
	for name, cfg := range map[string]Config{"default": {}, "calls": {BatchFrom: -1, Streams: 3}, "strided": {FlattenRows: -1, BatchFrom: 2}} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, size, cfg)
			src := r.fill(t)
			rapid.Check(t, func(rt *rapid.T) {
				must(t, r.ctx.Put(r.dst[0].Addr, bytes.Repeat([]byte{0xC5}, size)))
				var ns []lower.Nest
				for i := range rapid.IntRange(1, 12).Draw(rt, "nests") {
					n := lower.Nest{DstOff: int64(i) * 4096, SrcOff: rapid.Int64Range(0, 20000).Draw(rt, "from"), From: layout.BF16, To: layout.BF16}
					n.Run = 2 * rapid.Int64Range(1, 9).Draw(rt, "run")
					if rapid.IntRange(0, 5).Draw(rt, "zero") == 0 {
						n.From = 0
					}
					n.Rank = uint8(rapid.IntRange(0, 3).Draw(rt, "rank"))
					dst := n.Run
					for k := range n.Rank {
						d := lower.Dim{N: int32(rapid.IntRange(1, 6).Draw(rt, "n")), DstStride: dst + 2*rapid.Int64Range(0, 1).Draw(rt, "gap")}
						d.SrcStride = rapid.SampledFrom([]int64{d.DstStride, 2 * d.DstStride, n.Run, 6}).Draw(rt, "src")
						dst = d.DstStride * int64(d.N)
						n.Dims[k] = d
					}
					slices.Reverse(n.Dims[:n.Rank])
					if dst <= 4096 {
						ns = append(ns, n)
					}
				}
				want, n := r.want(t, src, ns)
				if got, err := r.c.Copy(t.Context(), ns, r.src, r.dst); err != nil || got != n {
					t.Fatalf("%d bytes, %v; want %d", got, err, n)
				}
				r.check(t, want)
			})
		})
	}
}

// scattered is n copies of size bytes, in no order.
func scattered(n int, size int64) (ns []lower.Nest) {
	for i := range n {
		ns = append(ns, lower.Nest{SrcOff: int64(i*7%n) * 2 * size, DstOff: int64(i*3%n) * 2 * size, Run: size, From: layout.U8, To: layout.U8})
	}
	return ns
}

// Thousands of flat copies go out in windows from two goroutines, and in few calls.
func TestWindows(t *testing.T) {
	const n = 5000
	r := newRig(t, n*64, Config{})
	src := r.fill(t)
	ns := scattered(n, 32)
	want, bytes := r.want(t, src, ns)
	if got, err := r.c.Copy(t.Context(), ns, r.src, r.dst); err != nil || got != bytes {
		t.Fatalf("%d bytes, %v", got, err)
	}
	r.check(t, want)
	if c := r.f.Counts(); c.Batches != 5 || c.Batched != n || c.Flat != 0 {
		t.Errorf("calls: %+v", c)
	}
	if c := r.c.Counts(); c != (Counts{Jobs: 1, Batched: n}) {
		t.Errorf("counts: %+v", c)
	}
}

// A Copy whose ctx ends begins no window more, and ends when those under way have.
func TestCancel(t *testing.T) {
	const n = 8000
	r := newRig(t, n*64, Config{BatchFrom: -1, Lanes: 1})
	r.fill(t)
	release := r.f.Hold()
	ctx, end := context.WithCancel(t.Context())
	type result struct {
		n   int64
		err error
	}
	done := make(chan result)
	go func() {
		n, err := r.c.Copy(ctx, scattered(n, 32), r.src, r.dst)
		done <- result{n, err}
	}()
	for r.c.Counts().Calls == 0 { // a window is under way; a third would wait for the first
		runtime.Gosched()
	}
	end()
	select {
	case x := <-done:
		t.Fatalf("done while its copies are held: %+v", x)
	default:
	}
	waiting, stop := context.WithCancel(t.Context())
	stop()
	if _, err := r.c.Copy(waiting, scattered(1, 32), r.src, r.dst); !errors.Is(err, transfer.ErrCanceled) {
		t.Errorf("a Copy that found no lane: %v", err)
	}
	release()
	x := <-done
	if !errors.Is(x.err, transfer.ErrCanceled) || x.n == 0 || x.n%(windowOps*32) != 0 || x.n > 2*windowOps*32 {
		t.Errorf("%d bytes, %v", x.n, x.err)
	}
}

// What is wrong is refused before the first byte; what the driver refuses ends quietly.
func TestRefusals(t *testing.T) {
	r := newRig(t, 4096, Config{})
	src := r.fill(t)
	ok := lower.Nest{Run: 64, From: layout.BF16, To: layout.BF16}
	convert, far := ok, ok
	convert.To = layout.F32
	far.DstOff = 4090
	for want, n := range map[error]lower.Nest{transfer.ErrConvert: convert, transfer.ErrBounds: far} {
		if _, err := r.c.Copy(t.Context(), []lower.Nest{ok, n}, r.src, r.dst); !errors.Is(err, want) {
			t.Errorf("%v, want %v", err, want)
		}
		if err := r.c.Fits(n); (err != nil) != errors.Is(want, transfer.ErrConvert) {
			t.Errorf("Fits: %v", err)
		}
	}
	want, _ := r.want(t, src, nil)
	r.check(t, want)
	t.Setenv("FAKE_CUDA_FAIL", "cuMemcpyAsync:1:1")
	two := ok
	two.DstOff, two.SrcOff = 1024, 2048
	n, err := r.c.Copy(t.Context(), []lower.Nest{ok, two}, r.src, r.dst)
	if !errors.Is(err, transfer.ErrMemory) || errors.Is(err, transfer.ErrLost) || n != 0 {
		t.Errorf("a call that fails: %d bytes, %v", n, err)
	}
	t.Setenv("FAKE_CUDA_FAIL", "exec:0:700")
	if _, err := r.c.Copy(t.Context(), []lower.Nest{ok}, r.src, r.dst); !errors.Is(err, transfer.ErrLost) {
		t.Errorf("a context that is lost: %v", err)
	}
	r.f.Forget()
}

func TestConfig(t *testing.T) {
	for name, c := range map[string]Config{"lanes": {Lanes: 65}, "streams": {Streams: 9}} {
		if err := c.Check(); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := NewDevice(c); err == nil {
			t.Errorf("%s: NewDevice took it", name)
		}
	}
}

// Memories of one allocation share its mapping, which goes with the last of them; everything
// is opened in the context of the GPU that copies.
func TestDeviceMaps(t *testing.T) {
	lib := cudatest.Library(t)
	f := cudatest.Loaded(t, lib)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), envOwner+"=1", "LD_LIBRARY_PATH="+filepath.Dir(lib))
	o, err := owner.Start(cmd)
	must(t, err)
	defer o.Close()
	d, err := NewDevice(Config{Lanes: 1}, lib)
	must(t, err)
	var undo []func() error
	mapOne := func(gpu int, kind transfer.Kind, write bool) transfer.Buffers {
		m, _, err := o.Alloc(gpu, kind, 4096)
		must(t, err)
		at, unmap, err := d.Map(m, write)
		must(t, err)
		undo = append(undo, unmap)
		return transfer.Buffers{at}
	}
	dst, second := mapOne(1, transfer.CUDA, true), mapOne(1, transfer.CUDA, true)
	src, far := mapOne(0, transfer.CUDAFD, false), mapOne(0, transfer.CUDA, false)
	if c := f.Counts(); c.Opens != 2 || c.Contexts != 1 || second[0].Addr == dst[0].Addr {
		t.Errorf("four memories of three allocations, two of them behind handles: %+v", c)
	}
	ns := []lower.Nest{{Run: 4096, From: layout.U8, To: layout.U8}}
	for _, from := range []transfer.Buffers{src, far} {
		if n, err := d.Copy(t.Context(), ns, from, dst); err != nil || n != 4096 {
			t.Errorf("%d bytes, %v", n, err)
		}
	}
	if err := d.Close(); !errors.Is(err, transfer.ErrBusy) {
		t.Errorf("Close with memory mapped: %v", err)
	}
	for i, f := range undo {
		if err := errors.Join(f(), f()); err != nil {
			t.Errorf("unmap %d: %v", i, err)
		}
	}
	must(t, d.Close())
	if l := f.Leaks(); l != (cudatest.Counts{}) {
		t.Errorf("left behind: %+v", l)
	}
}

// Memory that is written holds the GPU for as long as it is mapped, and no longer: an engine may
// come back on another one.
func TestDeviceChoosesAgain(t *testing.T) {
	lib := cudatest.Library(t)
	f := cudatest.Loaded(t, lib)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), envOwner+"=1", "LD_LIBRARY_PATH="+filepath.Dir(lib))
	o, err := owner.Start(cmd)
	must(t, err)
	defer o.Close()
	d, err := NewDevice(Config{Lanes: 1}, lib)
	must(t, err)
	mapOne := func(gpu int, write bool, refusal string) (transfer.Mapped, func() error) {
		t.Helper()
		m, _, err := o.Alloc(gpu, transfer.CUDA, 4096)
		must(t, err)
		at, unmap, err := d.Map(m, write)
		if refusal == "" {
			must(t, err)
		} else if !errors.Is(err, transfer.ErrMemory) || !strings.Contains(err.Error(), refusal) {
			t.Fatalf("%v, want %q", err, refusal)
		}
		return at, unmap
	}
	_, first := mapOne(1, true, "")
	_, peer := mapOne(1, false, "")
	mapOne(0, true, "run a sidecar for each GPU")
	must(t, first())
	mapOne(0, true, "when the links to peers")
	must(t, peer())
	dst, second := mapOne(0, true, "")
	src, far := mapOne(1, false, "")
	ns := []lower.Nest{{Run: 4096, From: layout.U8, To: layout.U8}}
	if n, err := d.Copy(t.Context(), ns, transfer.Buffers{src}, transfer.Buffers{dst}); err != nil || n != 4096 {
		t.Errorf("%d bytes, %v", n, err)
	}
	mapOne(1, true, "run a sidecar for each GPU")
	must(t, errors.Join(far(), second(), d.Close()))
	if l := f.Leaks(); l != (cudatest.Counts{}) {
		t.Errorf("left behind: %+v", l)
	}
}
