package joint

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/batonkv/baton/sidecar/handoff"
	"github.com/batonkv/baton/sidecar/machine"
	"github.com/batonkv/baton/transfer"
	"github.com/batonkv/baton/transfer/staged"
)

// stage is what a node has where pulls are staged: the production half of its side, an
// arena of one chunk, so that every job waits for the one before, and what touches them.
type stage struct {
	src   *staged.Source
	dst   *staged.Dest
	chunk struct{ code, bytes uint64 } // what the arena holds; code 0: nothing whole
	lent  []lent
	packs []packing
	fetch []fetching
	unpak []unpacking
	wires map[int]*wire // by node that it serves
}

// lent is a grant, and what an observer remembers of it.
type lent struct {
	grant  uint64
	job    staged.Job
	peer   handoff.Member
	of     staged.Pin      // asked for
	pin    handoff.PinInfo // granted
	open   bool
	broken bool // the session with peer has ended since
	by     staged.Packer
	exited bool // by has, since
}

// packing is an open pack: it reads the blocks of a pin when it ends.
type packing struct {
	ticket uint64
	code   uint64
	blocks []int32
	by     staged.Packer
	dead   bool // its mover is
}

type fetching struct {
	ticket   uint64
	src      int
	peer     handoff.Member
	of, wire staged.Incarnation
	canceled bool
}

type unpacking struct {
	ticket   uint64
	code     uint64
	job      staged.Job
	canceled bool
	dead     bool
}

// wire is a node's wire mover for another node: one process after another.
type wire struct {
	now   staged.Incarnation // 0: none was needed yet
	dying bool               // killed, and not seen to have exited
	peers []transfer.PeerID  // that it was said to serve
}

func (s *stage) begins(m *model, g int) {
	if !m.set.staged {
		return
	}
	c := staged.Config{Chunks: 1, PerPeer: 1, MaxJobs: 4}
	*s = stage{wires: map[int]*wire{}}
	var err error
	if g == 0 {
		s.src, err = staged.NewSource(c)
	} else {
		s.dst, err = staged.NewDest(c)
	}
	if err != nil {
		panic(err)
	}
}

// ends is the end of the process and its movers. What reads or writes engine memory ends a
// moment later, and the next process waits for that: packs by themselves, and unpacks with
// their tickets.
func (s *stage) ends() {
	packs := s.packs
	*s = stage{packs: packs}
	for k := range packs {
		packs[k].dead = true
	}
}

func (s *stage) moverDies(owned bool) {
	for k := range s.packs {
		s.packs[k].dead = s.packs[k].dead || !owned
	}
	for k := range s.unpak {
		s.unpak[k].dead = true
	}
}

// unpinned says which pack reads memory that the engine was told to take back.
func (s *stage) unpinned(n *node) string {
	for _, p := range s.packs {
		for _, b := range p.blocks {
			own := n.eng.own[b]
			if h := int(own &^ exportBit); n.eng.alive && (own&exportBit == 0 || n.eng.letGo[h] || n.eng.toFree(h)) {
				return fmt.Sprintf("%v: block %d is unpinned, and pack %d may still read it", n.self, b, p.ticket)
			}
		}
	}
	return ""
}

func (s *stage) stuck() string {
	switch {
	case len(s.packs)+len(s.fetch)+len(s.unpak) > 0:
		return fmt.Sprintf("is left with %d packs, %d fetches, %d unpacks", len(s.packs), len(s.fetch), len(s.unpak))
	case s.src != nil && s.src.Use().Free != 1, s.dst != nil && s.dst.Use().Free != 1:
		return "its chunk never comes back"
	case slices.ContainsFunc(s.lent, func(l lent) bool { return l.open }):
		return "a grant is never given back"
	}
	return ""
}

func (r *runner) peerID(p handoff.Member) transfer.PeerID {
	return transfer.PeerID(strconv.Itoa(r.index(p)) + "@" + strconv.Itoa(int(p.Incarnation)))
}

