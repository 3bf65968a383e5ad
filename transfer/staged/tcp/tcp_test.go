package tcp_test

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/batonkv/baton/sidecar/certs"
	"github.com/batonkv/baton/transfer"
	"github.com/batonkv/baton/transfer/staged"
	"github.com/batonkv/baton/transfer/staged/tcp"
	"github.com/batonkv/baton/transfer/staged/wiretest"
)

func makes(server, client *tls.Config) wiretest.Make {
	last := staged.Incarnation(0)
	return func(t testing.TB, chunks int32, chunk int64) wiretest.End {
		last++
		arena := make([]byte, int64(chunks)*chunk)
		w, err := tcp.New(tcp.Config{Wire: last, Arena: arena, Chunk: chunk, Listen: "127.0.0.1:0", Server: server, Client: client})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { w.Close() })
		return wiretest.End{Wire: w, ID: last, Arena: arena}
	}
}

// identified is a leaf of a new CA and one of another.
func identified(t testing.TB, ca *certs.CA, group string) *certs.Identified {
	t.Helper()
	p, err := ca.Leaf(certs.LeafConfig{Identity: certs.SidecarID("c", "t", group, 0), At: time.Now()})
	if err != nil {
		t.Fatal(err)
	}
	id, err := p.Identified(ca.Cert, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func newCA(t testing.TB) *certs.CA {
	t.Helper()
	ca, err := certs.NewCA("test", time.Now().Add(-time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	return ca
}

func TestPlain(t *testing.T) { wiretest.Run(t, makes(nil, nil)) }

func TestTLS(t *testing.T) {
	id := identified(t, newCA(t), "decode-0")
	wiretest.Run(t, makes(id.Server(nil), id.Client(nil)))
}

// TestStrangers: who has no certificate of the CA, or is of another group, gets no byte.
func TestStrangers(t *testing.T) {
	ca := newCA(t)
	own, friend, foreign := identified(t, ca, "prefill-0"), identified(t, ca, "decode-0"), identified(t, ca, "decode-1")
	other := identified(t, newCA(t), "decode-0")
	only := certs.Expect(certs.SidecarID("c", "t", "decode-0", 0))
	src := makes(own.Server(only), own.Client(nil))(t, 2, 4096)
	if err := src.Wire.Offer(staged.Exposed{Offer: 1, Bytes: 64}); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		client *certs.Identified
		want   error
	}{"friend": {friend, nil}, "another group": {foreign, transfer.ErrPeer}, "another CA": {other, transfer.ErrPeer}} {
		dst := makes(c.client.Server(nil), c.client.Client(nil))(t, 2, 4096)
		done := make(chan error, 1)
		dst.Wire.Fetch(staged.Fetching{Addr: src.Wire.Addr(), Of: src.ID, Offer: 1, Bytes: 64}, func(err error) { done <- err })
		if err := <-done; !errors.Is(err, c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestGarbage: a server that does not speak the protocol fails the fetch, and a client that
// does not is let go.
func TestGarbage(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = c.Write([]byte("HTTP/1.1 400 Bad Request\r\n\r\n"))
			c.Close()
		}
	}()
	e := makes(nil, nil)(t, 2, 4096)
	done := make(chan error, 1)
	e.Wire.Fetch(staged.Fetching{Addr: l.Addr().String(), Of: 1, Offer: 1, Bytes: 64}, func(err error) { done <- err })
	if err := <-done; !errors.Is(err, transfer.ErrPeer) || !errors.Is(err, tcp.ErrFrame) {
		t.Errorf("got %v", err)
	}
	c, err := net.Dial("tcp", e.Wire.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Write([]byte("GET / HTTP/1.1\r\nHost: somewhere\r\n\r\n")); err != nil {
		t.Fatal(err)
	}
	if n, err := c.Read(make([]byte, 1)); n != 0 || err == nil {
		t.Errorf("it answered %d bytes, %v", n, err)
	}
}

// TestEveryFetchEnds: also one that Close overtakes.
func TestEveryFetchEnds(t *testing.T) {
	for range 20 {
		const each, callers = 50, 8
		src, dst := makes(nil, nil)(t, 2, 4096), makes(nil, nil)(t, each*callers, 4096)
		if err := src.Wire.Offer(staged.Exposed{Offer: 1, Bytes: 64}); err != nil {
			t.Fatal(err)
		}
		done := make(chan error, each*callers)
		var all sync.WaitGroup
		for caller := range int32(callers) {
			all.Go(func() {
				for i := range int32(each) { // no chunk is fetched into twice at once
					dst.Wire.Fetch(staged.Fetching{Addr: src.Wire.Addr(), Of: src.ID, Offer: 1, Chunk: caller*each + i, Bytes: 64}, func(err error) { done <- err })
				}
			})
		}
		if err := dst.Wire.Close(); err != nil {
			t.Fatal(err)
		}
		all.Wait()
		for range each * callers {
			if err := <-done; err != nil && !errors.Is(err, transfer.ErrClosed) {
				t.Fatal(err)
			}
		}
	}
}

// TestManyPeers: a peer that starts anew again and again, at another address each time, is
// forgotten when it is gone.
func TestManyPeers(t *testing.T) {
	dst := makes(nil, nil)(t, 2, 4096)
	fetch := func(addr string) error {
		done := make(chan error, 1)
		dst.Wire.Fetch(staged.Fetching{Addr: addr, Of: 1, Offer: 1, Bytes: 64}, func(err error) { done <- err })
		return <-done
	}
	before := runtime.NumGoroutine()
	for i := range 600 { // nobody listens
		if err := fetch(fmt.Sprintf("127.0.%d.%d:1", 1+i/200, 1+i%200)); !errors.Is(err, transfer.ErrPeer) {
			t.Fatal(err)
		}
	}
	if n := runtime.NumGoroutine() - before; n > 600 {
		t.Errorf("%d goroutines more after 600 peers that are gone", n)
	}
}

func TestConfig(t *testing.T) {
	id := identified(t, newCA(t), "decode-0")
	good := tcp.Config{Arena: make([]byte, 8192), Chunk: 4096, Listen: "127.0.0.1:0"}
	for name, f := range map[string]func(*tcp.Config){
		"no chunk":    func(c *tcp.Config) { c.Chunk = 0 },
		"small arena": func(c *tcp.Config) { c.Arena = c.Arena[:100] },
		"half TLS":    func(c *tcp.Config) { c.Server = id.Server(nil) },
		"no address":  func(c *tcp.Config) { c.Listen = "nowhere:x" },
		"many":        func(c *tcp.Config) { c.Conns = 100 },
	} {
		bad := good
		f(&bad)
		if w, err := tcp.New(bad); !errors.Is(err, tcp.ErrConfig) {
			t.Errorf("%s: %v", name, err)
			if err == nil {
				w.Close()
			}
		}
	}
}
