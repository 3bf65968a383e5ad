package lower

import "fmt"

// Split appends the contiguous copies of ns to dst, for backends that take
// nothing else; neighbours that continue each other on both sides become one.
// A conversion or a zero nest is an ErrSplit, and dst comes back as it was.
func Split(dst []Run1, ns []Nest) ([]Run1, error) {
	out := dst
	for i := range ns {
		n := &ns[i]
		if n.From != n.To {
			return dst, fmt.Errorf("%w: nest %d turns %v into %v, and a run only copies", ErrSplit, i, n.From, n.To)
		}
		if n.Rank > MaxDims {
			return dst, fmt.Errorf("%w: nest %d has %d loops", ErrSplit, i, n.Rank)
		}
		out = n.split(out)
	}
	return out, nil
}

func (n *Nest) split(out []Run1) []Run1 {
	var at [MaxDims]int32
	r := Run1{n.Src, n.Dst, n.SrcOff, n.DstOff, n.Run}
	for _, d := range n.Dims[:n.Rank] {
		if d.N <= 0 {
			return out
		}
	}
	for {
		if k := len(out); k > 0 && out[k-1].continues(&r) {
			out[k-1].Len += r.Len
		} else {
			out = append(out, r)
		}
		i := int(n.Rank) - 1
		for ; i >= 0; i-- {
			d := &n.Dims[i]
			r.SrcOff += d.SrcStride
			r.DstOff += d.DstStride
			if at[i]++; at[i] < d.N {
				break
			}
			at[i] = 0
			r.SrcOff -= int64(d.N) * d.SrcStride
			r.DstOff -= int64(d.N) * d.DstStride
		}
		if i < 0 {
			return out
		}
	}
}

// continues reports whether o starts where r ends, on both sides.
func (r *Run1) continues(o *Run1) bool {
	return r.Src == o.Src && r.Dst == o.Dst && r.SrcOff+r.Len == o.SrcOff && r.DstOff+r.Len == o.DstOff
}

// Bytes is what ns write, as the destination stores it.
func Bytes(ns []Nest) int64 {
	var total int64
	for i := range ns {
		n := &ns[i]
		from, to := sizes(n.From, n.To)
		if from == 0 {
			continue
		}
		b := n.Run / from * to
		for _, d := range n.Dims[:min(n.Rank, MaxDims)] {
			b *= int64(d.N)
		}
		total += b
	}
	return total
}
