package staged

import (
	"fmt"
	"slices"

	"github.com/batonkv/baton/transfer"
)

// The world around the machines: memory, movers, sessions. Copies are not atomic:
// head stamp, body and tail stamp of a chunk move one by one. A killed mover ends at
// once and its exit is seen later; a session that breaks is noticed by each end later,
// and one message a direction may outlive it.

type setup struct {
	src, dst  Config
	srcs      int
	dsts      int
	jobs      []jobSpec
	faults    uint8
	copies    copies
	reconnect uint8
	acts      []act // faults that may happen; nil: all
}

// copies says how fine the steps of a copy are. Its start, its bytes and its end are
// steps of their own in each.
type copies uint8

const (
	anyOrder  copies = iota // three parts, in any order
	headFirst               // three parts, head first
	atOnce                  // all parts in one step, so that more else fits
)

type jobSpec struct {
	src, dst int
	chunks   int32
}

// part is what a third of a chunk holds: who wrote it.
type part uint32

func code(s Stamp) part { return part(s.Offer)<<16 | part(s.Job.Attempt)<<8 | part(s.Seq) }

type packing struct {
	ticket  uint64
	chunk   int32
	code    part
	written uint8 // parts
	dead    bool  // its mover exited: PackDone is under way
}

type fetching struct {
	ticket, offer uint64
	src           int
	from, chunk   int32
	of, wire      Incarnation
	moved         uint8
	stuck         bool // nothing but an exit of its own mover ends it
	canceled      bool
}

type unpacking struct {
	ticket uint64
	chunk  int32
	code   part
	phase  uint8 // 0, 1 stamps compared, 2 copied
	dead   bool
}

type srcEnd struct {
	m     *Source
	g     Grants
	mem   [][3]part
	packs []packing
	local []SourceEvent // answers to AskGrant and Revoked, on their way
	waits []uint64
}

type dstEnd struct {
	m       *Dest
	mem     [][3]part
	fetches []fetching
	unpacks []unpacking
	waits   []uint64
}

// wire is one end's wire mover for one peer.
type wire struct {
	now   Incarnation // 0: none runs
	last  Incarnation
	dying bool        // killed, not gone yet
	seen  Incarnation // exit on its way to the machine
}

// link is the session and the wire movers of one source and one destination.
type link struct {
	up               bool
	downSrc, downDst bool // the break is on its way to the machine
	ups              uint8
	toSrc, toDst     []Message
	lateSrc, lateDst []Message // at most one
	sw, dw           wire
}

type jobState struct {
	pulled bool
	ended  uint8 // JobDone seen, times
	why    Reason
	pinned bool
	over   bool // the lease
	got    []part
}

type world struct {
	set    *setup
	src    []*srcEnd
	dst    []*dstEnd
	link   []link // [src*dsts+dst]
	job    []jobState
	faults uint8
	bad    string
}

func srcID(s int) transfer.PeerID { return transfer.PeerID(rune('A' + s)) }
func dstID(d int) transfer.PeerID { return transfer.PeerID(rune('a' + d)) }

func newWorld(set *setup) *world {
	w := &world{set: set, faults: set.faults, link: make([]link, set.srcs*set.dsts)}
	for range set.srcs {
		m, err := NewSource(set.src)
		if err != nil {
			panic(err)
		}
		w.src = append(w.src, &srcEnd{m: m, mem: make([][3]part, set.src.Chunks)})
	}
	for range set.dsts {
		m, err := NewDest(set.dst)
		if err != nil {
			panic(err)
		}
		w.dst = append(w.dst, &dstEnd{m: m, mem: make([][3]part, set.dst.Chunks)})
	}
	for i := range w.link {
		w.peerUp(i)
		w.swUp(i)
		w.dwUp(i)
	}
	for i, j := range set.jobs {
		w.job = append(w.job, jobState{pinned: true, got: make([]part, j.chunks)})
		w.src[j.src].g.Hold(pinOf(i), 1)
	}
	return w
}

func jobOf(i int) Job                  { return Job{Attempt: uint64(i + 1)} }
func pinOf(i int) Pin                  { return Pin{ID: uint64(i + 1)} }
func (w *world) at(i int) (s, d int)   { return i / w.set.dsts, i % w.set.dsts }
func (w *world) linkOf(s, d int) *link { return &w.link[s*w.set.dsts+d] }