func (r *runner) peerOf(id transfer.PeerID) handoff.Member {
	at, inc, _ := strings.Cut(string(id), "@")
	k, _ := strconv.Atoi(at)
	n, _ := strconv.Atoi(inc)
	p := r.members[k]
	p.Incarnation = handoff.Incarnation(n)
	return p
}

// codeOf names what a chunk holds: equal codes are equal stamps.
func codeOf(s staged.Stamp) uint64 {
	return s.Offer&0xff | uint64(s.Job.Part)<<48 | uint64(s.Job.Pair+1)<<8 | s.Job.Attempt&0xff<<16 | s.Job.Attempt>>32&0xff<<24 | uint64(s.Job.Handoff[15])<<32 | uint64(s.Job.Handoff[7])<<40
}

// wired is a word of the other half.
func (r *runner) wired(l *letter) {
	r.half(staged.FromPeer{Peer: r.peerID(l.from), Msg: l.wire})
	r.drain()
}

// half gives an event that both halves know to the one that this node has.
func (r *runner) half(e interface {
	staged.SourceEvent
	staged.DestEvent
}) {
	if r.node.src != nil {
		r.source(e)
	} else if r.node.dst != nil {
		r.dest(e)
	}
}

// wireUp: a session stands. A wire mover starts when the first one does.
func (r *runner) wireUp(p handoff.Member) {
	if !r.set.staged || r.group[r.index(p)] == r.node.g {
		return
	}
	w := r.node.wires[r.index(p)]
	if w == nil {
		w = &wire{now: 1}
		r.node.wires[r.index(p)] = w
	}
	id := r.peerID(p)
	r.half(staged.PeerUp{Peer: id})
	if !slices.Contains(w.peers, id) {
		w.peers = append(w.peers, id)
		r.half(staged.WireUp{Peer: id, Wire: w.now})
	}
}

func (r *runner) wireDown(p handoff.Member) {
	if r.set.staged && r.group[r.index(p)] != r.node.g {
		for k := range r.node.lent {
			r.node.lent[k].broken = r.node.lent[k].broken || r.node.lent[k].peer == p
		}
		r.half(staged.PeerDown{Peer: r.peerID(p)})
	}
}

func (r *runner) source(e staged.SourceEvent) {
	n := r.node
	for _, f := range slices.Clone(n.src.Step(e)) {
		switch f := f.(type) {
		case staged.Send:
			r.toHalf(f)
		case staged.KillWire:
			r.killWire(f)
		case staged.AskGrant:
			r.askGrant(f)
		case staged.EndGrant:
			k := slices.IndexFunc(n.lent, func(l lent) bool { return l.open && l.grant == f.Grant })
			n.lent[k].open = false
			r.local = append(r.local, machine.GrantEnded{Grant: f.Grant})
		case staged.Pack:
			k := slices.IndexFunc(n.lent, func(l lent) bool { return l.open && l.job == f.Stamp.Job })
			if k < 0 {
				r.fail("%v packs without leave", n.self)
				return
			}
			if n.lent[k].exited {
				r.fail("%v packs under a grant of a mover that has exited", n.self)
			}
			by := r.packer(n.lent[k].peer)
			n.packs = append(n.packs, packing{f.Ticket, codeOf(f.Stamp), n.lent[k].pin.Blocks, by, n.lost && by == staged.Packer{}})
		}
	}
}

func (r *runner) dest(e staged.DestEvent) {
	n := r.node
	for _, f := range slices.Clone(n.dst.Step(e)) {
		switch f := f.(type) {
		case staged.Send:
			r.toHalf(f)
		case staged.KillWire:
			r.killWire(f)
		case staged.Fetch:
			p := r.peerOf(f.Peer)
			n.fetch = append(n.fetch, fetching{ticket: f.Ticket, src: r.index(p), peer: p, of: f.Of, wire: f.Wire})
		case staged.CancelFetch:
			for k := range n.fetch {
				n.fetch[k].canceled = n.fetch[k].canceled || n.fetch[k].ticket == f.Ticket
			}
		case staged.Unpack:
			n.unpak = append(n.unpak, unpacking{ticket: f.Ticket, code: codeOf(f.Stamp), job: f.Stamp.Job, dead: n.lost})
		case staged.CancelUnpack:
			for k := range n.unpak {
				n.unpak[k].canceled = n.unpak[k].canceled || n.unpak[k].ticket == f.Ticket
			}
		case staged.JobDone:
			r.pulled(f)
		}
	}
}

