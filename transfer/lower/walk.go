package lower

import "fmt"

// piece is a stretch of tokens that is contiguous in both block tables, or a
// progression of equal ones.
type piece struct {
	src, dst int64 // offsets of the first token, from item 0 row 0
	n        int32 // tokens
	inner    steps // row groups: pieces of one block on one side
	outer    steps // progressions of those
}

// steps is count pieces, src and dst bytes apart; 1 for a single one.
type steps struct {
	count    int32
	src, dst int64
}

// proto is the nest of a piece's shape, without its offsets.
type proto struct {
	ok           bool
	n            int32
	inner, outer steps
	nest         Nest
}

// walk lowers one job. It is a value on the stack, so a job allocates nothing.
type walk struct {
	ns     []Nest
	cur    piece // being grown
	group  piece // finished pieces that may still repeat
	protos [8]proto
}

// put appends a copy of n and returns it.
func (w *walk) put(n *Nest) *Nest {
	if k := len(w.ns); k < cap(w.ns) {
		w.ns = w.ns[:k+1]
		w.ns[k] = *n
	} else {
		w.ns = append(w.ns, *n)
	}
	return &w.ns[len(w.ns)-1]
}

// blocks walks j's tokens through both block tables, cutting at the blocks of
// either, and appends b's nests.
func (w *walk) blocks(b *body, j *Job) error {
	if j.Tokens.Lo == j.Tokens.Hi {
		return nil
	}
	for i := range w.protos {
		w.protos[i].ok = false
	}
	w.cur.n, w.group.n = 0, 0
	si, sr := (j.Tokens.Lo-j.SrcFirst)/b.srcRows, (j.Tokens.Lo-j.SrcFirst)%b.srcRows
	di, dr := (j.Tokens.Lo-j.DstFirst)/b.dstRows, (j.Tokens.Lo-j.DstFirst)%b.dstRows
	var lastS, lastD int32
	for left := j.Tokens.Hi - j.Tokens.Lo; left > 0; {
		n := min(left, b.srcRows-sr, b.dstRows-dr)
		s, d := j.SrcBlocks[si], j.DstBlocks[di]
		if uint32(s) >= uint32(b.srcItems) {
			return fmt.Errorf("%w: source block %d at place %d: there are %d", ErrJob, s, si, b.srcItems)
		}
		if uint32(d) >= uint32(b.dstItems) {
			return fmt.Errorf("%w: destination block %d at place %d: there are %d", ErrJob, d, di, b.dstItems)
		}
		src, dst := int64(s)*b.srcItem+int64(sr)*b.srcRow, int64(d)*b.dstItem+int64(dr)*b.dstRow
		if uint32(s-lastS) > 1 || uint32(d-lastD) > 1 || !w.grow(b, src, dst, n) {
			w.flush(b)
			if n == b.srcRows && n == b.dstRows {
				if k := w.lone(b, j.SrcBlocks[si:], j.DstBlocks[di:], left/n); k > 0 {
					si, di, left = si+k, di+k, left-k*n
					lastS, lastD = j.SrcBlocks[si-1], j.DstBlocks[di-1]
					continue
				}
			}
			w.cur = piece{src: src, dst: dst, n: n, inner: steps{count: 1}, outer: steps{count: 1}}
		}
		lastS, lastD = s, d
		left -= n
		if sr += n; sr == b.srcRows {
			sr = 0
			si++
		}
		if dr += n; dr == b.dstRows {
			dr = 0
			di++
		}
	}
	w.flush(b)
	return nil
}

