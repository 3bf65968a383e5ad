package staged

import (
	"fmt"
	"slices"

	"github.com/batonkv/baton/transfer"
)

type destState uint8

const (
	dstFree      destState = iota
	dstFetching            // a fetch ticket of this end's wire mover is open
	dstUnpacking           // an unpack ticket of the local mover is open
)

type destChunk struct {
	state       destState
	peer        *destPeer // nil: free
	job         Job
	seq         int32
	offer       uint64
	ticket      uint64
	wire        Incarnation // fetching: whose ticket it is
	over        bool        // fetching: its job is over
	quarantined bool
}

type destJob struct {
	job   Job
	total int32
	taken window // offers that were taken up
	left  int32  // chunks not unpacked yet
	why   Reason // not 0: failed, JobDone follows the last unpack
}

type destPeer struct {
	id      transfer.PeerID
	up      bool
	wire    Incarnation // 0: no wire mover serves this peer
	killing bool        // KillWire of wire went out
	held    int32       // chunks
	jobs    []*destJob
	offers  []Offer // taken up, waiting for a chunk; at most windowSize
}

// Dest is the end that fetches and unpacks. Not safe for concurrent use.
//
// Invariants: a chunk is fetched into only when free, for an offer in hand; it leaves
// dstFetching only by its ticket's end or the seen exit of the wire mover that had it,
// and dstUnpacking only by its ticket's end. An offer is fetched at most once, and
// credited once no fetch of it is open. JobDone comes once a job, after its last
// unpack. At most one chunk of a peer is quarantined.
type Dest struct {
	cfg    Config
	chunks []destChunk
	peers  []*destPeer
	turn   int    // index of the peer that is asked first
	last   uint64 // newest ticket
	out    []DestEffect
}

// NewDest makes the destination half over an arena.
func NewDest(c Config) (*Dest, error) {
	if err := c.Check(); err != nil {
		return nil, fmt.Errorf("dest: %w", err)
	}
	return &Dest{cfg: c, chunks: make([]destChunk, c.Chunks)}, nil
}

// Step takes one event and returns what to do, in order. The effects are valid until
// the next Step.
func (d *Dest) Step(e DestEvent) []DestEffect {
	d.out = d.out[:0]
	switch e := e.(type) {
	case PeerUp:
		d.peer(e.Peer).up = true
	case PeerDown:
		d.peerDown(d.peer(e.Peer))
	case WireUp:
		p := d.peer(e.Peer)
		p.wire, p.killing = e.Wire, false
	case WireExit:
		d.wireExit(d.peer(e.Peer), e.Wire)
	case FromPeer:
		d.message(d.peer(e.Peer), e.Msg)
	case Cancel:
		if p, j := d.find(e.Job); j != nil {
			d.fail(p, j, Canceled)
		}
	case Pull:
		d.pull(d.peer(e.Peer), e)
	case FetchDone:
		if c := d.open(dstFetching, e.Ticket); c != nil {
			d.fetched(c, e.Why)
		}
	case UnpackDone:
		if c := d.open(dstUnpacking, e.Ticket); c != nil {
			d.unpacked(c, e.Why)
		}
	case Overdue:
		d.overdue(e.Ticket)
	}
	d.fill()
	d.forget()
	return d.out
}

// Use counts the arena's chunks.
func (d *Dest) Use() (u Use) {
	for i := range d.chunks {
		switch c := &d.chunks[i]; {
		case c.state == dstFree:
			u.Free++
		case c.state == dstUnpacking:
			u.Local++
		case c.quarantined:
			u.Quarantined++
		default:
			u.Wire++
		}
	}
	return u
}

func (d *Dest) emit(e DestEffect) { d.out = append(d.out, e) }

func (d *Dest) send(p *destPeer, m Message) {
	if p.up {
		d.emit(Send{p.id, m})
	}
}

func (d *Dest) peer(id transfer.PeerID) *destPeer {
	for _, p := range d.peers {
		if p.id == id {
			return p
		}
	}
	p := &destPeer{id: id}
	d.peers = append(d.peers, p)
	return p
}

func (d *Dest) find(j Job) (*destPeer, *destJob) {
	for _, p := range d.peers {
		for _, o := range p.jobs {
			if o.job == j {
				return p, o
			}
		}
	}
	return nil, nil
}

func (d *Dest) open(s destState, ticket uint64) *destChunk {
	for i := range d.chunks {
		if c := &d.chunks[i]; c.state == s && c.ticket == ticket {
			return c
		}
	}
	return nil
}

// forget drops peers of which nothing is left.
func (d *Dest) forget() {
	d.peers = slices.DeleteFunc(d.peers, func(p *destPeer) bool {
		return !p.up && p.wire == 0 && p.held == 0 && len(p.jobs) == 0
	})
}

// peerDown fails every job of the peer: a staged pull that saw its session break
// cannot be proved over the next one.
func (d *Dest) peerDown(p *destPeer) {
	p.up = false
	for _, j := range slices.Clone(p.jobs) {
		d.fail(p, j, Peer)
	}
}

// wireExit ends that process's fetches. Unpacks go on: they belong to the local mover.
func (d *Dest) wireExit(p *destPeer, w Incarnation) {
	if p.wire == w {
		p.wire, p.killing = 0, false
	}
	for i := range d.chunks {
		if c := &d.chunks[i]; c.peer == p && c.state == dstFetching && c.wire == w {
			d.fetched(c, Mover)
		}
	}
}

func (d *Dest) kill(p *destPeer) {
	if p.wire != 0 && !p.killing {
		p.killing = true
		d.emit(KillWire{p.id, p.wire})
	}
}

