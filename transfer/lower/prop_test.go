package lower_test

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/batonkv/baton/transfer/layout"
	"github.com/batonkv/baton/transfer/lower"
	"github.com/batonkv/baton/transfer/reshard"
	"pgregory.net/rapid"
)

// world is a model with two groups' shards and memory, drawn at random.
type world struct {
	m              layout.Model
	src, dst       []layout.Shard
	srcMem, dstMem map[layout.Rank][][]byte
	tokens         layout.Span
	srcBlocks      []int32
	dstBlocks      []int32
	srcSlot        int32
	dstSlot        int32
	srcRows        int32 // tokens of a block
	dstRows        int32
}

const canary = 0xCD

// value is what the global tensor holds at one element; row is a token, or the
// age of a window column, 0 for the newest.
func value(state, layer, row, unit, elem int32) byte {
	h := uint32(2166136261)
	for _, v := range [...]int32{state, layer, row, unit, elem} {
		h = (h ^ uint32(v)) * 16777619
		h ^= h >> 13
	}
	return byte(h>>7) | 1
}

// put writes v as an element of size bytes; get is its inverse.
func put(b []byte, v byte) {
	for i := range b {
		b[i] = v ^ byte(i*0x5b)
	}
}

func drawModel(t *rapid.T) layout.Model {
	var m layout.Model
	for i := range rapid.IntRange(1, 4).Draw(t, "states") {
		st := layout.State{Name: fmt.Sprintf("s%d.x", i), Paging: layout.PerBlock,
			Layers: rapid.Int32Range(1, 4).Draw(t, "layers"), Units: rapid.Int32Range(1, 6).Draw(t, "units"),
			Elems: rapid.Int32Range(1, 4).Draw(t, "elems")}
		if rapid.Bool().Draw(t, "per request") {
			st.Paging = layout.PerRequest
		}
		if i > 0 && rapid.Bool().Draw(t, "twin") {
			st = m.States[i-1]
			st.Name = fmt.Sprintf("s%d.x", i)
		}
		m.States = append(m.States, st)
	}
	return m
}

// cuts draws increasing cut points of [0, n).
func cuts(t *rapid.T, n int32) []layout.Span {
	k := rapid.Int32Range(1, min(n, 4)).Draw(t, "parts")
	var out []layout.Span
	if rapid.Bool().Draw(t, "even") {
		for i := range k {
			out = append(out, layout.Span{Lo: n * i / k, Hi: n * (i + 1) / k})
		}
		return out
	}
	lo := int32(0)
	for i := range k - 1 {
		hi := rapid.Int32Range(lo+1, n-(k-1-i)).Draw(t, "cut")
		out = append(out, layout.Span{Lo: lo, Hi: hi})
		lo = hi
	}
	return append(out, layout.Span{Lo: lo, Hi: n})
}

// drawShards cuts every state into boxes, gives each to one rank or several, and
// places what a rank holds in its buffers.
func drawShards(t *rapid.T, m layout.Model, blockRows, blocks int32, types, slots []int32) ([]layout.Shard, map[layout.Rank][][]byte) {
	ranks := rapid.Int32Range(1, 4).Draw(t, "ranks")
	var out []layout.Shard
	for s, st := range m.States {
		rows, items := blockRows, blocks
		if st.Paging == layout.PerRequest {
			rows, items = slots[s], 3
		}
		i := int32(0)
		shift := rapid.Int32Range(0, ranks-1).Draw(t, "shift")
		for _, l := range cuts(t, st.Layers) {
			for _, u := range cuts(t, st.Units) {
				for r := range 1 + rapid.Int32Range(0, ranks-1).Draw(t, "replicas")/2 {
					out = append(out, layout.Shard{State: int32(s), Rank: layout.Rank((i + shift + r) % ranks),
						Box: layout.Box{Layers: l, Units: u}, Rows: rows, Items: items, DType: layout.DType(types[s])})
				}
				i++
			}
		}
	}
	mem := map[layout.Rank][][]byte{}
	for r := range ranks {
		mem[layout.Rank(r)] = place(t, m, out, layout.Rank(r))
	}
	return out, mem
}