// lone emits whole blocks of equal size, at most n, as long as the next one is no
// neighbour: the common case of a scattered table, in a loop of its own for speed.
func (w *walk) lone(b *body, src, dst []int32, n int32) int32 {
	f := w.shape(b, &piece{n: b.srcRows, inner: steps{count: 1}, outer: steps{count: 1}})
	src = src[:min(len(src), len(dst))]
	dst = dst[:len(src)]
	ns := w.ns
	k := int32(0)
	for ; k < n; k++ {
		s, d := src[k], dst[k]
		if uint32(s) >= uint32(b.srcItems) || uint32(d) >= uint32(b.dstItems) {
			break // said by the caller
		}
		if int(k)+1 < len(src) && uint32(src[k+1]-s) <= 1 && uint32(dst[k+1]-d) <= 1 {
			break
		}
		if len(ns) < cap(ns) {
			ns = ns[:len(ns)+1]
			ns[len(ns)-1] = f.nest
		} else {
			ns = append(ns, f.nest)
		}
		x := &ns[len(ns)-1]
		x.SrcOff += int64(s) * b.srcItem
		x.DstOff += int64(d) * b.dstItem
	}
	w.ns = ns
	return k
}

// grow adds the next tokens to the current piece if they are dense on both sides,
// or repeat it; else it keeps the piece as one that may itself repeat.
func (w *walk) grow(b *body, src, dst int64, n int32) bool {
	c := &w.cur
	if c.n == 0 {
		return false
	}
	if c.inner.count == 1 && src-c.src == int64(c.n)*b.srcRow && dst-c.dst == int64(c.n)*b.dstRow {
		c.n += n
		return true
	}
	if n == c.n {
		last := int64(c.inner.count - 1)
		ds, dd := src-c.src-last*c.inner.src, dst-c.dst-last*c.inner.dst
		if c.inner.count == 1 && ds > 0 && dd > 0 {
			c.inner = steps{2, ds, dd}
			return true
		}
		if c.inner.count > 1 && ds == c.inner.src && dd == c.inner.dst {
			c.inner.count++
			return true
		}
	}
	w.regroup(b)
	w.cur = piece{src: src, dst: dst, n: n, inner: steps{count: 1}, outer: steps{count: 1}}
	return true
}

// regroup moves the current piece into the group, which it continues or replaces.
func (w *walk) regroup(b *body) {
	c, g := &w.cur, &w.group
	if g.n == c.n && g.inner == c.inner {
		last := int64(g.outer.count - 1)
		ds, dd := c.src-g.src-last*g.outer.src, c.dst-g.dst-last*g.outer.dst
		if g.outer.count == 1 && ds > 0 && dd > 0 {
			g.outer = steps{2, ds, dd}
			return
		}
		if g.outer.count > 1 && ds == g.outer.src && dd == g.outer.dst {
			g.outer.count++
			return
		}
	}
	if g.n > 0 {
		w.emit(b, g)
	}
	*g = *c
}

// flush emits what is open.
func (w *walk) flush(b *body) {
	if w.group.n > 0 {
		w.regroup(b)
		w.emit(b, &w.group)
		w.group.n = 0
	} else if w.cur.n > 0 {
		w.emit(b, &w.cur)
	}
	w.cur.n = 0
}

// emit appends p's nest, or one for each step of its outer loop where a nest
// lacks room for that.
func (w *walk) emit(b *body, p *piece) {
	f := w.shape(b, p)
	if f == nil {
		q := *p
		q.outer = steps{count: 1}
		for range p.outer.count {
			w.emit(b, &q)
			q.src += p.outer.src
			q.dst += p.outer.dst
		}
		return
	}
	n := w.put(&f.nest)
	n.SrcOff += p.src
	n.DstOff += p.dst
}

// shape is the nest of p but for its offsets, nil if it has too many loops. Few
// shapes occur in one job, so they are kept.
func (w *walk) shape(b *body, p *piece) *proto {
	f := &w.protos[uint32(p.n+p.inner.count*3+p.outer.count*5)%uint32(len(w.protos))]
	if f.ok && f.n == p.n && f.inner == p.inner && f.outer == p.outer {
		return f
	}
	l := b.loops()
	l.add(p.n, b.srcRow, b.dstRow)
	l.add(p.inner.count, p.inner.src, p.inner.dst)
	l.add(p.outer.count, p.outer.src, p.outer.dst)
	l.fold()
	f.nest = b.nest
	if f.ok = l.nest(&f.nest); !f.ok {
		return nil
	}
	f.n, f.inner, f.outer = p.n, p.inner, p.outer
	return f
}
