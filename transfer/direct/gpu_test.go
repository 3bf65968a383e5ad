package direct

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"unsafe"

	"pgregory.net/rapid"

	"github.com/batonkv/baton/kernels/rows"
	"github.com/batonkv/baton/kernels/rows/plain"
	"github.com/batonkv/baton/transfer"
	"github.com/batonkv/baton/transfer/layout"
	"github.com/batonkv/baton/transfer/lower"
	"github.com/batonkv/baton/transfer/sums"
	"github.com/batonkv/baton/transfer/transfertest"
)

// device plays GPUs by memory of this process, and holds callers to what a Device takes.
type device struct {
	plain.Copier
	maps, hosts atomic.Int64 // live
	breaks      atomic.Bool  // releases of host memory
	fails       error        // of every Copy
}

func (d *device) Map(m transfer.Memory, _ bool) (transfer.Mapped, func() error, error) {
	d.maps.Add(1)
	return transfer.Mapped{Addr: m.Addr + uint64(m.Off), Len: m.Len, GPU: true}, func() error { d.maps.Add(-1); return nil }, nil
}

func (d *device) Host(at uint64, n int64, _ bool) func() error {
	d.hosts.Add(1)
	return func() error {
		if d.breaks.Load() {
			return errors.New("the driver does not let go")
		}
		d.hosts.Add(-1)
		return nil
	}
}

func (d *device) Copy(ctx context.Context, ns []lower.Nest, src, dst transfer.Buffers) (int64, error) {
	if d.fails != nil {
		return 0, d.fails
	}
	for i := range ns {
		if wayOf(&ns[i], src, dst) != byDevice {
			return 0, fmt.Errorf("nest %d is not for a device", i)
		}
	}
	return d.Copier.Copy(ctx, ns, src, dst)
}

// noGPU is a Copier that may not touch memory of GPUs.
type noGPU struct{ *rows.Copier }

func (c noGPU) Copy(ctx context.Context, ns []lower.Nest, src, dst transfer.Buffers) (int64, error) {
	for i := range ns {
		if isGPU(dst, ns[i].Dst) || ns[i].From != 0 && isGPU(src, ns[i].Src) {
			return 0, fmt.Errorf("nest %d is of a GPU", i)
		}
	}
	return c.Copier.Copy(ctx, ns, src, dst)
}

// onGPU is memory that counts as a GPU's.
func onGPU(t testing.TB, n int64) transfertest.Buffer {
	b := transfertest.Local(t, n)
	m := b.Memory()
	m.Kind, m.GPU = transfer.CUDA, new(transfer.GPU)
	b.Memory = func() transfer.Memory { return m }
	return b
}

// The whole suite, sums and conversions too, with a GPU at either end, or both; the bounce
// buffer is so small that everything goes through it in pieces.
func TestGPU(t *testing.T) {
	for name, ends := range map[string][2]transfertest.Alloc{
		"between GPUs": {onGPU, onGPU}, "to the host": {onGPU, transfertest.Memfd}, "from the host": {transfertest.Memfd, onGPU},
	} {
		t.Run(name, func(t *testing.T) {
			transfertest.Run(t, func(t *testing.T) transfertest.Env {
				c, err := rows.New(rows.Config{})
				if err != nil {
					t.Fatal(err)
				}
				d := new(device)
				b, err := New(Config{Copier: noGPU{c}, Device: d, MaxOpen: 40})
				if err != nil {
					t.Fatal(err)
				}
				b.bounce.half = 8 << 10
				t.Cleanup(func() {
					if err := b.Close(context.Background()); err != nil || d.maps.Load() != 0 || d.hosts.Load() != 0 {
						t.Errorf("close: %v, %d maps and %d host memories are left", err, d.maps.Load(), d.hosts.Load())
					}
				})
				return transfertest.Env{Backend: b, Source: ends[0], Alloc: ends[1], MaxOpen: 40, Sums: true}
			})
		})
	}
}