func (d *Dest) pull(p *destPeer, e Pull) {
	_, dup := d.find(e.Job)
	switch {
	case dup != nil:
		d.emit(Refuse{p.id, Want{e.Job, e.Pin, e.Chunks}, Repeated})
	case !p.up:
		d.emit(JobDone{e.Job, Peer})
	case len(p.jobs) >= int(d.cfg.MaxJobs):
		d.emit(JobDone{e.Job, Full})
	case e.Chunks < 1:
		d.emit(JobDone{Job: e.Job}) // nothing is left to pull
	default:
		p.jobs = append(p.jobs, &destJob{job: e.Job, total: e.Chunks, left: e.Chunks})
		d.send(p, Want{e.Job, e.Pin, e.Chunks})
	}
}

func (d *Dest) message(p *destPeer, m Message) {
	switch m := m.(type) {
	case Offer:
		if why := d.offered(p, m); why != 0 {
			d.emit(Refuse{p.id, m, why})
		}
	case Gone:
		if o, j := d.find(m.Job); j != nil && o == p {
			if m.Why == 0 || m.Why >= maxReason {
				m.Why = Transfer
			}
			d.fail(p, j, m.Why)
		} else {
			d.emit(Refuse{p.id, m, Unmatched})
		}
	default:
		d.emit(Refuse{p.id, m, Malformed})
	}
}

// offered takes an offer up, or says why not. One that is not taken up is credited,
// so that the source's chunk comes back, unless a copy of it is under way.
func (d *Dest) offered(p *destPeer, m Offer) Refusal {
	queued := slices.ContainsFunc(p.offers, func(o Offer) bool { return o.Offer == m.Offer })
	if queued || slices.ContainsFunc(d.chunks, func(c destChunk) bool {
		return c.peer == p && c.state == dstFetching && c.offer == m.Offer
	}) {
		return Repeated
	}
	o, j := d.find(m.Job)
	switch {
	case j == nil || o != p || j.why != 0:
		d.send(p, Credit{m.Offer})
		d.send(p, Stop{m.Job})
		return Unmatched
	case m.Seq < 0 || m.Seq >= j.total || m.Chunk < 0 || !j.taken.fits(m.Seq):
		d.send(p, Credit{m.Offer})
		return Malformed
	case j.taken.has(m.Seq):
		d.send(p, Credit{m.Offer})
		return Repeated
	case len(p.offers) >= windowSize:
		d.send(p, Credit{m.Offer})
		return TooMany
	}
	j.taken.add(m.Seq)
	p.offers = append(p.offers, m)
	return 0
}

// fetched ends a fetch: the source's chunk is free for this end, and the bytes are
// unpacked if anybody still wants them.
func (d *Dest) fetched(c *destChunk, why Reason) {
	p := c.peer
	d.send(p, Credit{c.offer})
	_, j := d.find(c.job)
	if c.over || j == nil {
		d.free(c)
		return
	}
	if why != 0 {
		d.free(c)
		d.fail(p, j, why)
		return
	}
	d.last++
	c.state, c.ticket, c.wire = dstUnpacking, d.last, 0
	i := int32(slices.IndexFunc(d.chunks, func(o destChunk) bool { return o.ticket == d.last }))
	d.emit(Unpack{d.last, i, Stamp{Job: c.job, Seq: c.seq, Offer: c.offer}})
}

func (d *Dest) unpacked(c *destChunk, why Reason) {
	p, j := d.find(c.job)
	d.free(c)
	if why == 0 {
		j.left--
	} else if j.why == 0 {
		d.fail(p, j, why)
		return
	}
	d.end(p, j)
}

// fail ends a job's intake. Its open tickets are asked to stop; JobDone comes when no
// unpack is left.
func (d *Dest) fail(p *destPeer, j *destJob, why Reason) {
	if j.why != 0 {
		return
	}
	j.why = why
	p.offers = slices.DeleteFunc(p.offers, func(o Offer) bool {
		if o.Job == j.job {
			d.send(p, Credit{o.Offer})
		}
		return o.Job == j.job
	})
	for i := range d.chunks {
		c := &d.chunks[i]
		if c.job != j.job {
			continue
		}
		switch c.state {
		case dstFetching:
			c.over = true
			d.emit(CancelFetch{c.ticket})
			d.emit(Await{c.ticket})
		case dstUnpacking:
			d.emit(CancelUnpack{c.ticket})
		}
	}
	d.send(p, Stop{j.job})
	d.end(p, j)
}

// end reports a job whose engine memory is quiet.
func (d *Dest) end(p *destPeer, j *destJob) {
	if j.left > 0 && j.why == 0 || slices.ContainsFunc(d.chunks, func(c destChunk) bool {
		return c.state == dstUnpacking && c.job == j.job
	}) {
		return
	}
	p.jobs = slices.DeleteFunc(p.jobs, func(o *destJob) bool { return o == j })
	d.emit(JobDone{j.job, j.why})
}

// overdue: the first chunk of a peer that does not come back waits on, so that the
// peer's other jobs live; a second one, or a second time, costs the wire mover.
func (d *Dest) overdue(ticket uint64) {
	c := d.open(dstFetching, ticket)
	if c == nil || !c.over {
		return
	}
	if slices.ContainsFunc(d.chunks, func(o destChunk) bool { return o.peer == c.peer && o.quarantined }) {
		d.kill(c.peer)
		return
	}
	c.quarantined = true
	d.emit(Await{ticket})
}

func (d *Dest) free(c *destChunk) {
	c.peer.held--
	*c = destChunk{}
}
