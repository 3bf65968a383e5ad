package sim

import (
	"slices"
	"strconv"
	"time"

	"github.com/batonkv/baton/sidecar/handoff"
	"github.com/batonkv/baton/sidecar/machine"
	"github.com/batonkv/baton/transfer"
	"github.com/batonkv/baton/transfer/staged"
)

// stage is a sidecar's staging: the machines of both ends, their arenas, and the work that
// movers do for them. Worlds whose groups share no host have it; a job of one cell is a
// chunk.
type stage struct {
	n     *sidecar
	src   *staged.Source
	dst   *staged.Dest
	out   []chunk // the source's arena
	in    []chunk // the destination's
	peers map[*sidecar]*wires
	packs []*work
	takes []*work // unpacks
	reads []*fetch
	slow  bool // the next pack takes long
}

// chunk holds what one cell does, between two stamps.
type chunk struct {
	head, tail staged.Stamp
	body       [units]uint32
}

// work is a ticket of the local mover.
type work struct {
	ticket uint64
	chunk  int32
	stamp  staged.Stamp
	over   bool
	dead   bool // its mover is, and touches nothing
}

// load is what a staged ticket moves.
type load struct {
	t     *ticket
	by    handoff.Member
	cells [][2]int // destination, source: one a chunk
}

const (
	arena    = 2
	patience = 3 * time.Second // before a wire mover that does not answer is killed
)

func (n *sidecar) staging() *stage {
	if n.stage == nil {
		c := staged.Config{Chunks: arena, PerPeer: arena, MaxJobs: 4}
		src, err := staged.NewSource(c)
		if err != nil {
			panic(err)
		}
		dst, err := staged.NewDest(c)
		if err != nil {
			panic(err)
		}
		n.stage = &stage{n: n, src: src, dst: dst, out: make([]chunk, arena), in: make([]chunk, arena), peers: map[*sidecar]*wires{}}
	}
	return n.stage
}

func (n *sidecar) peerID() transfer.PeerID {
	return transfer.PeerID(strconv.FormatUint(uint64(n.self.Incarnation), 16))
}

func (w *world) byID(id transfer.PeerID) *sidecar {
	i, _ := strconv.ParseUint(string(id), 16, 64) // of peerID
	return w.life(handoff.Incarnation(i))
}

// jobOf names a staged ticket as both ends do.
func jobOf(n *sidecar, t *ticket, from handoff.Member) staged.Job {
	return staged.Job{Handoff: t.p.Job.Handoff, Attempt: t.p.Ticket, Pair: uint32(n.self.Incarnation)<<16 | uint32(from.Incarnation)}
}

// pullStaged starts a job.
func (n *sidecar) pullStaged(t *ticket) {
	s, j := n.staging(), t.p.Job
	l := &load{t: t, by: n.self}
	for i := j.Tokens.Lo / blockTokens; i < blocksFor(j.Tokens.Hi) && !j.Tokens.Empty(); i++ {
		l.cells = append(l.cells, [2]int{int(j.DstBlocks[i]), int(j.SrcBlocks[i])})
	}
	if j.DstSlot >= 0 && t.p.Piece.Whole {
		l.cells = append(l.cells, [2]int{t.into.blocks + int(j.DstSlot), t.link.eng.blocks + int(j.SrcSlot)})
	}
	from := n.w.life(t.p.Peer.Incarnation)
	t.job = jobOf(n, t, t.p.Peer)
	n.w.loads[t.job] = l
	s.peer(from)
	s.dest(staged.Pull{Peer: from.peerID(), Job: t.job, Pin: staged.Pin{ID: uint64(t.p.Of.Pin), Generation: uint64(t.p.Of.Generation)}, Chunks: int32(len(l.cells))})
}

