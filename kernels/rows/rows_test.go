package rows

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"sync"
	"testing"
	"unsafe"

	"pgregory.net/rapid"

	"github.com/batonkv/baton/kernels/rows/plain"
	"github.com/batonkv/baton/transfer"
	"github.com/batonkv/baton/transfer/layout"
	"github.com/batonkv/baton/transfer/layout/float"
	"github.com/batonkv/baton/transfer/lower"
)

const canary = 0xA5

func mapped(b []byte) transfer.Mapped {
	if len(b) == 0 {
		return transfer.Mapped{}
	}
	return transfer.Mapped{Addr: uint64(uintptr(unsafe.Pointer(&b[0]))), Len: int64(len(b))}
}

func pattern(n int) []byte {
	b := make([]byte, n)
	x := uint32(1)
	for i := range b {
		x = x*1664525 + 1013904223
		b[i] = byte(x >> 24)
	}
	return b
}

// oracle copies by the definition of a Nest, on slices, in the nest's own order.
func oracle(n lower.Nest, src, dst []byte) {
	var loop func(k int, s, d int64)
	loop = func(k int, s, d int64) {
		if k == int(n.Rank) {
			if n.From != 0 && n.From != n.To {
				for i := range n.Run / n.From.Size() {
					float.Store(n.To, dst[d+i*n.To.Size():], float.Load(n.From, src[s+i*n.From.Size():]))
				}
				return
			}
			for i := range n.Run {
				if n.From == 0 {
					dst[d+i] = 0
				} else {
					dst[d+i] = src[s+i]
				}
			}
			return
		}
		for i := range int64(n.Dims[k].N) {
			loop(k+1, s+i*n.Dims[k].SrcStride, d+i*n.Dims[k].DstStride)
		}
	}
	loop(0, n.SrcOff, n.DstOff)
}

// numbers are the types that convert into each other.
var numbers = []layout.DType{layout.BF16, layout.F16, layout.F32}

// written is the bytes of one body of n at the destination.
func written(n lower.Nest) int64 {
	if n.From == 0 || n.From == n.To {
		return n.Run
	}
	return n.Run / n.From.Size() * n.To.Size()
}

// drawNest draws a nest whose destination cells do not overlap: strides grow from the
// innermost loop, with gaps, and the loops are then shuffled. It returns the buffer
// sizes that it needs.
func drawNest(t *rapid.T) (n lower.Nest, srcLen, dstLen int64) {
	runs := []int64{0, 1, 2, 3, 4, 8, 16, 31, 32, 64, 100, 128, 192, 256, 511, 512, 513, 1024, 4096, 5000, 12345}
	n.Run = rapid.SampledFrom(runs).Draw(t, "run")
	n.Rank = uint8(rapid.IntRange(0, lower.MaxDims).Draw(t, "rank"))
	n.From, n.To = layout.BF16, layout.BF16
	switch rapid.IntRange(0, 9).Draw(t, "kind") {
	case 0:
		n.From = 0
	case 1, 2, 3:
		types := rapid.Permutation(numbers).Draw(t, "types")
		n.From, n.To = types[0], types[1]
		n.Run -= n.Run % n.From.Size()
	}
	out := written(n) // bytes of a body at the destination
	gap := rapid.SampledFrom([]int64{0, 0, 1, 64, 256}).Draw(t, "gap")
	budget := 1 + (2<<20)/max(n.Run+gap, 1)
	at := out
	for i := range n.Rank {
		d := lower.Dim{N: int32(rapid.Int64Range(0, min(budget, 70)).Draw(t, "n"))}
		if d.N == 0 && rapid.IntRange(0, 9).Draw(t, "empty") > 0 {
			d.N = 1
		}
		budget /= max(int64(d.N), 1)
		d.DstStride = at + rapid.Int64Range(0, 1).Draw(t, "apart")*gap
		at = d.DstStride*max(int64(d.N)-1, 0) + at
		switch rapid.IntRange(0, 3).Draw(t, "kind") {
		case 0:
			d.SrcStride = d.DstStride
		case 1:
			d.SrcStride = 2 * d.DstStride
		case 2:
			d.SrcStride = rapid.Int64Range(-300, 300).Draw(t, "stride")
		}
		if rapid.IntRange(0, 7).Draw(t, "back") == 0 {
			d.DstStride = -d.DstStride
		}
		n.Dims[i] = d
	}
	order := rapid.Permutation(slices.Clone(n.Dims[:n.Rank])).Draw(t, "order")
	copy(n.Dims[:], order)
	reach := func(stride func(lower.Dim) int64) (down, up int64) {
		for _, d := range n.Dims[:n.Rank] {
			if d.N > 0 {
				down += min(0, stride(d)*int64(d.N-1))
				up += max(0, stride(d)*int64(d.N-1))
			}
		}
		return -down, up
	}
	sd, su := reach(func(d lower.Dim) int64 { return d.SrcStride })
	dd, du := reach(func(d lower.Dim) int64 { return d.DstStride })
	n.SrcOff = sd + rapid.Int64Range(0, 70).Draw(t, "srcoff")
	n.DstOff = dd + rapid.SampledFrom([]int64{0, 64, 1, 17}).Draw(t, "dstoff")
	return n, n.SrcOff + su + n.Run + 1, n.DstOff + du + out + 1
}