// place gives every shard of a rank a view: a random order of the dimensions with
// or without gaps, in one of two buffers, or beside its twin of the next state.
func place(t *rapid.T, m layout.Model, shards []layout.Shard, rank layout.Rank) [][]byte {
	var end [2]int64
	gaps := rapid.Bool().Draw(t, "gaps")
	var last *layout.Shard
	room := int64(0) // bytes left for a twin
	for i := range shards {
		s := &shards[i]
		if s.Rank != rank {
			continue
		}
		if last != nil && room > 0 && s.Box == last.Box && s.Rows == last.Rows && s.Items == last.Items && s.DType == last.DType &&
			m.States[s.State].Elems == m.States[last.State].Elems {
			s.View = last.View
			s.View.Off += room
			last, room = s, 0
			continue
		}
		room = 0
		type dim struct {
			n      int32
			stride *int64
		}
		v := &s.View
		dims := []dim{{s.Box.Layers.Len(), &v.Layer}, {s.Items, &v.Item}, {s.Rows, &v.Row}, {s.Box.Units.Len(), &v.Unit},
			{m.States[s.State].Elems, &v.Elem}}
		if rapid.Bool().Draw(t, "shuffled") {
			dims = rapid.Permutation(dims).Draw(t, "order")
		}
		twin := rapid.IntRange(-1, 3).Draw(t, "twin at")
		size := s.DType.Size()
		for k := len(dims) - 1; k >= 0; k-- {
			if gaps && rapid.Bool().Draw(t, "gap") {
				size += s.DType.Size() * rapid.Int64Range(0, 2).Draw(t, "pad")
			}
			*dims[k].stride = size
			size *= int64(dims[k].n)
			if k == twin {
				room, last = size, s
				size *= 2
			}
		}
		v.Buffer = rapid.Uint32Range(0, 1).Draw(t, "buffer")
		v.Off = end[v.Buffer]
		end[v.Buffer] += size
	}
	out := make([][]byte, 2)
	for i := range out {
		out[i] = bytes.Repeat([]byte{canary}, int(end[i])+5)
	}
	return out
}

func drawWorld(t *rapid.T) *world {
	w := &world{m: drawModel(t)}
	sizes := []int32{1, 2, 3, 4, 8}
	srcRows, dstRows := rapid.SampledFrom(sizes).Draw(t, "src rows"), rapid.SampledFrom(sizes).Draw(t, "dst rows")
	w.tokens.Hi = rapid.Int32Range(0, 20).Draw(t, "tokens")
	w.tokens.Lo = rapid.Int32Range(0, w.tokens.Hi).Draw(t, "suffix from")
	w.srcRows, w.dstRows = srcRows, dstRows
	w.srcBlocks = drawTable(t, w.tokens, srcRows)
	w.dstBlocks = drawTable(t, w.tokens, dstRows)
	n := len(w.m.States)
	st, dt, sw, dw := make([]int32, n), make([]int32, n), make([]int32, n), make([]int32, n)
	for i := range n {
		st[i] = rapid.Int32Range(1, 5).Draw(t, "dtype")
		dt[i] = st[i]
		if rapid.IntRange(0, 4).Draw(t, "convert") == 0 {
			dt[i] = rapid.Int32Range(1, 5).Draw(t, "dst dtype")
		}
		sw[i] = rapid.Int32Range(1, 4).Draw(t, "window")
		dw[i] = max(1, sw[i]+rapid.Int32Range(-1, 1).Draw(t, "window change"))
	}
	w.src, w.srcMem = drawShards(t, w.m, srcRows, 24, st, sw)
	w.dst, w.dstMem = drawShards(t, w.m, dstRows, 24, dt, dw)
	w.srcSlot, w.dstSlot = rapid.Int32Range(0, 2).Draw(t, "src slot"), rapid.Int32Range(0, 2).Draw(t, "dst slot")
	return w
}

