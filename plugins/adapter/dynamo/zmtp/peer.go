package zmtp

import (
	"bufio"
	"bytes"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// bytesOfAll counts what the subscribers of one Pub have queued together.
type bytesOfAll struct{ held, peers atomic.Int64 }

// share is what one may have queued. Who has more already is given nothing until it has less.
func (a *bytesOfAll) share() int64 { return min(queueBytes, allBytes/max(a.peers.Load(), 1)) }

// peer is one subscriber.
type peer struct {
	conn net.Conn
	all  *bytesOfAll
	out  chan []byte
	gone chan struct{} // closes when it reads no more
	held atomic.Int64  // bytes of out

	// behind is since when it has not been without messages, from a full queue on; Send's own.
	behind time.Time

	mu     sync.Mutex // guards:
	topics map[string]int
	ended  bool // it is put nothing
}

func newPeer(conn net.Conn, all *bytesOfAll) *peer {
	return &peer{conn: conn, all: all, topics: map[string]int{}, out: make(chan []byte, queue), gone: make(chan struct{})}
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

// put queues a message; false when there is no room. An empty queue has room for any message
// that all have.
func (c *peer) put(b []byte) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	size := int64(len(b))
	if c.ended {
		return false
	}
	held, all := c.held.Add(size), c.all.held.Add(size)
	if all <= allBytes && (held == size || held <= c.all.share()) {
		select {
		case c.out <- b:
			return true
		default:
		}
	}
	c.took(size)
	return false
}

// took takes account of bytes that are queued no more.
func (c *peer) took(size int64) {
	c.held.Add(-size)
	c.all.held.Add(-size)
}

// end lets go of what is queued, once nobody writes it any more.
func (c *peer) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended = true
	c.took(c.held.Load())
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
			c.took(int64(len(b)))
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
