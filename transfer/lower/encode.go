package lower

import (
	"encoding/binary"
	"fmt"

	"github.com/batonkv/baton/transfer/layout"
	"github.com/batonkv/baton/transfer/reshard"
)

// A template travels as: magic, pair, source rank, destination rank, number of
// bodies, bodies of bodySize bytes; all big endian.
const (
	magic      = "batonT1\n"
	headerSize = len(magic) + 4*4
	bodySize   = 4 + 2*4 + 3*8 + MaxDims*(4+2*8) + 4*8 + 4*4
	// maxBodies bounds what Decode allocates; a pair of a thousand weight tensors
	// or of a model with one buffer a layer stays far below.
	maxBodies = 1 << 16
)

// MarshalBinary carries a template across a process border.
func (t *Template) MarshalBinary() ([]byte, error) {
	if len(t.bodies) > maxBodies {
		return nil, fmt.Errorf("%w: %d pieces: at most %d travel", ErrTemplate, len(t.bodies), maxBodies)
	}
	e := binary.BigEndian
	b := append(make([]byte, 0, headerSize+len(t.bodies)*bodySize), magic...)
	for _, v := range [...]uint32{t.pair, uint32(t.ranks.Src), uint32(t.ranks.Dst), uint32(len(t.bodies))} {
		b = e.AppendUint32(b, v)
	}
	for i := range t.bodies {
		y := &t.bodies[i]
		n := &y.nest
		var paged byte
		if y.paged {
			paged = 1
		}
		b = append(b, paged, n.Rank, byte(n.From), byte(n.To))
		b = e.AppendUint32(e.AppendUint32(b, n.Src), n.Dst)
		for _, v := range [...]int64{n.SrcOff, n.DstOff, n.Run, y.srcItem, y.dstItem, y.srcRow, y.dstRow} {
			b = e.AppendUint64(b, uint64(v))
		}
		for _, v := range [...]int32{y.srcItems, y.dstItems, y.srcRows, y.dstRows} {
			b = e.AppendUint32(b, uint32(v))
		}
		for _, d := range n.Dims {
			b = e.AppendUint32(b, uint32(d.N))
			b = e.AppendUint64(e.AppendUint64(b, uint64(d.SrcStride)), uint64(d.DstStride))
		}
	}
	return b, nil
}

// Decode reads what MarshalBinary wrote. Its errors are ErrTemplate; what it
// accepts cannot make Nests overflow, whatever the job.
func Decode(b []byte) (*Template, error) {
	if len(b) < headerSize || string(b[:len(magic)]) != magic {
		return nil, fmt.Errorf("%w: %d bytes do not start like one", ErrTemplate, len(b))
	}
	r := reader{b[len(magic):]}
	t := &Template{pair: r.u32()}
	t.ranks = reshard.Pair{Src: layout.Rank(r.u32()), Dst: layout.Rank(r.u32())}
	n := r.u32()
	if n == 0 || n > maxBodies || len(r.b) != int(n)*bodySize {
		return nil, fmt.Errorf("%w: %d bytes for %d pieces of %d", ErrTemplate, len(r.b), n, bodySize)
	}
	if t.ranks.Src < 0 || t.ranks.Dst < 0 {
		return nil, fmt.Errorf("%w: ranks %d and %d", ErrTemplate, t.ranks.Src, t.ranks.Dst)
	}
	t.bodies = make([]body, n)
	for i := range t.bodies {
		if err := t.bodies[i].read(&r); err != nil {
			return nil, fmt.Errorf("%w: piece %d: %w", ErrTemplate, i, err)
		}
	}
	if err := t.finish(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrTemplate, err)
	}
	return t, nil
}

func (y *body) read(r *reader) error {
	n := &y.nest
	flags := r.take(4)
	if flags[0] > 1 {
		return fmt.Errorf("flag %d", flags[0])
	}
	y.paged, n.Rank, n.From, n.To = flags[0] == 1, flags[1], layout.DType(flags[2]), layout.DType(flags[3])
	n.Src, n.Dst = r.u32(), r.u32()
	for _, v := range [...]*int64{&n.SrcOff, &n.DstOff, &n.Run, &y.srcItem, &y.dstItem, &y.srcRow, &y.dstRow} {
		*v = r.i64()
	}
	for _, v := range [...]*int32{&y.srcItems, &y.dstItems, &y.srcRows, &y.dstRows} {
		*v = int32(r.u32())
	}
	for i := range n.Dims {
		n.Dims[i] = Dim{int32(r.u32()), r.i64(), r.i64()}
	}
	return nil
}

// reader takes fixed sizes from bytes that are known to suffice.
type reader struct{ b []byte }

func (r *reader) take(n int) []byte {
	x := r.b[:n]
	r.b = r.b[n:]
	return x
}

func (r *reader) u32() uint32 { return binary.BigEndian.Uint32(r.take(4)) }
func (r *reader) i64() int64  { return int64(binary.BigEndian.Uint64(r.take(8))) }
