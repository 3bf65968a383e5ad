package lower

import "github.com/batonkv/baton/transfer/layout"

// loops is a set of (source, destination) byte pairs while it is normalised: any
// order of dims names the same set. A seventh entry leaves room for row groups of
// blocks before folding.
type loops struct {
	run      int64 // contiguous source bytes
	from, to int64 // element sizes; equal unless converted
	dims     [MaxDims + 2]Dim
	n        int
}

func (l *loops) add(n int32, src, dst int64) {
	if n > 1 {
		l.dims[l.n] = Dim{n, src, dst}
		l.n++
	}
}

// fold makes l canonical: dimensions that are contiguous on both sides become
// part of the run, pairs that are one arithmetic progression on both sides become
// one, and the rest is sorted outermost first by destination stride, so that
// writes walk forward.
func (l *loops) fold() {
	for again := true; again; {
		again = false
		for i := 0; i < l.n; i++ {
			d := &l.dims[i]
			if d.SrcStride == l.run && d.DstStride == l.run/l.from*l.to {
				l.run *= int64(d.N)
				l.drop(i)
				again = true
				break
			}
		}
	}
	for again := true; again; {
		again = false
	pairs:
		for i := 0; i < l.n; i++ {
			in := &l.dims[i]
			for k := 0; k < l.n; k++ {
				out := &l.dims[k]
				if k == i || out.SrcStride != in.SrcStride*int64(in.N) || out.DstStride != in.DstStride*int64(in.N) ||
					int64(in.N)*int64(out.N) > 1<<30 {
					continue
				}
				in.N *= out.N
				l.drop(k)
				again = true
				break pairs
			}
		}
	}
	for i := 1; i < l.n; i++ {
		d := l.dims[i]
		k := i
		for ; k > 0 && before(&d, &l.dims[k-1]); k-- {
			l.dims[k] = l.dims[k-1]
		}
		l.dims[k] = d
	}
}

func before(a, b *Dim) bool {
	if a.DstStride != b.DstStride {
		return a.DstStride > b.DstStride
	}
	return a.SrcStride > b.SrcStride
}

func (l *loops) drop(i int) {
	copy(l.dims[i:], l.dims[i+1:l.n])
	l.n--
}

// nest writes l's loops and run to n; offsets, buffers and types are the caller's.
// It reports false when there are more loops than a Nest has.
func (l *loops) nest(n *Nest) bool {
	if l.n > MaxDims {
		return false
	}
	n.Run, n.Rank = l.run, uint8(l.n)
	copy(n.Dims[:], l.dims[:l.n])
	clear(n.Dims[l.n:])
	return true
}

func sizes(from, to layout.DType) (int64, int64) {
	if from == 0 { // a zero nest counts destination bytes
		return to.Size(), to.Size()
	}
	return from.Size(), to.Size()
}
