package tcp

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/batonkv/baton/transfer"
	"github.com/batonkv/baton/transfer/staged"
)

const (
	dialing = 10 * time.Second
	// depth is how many requests a connection has under way, so that the next chunk
	// follows the last one without a round trip.
	depth = 2
	// maxWaiting bounds the fetches of one peer, and maxPeers the peers: one that starts
	// anew has another address.
	maxWaiting = 4096
	maxPeers   = 256
)

// fetch is one Fetch until its end.
type fetch struct {
	staged.Fetching
	into   []byte
	finish func(error)
	taken  atomic.Bool // by a connection, or by cancel
}

// cancel ends a fetch that no connection has taken. One that was asked for ends with its
// bytes, or with its connection.
func (f *fetch) cancel() {
	if f.taken.CompareAndSwap(false, true) {
		f.finish(transfer.ErrCanceled)
	}
}

// peer is the other end's Wire: its fetches wait for one of its connections.
type peer struct {
	w       *Wire
	addr    string
	waiting chan *fetch   // filled under the Wire's mutex
	left    chan struct{} // closed when nobody fetches from it any more

	mu     sync.Mutex
	lines  map[net.Conn]struct{}
	closed bool
}

// Fetch implements staged.Wire.
func (w *Wire) Fetch(f staged.Fetching, done func(error)) (cancel func()) {
	none := func() {}
	into, err := w.Chunk(f.Chunk, f.Bytes)
	if err != nil {
		done(err)
		return none
	}
	k := &fetch{Fetching: f, into: into, finish: done}
	if err := w.enqueue(k); err != nil {
		done(err)
		return none
	}
	return k.cancel
}

// enqueue has a fetch wait for a connection of its peer. A peer that stops, or that is
// forgotten, is told so under the same mutex, so that none waits for ever.
func (w *Wire) enqueue(f *fetch) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stopped {
		return transfer.ErrClosed
	}
	p := w.peers[f.Addr]
	if p == nil {
		if p = w.meet(f.Addr); p == nil {
			return fmt.Errorf("%w: %d peers have fetches or connections open, and %s is one more", transfer.ErrFull, maxPeers, f.Addr)
		}
	}
	select {
	case p.waiting <- f:
		return nil
	default:
		return fmt.Errorf("%w: %d fetches wait for %s", transfer.ErrFull, maxWaiting, f.Addr)
	}
}

// meet makes a peer; its connections come when they are needed. When there are maxPeers, those
// without work and connection are forgotten; nil: each has some. Caller holds mu.
func (w *Wire) meet(addr string) *peer {
	if len(w.peers) >= maxPeers {
		for a, p := range w.peers {
			if p.idle() {
				close(p.left)
				delete(w.peers, a)
			}
		}
	}
	if len(w.peers) >= maxPeers {
		return nil
	}
	p := &peer{w: w, addr: addr, waiting: make(chan *fetch, maxWaiting), left: make(chan struct{}), lines: map[net.Conn]struct{}{}}
	w.peers[addr] = p
	for range w.cfg.Conns {
		w.work.Go(p.run)
	}
	return p
}

// idle reports whether p has no connection, and no fetch that waits for one. Who dials
// meanwhile for a fetch ends that, and serves the connection until it breaks.
func (p *peer) idle() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.lines) == 0 && len(p.waiting) == 0
}

// run serves one connection after the other, until Close, or until the peer is forgotten.
func (p *peer) run() {
	for {
		select {
		case <-p.left:
			return
		case <-p.w.ctx.Done():
			p.drop(transfer.ErrClosed)
			return
		case f := <-p.waiting:
			if !f.taken.CompareAndSwap(false, true) {
				continue
			}
			c, err := p.dial()
			if err != nil {
				p.settle(f, err)
				p.w.pause() // what waits is asked of the next connection
				continue
			}
			p.use(c, f)
		}
	}
}

// drop ends what waits.
func (p *peer) drop(err error) {
	for {
		select {
		case f := <-p.waiting:
			if f.taken.CompareAndSwap(false, true) {
				p.settle(f, err)
			}
		default:
			return
		}
	}
}

func (p *peer) dial() (net.Conn, error) {
	raw, err := (&net.Dialer{Timeout: dialing}).DialContext(p.w.ctx, "tcp", p.addr)
	if err != nil {
		return nil, fmt.Errorf("dial %s: %w", p.addr, err)
	}
	c, err := p.w.greet(p.w.ctx, raw, true, handshake)
	if err != nil {
		raw.Close()
		return nil, fmt.Errorf("dial %s: %w", p.addr, err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		c.Close()
		return nil, transfer.ErrClosed
	}
	p.lines[c] = struct{}{}
	return c, nil
}

// use asks for first, and for what waits, until the connection breaks.
func (p *peer) use(c net.Conn, first *fetch) {
	asked := make(chan *fetch, depth-1)
	broken := make(chan struct{})
	var why error // valid once broken is closed
	var reading sync.WaitGroup
	reading.Go(func() {
		defer close(broken)
		why = p.read(c, asked)
		c.Close()
	})
	var b []byte
	for f := first; f != nil; f = p.next(broken) {
		select {
		case asked <- f: // before its request: the reader knows whose bytes come
		case <-broken:
			p.settle(f, why)
			continue
		}
		b = ask{f.Of, f.Offer, f.Bytes}.append(b[:0])
		_, _ = c.Write(b) // the reader sees the same
	}
	c.Close()
	close(asked)
	reading.Wait()
	for f := range asked { // put there when nobody read any more
		p.settle(f, why)
	}
	p.mu.Lock()
	delete(p.lines, c)
	p.mu.Unlock()
}

// next waits for a fetch; nil: the connection is of no more use.
func (p *peer) next(broken <-chan struct{}) *fetch {
	for {
		select {
		case <-broken:
			return nil
		case <-p.w.ctx.Done():
			return nil
		default:
		}
		select {
		case f := <-p.waiting:
			if f.taken.CompareAndSwap(false, true) {
				return f
			}
		case <-broken:
		case <-p.w.ctx.Done():
		}
	}
}

// read ends the fetches that were asked for, in order, until one fails.
func (p *peer) read(c net.Conn, asked <-chan *fetch) error {
	r := bufio.NewReaderSize(c, 16<<10)
	for f := range asked {
		refused, err := readAnswer(r, f.Bytes)
		if err == nil && refused == nil {
			_, err = io.ReadFull(r, f.into)
		}
		if err != nil {
			p.settle(f, err)
			return err
		}
		p.settle(f, refused)
	}
	return io.EOF
}

func (p *peer) settle(f *fetch, err error) {
	switch {
	case err == nil:
	case p.w.ctx.Err() != nil && !errors.Is(err, transfer.ErrClosed):
		err = fmt.Errorf("%w: %w", transfer.ErrClosed, err)
	case !errors.Is(err, transfer.ErrPeer) && !errors.Is(err, transfer.ErrClosed):
		err = fmt.Errorf("%w: %w", transfer.ErrPeer, err)
	}
	f.finish(err)
}

func (p *peer) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for c := range p.lines {
		c.Close()
	}
}
