package wire

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// capture is one call as it was on the wire.
type capture struct {
	Name  string
	Steps []struct {
		Dir, TCP, Hex string
	}
}

func captures(t testing.TB) (all []capture) {
	files, err := filepath.Glob("testdata/tcp_*.json")
	if err != nil || len(files) < 20 {
		t.Fatalf("%d captures: %v", len(files), err)
	}
	for _, f := range files {
		var c capture
		b, err := os.ReadFile(f)
		if err = errors.Join(err, json.Unmarshal(b, &c)); err != nil {
			t.Fatal(f, err)
		}
		all = append(all, c)
	}
	return all
}

func unhex(t testing.TB, s string) []byte {
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestGoldens decodes every byte that was captured and writes the same again.
func TestGoldens(t *testing.T) {
	seen := map[string]int{}
	for _, c := range captures(t) {
		t.Run(c.Name, func(t *testing.T) {
			codec := JSON
			for n, s := range c.Steps {
				if s.TCP != "" {
					continue
				}
				b := unhex(t, s.Hex)
				switch {
				case strings.HasSuffix(s.Dir, "ack"):
					text, err := ReadAck(bytes.NewReader(b))
					same(t, n, AppendAck(nil, text), b, err)
				case strings.Contains(s.Dir, "(request"):
					codec = golden(t, n, b)
				default:
					seen[home(t, n, b, codec)]++
				}
			}
		})
	}
	for _, kind := range []string{"handshake", "prologue", "item", "fault", "final", Sentinel, Stop, Kill} {
		if seen[kind] == 0 {
			t.Errorf("no capture has a %s: %v", kind, seen)
		}
	}
}

func same(t *testing.T, n int, got, want []byte, err error) {
	t.Helper()
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("step %d: %v\n got %q\nwant %q", n, err, got, want)
	}
}

// golden checks a request.
func golden(t *testing.T, n int, b []byte) Codec {
	f, err := ReadFrame(bytes.NewReader(b), always)
	if err != nil {
		t.Fatal(n, err)
	}
	again, err := AppendFrame(nil, f)
	same(t, n, again, b, err)
	ctl, h, codec, err := DecodeControl(f.Control)
	if err != nil {
		t.Fatal(n, err)
	}
	text, err := JSON.Encode(ctl)
	same(t, n, text, f.Control, err)
	mine, err := NewControl(ctl.ID, codec, h.Address, h.Subject)
	if mine.Metadata = ctl.Metadata; err != nil || mine.Connection != ctl.Connection {
		t.Errorf("%v: %+v, want %+v", err, mine, ctl)
	}
	var body Raw
	if err := codec.Decode(f.Body, &body); err != nil || !bytes.Equal(body, f.Body) {
		t.Errorf("body: %v", err)
	}
	return codec
}

// home checks a message of the call-home connection, and says what it is.
func home(t *testing.T, n int, b []byte, codec Codec) string {
	r := bytes.NewReader(b)
	m, err := ReadTwoPart(r)
	if err != nil || r.Len() > 0 {
		t.Fatal(n, err, r.Len())
	}
	same(t, n, AppendTwoPart(nil, m), b, nil)
	switch h := string(m.Header); {
	case h == Sentinel, h == Stop, h == Kill:
		return h
	case strings.Contains(h, "subject"):
		hs, err := DecodeHandshake(m)
		text, err2 := JSON.Encode(hs)
		same(t, n, text, m.Header, errors.Join(err, err2))
		return "handshake"
	case h != "":
		p, err := DecodePrologue(m)
		text, err2 := JSON.Encode(p)
		same(t, n, text, m.Header, errors.Join(err, err2))
		return "prologue"
	}
	var it Item
	if err := codec.Decode(m.Body, &it); err != nil {
		t.Fatal(n, err)
	}
	if it.Final {
		same(t, n, AppendFinal(nil, codec)[:len(b)], b, nil)
		return "final"
	}
	text, err := codec.Encode(it)
	same(t, n, text, m.Body, err)
	whole, err := AppendItem(nil, codec, it.Data, false)
	same(t, n, whole, b, err)
	var a Annotated
	if err := codec.Decode(it.Data, &a); err != nil {
		t.Fatal(n, err)
	}
	if a.Error != nil {
		whole, err = AppendFault(nil, codec, *a.Error)
		same(t, n, whole, b, err)
		return "fault"
	}
	if a.Data != nil {
		whole, err = AppendItem(nil, codec, a.Data, true)
		same(t, n, whole, b, err)
	}
	return "item"
}