// fromStaged takes a message of the other end.
func (n *sidecar) fromStaged(from *sidecar, msg staged.Message) {
	if n.dead {
		return
	}
	s := n.staging()
	s.peer(from)
	switch msg.(type) {
	case staged.Offer, staged.Gone:
		s.dest(staged.FromPeer{Peer: from.peerID(), Msg: msg})
	default:
		s.source(staged.FromPeer{Peer: from.peerID(), Msg: msg})
	}
}

// send puts a message on the session, between those of the hand-off.
func (s *stage) send(to *sidecar, msg staged.Message) {
	n, w := s.n, s.n.w
	ss := n.session(to.self.Incarnation)
	if ss == nil || ss.cut {
		return
	}
	times := 1
	if w.chance(w.temper.dup) {
		w.hit(Duplicate)
		times = 2
	}
	end := 1 - ss.end(n)
	if _, ok := msg.(staged.Offer); ok {
		s.pinch(to, ss, end)
	}
	for range times {
		at := max(ss.last[end], w.now+w.transit())
		ss.last[end] = at
		w.when(at, to, func() {
			switch {
			case ss.cut && at > ss.keeps[end]:
				w.hit(LostMessage)
				if w.chance(30) {
					w.after(w.between(time.Millisecond, 2*time.Second), to, func() {
						if to.session(n.self.Incarnation) != nil {
							w.hit(Outlives)
							to.fromStaged(n, msg)
						}
					})
				}
			case slices.Contains(to.sessions, ss):
				to.fromStaged(n, msg)
			}
		})
	}
}

// source steps the source half, and carries out what it wants.
func (s *stage) source(e staged.SourceEvent) {
	w := s.n.w
	for _, f := range slices.Clone(s.src.Step(e)) {
		if w.print != nil {
			w.tell("%v  source: %s", s.n.self, short(f))
		}
		switch f := f.(type) {
		case staged.Send:
			s.send(w.byID(f.Peer), f.Msg)
		case staged.KillWire:
			s.killWire(w.byID(f.Peer), f.Wire)
		case staged.Await:
			w.after(patience, s.n, func() { s.source(staged.Overdue{Ticket: f.Ticket}) })
		case staged.AskGrant:
			job := e.(staged.FromPeer).Msg.(staged.Want).Job // it is its answer
			w.after(0, s.n, func() { s.grant(job, f) })
		case staged.EndGrant:
			w.after(0, s.n, func() { s.n.step(machine.GrantEnded{Grant: f.Grant}) })
		case staged.Pack:
			s.pack(f)
		}
	}
}

// grant asks the rank's machine for leave to pack; it answers by effects.
func (s *stage) grant(job staged.Job, f staged.AskGrant) {
	n := s.n
	l := n.w.loads[job]
	if l == nil {
		s.source(staged.Refused{Grant: f.Grant}) // the reader gave up
		return
	}
	n.step(machine.AskGrant{Grant: f.Grant, Peer: l.by, Of: l.t.p.Of})
}

// dest steps the destination half.
func (s *stage) dest(e staged.DestEvent) {
	w := s.n.w
	for _, f := range slices.Clone(s.dst.Step(e)) {
		if w.print != nil {
			w.tell("%v  dest: %s", s.n.self, short(f))
		}
		switch f := f.(type) {
		case staged.Send:
			s.send(w.byID(f.Peer), f.Msg)
		case staged.KillWire:
			s.killWire(w.byID(f.Peer), f.Wire)
		case staged.Await:
			w.after(patience, s.n, func() { s.dest(staged.Overdue{Ticket: f.Ticket}) })
		case staged.Fetch:
			s.fetch(f)
		case staged.CancelFetch:
			s.cancelFetch(f.Ticket)
		case staged.Unpack:
			s.unpack(f)
		case staged.JobDone:
			if l := w.loads[f.Job]; l != nil {
				delete(w.loads, f.Job)
				s.n.settle(l.t, f.Why.Err())
			}
		}
	}
}

