package nixl

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/batonkv/baton/transfer"
	"github.com/batonkv/baton/transfer/mover"
	"github.com/batonkv/baton/transfer/staged"
	"github.com/batonkv/baton/transfer/staged/internal/offers"
	"github.com/batonkv/baton/transfer/transfertest"
)

// middle is a listener that passes side connections on to a Wire. welcomed may change what
// that says of itself, asked hears each request before it is passed on.
func middle(t *testing.T, to string, welcomed func([]byte) []byte, asked func(n int)) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go pass(c, to, welcomed, asked)
		}
	}()
	return l.Addr().String()
}

func pass(c net.Conn, to string, welcomed func([]byte) []byte, asked func(n int)) {
	defer c.Close()
	up, err := net.Dial("tcp", to)
	if err != nil {
		return
	}
	defer up.Close()
	if _, err := io.CopyN(up, c, helloBytes); err != nil {
		return
	}
	m, err := readWelcome(up)
	if err != nil {
		return
	}
	b := m.append(nil, offers.Good)
	whole := len(b)
	if welcomed != nil {
		b = welcomed(b)
	}
	if _, err := c.Write(b); err != nil || len(b) < whole {
		return
	}
	go func() { _, _ = io.Copy(c, up) }()
	for n := 1; ; n++ {
		var b [askBytes]byte
		if _, err := io.ReadFull(c, b[:]); err != nil {
			return
		}
		if asked != nil {
			asked(n)
		}
		if _, err := up.Write(b[:]); err != nil {
			return
		}
	}
}

// each runs f with the fake library and with the real one.
func each(t *testing.T, f func(t *testing.T, o Options)) {
	t.Run("fake", func(t *testing.T) { f(t, pretend(t)) })
	t.Run("real", func(t *testing.T) { f(t, real(t)) })
}

// pair is a source and a reader of it.
func pair(t *testing.T, o Options, env ...string) (src, dst *mover.Wire, from, into []byte) {
	t.Helper()
	c1, from := config(t, 1, 4, 1<<20, o, env...)
	c2, into := config(t, 2, 4, 1<<20, o, env...)
	return start(t, c1), start(t, c2), from, into
}

func offer(t *testing.T, w staged.Wire, o staged.Exposed) {
	t.Helper()
	if err := w.Offer(o); err != nil {
		t.Fatal(err)
	}
}

// TestWithdrawnWhileRead: bytes of an offer that ends while it is read do not count, nor when
// its number comes back with another chunk.
func TestWithdrawnWhileRead(t *testing.T) {
	each(t, func(t *testing.T, o Options) {
		src, dst, _, _ := pair(t, o)
		for name, again := range map[string]bool{"withdrawn": false, "with another chunk": true} {
			offer(t, src, staged.Exposed{Offer: 1, Chunk: 2, Bytes: 4096})
			addr := middle(t, src.Addr(), nil, func(n int) {
				if n == 2 { // the read has ended
					src.Withdraw(1)
					o := staged.Exposed{Offer: 9, Chunk: 3, Bytes: 4096} // its answer follows the withdrawal
					if again {
						o.Offer = 1
					}
					offer(t, src, o)
				}
			})
			if err := <-fetched(dst, staged.Fetching{Addr: addr, Of: 1, Offer: 1, Bytes: 4096}); !errors.Is(err, transfer.ErrPeer) {
				t.Errorf("%s: got %v", name, err)
			}
		}
	})
}

// TestMetadata: what a peer says of itself may be anything; the fetch fails, and the wire mover
// goes on.
func TestMetadata(t *testing.T) {
	each(t, func(t *testing.T, o Options) {
		src, dst, _, _ := pair(t, o)
		offer(t, src, staged.Exposed{Offer: 1, Chunk: 2, Bytes: 4096})
		rnd := rand.New(rand.NewPCG(1, 1))
		size := func(b []byte, n int) []byte {
			be.PutUint32(b[welcomeBytes-4:], uint32(n))
			return append(b[:welcomeBytes:welcomeBytes], make([]byte, n)...)
		}
		for name, change := range map[string]func(b []byte) []byte{
			"truncated": func(b []byte) []byte {
				be.PutUint32(b[welcomeBytes-4:], uint32(len(b)-welcomeBytes)/2)
				return b[:welcomeBytes+(len(b)-welcomeBytes)/2]
			},
			"garbage": func(b []byte) []byte {
				for i := range b[welcomeBytes:] {
					b[welcomeBytes+i] = byte(rnd.Uint32())
				}
				return b
			},
			"zeros":      func(b []byte) []byte { return size(b, 500) },
			"oversized":  func(b []byte) []byte { return size(b, maxMetadata+1) },
			"cut off":    func(b []byte) []byte { return b[:len(b)-1] },
			"none":       func(b []byte) []byte { return b[:welcomeBytes-1] },
			"other addr": func(b []byte) []byte { be.PutUint64(b[8:], 1<<20); return b },
			"too many":   func(b []byte) []byte { be.PutUint32(b[welcomeBytes-8:], 64); return b },
		} {
			addr := middle(t, src.Addr(), change, nil)
			if err := <-fetched(dst, staged.Fetching{Addr: addr, Of: 1, Offer: 1, Bytes: 4096}); !errors.Is(err, transfer.ErrPeer) {
				t.Errorf("%s: got %v", name, err)
			}
		}
		if err := <-fetched(dst, staged.Fetching{Addr: src.Addr(), Of: 1, Offer: 1, Bytes: 4096}); err != nil {
			t.Errorf("from a peer that says the truth: %v", err)
		}
	})
}

