package rows

import (
	"context"
	"errors"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/batonkv/baton/kernels/rows/plain"
	"github.com/batonkv/baton/transfer"
	"github.com/batonkv/baton/transfer/layout"
	"github.com/batonkv/baton/transfer/sums"
)

// content is the byte that an element of a state has, wherever it lies.
func content(layer, unit, row, elem int64) byte {
	x := uint64(layer*1_000_003+unit*10_007+row*101+elem+1) * 0x9e3779b97f4a7c15
	return byte(x >> 40)
}

// lay places the paged rows of one box in memory of its own, by an order of its dimensions.
func lay(t *rapid.T, box layout.Box, tokens, elems, size int32) (sums.Place, []int32, []byte) {
	depth := rapid.SampledFrom([]int32{1, 3, 16, 64}).Draw(t, "block tokens")
	n := (tokens + depth - 1) / depth
	items := n + rapid.Int32Range(0, 3).Draw(t, "spare")
	blocks := rapid.Permutation(func() (all []int32) {
		for i := range items {
			all = append(all, i)
		}
		return all
	}()).Draw(t, "blocks")[:n]
	pad := rapid.Int64Range(0, 9).Draw(t, "pad")
	order := rapid.Permutation([]int{0, 1, 2, 3}).Draw(t, "order") // layer, item, row, unit
	counts := [4]int64{int64(box.Layers.Len()), int64(items), int64(depth), int64(box.Units.Len())}
	elem, next := int64(size), int64(size)*int64(elems)+pad
	if rapid.Bool().Draw(t, "elements apart") {
		elem, next = int64(size)+pad, (int64(size)+pad)*int64(elems)
	}
	var strides [4]int64
	for _, d := range order {
		strides[d] = next
		next *= counts[d]
	}
	off := rapid.Int64Range(0, 70).Draw(t, "off")
	mem := make([]byte, off+next)
	for l := range counts[0] {
		for u := range counts[3] {
			for row := range int64(tokens) {
				at := off + l*strides[0] + int64(blocks[row/int64(depth)])*strides[1] + row%int64(depth)*strides[2] + u*strides[3]
				for b := range int64(elems) * int64(size) {
					mem[at+b/int64(size)*elem+b%int64(size)] = content(int64(box.Layers.Lo)+l, int64(box.Units.Lo)+u, row, b)
				}
			}
		}
	}
	return sums.Place{State: 1, Box: box, Tokens: layout.Span{Hi: tokens}, Elems: elems, Size: size, Items: items, Depth: depth,
		View: layout.View{Off: off, Layer: strides[0], Item: strides[1], Row: strides[2], Unit: strides[3], Elem: elem}}, blocks, mem
}

// Sums are those of the bytes, wherever these lie: for every instruction set, block size,
// order of dimensions and cut, and one bit changes the sum that it is in alone.
func TestSumsDependOnBytesAlone(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		size := rapid.SampledFrom([]int32{1, 2, 4}).Draw(t, "size")
		elems := rapid.SampledFrom([]int32{1, 3, 16, 33, 64, 129}).Draw(t, "elems")
		tokens := rapid.Int32Range(1, 70).Draw(t, "tokens")
		box := layout.Box{Layers: layout.Span{Lo: 2, Hi: 2 + rapid.Int32Range(1, 3).Draw(t, "layers")}, Units: layout.Span{Lo: 4, Hi: 4 + rapid.Int32Range(1, 4).Draw(t, "units")}}
		whole := summed(t, box, tokens, elems, size)
		part := box
		part.Layers.Lo, part.Units.Hi = box.Layers.Hi-1, box.Units.Lo+1
		if got, want := summed(t, part, tokens, elems, size), whole.of(part); !slices.Equal(got.sums, want) {
			t.Fatalf("a cut of it: %x, want %x", got.sums, want)
		}
	})
}

type made struct {
	box  layout.Box
	n    int
	sums []uint64
}