// Every instruction set, streaming or not, writes the oracle's bytes and no other.
func TestRandomNestsEqualOracle(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n, sl, dl := drawNest(t)
		src := pattern(int(sl))
		defer runtime.KeepAlive(src) // ops hold it as a number only
		want := bytes.Repeat([]byte{canary}, int(dl))
		oracle(n, src, want)
		ops, total, err := plain.Resolve(nil, []lower.Nest{n}, transfer.Buffers{mapped(src)}, transfer.Buffers{mapped(want)})
		if err != nil {
			t.Fatalf("%+v: %v", n, err)
		}
		limit := rapid.SampledFrom([]int64{1, 100, 4096, 1 << 20}).Draw(t, "limit")
		if total/limit > 1<<14 {
			limit = 4096
		}
		shift := func(ops []plain.Op, got []byte) []plain.Op {
			ops = slices.Clone(ops)
			for i := range ops {
				ops[i].Dst += mapped(got).Addr - mapped(want).Addr
			}
			return ops
		}
		check := func(name string, run func(ops []plain.Op)) {
			got := bytes.Repeat([]byte{canary}, int(dl))
			run(shift(ops, got))
			if !bytes.Equal(got, want) {
				t.Fatalf("%s: bytes differ: %+v", name, n)
			}
		}
		check("reference", plain.Exec)
		for _, i := range isas() {
			for _, stream := range []bool{false, true} {
				check(fmt.Sprint(i, " ", stream), func(ops []plain.Op) { exec(i, ops, stream) })
				check(fmt.Sprint(i, " ", stream, " split"), func(ops []plain.Op) { exec(i, split(nil, ops, limit), stream) })
			}
		}
	})
}

// Alignment, odd sizes and short loops at a row size each, on every instruction set.
func TestAlignments(t *testing.T) {
	src := pattern(1 << 16)
	defer runtime.KeepAlive(src)
	for _, run := range []int64{1, 63, 64, 65, 128, 500, 512, 576, 1000, 4096, 4160, 9000} {
		for _, so := range []int64{0, 1, 32} {
			for _, do := range []int64{0, 1, 63, 64} {
				for _, gap := range []int64{0, 3, 64} {
					n := lower.Nest{SrcOff: so, DstOff: do, Run: run, Rank: 1, From: layout.U8, To: layout.U8,
						Dims: [lower.MaxDims]lower.Dim{{N: 5, SrcStride: run + 2*gap, DstStride: run + gap}}}
					want := bytes.Repeat([]byte{canary}, 1<<16)
					oracle(n, src, want)
					for _, i := range isas() {
						got := bytes.Repeat([]byte{canary}, 1<<16)
						ops, _, err := plain.Resolve(nil, []lower.Nest{n}, transfer.Buffers{mapped(src)}, transfer.Buffers{mapped(got)})
						if err != nil {
							t.Fatal(err)
						}
						exec(i, ops, true)
						if !bytes.Equal(got, want) {
							t.Errorf("%v run %d src %d dst %d gap %d: bytes differ", i, run, so, do, gap)
						}
					}
				}
			}
		}
	}
}

