// Package client is what an engine rank in Go links to talk to its sidecar: one
// session, the descriptors of its buffers, and what came, to be polled between steps.
//
// Nothing here blocks an engine's loop but Dial and Close. The client itself says
// Held for every decision as it arrives, in order, so Through(n) from the sidecar
// means that every rank's client has decisions 1 to n ready for Decisions(n).
package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/batonkv/baton/proto/codec"
	enginev1 "github.com/batonkv/baton/proto/engine/v1"
	"github.com/batonkv/baton/proto/errs"
	"github.com/batonkv/baton/proto/pump"
	"github.com/batonkv/baton/sidecar/handoff"
)

const (
	sendQueue = 4096
	// maxWaiting bounds what an engine may leave unpolled; more ends the session.
	maxWaiting = 1 << 16
	// closeGrace is how long Close waits for the sidecar to read what is queued.
	closeGrace = time.Second
)

// Config says where the sidecar is and what the rank attaches.
type Config struct {
	Dir    string // run directory of the sidecar
	Attach handoff.Attach
	Files  []int // one descriptor per Attach.Buffers entry, kept by the caller
}

// Check reports a configuration that cannot work.
func (c Config) Check() error {
	if len(c.Files) != len(c.Attach.Buffers) {
		return fmt.Errorf("%w: %d files for %d buffers: want one each", handoff.ErrAttach, len(c.Files), len(c.Attach.Buffers))
	}
	_, err := codec.EncodeFromEngine(c.Attach)
	return err
}

// Client is one session. Safe for concurrent use.
type Client struct {
	conn   *grpc.ClientConn
	stream enginev1.Engine_SessionClient
	cancel context.CancelFunc
	out    *pump.Pump[*enginev1.FromEngine]
	wake   chan struct{}
	wg     sync.WaitGroup

	mu        sync.Mutex // guards:
	ready     []handoff.ToEngine
	decisions []handoff.Decision // held and not taken, in order
	last      uint64             // decisions 1 to last have arrived
	err       error              // why the session ended
}

// Dial attaches: it sends Attach, the descriptors under the key of Attached, and
// BuffersReady, and returns when a mover maps the buffers. A refusal, a Failed without
// a label, or the end of the session is the error, with its sentinel. Ending ctx later
// changes nothing.
func Dial(ctx context.Context, cfg Config) (*Client, error) {
	if err := cfg.Check(); err != nil {
		return nil, err
	}
	conn, err := dialGRPC(cfg.Dir)
	if err != nil {
		return nil, err
	}
	session, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, cancel)
	c := &Client{conn: conn, cancel: cancel, out: pump.New[*enginev1.FromEngine](sendQueue),
		wake: make(chan struct{}, 1), last: cfg.Attach.Held}
	if err = c.attach(ctx, session, cfg); err == nil && !stop() {
		err = ctx.Err()
	}
	if err == nil {
		c.wg.Go(c.read)
		return c, nil
	}
	if ctx.Err() != nil && !errs.Spoken(err) {
		err = fmt.Errorf("attach to %s: %w: %w", cfg.Dir, ctx.Err(), err)
	}
	c.end(err)
	c.wg.Wait()
	conn.Close()
	return nil, err
}

// attach opens the stream and goes on to the first MoverStarted.
func (c *Client) attach(ctx, session context.Context, cfg Config) error {
	p, err := codec.EncodeFromEngine(cfg.Attach)
	if err != nil {
		return err
	}
	if c.stream, err = enginev1.NewEngineClient(c.conn).Session(session, grpc.WaitForReady(false)); err != nil {
		return lost(err)
	}
	// A failed Send says only io.EOF; the reason comes from Recv.
	if err := c.stream.Send(p); err != nil && err != io.EOF {
		return lost(err)
	}
	m, err := c.receive()
	if err != nil {
		return err
	}
	a, ok := m.(handoff.Attached)
	if !ok {
		return fmt.Errorf("%w: the sidecar answered attach with %T", handoff.ErrEngine, m)
	}
	if err := sendFiles(ctx, cfg, a.FDKey); err != nil {
		return err
	}
	c.wg.Go(c.write)
	c.wg.Go(func() {
		select {
		case <-c.out.Broken(): // also by a Send that found the queue full
			c.end(c.out.Cause())
		case <-session.Done():
		}
	})
	if err := c.Send(handoff.BuffersReady{}); err != nil {
		return err
	}
	for {
		m, err := c.receive()
		if err != nil {
			return err
		}
		if f, ok := m.(handoff.Failed); ok && f.Label == "" {
			return f.Err
		}
		if err := c.take(m); err != nil {
			return err
		}
		if _, ok := m.(handoff.MoverStarted); ok {
			return nil
		}
	}
}

