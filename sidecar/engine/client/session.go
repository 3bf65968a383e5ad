package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"

	"google.golang.org/grpc"

	"github.com/batonkv/baton/internal/pidfd"
	"github.com/batonkv/baton/proto/codec"
	enginev1 "github.com/batonkv/baton/proto/engine/v1"
	"github.com/batonkv/baton/proto/errs"
	"github.com/batonkv/baton/proto/pump"
	"github.com/batonkv/baton/sidecar/handoff"
)

// session is one stream to a sidecar.
type session struct {
	conn   *grpc.ClientConn
	stream enginev1.Engine_SessionClient
	cancel context.CancelFunc
	out    *pump.Pump[*enginev1.FromEngine]
	wg     sync.WaitGroup

	mu  sync.Mutex // guards:
	why error      // the first reason of its end
}

// attach opens a session and goes on to the first MoverStarted. What the engine sends
// from the instant on at which its state was taken waits in the session's queue.
func (c *Client) attach(ctx context.Context) (*session, error) {
	conn, err := dialGRPC(c.cfg.Dir)
	if err != nil {
		return nil, err
	}
	s := &session{conn: conn, out: pump.New[*enginev1.FromEngine](sendQueue)}
	var life context.Context
	life, s.cancel = context.WithCancel(c.life)
	stop := context.AfterFunc(ctx, s.cancel)
	c.mu.Lock()
	state, rest := c.rec.state(c.cfg.Attach), c.rec.afterwards()
	c.ses = s
	c.telling.hush()
	c.mu.Unlock()
	if err = s.introduce(ctx, life, c, state, rest); err == nil && !stop() {
		err = ctx.Err()
	}
	c.mu.Lock()
	if err == nil && c.err != nil {
		err = c.err // closed meanwhile
	}
	if err == nil {
		c.away = nil
		c.mu.Unlock()
		c.ring()
		return s, nil
	}
	c.ses = nil
	c.mu.Unlock()
	s.end(err)
	s.close()
	if ctx.Err() != nil && !errs.Spoken(err) {
		err = fmt.Errorf("attach to %s: %w: %w", c.cfg.Dir, ctx.Err(), err)
	}
	return nil, err
}

// introduce says who this rank is and what it holds, and the rest once it is attached.
// Messages go out directly: nothing else may come before the sidecar has mapped the buffers.
func (s *session) introduce(ctx, life context.Context, c *Client, state handoff.Attach, rest []handoff.FromEngine) error {
	p, err := codec.EncodeFromEngine(state)
	if err != nil {
		return err
	}
	if s.stream, err = enginev1.NewEngineClient(s.conn).Session(life, grpc.WaitForReady(false)); err != nil {
		return lost(err)
	}
	// A failed Send says only io.EOF; the reason comes from Recv.
	if err := s.stream.Send(p); err != nil && err != io.EOF {
		return lost(err)
	}
	m, err := s.answer()
	if err != nil {
		return err
	}
	a, ok := m.(handoff.Attached)
	if !ok {
		return fmt.Errorf("%w: the sidecar answered attach with %T", handoff.ErrEngine, m)
	}
	if err := c.former(ctx, a.Incarnation); err != nil {
		return err
	}
	if err := sendFiles(ctx, c.cfg, a.FDKey); err != nil {
		return err
	}
	if err := s.say(handoff.BuffersReady{}); err != nil {
		return err
	}
	for mapped := false; !mapped; {
		m, err := s.answer()
		if err != nil {
			return err
		}
		if err := c.take(s, m); err != nil {
			return err
		}
		_, mapped = m.(handoff.MoverStarted)
	}
	for _, m := range rest {
		if err := s.say(m); err != nil {
			return err
		}
	}
	return nil
}

// say sends one message while no writer runs.
func (s *session) say(m handoff.FromEngine) error {
	p, err := codec.EncodeFromEngine(m)
	if err != nil {
		return err
	}
	if err := s.stream.Send(p); err != nil && err != io.EOF {
		return lost(err)
	}
	return nil
}

func (s *session) receive() (handoff.ToEngine, error) {
	p, err := s.stream.Recv()
	if err != nil {
		return nil, lost(err)
	}
	return codec.DecodeToEngine(p)
}

