package zmtp

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
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

// byHand is a publisher with a subscriber of everything, whose queue goes to the pipe.
func byHand(t *testing.T) (*Pub, *peer, net.Conn) {
	mine, theirs := net.Pipe()
	p := &Pub{done: make(chan struct{}), room: make(chan struct{}, 1)}
	c := &peer{conn: mine, topics: map[string]int{"": 1}, out: make(chan []byte, queue), gone: make(chan struct{})}
	p.peers = map[*peer]bool{c: true}
	var over sync.WaitGroup
	over.Go(func() { c.write(p.shorter) })
	t.Cleanup(func() {
		mine.Close()
		theirs.Close()
		close(c.gone)
		over.Wait()
	})
	return p, c, theirs
}

// TestReaderLosesNothing: of a burst that is longer than the queue, in messages or bytes, a
// subscriber that reads gets all, in order, and no more than the queue is kept meanwhile.
func TestReaderLosesNothing(t *testing.T) {
	for name, k := range map[string]struct{ messages, size int }{"messages": {3 * queue, 8}, "bytes": {200, 1 << 20}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p, c, theirs := byHand(t)
				sub := &sub{t, theirs, bufio.NewReader(theirs)}
				sent := 0
				var sending sync.WaitGroup
				sending.Go(func() {
					for ; sent < k.messages; sent++ {
						p.Send(t.Context(), binary.BigEndian.AppendUint64(nil, uint64(sent)), make([]byte, k.size))
					}
				})
				synctest.Wait()
				if sent == k.messages || len(c.out) > queue || c.held.Load() > queueBytes {
					t.Fatalf("%d sent, %d kept of %d bytes", sent, len(c.out), c.held.Load())
				}
				for n := range uint64(k.messages) {
					time.Sleep(time.Millisecond)
					if m := sub.message(); binary.BigEndian.Uint64([]byte(m[0])) != n || c.held.Load() > queueBytes {
						t.Fatalf("%x in place of %d; %d bytes are kept", m[0], n, c.held.Load())
					}
				}
				sending.Wait()
				if p.Lost() != 0 {
					t.Errorf("%d lost", p.Lost())
				}
			})
		})
	}
}

// TestSlow: with a subscriber that does not read, or too slowly, patience ends once: then it
// loses messages and slows nobody, until it has caught up.
func TestSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, c, theirs := byHand(t)
		sub := &sub{t, theirs, bufio.NewReader(theirs)}
		send := func(n int) time.Duration {
			began := time.Now()
			for range n {
				p.Send(t.Context(), []byte("m"))
				synctest.Wait()
			}
			return time.Since(began)
		}
		// One message is with the writer.
		if took := send(queue + 1); took != 0 || p.Lost() != 0 || len(c.out) != queue {
			t.Fatalf("%v, %d lost, %d kept", took, p.Lost(), len(c.out))
		}
		if took := send(3); took != patience || p.Lost() != 3 {
			t.Errorf("waited %v, %d lost", took, p.Lost())
		}
		sub.message()
		synctest.Wait()
		if took := send(2); took != 0 || p.Lost() != 4 {
			t.Errorf("one that is behind still: waited %v, %d lost", took, p.Lost())
		}
		for range queue + 1 {
			sub.message()
		}
		synctest.Wait()
		if send(queue + 1); p.Lost() != 4 {
			t.Errorf("%d lost", p.Lost())
		}
		ended, cancel := context.WithCancel(t.Context())
		time.AfterFunc(patience/2, cancel)
		began := time.Now()
		if p.Send(ended, []byte("m")); time.Since(began) != patience/2 || p.Lost() != 5 {
			t.Errorf("waited %v beyond ctx, %d lost", time.Since(began)-patience/2, p.Lost())
		}
	})
}

// TestFastBesideSlow: who reads gets everything while another does not read.
func TestFastBesideSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, _, _ := byHand(t)
		q, fast, theirs := byHand(t)
		q.peers = nil
		p.peers[fast] = true // q's room is nobody's: this one's queue is never full
		sub := &sub{t, theirs, bufio.NewReader(theirs)}
		for n := range queue + 10 {
			p.Send(t.Context(), []byte{byte(n)})
			if m := sub.message(); m[0] != string([]byte{byte(n)}) {
				t.Fatalf("%q", m)
			}
		}
		if p.Lost() != 9 {
			t.Errorf("%d lost", p.Lost())
		}
	})
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
