// Package safetensors reads the tensors of a safetensors file: eight bytes with the
// length of a JSON header, the header, and the tensors' bytes without a gap.
//
// It reads a part of a tensor at a time and keeps none. Nothing is allocated that the
// file is not large enough for, and every offset is checked when the header is read: a
// File that Read returns can be read to its end.
package safetensors

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"

	"github.com/batonkv/baton/transfer/layout/float"
)

var (
	// ErrFormat reports bytes that are no safetensors file.
	ErrFormat = errors.New("safetensors: bad file")
	// ErrType reports a tensor whose elements are not F32, BF16 or F16.
	ErrType = errors.New("safetensors: not a float type")
)

// Bounds of a header.
const (
	MaxHeader = 16 << 20 // bytes
	MaxDims   = 8
)

// sizes are bytes an element of each type that a file may have.
var sizes = map[string]int64{"BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "I16": 2, "U16": 2, "F16": 2, "BF16": 2,
	"I32": 4, "U32": 4, "F32": 4, "I64": 8, "U64": 8, "F64": 8}

// Tensor is one tensor of a file, row-major. It reads from the file's reader.
type Tensor struct {
	DType string // as the header has it
	Shape []int64

	r      io.ReaderAt
	lo, hi int64 // bytes in r
}

// Read takes the header of a file of size bytes. It returns the tensors by name; they
// read from r, which stays the caller's.
func Read(r io.ReaderAt, size int64) (map[string]Tensor, error) {
	var prefix [8]byte
	if size < int64(len(prefix)) {
		return nil, fmt.Errorf("%w: %d bytes: want at least %d", ErrFormat, size, len(prefix))
	}
	if err := readAt(r, prefix[:], 0); err != nil {
		return nil, err
	}
	n := binary.LittleEndian.Uint64(prefix[:])
	if n > MaxHeader || int64(n) > size-int64(len(prefix)) {
		return nil, fmt.Errorf("%w: header of %d bytes in a file of %d: want at most %d", ErrFormat, n, size, MaxHeader)
	}
	header := make([]byte, n)
	if err := readAt(r, header, int64(len(prefix))); err != nil {
		return nil, err
	}
	base := int64(len(prefix)) + int64(n)
	tensors, err := parse(header, base, size)
	if err != nil {
		return nil, err
	}
	for name, t := range tensors {
		t.r = r
		tensors[name] = t
	}
	return tensors, nil
}

func readAt(r io.ReaderAt, b []byte, off int64) error {
	if n, err := r.ReadAt(b, off); n < len(b) {
		return fmt.Errorf("safetensors: read %d bytes at %d: %w", len(b), off, err)
	}
	return nil
}

// parse takes the header's entries apart, whose offsets count from base.
func parse(header []byte, base, size int64) (map[string]Tensor, error) {
	d := json.NewDecoder(bytes.NewReader(header))
	d.DisallowUnknownFields()
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return nil, fmt.Errorf("%w: header is no JSON object", ErrFormat)
	}
	out := map[string]Tensor{}
	for d.More() {
		key, err := d.Token()
		name, ok := key.(string)
		if err != nil || !ok {
			return nil, fmt.Errorf("%w: name of tensor %d: %w", ErrFormat, len(out), err)
		}
		if name == "__metadata__" {
			var text map[string]string
			if err := d.Decode(&text); err != nil {
				return nil, fmt.Errorf("%w: metadata: %w", ErrFormat, err)
			}
			continue
		}
		if _, twice := out[name]; twice {
			return nil, fmt.Errorf("%w: tensor %q is there twice", ErrFormat, name)
		}
		if out[name], err = entry(d, base, size); err != nil {
			return nil, fmt.Errorf("%w: tensor %q: %w", ErrFormat, name, err)
		}
	}
	if _, err := d.Token(); err != nil {
		return nil, fmt.Errorf("%w: header does not end: %w", ErrFormat, err)
	}
	if rest := bytes.TrimRight(header[d.InputOffset():], " "); len(rest) > 0 {
		return nil, fmt.Errorf("%w: %d bytes behind the header's object", ErrFormat, len(rest))
	}
	return out, tight(out, base, size)
}