func (c *Client) receive() (handoff.ToEngine, error) {
	p, err := c.stream.Recv()
	if err != nil {
		return nil, lost(err)
	}
	return codec.DecodeToEngine(p)
}

// lost names the end of a stream: the sidecar's own word if it said one.
func lost(err error) error {
	if err == io.EOF {
		return fmt.Errorf("%w: the sidecar closed the session", handoff.ErrPeer)
	}
	err = errs.FromStatus(err)
	if errs.Spoken(err) {
		return err
	}
	return fmt.Errorf("%w: session to the sidecar: %w", handoff.ErrPeer, err)
}

// take stores what arrived, and answers a decision with Held.
func (c *Client) take(m handoff.ToEngine) error {
	d, isDecision := m.(handoff.Decision)
	c.mu.Lock()
	switch {
	case isDecision && d.N <= c.last:
		// Sent again after a leader's restart: held already.
	case isDecision && d.N != c.last+1:
		c.mu.Unlock()
		return fmt.Errorf("%w: decision %d after %d: one is missing", handoff.ErrEngine, d.N, c.last)
	case len(c.ready)+len(c.decisions) >= maxWaiting:
		c.mu.Unlock()
		return fmt.Errorf("%w: %d messages wait: the engine does not poll", handoff.ErrEngine, maxWaiting)
	case isDecision:
		c.decisions = append(c.decisions, d)
		c.last = d.N
	default:
		c.ready = append(c.ready, m)
	}
	last := c.last
	c.mu.Unlock()
	c.ring()
	if isDecision {
		return c.Send(handoff.Held{N: last})
	}
	return nil
}

func (c *Client) ring() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

func (c *Client) read() {
	for {
		m, err := c.receive()
		if err == nil {
			err = c.take(m)
		}
		if err != nil {
			c.end(err)
			return
		}
	}
}

// write is the one goroutine that sends on the stream.
func (c *Client) write() {
	err := c.out.Run(c.stream.Send)
	switch {
	case err == nil:
		_ = c.stream.CloseSend()
	case errors.Is(err, io.EOF): // the reader hears why
	default:
		c.end(err)
	}
}

// end closes the session for the first reason given.
func (c *Client) end(err error) {
	c.mu.Lock()
	if c.err == nil {
		c.err = err
	}
	err = c.err
	c.mu.Unlock()
	c.out.Break(err)
	c.cancel()
	c.ring()
}

// Send queues m and never blocks; m's slices may be reused. ErrBound refuses m alone;
// a full queue ends the session.
func (c *Client) Send(m handoff.FromEngine) error {
	p, err := codec.EncodeFromEngine(m)
	if err != nil {
		return err
	}
	return c.out.Send(p)
}

// Poll appends what is ready to dst, in order of arrival, all but decisions. It never
// blocks. MoverStarted is among it: the engine keeps a pidfd of every mover.
func (c *Client) Poll(dst []handoff.ToEngine) []handoff.ToEngine {
	c.mu.Lock()
	defer c.mu.Unlock()
	dst = append(dst, c.ready...)
	clear(c.ready)
	c.ready = c.ready[:0]
	return dst
}

// Decisions takes the decisions that are held and not yet taken, in order, up to and
// with number through. The caller owns the result.
func (c *Client) Decisions(through uint64) []handoff.Decision {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := 0
	for n < len(c.decisions) && c.decisions[n].N <= through {
		n++
	}
	if n == 0 {
		return nil
	}
	taken := c.decisions[:n:n]
	c.decisions = c.decisions[n:]
	return taken
}

// Wake receives a value after something arrived, or after the session ended.
func (c *Client) Wake() <-chan struct{} { return c.wake }

// Err is why the session ended, nil while it lives. What arrived before stays for
// Poll and Decisions.
func (c *Client) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Close sends what is queued, ends the session and waits for its goroutines. A sidecar
// that does not read is given a second.
func (c *Client) Close() error {
	c.mu.Lock()
	if c.err == nil {
		c.err = pump.ErrClosed
	}
	c.mu.Unlock()
	c.out.Close(nil)
	grace := time.AfterFunc(closeGrace, c.cancel)
	c.wg.Wait()
	grace.Stop()
	c.end(pump.ErrClosed)
	return c.conn.Close()
}
