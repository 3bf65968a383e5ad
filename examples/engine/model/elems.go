package model

import (
	"fmt"
	"unsafe"

	"github.com/batonkv/baton/transfer/layout"
	"github.com/batonkv/baton/transfer/layout/float"
)

// Types are the element types of a rank's state. The arithmetic is in fp32 whatever
// they are; what is stored is rounded, and only what was stored is read again. So a row
// that came from another engine and a row of its own are alike.
type Types struct {
	KV        layout.DType // paged caches: bf16, fp16 or fp32; 0: bf16
	Conv, SSM layout.DType // convolution windows, recurrent state: fp32 or bf16; 0: fp32
}

// WithDefaults fills the zero types in.
func (t Types) WithDefaults() Types {
	if t.KV == 0 {
		t.KV = layout.BF16
	}
	if t.Conv == 0 {
		t.Conv = layout.F32
	}
	if t.SSM == 0 {
		t.SSM = layout.F32
	}
	return t
}

// Check refuses types that the arithmetic does not store.
func (t Types) Check() error {
	t = t.WithDefaults()
	if t.KV != layout.BF16 && t.KV != layout.F16 && t.KV != layout.F32 {
		return fmt.Errorf("%w: KV of %v: want bf16, fp16 or fp32", ErrConfig, t.KV)
	}
	for _, d := range []layout.DType{t.Conv, t.SSM} {
		if d != layout.BF16 && d != layout.F32 {
			return fmt.Errorf("%w: per-request state of %v: want fp32 or bf16", ErrConfig, d)
		}
	}
	return nil
}

func (t Types) String() string {
	t = t.WithDefaults()
	return fmt.Sprintf("kv=%v conv=%v ssm=%v", t.KV, t.Conv, t.SSM)
}

// elems are the elements of a buffer that others may map.
type elems struct {
	dtype layout.DType
	h     []uint16  // of bf16 and fp16
	f     []float32 // of fp32
}

// elemsOf views b, which is aligned to 4 bytes.
func elemsOf(d layout.DType, b []byte) elems {
	if d == layout.F32 {
		return elems{dtype: d, f: words[float32](b)}
	}
	return elems{dtype: d, h: words[uint16](b)}
}

func words[T uint16 | float32](b []byte) []T {
	if len(b) == 0 {
		return nil
	}
	var t T
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/int(unsafe.Sizeof(t)))
}

// load reads len(out) elements from index at on.
func (e *elems) load(at int, out []float32) {
	switch e.dtype {
	case layout.F32:
		copy(out, e.f[at:at+len(out)])
	case layout.F16:
		for i, h := range e.h[at : at+len(out)] {
			out[i] = float.FromF16(h)
		}
	default:
		for i, h := range e.h[at : at+len(out)] {
			out[i] = float.FromBF16(h)
		}
	}
}

// store writes v from index at on; v then is what memory holds, rounded.
func (e *elems) store(at int, v []float32) {
	switch e.dtype {
	case layout.F32:
		copy(e.f[at:at+len(v)], v)
		return
	case layout.F16:
		for i, x := range v {
			e.h[at+i] = float.ToF16(x)
		}
	default:
		for i, x := range v {
			e.h[at+i] = float.ToBF16(x)
		}
	}
	e.load(at, v)
}

// fill writes one value n times.
func (e *elems) fill(at, n int, v float32) {
	if n == 0 {
		return
	}
	e.store(at, []float32{v})
	if e.dtype == layout.F32 {
		repeat(e.f[at : at+n])
	} else {
		repeat(e.h[at : at+n])
	}
}

// repeat copies the first element to all.
func repeat[T any](a []T) {
	for i := range a {
		a[i] = a[0]
	}
}
