package peer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	grpcpeer "google.golang.org/grpc/peer"

	"github.com/batonkv/baton/proto/codec"
	"github.com/batonkv/baton/proto/errs"
	peerv1 "github.com/batonkv/baton/proto/peer/v1"
	"github.com/batonkv/baton/proto/pump"
	"github.com/batonkv/baton/sidecar/handoff"
	"github.com/batonkv/baton/transfer/choice"
)

// Session is one stream with one peer process. Safe for concurrent use.
type Session struct {
	srv    *Server
	out    *pump.Pump[*peerv1.PeerMessage]
	dialed bool
	// life is that of a dialed stream; an accepted one ends with its call.
	life context.Context
	cut  context.CancelFunc

	// Set before Up and fixed from then on.
	peer     handoff.Member
	end      choice.End
	identity string
}

func (s *Server) newSession(dialed bool) *Session {
	life, cut := context.WithCancel(context.Background())
	return &Session{srv: s, out: pump.New[*peerv1.PeerMessage](s.cfg.Limits.Queue), dialed: dialed, life: life, cut: cut}
}

// Peer is the other process. Before Up of a dialed session it is whom Dial wants.
func (s *Session) Peer() handoff.Member { return s.peer }

// End is what the peer says of how it can be read, with its host id.
func (s *Session) End() choice.End { return s.end }

// Identity is the first URI of the peer's verified certificate, "" if it has none.
func (s *Session) Identity() string { return s.identity }

// Dialed reports whether this side opened the session.
func (s *Session) Dialed() bool { return s.dialed }

// Send queues m and never blocks; m's slices may be reused. ErrBound refuses m alone.
// A full queue ends the session (pump.ErrFull): a peer that far behind is lost.
func (s *Session) Send(m handoff.PeerMessage) error {
	p, err := codec.EncodePeer(m)
	if err != nil {
		return err
	}
	if err := s.out.Send(p); err != nil {
		return err
	}
	s.srv.count("sent.", m)
	return nil
}

// Close ends the session; Down follows, with err. The peer of an accepted session hears
// err with its sentinel after what is queued. A dialed session writes what is queued
// when err is nil, and is cut otherwise.
func (s *Session) Close(err error) { s.out.Close(err) }

// identity is what the peer's certificate says.
func identity(ctx context.Context) string {
	p, ok := grpcpeer.FromContext(ctx)
	if !ok {
		return ""
	}
	info, ok := p.AuthInfo.(credentials.TLSInfo)
	if !ok || len(info.State.PeerCertificates) == 0 || len(info.State.PeerCertificates[0].URIs) == 0 {
		return ""
	}
	return info.State.PeerCertificates[0].URIs[0].String()
}

// lost names the end of a stream: the peer's own word if it said one. io.EOF, an
// ordinary end, and nil pass.
func lost(err error) error {
	if err == nil || err == io.EOF {
		return err
	}
	err = errs.FromStatus(err)
	if errs.Spoken(err) && errors.Is(err, handoff.ErrPeer) {
		return err
	}
	return fmt.Errorf("%w: %w", handoff.ErrPeer, err)
}

// handshake breaks the session unless the returned function is called in time.
func (s *Session) handshake() func() bool {
	limit := s.srv.cfg.Limits.Handshake
	return time.AfterFunc(limit, func() {
		s.out.Break(fmt.Errorf("%w: no hello within %v", handoff.ErrDeadline, limit))
		s.cut()
	}).Stop
}

type receiver interface {
	Recv() (*peerv1.PeerMessage, error)
}

// accept is the reader of an accepted session.
func (s *Session) accept(stream peerv1.Peer_SessionServer) {
	stop := s.handshake()
	err := s.greetBack(stream)
	stop()
	up := err == nil
	if up {
		err = s.receive(stream)
	}
	s.finish(err)
	if up {
		s.srv.h.Down(s, s.out.Cause())
		return
	}
	s.srv.cfg.Log.Warn("peer session refused", "identity", s.identity, "peer", s.peer.String(), "why", s.out.Cause())
}