func (w *world) fail(format string, args ...any) {
	if w.bad == "" {
		w.bad = fmt.Sprintf(format, args...)
	}
}

func (w *world) peerUp(i int) {
	s, d := w.at(i)
	w.link[i].up = true
	w.link[i].ups++
	w.stepSrc(s, PeerUp{dstID(d)})
	w.stepDst(d, PeerUp{srcID(s)})
}

func (w *world) swUp(i int) {
	s, d := w.at(i)
	m := &w.link[i].sw
	m.last++
	m.now = m.last
	w.stepSrc(s, WireUp{dstID(d), m.now})
}

func (w *world) dwUp(i int) {
	s, d := w.at(i)
	m := &w.link[i].dw
	m.last++
	m.now = m.last
	w.stepDst(d, WireUp{srcID(s), m.now})
}

// stepSrc feeds a source and carries its effects out.
func (w *world) stepSrc(s int, e SourceEvent) {
	end := w.src[s]
	for _, e := range slices.Clone(end.m.Step(e)) {
		switch e := e.(type) {
		case Send:
			if l := w.linkOf(s, int(e.Peer[0]-'a')); l.up {
				l.toDst = append(l.toDst, e.Msg)
			}
		case KillWire:
			if m := &w.linkOf(s, int(e.Peer[0]-'a')).sw; m.now == e.Wire {
				m.dying = true
			}
		case Await:
			end.waits = append(end.waits, e.Ticket)
		case AskGrant:
			now := 0
			if w.job[e.Pin.ID-1].over {
				now = 1
			}
			if end.g.Ask(e.Grant, Packer{}, e.Pin, timeOf(now)) == nil {
				end.local = append(end.local, Granted{e.Grant})
			} else {
				end.local = append(end.local, Refused{e.Grant})
			}
		case EndGrant:
			if p, unpin := end.g.End(e.Grant); unpin {
				w.unpin(p)
			}
		case Pack:
			end.packs = append(end.packs, packing{ticket: e.Ticket, chunk: e.Chunk, code: code(e.Stamp)})
		}
	}
}

func (w *world) unpin(p Pin) { w.job[p.ID-1].pinned = false }

// stepDst feeds a destination and carries its effects out.
func (w *world) stepDst(d int, e DestEvent) {
	end := w.dst[d]
	for _, e := range slices.Clone(end.m.Step(e)) {
		switch e := e.(type) {
		case Send:
			if l := w.linkOf(int(e.Peer[0]-'A'), d); l.up {
				l.toSrc = append(l.toSrc, e.Msg)
			}
		case KillWire:
			if m := &w.linkOf(int(e.Peer[0]-'A'), d).dw; m.now == e.Wire {
				m.dying = true
			}
		case Await:
			end.waits = append(end.waits, e.Ticket)
		case Fetch:
			end.fetches = append(end.fetches, fetching{ticket: e.Ticket, offer: end.m.chunks[e.Chunk].offer, src: int(e.Peer[0] - 'A'),
				from: e.From, chunk: e.Chunk, of: e.Of, wire: e.Wire})
		case CancelFetch:
			for i := range end.fetches {
				if f := &end.fetches[i]; f.ticket == e.Ticket {
					f.canceled = true
				}
			}
		case Unpack:
			end.unpacks = append(end.unpacks, unpacking{ticket: e.Ticket, chunk: e.Chunk, code: code(e.Stamp)})
		case JobDone:
			w.jobDone(int(e.Job.Attempt-1), e.Why)
		}
	}
}

func (w *world) jobDone(j int, why Reason) {
	s := &w.job[j]
	s.ended++
	s.why = why
	if s.ended > 1 {
		w.fail("I7: job %d ended twice", j)
	}
	for seq, c := range s.got {
		if why == 0 && c&0xffff != part(j+1)<<8|part(seq) {
			w.fail("I2: job %d is good, its chunk %d is not", j, seq)
		}
	}
}

