package model

import (
	"encoding/binary"
	"testing"

	"github.com/batonkv/baton/transfer/layout"
	"github.com/batonkv/baton/transfer/layout/float"
)

// TestElems: what is stored is what package float says, at its place, and is given back.
func TestElems(t *testing.T) {
	values := []float32{1.0009765625, -3.1415927, 1e-7, 70000, 0.33333334}
	for _, d := range []layout.DType{layout.BF16, layout.F16, layout.F32} {
		const at = 2
		b := make([]byte, 8*d.Size())
		e := elemsOf(d, b)
		v := append([]float32(nil), values...)
		e.store(at, v)
		back := make([]float32, len(v))
		e.load(at, back)
		for i := range v {
			var raw [4]byte
			float.Store(d, raw[:], values[i])
			cell := b[(at+int64(i))*d.Size():][:d.Size()]
			if string(cell) != string(raw[:d.Size()]) || v[i] != float.Load(d, raw[:]) || back[i] != v[i] {
				t.Errorf("%v: %v is stored as % x and given back as %v, %v", d, values[i], cell, v[i], back[i])
			}
		}
		e.fill(0, at, 1.5)
		if binary.LittleEndian.Uint16(b[at*d.Size():]) == 0 || float.Load(d, b) != 1.5 || float.Load(d, b[d.Size():]) != 1.5 {
			t.Errorf("%v: filled to % x", d, b)
		}
	}
}