func (r *runner) toHalf(f staged.Send) {
	to := r.peerOf(f.Peer)
	r.put(out{kind: sends, to: r.index(to), msg: r.enterLetter(letter{from: r.node.self, to: to, wire: f.Msg})})
}

func (r *runner) killWire(f staged.KillWire) {
	if w := r.node.wires[r.index(r.peerOf(f.Peer))]; w.now == f.Wire {
		w.dying = true
	}
}

// packer is who packs for a peer.
func (r *runner) packer(p handoff.Member) staged.Packer {
	if !r.set.owned {
		return staged.Packer{}
	}
	return staged.Packer{Group: p.Group, Wire: r.node.wires[r.index(p)].now}
}

// askGrant says to the sidecar what its half wants: who asks, and what will be checked.
func (r *runner) askGrant(f staged.AskGrant) {
	p, self := r.peerOf(f.Peer), r.node.self
	h := f.Job.Handoff
	id := handoff.ID{Group: self.Group, Instance: instance(r.node.g, r.node.eng.launch),
		Leader: handoff.Incarnation(binary.BigEndian.Uint64(h[:8])), N: binary.BigEndian.Uint64(h[8:])}
	r.node.lent = append(r.node.lent, lent{grant: f.Grant, job: f.Job, peer: p, of: f.Pin, open: true, by: r.packer(p)})
	r.local = append(r.local, machine.AskGrant{Grant: f.Grant, Peer: p, Packer: r.packer(p), Of: handoff.Check{ID: id,
		Attempt: handoff.Attempt(f.Job.Attempt), Pin: handoff.PinID(f.Pin.ID), Generation: handoff.Generation(f.Pin.Generation)}})
}

// granted is the sidecar's word to its half.
func (r *runner) granted(f machine.Effect) {
	n := r.node
	switch f := f.(type) {
	case machine.Granted:
		k := slices.IndexFunc(n.lent, func(l lent) bool { return l.open && l.grant == f.Grant })
		if n.lent[k].pin = f.Pin; n.lent[k].of != (staged.Pin{ID: uint64(f.Pin.Pin), Generation: uint64(f.Pin.Generation)}) {
			r.fail("%v gives leave to pack %v for %v", n.self, f.Pin, n.lent[k].of)
		}
		r.source(staged.Granted{Grant: f.Grant})
	case machine.GrantRefused:
		n.lent = slices.DeleteFunc(n.lent, func(l lent) bool { return l.open && l.grant == f.Grant })
		r.source(staged.Refused{Grant: f.Grant})
	case machine.Revoked:
		r.source(staged.Revoked{Grant: f.Grant})
	}
}

// proves: a session that has ended proves nothing of what was staged in it.
func (r *runner) proves(f machine.ToPeer) {
	c, ok := f.Msg.(handoff.Checked)
	if !ok || !c.Held {
		return
	}
	for _, l := range r.node.lent {
		if l.broken && l.peer == f.Peer && l.pin.Pin == c.Check.Pin && l.job.Attempt == uint64(c.Check.Attempt) {
			r.fail("%v says held of what %v pulled by staging in an earlier session", r.node.self, f.Peer)
		}
	}
}

// pulled ends a staged pull.
func (r *runner) pulled(f staged.JobDone) {
	n := r.node
	k := slices.IndexFunc(n.tickets, func(t tick) bool { return t.job == f.Job })
	t := n.tickets[k]
	n.tickets = slices.Delete(n.tickets, k, k+1)
	err := f.Why.Err()
	if err == nil && t.whole {
		r.put(out{kind: remarks, at: remark{what: wasRead, proof: proof{n.eng.taken[t.reserve], n.i % r.base, int(r.members[t.src].Rank)}}})
	}
	r.local = append(r.local, machine.PullDone{Ticket: t.n, Bytes: 1, Err: err})
}