func newCopier(t testing.TB, workers int) *Copier {
	t.Helper()
	c, err := New(Config{Workers: workers})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// A job above every threshold, split over workers, by several callers at once.
func TestCopyLarge(t *testing.T) {
	const row, rows = 1024, 24 << 10
	src := pattern(2 * row * rows)
	n := lower.Nest{SrcOff: row, Run: row, Rank: 1, From: layout.BF16, To: layout.BF16,
		Dims: [lower.MaxDims]lower.Dim{{N: rows, SrcStride: 2 * row, DstStride: row}}}
	c := newCopier(t, 4)
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			dst := make([]byte, row*rows)
			b, err := c.Copy(t.Context(), []lower.Nest{n}, transfer.Buffers{mapped(src)}, transfer.Buffers{mapped(dst)})
			if err != nil || b != row*rows {
				t.Errorf("Copy = %d, %v", b, err)
			}
			for i := range rows {
				if !bytes.Equal(dst[i*row:][:row], src[(2*i+1)*row:][:row]) {
					t.Errorf("row %d differs", i)
					return
				}
			}
		})
	}
	wg.Wait()
	if len(c.helpers) != 0 {
		t.Errorf("%d helpers still counted", len(c.helpers))
	}
}

func TestCopyManyTiny(t *testing.T) {
	const count = 100_000
	src, dst := pattern(8*count), make([]byte, 8*count)
	ns := make([]lower.Nest, count)
	for i := range ns {
		ns[i] = lower.Nest{SrcOff: int64(8 * i), DstOff: int64(8 * (count - 1 - i)), Run: 8, From: layout.U8, To: layout.U8}
	}
	if b, err := newCopier(t, 2).Copy(t.Context(), ns, transfer.Buffers{mapped(src)}, transfer.Buffers{mapped(dst)}); err != nil || b != 8*count {
		t.Fatalf("Copy = %d, %v", b, err)
	}
	for i := range count {
		if !bytes.Equal(dst[8*(count-1-i):][:8], src[8*i:][:8]) {
			t.Fatalf("copy %d differs", i)
		}
	}
}

func TestCopyCanceled(t *testing.T) {
	ctx, end := context.WithCancel(t.Context())
	end()
	src, dst := pattern(4<<20), make([]byte, 4<<20)
	defer runtime.KeepAlive([][]byte{src, dst})
	for _, run := range []int64{8, 4 << 20} {
		n := lower.Nest{Run: run, From: layout.U8, To: layout.U8}
		b, err := newCopier(t, 2).Copy(ctx, []lower.Nest{n}, transfer.Buffers{mapped(src)}, transfer.Buffers{mapped(dst)})
		if b != 0 || !errors.Is(err, transfer.ErrCanceled) {
			t.Errorf("run %d: Copy = %d, %v; want ErrCanceled", run, b, err)
		}
	}
}

