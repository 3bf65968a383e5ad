//go:build cgo

package dma

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/batonkv/baton/kernels/cuda"
	"github.com/batonkv/baton/kernels/rows/plain"
)

func TestCut(t *testing.T) {
	// A pool [K|V and layers, blocks, tokens, heads] of a 70B model, one of two heads moves.
	const rows, blocks = 64, 1024
	block := plain.Op{Run: 256, Rank: 2}
	block.Dims[0] = plain.Dim{N: 160, Src: blocks * rows * 512, Dst: blocks * rows * 256}
	block.Dims[1] = plain.Dim{N: rows, Src: 512, Dst: 256}
	per := block
	per.Dims[0].Src += 8 // planes that are no whole number of rows apart
	three := block
	three.Rank = 3
	three.Dims[2] = three.Dims[1]
	three.Dims[1] = plain.Dim{N: 3, Src: rows * 512 * 5, Dst: rows * 256 * 7}
	wide := plain.Op{Run: 4096, Rank: 1}
	wide.Dims[0] = plain.Dim{N: 3, Src: 1 << 31, Dst: 4096}
	turned := plain.Op{Run: 16, Rank: 2} // rows and heads change places
	turned.Dims[0] = plain.Dim{N: 100, Src: 16, Dst: 128}
	turned.Dims[1] = plain.Dim{N: 8, Src: 1600, Dst: 16}
	zero := plain.Op{Run: 2, Rank: 2, Kind: plain.Zero}
	zero.Dims[0] = plain.Dim{N: 5, Dst: 64}
	zero.Dims[1] = plain.Dim{N: 4, Dst: 8}
	back := plain.Op{Src: 1000, Dst: 1000, Run: 8, Rank: 1}
	back.Dims[0] = plain.Dim{N: 5, Src: -16, Dst: -32}
	for _, c := range []struct {
		name string
		op   plain.Op
		want int
		size [3]uint64 // of the first
	}{
		{"flat", plain.Op{Run: 1 << 40}, 1, [3]uint64{1 << 40, 1, 1}},
		{"block of all layers", block, 1, [3]uint64{256, 64, 160}},
		{"planes off the pitch", per, 64, [3]uint64{256, 160, 1}},
		{"a loop too many", three, 3, [3]uint64{256, 64, 160}},
		{"pitch too large", wide, 3, [3]uint64{4096, 1, 1}},
		{"rows and heads change places", turned, 8, [3]uint64{16, 100, 1}},
		{"zeroes", zero, 1, [3]uint64{2, 4, 5}},
		{"backwards", back, 1, [3]uint64{8, 5, 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := cut(nil, &c.op, cuda.Kind(c.op.Kind))
			if len(got) != c.want || [3]uint64{got[0].Width, got[0].Height, got[0].Depth} != c.size {
				t.Errorf("%d calls, the first %+v; want %d of %v", len(got), got[0], c.want, c.size)
			}
		})
	}
}

// cell is one byte that moves.
type cell struct{ dst, src uint64 }

func cellsOf(o *plain.Op) (out []cell) {
	var loop func(k int, d, s uint64)
	loop = func(k int, d, s uint64) {
		if k < int(o.Rank) {
			for range o.Dims[k].N {
				loop(k+1, d, s)
				d, s = d+uint64(o.Dims[k].Dst), s+uint64(o.Dims[k].Src)
			}
			return
		}
		for i := range uint64(o.Run) {
			out = append(out, cell{d + i, s + i})
		}
	}
	loop(0, o.Dst, o.Src)
	return out
}

// Whatever the loops, the calls move the same bytes to the same places, once, and keep the
// rules of the driver.
func TestCutMovesEveryByteOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o := plain.Op{Src: 1 << 40, Dst: 1 << 41, Run: rapid.Int64Range(1, 9).Draw(t, "run")}
		o.Rank = int32(rapid.IntRange(0, 4).Draw(t, "rank"))
		dst := o.Run
		for i := range o.Rank { // innermost first, so that no cell is written twice
			d := plain.Dim{N: rapid.Int64Range(2, 4).Draw(t, "n"), Dst: dst + rapid.SampledFrom([]int64{0, 0, 1, o.Run}).Draw(t, "gap")}
			d.Src = rapid.SampledFrom([]int64{d.Dst, 2 * d.Dst, o.Run, 3, 0, -d.Dst, 5 * o.Run}).Draw(t, "src")
			dst = d.Dst * d.N
			if rapid.IntRange(0, 5).Draw(t, "back") == 0 {
				o.Dst += uint64(d.Dst * (d.N - 1))
				d.Dst = -d.Dst
			}
			o.Dims[i] = d
		}
		perm := rapid.Permutation(o.Dims[:o.Rank]).Draw(t, "order")
		copy(o.Dims[:], perm)
		var got []cell
		for _, c := range cut(nil, &o, cuda.Kind(o.Kind)) {
			if c.Height > 1 && (c.DstPitch < c.Width || c.SrcPitch < c.Width || c.DstPitch > maxPitch || c.SrcPitch > maxPitch) ||
				c.Depth > 1 && (c.DstRows < c.Height || c.SrcRows < c.Height) {
				t.Fatalf("%+v breaks the rules", c)
			}
			for z := range c.Depth {
				for y := range c.Height {
					for x := range c.Width {
						got = append(got, cell{c.Dst + (z*c.DstRows+y)*c.DstPitch + x, c.Src + (z*c.SrcRows+y)*c.SrcPitch + x})
					}
				}
			}
		}
		want := cellsOf(&o)
		order := func(a, b cell) int {
			if a.dst != b.dst {
				return int(int64(a.dst - b.dst))
			}
			return int(int64(a.src - b.src))
		}
		slices.SortFunc(got, order)
		slices.SortFunc(want, order)
		if !slices.Equal(got, want) {
			t.Fatalf("%+v: %d cells, want %d", o, len(got), len(want))
		}
	})
}

// Flat copies that continue each other are one.
func TestFlatsJoin(t *testing.T) {
	var out []cuda.Op
	for i := range uint64(4) {
		out = cut(out, &plain.Op{Src: 1000 + i*64, Dst: 5000 + i*64, Run: 64}, cuda.Copy)
	}
	out = cut(out, &plain.Op{Src: 2000, Dst: 5256, Run: 64}, cuda.Copy)
	if len(out) != 2 || out[0].Width != 256 {
		t.Errorf("%+v", out)
	}
}
