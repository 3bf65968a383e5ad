package nixl

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"github.com/batonkv/baton/transfer"
	"github.com/batonkv/baton/transfer/staged"
)

const (
	dialing    = 10 * time.Second
	welcoming  = 10 * time.Second // for the answer to a hello
	maxWaiting = 4096             // fetches of one peer
	maxPeers   = 256
)

// peerKey names the other end's Wire: one that starts anew is another.
type peerKey struct {
	addr string
	of   staged.Incarnation
}

// peer has the fetches of one peer, which wait for its session. It exists while a fetch
// waits or the session stands.
type peer struct {
	peerKey
	w       *Wire
	waiting chan *fetch // filled under the Wire's mutex
}

// fetch is one Fetch until its end.
type fetch struct {
	staged.Fetching
	finish   func(error)
	state    atomic.Int32
	canceled atomic.Bool
	from     int32 // the peer's chunk, once it has answered
}

// The states of a fetch.
const (
	idle    = iota // nothing touches the chunk
	reading        // a read was posted: nobody but who has seen its end may end the fetch
	over           // finish was called
)

// cancel ends a fetch that is not being read, else when that has ended.
func (f *fetch) cancel() {
	f.canceled.Store(true)
	if f.state.CompareAndSwap(idle, over) {
		f.finish(transfer.ErrCanceled)
	}
}

// begin says that a read will be posted; false: the fetch was cancelled.
func (f *fetch) begin() bool { return f.state.CompareAndSwap(idle, reading) }

// rest says that the read has ended; false: the fetch was cancelled meanwhile.
func (f *fetch) rest() bool {
	f.state.Store(idle)
	if f.canceled.Load() {
		f.cancel()
		return false
	}
	return true
}

// end ends a fetch whose read has ended, or was never posted.
func (f *fetch) end(err error) {
	if f.state.Swap(over) != over {
		f.finish(err)
	}
}

// Fetch implements staged.Wire.
func (w *Wire) Fetch(f staged.Fetching, done func(error)) (cancel func()) {
	none := func() {}
	if _, err := w.Chunk(f.Chunk, f.Bytes); err != nil {
		done(err)
		return none
	}
	k := &fetch{Fetching: f, finish: done}
	if err := w.enqueue(k); err != nil {
		done(err)
		return none
	}
	return k.cancel
}

// enqueue has a fetch wait for a session with its peer.
func (w *Wire) enqueue(f *fetch) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stopped {
		return transfer.ErrClosed
	}
	key := peerKey{f.Addr, f.Of}
	p := w.peers[key]
	if p == nil {
		if len(w.peers) >= maxPeers {
			return fmt.Errorf("%w: %d peers have sessions open, and %s is one more", transfer.ErrFull, maxPeers, f.Addr)
		}
		p = &peer{peerKey: key, w: w, waiting: make(chan *fetch, maxWaiting)}
		w.peers[key] = p
		p.waiting <- f
		w.work.Go(p.run)
		return nil
	}
	select {
	case p.waiting <- f:
		return nil
	default:
		return fmt.Errorf("%w: %d fetches wait for %s", transfer.ErrFull, maxWaiting, f.Addr)
	}
}

// run has one session after the other, as long as fetches wait.
func (p *peer) run() {
	for {
		f := p.next()
		if f == nil {
			return
		}
		s, err := p.open()
		if err == nil {
			err = s.run(f)
		} else {
			p.settle(f, err)
		}
		p.drop(err)
	}
}

// next takes what waits; nil: nothing does, and the peer is forgotten.
func (p *peer) next() *fetch {
	p.w.mu.Lock()
	defer p.w.mu.Unlock()
	for {
		select {
		case f := <-p.waiting:
			if f.state.Load() == idle {
				return f
			}
		default:
			delete(p.w.peers, p.peerKey)
			return nil
		}
	}
}

// drop ends what waits for a session that failed.
func (p *peer) drop(err error) {
	for {
		select {
		case f := <-p.waiting:
			p.settle(f, err)
		default:
			return
		}
	}
}

func (p *peer) settle(f *fetch, err error) {
	if err != nil && p.w.ctx.Err() != nil && !errors.Is(err, transfer.ErrClosed) {
		err = fmt.Errorf("%w: %w", transfer.ErrClosed, err)
	}
	f.end(err)
}

// failed is an error that is the peer's.
func (p *peer) failed(err error) error {
	if errors.Is(err, transfer.ErrPeer) {
		return err
	}
	return fmt.Errorf("%w: %s: %w", transfer.ErrPeer, p.addr, err)
}

// open dials the peer and has an agent for it.
func (p *peer) open() (*session, error) {
	c, err := p.dial()
	if err != nil {
		return nil, p.failed(err)
	}
	forget := context.AfterFunc(p.w.ctx, func() { c.Close() })
	m, err := p.greet(c)
	var a *agent
	if err == nil {
		a, err = p.w.agentFor(p.of)
	}
	if err == nil {
		if err = a.connect(agentName(p.of), m, p.w.reach()); err != nil {
			a.end(nil)
			err = p.failed(err)
		}
	}
	if err != nil {
		forget()
		c.Close()
		return nil, err
	}
	return newSession(p, c, a, m, forget), nil
}

func (p *peer) dial() (net.Conn, error) {
	ctx, stop := context.WithTimeout(p.w.ctx, dialing)
	defer stop()
	if t := p.w.cfg.Client; t != nil {
		return (&tls.Dialer{Config: t}).DialContext(ctx, "tcp", p.addr)
	}
	return (&net.Dialer{}).DialContext(ctx, "tcp", p.addr)
}

// greet asks for what it takes to read from the peer.
func (p *peer) greet(c net.Conn) (welcome, error) {
	_ = c.SetDeadline(time.Now().Add(welcoming))
	if _, err := c.Write(appendHello(nil, p.of)); err != nil {
		return welcome{}, p.failed(err)
	}
	m, err := readWelcome(c)
	if err == nil {
		err = c.SetDeadline(time.Time{})
	}
	if err != nil {
		return welcome{}, p.failed(err)
	}
	return m, nil
}

// agentFor makes an agent for reads from one peer; its name never repeats.
func (w *Wire) agentFor(of staged.Incarnation) (*agent, error) {
	w.mu.Lock()
	w.agents++
	n := w.agents
	w.mu.Unlock()
	return w.lib.agent(fmt.Sprintf("%s-%d-reads-%s", agentName(w.cfg.Wire), n, agentName(of)), w.cfg, false)
}
