package engine

import (
	"encoding/binary"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/batonkv/baton/sidecar/handoff"
	"github.com/batonkv/baton/sidecar/sockfd"
)

// Answers to a packet on the descriptor socket, one byte each.
const (
	FDKept    = 0
	FDUnknown = 1 // no such key is expected
	FDExtra   = 2 // no more of that buffer is expected
	FDBad     = 3 // not 12 bytes with one descriptor
)

const (
	fdPacket  = 12 // key (8) and buffer id (4), big endian
	fdClients = 16
	// fdIdle ends a connection on which nothing comes: a client sends all it has
	// at once.
	fdIdle = 30 * time.Second
)

// fdServer keeps descriptors by key until they are taken or forgotten.
type fdServer struct {
	l       *net.UnixListener
	allow   func(sockfd.Cred) error
	log     *slog.Logger
	refused atomic.Uint64
	wg      sync.WaitGroup

	mu    sync.Mutex // guards:
	over  bool
	keys  map[uint64]*expected
	conns map[*net.UnixConn]struct{}
}

type expected struct {
	left map[uint32]int   // descriptors that may still come, by buffer id
	got  map[uint32][]int // not taken yet
}

func serveFDs(l *net.UnixListener, allow func(sockfd.Cred) error, log *slog.Logger) *fdServer {
	s := &fdServer{l: l, allow: allow, log: log, keys: make(map[uint64]*expected), conns: make(map[*net.UnixConn]struct{})}
	s.wg.Go(s.accept)
	return s
}

func (s *fdServer) accept() {
	for {
		c, err := s.l.AcceptUnix()
		if err != nil {
			return
		}
		if !s.enter(c) {
			s.refused.Add(1)
			c.Close()
			continue
		}
		s.wg.Go(func() {
			s.serve(c)
			s.leave(c)
		})
	}
}

func (s *fdServer) enter(c *net.UnixConn) bool {
	cred, err := sockfd.PeerCred(c)
	if err == nil {
		err = s.allow(cred)
	}
	if err != nil {
		s.log.Warn("descriptor connection refused", "why", err)
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over || len(s.conns) >= fdClients {
		return false
	}
	s.conns[c] = struct{}{}
	return true
}

func (s *fdServer) leave(c *net.UnixConn) {
	c.Close()
	s.mu.Lock()
	delete(s.conns, c)
	s.mu.Unlock()
}

// serve answers every packet of c with one byte.
func (s *fdServer) serve(c *net.UnixConn) {
	var p [fdPacket]byte
	for {
		_ = c.SetDeadline(time.Now().Add(fdIdle))
		n, fd, err := sockfd.Recv(c, p[:])
		if err != nil {
			return
		}
		answer := byte(FDBad)
		if n == fdPacket && fd >= 0 {
			answer = s.keep(binary.BigEndian.Uint64(p[:8]), binary.BigEndian.Uint32(p[8:]), fd)
		}
		if answer != FDKept {
			s.refused.Add(1)
			s.log.Warn("descriptor refused", "answer", answer)
			if fd >= 0 {
				unix.Close(fd)
			}
		}
		if sockfd.Send(c, []byte{answer}, -1) != nil {
			return
		}
	}
}

func (s *fdServer) keep(key uint64, id uint32, fd int) byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.keys[key]
	switch {
	case e == nil || s.over:
		return FDUnknown
	case e.left[id] == 0:
		return FDExtra
	}
	e.left[id]--
	e.got[id] = append(e.got[id], fd)
	return FDKept
}

// expect opens a key for descriptors, whose number the codec has bounded.
func (s *fdServer) expect(key uint64, buffers []handoff.BufferDecl) {
	left := make(map[uint32]int, len(buffers))
	for _, d := range buffers {
		left[d.ID] = d.Descriptors()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over || s.keys[key] != nil {
		return
	}
	s.keys[key] = &expected{left: left, got: make(map[uint32][]int)}
}

func (s *fdServer) take(key uint64) map[uint32][]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.keys[key]
	if e == nil {
		return nil
	}
	got := e.got
	e.got = make(map[uint32][]int)
	return got
}

func (s *fdServer) forget(keys []uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, k := range keys {
		if e := s.keys[k]; e != nil {
			for _, fds := range e.got {
				sockfd.CloseAll(fds)
			}
			delete(s.keys, k)
		}
	}
}

func (s *fdServer) close() {
	s.l.Close()
	s.mu.Lock()
	s.over = true
	var keys []uint64
	for k := range s.keys {
		keys = append(keys, k)
	}
	for c := range s.conns {
		c.Close()
	}
	s.mu.Unlock()
	s.wg.Wait()
	s.forget(keys)
}
