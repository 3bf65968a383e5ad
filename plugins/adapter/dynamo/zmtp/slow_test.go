package zmtp

import (
	"bufio"
	"context"
	"encoding/binary"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// join gives p a subscriber of everything, to whom nothing is written yet.
func (p *Pub) join(conn net.Conn) *peer {
	c := newPeer(conn, &p.all)
	c.topics[""] = 1
	p.keep(c)
	return c
}

// byHand is a publisher with a subscriber of everything, whose queue goes to the pipe.
func byHand(t *testing.T) (*Pub, *peer, net.Conn) {
	mine, theirs := net.Pipe()
	p := &Pub{done: make(chan struct{}), room: make(chan struct{}, 1)}
	p.peers = map[*peer]bool{}
	c := p.join(mine)
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
		time.Sleep(regain * patience)
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

// TestSlowInTurn: subscribers that stop reading one after another cost no more than one of them
// does, and what is spent comes back with time.
func TestSlowInTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, _, _ := byHand(t)
		fill := func() (waited time.Duration) {
			for range queue + 2 {
				began := time.Now()
				p.Send(t.Context(), []byte("m"))
				synctest.Wait()
				waited += time.Since(began)
			}
			return waited
		}
		if got := fill(); got != patience {
			t.Errorf("for the first: %v", got)
		}
		p.join(nil)
		if got := fill(); got != 0 {
			t.Errorf("for another, at once: %v", got)
		}
		time.Sleep(regain * patience / 2)
		p.join(nil)
		if got := fill(); got != patience/2 {
			t.Errorf("for a third, when half of it is back: %v", got)
		}
		time.Sleep(10 * regain * patience)
		p.join(nil)
		if got := fill(); got != patience {
			t.Errorf("for a fourth: %v", got)
		}
	})
}

// TestBytesOfAll: what many subscribers have queued together is bounded; who reads has its share
// of it, and what one had that is gone is free.
func TestBytesOfAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &Pub{done: make(chan struct{}), room: make(chan struct{}, 1), peers: map[*peer]bool{}}
		message := make([]byte, 1<<20)
		var all []*peer
		for n := range 8 {
			mine, theirs := net.Pipe()
			defer theirs.Close()
			c := p.join(mine)
			all = append(all, c)
			for c.put(message) {
			}
			sum := int64(0)
			for _, c := range all {
				sum += c.held.Load()
			}
			if sum != p.all.held.Load() || sum > allBytes || n < 4 && c.held.Load() != queueBytes {
				t.Fatalf("%d subscribers: %d, counted as %d", n+1, sum, p.all.held.Load())
			}
		}
		for range queueBytes >> 20 { // the first reads: it gets no more than its share again
			<-all[0].out
			all[0].took(1 << 20)
		}
		for all[0].put(message) {
		}
		if got := all[0].held.Load(); got != allBytes/8 {
			t.Errorf("a reader has %d of %d", got, allBytes)
		}
		for _, c := range all {
			p.forget(c)
			if c.put(message) {
				t.Error("one that is gone is put a message")
			}
		}
		if held, peers := p.all.held.Load(), p.all.peers.Load(); held != 0 || peers != 0 {
			t.Errorf("%d bytes and %d subscribers are left", held, peers)
		}
	})
}
