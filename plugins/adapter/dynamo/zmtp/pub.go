// Package zmtp is the publishing half of ZeroMQ: a PUB socket that binds, of ZMTP 3.0 with
// mechanism NULL, as any SUB socket reads it.
//
// A subscriber has a queue. One that is behind more than that is waited for, for a bounded
// time until it has caught up again; beyond it loses messages, and slows nobody. The bytes of
// all queues, and the waits for all subscribers, are bounded together. What subscribers send
// is bounded before it is read.
package zmtp

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// ErrMalformed says that a peer does not speak ZMTP 3 as a subscriber does.
var ErrMalformed = errors.New("zmtp: malformed")

// Bounds of a Pub.
const (
	maxPeers    = 256
	maxTopics   = 64  // of one subscriber
	maxTopic    = 256 // bytes
	maxFrame    = 4 << 10
	queue       = 1024     // messages that a subscriber may be behind
	queueBytes  = 64 << 20 // of them; less when many share allBytes
	allBytes    = 256 << 20
	greetWithin = 5 * time.Second
	patience    = 5 * time.Second // with a subscriber, from its full queue on until that is empty
	regain      = 6               // a second in which nobody is waited for gives a sixth of one in which somebody may be
	writeWithin = 10 * time.Second
	acceptPause = 100 * time.Millisecond
)

// Pub is a bound PUB socket. Safe for concurrent use.
type Pub struct {
	ln   net.Listener
	over sync.WaitGroup
	done chan struct{}
	room chan struct{} // holds a token after a queue got shorter
	lost atomic.Uint64
	all  bytesOfAll

	sending sync.Mutex    // held by Send; guards:
	spare   time.Duration // how long it may still wait, patience at most
	counted time.Time     // when spare was right

	mu     sync.Mutex // guards:
	peers  map[*peer]bool
	closed bool
}

// Bind listens at an ip:port; port 0 is a free one.
func Bind(listen string) (*Pub, error) {
	ln, err := net.Listen("tcp", listen)
	if err != nil {
		return nil, fmt.Errorf("listen for ZMQ subscribers: %w", err)
	}
	p := &Pub{ln: ln, done: make(chan struct{}), room: make(chan struct{}, 1), peers: map[*peer]bool{}}
	p.over.Go(p.accept)
	return p, nil
}

// Addr is where it listens.
func (p *Pub) Addr() netip.AddrPort { return p.ln.Addr().(*net.TCPAddr).AddrPort() }

// Lost is how many messages were lost to subscribers that read too slowly, each counted.
func (p *Pub) Lost() uint64 { return p.lost.Load() }

// Send gives a message to every subscriber of a topic that its first frame begins with. It
// waits for those whose queue is full, until ctx ends and as long as patience with each lasts,
// and with all: a row of slow subscribers costs no more than one.
func (p *Pub) Send(ctx context.Context, frames ...[]byte) {
	if len(frames) == 0 {
		return
	}
	var b []byte
	for n, f := range frames {
		b = appendFrame(b, f, n < len(frames)-1)
	}
	p.sending.Lock()
	defer p.sending.Unlock()
	p.mu.Lock()
	wanting := slices.Collect(maps.Keys(p.peers))
	p.mu.Unlock()
	wanting = slices.DeleteFunc(wanting, func(c *peer) bool { return !c.wants(frames[0]) || c.take(b) })
	if len(wanting) == 0 {
		return
	}
	p.spare += time.Since(p.counted) / regain
	p.wait(0)
	timer := time.NewTimer(patience)
	defer timer.Stop()
	for over := false; ; {
		over = over || p.spare <= 0
		var wait time.Duration
		if wanting, wait = p.offer(b, wanting, over); len(wanting) == 0 {
			return
		}
		timer.Reset(min(wait, p.spare))
		from := time.Now()
		select {
		case <-p.room:
		case <-timer.C:
		case <-ctx.Done():
			over = true
		case <-p.done:
			over = true
		}
		p.wait(time.Since(from))
	}
}

// wait takes account of a wait of Send.
func (p *Pub) wait(waited time.Duration) {
	p.spare, p.counted = min(p.spare, patience)-waited, time.Now()
}

// offer gives b to those that have room, and takes it for lost to those with which patience is
// over; to all others when over is set. It gives who is waited for, and how long at most.
func (p *Pub) offer(b []byte, to []*peer, over bool) (rest []*peer, wait time.Duration) {
	now := time.Now()
	wait = patience
	return slices.DeleteFunc(to, func(c *peer) bool {
		if c.take(b) || c.left() {
			return true
		}
		left := patience - now.Sub(c.behind)
		if over || left <= 0 {
			p.lost.Add(1)
			return true
		}
		wait = min(wait, left)
		return false
	}), wait
}

// Close ends it. What subscribers have not taken is lost.
func (p *Pub) Close() {
	p.mu.Lock()
	if !p.closed {
		p.closed = true
		close(p.done)
		p.ln.Close()
		for c := range p.peers {
			c.conn.Close()
		}
	}
	p.mu.Unlock()
	p.over.Wait()
}

func (p *Pub) accept() {
	for {
		conn, err := p.ln.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // out of descriptors, as a rule
			select {
			case <-time.After(acceptPause):
				continue
			case <-p.done:
				return
			}
		}
		c := newPeer(conn, &p.all)
		if !p.keep(c) {
			conn.Close()
			continue
		}
		p.over.Go(func() {
			defer p.forget(c)
			_ = c.serve(p.shorter) // a peer that goes, or is none, is nobody's fault here
		})
	}
}

func (p *Pub) keep(c *peer) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || len(p.peers) >= maxPeers {
		return false
	}
	p.peers[c] = true
	p.all.peers.Add(1)
	return true
}

func (p *Pub) forget(c *peer) {
	p.mu.Lock()
	delete(p.peers, c)
	p.mu.Unlock()
	p.all.peers.Add(-1)
	c.end()
	c.conn.Close()
	p.shorter()
}

// shorter tells who waits for room in a queue that there may be some.
func (p *Pub) shorter() {
	select {
	case p.room <- struct{}{}:
	default:
	}
}