// pack stamps a chunk and copies one cell into it.
func (s *stage) pack(f staged.Pack) {
	w, p := s.n.w, &work{ticket: f.Ticket, chunk: f.Chunk, stamp: f.Stamp}
	s.checkOut(f.Chunk)
	s.packs = append(s.packs, p)
	if s.n.reaping > 0 { // it went to the mover that is dead
		s.lost(p, s.packed)
		return
	}
	l := w.loads[f.Stamp.Job]
	took := w.between(100*time.Microsecond, 3*time.Millisecond)
	if w.chance(w.temper.packs) || s.slow && !w.calm {
		s.slow = false
		w.hit(SlowPack)
		took = w.between(3*time.Millisecond, w.temper.pack)
	}
	begin := w.between(0, took)
	c := &s.out[f.Chunk]
	do := func(at time.Duration, f func()) {
		w.after(at, nil, func() {
			if !p.over && !p.dead {
				s.checkPack(l)
				f()
			}
		})
	}
	do(0, func() { c.head = f.Stamp })
	do(begin, func() {
		if l != nil {
			c.body = l.t.link.eng.cells[l.cells[f.Stamp.Seq][1]].holds
		}
	})
	do(took, func() { c.tail = f.Stamp })
	why := staged.Reason(0)
	if w.chance(w.temper.failing) {
		w.hit(CopyFails)
		why = staged.Transfer
	}
	w.after(took, nil, func() {
		if !p.dead { // else its exit settles it
			s.packed(p, why)
		}
	})
}

func (s *stage) packed(p *work, why staged.Reason) {
	if p.over {
		return
	}
	p.over = true
	s.packs = slices.DeleteFunc(s.packs, func(o *work) bool { return o == p })
	s.n.w.after(0, s.n, func() { s.source(staged.PackDone{Ticket: p.ticket, Why: why}) })
}

// unpack compares the stamps and copies the chunk to the engine's memory.
func (s *stage) unpack(f staged.Unpack) {
	w, p := s.n.w, &work{ticket: f.Ticket, chunk: f.Chunk, stamp: f.Stamp}
	s.takes = append(s.takes, p)
	if s.n.reaping > 0 {
		s.lost(p, s.unpacked)
		return
	}
	took := w.between(100*time.Microsecond, 3*time.Millisecond)
	if w.chance(10) {
		took = w.between(3*time.Millisecond, 3*time.Second)
	}
	why := staged.Reason(0)
	w.after(w.between(0, took), nil, func() {
		c := s.in[f.Chunk]
		switch l := w.loads[f.Stamp.Job]; {
		case p.over || p.dead || l == nil:
		case c.head != f.Stamp || c.tail != f.Stamp:
			why = staged.BadStamp
		default:
			s.n.checkWrite(l.t)
			lo, hi := s.n.units()
			slo, shi := l.t.link.eng.units()
			for u := max(lo, slo); u < min(hi, shi); u++ {
				l.t.into.cells[l.cells[f.Stamp.Seq][0]].holds[u] = c.body[u]
			}
		}
	})
	w.after(took, nil, func() {
		if !p.dead {
			s.unpacked(p, why)
		}
	})
}

func (s *stage) unpacked(p *work, why staged.Reason) {
	if p.over {
		return
	}
	p.over = true
	s.takes = slices.DeleteFunc(s.takes, func(o *work) bool { return o == p })
	s.n.w.after(0, s.n, func() { s.dest(staged.UnpackDone{Ticket: p.ticket, Why: why}) })
}

// lost is the end of what a mover had in hand when it died.
func (s *stage) lost(p *work, settle func(*work, staged.Reason)) {
	p.dead = true
	s.n.w.after(s.n.w.between(0, 40*time.Millisecond), nil, func() { settle(p, staged.Mover) })
}

// moverDies ends what the local mover had in hand.
func (s *stage) moverDies() {
	for _, p := range s.packs {
		s.lost(p, s.packed)
	}
	for _, p := range s.takes {
		s.lost(p, s.unpacked)
	}
}