func TestRefusals(t *testing.T) {
	const size = 1000
	type N = lower.Nest
	dims := func(ds ...lower.Dim) (a [lower.MaxDims]lower.Dim) { copy(a[:], ds); return a }
	big := lower.Dim{N: math.MaxInt32}
	for name, c := range map[string]struct {
		n    N
		want error
	}{
		"fits exactly":          {N{Run: size}, nil},
		"zero run far outside":  {N{SrcOff: 1 << 40, DstOff: -1}, nil},
		"zero steps outside":    {N{DstOff: -5, Run: 10, Rank: 1, Dims: dims(lower.Dim{})}, nil},
		"empty after huge":      {N{Run: math.MaxInt64, Rank: 2, Dims: dims(big, lower.Dim{})}, nil},
		"one byte too many":     {N{Run: size + 1}, transfer.ErrBounds},
		"source offset":         {N{SrcOff: 1, Run: size}, transfer.ErrBounds},
		"destination offset":    {N{DstOff: 1, Run: size}, transfer.ErrBounds},
		"negative offset":       {N{SrcOff: -1, Run: 10}, transfer.ErrBounds},
		"most negative offset":  {N{DstOff: math.MinInt64, Run: 10}, transfer.ErrBounds},
		"negative run":          {N{Run: -1}, transfer.ErrBounds},
		"negative steps":        {N{Run: 1, Rank: 1, Dims: dims(lower.Dim{N: -1})}, transfer.ErrBounds},
		"rank":                  {N{Run: 1, Rank: 7}, transfer.ErrBounds},
		"stride wraps":          {N{Run: 1, Rank: 1, Dims: dims(lower.Dim{N: 3, SrcStride: math.MaxInt64, DstStride: 1})}, transfer.ErrBounds},
		"strides cancel":        {N{Run: 1, Rank: 2, Dims: dims(lower.Dim{N: 2, SrcStride: 2000, DstStride: 1}, lower.Dim{N: 2, SrcStride: -2000, DstStride: 2})}, transfer.ErrBounds},
		"most negative stride":  {N{Run: 1, Rank: 1, Dims: dims(lower.Dim{N: 2, SrcStride: math.MinInt64, DstStride: 1})}, transfer.ErrBounds},
		"sums wrap":             {N{Run: 1, Rank: 2, Dims: dims(lower.Dim{N: 3, SrcStride: math.MaxInt64}, lower.Dim{N: 3, SrcStride: math.MaxInt64})}, transfer.ErrBounds},
		"backwards below start": {N{SrcOff: 5, DstOff: 0, Run: 1, Rank: 1, Dims: dims(lower.Dim{N: 3, SrcStride: 1, DstStride: -1})}, transfer.ErrBounds},
		"endless on one byte":   {N{Run: 1, Rank: 6, Dims: dims(big, big, big, big, big, big)}, transfer.ErrBounds},
		"more than the buffer":  {N{Run: 1, Rank: 1, Dims: dims(big)}, transfer.ErrBounds},
		"no source buffer":      {N{Src: 1, Run: 1}, transfer.ErrBounds},
		"no destination buffer": {N{Dst: math.MaxUint32, Run: 1}, transfer.ErrBounds},
		"conversion":            {N{Run: 2, From: layout.F8E4M3, To: layout.F32}, transfer.ErrConvert},
		"to bytes":              {N{Run: 2, From: layout.BF16, To: layout.U8}, transfer.ErrConvert},
		"widens into its place": {N{Run: size / 2, From: layout.BF16, To: layout.F32}, nil},
		"widens too far":        {N{Run: size/2 + 2, From: layout.BF16, To: layout.F32}, transfer.ErrBounds},
		"half an element":       {N{Run: 3, From: layout.BF16, To: layout.F32}, transfer.ErrBounds},
		"endless conversion":    {N{Run: math.MaxInt64 - 1, From: layout.BF16, To: layout.F32}, transfer.ErrBounds},
	} {
		t.Run(name, func(t *testing.T) {
			src, dst := pattern(size), bytes.Repeat([]byte{canary}, size)
			defer runtime.KeepAlive(src)
			if c.n.From == 0 {
				c.n.From, c.n.To = layout.U8, layout.U8
			}
			first := N{Run: 1, From: layout.U8, To: layout.U8} // good, and must not be copied either
			for kind, cp := range map[string]transfer.Copier{"c": newCopier(t, 2), "go": plain.Copier{}} {
				_, err := cp.Copy(t.Context(), []N{first, c.n}, transfer.Buffers{mapped(src), {}}, transfer.Buffers{mapped(dst)})
				if !errors.Is(err, c.want) {
					t.Errorf("%s: Copy: %v, want %v", kind, err, c.want)
				}
				if err != nil && dst[0] != canary {
					t.Errorf("%s: bytes were written before the refusal", kind)
				}
			}
			if got := newCopier(t, 1).Fits(c.n); errors.Is(got, transfer.ErrConvert) != (c.want == transfer.ErrConvert) {
				t.Errorf("Fits: %v", got)
			}
		})
	}
}

func TestCopyDoesNotAllocate(t *testing.T) {
	src, dst := pattern(64<<10), make([]byte, 64<<10)
	defer runtime.KeepAlive([][]byte{src, dst})
	ns := slices.Repeat([]lower.Nest{{Run: 128, From: layout.U8, To: layout.U8}}, 100)
	c, sb, db, ctx := newCopier(t, 1), transfer.Buffers{mapped(src)}, transfer.Buffers{mapped(dst)}, t.Context()
	if a := testing.AllocsPerRun(100, func() { _, _ = c.Copy(ctx, ns, sb, db) }); a > 3 { // the race detector empties pools at random
		t.Errorf("%v allocations per Copy", a)
	}
}

func TestConfig(t *testing.T) {
	for w, ok := range map[int]bool{-1: false, 0: true, 3: true, 1025: false} {
		if c, err := New(Config{Workers: w}); (err == nil) != ok || ok && c.ISA() == "" {
			t.Errorf("New with %d workers: %v", w, err)
		}
	}
}