// drawTable draws distinct blocks, some of them neighbours; blocks before the
// suffix are -1.
func drawTable(t *rapid.T, tokens layout.Span, rows int32) []int32 {
	ids := make([]int32, 24)
	for i := range ids {
		ids[i] = int32(i)
	}
	switch rapid.IntRange(0, 2).Draw(t, "table") {
	case 0:
		ids = ids[rapid.IntRange(0, 3).Draw(t, "first block"):]
	case 1:
		ids = rapid.Permutation(ids).Draw(t, "blocks")
	case 2:
		k := rapid.IntRange(1, 23).Draw(t, "turn")
		ids = append(ids[k:len(ids):len(ids)], ids[:k]...)
	}
	ids = ids[:(tokens.Hi+rows-1)/rows]
	for i := range ids[:tokens.Lo/rows] {
		ids[i] = -1
	}
	return ids
}

// cells visits every element of s that a request holds, as (token or age, bytes).
func (w *world) cells(s layout.Shard, mem [][]byte, blocks []int32, slot int32, f func(layer, row, unit, elem int32, at []byte)) {
	st := w.m.States[s.State]
	lo, hi := int32(0), s.Rows
	if st.Paging == layout.PerBlock {
		lo, hi = w.tokens.Lo, w.tokens.Hi
	}
	for l := s.Box.Layers.Lo; l < s.Box.Layers.Hi; l++ {
		for u := s.Box.Units.Lo; u < s.Box.Units.Hi; u++ {
			for r := lo; r < hi; r++ {
				item, row, key := slot, r, s.Rows-1-r
				if st.Paging == layout.PerBlock {
					item, row, key = blocks[r/s.Rows], r%s.Rows, r
				}
				for e := range st.Elems {
					v := s.View
					at := v.Off + int64(l-s.Box.Layers.Lo)*v.Layer + int64(item)*v.Item + int64(row)*v.Row +
						int64(u-s.Box.Units.Lo)*v.Unit + int64(e)*v.Elem
					f(l, key, u, e, mem[v.Buffer][at:at+s.DType.Size()])
				}
			}
		}
	}
}

// run executes one nest and counts the writes of every byte.
func run(n *lower.Nest, src, dst, hits [][]byte) {
	var at [lower.MaxDims]int32
	from, to := n.From.Size(), n.To.Size()
	if n.From == 0 {
		from = to
	}
	for {
		so, do := n.SrcOff, n.DstOff
		for i, d := range n.Dims[:n.Rank] {
			so += int64(at[i]) * d.SrcStride
			do += int64(at[i]) * d.DstStride
		}
		for k := int64(0); k < n.Run/from; k++ {
			b := dst[n.Dst][do+k*to:][:to]
			switch {
			case n.From == 0:
				clear(b)
			case n.From == n.To:
				copy(b, src[n.Src][so+k*from:][:from])
			default:
				put(b, src[n.Src][so+k*from])
			}
			for x := range b {
				hits[n.Dst][do+k*to+int64(x)]++
			}
		}
		i := int(n.Rank) - 1
		for ; i >= 0; i-- {
			if at[i]++; at[i] < n.Dims[i].N {
				break
			}
			at[i] = 0
		}
		if i < 0 {
			return
		}
	}
}

func clone(mem [][]byte) [][]byte {
	out := make([][]byte, len(mem))
	for i := range mem {
		out[i] = bytes.Clone(mem[i])
	}
	return out
}

// TestProperty: every destination byte equals a direct cut of the global tensor and
// is written once, nothing else is touched, and the 1-D runs do the same.
func TestProperty(t *testing.T) { rapid.Check(t, property) }