// Pieces of a nest write what it writes, none of them more than is allowed.
func TestPieces(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := lower.Nest{From: layout.BF16, To: layout.F32, Run: 2 * rapid.Int64Range(0, 40).Draw(t, "run"), Rank: uint8(rapid.IntRange(0, 3).Draw(t, "rank"))}
		src, dst := n.Run, 2*n.Run
		for i := int(n.Rank) - 1; i >= 0; i-- {
			d := lower.Dim{N: rapid.Int32Range(0, 5).Draw(t, "n"), SrcStride: src + 2*rapid.Int64Range(0, 3).Draw(t, "gap"), DstStride: dst + 4*rapid.Int64Range(0, 3).Draw(t, "gap")}
			n.Dims[i] = d
			src, dst = d.SrcStride*int64(d.N), d.DstStride*int64(d.N)
		}
		most := 4 * rapid.Int64Range(1, 100).Draw(t, "most")
		from := make([]byte, src+8)
		for i := range from {
			from[i] = byte(i*7 + 1)
		}
		whole, parts := make([]byte, dst+8), make([]byte, dst+8)
		on := func(b []byte) transfer.Buffers {
			return transfer.Buffers{{Addr: uint64(uintptr(unsafe.Pointer(&b[0]))), Len: int64(len(b))}}
		}
		if _, err := (plain.Copier{}).Copy(context.Background(), []lower.Nest{n}, on(from), on(whole)); err != nil {
			t.Fatal(err)
		}
		err := pieces(n, most, func(p *lower.Nest) error {
			b, err := (plain.Copier{}).Copy(context.Background(), []lower.Nest{*p}, on(from), on(parts))
			if b > most {
				t.Fatalf("a piece of %d bytes, at most %d", b, most)
			}
			return err
		})
		runtime.KeepAlive(from)
		if err != nil || !bytes.Equal(whole, parts) {
			t.Fatalf("bytes differ, %v", err)
		}
	})
}

// The bounce buffer is given back after a failure, but for one after which copies may still
// be under way in it.
func TestBounceAfterFailure(t *testing.T) {
	c, _ := rows.New(rows.Config{})
	gpu, host := onGPU(t, 1024).Memory(), transfertest.Local(t, 1024).Memory()
	src := transfer.Buffers{{Addr: gpu.Addr, Len: 1024, GPU: true}}
	dst := transfer.Buffers{{Addr: host.Addr, Len: 1024}}
	place := sums.Place{Box: layout.Box{Layers: layout.Span{Hi: 1}, Units: layout.Span{Hi: 1}}, Rows: 1, Elems: 8, Size: 2, Items: 1, Depth: 1}
	for _, fails := range []error{transfer.ErrMemory, transfer.ErrLost} {
		b, err := New(Config{Copier: c, Device: &device{fails: fails}})
		if err != nil {
			t.Fatal(err)
		}
		for name, f := range map[string]func(context.Context) error{
			"convert": func(ctx context.Context) error {
				_, err := b.convert(ctx, []lower.Nest{{Run: 64, From: layout.BF16, To: layout.F32}}, src, dst)
				return err
			},
			"sum": func(ctx context.Context) error {
				_, err := b.add(ctx, c, &sums.Job{Places: []sums.Place{place}}, src)
				return err
			},
		} {
			if err := f(t.Context()); !errors.Is(err, fails) {
				t.Errorf("%s: %v, want %v", name, err, fails)
			}
			kept := len(b.bounce.free) == 1
			if kept != errors.Is(fails, transfer.ErrLost) {
				t.Errorf("%s after %v: the bounce buffer is kept: %v", name, fails, kept)
			}
			if kept {
				<-b.bounce.free
			}
		}
		if err := b.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// What a rank opens of its own memory is the mapping that it has registered.
func TestMappedOnce(t *testing.T) {
	c, _ := rows.New(rows.Config{})
	d := new(device)
	b, err := New(Config{Copier: c, Device: d})
	if err != nil {
		t.Fatal(err)
	}
	buf := transfertest.Memfd(t, 1<<16)
	region, err := b.Register(t.Context(), 0, buf.Memory())
	if err != nil {
		t.Fatal(err)
	}
	part := buf.Memory()
	part.Off, part.Len = part.Off+8192, 4096
	links := map[string]transfer.Link{}
	for name, m := range map[string]transfer.Memory{"whole": buf.Memory(), "part": part} {
		if links[name], err = b.Open(t.Context(), transfer.Peer{ID: "p", Regions: map[transfer.RegionID]transfer.Memory{0: m}}); err != nil {
			t.Fatal(err)
		}
	}
	if len(b.files) != 1 || d.hosts.Load() != 1 {
		t.Errorf("%d mappings, %d told to the device", len(b.files), d.hosts.Load())
	}
	if at := links["part"].(*Link).bufs[0].Addr - b.bufs[0].Addr; at != 8192 {
		t.Errorf("a part at %d", at)
	}
	for _, f := range []func() error{region.Close, links["whole"].Close} {
		if err := f(); err != nil {
			t.Error(err)
		}
	}
	if len(b.files) != 1 {
		t.Error("unmapped while a link uses it")
	}
	d.breaks.Store(true)
	pages := slices.Clone(b.files)
	if err := links["part"].Close(); err == nil || len(b.files) != 1 || pages[0].pages[0] != 0 {
		t.Errorf("memory that the driver does not let go: %v", err)
	}
	d.breaks.Store(false)
	if err := b.Close(t.Context()); err != nil {
		t.Error(err)
	}
}