func TestBounds(t *testing.T) {
	frame := func(n uint32) []byte {
		b := append([]byte{0, 1, 'p', 0, 2, '{', '}'}, byte(n>>24), byte(n>>16), byte(n>>8), byte(n))
		return AppendTwoPart(b, TwoPart{[]byte("{}"), []byte("1")})
	}
	for name, c := range map[string]struct {
		in   []byte
		want error
	}{
		"good": {frame(27), nil}, "empty": {nil, io.EOF}, "cut": {frame(27)[:20], io.ErrUnexpectedEOF}, "long path": {[]byte{0xff, 0xff}, ErrMalformed},
		"too large": {frame(1 << 30), ErrMalformed}, "shorter than its parts": {frame(26), ErrMalformed}, "no parts": {frame(3), ErrMalformed},
		"longer than its parts": {append(frame(28), 0), ErrMalformed}, "announced, not sent": {frame(27)[:37], io.ErrUnexpectedEOF},
	} {
		if _, err := ReadFrame(bytes.NewReader(c.in), always); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
	two := bytes.NewReader(append(frame(27), frame(27)...))
	for n, room := range []func(int64) bool{func(int64) bool { return false }, always} {
		if f, err := ReadFrame(two, room); errors.Is(err, ErrRoom) != (n == 0) || n == 1 && string(f.Body) != "1" {
			t.Errorf("request %d of two, no room for the first: %+v, %v", n, f, err)
		}
	}
	large, asked := append([]byte{0, 1, 'p', 0, 0}, 0, 3, 0, 24), int64(0)
	large = AppendTwoPart(large, TwoPart{nil, make([]byte, 3<<16)})
	if _, err := ReadFrame(bytes.NewReader(large), func(n int64) bool { asked += n; return asked <= 2*piece }); !errors.Is(err, ErrRoom) || asked != 3*piece {
		t.Errorf("asked for %d bytes, %v", asked, err)
	}
	if _, err := ReadFrame(bytes.NewReader(large[:100]), func(int64) bool { return false }); !errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, ErrRoom) {
		t.Errorf("cut where there is no room: %v", err)
	}
	big := make([]byte, twoPart)
	big[8+3] = 1 // a body of 2^32 bytes
	if _, err := ReadTwoPart(bytes.NewReader(big)); !errors.Is(err, ErrMalformed) {
		t.Error(err)
	}
	if _, err := ReadAck(bytes.NewReader([]byte{1, 0, 0, 0})); !errors.Is(err, ErrMalformed) {
		t.Error(err)
	}
	if _, err := AppendFrame(nil, Frame{Path: strings.Repeat("x", MaxPath+1)}); !errors.Is(err, ErrMalformed) {
		t.Error(err)
	}
	if _, err := AppendItem(nil, JSON, make([]byte, MaxMessage), true); !errors.Is(err, ErrMalformed) {
		t.Error(err)
	}
	deep := append(bytes.Repeat([]byte{0x91}, 1<<20), 0xc0)
	var v Raw
	if err := Msgpack.Decode(deep, &v); !errors.Is(err, ErrMalformed) {
		t.Error(err)
	}
	if err := JSON.Decode(bytes.Repeat([]byte("["), 1<<20), &v); !errors.Is(err, ErrMalformed) {
		t.Error(err)
	}
}

func TestControlIsChecked(t *testing.T) {
	good, err := NewControl("id", Msgpack, "127.0.0.1:9", "subject")
	if err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*Control, *Home){
		"codec": func(c *Control, _ *Home) { c.PayloadCodec = "cbor" }, "transport": func(c *Control, _ *Home) { c.Connection.Transport = "quic" },
		"no id": func(c *Control, h *Home) { c.ID, h.Context = "", "" }, "other context": func(_ *Control, h *Home) { h.Context = "x" },
		"no subject": func(_ *Control, h *Home) { h.Subject = "" }, "host name": func(_ *Control, h *Home) { h.Address = "localhost:9" },
		"many in": func(c *Control, _ *Home) { c.RequestType = "many_in" }, "long": func(_ *Control, h *Home) { h.Subject = strings.Repeat("x", 300) },
	} {
		c, h := good, Home{"127.0.0.1:9", "subject", "id", Response}
		change(&c, &h)
		info, err := JSON.Encode(h)
		c.Connection.Info = string(info)
		b, err2 := JSON.Encode(c)
		if _, _, _, err3 := DecodeControl(b); !errors.Is(err3, ErrMalformed) || err != nil || err2 != nil {
			t.Errorf("%s: %v %v %v", name, err, err2, err3)
		}
	}
}
