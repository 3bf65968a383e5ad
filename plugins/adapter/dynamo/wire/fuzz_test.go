package wire

import (
	"bytes"
	"reflect"
	"testing"

	"github.com/vmihailenco/msgpack/v5"
	"pgregory.net/rapid"
)

// FuzzFrame: what is read as a request, and of it as a control, is written as it was.
func FuzzFrame(f *testing.F) {
	for _, c := range captures(f) {
		f.Add(unhex(f, c.Steps[0].Hex))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		r := bytes.NewReader(b)
		fr, err := ReadFrame(r, always)
		if err != nil {
			return
		}
		again, err := AppendFrame(nil, fr)
		if read := b[:len(b)-r.Len()]; err != nil || len(again) != len(read) {
			t.Fatalf("%v: %q, was %q", err, again, read)
		}
		if _, _, codec, err := DecodeControl(fr.Control); err == nil {
			var v Raw
			_ = codec.Decode(fr.Body, &v)
		}
	})
}

// FuzzTwoPart: what is read as one message that is the whole is read so from a stream too, and no
// other.
func FuzzTwoPart(f *testing.F) {
	for _, c := range captures(f) {
		fr, err := ReadFrame(bytes.NewReader(unhex(f, c.Steps[0].Hex)), always)
		if err != nil {
			continue
		}
		f.Add(AppendTwoPart(nil, TwoPart{fr.Control, fr.Body}))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		whole, err := DecodeTwoPart(b)
		r := bytes.NewReader(b)
		part, err2 := ReadTwoPart(r)
		if (err == nil) != (err2 == nil && r.Len() == 0) {
			t.Fatalf("%v, and of a stream %v with %d bytes more", err, err2, r.Len())
		}
		if err == nil && (!bytes.Equal(whole.Header, part.Header) || !bytes.Equal(whole.Body, part.Body)) {
			t.Fatalf("%q, and of a stream %q", whole, part)
		}
	})
}

// FuzzHome reads whatever may come on a call-home connection.
func FuzzHome(f *testing.F) {
	for _, c := range captures(f) {
		var b []byte
		for _, s := range c.Steps[min(2, len(c.Steps)):] {
			b = append(b, unhex(f, s.Hex)...)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		for r := bytes.NewReader(b); ; {
			m, err := ReadTwoPart(r)
			if err != nil {
				return
			}
			_, _ = DecodeHandshake(m)
			_, _ = DecodePrologue(m)
			for _, c := range []Codec{JSON, Msgpack} {
				var it Item
				var a Annotated
				if c.Decode(m.Body, &it) == nil && c.Decode(it.Data, &a) == nil && a.Error != nil {
					if _, err := c.Encode(a); err != nil {
						t.Fatalf("%v of %q", err, m.Body)
					}
				}
			}
		}
	})
}

// FuzzMsgpack holds the check against the decoder: what passes is decoded, and what is
// decoded has passed, but for depth and for what the decoder leaves unread.
func FuzzMsgpack(f *testing.F) {
	for _, s := range []string{"\xc0", "\x82\xa1a\x01\xa1b\x93\x01\x02\x03", "\xd9\x01x", "\xcf\x00\x00\x00\x00\x00\x00\x00\x01", "\xdd\x00\x00\x00\x01\xc3", "\xc4\x02ab", "\xd4\x01x", "\xde\x00\x01\x01\x02"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		passes := Check(b) == nil
		r := bytes.NewReader(b)
		skipped := len(b) < 1<<10 && msgpack.NewDecoder(r).Skip() == nil
		if passes && !skipped && len(b) < 1<<10 && !bytes.ContainsAny(b, "\xc7\xc8\xc9\xd4\xd5\xd6\xd7\xd8") {
			t.Fatalf("%x passes, and the decoder cannot skip it", b)
		}
		var it Item
		_ = Msgpack.Decode(b, &it)
		var c Control
		_ = Msgpack.Decode(b, &c)
	})
}

type shape struct {
	U    uint64   `json:"u"`
	I    int64    `json:"i"`
	S    string   `json:"s,omitempty"`
	L    []uint32 `json:"l"`
	B    bool     `json:"b"`
	F    float64  `json:"f"`
	Deep *shape   `json:"deep,omitempty"`
}

func TestCodecsRoundTrip(t *testing.T) {
	var draw func(t *rapid.T, depth int) shape
	draw = func(t *rapid.T, depth int) shape {
		s := shape{U: rapid.Uint64().Draw(t, "u"), I: rapid.Int64().Draw(t, "i"), S: rapid.String().Draw(t, "s"), B: rapid.Bool().Draw(t, "b"),
			L: rapid.SliceOfN(rapid.Uint32(), 1, 40).Draw(t, "l"), F: rapid.Float64Range(-1e9, 1e9).Draw(t, "f")}
		if depth < 3 && rapid.Bool().Draw(t, "more") {
			d := draw(t, depth+1)
			s.Deep = &d
		}
		return s
	}
	rapid.Check(t, func(t *rapid.T) {
		want := draw(t, 0)
		for _, c := range []Codec{JSON, Msgpack} {
			b, err := c.Encode(want)
			if err != nil {
				t.Fatal(err)
			}
			whole, err := AppendItem(nil, c, b, true)
			if err != nil {
				t.Fatal(err)
			}
			m, err := ReadTwoPart(bytes.NewReader(whole))
			if err != nil {
				t.Fatal(err)
			}
			var it Item
			var a Annotated
			var got shape
			if err := c.Decode(m.Body, &it); err != nil {
				t.Fatal(err)
			}
			if err := c.Decode(it.Data, &a); err != nil {
				t.Fatal(err)
			}
			if err := c.Decode(a.Data, &got); err != nil || !reflect.DeepEqual(got, want) {
				t.Fatalf("%v: %v: %+v, want %+v", c, err, got, want)
			}
		}
	})
}
