package lower

import (
	"cmp"
	"fmt"
	"math/bits"
	"slices"

	"github.com/batonkv/baton/transfer/layout"
	"github.com/batonkv/baton/transfer/reshard"
)

// maxStatic is the loops a paged body may have before a request adds its own:
// rows and row groups, or rows and blocks.
const maxStatic = MaxDims - 2

// body is one box of a pair without item ids: what is the same for every request.
type body struct {
	nest             Nest // offsets are those of item 0, row 0 (the oldest row that moves)
	paged            bool
	srcItem, dstItem int64 // strides
	srcItems         int32
	dstItems         int32
	srcRow, dstRow   int64 // paged: strides of a token; its rows are no loop of nest
	srcRows, dstRows int32 // paged: tokens of a block
}

// bodiesOf turns one part of a plan into a body, and a second one that zeroes the
// oldest column of a window that the source does not keep.
func bodiesOf(m layout.Model, p reshard.Part, out []body) []body {
	st, s, d := &m.States[p.State], p.From, p.To
	layers, units := p.Box.Layers.Len(), p.Box.Units.Len()
	b := body{paged: st.Paging == layout.PerBlock,
		srcItem: itemStride(s), dstItem: itemStride(d), srcItems: s.Items, dstItems: d.Items}
	n := &b.nest
	n.Src, n.Dst, n.From, n.To = s.View.Buffer, d.View.Buffer, s.DType, d.DType
	n.SrcOff, n.DstOff = start(s, p.Box), start(d, p.Box)
	l := loops{run: s.DType.Size(), from: s.DType.Size(), to: d.DType.Size()}
	l.add(layers, s.View.Layer, d.View.Layer)
	l.add(units, s.View.Unit, d.View.Unit)
	l.add(st.Elems, s.View.Elem, d.View.Elem)
	var zero *body
	if b.paged {
		b.srcRow, b.srcRows = rowStride(s), s.Rows
		b.dstRow, b.dstRows = rowStride(d), d.Rows
	} else {
		rows := min(s.Rows, d.Rows)
		n.SrcOff += int64(s.Rows-rows) * s.View.Row
		n.DstOff += int64(d.Rows-rows) * d.View.Row
		l.add(rows, s.View.Row, d.View.Row)
		if d.Rows > rows {
			zero = zeroOf(st, d, p.Box, d.Rows-rows)
		}
	}
	l.fold()
	l.nest(n)
	out = append(out, b)
	if zero != nil {
		out = append(out, *zero)
	}
	return out
}

// zeroOf zeroes the first rows of box at d. Its source side is all zero.
func zeroOf(st *layout.State, d *layout.Shard, box layout.Box, rows int32) *body {
	b := &body{dstItem: itemStride(d), srcItems: 1, dstItems: d.Items}
	b.nest.Dst, b.nest.To, b.nest.DstOff = d.View.Buffer, d.DType, start(d, box)
	size := d.DType.Size()
	l := loops{run: size, from: size, to: size}
	l.add(box.Layers.Len(), d.View.Layer, d.View.Layer)
	l.add(box.Units.Len(), d.View.Unit, d.View.Unit)
	l.add(st.Elems, d.View.Elem, d.View.Elem)
	l.add(rows, d.View.Row, d.View.Row)
	l.fold()
	l.nest(&b.nest)
	for i := range b.nest.Dims[:b.nest.Rank] {
		b.nest.Dims[i].SrcStride = 0
	}
	return b
}

// start is the byte of box's first layer and unit in item 0, row 0 of s.
func start(s *layout.Shard, box layout.Box) int64 {
	return s.View.Off + int64(box.Layers.Lo-s.Box.Layers.Lo)*s.View.Layer + int64(box.Units.Lo-s.Box.Units.Lo)*s.View.Unit
}

// itemStride is the view's, which means nothing when there is one item.
func itemStride(s *layout.Shard) int64 {
	if s.Items == 1 {
		return 0
	}
	return s.View.Item
}

// rowStride is from token to token. With one token a block that is from block to
// block, so that consecutive blocks count as dense tokens.
func rowStride(s *layout.Shard) int64 {
	if s.Rows == 1 {
		return itemStride(s)
	}
	return s.View.Row
}

