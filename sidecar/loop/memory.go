package loop

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/batonkv/baton/sidecar/handoff"
	"github.com/batonkv/baton/sidecar/machine"
	"github.com/batonkv/baton/sidecar/peer/fd"
	"github.com/batonkv/baton/sidecar/sockfd"
	"github.com/batonkv/baton/transfer"
	"github.com/batonkv/baton/transfer/choice"
	"github.com/batonkv/baton/transfer/direct"
)

// buffers are an engine session's descriptors, kept so that peers can be given
// them, and the regions that the mover made of them.
type buffers struct {
	decls   []handoff.BufferDecl
	ready   bool              // registered
	regions []transfer.Region // of the work in sequence alone

	mu  sync.Mutex // guards the end of fds: staging asks for copies of them aside
	fds map[uint32][]int
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
				s.lies(placeOf(b.decls, func(d handoff.BufferDecl) *handoff.GPUMemory { return d.GPU }))
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

// placeOf is where buffers are.
func placeOf[T any](bs []T, gpu func(T) *handoff.GPUMemory) (at choice.Place) {
	for _, b := range bs {
		if gpu(b) != nil {
			at |= choice.OnGPU
		} else {
			at |= choice.OnHost
		}
	}
	return at
}

// lies notes where this rank's memory is. Links of an engine before this one have ended.
func (s *Sidecar) lies(at choice.Place) {
	s.place = at
	for _, p := range s.sortedPairs() {
		s.places(p, s.pairs[p].memory.Peer)
	}
}

// register maps every declared buffer.
func (b *buffers) register(ctx context.Context, to transfer.Backend) error {
	for _, d := range b.decls {
		m, err := b.memory(d)
		if err != nil {
			return err
		}
		r, err := to.Register(ctx, transfer.RegionID(d.ID), m)
		if err != nil {
			return fmt.Errorf("buffer %d: %w", d.ID, err)
		}
		b.regions = append(b.regions, r)
	}
	return nil
}

// memory is a declared buffer, with descriptors of its own.
func (b *buffers) memory(d handoff.BufferDecl) (transfer.Memory, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if n, want := len(b.fds[d.ID]), d.Descriptors(); n != want {
		return transfer.Memory{}, fmt.Errorf("%w: %d of %d descriptors came for buffer %d: send each on the fd socket before BuffersReady", transfer.ErrMemory, n, want, d.ID)
	}
	own, err := sockfd.Dup(b.fds[d.ID])
	if err != nil {
		return transfer.Memory{}, fmt.Errorf("%w: buffer %d: %w", transfer.ErrMemory, d.ID, err)
	}
	return memoryOf(d.Off, d.Len, d.GPU, own), nil
}

// memoryOf is what a mover maps, with descriptors as many as such memory has.
func memoryOf(off, n int64, g *handoff.GPUMemory, fds []int) transfer.Memory {
	m := transfer.Memory{Kind: transfer.Memfd, FD: -1, Off: off, Len: n}
	switch {
	case g == nil:
		m.FD = fds[0]
		return m
	case len(g.Chunks) == 0:
		m.Kind = transfer.CUDA
	default:
		m.Kind = transfer.CUDAFD
	}
	m.GPU = &transfer.GPU{UUID: g.UUID, Handle: g.Handle}
	for i, size := range g.Chunks {
		m.GPU.Chunks = append(m.GPU.Chunks, transfer.Chunk{FD: fds[i], Len: size})
	}
	return m
}

// close unmaps the buffers and closes the descriptors.
func (b *buffers) close() error {
	var errs error
	for _, r := range b.regions {
		errs = errors.Join(errs, r.Close())
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, fds := range b.fds {
		sockfd.CloseAll(fds)
	}
	b.fds = nil
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

// share tells a peer what reaches the engine's buffers: the descriptors of each are behind a
// key that is good once.
func (s *Sidecar) share(f machine.ShareBuffers) {
	b := s.buffers[f.Session]
	msg := handoff.Buffers{Host: s.host, Socket: s.cfg.FDSocket, Chunk: s.staging.chunk()}
	if b == nil {
		msg = handoff.Buffers{Why: "the engine's buffers are not mapped"}
	} else {
		for _, d := range b.decls {
			c := handoff.BufferCard{Buffer: d.ID, Off: d.Off, Len: d.Len, GPU: d.GPU}
			if d.Descriptors() > 0 {
				c.Key = Random()
				if err := s.offer(c.Key, d, b.fds[d.ID], f.Peer); err != nil {
					msg = handoff.Buffers{Why: err.Error()}
					break
				}
			}
			msg.Cards = append(msg.Cards, c)
		}
	}
	s.toPeer(machine.ToPeer{Peer: f.Peer, Msg: msg})
}

// offer gives a peer the descriptors of a buffer: that of a file can read alone, since nobody
// writes into an engine's memory but its own side's mover. Those of a GPU know no such mode.
func (s *Sidecar) offer(key uint64, d handoff.BufferDecl, fds []int, p handoff.Member) error {
	if d.GPU != nil {
		return s.fds.Offer(key, fds, p.String())
	}
	ro, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", fds[0]), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("%w: open the engine's buffer for reading: %w", transfer.ErrMemory, err)
	}
	defer unix.Close(ro)
	return s.fds.Offer(key, []int{ro}, p.String())
}

// fetch gets a peer's descriptors against their keys.
func fetch(ctx context.Context, b handoff.Buffers) (map[transfer.RegionID]transfer.Memory, error) {
	out := map[transfer.RegionID]transfer.Memory{}
	for _, c := range b.Cards {
		var fds []int
		var err error
		if n := c.Descriptors(); n > 0 {
			fds, err = fd.Fetch(ctx, b.Socket, c.Key, n)
		}
		id := transfer.RegionID(c.Buffer)
		if _, twice := out[id]; twice && err == nil {
			sockfd.CloseAll(fds)
			err = fmt.Errorf("%w: it is there twice", handoff.ErrBound)
		}
		if err != nil {
			direct.CloseAll(out)
			return nil, fmt.Errorf("buffer %d: %w", c.Buffer, err)
		}
		out[id] = memoryOf(c.Off, c.Len, c.GPU, fds)
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
