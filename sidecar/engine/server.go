// Package engine is the sidecar's socket for the ranks of an engine on its host: an
// open stream of one-way messages on engine.sock, and descriptors on engine.fd.sock.
//
// It decides nothing. It checks who connects (same user), what a message may hold
// (proto/codec) and the order of a session: Attach first, once. Every session and
// every descriptor that nobody took ends with the Server.
package engine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"

	"google.golang.org/grpc"

	"github.com/batonkv/baton/proto/codec"
	enginev1 "github.com/batonkv/baton/proto/engine/v1"
	"github.com/batonkv/baton/proto/errs"
	"github.com/batonkv/baton/proto/pump"
	"github.com/batonkv/baton/sidecar/handoff"
	"github.com/batonkv/baton/sidecar/sockfd"
)

// Names of the sockets and of the lock in the run directory.
const (
	Socket   = "engine.sock"
	FDSocket = "engine.fd.sock"
	lockName = "engine.lock"
)

// Handler hears of sessions. The calls of one session come from one goroutine, in
// order: Attach, then Message for each message, then Closed, once. A session whose
// Attach was refused gets no further call. Calls of different sessions overlap.
type Handler interface {
	// Attach is the first message. An error refuses the session with that error.
	Attach(s *Session, a handoff.Attach) error
	Message(s *Session, m handoff.FromEngine)
	// Closed is the end. err is nil when the engine closed in order.
	Closed(s *Session, err error)
}

// Options bound a Server. Zero fields take the defaults.
type Options struct {
	Queue    int          // messages that wait for one engine; 4096
	Sessions int          // at one time; 16
	Log      *slog.Logger // refused connections and descriptors; nil: silent
}

// Check reports a field that cannot work.
func (o Options) Check() error {
	if o.Queue < 0 || o.Sessions < 0 {
		return fmt.Errorf("%w: engine options: queue %d, sessions %d: want 0 (default) or more", handoff.ErrBound, o.Queue, o.Sessions)
	}
	return nil
}

