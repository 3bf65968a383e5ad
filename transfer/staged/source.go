package staged

import (
	"fmt"
	"slices"

	"github.com/batonkv/baton/transfer"
)

type sourceState uint8

const (
	srcFree    sourceState = iota
	srcPacking             // a pack ticket is open: offer is its number
	srcPacked              // no ticket is open, the peer does not know it
	srcOffered             // the peer may read it from wire
)

type sourceChunk struct {
	state       sourceState
	peer        *sourcePeer // nil: free
	job         Job
	seq         int32
	grant       uint64
	offer       uint64
	wire        Incarnation // offered: who serves the reads
	over        bool        // its job is over
	quarantined bool
}

type grantState uint8

const (
	grantAsked grantState = iota
	grantOpen
	grantEnded // every chunk is packed
)

type sourceJob struct {
	job     Job
	total   int32
	next    int32  // chunk to pack
	settled window // credited
	grant   uint64
	leave   grantState
}

type sourcePeer struct {
	id      transfer.PeerID
	up      bool
	wire    Incarnation // 0: no wire mover serves this peer
	killing bool        // KillWire of wire went out
	held    int32       // chunks
	jobs    []*sourceJob
}

// Source is the end that packs and offers. Not safe for concurrent use.
//
// Invariants: a chunk is packed only when free, under an open grant; it is offered
// only by the wire mover that serves then, after its pack was good; it leaves
// srcOffered only by the reader's credit for that offer or the seen exit of that wire
// mover. A peer without a session keeps no offered chunk longer than its wire mover
// takes to exit. At most one chunk of a peer is quarantined.
type Source struct {
	cfg    Config
	chunks []sourceChunk
	peers  []*sourcePeer
	turn   int    // index of the peer that is asked first
	last   uint64 // newest offer, ticket and grant number
	out    []SourceEffect
}

// NewSource makes the source half over an arena.
func NewSource(c Config) (*Source, error) {
	if err := c.Check(); err != nil {
		return nil, fmt.Errorf("source: %w", err)
	}
	return &Source{cfg: c, chunks: make([]sourceChunk, c.Chunks)}, nil
}

// Step takes one event and returns what to do, in order. The effects are valid until
// the next Step.
func (s *Source) Step(e SourceEvent) []SourceEffect {
	s.out = s.out[:0]
	switch e := e.(type) {
	case PeerUp:
		s.peer(e.Peer).up = true
	case PeerDown:
		s.peerDown(s.peer(e.Peer))
	case WireUp:
		s.wireUp(s.peer(e.Peer), e.Wire)
	case WireExit:
		s.wireExit(s.peer(e.Peer), e.Wire)
	case FromPeer:
		s.message(s.peer(e.Peer), e.Msg)
	case Cancel:
		if p, j := s.find(e.Job); j != nil {
			s.fail(p, j, Canceled)
		}
	case Granted:
		s.granted(e.Grant)
	case Refused:
		s.leaseOver(e.Grant)
	case Revoked:
		s.leaseOver(e.Grant)
	case PackDone:
		s.packDone(e)
	case Overdue:
		s.overdue(e.Ticket)
	}
	s.fill()
	s.forget()
	return s.out
}

// Use counts the arena's chunks.
func (s *Source) Use() (u Use) {
	for i := range s.chunks {
		switch c := &s.chunks[i]; {
		case c.state == srcFree:
			u.Free++
		case c.state == srcPacking:
			u.Local++
		case c.state == srcPacked:
			u.Ready++
		case c.quarantined:
			u.Quarantined++
		default:
			u.Wire++
		}
	}
	return u
}

func (s *Source) emit(e SourceEffect) { s.out = append(s.out, e) }

func (s *Source) peer(id transfer.PeerID) *sourcePeer {
	for _, p := range s.peers {
		if p.id == id {
			return p
		}
	}
	p := &sourcePeer{id: id}
	s.peers = append(s.peers, p)
	return p
}

