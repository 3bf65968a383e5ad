// Package plain is the Go half of kernels/rows: it resolves nests to checked
// addresses, and is the reference that the C kernel's bytes are compared with. It is
// also the copier of builds without cgo and of transfer/mem. No C, no goroutines.
//
// Invariant: an Op exists only after every byte that it touches was found inside
// its buffers.
package plain

import (
	"fmt"
	"math"
	"math/bits"

	"github.com/batonkv/baton/transfer"
	"github.com/batonkv/baton/transfer/layout"
	"github.com/batonkv/baton/transfer/layout/float"
	"github.com/batonkv/baton/transfer/lower"
)

// Dim is one loop of an Op: N steps, and the bytes between them on each side.
type Dim struct{ N, Src, Dst int64 }

// Kind says what the body of an Op does: Copy, Zero, or a conversion, from<<8 | to.
type Kind int32

// Kinds that are no conversion.
const (
	Copy Kind = iota // Run bytes
	Zero             // Run bytes of Dst; Src means nothing
)

// types are those of a conversion, else zero.
func (k Kind) types() (from, to layout.DType) { return layout.DType(k >> 8), layout.DType(k & 0xff) }

// written is what run source bytes of a body become.
func (k Kind) written(run int64) int64 {
	if k <= Zero {
		return run
	}
	from, to := k.types()
	return run / from.Size() * to.Size()
}

// Op is a nest with addresses, its bounds checked and its loops merged. Dims[0] is
// the outermost loop. Memory layout equals struct rows_op of kernels/rows/shim.h.
type Op struct {
	Src, Dst uint64
	Run      int64 // contiguous bytes of one body as the source stores them, at least 1
	Rank     int32 // used entries of Dims
	Kind     Kind
	Dims     [lower.MaxDims]Dim
}

// Bytes is what o writes.
func (o *Op) Bytes() int64 {
	b := o.Kind.written(o.Run)
	for _, d := range o.Dims[:o.Rank] {
		b *= d.N
	}
	return b
}

// At is o's part from byte at of its source's run on, run bytes of it long.
func (o *Op) At(at, run int64) Op {
	p := *o
	p.Src += uint64(at)
	p.Dst += uint64(o.Kind.written(at))
	p.Run = run
	return p
}

// Fits is ErrConvert for a nest that changes the element type in a way that package
// float lacks.
func Fits(n lower.Nest) error {
	if n.From != 0 && !float.Converts(n.From, n.To) {
		return fmt.Errorf("%w: %v to %v: store both sides in one dtype", transfer.ErrConvert, n.From, n.To)
	}
	return nil
}

// kindOf is what the body of n does, once Fits has let it pass.
func kindOf(n *lower.Nest) (Kind, error) {
	switch {
	case n.From == 0:
		return Zero, nil
	case n.From == n.To:
		return Copy, nil
	case n.Run%n.From.Size() != 0 || n.Run > math.MaxInt64/4:
		return 0, fmt.Errorf("%w: run of %d bytes of %v", transfer.ErrBounds, n.Run, n.From)
	}
	return Kind(n.From)<<8 | Kind(n.To), nil
}

// Resolve appends the ops of ns to dst and returns the bytes that they write. It
// fails with ErrBounds or ErrConvert, and then nothing may be copied. Nests without
// bytes yield no op.
func Resolve(ops []Op, ns []lower.Nest, src, dst transfer.Buffers) ([]Op, int64, error) {
	var total int64
	for i := range ns {
		o, b, err := resolve(&ns[i], src, dst)
		if err != nil {
			return ops, 0, fmt.Errorf("nest %d of %d: %w", i, len(ns), err)
		}
		if b == 0 {
			continue
		}
		if total > math.MaxInt64-b {
			return ops, 0, fmt.Errorf("nest %d of %d: %w: more than 2^63 bytes in one job", i, len(ns), transfer.ErrBounds)
		}
		total += b
		ops = append(ops, o)
	}
	return ops, total, nil
}

