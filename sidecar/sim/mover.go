package sim

import (
	"errors"
	"slices"
	"time"

	"github.com/batonkv/baton/sidecar/handoff"
	"github.com/batonkv/baton/sidecar/machine"
	"github.com/batonkv/baton/transfer/staged"
)

// link is what a mover maps of a source rank: the memory of one engine, whatever
// becomes of that engine.
type link struct {
	eng  *engine
	dead bool
	open int
}

// ticket is one copy.
type ticket struct {
	p     machine.Pull
	link  *link
	into  *engine
	own   uint64 // the Reserve whose memory it writes
	fence uint64 // of its memory
	over  bool
	hung  bool
	job   staged.Job // zero: it is direct
}

// pin is what a sidecar told its leader that it holds.
type pin struct {
	eng   *engine
	info  handoff.PinInfo
	label string
	tag   uint64 // owner of its cells
}

var errCopy = errors.New("copy failed")

// opened ends an OpenLink. A mover that died meanwhile leaves an error, or a dead link.
func (n *sidecar) opened(f machine.OpenLink, life int) {
	w := n.w
	if n.reaping > 0 && life == n.life {
		w.after(2*time.Millisecond, n, func() { n.opened(f, life) }) // it waits for the next mover
		return
	}
	if w.chance(w.temper.links) || life != n.life && w.chance(50) {
		w.hit(LinkFails)
		n.step(machine.Linked{Peer: f.Peer, Err: errors.New("cannot map")})
		return
	}
	if n.links[f.Peer.Incarnation] != nil {
		w.fail("%v opens a second link to %v", n.self, f.Peer)
	}
	n.links[f.Peer.Incarnation] = &link{eng: w.engines[machine.Session(f.Buffers.Cards[0].Key)], dead: life != n.life}
	n.step(machine.Linked{Peer: f.Peer})
}

// pull begins a copy. It reads at one instant of its way, and ends later.
func (n *sidecar) pull(f machine.Pull) {
	w := n.w
	l := n.links[f.Peer.Incarnation]
	if l == nil || l.dead || n.memory == nil {
		w.after(w.between(0, time.Millisecond), n, func() { n.step(machine.PullDone{Ticket: f.Ticket, Err: errCopy}) })
		return
	}
	l.open++
	e := n.memory
	t := &ticket{p: f, link: l, into: e, own: e.cells[f.Job.DstBlocks[0]].own}
	if r := e.reserves[t.own]; r != nil {
		t.fence = r.r.Fence
	}
	n.tickets = append(n.tickets, t)
	n.checkWrite(t)
	w.read(n, t, false)
	if w.temper.staged {
		n.pullStaged(t)
		return
	}
	if w.chance(w.temper.hang) {
		w.hit(CopyHangs)
		t.hung = true // it moves on when faults stop, or ends with its mover
		return
	}
	n.move(t)
}

func (n *sidecar) move(t *ticket) {
	w := n.w
	took := w.between(100*time.Microsecond, 10*time.Millisecond)
	if w.chance(w.temper.copies) {
		w.hit(SlowCopy)
		took = w.between(10*time.Millisecond, 9*time.Second)
	}
	reads := w.between(0, took)
	w.after(reads, nil, func() { // the mover is another process: a pause of the sidecar does not stop it
		if !t.over {
			n.copy(t)
		}
	})
	var err error
	if w.chance(w.temper.failing) {
		w.hit(CopyFails)
		err = errCopy
	}
	w.after(took, nil, func() { n.settle(t, err) })
}

// copy brings what the source's memory holds at this instant.
func (n *sidecar) copy(t *ticket) {
	n.checkWrite(t)
	lo, hi := n.units()
	from := t.link.eng
	slo, shi := from.units()
	put := func(dst, src int) {
		for u := max(lo, slo); u < min(hi, shi); u++ {
			t.into.cells[dst].holds[u] = from.cells[src].holds[u]
		}
	}
	j := t.p.Job
	for i := j.Tokens.Lo / blockTokens; i < blocksFor(j.Tokens.Hi) && !j.Tokens.Empty(); i++ {
		put(int(j.DstBlocks[i]), int(j.SrcBlocks[i]))
	}
	if j.DstSlot >= 0 && t.p.Piece.Whole {
		put(t.into.blocks+int(j.DstSlot), from.blocks+int(j.SrcSlot))
	}
}

// settle ends a copy: nothing touches its memory any more.
func (n *sidecar) settle(t *ticket, err error) {
	if t.over {
		return
	}
	n.checkWrite(t)
	if t.into.fenced < t.fence {
		n.w.fail("copy %d of %v ends before fence %d of its memory", t.p.Ticket, n.self, t.fence)
	}
	if err != nil {
		n.spoil(t)
	} else if n.w.chance(n.w.temper.corrupt) {
		n.corrupt(t)
	}
	t.over = true
	n.tickets = slices.DeleteFunc(n.tickets, func(o *ticket) bool { return o == t })
	t.link.open--
	if err == nil {
		n.w.read(n, t, true)
	}
	n.w.after(0, n, func() { n.step(machine.PullDone{Ticket: t.p.Ticket, Bytes: 1, Err: err}) })
}

// spoil is what a failed copy leaves.
func (n *sidecar) spoil(t *ticket) {
	lo, hi := n.units()
	slo, shi := t.link.eng.units()
	for _, b := range t.p.Job.DstBlocks[int(t.p.Job.Tokens.Lo)/blockTokens:] {
		for u := max(lo, slo); u < min(hi, shi); u++ {
			t.into.cells[b].holds[u] = dirt
		}
	}
}

// cancel asks a copy to end. One that hangs does not listen.
func (n *sidecar) cancel(id uint64) {
	for _, t := range n.tickets {
		if t.p.Ticket == id && t.job != (staged.Job{}) {
			n.stage.dest(staged.Cancel{Job: t.job})
			return
		}
		if t.p.Ticket == id && !t.hung && n.w.chance(60) {
			n.w.after(n.w.between(0, 2*time.Millisecond), nil, func() { n.settle(t, errCopy) })
		}
	}
}

// restartMover ends every copy and link of a sidecar; another mover takes over.
func (n *sidecar) restartMover() {
	w := n.w
	w.tell("mover of %v DIES", n.self)
	n.life++
	n.reaping++
	for _, l := range n.links {
		l.dead = true
	}
	w.after(w.between(0, 30*time.Millisecond), n, func() {
		clear(n.links)
		n.reaping--
		n.step(machine.LinksLost{})
		n.step(machine.PackerExited{})
		if c := n.conn; c != nil && c.mapped && !c.closed {
			n.step(machine.Mapped{Session: c.session, PID: int32(n.life + 1)})
		}
	})
	if n.stage != nil {
		n.stage.moverDies()
	}
	for _, t := range n.tickets {
		if t.job == (staged.Job{}) {
			w.after(w.between(0, 40*time.Millisecond), nil, func() { n.settle(t, errCopy) })
		}
	}
}
