package direct

import (
	"context"
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/batonkv/baton/kernels/rows/plain"
	"github.com/batonkv/baton/transfer"
	"github.com/batonkv/baton/transfer/lower"
)

// bounceHalf is the bytes of each of the two halves of the bounce buffer: what came from a
// GPU, and what goes to one. Large enough for few calls, and little memory to stay pinned.
const bounceHalf = 8 << 20

// bounce is host memory that GPU memory goes through to be converted or added up by a
// processor. It is made when it is first needed, and used by one copy or sum at a time.
type bounce struct {
	half    int64         // bytes
	free    chan struct{} // holds an element while it is in use
	pages   []byte
	release func() error
}

// take waits for the bounce buffer, and makes it if there is none. give gives it back, unless
// the error of what it was for is an ErrLost: then copies may still be under way in it.
func (b *Backend) take(ctx context.Context) (halves [2]transfer.Mapped, give func(error), err error) {
	u := &b.bounce
	select {
	case u.free <- struct{}{}:
	case <-ctx.Done():
		return halves, nil, canceled(ctx, 0)
	}
	give = func(err error) {
		if !errors.Is(err, transfer.ErrLost) {
			<-u.free
		}
	}
	if u.pages == nil {
		p, err := unix.Mmap(-1, 0, int(2*u.half), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
		if err != nil {
			give(nil)
			return halves, nil, fmt.Errorf("%w: bounce buffer of %d bytes: %w", transfer.ErrMemory, 2*u.half, err)
		}
		u.pages = p
		u.release = b.device.Host(uint64(uintptr(unsafe.Pointer(&p[0]))), int64(len(p)), true)
	}
	at := uint64(uintptr(unsafe.Pointer(&u.pages[0])))
	return [2]transfer.Mapped{{Addr: at, Len: u.half}, {Addr: at + uint64(u.half), Len: u.half}}, give, nil
}

// close unmaps it. Nothing may be under way.
func (u *bounce) close() error {
	if u.pages == nil {
		return nil
	}
	if err := u.release(); err != nil {
		return err
	}
	p := u.pages
	u.pages = nil
	return unix.Munmap(p)
}

func canceled(ctx context.Context, done int64) error {
	return fmt.Errorf("%w: after %d bytes: %w", transfer.ErrCanceled, done, context.Cause(ctx))
}

// convert copies nests that change the element type and have an end on a GPU, piece by piece
// through the bounce buffer.
func (b *Backend) convert(ctx context.Context, ns []lower.Nest, src, dst transfer.Buffers) (done int64, err error) {
	if _, _, err := plain.Resolve(nil, ns, src, dst); err != nil { // the pieces of a good nest are good
		return 0, err
	}
	halves, give, err := b.take(ctx)
	if err != nil {
		return 0, err
	}
	defer func() { give(err) }()
	for _, n := range ns {
		err := pieces(n, b.bounce.half, func(p *lower.Nest) error {
			if ctx.Err() != nil {
				return canceled(ctx, done)
			}
			n, err := b.piece(ctx, p, halves, src, dst)
			done += n
			return err
		})
		if err != nil {
			return done, err
		}
	}
	return done, nil
}

// piece copies one that fits the halves.
func (b *Backend) piece(ctx context.Context, p *lower.Nest, halves [2]transfer.Mapped, src, dst transfer.Buffers) (int64, error) {
	in, mid, out := *p, *p, *p // to the first half, to the second, from there
	fromGPU, toGPU := isGPU(src, p.Src), isGPU(dst, p.Dst)
	midSrc, midDst := src, dst
	if fromGPU {
		in.To, in.Dst, in.DstOff = p.From, 0, 0
		mid.Src, mid.SrcOff = 0, 0
		stride := p.Run
		for i := int(p.Rank) - 1; i >= 0; i-- {
			in.Dims[i].DstStride, mid.Dims[i].SrcStride = stride, stride
			stride *= int64(p.Dims[i].N)
		}
		midSrc = transfer.Buffers{halves[0]}
		if _, err := b.device.Copy(ctx, []lower.Nest{in}, src, midSrc); err != nil {
			return 0, err
		}
	}
	if toGPU {
		out.From, out.Src, out.SrcOff = p.To, 0, 0
		out.Run = p.Run / p.From.Size() * p.To.Size()
		mid.Dst, mid.DstOff = 0, 0
		stride := out.Run
		for i := int(p.Rank) - 1; i >= 0; i-- {
			out.Dims[i].SrcStride, mid.Dims[i].DstStride = stride, stride
			stride *= int64(p.Dims[i].N)
		}
		midDst = transfer.Buffers{halves[1]}
	}
	n, err := b.copier.Copy(ctx, []lower.Nest{mid}, midSrc, midDst)
	if err == nil && toGPU {
		n, err = b.device.Copy(ctx, []lower.Nest{out}, midDst, dst)
	}
	if err != nil && toGPU {
		n = 0
	}
	return n, err
}

// pieces cuts n into nests of at most so many bytes on either side, one element at least.
func pieces(n lower.Nest, most int64, f func(*lower.Nest) error) error {
	from, to := n.From.Size(), n.To.Size()
	elem := max(from, to)
	size := n.Run / from * elem
	for _, d := range n.Dims[:n.Rank] {
		size *= int64(d.N)
	}
	switch {
	case size == 0:
		return nil
	case size <= most:
		return f(&n)
	case n.Rank == 0:
		elems := most / elem
		for at := int64(0); at < n.Run/from; at += elems {
			p := n
			p.Run = min(elems, n.Run/from-at) * from
			p.SrcOff, p.DstOff = n.SrcOff+at*from, n.DstOff+at*to
			if err := f(&p); err != nil {
				return err
			}
		}
		return nil
	}
	d := n.Dims[0]
	step := max(1, most/(size/int64(d.N)))
	for at := int64(0); at < int64(d.N); at += step {
		p := n
		p.SrcOff, p.DstOff = n.SrcOff+at*d.SrcStride, n.DstOff+at*d.DstStride
		if p.Dims[0].N = int32(min(step, int64(d.N)-at)); p.Dims[0].N == 1 {
			p.Rank = n.Rank - 1
			copy(p.Dims[:], n.Dims[1:])
		}
		if err := pieces(p, most, f); err != nil {
			return err
		}
	}
	return nil
}
