package zmtp

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"
)

// limit of a test's waits: a fault, not a measure.
const limit = 30 * time.Second

// sub is a subscriber that speaks as a test has it.
type sub struct {
	t *testing.T
	net.Conn
	r *bufio.Reader
}

func bind(t *testing.T) *Pub {
	p, err := Bind("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

func dial(t *testing.T, p *Pub) *sub {
	c, err := net.Dial("tcp", p.Addr().String())
	if err == nil {
		err = c.SetDeadline(time.Now().Add(limit))
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return &sub{t, c, bufio.NewReader(c)}
}

func (s *sub) send(b []byte) {
	s.t.Helper()
	if _, err := s.Write(b); err != nil {
		s.t.Fatal(err)
	}
}

// greet shakes hands.
func (s *sub) greet() *sub {
	s.t.Helper()
	s.send(greeting())
	if err := readGreeting(s.r); err != nil {
		s.t.Fatal(err)
	}
	f, err := readFrame(s.r)
	if name, rest, ok := f.name(); err != nil || !ok || name != "READY" || !bytes.Contains(rest, []byte("Socket-Type\x00\x00\x00\x03PUB")) {
		s.t.Fatalf("%v: %q", err, f.body)
	}
	s.send(appendCommand(nil, "READY", append(property("Socket-Type", "SUB"), property("Identity", "")...)))
	return s
}

// known waits until the publisher has heard everything so far: it answers a ping.
func (s *sub) known() {
	s.t.Helper()
	s.send(appendCommand(nil, "PING", []byte("\x00\x00x")))
	f, err := readFrame(s.r)
	if name, rest, _ := f.name(); err != nil || name != "PONG" || string(rest) != "x" {
		s.t.Fatalf("%v: %q", err, f.body)
	}
}

// message reads one.
func (s *sub) message() (m []string) {
	s.t.Helper()
	for more := true; more; {
		var head [9]byte
		_, err := io.ReadFull(s.r, head[:2])
		size := int(head[1])
		if err == nil && head[0]&flagLong != 0 {
			_, err = io.ReadFull(s.r, head[2:])
			size = 0
			for _, b := range head[1:] {
				size = size<<8 | int(b)
			}
		}
		body := make([]byte, size)
		if err == nil {
			_, err = io.ReadFull(s.r, body)
		}
		if err != nil {
			s.t.Fatal(err)
		}
		m, more = append(m, string(body)), head[0]&flagMore != 0
	}
	return m
}

// TestPublishes: each subscriber gets what it wants, in order, whole.
func TestPublishes(t *testing.T) {
	p := bind(t)
	a, b := dial(t, p).greet(), dial(t, p).greet()
	a.send(appendFrame(nil, []byte("\x01kv"), false))
	b.send(appendCommand(nil, "SUBSCRIBE", []byte("other")))
	b.send(appendFrame(nil, []byte("\x01kv-events"), false))
	b.send(appendCommand(nil, "CANCEL", []byte("kv-events")))
	a.known()
	b.known()
	long := strings.Repeat("x", 100_000)
	p.Send(t.Context(), []byte("kv-events"), []byte("1"), []byte(long))
	p.Send(t.Context(), []byte("other"), nil)
	p.Send(t.Context(), []byte("kvs"))
	p.Send(t.Context())
	for _, want := range [][]string{{"kv-events", "1", long}, {"kvs"}} {
		if m := a.message(); strings.Join(m, "|") != strings.Join(want, "|") {
			t.Errorf("%.100q", m)
		}
	}
	if m := b.message(); len(m) != 2 || m[0] != "other" || m[1] != "" {
		t.Errorf("%.100q", m)
	}
}

// TestStrangers: whoever does not speak as a subscriber does is shut out.
func TestStrangers(t *testing.T) {
	p := bind(t)
	other := greeting()
	copy(other[12:], "PLAIN")
	old := greeting()
	old[10] = 1
	ready := func(kind string) []byte {
		return append(greeting(), appendCommand(nil, "READY", property("Socket-Type", kind))...)
	}
	for name, b := range map[string][]byte{"HTTP": []byte("GET / HTTP/1.1\r\n\r\n" + strings.Repeat("x", 64)), "mechanism": other, "version": old,
		"no READY": append(greeting(), appendCommand(nil, "HELLO", nil)...), "a REQ": ready("REQ"),
		"a cut READY": append(greeting(), appendCommand(nil, "READY", []byte{200, 1})...), "a long value": append(greeting(), appendCommand(nil, "READY", []byte{1, 'x', 0xff, 0xff, 0xff, 0xff})...),
		"a large frame": append(ready("SUB"), 2, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff), "a long topic": append(ready("SUB"), appendFrame(nil, bytes.Repeat([]byte{1}, maxTopic+2), false)...),
		"flags": append(ready("SUB"), 0x80, 0),
	} {
		s := dial(t, p)
		s.send(b)
		if _, err := io.Copy(io.Discard, s.r); err != nil && !strings.Contains(err.Error(), "reset") {
			t.Errorf("%s: %v", name, err)
		}
	}
	many := dial(t, p).greet()
	for i := range maxTopics + 1 {
		many.send(appendFrame(nil, []byte{1, byte(i)}, false))
	}
	if _, err := io.Copy(io.Discard, many.r); err != nil && !strings.Contains(err.Error(), "reset") {
		t.Error(err)
	}
	good := dial(t, p).greet() // nobody is kept out by them
	good.send(appendFrame(nil, []byte("\x01x"), false))
	good.known()
	p.Send(t.Context(), []byte("x"))
	good.message()
}

// TestCloseEndsAll: nothing is left, also of those who have not said who they are.
func TestCloseEndsAll(t *testing.T) {
	p := bind(t)
	mute, good := dial(t, p), dial(t, p).greet()
	good.known()
	p.Close()
	p.Close()
	for _, s := range []*sub{mute, good} {
		if _, err := io.Copy(io.Discard, s.r); err != nil && !strings.Contains(err.Error(), "reset") {
			t.Error(err)
		}
	}
	if c, err := (&net.Dialer{}).DialContext(context.Background(), "tcp", p.Addr().String()); err == nil {
		c.Close()
		t.Error("it still listens")
	}
	if _, err := Bind("127.0.0.1:x"); err == nil {
		t.Error("a port x")
	}
	p.Send(t.Context(), []byte("x"))
}

// FuzzPeer: no bytes of a subscriber break the publisher.
func FuzzPeer(f *testing.F) {
	f.Add(append(greeting(), appendCommand(nil, "READY", property("Socket-Type", "SUB"))...))
	f.Fuzz(func(t *testing.T, b []byte) {
		r := bytes.NewReader(b)
		if readGreeting(r) != nil || readReady(r) != nil {
			return
		}
		for {
			f, err := readFrame(r)
			if err != nil {
				if !errors.Is(err, ErrMalformed) && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
					t.Fatal(err)
				}
				return
			}
			f.subscription()
			pong(f)
		}
	})
}