// answer is a message while the rank attaches: a failure of the rank as a whole ends that.
func (s *session) answer() (handoff.ToEngine, error) {
	m, err := s.receive()
	if f, ok := m.(handoff.Failed); ok && f.Label == "" {
		return nil, f.Err
	}
	return m, err
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

// serve passes messages on until the session ends, and returns why.
func (s *session) serve(c *Client) error {
	s.wg.Go(func() { s.write(c) })
	s.wg.Go(func() { // a queue that overflowed, or a writer that hangs in a write
		<-s.out.Broken()
		if why := s.out.Cause(); !errors.Is(why, io.EOF) {
			s.end(why)
		}
	})
	for {
		m, err := s.receive()
		if err == nil {
			err = c.take(s, m)
		}
		if err != nil {
			return s.end(err)
		}
	}
}

// write is the one goroutine that sends on the stream.
func (s *session) write(c *Client) {
	err := s.out.Run(func(p *enginev1.FromEngine) error {
		err := s.stream.Send(p)
		if err == nil && p.GetBlockEvents() != nil {
			c.told(s)
		}
		return err
	})
	switch {
	case err == nil:
		_ = s.stream.CloseSend()
	case errors.Is(err, io.EOF): // the reader hears why
	default:
		s.end(lost(err))
	}
}

// end cuts the session and returns the first reason given.
func (s *session) end(err error) error {
	s.mu.Lock()
	if s.why == nil {
		s.why = err
	}
	err = s.why
	s.mu.Unlock()
	s.out.Break(err)
	s.cancel()
	return err
}

// close waits for the session's goroutines.
func (s *session) close() {
	s.cancel()
	s.wg.Wait()
	s.conn.Close()
}

// take stores what arrived on s, and answers a decision with Held.
func (c *Client) take(s *session, m handoff.ToEngine) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch m := m.(type) {
	case handoff.MoverStarted:
		if err := c.hold(int(m.PID)); err != nil {
			return err
		}
	case handoff.TellBlocks:
		c.asked(m)
		return nil
	case handoff.Decision:
		if c.rec.waiting() >= maxHeld {
			return fmt.Errorf("%w: %d decisions wait", errUnpolled, maxHeld)
		}
		if err := c.rec.holds(m); err != nil {
			return err
		}
		c.ring()
		p, err := codec.EncodeFromEngine(handoff.Held{N: c.rec.held})
		if err == nil && c.err == nil { // else Close has said the last word
			err = s.out.Send(p)
		}
		return err
	}
	if !c.rec.hears(m) {
		return nil
	}
	if len(c.ready) >= maxWaiting {
		return fmt.Errorf("%w: %d messages wait", errUnpolled, maxWaiting)
	}
	c.ready = append(c.ready, m)
	c.ring()
	return nil
}

// hold takes hold of a mover that maps the buffers. One in this process ends with it.
func (c *Client) hold(pid int) error {
	c.movers = slices.DeleteFunc(c.movers, func(p *pidfd.Process) bool {
		over := p.Exited()
		if over {
			p.Close()
		}
		return over
	})
	if pid == os.Getpid() {
		return nil
	}
	p, err := pidfd.Open(pid)
	switch {
	case errors.Is(err, pidfd.ErrGone):
		return nil
	case err != nil:
		return fmt.Errorf("%w: hold on to the mover: %w", handoff.ErrAttach, err)
	}
	c.movers = append(c.movers, p)
	return nil
}

// former returns once no mover of another sidecar process than now can touch the
// buffers. Their exit is the proof, not that of their sidecar.
func (c *Client) former(ctx context.Context, now handoff.Incarnation) error {
	if now != c.incarnation {
		for _, p := range c.movers {
			if err := p.Wait(ctx); err != nil {
				return fmt.Errorf("%w: the former sidecar's mover, pid %d, has not exited: kill it if it hangs: %w", handoff.ErrPeer, p.PID(), err)
			}
		}
		c.letGo()
	}
	c.incarnation = now
	return nil
}

func (c *Client) letGo() {
	for _, p := range c.movers {
		p.Close()
	}
	c.movers = nil
}
