package layout

import (
	"cmp"
	"fmt"
	"slices"
)

// lattice is the bytes of one shard: dims by falling stride, run bytes at each point.
// Dimensions of one step are left out, whatever their stride.
type lattice struct {
	off, run int64
	dims     [5]step
	n        int
}

type step struct {
	count  int64
	stride int64
}

func (l *lattice) of(s *Shard, st *State) {
	*l = lattice{off: s.View.Off, run: s.DType.Size()}
	v := &s.View
	l.add(s.Box.Layers.Len(), v.Layer)
	l.add(s.Items, v.Item)
	l.add(s.Rows, v.Row)
	l.add(s.Box.Units.Len(), v.Unit)
	l.add(st.Elems, v.Elem)
}

func (l *lattice) add(count int32, stride int64) {
	if count <= 1 {
		return
	}
	i := l.n
	for ; i > 0 && l.dims[i-1].stride < stride; i-- {
		l.dims[i] = l.dims[i-1]
	}
	l.dims[i] = step{int64(count), stride}
	l.n++
}

// end is the byte after the last; Check has proved that it does not overflow.
func (l *lattice) end() int64 {
	e := l.off + l.run
	for _, d := range l.dims[:l.n] {
		e += (d.count - 1) * d.stride
	}
	return e
}

// dense drops inner dimensions that are contiguous: the set of bytes is the same.
func (l *lattice) dense() {
	for l.n > 0 && l.dims[l.n-1].stride == l.run {
		l.run *= l.dims[l.n-1].count
		l.n--
	}
	for i := l.n - 1; i > 0; i-- {
		if l.dims[i-1].stride == l.dims[i].stride*l.dims[i].count {
			l.dims[i].count *= l.dims[i-1].count
			copy(l.dims[i-1:], l.dims[i:l.n])
			l.n--
		}
	}
}

// Overlay declares that two states of one rank may share bytes: an engine that
// uses the same pages for either kind of layer, as vLLM's hybrid groups do. The
// engine then answers that never both are live in one item.
type Overlay struct{ A, B int32 } // indices into Model.States, any order

// CheckMemory reports a shard of one rank that leaves its buffer, and two that
// share a byte and are not declared. bufferLen is the bytes of each of the
// rank's buffers. It runs Check first.
func CheckMemory(m Model, shards []Shard, bufferLen []int64, declared ...Overlay) error {
	if err := m.Check(shards); err != nil {
		return err
	}
	if len(bufferLen) > MaxBuffers {
		return fmt.Errorf("%w: %d buffers: at most %d", ErrGeometry, len(bufferLen), MaxBuffers)
	}
	ls := make([]placed, len(shards))
	for i := range shards {
		s := &shards[i]
		if s.Rank != shards[0].Rank {
			return m.refuse(*s, ErrGeometry, "memory is checked rank by rank, and the first shard is rank %d's", shards[0].Rank)
		}
		if int(s.View.Buffer) >= len(bufferLen) {
			return m.refuse(*s, ErrMemory, "buffer %d: the rank attached %d", s.View.Buffer, len(bufferLen))
		}
		p := placed{shard: s}
		p.of(s, &m.States[s.State])
		p.hi = p.end()
		if n := bufferLen[s.View.Buffer]; p.hi > n {
			return m.refuse(*s, ErrMemory, "it ends at byte %d of buffer %d, which has %d: the buffer is too small or a stride is wrong",
				p.hi, s.View.Buffer, n)
		}
		p.dense()
		ls[i] = p
	}
	return m.checkOverlay(ls, declared)
}

type placed struct {
	lattice
	shard *Shard
	hi    int64
}

func (m Model) checkOverlay(ls []placed, declared []Overlay) error {
	slices.SortFunc(ls, func(a, b placed) int {
		return cmp.Or(cmp.Compare(a.shard.View.Buffer, b.shard.View.Buffer), cmp.Compare(a.off, b.off),
			CompareShards(*a.shard, *b.shard))
	})
	steps := maxOverlaps
	for i := range ls {
		a := &ls[i]
		for j := i + 1; j < len(ls); j++ {
			b := &ls[j]
			if b.shard.View.Buffer != a.shard.View.Buffer || b.off >= a.hi {
				break
			}
			if isDeclared(declared, a.shard.State, b.shard.State) && steps > 0 {
				steps--
				continue
			}
			if !apart(a.lattice, b.lattice, &steps) {
				why := "%v of state %s lies on the same bytes of buffer %d: give each its own, or declare the overlay"
				if steps <= 0 {
					why = "%v of state %s is interleaved with it in buffer %d in too many pieces to tell apart: declare the overlay, or state fewer, larger boxes"
				}
				return m.refuse(*a.shard, ErrMemory, why, b.shard.Box, m.States[b.shard.State].Name, a.shard.View.Buffer)
			}
		}
	}
	return nil
}

func isDeclared(os []Overlay, a, b int32) bool {
	return slices.ContainsFunc(os, func(o Overlay) bool {
		return o.A == a && o.B == b || o.A == b && o.B == a
	})
}

// apart reports whether a and b share no byte. Where both step by the same
// stride only the few index differences that bring them together are tried; else
// the wider steps are walked. It gives up, saying no, when steps runs out.
func apart(a, b lattice, steps *int) bool {
	if *steps--; *steps <= 0 {
		return false
	}
	ae, be := a.end(), b.end()
	if ae <= b.off || be <= a.off {
		return true
	}
	if a.n == 0 && b.n == 0 {
		return false
	}
	if a.n == 0 || b.n > 0 && b.dims[0].stride > a.dims[0].stride {
		a, b = b, a
	}
	d := a.dims[0]
	inA := a.inner()
	if b.n > 0 && b.dims[0].stride == d.stride {
		inB := b.inner()
		n, m := d.count-1, b.dims[0].count-1
		return each(inA, inB, d.stride, -m, n, steps)
	}
	return each(inA, b, d.stride, 0, d.count-1, steps)
}

// inner drops the outermost dimension.
func (l lattice) inner() lattice {
	copy(l.dims[:], l.dims[1:l.n])
	l.n--
	return l
}

// each tries a shifted by lo..hi strides against b, only where they can meet.
func each(a, b lattice, stride, lo, hi int64, steps *int) bool {
	// a.end + k*stride > b.off and a.off + k*stride < b.end
	first := max(lo, floorDiv(b.off-a.end(), stride)+1)
	last := min(hi, floorDiv(b.end()-a.off-1, stride))
	off := a.off
	for k := first; k <= last; k++ {
		a.off = off + k*stride
		if !apart(a, b, steps) {
			return false
		}
	}
	return true
}

func floorDiv(a, b int64) int64 {
	q := a / b
	if a%b != 0 && (a < 0) != (b < 0) {
		q--
	}
	return q
}
