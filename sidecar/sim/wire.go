package sim

import (
	"slices"
	"time"

	"github.com/batonkv/baton/transfer/staged"
)

// wires are a sidecar's wire mover for one peer, and what it knows of the session.
type wires struct {
	up   bool
	now  staged.Incarnation // 0: none runs
	dies bool
}

// fetch is a wire mover's ticket: it reads a chunk of the other end's arena.
type fetch struct {
	staged.Fetch
	of    *stage
	wire  staged.Incarnation // of the other end, that serves it
	over  bool
	hung  bool
	begun bool
}

// peer makes sure that the other end is known, with a wire mover for it.
func (s *stage) peer(o *sidecar) {
	p := s.peers[o]
	if p == nil {
		p = &wires{}
		s.peers[o] = p
	}
	if !p.up && s.n.session(o.self.Incarnation) != nil {
		p.up = true
		s.source(staged.PeerUp{Peer: o.peerID()})
		s.dest(staged.PeerUp{Peer: o.peerID()})
		if p.now == 0 && !p.dies {
			s.startWire(o, p)
		}
	}
}

// peerDown follows the end of the session.
func (s *stage) peerDown(o *sidecar) {
	if p := s.peers[o]; p != nil && p.up {
		p.up = false
		s.source(staged.PeerDown{Peer: o.peerID()})
		s.dest(staged.PeerDown{Peer: o.peerID()})
	}
}

func (s *stage) startWire(o *sidecar, p *wires) {
	w := s.n.w
	p.dies = true // until it serves
	w.after(w.between(100*time.Microsecond, 3*time.Millisecond), s.n, func() {
		w.lastWire++
		p.now, p.dies = w.lastWire, false
		s.source(staged.WireUp{Peer: o.peerID(), Wire: p.now})
		s.dest(staged.WireUp{Peer: o.peerID(), Wire: p.now})
	})
}

// killWire ends a wire mover: at once for whoever it serves, and its exit is seen later.
func (s *stage) killWire(o *sidecar, wire staged.Incarnation) {
	p, w := s.peers[o], s.n.w
	if p == nil || p.now != wire || p.dies {
		return
	}
	w.hit(WireDies)
	s.endWire(o, p)
}

// endWire is the end of a wire mover, and of the one that takes its place the begin.
func (s *stage) endWire(o *sidecar, p *wires) {
	w, wire := s.n.w, p.now
	p.dies = true
	w.after(w.between(0, 5*time.Millisecond), nil, func() {
		p.now = 0
		for _, f := range slices.Clone(s.reads) {
			if f.Fetch.Wire == wire {
				f.over = true // its exit says so
				s.reads = slices.DeleteFunc(s.reads, func(x *fetch) bool { return x == f })
			}
		}
		w.after(w.between(0, 30*time.Millisecond), s.n, func() {
			s.source(staged.WireExit{Peer: o.peerID(), Wire: wire})
			s.dest(staged.WireExit{Peer: o.peerID(), Wire: wire})
			if p.dies = false; p.up {
				s.startWire(o, p)
			}
		})
	})
}

// serves reports whether the wire mover that of named still serves s.n's peer.
func (s *stage) serves(o *sidecar, of staged.Incarnation) bool {
	p := s.peers[o]
	return p != nil && p.now != 0 && p.now == of && !s.n.dead
}

// fetch reads a chunk in three parts, in any order, from the wire mover that the offer
// names. A fetch that names none takes whichever serves.
func (s *stage) fetch(e staged.Fetch) {
	w, from := s.n.w, s.n.w.byID(e.Peer)
	f := &fetch{Fetch: e, of: from.stage, wire: e.Of}
	s.checkIn(e.Chunk)
	if s.peers[from].now != e.Wire {
		return // it has died, and its exit says so
	}
	s.reads = append(s.reads, f)
	if e.Of == 0 && f.of != nil && f.of.peers[s.n] != nil {
		f.wire = f.of.peers[s.n].now
	}
	if w.chance(w.temper.hang) {
		w.hit(CopyHangs)
		f.hung = true
		return
	}
	s.carryOut(f)
}

