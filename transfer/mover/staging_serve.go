package mover

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/batonkv/baton/lifeline"
	"github.com/batonkv/baton/transfer"
	"github.com/batonkv/baton/transfer/staged"
)

// OpenWire makes the wire that a Setup names, over an arena that lives as long as it.
type OpenWire func(s Setup, arena []byte) (staged.Wire, error)

// ServeWire is the whole life of a wire mover process, as Serve is of a local one.
func ServeWire(ctx context.Context, fd int, open OpenWire) error {
	syscall.CloseOnExec(fd)
	conn, err := fileConn(os.NewFile(uintptr(fd), "sidecar"))
	if err != nil {
		return fmt.Errorf("%w: sidecars start movers, with a socket as descriptor %d", err, fd)
	}
	return serveWire(conn, open, ctx.Done(), lifeline.Watch())
}

// wireServer is the wire mover's half of one socket pair.
type wireServer struct {
	voice
	open OpenWire
	wire staged.Wire // nil before kindSetup; of the reading goroutine

	mu      sync.Mutex
	cancels map[uint64]func() // under mu: of fetches that are open
	ended   map[uint64]bool   // under mu: fetches that ended before their cancel was known
}

func serveWire(conn *net.UnixConn, open OpenWire, stop, orphaned <-chan struct{}) error {
	s := &wireServer{voice: voice{conn: conn}, open: open, cancels: map[uint64]func(){}, ended: map[uint64]bool{}}
	return s.attend(stop, orphaned, s.loop)
}

// loop handles frames until the other end is gone. The arena is mapped for as long.
func (s *wireServer) loop() (err error) {
	r := newFrameReader(s.conn)
	defer r.close()
	f, err := r.next()
	if err != nil {
		return err
	}
	arena, err := s.setup(&f)
	var port int64
	if err == nil {
		port, err = portOf(s.wire.Addr())
	}
	_ = s.answer(f.id, port, err)
	if err != nil {
		return err
	}
	defer func() { // nothing reads or writes the arena after Close
		err = errors.Join(err, s.wire.Close(), unix.Munmap(arena))
	}()
	for {
		f, err := r.next()
		if err != nil { // the sidecar is gone, or lets go
			return nil
		}
		closeFDs(f.fds)
		if err := s.handle(&f); err != nil {
			return err
		}
	}
}

// setup maps the arena and makes the wire.
func (s *wireServer) setup(f *frame) ([]byte, error) {
	defer func() { closeFDs(f.fds) }()
	var c Setup
	if f.kind != kindSetup || len(f.fds) != 1 || len(f.body) > maxSetup {
		return nil, fmt.Errorf("%w: kind %d with %d descriptors before the setup", errWire, f.kind, len(f.fds))
	}
	if err := json.Unmarshal(f.body, &c); err != nil {
		return nil, fmt.Errorf("%w: setup: %w", errWire, err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(f.fds[0], &st); err != nil || c.Bytes < 1 || c.Bytes > st.Size {
		return nil, fmt.Errorf("%w: arena of %d bytes in a file of %d: %v", transfer.ErrMemory, c.Bytes, st.Size, err)
	}
	arena, err := unix.Mmap(f.fds[0], 0, int(c.Bytes), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("%w: map the arena: %w", transfer.ErrMemory, err)
	}
	if s.wire, err = s.open(c, arena); err != nil {
		return nil, errors.Join(err, unix.Munmap(arena))
	}
	return arena, nil
}

func portOf(addr string) (int64, error) {
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(port, 10, 64)
}

func (s *wireServer) handle(f *frame) error {
	r := reader{b: f.body}
	switch f.kind {
	case kindOffer:
		o := r.exposed()
		if r.end() == nil {
			_ = s.answer(f.id, 0, s.wire.Offer(o))
		}
	case kindWithdraw:
		s.wire.Withdraw(f.id)
	case kindFetch:
		g := r.fetching()
		if r.end() == nil {
			s.fetch(f.id, g)
		}
	case kindCancel:
		s.mu.Lock()
		cancel := s.cancels[f.id]
		s.mu.Unlock()
		if cancel != nil {
			cancel()
		}
	default:
		return fmt.Errorf("%w: kind %d", errWire, f.kind)
	}
	return r.end()
}

// fetch begins one. Its end may come before its cancel is known.
func (s *wireServer) fetch(id uint64, g staged.Fetching) {
	cancel := s.wire.Fetch(g, func(err error) {
		s.mu.Lock()
		if _, known := s.cancels[id]; known {
			delete(s.cancels, id)
		} else {
			s.ended[id] = true
		}
		s.mu.Unlock()
		_ = s.answer(id, g.Bytes, err)
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended[id] {
		delete(s.ended, id)
		return
	}
	s.cancels[id] = cancel
}
