package peer

import (
	"context"
	"fmt"
	"maps"
	"net"
	"reflect"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/batonkv/baton/proto/errs"
	peerv1 "github.com/batonkv/baton/proto/peer/v1"
	"github.com/batonkv/baton/sidecar/handoff"
)

// Handler hears of sessions. The calls of one session come from one goroutine, in
// order: Up, Message for each message, Down. Calls of different sessions overlap.
type Handler interface {
	// Up follows both Hellos.
	Up(s *Session)
	Message(s *Session, m handoff.PeerMessage)
	// Down is the end, nil when the other side closed in order. A Dial that fails gets
	// Down without Up; a refused session of somebody else gets neither.
	Down(s *Session, err error)
}

// Server is this sidecar's end of all its peer sessions.
type Server struct {
	peerv1.UnimplementedPeerServer

	cfg    Config
	h      Handler
	grpc   *grpc.Server
	lis    net.Listener
	client credentials.TransportCredentials
	wg     sync.WaitGroup // readers and writers of sessions, and the accept loop

	mu       sync.Mutex // guards:
	closing  bool
	sessions map[*Session]struct{}
	counts   map[string]uint64
}

// Listen opens the port. extra registers further services on it.
func Listen(cfg Config, h Handler, extra ...func(*grpc.Server)) (*Server, error) {
	if err := cfg.Check(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	lis, err := net.Listen("tcp", cfg.Listen)
	if err != nil {
		return nil, fmt.Errorf("%w: listen: %w: choose another address, or port 0", ErrConfig, err)
	}
	s := &Server{cfg: cfg, h: h, lis: lis, client: credentials.NewTLS(cfg.Client),
		sessions: make(map[*Session]struct{}), counts: make(map[string]uint64)}
	s.grpc = grpc.NewServer(append(serverOptions(), grpc.Creds(counted{credentials.NewTLS(cfg.Server), s}))...)
	peerv1.RegisterPeerServer(s.grpc, s)
	for _, f := range extra {
		f(s.grpc)
	}
	s.wg.Go(func() { _ = s.grpc.Serve(lis) })
	return s, nil
}

// counted counts the connections whose TLS was refused: no certificate, or another CA's.
type counted struct {
	credentials.TransportCredentials
	s *Server
}

func (c counted) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	out, info, err := c.TransportCredentials.ServerHandshake(conn)
	if err != nil {
		c.s.mu.Lock()
		c.s.counts["refused.Handshake"]++
		c.s.mu.Unlock()
	}
	return out, info, err
}

// Addr is the host:port that is listened on.
func (s *Server) Addr() string { return s.lis.Addr().String() }

// Counts are the messages that were accepted for sending, as "sent.Open", and that
// arrived, as "received.Open", over all sessions, by type; and "refused.Handshake",
// connections that showed no certificate of the CA.
func (s *Server) Counts() map[string]uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.counts)
}

func (s *Server) count(way string, m handoff.PeerMessage) {
	name := way + reflect.TypeOf(m).Name()
	s.mu.Lock()
	s.counts[name]++
	s.mu.Unlock()
}

// enter admits a session and starts its goroutines, or says why not.
func (s *Server) enter(ses *Session, runs ...func()) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closing:
		return fmt.Errorf("%w: %v stops", handoff.ErrNotReady, s.cfg.Self)
	case len(s.sessions) >= s.cfg.Limits.Sessions:
		return fmt.Errorf("%w: %d peer sessions are open", handoff.ErrBound, s.cfg.Limits.Sessions)
	}
	s.sessions[ses] = struct{}{}
	for _, run := range runs {
		s.wg.Go(run)
	}
	return nil
}

func (s *Server) leave(ses *Session) {
	s.mu.Lock()
	delete(s.sessions, ses)
	s.mu.Unlock()
}

// Session implements the service. Its own goroutine only waits: returning is what cuts
// a stream.
func (s *Server) Session(stream peerv1.Peer_SessionServer) error {
	ses := s.newSession(false)
	ses.identity = identity(stream.Context())
	write := func(m *peerv1.PeerMessage) error { return lost(stream.Send(m)) }
	if err := s.enter(ses, func() { ses.accept(stream) }, func() { _ = ses.out.Run(write) }); err != nil {
		return errs.ToStatus(err)
	}
	return errs.ToStatus(ses.out.Wait())
}

// Dial opens a session to the process want at addr and returns at once: Up follows, or
// Down with the error. Another process at addr is ErrPeer. After Close it does nothing.
func (s *Server) Dial(addr string, want handoff.Member) {
	ses := s.newSession(true)
	ses.peer = want
	err := s.enter(ses, func() { ses.dial(addr) })
	if err == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closing {
		s.wg.Go(func() { s.h.Down(ses, err) })
	}
}

// Close ends every session and waits for them; when ctx ends first, it cuts the
// connections. No call of the Handler comes after it has returned.
func (s *Server) Close(ctx context.Context) error {
	s.mu.Lock()
	s.closing = true
	open := maps.Clone(s.sessions)
	s.mu.Unlock()
	for ses := range open {
		if ses.dialed {
			ses.out.Close(nil) // half-closes: what was queued still arrives
			continue
		}
		ses.out.Close(fmt.Errorf("%w: %v stops", handoff.ErrPeer, s.cfg.Self))
	}
	done := make(chan struct{})
	go func() {
		s.grpc.GracefulStop()
		s.wg.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-ctx.Done():
		for ses := range open {
			ses.cut()
		}
		s.grpc.Stop()
		<-done
	}
	return nil
}