// greetBack takes the dialer's Hello and answers it.
func (s *Session) greetBack(stream receiver) error {
	if err := s.greeted(stream); err != nil {
		return err
	}
	return s.greet(handoff.Member{})
}

func (s *Session) greet(want handoff.Member) error {
	p, err := codec.EncodeHello(codec.Hello{Self: s.srv.cfg.Self, Host: s.srv.cfg.Host, Want: want, End: s.srv.cfg.End})
	if err != nil {
		return err
	}
	return s.out.Send(p)
}

// greeted takes the other side's Hello and checks whom it speaks to, or who speaks.
func (s *Session) greeted(stream receiver) error {
	p, err := stream.Recv()
	if err != nil {
		return lost(err)
	}
	hello, err := codec.DecodeHello(p)
	if err != nil {
		return err
	}
	if !s.dialed {
		s.peer = hello.Self // whoever is refused is named
	}
	self := s.srv.cfg.Self
	switch {
	case hello.Self.Group == "" || hello.Self.Incarnation == 0:
		return fmt.Errorf("%w: hello without a group or an incarnation", handoff.ErrBound)
	case s.dialed && hello.Self != s.peer:
		return fmt.Errorf("%w: %v answers, %v is wanted", handoff.ErrPeer, hello.Self, s.peer)
	case !s.dialed && hello.Want != self:
		return fmt.Errorf("%w: this is %v, %v is wanted", handoff.ErrPeer, self, hello.Want)
	}
	s.end = hello.End
	return nil
}

// receive handles messages until the stream or the session ends.
func (s *Session) receive(stream receiver) error {
	s.srv.h.Up(s)
	for {
		p, err := stream.Recv()
		if err != nil {
			return lost(err)
		}
		m, err := codec.DecodePeer(p)
		if err != nil {
			return err
		}
		select {
		case <-s.out.Ended():
			return s.out.Cause()
		default:
		}
		s.srv.count("received.", m)
		s.srv.h.Message(s, m)
	}
}

// finish ends the session for err, unless it ended for another reason before.
func (s *Session) finish(err error) {
	if errors.Is(err, io.EOF) {
		s.out.Close(nil)
	} else {
		s.out.Break(err)
	}
	s.cut()
	s.srv.leave(s)
}

// dial is the reader of a dialed session.
func (s *Session) dial(addr string) {
	var writer sync.WaitGroup
	err := s.open(addr, &writer)
	s.finish(err)
	writer.Wait()
	s.srv.h.Down(s, s.out.Cause())
}

// open runs a dialed session to its end.
func (s *Session) open(addr string, writer *sync.WaitGroup) error {
	stop := s.handshake()
	defer stop()
	conn, err := grpc.NewClient("passthrough:///"+addr,
		append(dialOptions(), grpc.WithTransportCredentials(s.srv.client))...)
	if err != nil {
		return fmt.Errorf("%w: %s: %w", handoff.ErrPeer, addr, err)
	}
	defer conn.Close()
	stream, err := peerv1.NewPeerClient(conn).Session(s.life)
	if err != nil {
		return fmt.Errorf("%s: %w", addr, lost(err))
	}
	if err := s.greet(s.peer); err != nil {
		return err
	}
	writer.Go(func() {
		// A failed Send says only io.EOF; the reason comes from Recv.
		err := s.out.Run(stream.Send)
		switch {
		case err == nil:
			_ = stream.CloseSend()
		case !errors.Is(err, io.EOF):
			s.cut()
		}
	})
	writer.Go(func() {
		select {
		case <-s.out.Broken():
			s.cut()
		case <-s.life.Done():
		}
	})
	if err := s.greeted(stream); err != nil {
		return fmt.Errorf("%s: %w", addr, err)
	}
	s.identity = identity(stream.Context())
	if !stop() {
		return s.out.Cause()
	}
	return s.receive(stream)
}
