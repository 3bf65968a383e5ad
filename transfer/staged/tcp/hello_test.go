package tcp

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/batonkv/baton/transfer"
	"github.com/batonkv/baton/transfer/staged"
	"github.com/batonkv/baton/transfer/staged/internal/offers"
)

func FuzzHello(f *testing.F) {
	f.Add(appendHello(nil, version, secured))
	f.Add(appendHello(nil, version, plain))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) != helloBytes {
			return
		}
		if err := checkHello((*[helloBytes]byte)(b), plain); (err == nil) != (string(b) == string(appendHello(nil, version, plain))) {
			t.Errorf("%x: %v", b, err)
		}
	})
}

// open makes a wire; with TLS nobody has to get as far as its certificate.
func open(t *testing.T, s security, conns int) *Wire {
	t.Helper()
	cfg := Config{Wire: 7, Arena: make([]byte, 8<<20), Chunk: 1 << 20, Listen: "127.0.0.1:0", Conns: conns}
	if s == secured {
		cfg.Server, cfg.Client = &tls.Config{MinVersion: tls.VersionTLS13}, &tls.Config{MinVersion: tls.VersionTLS13}
	}
	w, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.Close() })
	return w
}

// serveOnce lets one connection be served by f.
func serveOnce(t *testing.T, f func(net.Conn)) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	over, ending := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(over)
		c, err := l.Accept()
		if err != nil {
			return
		}
		f(c)
		<-ending
		c.Close()
	}()
	t.Cleanup(func() { close(ending); l.Close(); <-over })
	return l.Addr().String()
}

func fetched(w *Wire, addr string, offer uint64, chunk int32, n int64) error {
	done := make(chan error, 1)
	w.Fetch(staged.Fetching{Addr: addr, Of: 7, Offer: offer, Chunk: chunk, Bytes: n}, func(err error) { done <- err })
	return <-done
}

// TestPlainIsOfBoth: who is plain and who is not refuse each other, at either end, and both
// say why.
func TestPlainIsOfBoth(t *testing.T) {
	for _, c := range []struct{ serves, dials security }{{secured, plain}, {plain, secured}} {
		src, dst := open(t, c.serves, 1), open(t, c.dials, 1)
		if err := src.Offer(staged.Exposed{Offer: 1, Bytes: 64}); err != nil {
			t.Fatal(err)
		}
		err := fetched(dst, src.Addr(), 1, 0, 64)
		if !errors.Is(err, ErrSecurity) || !errors.Is(err, transfer.ErrPeer) || !strings.Contains(err.Error(), "staging.transport") {
			t.Errorf("%s from %s: %v", c.dials, c.serves, err)
		}
	}
}

// TestOtherVersions: an end of another release is refused by name, whoever dials.
func TestOtherVersions(t *testing.T) {
	w := open(t, plain, 1)
	heard := make(chan [helloBytes]byte, 1)
	addr := serveOnce(t, func(c net.Conn) {
		var b [helloBytes]byte
		_, _ = io.ReadFull(c, b[:])
		heard <- b
		_, _ = c.Write(appendHello(nil, version+1, plain))
	})
	if err := fetched(w, addr, 1, 0, 64); !errors.Is(err, ErrVersion) || !errors.Is(err, transfer.ErrPeer) {
		t.Errorf("got %v", err)
	}
	if b := <-heard; string(b[:]) != string(appendHello(nil, version, plain)) {
		t.Errorf("it said %x", b)
	}
	for name, c := range map[string]struct{ say, want []byte }{
		"another version":  {appendHello(nil, version+1, plain), appendHello(nil, version, plain)},
		"TLS":              {appendHello(nil, version, secured), appendHello(nil, version, plain)},
		"no such security": {appendHello(nil, version, 9), nil},
		"no greeting":      {[]byte("GET / HT"), nil},
	} {
		conn, err := net.Dial("tcp", w.Addr())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Write(c.say); err != nil {
			t.Error(err)
		}
		if got, _ := io.ReadAll(conn); string(got) != string(c.want) { // it ends, whatever it says
			t.Errorf("%s is answered %x, want %x", name, got, c.want)
		}
		conn.Close()
	}
}

// TestPipelined: the next request is there before the last one is answered.
func TestPipelined(t *testing.T) {
	w := open(t, plain, 1)
	addr := serveOnce(t, func(c net.Conn) {
		var h [helloBytes]byte
		_, _ = io.ReadFull(c, h[:])
		_, _ = c.Write(h[:])
		var asks [depth * askBytes]byte
		if _, err := io.ReadFull(c, asks[:]); err != nil { // all of them, before any answer
			t.Error(err)
			return
		}
		for i := range depth {
			a, err := decodeAsk((*[askBytes]byte)(asks[i*askBytes:]))
			if err != nil {
				t.Error(err)
			}
			_, _ = c.Write(append(appendAnswer(nil, offers.Good, a.bytes), make([]byte, a.bytes)...))
		}
	})
	done := make(chan error, depth)
	for i := range int32(depth) {
		w.Fetch(staged.Fetching{Addr: addr, Of: 7, Offer: uint64(i), Chunk: i, Bytes: 64}, func(err error) { done <- err })
	}
	for range depth {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

// TestSlowReader: who asks and does not read slows nobody else, and is let go at Close.
func TestSlowReader(t *testing.T) {
	src, dst := open(t, plain, 2), open(t, plain, 2)
	for i := range uint64(8) {
		if err := src.Offer(staged.Exposed{Offer: i, Chunk: int32(i), Bytes: 1 << 20}); err != nil {
			t.Fatal(err)
		}
	}
	for range 16 { // connections that stand still, each with more under way than sockets hold
		c, err := net.Dial("tcp", src.Addr())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		b := appendHello(nil, version, plain)
		for i := range uint64(8) {
			b = ask{7, i, 1 << 20}.append(b)
		}
		if _, err := c.Write(b); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(c, b[:helloBytes]); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 64 {
		if err := fetched(dst, src.Addr(), uint64(i%8), int32(i%8), 1<<20); err != nil {
			t.Fatal(err)
		}
	}
}
