// Package float converts numbers between the element types of package layout. Every
// conversion rounds once, to the nearest, ties to even, as IEEE 754 says it: what is
// too large becomes infinite, what is too small subnormal or zero, NaN stays NaN.
//
// It is the reference that the copier's C is compared with, and what the reference
// engine computes with.
package float

import (
	"encoding/binary"
	"math"

	"github.com/batonkv/baton/transfer/layout"
)

// Converts reports whether a copier turns from into to; equal types need none.
func Converts(from, to layout.DType) bool {
	return from == to || number(from) && number(to)
}

func number(d layout.DType) bool { return d == layout.BF16 || d == layout.F16 || d == layout.F32 }

// Load is the element of type d at the start of b: a bf16, fp16 or fp32.
func Load(d layout.DType, b []byte) float32 {
	switch d {
	case layout.BF16:
		return FromBF16(binary.LittleEndian.Uint16(b))
	case layout.F16:
		return FromF16(binary.LittleEndian.Uint16(b))
	}
	return math.Float32frombits(binary.LittleEndian.Uint32(b))
}

// Store rounds v into the element of type d at the start of b.
func Store(d layout.DType, b []byte, v float32) {
	switch d {
	case layout.BF16:
		binary.LittleEndian.PutUint16(b, ToBF16(v))
	case layout.F16:
		binary.LittleEndian.PutUint16(b, ToF16(v))
	default:
		binary.LittleEndian.PutUint32(b, math.Float32bits(v))
	}
}

// ToBF16 rounds f to a bf16. A NaN becomes a quiet one with what fits of its payload.
func ToBF16(f float32) uint16 {
	b := math.Float32bits(f)
	if b&0x7fffffff > 0x7f800000 {
		return uint16(b>>16) | 0x40
	}
	return uint16((b + 0x7fff + b>>16&1) >> 16)
}

// FromBF16 is exact.
func FromBF16(h uint16) float32 { return math.Float32frombits(uint32(h) << 16) }

// Bit patterns of float32 magnitudes at which an fp16 changes kind.
const (
	f16Over   = 0x477ff000 // 65520, halfway between the largest fp16 and the next: infinite from here on
	f16Normal = 0x38800000 // 2^-14, the smallest normal
	f16Zero   = 0x33000000 // 2^-25, half of the smallest subnormal: zero up to here
	f16Bias   = 0x38000000 // (127-15) << 23, between the exponents of the two types
)

// ToF16 rounds f to an fp16. A NaN becomes a quiet one with what fits of its payload.
func ToF16(f float32) uint16 {
	b := math.Float32bits(f)
	sign := uint16(b>>16) & 0x8000
	b &= 0x7fffffff
	switch {
	case b > 0x7f800000:
		return sign | 0x7e00 | uint16(b>>13)&0x3ff
	case b >= f16Over:
		return sign | 0x7c00
	case b >= f16Normal:
		return sign | uint16((b-f16Bias+0xfff+b>>13&1)>>13)
	case b <= f16Zero:
		return sign
	}
	m, drop := b&0x7fffff|0x800000, 126-b>>23 // in units of 2^-24
	return sign | uint16((m+1<<(drop-1)-1+m>>drop&1)>>drop)
}

// FromF16 is exact; a NaN becomes quiet.
func FromF16(h uint16) float32 {
	sign, e, m := uint32(h&0x8000)<<16, uint32(h>>10)&0x1f, uint32(h)&0x3ff
	switch {
	case e == 0:
		return math.Float32frombits(sign | math.Float32bits(float32(m)*0x1p-24))
	case e < 31:
		return math.Float32frombits(sign | e<<23 + f16Bias | m<<13)
	case m == 0:
		return math.Float32frombits(sign | 0x7f800000)
	}
	return math.Float32frombits(sign | 0x7fc00000 | m<<13)
}