func resolve(n *lower.Nest, src, dst transfer.Buffers) (Op, int64, error) {
	if err := Fits(*n); err != nil {
		return Op{}, 0, err
	}
	kind, err := kindOf(n)
	if err != nil {
		return Op{}, 0, err
	}
	out := kind.written(n.Run)
	b, err := size(n, out)
	if err != nil || b == 0 {
		return Op{}, 0, err
	}
	o := Op{Run: n.Run, Rank: int32(n.Rank), Kind: kind}
	var from, to extent
	for i, d := range n.Dims[:n.Rank] {
		o.Dims[i] = Dim{N: int64(d.N), Src: d.SrcStride, Dst: d.DstStride}
		from.step(int64(d.N), d.SrcStride)
		to.step(int64(d.N), d.DstStride)
	}
	if o.Dst, err = to.at("destination", n.Dst, n.DstOff, out, dst); err != nil {
		return Op{}, 0, err
	}
	// No cell is written twice, so more bytes than the buffer has are nonsense, and
	// a zero stride must not buy an endless copy.
	if b > dst[n.Dst].Len {
		return Op{}, 0, fmt.Errorf("%w: %d bytes into destination buffer %d of %d", transfer.ErrBounds, b, n.Dst, dst[n.Dst].Len)
	}
	if kind != Zero {
		if o.Src, err = from.at("source", n.Src, n.SrcOff, n.Run, src); err != nil {
			return Op{}, 0, err
		}
	}
	o.merge()
	return o, b, nil
}

// size is the bytes that n writes: out, those of a body, times the product of its loops.
func size(n *lower.Nest, out int64) (int64, error) {
	if n.Rank > lower.MaxDims || n.Run < 0 {
		return 0, fmt.Errorf("%w: nest of rank %d and run %d", transfer.ErrBounds, n.Rank, n.Run)
	}
	b := uint64(out)
	over := false
	for _, d := range n.Dims[:n.Rank] {
		if d.N < 0 {
			return 0, fmt.Errorf("%w: loop of %d steps", transfer.ErrBounds, d.N)
		}
		if d.N == 0 {
			return 0, nil
		}
		hi, lo := bits.Mul64(b, uint64(d.N))
		over = over || hi != 0 || lo > math.MaxInt64
		b = lo
	}
	if over {
		return 0, fmt.Errorf("%w: nest of more than 2^63 bytes", transfer.ErrBounds)
	}
	return int64(b), nil
}

// extent is how far the loops of a nest reach below and above its offset.
type extent struct {
	down, up uint64
	over     bool
}

func (e *extent) step(n, stride int64) {
	mag := uint64(stride)
	if stride < 0 {
		mag = -mag
	}
	hi, d := bits.Mul64(uint64(n-1), mag)
	e.over = e.over || hi != 0
	var carry uint64
	if stride < 0 {
		e.down, carry = bits.Add64(e.down, d, 0)
	} else {
		e.up, carry = bits.Add64(e.up, d, 0)
	}
	e.over = e.over || carry != 0
}

// at checks that off-down .. off+up+run lies in buffer id and gives off's address.
func (e *extent) at(side string, id uint32, off, run int64, bs transfer.Buffers) (uint64, error) {
	if uint64(id) >= uint64(len(bs)) || bs[id].Len <= 0 {
		return 0, fmt.Errorf("%w: %s buffer %d is not attached", transfer.ErrBounds, side, id)
	}
	m := bs[id]
	size := uint64(m.Len)
	// Every term below is at most size when the check before it held, so none wraps.
	ok := !e.over && off >= 0 && uint64(off) <= size && e.down <= uint64(off) &&
		e.up <= size-uint64(off) && uint64(run) <= size-uint64(off)-e.up &&
		m.Addr <= math.MaxUint64-size
	if !ok {
		return 0, fmt.Errorf("%w: %s buffer %d of %d bytes: offset %d, %d below, %d above, run %d",
			transfer.ErrBounds, side, id, m.Len, off, e.down, e.up, run)
	}
	return m.Addr + uint64(off), nil
}

// merge drops loops of one step, puts the loop with the widest destination stride
// outermost, so that writes run forwards, and joins loops that are dense on both sides.
func (o *Op) merge() {
	r := int32(0)
	for _, d := range o.Dims[:o.Rank] {
		if d.N == 1 {
			continue
		}
		if o.Kind == Zero {
			d.Src = d.Dst
		}
		i := r
		for ; i > 0 && abs(o.Dims[i-1].Dst) < abs(d.Dst); i-- {
			o.Dims[i] = o.Dims[i-1]
		}
		o.Dims[i] = d
		r++
	}
	for r > 0 && o.Dims[r-1].Src == o.Run && o.Dims[r-1].Dst == o.Kind.written(o.Run) {
		o.Run *= o.Dims[r-1].N
		r--
	}
	for i := r - 1; i > 0; i-- {
		out, in := &o.Dims[i-1], o.Dims[i]
		if out.Src == in.Src*in.N && out.Dst == in.Dst*in.N {
			*out = Dim{N: out.N * in.N, Src: in.Src, Dst: in.Dst}
			copy(o.Dims[i:r], o.Dims[i+1:r])
			r--
		}
	}
	for i := r; i < lower.MaxDims; i++ {
		o.Dims[i] = Dim{}
	}
	o.Rank = r
}

func abs(x int64) int64 {
	if x < 0 {
		return -x
	}
	return x
}
