// Package zmtp is the publishing half of ZeroMQ: a PUB socket that binds, of ZMTP 3.0 with
// mechanism NULL, as any SUB socket reads it.
//
// A subscriber has a queue. One that is behind more than that is waited for, for a bounded
// time until it has caught up again; beyond it loses messages, and slows nobody. What
// subscribers send is bounded before it is read.
package zmtp

import (
	"bufio"
	"bytes"
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
	queueBytes  = 64 << 20 // of them
	greetWithin = 5 * time.Second
	patience    = 5 * time.Second // with a subscriber, from its full queue on until that is empty
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

	sending sync.Mutex // held by Send

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
// waits for those whose queue is full, until ctx ends and as long as patience with each lasts.
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
	timer := time.NewTimer(patience)
	defer timer.Stop()
	for over := false; ; {
		var wait time.Duration
		if wanting, wait = p.offer(b, wanting, over); len(wanting) == 0 {
			return
		}
		timer.Reset(wait)
		select {
		case <-p.room:
		case <-timer.C:
		case <-ctx.Done():
			over = true
		case <-p.done:
			over = true
		}
	}
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
		c := &peer{conn: conn, topics: map[string]int{}, out: make(chan []byte, queue), gone: make(chan struct{})}
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
	return true
}

func (p *Pub) forget(c *peer) {
	p.mu.Lock()
	delete(p.peers, c)
	p.mu.Unlock()
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

// peer is one subscriber.
type peer struct {
	conn net.Conn
	out  chan []byte
	gone chan struct{} // closes when it reads no more
	held atomic.Int64  // bytes of out

	// behind is since when it has not been without messages, from a full queue on; Send's own.
	behind time.Time

	mu     sync.Mutex // guards:
	topics map[string]int
}

// take is put for Send, which keeps account of it.
func (c *peer) take(b []byte) bool {
	if c.held.Load() == 0 {
		c.behind = time.Time{}
	}
	ok := c.put(b)
	if !ok && c.behind.IsZero() {
		c.behind = time.Now()
	}
	return ok
}

// left says whether it reads no more.
func (c *peer) left() bool {
	select {
	case <-c.gone:
		return true
	default:
		return false
	}
}

// put queues a message; false when there is no room.
func (c *peer) put(b []byte) bool {
	if c.held.Add(int64(len(b))) <= queueBytes {
		select {
		case c.out <- b:
			return true
		default:
		}
	}
	c.held.Add(-int64(len(b)))
	return false
}

func (c *peer) wants(first []byte) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for t := range c.topics {
		if bytes.HasPrefix(first, []byte(t)) {
			return true
		}
	}
	return false
}

// serve greets, then writes what is queued, and tells shorter so, while it reads what is wanted.
func (c *peer) serve(shorter func()) error {
	if err := c.conn.SetDeadline(time.Now().Add(greetWithin)); err != nil {
		return err
	}
	if _, err := c.conn.Write(greeting()); err != nil {
		return err
	}
	r := bufio.NewReaderSize(c.conn, maxFrame)
	if err := readGreeting(r); err != nil {
		return err
	}
	if _, err := c.conn.Write(appendCommand(nil, "READY", property("Socket-Type", "PUB"))); err != nil {
		return err
	}
	if err := readReady(r); err != nil {
		return err
	}
	if err := c.conn.SetDeadline(time.Time{}); err != nil {
		return err
	}
	var writing sync.WaitGroup
	writing.Go(func() { c.write(shorter) })
	err := c.read(r)
	close(c.gone)
	c.conn.Close()
	writing.Wait()
	return err
}

func (c *peer) write(shorter func()) {
	for {
		select {
		case b := <-c.out:
			c.held.Add(-int64(len(b)))
			shorter()
			err := c.conn.SetWriteDeadline(time.Now().Add(writeWithin))
			if err == nil {
				_, err = c.conn.Write(b)
			}
			if err != nil {
				c.conn.Close() // which ends read
				return
			}
		case <-c.gone:
			return
		}
	}
}

// read hears subscriptions until the connection ends.
func (c *peer) read(r *bufio.Reader) error {
	for {
		f, err := readFrame(r)
		if err != nil {
			return err
		}
		topic, on, ok := f.subscription()
		switch {
		case ok:
			if err := c.subscribe(string(topic), on); err != nil {
				return err
			}
		case f.command:
			if answer := pong(f); answer != nil && !c.put(answer) {
				return fmt.Errorf("%w: pings, and does not read", ErrMalformed)
			}
		}
	}
}

func (c *peer) subscribe(topic string, on bool) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case !on && c.topics[topic] > 1:
		c.topics[topic]--
	case !on:
		delete(c.topics, topic)
	case len(topic) > maxTopic || len(c.topics) >= maxTopics:
		return fmt.Errorf("%w: a topic of %d bytes after %d topics, at most %d and %d", ErrMalformed, len(topic), len(c.topics), maxTopic, maxTopics)
	default:
		c.topics[topic]++
	}
	return nil
}
