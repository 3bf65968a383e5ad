package plane

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/batonkv/baton/plugins/adapter/dynamo/wire"
	"github.com/batonkv/baton/sidecar/handoff"
)

// maxPending bounds the requests on one subject that have come and are not looked at yet, beside
// their bytes; what is beyond it is dropped.
const maxPending = 1024

// flushWithin bounds the wait for NATS to hear.
const flushWithin = time.Second

// overNATS has the server log what happens to its connection.
func (s *Server) overNATS(nc *nats.Conn) {
	nc.SetErrorHandler(func(_ *nats.Conn, sub *nats.Subscription, err error) {
		subject := ""
		if sub != nil {
			subject = sub.Subject
		}
		s.cfg.Log.Warn("calls of Dynamo clients over NATS may be lost", "subject", subject, "err", err)
	})
}

// subscribe has the calls of a path come, once. The caller holds mu.
func (s *Server) subscribe(path string) error {
	if s.cfg.NATS == nil || s.subs[path] != nil {
		return nil
	}
	sub, err := s.cfg.NATS.Subscribe(path, s.requested)
	if err == nil {
		err = sub.SetPendingLimits(maxPending, int(s.cfg.Bytes)+wire.MaxMessage)
	}
	if err != nil {
		return fmt.Errorf("subscribe to %q for Dynamo's calls: %w", path, err)
	}
	s.subs[path] = sub
	s.flush()
	return nil
}

// flush has NATS know what was said, if it answers: who is told of a path finds it served.
func (s *Server) flush() {
	if s.cfg.NATS.IsConnected() {
		_ = s.cfg.NATS.FlushTimeout(flushWithin) // else it is said when NATS is back
	}
}

// leaveNATS ends the connection; nobody calls into what is left of it.
func (s *Server) leaveNATS() {
	if s.cfg.NATS == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for path := range s.subs {
		s.unsubscribe(path)
	}
	s.flush()
	s.cfg.NATS.Close()
}

// unsubscribe undoes it. The caller holds mu.
func (s *Server) unsubscribe(path string) {
	if sub := s.subs[path]; sub != nil {
		delete(s.subs, path)
		_ = sub.Unsubscribe() // it fails when the connection has ended, and with it this
	}
}

// requested answers one request once.
func (s *Server) requested(m *nats.Msg) {
	if m.Reply == "" {
		s.cfg.Log.Debug("a message that asks for no answer is no call", "subject", m.Subject)
		return
	}
	if !s.enter() {
		s.acknowledge(m, Unavailable+"draining")
		return
	}
	defer s.accept.Done()
	bytes := &held{of: &s.bytes}
	var run func()
	refusal := fmt.Sprintf("%srequests have %d bytes together", Overloaded, s.cfg.Bytes)
	if bytes.more(int64(len(m.Data))) {
		t, err := wire.DecodeTwoPart(m.Data)
		if err == nil {
			run, refusal = s.admit(wire.Frame{Path: m.Subject, Control: t.Header, Body: t.Body}, netip.Addr{}, bytes)
		} else {
			refusal = Unavailable + err.Error()
		}
	}
	if run == nil {
		bytes.back()
	}
	s.acknowledge(m, refusal)
	if run != nil {
		s.conns.Go(run)
	}
}

// enter keeps Close waiting, by accept, until the request is answered.
func (s *Server) enter() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.draining {
		s.accept.Add(1)
	}
	return !s.draining
}

func (s *Server) acknowledge(m *nats.Msg, refusal string) {
	if err := m.Respond([]byte(refusal[:min(len(refusal), wire.MaxAck)])); err != nil {
		s.cfg.Log.Warn("a Dynamo client's request was not acknowledged", "subject", m.Subject, "err", err)
	}
}

// OverNATS has a client call targets that have no address over a connection, which is the
// client's from then on; nil: it calls none. home is the ip that workers call back when the
// client listens on every address.
func OverNATS(nc *nats.Conn, home netip.Addr) Option {
	return func(c *Client) { c.nats, c.told = nc, home }
}

// requestNATS is request over NATS.
func (c *Client) requestNATS(ctx context.Context, t Target, id, subject string, body []byte) error {
	if c.nats == nil {
		return fmt.Errorf("%w: %s is called over NATS, which this process is not: want request-plane: nats", handoff.ErrPeer, t.Path)
	}
	home := c.home
	if home.Addr().IsUnspecified() {
		home = netip.AddrPortFrom(c.told, home.Port())
	}
	text, err := control(id, t.Codec, home, subject)
	if err != nil {
		return err
	}
	m := nats.NewMsg(t.Path)
	m.Header.Set("request-id", id)
	m.Data = wire.AppendTwoPart(nil, wire.TwoPart{Header: text, Body: body})
	within, cancel := context.WithTimeout(ctx, ackWithin)
	defer cancel()
	ack, err := c.nats.RequestMsgWithContext(within, m)
	switch {
	case err == nil:
		return refused(t.Path, string(ack.Data))
	case within.Err() != nil:
		return fmt.Errorf("%w: worker at %s does not acknowledge: %w", handoff.ErrDeadline, t.Path, within.Err())
	case errors.Is(err, nats.ErrMaxPayload):
		return fmt.Errorf("%w: request of %d bytes, NATS takes at most %d", handoff.ErrBound, len(m.Data), c.nats.MaxPayload())
	}
	return fmt.Errorf("%w: worker at %s: %w", handoff.ErrPeer, t.Path, err)
}