// of are the sums of the cells of a box.
func (m made) of(box layout.Box) (out []uint64) {
	for l := box.Layers.Lo; l < box.Layers.Hi; l++ {
		for u := box.Units.Lo; u < box.Units.Hi; u++ {
			at := int((l-m.box.Layers.Lo)*m.box.Units.Len()+u-m.box.Units.Lo) * m.n
			out = append(out, m.sums[at:at+m.n]...)
		}
	}
	return out
}

// summed lays rows out anew and sums them by every instruction set and the reference.
func summed(t *rapid.T, box layout.Box, tokens, elems, size int32) made {
	p, blocks, mem := lay(t, box, tokens, elems, size)
	j := &sums.Job{Range: 16, Blocks: blocks, Places: []sums.Place{p}}
	in := transfer.Buffers{mapped(mem)}
	ops, n, err := plain.ResolveSums(nil, j, in)
	if err != nil {
		t.Fatal(err)
	}
	want := make([]uint64, n)
	plain.Sum(ops, blocks, want)
	for _, i := range isas() {
		got := make([]uint64, n)
		sum(i, ops, blocks, got)
		if !slices.Equal(got, want) {
			t.Fatalf("%v: %x, want %x", i, got, want)
		}
	}
	row := rapid.Int32Range(0, tokens-1).Draw(t, "row")
	at := p.View.Off + int64(blocks[row/p.Depth])*p.View.Item + int64(row%p.Depth)*p.View.Row
	mem[at] ^= 1 << (row % 8)
	c, _ := New(Config{Workers: 2})
	got, err := c.Sum(context.Background(), j, in)
	if err != nil {
		t.Fatal(err)
	}
	for i := range got {
		if hit := i == int(row/16); hit == (got[i] == want[i]) {
			t.Fatalf("a bit of row %d of the first cell changed: sum %d was %x and is %x", row, i, want[i], got[i])
		}
	}
	return made{box, int(p.Ranges(16)), want}
}

// A window's columns count from the newest: one that keeps another before them has their
// sum. A row that moves within its state has another one.
func TestSumsOfColumns(t *testing.T) {
	mem := pattern(4 * 8 * 3)
	view := layout.View{Item: 32, Row: 8, Unit: 8, Layer: 8, Elem: 2}
	place := sums.Place{Box: layout.Box{Layers: layout.Span{Hi: 1}, Units: layout.Span{Hi: 1}}, Rows: 3, Elems: 4, Size: 2, Items: 3, Depth: 4, View: view}
	c := newCopier(t, 1)
	of := func(p sums.Place, mem []byte) uint64 {
		got, err := c.Sum(t.Context(), &sums.Job{Slot: 1, Places: []sums.Place{p}}, transfer.Buffers{mapped(mem)})
		if err != nil || len(got) != 1 {
			t.Fatal(got, err)
		}
		return got[0]
	}
	short := append(make([]byte, 24), mem[32+8:64]...) // three columns, in slot 1
	shorter := place
	shorter.Items, shorter.Depth, shorter.View.Item = 2, 3, 24
	if a, b := of(place, mem), of(shorter, short); a != b {
		t.Errorf("three of four columns: %x, three of three: %x", a, b)
	}
	swapped := slices.Clone(short)
	copy(swapped[24:], short[32:40])
	copy(swapped[32:], short[24:32])
	if of(shorter, short) == of(shorter, swapped) {
		t.Error("two columns changed places and the sum did not")
	}
}

