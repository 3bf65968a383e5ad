package plain

import (
	"context"
	"fmt"
	"unsafe"

	"github.com/batonkv/baton/transfer"
	"github.com/batonkv/baton/transfer/layout/float"
	"github.com/batonkv/baton/transfer/lower"
)

// Copier copies with Go's own copy, and converts with package float, on the caller's goroutine. The zero value is ready.
type Copier struct{}

// Fits implements transfer.Copier.
func (Copier) Fits(n lower.Nest) error { return Fits(n) }

// Copy implements transfer.Copier. Between nests it looks at ctx and stops with
// ErrCanceled when it has ended.
func (Copier) Copy(ctx context.Context, ns []lower.Nest, src, dst transfer.Buffers) (int64, error) {
	ops, _, err := Resolve(nil, ns, src, dst)
	if err != nil {
		return 0, err
	}
	var done int64
	for i := range ops {
		if err := ctx.Err(); err != nil {
			return done, fmt.Errorf("%w: after %d bytes: %w", transfer.ErrCanceled, done, err)
		}
		Exec(ops[i : i+1])
		done += ops[i].Bytes()
	}
	return done, nil
}

// Exec copies what ops say.
func Exec(ops []Op) {
	for i := range ops {
		o := &ops[i]
		o.walk(0, o.Src, o.Dst)
	}
}

// walk runs the loops from k inwards. Addresses wrap like the strides that made them.
func (o *Op) walk(k int32, src, dst uint64) {
	if k == o.Rank {
		o.body(src, dst)
		return
	}
	d := o.Dims[k]
	for range d.N {
		o.walk(k+1, src, dst)
		src += uint64(d.Src)
		dst += uint64(d.Dst)
	}
}

func (o *Op) body(src, dst uint64) {
	d := Bytes(dst, o.Kind.written(o.Run))
	switch o.Kind {
	case Copy:
		copy(d, Bytes(src, o.Run))
	case Zero:
		clear(d)
	default:
		s := Bytes(src, o.Run)
		from, to := o.Kind.types()
		for ; len(s) > 0; s, d = s[from.Size():], d[to.Size():] {
			float.Store(to, d, float.Load(from, s))
		}
	}
}

// Bytes is the n bytes at addr, which the caller keeps mapped, or alive if they are Go's.
func Bytes(addr uint64, n int64) []byte {
	p := uintptr(addr)
	return unsafe.Slice(*(**byte)(unsafe.Pointer(&p)), n)
}
