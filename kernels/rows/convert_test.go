package rows

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"runtime"
	"testing"

	"github.com/batonkv/baton/kernels/rows/plain"
	"github.com/batonkv/baton/transfer"
	"github.com/batonkv/baton/transfer/layout"
	"github.com/batonkv/baton/transfer/layout/float"
	"github.com/batonkv/baton/transfer/lower"
)

// hard are the elements of a type at which converting can go wrong: of 16 bits all of
// them, of float32 those around every place where a 16-bit type rounds another way.
func hard(d layout.DType) (b []byte) {
	if d != layout.F32 {
		for h := range 1 << 16 {
			b = binary.LittleEndian.AppendUint16(b, uint16(h))
		}
		return b
	}
	for h := range uint32(1 << 16) {
		for _, low := range []uint32{0, 1, 0x7fff, 0x8000, 0x8001, 0xffff} {
			b = binary.LittleEndian.AppendUint32(b, h<<16|low)
		}
		at := math.Float32bits(float.FromF16(uint16(h)))
		next := math.Float32bits(float.FromF16(uint16(h + 1)))
		mid := at/2 + next/2 + at&next&1
		for _, x := range []uint32{at - 1, at, at + 1, mid - 1, mid, mid + 1} {
			b = binary.LittleEndian.AppendUint32(b, x)
		}
	}
	return b
}

// Every hard number is converted as package float converts it, by each instruction set,
// whatever the alignment and the place in a vector.
func TestConversionsEqualFloat(t *testing.T) {
	for _, from := range numbers {
		in := hard(from)
		count := int64(len(in)) / from.Size()
		for _, to := range numbers {
			if to == from {
				continue
			}
			want := make([]byte, count*to.Size())
			for i := range count {
				float.Store(to, want[i*to.Size():], float.Load(from, in[i*from.Size():]))
			}
			for _, skew := range []int64{0, 1} {
				src := append(make([]byte, skew), in...)
				for _, i := range isas() {
					got := make([]byte, skew+int64(len(want)))
					ops, n, err := plain.Resolve(nil, []lower.Nest{{SrcOff: skew, DstOff: skew, Run: int64(len(in)), From: from, To: to}},
						transfer.Buffers{mapped(src)}, transfer.Buffers{mapped(got)})
					if err != nil || n != int64(len(want)) {
						t.Fatal(n, err)
					}
					exec(i, split(nil, ops, 40000), false)
					runtime.KeepAlive(src)
					if !bytes.Equal(got[skew:], want) {
						t.Errorf("%v to %v by %v: %s", from, to, i, firstDifference(in, got[skew:], want, from, to))
					}
				}
			}
		}
	}
}

func firstDifference(in, got, want []byte, from, to layout.DType) string {
	for i := range int64(len(in)) / from.Size() {
		a, b := got[i*to.Size():][:to.Size()], want[i*to.Size():][:to.Size()]
		if !bytes.Equal(a, b) {
			return fmt.Sprintf("% x becomes % x, want % x", in[i*from.Size():][:from.Size()], a, b)
		}
	}
	return "nothing"
}

func BenchmarkConvert(b *testing.B) {
	const elems = 1 << 20
	for _, from := range numbers {
		for _, to := range numbers {
			src, dst := pattern(elems*int(from.Size())), make([]byte, elems*to.Size())
			n := []lower.Nest{{Run: int64(len(src)), From: from, To: to}}
			c := newCopier(b, 1)
			b.Run(fmt.Sprintf("%v-%v", from, to), func(b *testing.B) {
				b.SetBytes(int64(len(dst)))
				for b.Loop() {
					if _, err := c.Copy(b.Context(), n, transfer.Buffers{mapped(src)}, transfer.Buffers{mapped(dst)}); err != nil {
						b.Fatal(err)
					}
				}
			})
			runtime.KeepAlive(src)
		}
	}
}