func (s *Source) find(j Job) (*sourcePeer, *sourceJob) {
	for _, p := range s.peers {
		for _, o := range p.jobs {
			if o.job == j {
				return p, o
			}
		}
	}
	return nil, nil
}

// forget drops peers of which nothing is left.
func (s *Source) forget() {
	s.peers = slices.DeleteFunc(s.peers, func(p *sourcePeer) bool {
		return !p.up && p.wire == 0 && p.held == 0 && len(p.jobs) == 0
	})
}

func (s *Source) peerDown(p *sourcePeer) {
	p.up = false
	for len(p.jobs) > 0 {
		s.fail(p, p.jobs[0], Peer)
	}
	for i := range s.chunks {
		if c := &s.chunks[i]; c.peer == p && c.state == srcOffered {
			s.kill(p) // no credit will come: only the exit ends the peer's reads
		}
	}
}

func (s *Source) wireUp(p *sourcePeer, w Incarnation) {
	p.wire, p.killing = w, false
	for i := range s.chunks {
		if c := &s.chunks[i]; c.peer == p && c.state == srcPacked {
			s.offer(c)
		}
	}
}

// wireExit ends the reads of what that process offered. Packs go on: they belong to
// the local mover.
func (s *Source) wireExit(p *sourcePeer, w Incarnation) {
	if p.wire == w {
		p.wire, p.killing = 0, false
	}
	for i := range s.chunks {
		c := &s.chunks[i]
		if c.peer != p || c.state != srcOffered || c.wire != w {
			continue
		}
		job, over := c.job, c.over
		s.free(c)
		if over {
			continue
		}
		if _, j := s.find(job); j != nil {
			s.fail(p, j, Mover)
		}
	}
}

func (s *Source) kill(p *sourcePeer) {
	if p.wire != 0 && !p.killing {
		p.killing = true
		s.emit(KillWire{p.id, p.wire})
	}
}

func (s *Source) message(p *sourcePeer, m Message) {
	switch m := m.(type) {
	case Want:
		s.want(p, m)
	case Credit:
		s.credit(p, m)
	case Stop:
		if o, j := s.find(m.Job); j != nil && o == p {
			s.fail(p, j, Stopped)
		} else {
			s.emit(Refuse{p.id, m, Unmatched})
		}
	default:
		s.emit(Refuse{p.id, m, Malformed})
	}
}

func (s *Source) want(p *sourcePeer, m Want) {
	switch _, j := s.find(m.Job); {
	case !p.up:
		s.emit(Refuse{p.id, m, Unmatched})
	case j != nil:
		s.emit(Refuse{p.id, m, Repeated})
	case m.Chunks < 1:
		s.emit(Refuse{p.id, m, Malformed})
		s.emit(Send{p.id, Gone{m.Job, Transfer}})
	case len(p.jobs) >= int(s.cfg.MaxJobs):
		s.emit(Refuse{p.id, m, TooMany})
		s.emit(Send{p.id, Gone{m.Job, Full}})
	default:
		s.last++
		p.jobs = append(p.jobs, &sourceJob{job: m.Job, total: m.Chunks, grant: s.last})
		s.emit(AskGrant{s.last, p.id, m.Job, m.Pin})
	}
}

func (s *Source) credit(p *sourcePeer, m Credit) {
	for i := range s.chunks {
		c := &s.chunks[i]
		if c.state != srcOffered || c.offer != m.Offer || c.peer != p {
			continue
		}
		job, seq, over := c.job, c.seq, c.over
		s.free(c)
		if _, j := s.find(job); j != nil && !over {
			j.settled.add(seq)
			if j.settled.lo == j.total {
				s.drop(p, j, 0)
			}
		}
		return
	}
	s.emit(Refuse{p.id, m, Unmatched})
}