// compareKind orders bodies by all that must be equal for two to become one;
// with run, the bytes of a run are part of it.
func compareKind(a, b *body, run bool) int {
	x, y := &a.nest, &b.nest
	c := cmp.Or(boolCompare(a.paged, b.paged), cmp.Compare(x.Src, y.Src), cmp.Compare(x.Dst, y.Dst),
		cmp.Compare(x.From, y.From), cmp.Compare(x.To, y.To), cmp.Compare(x.Rank, y.Rank),
		cmp.Compare(a.srcItem, b.srcItem), cmp.Compare(a.dstItem, b.dstItem),
		cmp.Compare(a.srcItems, b.srcItems), cmp.Compare(a.dstItems, b.dstItems))
	if c == 0 {
		c = cmp.Or(cmp.Compare(a.srcRow, b.srcRow), cmp.Compare(a.dstRow, b.dstRow),
			cmp.Compare(a.srcRows, b.srcRows), cmp.Compare(a.dstRows, b.dstRows))
	}
	for i := 0; c == 0 && i < int(x.Rank); i++ {
		p, q := &x.Dims[i], &y.Dims[i]
		c = cmp.Or(cmp.Compare(p.N, q.N), cmp.Compare(p.SrcStride, q.SrcStride), cmp.Compare(p.DstStride, q.DstStride))
	}
	if c == 0 && run {
		c = cmp.Compare(x.Run, y.Run)
	}
	return c
}

func boolCompare(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}

func sortBodies(bs []body, run bool) {
	slices.SortFunc(bs, func(a, b body) int {
		if c := compareKind(&a, &b, run); c != 0 {
			return c
		}
		return cmp.Or(cmp.Compare(a.nest.DstOff, b.nest.DstOff), cmp.Compare(a.nest.SrcOff, b.nest.SrcOff),
			cmp.Compare(a.nest.Run, b.nest.Run))
	})
}

// merge joins bodies until nothing more joins: neighbours in memory (bands of a
// convolution), then bodies that are equal but for a constant step (K and V of
// one tensor, layers stated one by one).
func merge(bs []body) []body {
	for {
		n := len(bs)
		sortBodies(bs, false)
		bs = joinRuns(bs)
		sortBodies(bs, true)
		bs = joinSteps(bs)
		if len(bs) == n {
			return bs
		}
	}
}

func joinRuns(bs []body) []body {
	out := bs[:0]
	for _, b := range bs {
		if n := len(out); n > 0 {
			a := &out[n-1]
			from, to := sizes(a.nest.From, a.nest.To)
			zero := a.nest.From == 0
			if compareKind(a, &b, false) == 0 && a.nest.DstOff+a.nest.Run/from*to == b.nest.DstOff &&
				(zero || a.nest.SrcOff+a.nest.Run == b.nest.SrcOff) {
				a.nest.Run += b.nest.Run
				a.refold()
				continue
			}
		}
		out = append(out, b)
	}
	return out
}

func joinSteps(bs []body) []body {
	out := bs[:0]
	for i := 0; i < len(bs); {
		b := bs[i]
		count, src, dst := b.steps(bs[i+1:])
		i += int(count)
		if count > 1 {
			l := b.loops()
			if b.nest.From == 0 {
				src = dst
			}
			l.add(count, src, dst)
			l.fold()
			b.set(&l)
		}
		out = append(out, b)
	}
	return out
}

// steps is how many of b and the bodies after it are one progression, and its steps.
func (b *body) steps(rest []body) (count int32, src, dst int64) {
	limit := uint8(MaxDims)
	if b.paged {
		limit = maxStatic
	}
	count = 1
	if b.nest.Rank >= limit {
		return count, 0, 0
	}
	last := b
	for i := range rest {
		c := &rest[i]
		ds, dd := c.nest.SrcOff-last.nest.SrcOff, c.nest.DstOff-last.nest.DstOff
		if compareKind(b, c, true) != 0 || dd <= 0 || ds <= 0 && b.nest.From != 0 || count > 1 && (ds != src || dd != dst) {
			break
		}
		src, dst, last = ds, dd, c
		count++
	}
	return count, src, dst
}