// entry is one tensor's.
func entry(d *json.Decoder, base, size int64) (Tensor, error) {
	var e struct {
		DType   string  `json:"dtype"`
		Shape   []int64 `json:"shape"`
		Offsets []int64 `json:"data_offsets"`
	}
	if err := d.Decode(&e); err != nil {
		return Tensor{}, err
	}
	n, ok := sizes[e.DType]
	switch {
	case !ok:
		return Tensor{}, fmt.Errorf("type %q is unknown", e.DType)
	case len(e.Shape) > MaxDims:
		return Tensor{}, fmt.Errorf("%d dimensions: want at most %d", len(e.Shape), MaxDims)
	case len(e.Offsets) != 2 || e.Offsets[0] < 0 || e.Offsets[0] > e.Offsets[1] || e.Offsets[1] > size-base:
		return Tensor{}, fmt.Errorf("offsets %d: want two ascending ones up to %d", e.Offsets, size-base)
	}
	for _, dim := range e.Shape {
		if dim < 0 || dim > 0 && n > math.MaxInt64/dim {
			return Tensor{}, fmt.Errorf("shape %d is too large", e.Shape)
		}
		n *= dim
	}
	if have := e.Offsets[1] - e.Offsets[0]; have != n {
		return Tensor{}, fmt.Errorf("%d bytes for shape %d of %s: want %d", have, e.Shape, e.DType, n)
	}
	return Tensor{DType: e.DType, Shape: e.Shape, lo: base + e.Offsets[0], hi: base + e.Offsets[1]}, nil
}

// tight holds the tensors to the whole of the file, without gap or overlap.
func tight(tensors map[string]Tensor, base, size int64) error {
	spans := make([][2]int64, 0, len(tensors))
	for _, t := range tensors {
		spans = append(spans, [2]int64{t.lo, t.hi})
	}
	slices.SortFunc(spans, func(a, b [2]int64) int { return slices.Compare(a[:], b[:]) })
	for _, s := range spans {
		if s[0] != base {
			return fmt.Errorf("%w: tensors leave a gap or overlap at byte %d", ErrFormat, base)
		}
		base = s[1]
	}
	if base != size {
		return fmt.Errorf("%w: tensors end at byte %d of %d", ErrFormat, base, size)
	}
	return nil
}

// Len is the number of elements.
func (t Tensor) Len() int64 { return (t.hi - t.lo) / sizes[t.DType] }

// Floats reads elements lo to hi, which are within Len, as fp32: exact for each type
// that it takes. ErrType: it does not take this one.
func (t Tensor) Floats(lo, hi int64) ([]float32, error) {
	n := sizes[t.DType]
	if lo < 0 || hi < lo || hi > t.Len() {
		return nil, fmt.Errorf("%w: elements %d to %d of %d", ErrFormat, lo, hi, t.Len())
	}
	if t.DType != "F32" && t.DType != "BF16" && t.DType != "F16" {
		return nil, fmt.Errorf("%w: %s: save the model as F32, BF16 or F16", ErrType, t.DType)
	}
	b := make([]byte, (hi-lo)*n)
	if err := readAt(t.r, b, t.lo+lo*n); err != nil {
		return nil, err
	}
	out := make([]float32, hi-lo)
	for i := range out {
		switch t.DType {
		case "F32":
			out[i] = math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))
		case "BF16":
			out[i] = float.FromBF16(binary.LittleEndian.Uint16(b[2*i:]))
		case "F16":
			out[i] = float.FromF16(binary.LittleEndian.Uint16(b[2*i:]))
		}
	}
	return out, nil
}