// TestPeerKilled: fetches of a peer that dies under them end, those that ended well with the
// bytes that were offered.
func TestPeerKilled(t *testing.T) {
	each(t, func(t *testing.T, o Options) {
		for _, sig := range []unix.Signal{unix.SIGKILL, unix.SIGSEGV} {
			src, dst, from, into := pair(t, o)
			offer(t, src, staged.Exposed{Offer: 1, Chunk: 2, Bytes: 1 << 20})
			for i := range from {
				from[i] = byte(i * 7)
			}
			f := staged.Fetching{Addr: src.Addr(), Of: 1, Offer: 1, Bytes: 1 << 20}
			if err := <-fetched(dst, f); err != nil {
				t.Fatal(err)
			}
			clear(into)
			var all []<-chan error
			for i := range int32(4) {
				f.Chunk = i
				all = append(all, fetched(dst, f))
			}
			if err := unix.Kill(src.PID(), sig); err != nil {
				t.Fatal(err)
			}
			for i, done := range all {
				err := <-done
				if err != nil && !errors.Is(err, transfer.ErrPeer) {
					t.Errorf("%v: got %v", sig, err)
				}
				if err == nil && !bytes.Equal(into[i<<20:(i+1)<<20], from[2<<20:3<<20]) {
					t.Errorf("%v: chunk %d has other bytes", sig, i)
				}
			}
			<-src.Exited()
			if err := <-fetched(dst, f); !errors.Is(err, transfer.ErrPeer) {
				t.Errorf("%v, later: got %v", sig, err)
			}
		}
	})
}

// TestStopped: fetches of a peer that is stopped end when they are cancelled, or with the
// reader's process, and go on when the peer does.
func TestStopped(t *testing.T) {
	each(t, func(t *testing.T, o Options) {
		src, dst, _, _ := pair(t, o)
		offer(t, src, staged.Exposed{Offer: 1, Chunk: 2, Bytes: 1 << 20})
		f := staged.Fetching{Addr: src.Addr(), Of: 1, Offer: 1, Bytes: 1 << 20}
		if err := <-fetched(dst, f); err != nil { // there is a session
			t.Fatal(err)
		}
		transfertest.Freeze(t, src.PID())
		done := make(chan error, 1)
		cancel := dst.Fetch(f, func(err error) { done <- err })
		f.Chunk = 1
		kept := fetched(dst, f)
		cancel()
		if err := <-done; !errors.Is(err, transfer.ErrCanceled) {
			t.Errorf("cancelled: got %v", err)
		}
		if err := unix.Kill(src.PID(), unix.SIGCONT); err != nil {
			t.Fatal(err)
		}
		if err := <-kept; err != nil {
			t.Errorf("continued: got %v", err)
		}
		transfertest.Freeze(t, src.PID())
		last := fetched(dst, f)
		dst.Kill(errors.New("by the test"))
		if err := <-last; !errors.Is(err, transfer.ErrMover) {
			t.Errorf("killed: got %v", err)
		}
	})
}

// TestStartsAnew: a wire mover that serves where a dead one did is another one.
func TestStartsAnew(t *testing.T) {
	each(t, func(t *testing.T, o Options) {
		src, dst, _, into := pair(t, o)
		offer(t, src, staged.Exposed{Offer: 1, Chunk: 2, Bytes: 4096})
		f := staged.Fetching{Addr: src.Addr(), Of: 1, Offer: 1, Bytes: 4096}
		if err := <-fetched(dst, f); err != nil {
			t.Fatal(err)
		}
		src.Kill(errors.New("by the test"))
		<-src.Exited()
		c, from := config(t, 3, 4, 1<<20, o)
		c.Setup.Listen = f.Addr
		next := start(t, c)
		from[0] = 42
		offer(t, next, staged.Exposed{Offer: 1, Bytes: 4096})
		if err := <-fetched(dst, f); !errors.Is(err, transfer.ErrPeer) {
			t.Errorf("of the dead one: got %v", err)
		}
		f.Of = 3
		if err := <-fetched(dst, f); err != nil || into[0] != 42 {
			t.Errorf("of the new one: %v, byte %d", err, into[0])
		}
	})
}

// TestMoreThanQueues: a session has more fetches in hand than all of its queues hold, and none
// waits for one that waits for it.
func TestMoreThanQueues(t *testing.T) {
	const chunk, n = 4096, 1500
	o := pretend(t)
	c1, _ := config(t, 1, 1, chunk, o)
	c2, _ := config(t, 2, n, chunk, o)
	src, dst := start(t, c1), start(t, c2)
	offer(t, src, staged.Exposed{Offer: 1, Bytes: chunk})
	done := make(chan error, n)
	for i := range int32(n) {
		dst.Fetch(staged.Fetching{Addr: src.Addr(), Of: 1, Offer: 1, Chunk: i, Bytes: chunk}, func(err error) { done <- err })
	}
	for range n {
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
}