// check compares what the machines believe with the tickets that are open.
func (w *world) check() {
	for s, end := range w.src {
		for _, p := range end.packs {
			c := end.m.chunks[p.chunk]
			if !p.dead && (c.state != srcPacking || c.offer != p.ticket) {
				w.fail("I1: source %d holds chunk %d otherwise while a pack is open on it", s, p.chunk)
			}
		}
		quarantined := map[*sourcePeer]int{}
		held := map[*sourcePeer]int32{}
		for _, c := range end.m.chunks {
			if c.quarantined {
				quarantined[c.peer]++
			}
			if c.state != srcFree {
				held[c.peer]++
			}
		}
		for _, p := range end.m.peers {
			w.count(quarantined[p], held[p], p.held, w.set.src)
		}
		w.sum(end.m.Use(), w.set.src)
	}
	for d, end := range w.dst {
		w.checkDst(d, end)
	}
}

func (w *world) count(quarantined int, is, held int32, c Config) {
	if quarantined > 1 {
		w.fail("I4: %d chunks of one peer in quarantine", quarantined)
	}
	if is != held || held > c.PerPeer {
		w.fail("I6: a peer holds %d chunks, counted as %d of %d", is, held, c.PerPeer)
	}
}

func (w *world) sum(u Use, c Config) {
	if u.Free+u.Local+u.Ready+u.Wire+u.Quarantined != c.Chunks {
		w.fail("I6: free and held are not the total: %+v", u)
	}
}

func (w *world) checkDst(d int, end *dstEnd) {
	for _, f := range end.fetches {
		if c := end.m.chunks[f.chunk]; c.state != dstFetching || c.ticket != f.ticket {
			w.fail("I1: destination %d holds chunk %d otherwise while a fetch is open on it", d, f.chunk)
		}
		if !w.reads(d, f) {
			continue
		}
		if c := w.src[f.src].m.chunks[f.from]; c.state != srcOffered || c.offer != f.offer {
			w.fail("I1: source %d holds chunk %d otherwise while a fetch reads it", f.src, f.from)
		}
	}
	for _, u := range end.unpacks {
		if u.dead {
			continue
		}
		if c := end.m.chunks[u.chunk]; c.state != dstUnpacking || c.ticket != u.ticket {
			w.fail("I1: destination %d holds chunk %d otherwise while an unpack is open on it", d, u.chunk)
		}
		if w.job[u.code>>8&0xff-1].ended > 0 {
			w.fail("I7: job %d has ended while an unpack of it is open", u.code>>8&0xff-1)
		}
	}
	quarantined := map[*destPeer]int{}
	held := map[*destPeer]int32{}
	for _, c := range end.m.chunks {
		if c.quarantined {
			quarantined[c.peer]++
		}
		if c.state != dstFree {
			held[c.peer]++
		}
	}
	for _, p := range end.m.peers {
		w.count(quarantined[p], held[p], p.held, w.set.dst)
	}
	w.sum(end.m.Use(), w.set.dst)
}

// stuck says what is not as it should be where nothing goes on.
func (w *world) stuck() string {
	for s, end := range w.src {
		if u := end.m.Use(); u.Free != w.set.src.Chunks {
			return fmt.Sprintf("I5: source %d never frees: %+v", s, u)
		}
		for _, p := range end.m.peers {
			if len(p.jobs) > 0 {
				return fmt.Sprintf("I5: a job never ends at source %d", s)
			}
		}
		for _, h := range end.g.held {
			if len(h.open) > 0 || h.over {
				return fmt.Sprintf("I5: a grant or a pin is never given back at source %d", s)
			}
		}
	}
	for d, end := range w.dst {
		if u := end.m.Use(); u.Free != w.set.dst.Chunks {
			return fmt.Sprintf("I5: destination %d never frees: %+v", d, u)
		}
		for _, p := range end.m.peers {
			if len(p.jobs)+len(p.offers) > 0 {
				return fmt.Sprintf("I5: a job or an offer never ends at destination %d", d)
			}
		}
	}
	for j, s := range w.job {
		if s.ended != 1 {
			return fmt.Sprintf("I5: job %d never ends", j)
		}
		if s.why != 0 && w.faults == w.set.faults {
			return fmt.Sprintf("I5: job %d failed without a fault: %v", j, s.why.Err())
		}
		if s.over && s.pinned {
			return fmt.Sprintf("I5: the pin of job %d is never unpinned", j)
		}
	}
	return ""
}