func (s *Source) byGrant(grant uint64) (*sourcePeer, *sourceJob) {
	for _, p := range s.peers {
		for _, j := range p.jobs {
			if j.grant == grant {
				return p, j
			}
		}
	}
	return nil, nil
}

func (s *Source) granted(grant uint64) {
	if _, j := s.byGrant(grant); j != nil {
		j.leave = grantOpen
		return
	}
	s.emit(EndGrant{grant}) // the job ended while the answer was under way
}

// leaseOver ends a job whose pin may go: what the peer has read would fail its Check.
func (s *Source) leaseOver(grant uint64) {
	if p, j := s.byGrant(grant); j != nil {
		if j.leave == grantAsked {
			j.leave = grantEnded // refused: there is nothing to give back
		}
		s.fail(p, j, Lease)
	}
}

// fail ends a job of p that is not complete. Chunks with an open ticket stay.
func (s *Source) fail(p *sourcePeer, j *sourceJob, why Reason) {
	s.drop(p, j, why)
	packing := false
	for i := range s.chunks {
		c := &s.chunks[i]
		if c.job != j.job || c.over {
			continue
		}
		switch c.state {
		case srcPacking:
			c.over, packing = true, true
		case srcPacked:
			s.free(c)
		case srcOffered:
			c.over = true
			s.emit(Await{c.offer})
		}
	}
	if j.leave == grantOpen && !packing {
		s.emit(EndGrant{j.grant})
	}
	if p.up && why != Stopped {
		s.emit(Send{p.id, Gone{j.job, why}})
	}
}

// drop takes a job off its peer's list.
func (s *Source) drop(p *sourcePeer, j *sourceJob, why Reason) {
	p.jobs = slices.DeleteFunc(p.jobs, func(o *sourceJob) bool { return o == j })
	s.emit(Served{j.job, why})
}

func (s *Source) packDone(e PackDone) {
	i := slices.IndexFunc(s.chunks, func(c sourceChunk) bool { return c.state == srcPacking && c.offer == e.Ticket })
	if i < 0 {
		return
	}
	c := &s.chunks[i]
	c.state = srcPacked
	p, grant, over := c.peer, c.grant, c.over
	j := (*sourceJob)(nil)
	if !over {
		_, j = s.find(c.job)
	}
	switch {
	case over || j == nil:
		s.free(c)
	case e.Why != 0:
		s.fail(p, j, e.Why)
		return
	case p.wire != 0 && !p.killing:
		s.offer(c)
	}
	packing := slices.ContainsFunc(s.chunks, func(c sourceChunk) bool { return c.state == srcPacking && c.grant == grant })
	if packing || j != nil && j.next < j.total {
		return
	}
	if j != nil {
		j.leave = grantEnded
	}
	s.emit(EndGrant{grant}) // that was its last pack
}

// offer lets the peer read a packed chunk from the wire mover that serves.
func (s *Source) offer(c *sourceChunk) {
	c.state, c.wire = srcOffered, c.peer.wire
	i := int32(slices.IndexFunc(s.chunks, func(o sourceChunk) bool { return o.offer == c.offer }))
	s.emit(Send{c.peer.id, Offer{Job: c.job, Seq: c.seq, Offer: c.offer, Chunk: i, Wire: c.wire}})
}

// overdue: the first chunk of a peer that does not come back waits on, so that the
// peer's other jobs live; a second one, or a second time, costs the wire mover.
func (s *Source) overdue(ticket uint64) {
	i := slices.IndexFunc(s.chunks, func(c sourceChunk) bool { return c.state == srcOffered && c.offer == ticket && c.over })
	if i < 0 {
		return
	}
	c := &s.chunks[i]
	if slices.ContainsFunc(s.chunks, func(o sourceChunk) bool { return o.peer == c.peer && o.quarantined }) {
		s.kill(c.peer)
		return
	}
	c.quarantined = true
	s.emit(Await{ticket})
}

func (s *Source) free(c *sourceChunk) {
	c.peer.held--
	*c = sourceChunk{}
}