// What leaves its buffer, or cannot be, is refused before a byte is read.
func TestSumsRefuse(t *testing.T) {
	mem := pattern(1 << 12)
	good := sums.Job{Range: 16, Blocks: []int32{1, 0}, Slot: 0, Places: []sums.Place{{
		Box:    layout.Box{Layers: layout.Span{Hi: 2}, Units: layout.Span{Hi: 2}},
		Tokens: layout.Span{Hi: 32}, Elems: 4, Size: 2, Items: 4, Depth: 16, View: layout.View{Layer: 1024, Item: 256, Row: 16, Unit: 8, Elem: 2}}}}
	c := newCopier(t, 2)
	if got, err := c.Sum(t.Context(), &good, transfer.Buffers{mapped(mem)}); err != nil || len(got) != 8 {
		t.Fatal(len(got), err)
	}
	for name, spoil := range map[string]func(j *sums.Job, p *sums.Place){
		"block":        func(j *sums.Job, _ *sums.Place) { j.Blocks = []int32{1, 4} },
		"no block":     func(j *sums.Job, _ *sums.Place) { j.Blocks = []int32{1, -1} },
		"table":        func(j *sums.Job, _ *sums.Place) { j.Blocks = []int32{1} },
		"range":        func(j *sums.Job, _ *sums.Place) { j.Range = 0 },
		"items":        func(_ *sums.Job, p *sums.Place) { p.Items = 14 },
		"layers":       func(_ *sums.Job, p *sums.Place) { p.Box.Layers.Hi = 5 },
		"offset":       func(_ *sums.Job, p *sums.Place) { p.View.Off = 2049 },
		"negative":     func(_ *sums.Job, p *sums.Place) { p.View.Off = -1 },
		"stride":       func(_ *sums.Job, p *sums.Place) { p.View.Row = -16 },
		"huge":         func(_ *sums.Job, p *sums.Place) { p.View.Layer = 1 << 62 },
		"buffer":       func(_ *sums.Job, p *sums.Place) { p.View.Buffer = 1 },
		"element":      func(_ *sums.Job, p *sums.Place) { p.Size = 3 },
		"many":         func(_ *sums.Job, p *sums.Place) { p.Box.Units.Hi, p.View.Unit = 1<<20, 0 },
		"slot":         func(j *sums.Job, p *sums.Place) { p.Rows, j.Slot = 1, 4 },
		"columns":      func(_ *sums.Job, p *sums.Place) { p.Rows = 17 },
		"first tokens": func(_ *sums.Job, p *sums.Place) { p.Tokens.Lo = 3 },
	} {
		j := good
		j.Places = slices.Clone(good.Places)
		spoil(&j, &j.Places[0])
		if _, err := c.Sum(t.Context(), &j, transfer.Buffers{mapped(mem)}); !errors.Is(err, transfer.ErrBounds) {
			t.Errorf("%s: %v", name, err)
		}
	}
	gpu := transfer.Buffers{{Addr: 1 << 40, Len: 1 << 20, GPU: true}}
	if _, err := c.Sum(t.Context(), &good, gpu); !errors.Is(err, transfer.ErrMemory) {
		t.Errorf("memory of a GPU: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.Sum(ctx, &good, transfer.Buffers{mapped(mem)}); !errors.Is(err, transfer.ErrCanceled) {
		t.Errorf("after its context ended: %v", err)
	}
}

func BenchmarkSum(b *testing.B) {
	mem := make([]byte, 64<<20)
	copy(mem, pattern(1<<20))
	j := sums.Job{Range: 512, Places: []sums.Place{{Box: layout.Box{Layers: layout.Span{Hi: 8}, Units: layout.Span{Hi: 8}},
		Tokens: layout.Span{Hi: 4096}, Elems: 128, Size: 2, Items: 256, Depth: 16, View: layout.View{Layer: 8 << 20, Item: 32 << 10, Row: 2048, Unit: 256, Elem: 2}}}}
	for i := range int32(256) {
		j.Blocks = append(j.Blocks, i)
	}
	c := newCopier(b, 1)
	b.SetBytes(64 << 20)
	for b.Loop() {
		if _, err := c.Sum(context.Background(), &j, transfer.Buffers{mapped(mem)}); err != nil {
			b.Fatal(err)
		}
	}
}
