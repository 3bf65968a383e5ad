package safetensors_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/batonkv/baton/examples/engine/safetensors"
)

// file is a header and n bytes behind it, which count up.
func file(header string, n int) []byte {
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	b = append(b, header...)
	for i := range n {
		b = append(b, byte(i))
	}
	return b
}

func read(b []byte) (map[string]safetensors.Tensor, error) {
	return safetensors.Read(bytes.NewReader(b), int64(len(b)))
}

const good = `{"__metadata__":{"format":"pt"},"b":{"dtype":"BF16","shape":[2,2],"data_offsets":[8,16]},` +
	`"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"h":{"dtype":"F16","shape":[1],"data_offsets":[16,18]},` +
	`"i":{"dtype":"I64","shape":[],"data_offsets":[18,26]},"none":{"dtype":"F32","shape":[0,3],"data_offsets":[26,26]}}  `

func TestReads(t *testing.T) {
	all, err := read(file(good, 26))
	if err != nil {
		t.Fatal(err)
	}
	f32, bf16 := math.Float32frombits, func(h uint32) float32 { return math.Float32frombits(h << 16) }
	for _, c := range []struct {
		name   string
		shape  []int64
		lo, hi int64
		want   []float32
	}{
		{"a", []int64{2}, 0, 2, []float32{f32(0x03020100), f32(0x07060504)}},
		{"a", []int64{2}, 1, 2, []float32{f32(0x07060504)}},
		{"a", []int64{2}, 2, 2, []float32{}},
		{"b", []int64{2, 2}, 1, 3, []float32{bf16(0x0b0a), bf16(0x0d0c)}},
		{"h", []int64{1}, 0, 1, []float32{float32(0x1110&0x3ff|0x400) * float32(math.Pow(2, 0x1110>>10-25))}},
		{"none", []int64{0, 3}, 0, 0, []float32{}},
	} {
		got, err := all[c.name].Floats(c.lo, c.hi)
		if err != nil || !slices.Equal(got, c.want) || !slices.Equal(all[c.name].Shape, c.shape) {
			t.Errorf("%s %d to %d: %v %v, want %v", c.name, c.lo, c.hi, got, err, c.want)
		}
	}
	if _, err := all["i"].Floats(0, 1); !errors.Is(err, safetensors.ErrType) || all["i"].Len() != 1 {
		t.Errorf("integers as floats: %v", err)
	}
	for _, c := range [][2]int64{{-1, 0}, {1, 0}, {0, 3}, {math.MaxInt64, math.MaxInt64}} {
		if _, err := all["a"].Floats(c[0], c[1]); !errors.Is(err, safetensors.ErrFormat) {
			t.Errorf("elements %d: %v", c, err)
		}
	}
}

func TestRefuses(t *testing.T) {
	one := func(dtype, shape, offsets string) []byte {
		return file(fmt.Sprintf(`{"a":{"dtype":%s,"shape":%s,"data_offsets":%s}}`, dtype, shape, offsets), 8)
	}
	huge := binary.LittleEndian.AppendUint64(nil, math.MaxUint64)
	long := append(binary.LittleEndian.AppendUint64(nil, 9), "{}      "...)
	for name, b := range map[string][]byte{
		"nothing":          {},
		"seven bytes":      make([]byte, 7),
		"huge header":      append(huge, "{}"...),
		"header too long":  long,
		"no object":        file(`[]`, 0),
		"no end":           file(`{"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}`, 8),
		"bytes behind":     file(`{}{}`, 0),
		"null metadata":    file(`{"__metadata__":{"a":1}}`, 0),
		"twice":            file(`{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}`, 0),
		"field":            file(`{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0],"x":1}}`, 0),
		"type":             one(`"F7"`, `[2]`, `[0,8]`),
		"shape":            one(`"F32"`, `[3]`, `[0,8]`),
		"negative shape":   one(`"F32"`, `[-1,-2]`, `[0,8]`),
		"overflow":         one(`"F32"`, `[4294967296,4294967296,4294967296]`, `[0,8]`),
		"fraction":         one(`"F32"`, `[2.5]`, `[0,8]`),
		"many dimensions":  one(`"F32"`, `[2,1,1,1,1,1,1,1,1]`, `[0,8]`),
		"one offset":       one(`"F32"`, `[2]`, `[0]`),
		"descending":       one(`"F32"`, `[2]`, `[8,0]`),
		"negative offset":  one(`"F32"`, `[2]`, `[-8,0]`),
		"past the end":     one(`"F32"`, `[2]`, `[8,16]`),
		"unclaimed bytes":  one(`"F32"`, `[1]`, `[0,4]`),
		"gap at the start": one(`"F32"`, `[1]`, `[4,8]`),
		"overlap": file(`{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[1],"data_offsets":[2,6]},`+
			`"c":{"dtype":"U8","shape":[2],"data_offsets":[6,8]}}`, 8),
	} {
		if _, err := read(b); !errors.Is(err, safetensors.ErrFormat) {
			t.Errorf("%s: %v", name, err)
		}
	}
	short := file(good, 26)
	if _, err := safetensors.Read(bytes.NewReader(short[:20]), int64(len(short))); err == nil || !strings.Contains(err.Error(), "read") {
		t.Errorf("a reader that ends early: %v", err)
	}
}

// FuzzRead: no bytes panic, and what is taken can be read to its end.
func FuzzRead(f *testing.F) {
	f.Add(file(good, 26))
	f.Add(file(`{}`, 0))
	f.Add(file(`{"a":{"dtype":"F32","shape":[],"data_offsets":[0,4]}}`, 4))
	f.Fuzz(func(t *testing.T, b []byte) {
		all, err := read(b)
		if err != nil {
			return
		}
		var total int64
		for name, x := range all {
			got, err := x.Floats(0, x.Len())
			if err != nil && !errors.Is(err, safetensors.ErrType) || err == nil && int64(len(got)) != x.Len() {
				t.Errorf("%q: %d of %d elements: %v", name, len(got), x.Len(), err)
			}
			if total += x.Len(); total > int64(len(b)) {
				t.Fatalf("%d elements in %d bytes", total, len(b))
			}
		}
	})
}
