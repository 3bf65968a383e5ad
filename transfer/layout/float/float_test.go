package float_test

import (
	"math"
	"slices"
	"testing"

	"github.com/batonkv/baton/transfer/layout"
	"github.com/batonkv/baton/transfer/layout/float"
)

// kind is a 16-bit type with its conversions.
type kind struct {
	name string
	to   func(float32) uint16
	from func(uint16) float32
	inf  uint16
}

var kinds = []kind{
	{"bf16", float.ToBF16, float.FromBF16, 0x7f80},
	{"fp16", float.ToF16, float.FromF16, 0x7c00},
}

// Every 16-bit number comes back from float32 as it was, NaN quiet.
func TestRoundTrip(t *testing.T) {
	for _, k := range kinds {
		quiet := (k.inf >> 1) & ^k.inf // the top bit of the fraction
		for h := range 1 << 16 {
			h := uint16(h)
			want := h
			if h&0x7fff > k.inf {
				want |= quiet
			}
			f := k.from(h)
			if got := k.to(f); got != want || (h&0x7fff > k.inf) != (f != f) {
				t.Errorf("%s %#04x: %v, back as %#04x", k.name, h, f, got)
			}
		}
	}
}

// value is the number by the definition of the format, not by the code.
func value(h uint16, exponent, fraction int) float64 {
	bias := 1<<(exponent-1) - 1
	e, m := int(h>>fraction)&(1<<exponent-1), float64(h&(1<<fraction-1))
	v := math.Ldexp(m, 1-bias-fraction)
	if e > 0 {
		v = math.Ldexp(m+float64(int(1)<<fraction), e-bias-fraction)
	}
	if h&0x8000 != 0 {
		return -v
	}
	return v
}

func TestValues(t *testing.T) {
	for h := range 1 << 16 {
		h := uint16(h)
		if h&0x7fff < 0x7c00 && float64(float.FromF16(h)) != value(h, 5, 10) {
			t.Errorf("fp16 %#04x is %v, want %v", h, float.FromF16(h), value(h, 5, 10))
		}
		if h&0x7fff < 0x7f80 && float64(float.FromBF16(h)) != value(h, 8, 7) {
			t.Errorf("bf16 %#04x is %v, want %v", h, float.FromBF16(h), value(h, 8, 7))
		}
	}
}

// Between each two neighbours: below the middle rounds down, above it up, the middle to
// the even one. The middle behind the largest number, and all beyond, is infinite.
func TestRounding(t *testing.T) {
	for _, k := range kinds {
		for h := range k.inf {
			low, high := float64(k.from(h)), float64(k.from(h+1))
			if h+1 == k.inf { // what would come next
				high = 2*low - float64(k.from(h-1))
			}
			mid := float32((low + high) / 2) // exact: float32 has more bits than either
			even := h + h&1
			for f, want := range map[float32]uint16{mid: even, math.Nextafter32(mid, 0): h, math.Nextafter32(mid, float32(math.Inf(1))): h + 1} {
				if got := k.to(f); got != want {
					t.Errorf("%s %v: %#04x, want %#04x", k.name, f, got, want)
				}
				if got := k.to(-f); got != want|0x8000 {
					t.Errorf("%s %v: %#04x, want %#04x", k.name, -f, got, want|0x8000)
				}
			}
		}
		for _, f := range []float32{math.MaxFloat32, float32(math.Inf(1))} {
			if got := k.to(f); got != k.inf {
				t.Errorf("%s %v: %#04x", k.name, f, got)
			}
		}
	}
}

func TestLoadStore(t *testing.T) {
	for d, want := range map[layout.DType][]byte{layout.BF16: {0xc0, 0x3f}, layout.F16: {0x00, 0x3e}, layout.F32: {0, 0, 0xc0, 0x3f}} {
		b := make([]byte, d.Size())
		float.Store(d, b, 1.5)
		if !slices.Equal(b, want) || float.Load(d, b) != 1.5 {
			t.Errorf("%v: % x, %v", d, b, float.Load(d, b))
		}
	}
}

func TestConverts(t *testing.T) {
	for _, from := range []layout.DType{layout.BF16, layout.F16, layout.F32, layout.F8E4M3, layout.U8} {
		for _, to := range []layout.DType{layout.BF16, layout.F16, layout.F32, layout.F8E4M3, layout.U8} {
			want := from == to || from < layout.F8E4M3 && to < layout.F8E4M3
			if float.Converts(from, to) != want {
				t.Errorf("%v to %v: %v", from, to, !want)
			}
		}
	}
}
