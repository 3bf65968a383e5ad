// Package fd passes descriptors between the sidecars of one host. The owner offers the
// descriptors of a buffer under a random key that travels over the mutual TLS session;
// whoever shows the key at the socket gets them, once, each in a packet of its own.
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
	maxHeld    = 1 << 16 // descriptors
	maxClients = 64
	idle       = 10 * time.Second // of one request, at either end
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
	held   int // their descriptors
	conns  map[*net.UnixConn]struct{}
}

type offer struct {
	fds   []int // at least one
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

// Offer holds duplicates of fds under key until they are fetched once or revoked; the
// caller keeps fds. owner is a tag for Revoke: one peer session, say. ErrBound: the key
// is in use, or too many descriptors wait.
func (s *Server) Offer(key uint64, fds []int, owner string) error {
	dups, err := sockfd.Dup(fds)
	if err != nil {
		return fmt.Errorf("offer: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	_, taken := s.offers[key]
	switch {
	case s.over:
		err = fmt.Errorf("%w: the descriptor socket is closed", handoff.ErrGone)
	case taken:
		err = fmt.Errorf("%w: descriptor key is in use", handoff.ErrBound)
	case len(dups) == 0:
		err = fmt.Errorf("%w: no descriptor is offered", handoff.ErrBound)
	case s.held+len(dups) > maxHeld:
		err = fmt.Errorf("%w: %d descriptors are offered, at most %d", handoff.ErrBound, s.held, maxHeld)
	}
	if err != nil {
		sockfd.CloseAll(dups)
		return err
	}
	s.offers[key] = offer{dups, owner}
	s.held += len(dups)
	return nil
}

// take ends an offer, whose descriptors are the caller's. Caller holds mu.
func (s *Server) take(key uint64) (o offer, ok bool) {
	o, ok = s.offers[key]
	delete(s.offers, key)
	s.held -= len(o.fds)
	return o, ok
}

// Revoke takes back every offer of owner and returns how many there were.
func (s *Server) Revoke(owner string) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, o := range s.offers {
		if o.owner == owner {
			s.take(key)
			sockfd.CloseAll(o.fds)
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
		s.take(key)
		sockfd.CloseAll(o.fds)
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
	o, ok := s.take(key)
	s.mu.Unlock()
	if !ok {
		_ = sockfd.Send(c, []byte{answerGone}, -1)
		return
	}
	defer sockfd.CloseAll(o.fds)
	for _, f := range o.fds {
		if sockfd.Send(c, []byte{answerOK}, f) != nil {
			return
		}
	}
}

// Fetch asks the sidecar behind socket for the n descriptors under key, and no others. The
// caller owns them. ErrGone: the key is wrong, used, or revoked, or nobody serves the socket, or
// not in time.
func Fetch(ctx context.Context, socket string, key uint64, n int) ([]int, error) {
	return fetch(ctx, socket, key, n, idle)
}

func fetch(ctx context.Context, socket string, key uint64, n int, limit time.Duration) (fds []int, err error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	c, err := sockfd.Dial(ctx, socket)
	if err != nil {
		return nil, fmt.Errorf("%w: descriptor: %w", handoff.ErrGone, err)
	}
	defer c.Close()
	defer sockfd.Until(ctx, c)()
	if err := sockfd.Send(c, binary.BigEndian.AppendUint64(nil, key), -1); err != nil {
		return nil, fmt.Errorf("%w: descriptor: %w", handoff.ErrGone, err)
	}
	for len(fds) < n {
		f, err := receive(ctx, c, socket)
		if err != nil {
			sockfd.CloseAll(fds)
			return nil, err
		}
		fds = append(fds, f)
	}
	return fds, nil
}

// receive takes one packet of the answer.
func receive(ctx context.Context, c *net.UnixConn, socket string) (int, error) {
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