// carryOut moves the parts.
func (s *stage) carryOut(f *fetch) {
	w := s.n.w
	took := w.between(100*time.Microsecond, 5*time.Millisecond)
	if w.chance(20) {
		w.hit(SlowCopy)
		took = w.between(5*time.Millisecond, 6*time.Second)
	}
	for part := range 3 {
		w.after(w.between(0, took), nil, func() {
			if f.over || f.of == nil {
				return
			}
			if !f.of.serves(s.n, f.wire) {
				s.fetched(f, staged.Transfer)
				return
			}
			f.begun = true
			f.of.checkRead(f)
			src, dst := &f.of.out[f.From], &s.in[f.Chunk]
			switch part {
			case 0:
				dst.head = src.head
			case 1:
				dst.body = src.body
			case 2:
				dst.tail = src.tail
			}
		})
	}
	w.after(took, nil, func() {
		why := staged.Reason(0)
		if f.of == nil || w.chance(w.temper.failing) {
			w.hit(CopyFails)
			why = staged.Transfer
		}
		s.fetched(f, why)
	})
}

func (s *stage) fetched(f *fetch, why staged.Reason) {
	if f.over {
		return
	}
	f.over = true
	s.reads = slices.DeleteFunc(s.reads, func(x *fetch) bool { return x == f })
	s.n.w.after(0, s.n, func() { s.dest(staged.FetchDone{Ticket: f.Ticket, Why: why}) })
}

// cancelFetch asks a fetch to stop; it may not.
func (s *stage) cancelFetch(ticket uint64) {
	for _, f := range s.reads {
		if f.Ticket == ticket && !f.hung && s.n.w.chance(60) {
			s.n.w.after(s.n.w.between(0, 2*time.Millisecond), nil, func() { s.fetched(f, staged.Canceled) })
		}
	}
}

// resume lets what hangs go on.
func (s *stage) resume() {
	for _, f := range slices.Clone(s.reads) {
		if f.hung {
			f.hung = false
			s.carryOut(f)
		}
	}
}

// end is the end of the process, and of its movers.
func (s *stage) end() {
	for _, p := range slices.Concat(s.packs, s.takes) {
		p.over = true
	}
	for _, f := range s.reads {
		f.over = true
	}
	s.packs, s.takes, s.reads = nil, nil, nil
	for _, p := range s.peers {
		p.now, p.dies = 0, true
	}
}

// checkOut: a chunk is packed when no ticket of either end is open on it.
func (s *stage) checkOut(chunk int32) {
	for _, p := range s.packs {
		if p.chunk == chunk {
			s.n.w.fail("%v packs chunk %d, which a pack still writes", s.n.self, chunk)
		}
	}
	for _, o := range s.n.w.lives {
		if o.stage == nil {
			continue
		}
		for _, f := range o.stage.reads {
			if f.of == s && f.From == chunk && f.begun && s.serves(o, f.wire) {
				s.n.w.fail("%v packs chunk %d, which %v still reads", s.n.self, chunk, o.self)
			}
		}
	}
}

// checkRead: a chunk is read when no pack writes it.
func (s *stage) checkRead(f *fetch) {
	for _, p := range s.packs {
		if p.chunk == f.From && !p.dead {
			s.n.w.fail("chunk %d of %v is read for offer %d, and a pack writes it", f.From, s.n.self, p.stamp.Offer)
		}
	}
}

// checkPack: a grant keeps the memory that is packed.
func (s *stage) checkPack(l *load) {
	if l == nil {
		return
	}
	if p := s.n.pins[l.t.p.Of.Pin]; !p.held() {
		s.n.w.fail("%v packs for %v from pin %d of %q, and its memory is not held", s.n.self, l.by, l.t.p.Of.Pin, p.label)
	}
}

// checkIn: a chunk is fetched into when no ticket of either mover is open on it.
func (s *stage) checkIn(chunk int32) {
	for _, f := range s.reads {
		if f.Chunk == chunk {
			s.n.w.fail("%v fetches into chunk %d, into which another fetch goes", s.n.self, chunk)
		}
	}
	for _, p := range s.takes {
		if p.chunk == chunk {
			s.n.w.fail("%v fetches into chunk %d, which an unpack still reads", s.n.self, chunk)
		}
	}
}

// checkRest: a chunk always has an exit.
func (s *stage) checkRest() {
	if src, dst := s.src.Use(), s.dst.Use(); src.Free != arena || dst.Free != arena {
		s.n.w.fail("%v is left with chunks: source %+v, destination %+v", s.n.self, src, dst)
	}
}
