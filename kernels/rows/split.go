package rows

import "github.com/batonkv/baton/kernels/rows/plain"

// runAlign is where long runs are cut, so that both parts begin on a page of the
// destination when the whole did.
const runAlign = 4096

// split appends ops to dst, cut to pieces of about limit bytes.
func split(dst []plain.Op, ops []plain.Op, limit int64) []plain.Op {
	for i := range ops {
		dst = cut(dst, ops[i], ops[i].Bytes(), limit)
	}
	return dst
}

// cut halves o, along its outermost loop, else along its run, until pieces fit.
func cut(dst []plain.Op, o plain.Op, bytes, limit int64) []plain.Op {
	if bytes <= limit {
		return append(dst, o)
	}
	if o.Rank == 0 {
		return cutRun(dst, o, limit)
	}
	// The outermost loop gives parts of k steps; a part of one step is a smaller nest.
	out := o.Dims[0]
	step := bytes / out.N
	k := max(limit/step, 1)
	for at := int64(0); at < out.N; at += k {
		p := o
		n := min(k, out.N-at)
		p.Src += uint64(at * out.Src)
		p.Dst += uint64(at * out.Dst)
		p.Dims[0].N = n
		if n == 1 {
			copy(p.Dims[:], o.Dims[1:])
			p.Rank--
		}
		dst = cut(dst, p, n*step, limit)
	}
	return dst
}

func cutRun(dst []plain.Op, o plain.Op, limit int64) []plain.Op {
	limit = max(limit/runAlign, 1) * runAlign
	for at := int64(0); at < o.Run; at += limit {
		dst = append(dst, o.At(at, min(limit, o.Run-at)))
	}
	return dst
}