func property(t *rapid.T) {
	w := drawWorld(t)
	for _, s := range w.src {
		w.cells(s, w.srcMem[s.Rank], w.srcBlocks, w.srcSlot, func(l, row, u, e int32, at []byte) {
			put(at, value(s.State, l, row, u, e))
		})
	}
	p, err := reshard.New(w.m, w.src, w.dst)
	if err != nil {
		t.Fatal(err)
	}
	want, hits := map[layout.Rank][][]byte{}, map[layout.Rank][][]byte{}
	for r, mem := range w.dstMem {
		want[r], hits[r] = clone(mem), clone(mem)
		for _, h := range hits[r] {
			clear(h)
		}
	}
	var total int64
	for _, d := range w.dst {
		w.cells(d, want[d.Rank], w.dstBlocks, w.dstSlot, func(l, row, u, e int32, at []byte) {
			total += int64(len(at))
			put(at, value(d.State, l, row, u, e))
			if src := w.columns(d.State); w.m.States[d.State].Paging == layout.PerRequest && row >= src {
				clear(at)
			}
		})
	}
	var moved int64
	all := w.tokens
	for i, pair := range p.Pairs() {
		w.tokens = all
		if rapid.Bool().Draw(t, "pieces") {
			moved += w.pieces(t, p, uint32(i), pair, hits[pair.Dst])
		}
		moved += w.pull(t, p, uint32(i), pair, hits[pair.Dst])
	}
	w.tokens = all
	if moved != total {
		t.Fatalf("moved %d bytes of %d", moved, total)
	}
	for r := range want {
		for b := range want[r] {
			if !bytes.Equal(want[r][b], w.dstMem[r][b]) {
				t.Fatalf("rank %d buffer %d:\nwant %x\n got %x", r, b, want[r][b], w.dstMem[r][b])
			}
			if i := bytes.IndexFunc(hits[r][b], func(x rune) bool { return x > 1 }); i >= 0 {
				t.Fatalf("rank %d buffer %d byte %d is written %d times", r, b, i, hits[r][b][i])
			}
		}
	}
}

func (w *world) pull(t *rapid.T, p *reshard.Plan, pair uint32, r reshard.Pair, hits [][]byte) int64 {
	tm, err := lower.New(p, pair)
	if err != nil {
		t.Fatal(err)
	}
	b, err := tm.MarshalBinary()
	if err != nil {
		t.Fatal(err)
	}
	if tm, err = lower.Decode(b); err != nil {
		t.Fatal(err)
	}
	j := lower.Job{Pair: pair, SrcBlocks: w.srcBlocks, DstBlocks: w.dstBlocks, SrcSlot: w.srcSlot, DstSlot: w.dstSlot, Tokens: w.tokens}
	// A table may start anywhere before the tokens.
	cut := func(table []int32, rows int32) ([]int32, int32) {
		k := rapid.Int32Range(0, min(w.tokens.Lo/rows, int32(len(table)))).Draw(t, "first")
		return table[k:], k * rows
	}
	j.SrcBlocks, j.SrcFirst = cut(j.SrcBlocks, w.srcRows)
	j.DstBlocks, j.DstFirst = cut(j.DstBlocks, w.dstRows)
	ns, err := tm.Nests(nil, j)
	if err != nil {
		t.Fatal(err)
	}
	twice, unused := clone(w.dstMem[r.Dst]), clone(hits)
	plain := true
	for i := range ns {
		plain = plain && ns[i].From == ns[i].To
		run(&ns[i], w.srcMem[r.Src], w.dstMem[r.Dst], hits)
	}
	n, err := tm.Bytes(j)
	if err != nil || n != lower.Bytes(ns) || n != p.Bytes(pair, w.tokens.Len()) {
		t.Fatalf("template says %d bytes (%v), its nests write %d, the plan says %d", n, err, lower.Bytes(ns), p.Bytes(pair, w.tokens.Len()))
	}
	if runs, err := lower.Split(nil, ns); plain != (err == nil) {
		t.Fatal(plain, err)
	} else if plain {
		for _, x := range runs {
			run(&lower.Nest{Src: x.Src, Dst: x.Dst, SrcOff: x.SrcOff, DstOff: x.DstOff, Run: x.Len, From: layout.U8, To: layout.U8},
				w.srcMem[r.Src], twice, unused)
		}
		for i := range twice {
			if !bytes.Equal(twice[i], w.dstMem[r.Dst][i]) {
				t.Fatalf("runs and nests differ in buffer %d", i)
			}
		}
	}
	return n
}
