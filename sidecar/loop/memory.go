package loop

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/batonkv/baton/sidecar/handoff"
	"github.com/batonkv/baton/sidecar/machine"
	"github.com/batonkv/baton/sidecar/peer/fd"
	"github.com/batonkv/baton/transfer"
)

// buffers are an engine session's descriptors, kept so that peers can be given
// them, and the regions that the mover made of them.
type buffers struct {
	decls   []handoff.BufferDecl
	fds     map[uint32]int
	ready   bool              // registered
	regions []transfer.Region // of the work in sequence alone
}

// inSequence does f aside, after what was begun here before it: the next engine's
// buffers take the numbers of the last one's.
func (s *Sidecar) inSequence(f func()) {
	before, ended := s.maps, make(chan struct{})
	s.maps = ended
	s.work.Go(func() {
		defer close(ended)
		<-before
		f()
	})
}

// mapBuffers registers what came over the fd socket with the mover.
func (s *Sidecar) mapBuffers(f machine.MapBuffers) {
	b := &buffers{decls: f.Buffers, fds: s.engines.TakeFDs(f.Key)}
	s.buffers[f.Session] = b
	s.inSequence(func() {
		err := b.register(s.ctx, s.cfg.Backend)
		s.post(func() {
			if s.buffers[f.Session] != b {
				return
			}
			if b.ready = err == nil; b.ready {
				s.staging.engine(s.attached[s.sessions[f.Session]], b)
			}
			pid := s.cfg.MoverPID()
			if pid == 0 {
				pid = s.mover // about to take work
			}
			if pid != 0 || err != nil { // else it died, and MoverRestarted follows
				s.step(machine.Mapped{Session: f.Session, PID: pid, Err: err})
			}
		})
	})
}

// register maps every declared buffer.
func (b *buffers) register(ctx context.Context, to transfer.Backend) error {
	for _, d := range b.decls {
		f, ok := b.fds[d.ID]
		if !ok {
			return fmt.Errorf("%w: no descriptor came for buffer %d: send each on the fd socket before BuffersReady", transfer.ErrMemory, d.ID)
		}
		own, err := unix.FcntlInt(uintptr(f), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("%w: buffer %d: %w", transfer.ErrMemory, d.ID, err)
		}
		r, err := to.Register(ctx, transfer.RegionID(d.ID), transfer.Memory{Kind: transfer.Memfd, FD: own, Off: d.Off, Len: d.Len})
		if err != nil {
			return fmt.Errorf("buffer %d: %w", d.ID, err)
		}
		b.regions = append(b.regions, r)
	}
	return nil
}

// close unmaps the buffers and closes the descriptors.
func (b *buffers) close() error {
	var errs error
	for _, r := range b.regions {
		errs = errors.Join(errs, r.Close())
	}
	for _, f := range b.fds {
		errs = errors.Join(errs, unix.Close(f))
	}
	return errs
}

// unmap lets go of a session's memory: the machine saw its last ticket end.
func (s *Sidecar) unmap(n machine.Session) {
	b := s.buffers[n]
	if b == nil {
		return
	}
	delete(s.buffers, n)
	if s.staging != nil {
		s.staging.stage.NoEngine()
	}
	s.inSequence(func() {
		if err := b.close(); err != nil {
			s.log.Warn("unmap engine buffers", "err", err)
		}
	})
}

// MoverRestarted says that the mover pid took the place of one that died: it maps the
// engine's buffers again and knows no link. The caller calls it before that mover opens
// one. Any goroutine may.
func (s *Sidecar) MoverRestarted(pid int32) {
	s.post(func() {
		s.mover = pid
		s.cfg.Metrics.MoverRestarted()
		for p, l := range s.links { // dead with the process that held them
			delete(s.links, p)
			s.letGo(p, l)
		}
		s.staging.moverRestarted()
		s.step(machine.LinksLost{})
		for _, n := range slices.Sorted(maps.Keys(s.buffers)) {
			if s.buffers[n].ready {
				s.step(machine.Mapped{Session: n, PID: pid})
			}
		}
	})
}

// share offers a peer the engine's descriptors, each under a key that is good once.
func (s *Sidecar) share(f machine.ShareBuffers) {
	b := s.buffers[f.Session]
	msg := handoff.Buffers{Host: s.host, Socket: s.cfg.FDSocket, Chunk: s.staging.chunk()}
	if b == nil {
		msg = handoff.Buffers{Why: "the engine's buffers are not mapped"}
	} else {
		for _, d := range b.decls {
			key := Random()
			if err := s.offer(key, b.fds[d.ID], f.Peer); err != nil {
				msg = handoff.Buffers{Why: err.Error()}
				break
			}
			msg.Cards = append(msg.Cards, handoff.BufferCard{Buffer: d.ID, Off: d.Off, Len: d.Len, Key: key})
		}
	}
	s.toPeer(machine.ToPeer{Peer: f.Peer, Msg: msg})
}

// offer gives a peer a descriptor that can read alone: nobody writes into an engine's
// memory but its own side's mover.
func (s *Sidecar) offer(key uint64, f int, p handoff.Member) error {
	ro, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", f), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("%w: open the engine's buffer for reading: %w", transfer.ErrMemory, err)
	}
	defer unix.Close(ro)
	return s.fds.Offer(key, ro, p.String())
}

// fetch gets a peer's descriptors against their keys.
func fetch(ctx context.Context, b handoff.Buffers) (map[transfer.RegionID]transfer.Memory, error) {
	out := map[transfer.RegionID]transfer.Memory{}
	for _, c := range b.Cards {
		f, err := fd.Fetch(ctx, b.Socket, c.Key)
		if err != nil {
			for _, m := range out {
				unix.Close(m.FD)
			}
			return nil, fmt.Errorf("buffer %d: %w", c.Buffer, err)
		}
		out[transfer.RegionID(c.Buffer)] = transfer.Memory{Kind: transfer.Memfd, FD: f, Off: c.Off, Len: c.Len}
	}
	return out, nil
}

// Random returns a random number that is not 0: incarnations, keys.
func Random() uint64 {
	var b [8]byte
	for {
		rand.Read(b[:]) // never fails: it ends the process instead
		if n := binary.LittleEndian.Uint64(b[:]); n != 0 {
			return n
		}
	}
}
