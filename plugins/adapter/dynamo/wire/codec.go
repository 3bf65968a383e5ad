package wire

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"

	"github.com/vmihailenco/msgpack/v5"
)

// Codec is how the bodies of a call are written.
type Codec uint8

const (
	JSON Codec = iota
	Msgpack
)

func (c Codec) String() string {
	if c == Msgpack {
		return "msgpack"
	}
	return "json"
}

// ParseCodec reads a codec's name; a peer that names none speaks JSON.
func ParseCodec(s string) (Codec, error) {
	switch s {
	case "", "json":
		return JSON, nil
	case "msgpack":
		return Msgpack, nil
	}
	return 0, fmt.Errorf("%w: codec %.20q: want json or msgpack", ErrMalformed, s)
}

// Encode writes v, whose fields have the names of their json tags in both codecs.
func (c Codec) Encode(v any) ([]byte, error) {
	var b bytes.Buffer
	if c == Msgpack {
		e := msgpack.NewEncoder(&b)
		e.SetCustomStructTag("json")
		e.UseCompactInts(true)
		if err := e.Encode(v); err != nil {
			return nil, err
		}
		return b.Bytes(), nil
	}
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

// Decode reads the one value that b is into v. Fields that v has not are passed over.
func (c Codec) Decode(b []byte, v any) error {
	if c == JSON {
		if err := json.Unmarshal(b, v); err != nil {
			return fmt.Errorf("%w: %w", ErrMalformed, err)
		}
		return nil
	}
	if err := Check(b); err != nil {
		return err
	}
	d := msgpack.NewDecoder(bytes.NewReader(b))
	d.SetCustomStructTag("json")
	if err := d.Decode(v); err != nil {
		return fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	return nil
}

// Raw is one value, written in the codec of what it is part of.
type Raw []byte

var (
	_ json.Marshaler        = Raw(nil)
	_ json.Unmarshaler      = (*Raw)(nil)
	_ msgpack.CustomEncoder = Raw(nil)
	_ msgpack.CustomDecoder = (*Raw)(nil)
)

// MarshalJSON implements json.Marshaler.
func (r Raw) MarshalJSON() ([]byte, error) {
	if len(r) == 0 {
		return []byte("null"), nil
	}
	return r, nil
}

// UnmarshalJSON implements json.Unmarshaler.
func (r *Raw) UnmarshalJSON(b []byte) error {
	*r = append((*r)[:0], b...)
	return nil
}

// EncodeMsgpack implements msgpack.CustomEncoder.
func (r Raw) EncodeMsgpack(e *msgpack.Encoder) error {
	if len(r) == 0 {
		return e.EncodeNil()
	}
	_, err := e.Writer().Write(r)
	return err
}

// DecodeMsgpack implements msgpack.CustomDecoder.
func (r *Raw) DecodeMsgpack(d *msgpack.Decoder) error {
	b, err := d.DecodeRaw()
	*r = Raw(b)
	return err
}

// MaxDepth bounds maps and arrays within each other.
const MaxDepth = 64

// Check says whether b is one msgpack value, not deeper than MaxDepth, and nothing else. It
// allocates nothing, so what passes may be given to a decoder that trusts its input.
func Check(b []byte) error {
	var left [MaxDepth]uint64 // values that are still missing, by depth
	depth := 0
	left[0] = 1
	at := 0
	for {
		for depth >= 0 && left[depth] == 0 {
			depth--
		}
		if depth < 0 {
			break
		}
		left[depth]--
		n, inner, err := head(b[at:])
		if err != nil {
			return fmt.Errorf("%w: msgpack: byte %d: %w", ErrMalformed, at, err)
		}
		if at += n; inner == 0 {
			continue
		}
		if inner > uint64(len(b)-at) {
			return fmt.Errorf("%w: msgpack: byte %d: %d values announced, %d bytes left", ErrMalformed, at, inner, len(b)-at)
		}
		if depth++; depth == MaxDepth {
			return fmt.Errorf("%w: msgpack: deeper than %d", ErrMalformed, MaxDepth)
		}
		left[depth] = inner
	}
	if at != len(b) {
		return fmt.Errorf("%w: msgpack: %d bytes after the value", ErrMalformed, len(b)-at)
	}
	return nil
}

// head measures the value that b begins with: its bytes, without the values inside it, and
// how many those are.
func head(b []byte) (n int, inner uint64, err error) {
	if len(b) == 0 {
		return 0, 0, io.ErrUnexpectedEOF
	}
	c := b[0]
	size := func(width int) (uint64, error) {
		if len(b) < 1+width {
			return 0, io.ErrUnexpectedEOF
		}
		var wide [8]byte
		copy(wide[8-width:], b[1:1+width])
		return binary.BigEndian.Uint64(wide[:]), nil
	}
	fixed := func(n uint64) (int, uint64, error) {
		if n > uint64(len(b)) {
			return 0, 0, io.ErrUnexpectedEOF
		}
		return int(n), 0, nil
	}
	long := func(width int, extra uint64) (int, uint64, error) {
		l, err := size(width)
		if err != nil {
			return 0, 0, err
		}
		return fixed(1 + uint64(width) + extra + l)
	}
	many := func(width int, times uint64) (int, uint64, error) {
		l, err := size(width)
		return 1 + width, l * times, err
	}
	switch {
	case c <= 0x7f, c >= 0xe0, c == 0xc0, c == 0xc2, c == 0xc3:
		return 1, 0, nil
	case c <= 0x8f:
		return 1, 2 * uint64(c&0xf), nil
	case c <= 0x9f:
		return 1, uint64(c & 0xf), nil
	case c <= 0xbf:
		return fixed(1 + uint64(c&0x1f))
	case c == 0xc1:
		return 0, 0, fmt.Errorf("type %#x is not used", c)
	case c <= 0xc6: // bin
		return long(1<<(c-0xc4), 0)
	case c <= 0xc9: // ext
		return long(1<<(c-0xc7), 1)
	case c <= 0xcb: // float
		return fixed(1 + 4<<(c-0xca))
	case c <= 0xcf: // unsigned
		return fixed(1 + 1<<(c-0xcc))
	case c <= 0xd3: // signed
		return fixed(1 + 1<<(c-0xd0))
	case c <= 0xd8: // fixed ext
		return fixed(2 + 1<<(c-0xd4))
	case c <= 0xdb: // text
		return long(1<<(c-0xd9), 0)
	case c <= 0xdd:
		return many(2<<(c-0xdc), 1)
	}
	return many(2<<(c-0xde), 2)
}