// loops takes b's nest apart; a zero nest takes part as if it copied onto itself.
func (b *body) loops() loops {
	from, to := sizes(b.nest.From, b.nest.To)
	l := loops{run: b.nest.Run, from: from, to: to, n: int(b.nest.Rank)}
	copy(l.dims[:], b.nest.Dims[:b.nest.Rank])
	if b.nest.From == 0 {
		for i := range l.dims[:l.n] {
			l.dims[i].SrcStride = l.dims[i].DstStride
		}
	}
	return l
}

func (b *body) set(l *loops) {
	l.nest(&b.nest)
	if b.nest.From == 0 {
		for i := range b.nest.Dims[:b.nest.Rank] {
			b.nest.Dims[i].SrcStride = 0
		}
	}
}

func (b *body) refold() {
	l := b.loops()
	l.fold()
	b.set(&l)
}

const (
	maxReach = 1 << 60 // bytes from the start of a buffer
	maxBytes = 1 << 48 // bytes of one body in one item or one token
)

// check bounds b so that no arithmetic on it can overflow, whoever made it.
func (b *body) check() error {
	n := &b.nest
	limit := uint8(MaxDims)
	if b.paged {
		limit = maxStatic
	}
	from, to := sizes(n.From, n.To)
	switch {
	case to == 0 || from == 0 || n.From == 0 && (b.paged || n.Src != 0 || n.SrcOff != 0 || b.srcItem != 0):
		return fmt.Errorf("dtypes %v to %v", n.From, n.To)
	case n.Rank > limit:
		return fmt.Errorf("%d loops: at most %d", n.Rank, limit)
	case n.Run <= 0 || n.Run%from != 0:
		return fmt.Errorf("run of %d bytes of %v", n.Run, n.From)
	case b.srcItems < 1 || b.dstItems < 1:
		return fmt.Errorf("%d and %d items", b.srcItems, b.dstItems)
	case b.paged && (b.srcRows < 1 || b.dstRows < 1 || b.srcRows > layout.MaxRows || b.dstRows > layout.MaxRows):
		return fmt.Errorf("%d and %d rows", b.srcRows, b.dstRows)
	case !b.paged && (b.srcRows|b.dstRows != 0 || b.srcRow|b.dstRow != 0):
		return fmt.Errorf("rows of a body that has none")
	}
	src, dst := reach{at: n.SrcOff}, reach{at: n.DstOff}
	src.add(2, n.Run)
	dst.add(2, n.Run)
	dst.add(to, n.Run/from)
	total := reach{at: n.Run}
	for i, d := range n.Dims {
		if i >= int(n.Rank) {
			if d != (Dim{}) {
				return fmt.Errorf("loop %d of %d is set", i, n.Rank)
			}
			continue
		}
		if d.N < 2 || n.From == 0 && d.SrcStride != 0 {
			return fmt.Errorf("loop %d: %+v", i, d)
		}
		src.add(int64(d.N), d.SrcStride)
		dst.add(int64(d.N), d.DstStride)
		total.add(int64(d.N), total.at)
	}
	src.add(int64(b.srcItems), b.srcItem)
	dst.add(int64(b.dstItems), b.dstItem)
	src.add(int64(b.srcRows), b.srcRow)
	dst.add(int64(b.dstRows), b.dstRow)
	if src.bad || dst.bad || total.bad || total.at > maxBytes || n.Run > maxBytes {
		return fmt.Errorf("offsets or strides are negative or reach over 2^60 bytes")
	}
	return nil
}

// reach adds up (n-1)*stride and remembers a negative or too large one.
type reach struct {
	at  int64
	bad bool
}

func (r *reach) add(n, stride int64) {
	if r.at < 0 || stride < 0 || n < 0 {
		r.bad = true
	}
	hi, lo := bits.Mul64(uint64(max(n-1, 0)), uint64(stride))
	if r.bad || hi != 0 || lo > maxReach || r.at > maxReach || r.at+int64(lo) > maxReach {
		r.bad = true
		return
	}
	r.at += int64(lo)
}