func (o Options) withDefaults() Options {
	if o.Queue == 0 {
		o.Queue = 4096
	}
	if o.Sessions == 0 {
		o.Sessions = 16
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return o
}

// Server serves both sockets of one run directory.
type Server struct {
	enginev1.UnimplementedEngineServer

	h    Handler
	opt  Options
	grpc *grpc.Server
	lock *os.File
	fds  *fdServer
	wg   sync.WaitGroup // readers and writers of sessions, and the accept loop

	mu       sync.Mutex // guards:
	closing  bool
	sessions map[*Session]struct{}
}

// Listen opens the sockets in dir, which exists and is this user's. Sockets of dead
// owners are replaced; a live owner is refused by its pid.
func Listen(dir string, h Handler, opt Options) (*Server, error) {
	return listen(dir, h, opt, sameUser)
}

func sameUser(c sockfd.Cred) error {
	if c.UID != uint32(os.Geteuid()) {
		return fmt.Errorf("process %d is user %d, this is user %d", c.PID, c.UID, os.Geteuid())
	}
	return nil
}

func listen(dir string, h Handler, opt Options, allow func(sockfd.Cred) error) (*Server, error) {
	if err := opt.Check(); err != nil {
		return nil, err
	}
	opt = opt.withDefaults()
	path := filepath.Join(dir, Socket)
	if err := errors.Join(sockfd.CheckPath(path), sockfd.CheckPath(filepath.Join(dir, FDSocket))); err != nil {
		return nil, err
	}
	lock, err := sockfd.Lock(filepath.Join(dir, lockName))
	if err != nil {
		return nil, err
	}
	l, err := sockfd.Listen("unix", path)
	if err != nil {
		lock.Close()
		return nil, err
	}
	fl, err := sockfd.Listen("unixpacket", filepath.Join(dir, FDSocket))
	if err != nil {
		l.Close()
		lock.Close()
		return nil, err
	}
	s := &Server{h: h, opt: opt, lock: lock, sessions: make(map[*Session]struct{}),
		grpc: grpc.NewServer(
			grpc.MaxRecvMsgSize(codec.MaxMessage), grpc.MaxSendMsgSize(codec.MaxMessage),
			// Fixed windows: no probing of the bandwidth on a local socket.
			grpc.InitialWindowSize(1<<20), grpc.InitialConnWindowSize(1<<20),
			grpc.MaxConcurrentStreams(uint32(opt.Sessions)))}
	enginev1.RegisterEngineServer(s.grpc, s)
	s.fds = serveFDs(fl, allow, opt.Log)
	s.wg.Go(func() { _ = s.grpc.Serve(checked{l, allow, opt.Log}) })
	return s, nil
}

// checked is a listener that closes connections of other users.
type checked struct {
	*net.UnixListener
	allow func(sockfd.Cred) error
	log   *slog.Logger
}

func (l checked) Accept() (net.Conn, error) {
	for {
		c, err := l.AcceptUnix()
		if err != nil {
			return nil, err
		}
		cred, err := sockfd.PeerCred(c)
		if err == nil {
			err = l.allow(cred)
		}
		if err == nil {
			return c, nil
		}
		l.log.Warn("engine connection refused", "why", err)
		c.Close()
	}
}

// Session implements the service. Its own goroutine only waits: returning is what cuts
// a stream.
func (s *Server) Session(stream enginev1.Engine_SessionServer) error {
	ses := &Session{srv: s, out: pump.New[*enginev1.ToEngine](s.opt.Queue)}
	s.mu.Lock()
	switch {
	case s.closing:
		s.mu.Unlock()
		return errs.ToStatus(fmt.Errorf("%w: the sidecar stops", handoff.ErrNotReady))
	case len(s.sessions) >= s.opt.Sessions:
		s.mu.Unlock()
		return errs.ToStatus(fmt.Errorf("%w: %d engine sessions are open", handoff.ErrBound, s.opt.Sessions))
	}
	s.sessions[ses] = struct{}{}
	s.wg.Go(func() { ses.read(stream) })
	s.wg.Go(func() { ses.write(stream) })
	s.mu.Unlock()
	return errs.ToStatus(ses.out.Wait())
}

// ExpectFDs announces that the buffers' descriptors will come under key. The key is
// forgotten when the session ends that sends it in Attached.
func (s *Server) ExpectFDs(key uint64, buffers []handoff.BufferDecl) { s.fds.expect(key, buffers) }

// TakeFDs hands over the descriptors that arrived under key and were not taken yet,
// by buffer id, in order of arrival. The caller owns them.
func (s *Server) TakeFDs(key uint64) map[uint32][]int { return s.fds.take(key) }

// RefusedFDs counts packets on the descriptor socket that were not kept.
func (s *Server) RefusedFDs() uint64 { return s.fds.refused.Load() }

// Close ends every session and waits for their readers; when ctx ends first, it cuts
// the connections. Descriptors that nobody took are closed.
func (s *Server) Close(ctx context.Context) error {
	s.mu.Lock()
	s.closing = true
	for ses := range s.sessions {
		ses.out.Close(fmt.Errorf("%w: the sidecar stops", handoff.ErrNotReady))
	}
	s.mu.Unlock()
	done := make(chan struct{})
	go func() {
		s.grpc.GracefulStop()
		close(done)
	}()
	select {
	case <-done:
	case <-ctx.Done():
		s.grpc.Stop()
		<-done
	}
	s.wg.Wait()
	s.fds.close()
	return s.lock.Close()
}

// Session is one attached engine rank. Safe for concurrent use.
type Session struct {
	srv *Server
	out *pump.Pump[*enginev1.ToEngine]

	mu   sync.Mutex // guards:
	keys []uint64   // of descriptors, forgotten at the end
}

// Send queues m and never blocks; m's slices may be reused. ErrBound refuses m alone.
// A full queue ends the session (pump.ErrFull): an engine that far behind is lost.
func (s *Session) Send(m handoff.ToEngine) error {
	p, err := codec.EncodeToEngine(m)
	if err != nil {
		return err
	}
	if a, ok := m.(handoff.Attached); ok {
		s.mu.Lock()
		s.keys = append(s.keys, a.FDKey)
		s.mu.Unlock()
	}
	return s.out.Send(p)
}

// Close ends the session after what is queued; the engine sees err with its sentinel,
// or an ordinary end for nil. Closed follows.
func (s *Session) Close(err error) error {
	s.out.Close(err)
	return nil
}

func (s *Session) write(stream enginev1.Engine_SessionServer) {
	_ = s.out.Run(func(m *enginev1.ToEngine) error {
		if err := stream.Send(m); err != nil {
			return fmt.Errorf("%w: the engine's session broke: %w", handoff.ErrPeer, err)
		}
		return nil
	})
}

// read is the session's reader. It returns once the stream is over and Closed was told.
func (s *Session) read(stream enginev1.Engine_SessionServer) {
	attached, err := s.receive(stream)
	switch {
	case errors.Is(err, io.EOF):
		s.out.Close(nil)
	default:
		s.out.Break(err)
	}
	s.mu.Lock()
	keys := s.keys
	s.mu.Unlock()
	s.srv.fds.forget(keys)
	s.srv.mu.Lock()
	delete(s.srv.sessions, s)
	s.srv.mu.Unlock()
	if attached {
		s.srv.h.Closed(s, s.out.Cause())
	}
}

// receive handles messages until the stream or the session ends. io.EOF is an
// ordinary end.
func (s *Session) receive(stream enginev1.Engine_SessionServer) (attached bool, err error) {
	for {
		p, err := stream.Recv()
		if err == io.EOF {
			return attached, err
		}
		if err != nil {
			return attached, fmt.Errorf("%w: the engine's session broke: %w", handoff.ErrPeer, err)
		}
		m, err := codec.DecodeFromEngine(p)
		if err != nil {
			return attached, err
		}
		select {
		case <-s.out.Ended():
			return attached, s.out.Cause()
		default:
		}
		a, isAttach := m.(handoff.Attach)
		switch {
		case isAttach == attached:
			return attached, fmt.Errorf("%w: attach comes first, and once: got %T", handoff.ErrEngine, m)
		case isAttach:
			if err := s.srv.h.Attach(s, a); err != nil {
				return false, err
			}
			attached = true
		default:
			s.srv.h.Message(s, m)
		}
	}
}
