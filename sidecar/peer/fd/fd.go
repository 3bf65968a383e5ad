// Package fd passes descriptors between the sidecars of one host. The owner offers a
// descriptor under a random key that travels over the mutual TLS session; whoever
// shows the key at the socket gets the descriptor, once.
package fd

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/batonkv/baton/sidecar/handoff"
	"github.com/batonkv/baton/sidecar/sockfd"
)

// Socket is the name in the run directory.
const Socket = "host.fd.sock"

const (
	maxOffers  = 1 << 16
	maxClients = 64
	idle       = 10 * time.Second
	answerOK   = 0
	answerGone = 1
)

// Server holds offers until they are fetched or revoked. Safe for concurrent use.
type Server struct {
	l   *net.UnixListener
	log *slog.Logger
	wg  sync.WaitGroup

	mu     sync.Mutex // guards:
	over   bool
	offers map[uint64]offer
	conns  map[*net.UnixConn]struct{}
}

type offer struct {
	fd    int
	owner string
}

// Listen opens the socket at path, mode 0600. The caller holds the run directory's
// lock. A nil log is silent.
func Listen(path string, log *slog.Logger) (*Server, error) {
	l, err := sockfd.Listen("unixpacket", path)
	if err != nil {
		return nil, err
	}
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	s := &Server{l: l, log: log, offers: make(map[uint64]offer), conns: make(map[*net.UnixConn]struct{})}
	s.wg.Go(s.accept)
	return s, nil
}

// Offer holds a duplicate of fd under key until it is fetched once or revoked; the
// caller keeps fd. owner is a tag for Revoke: one peer session, say. ErrBound: the key
// is in use, or too many offers wait.
func (s *Server) Offer(key uint64, fd int, owner string) error {
	dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("offer descriptor %d: %w", fd, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	_, taken := s.offers[key]
	switch {
	case s.over:
		err = fmt.Errorf("%w: the descriptor socket is closed", handoff.ErrGone)
	case taken:
		err = fmt.Errorf("%w: descriptor key is in use", handoff.ErrBound)
	case len(s.offers) >= maxOffers:
		err = fmt.Errorf("%w: %d descriptors are offered", handoff.ErrBound, maxOffers)
	}
	if err != nil {
		unix.Close(dup)
		return err
	}
	s.offers[key] = offer{dup, owner}
	return nil
}

// Revoke takes back every offer of owner and returns how many there were.
func (s *Server) Revoke(owner string) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, o := range s.offers {
		if o.owner == owner {
			unix.Close(o.fd)
			delete(s.offers, key)
			n++
		}
	}
	return n
}

// Close ends intake, waits for clients being served and closes every offer.
func (s *Server) Close() error {
	err := s.l.Close()
	s.mu.Lock()
	s.over = true
	for c := range s.conns {
		c.Close()
	}
	s.mu.Unlock()
	s.wg.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, o := range s.offers {
		unix.Close(o.fd)
		delete(s.offers, key)
	}
	return err
}

func (s *Server) accept() {
	for {
		c, err := s.l.AcceptUnix()
		if err != nil {
			return
		}
		if err := s.enter(c); err != nil {
			s.log.Warn("descriptor connection refused", "why", err)
			c.Close()
			continue
		}
		s.wg.Go(func() {
			s.serve(c)
			c.Close()
			s.mu.Lock()
			delete(s.conns, c)
			s.mu.Unlock()
		})
	}
}

func (s *Server) enter(c *net.UnixConn) error {
	cred, err := sockfd.PeerCred(c)
	if err != nil {
		return err
	}
	if cred.UID != uint32(os.Geteuid()) {
		return fmt.Errorf("process %d is user %d, this is user %d", cred.PID, cred.UID, os.Geteuid())
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over || len(s.conns) >= maxClients {
		return fmt.Errorf("%w: %d clients are connected", handoff.ErrBound, len(s.conns))
	}
	s.conns[c] = struct{}{}
	return nil
}

// serve answers one request: 8 bytes of key, big endian.
func (s *Server) serve(c *net.UnixConn) {
	_ = c.SetDeadline(time.Now().Add(idle))
	var p [8]byte
	n, fd, err := sockfd.Recv(c, p[:])
	if fd >= 0 {
		unix.Close(fd)
	}
	if err != nil || n != len(p) {
		return
	}
	key := binary.BigEndian.Uint64(p[:])
	s.mu.Lock()
	o, ok := s.offers[key]
	delete(s.offers, key)
	s.mu.Unlock()
	if !ok {
		_ = sockfd.Send(c, []byte{answerGone}, -1)
		return
	}
	_ = sockfd.Send(c, []byte{answerOK}, o.fd)
	unix.Close(o.fd)
}

// Fetch asks the sidecar behind socket for the descriptor under key. The caller owns
// it. ErrGone: the key is wrong, used, or revoked, or nobody serves the socket.
func Fetch(ctx context.Context, socket string, key uint64) (int, error) {
	c, err := sockfd.Dial(ctx, socket)
	if err != nil {
		return -1, fmt.Errorf("%w: descriptor: %w", handoff.ErrGone, err)
	}
	defer c.Close()
	defer sockfd.Until(ctx, c)()
	if err := sockfd.Send(c, binary.BigEndian.AppendUint64(nil, key), -1); err != nil {
		return -1, fmt.Errorf("%w: descriptor: %w", handoff.ErrGone, err)
	}
	var answer [1]byte
	n, got, err := sockfd.Recv(c, answer[:])
	switch {
	case err != nil:
		return -1, fmt.Errorf("%w: descriptor: %w", handoff.ErrGone, errors.Join(ctx.Err(), err))
	case n == 1 && answer[0] == answerOK && got >= 0:
		return got, nil
	case got >= 0:
		unix.Close(got)
	}
	return -1, fmt.Errorf("%w: descriptor: %s knows no such key: it is wrong, used, or revoked", handoff.ErrGone, socket)
}
