package sim

import (
	"github.com/batonkv/baton/sidecar/handoff"
	"github.com/batonkv/baton/sidecar/machine"
)

// opening is a claim at one life of the source's leader.
type opening struct {
	claim
	source handoff.Incarnation
}

// try is an attempt of a group, whichever life of its leader makes it.
type try struct {
	id      handoff.ID
	attempt handoff.Attempt
	group   *group
}

// question is the last Open of a try.
type question struct {
	by   handoff.Incarnation
	open handoff.Open
}

// checkOpened: a copy goes to a claim that this very process opened, and that did not
// withdraw.
func (n *sidecar) checkOpened(c claim) {
	if !n.w.book.opened[opening{c, n.self.Incarnation}] {
		n.w.fail("%v gives a copy of %v to attempt %d of %x, which it has not opened", n.self, c.id, c.attempt, c.leader)
	}
}

// checkTaken: nobody is told that every copy is taken while one is left.
func (n *sidecar) checkTaken(id handoff.ID) {
	w := n.w
	for _, m := range w.shown {
		if p := &w.prompts[m.tag]; m.ID == id && w.book.spent[id] < p.copies {
			w.fail("%v says that every copy of %v is taken: %d of %d are", n.self, id, w.book.spent[id], p.copies)
		}
	}
}

// checkAttempt: no two lives of a leader try under one number.
func (n *sidecar) checkAttempt(o handoff.Open) {
	asked, t := n.w.book.asked, try{o.ID, o.Attempt, n.g}
	if was, ok := asked[t]; ok && was.by != n.self.Incarnation {
		n.w.fail("%v opens %v by attempt %d, which was its predecessor's", n.self, o.ID, o.Attempt)
	}
	asked[t] = question{n.self.Incarnation, o}
}

// heard looks at what reaches a sidecar, before it acts on it.
func (n *sidecar) heard(f machine.FromPeer) {
	switch m := f.Msg.(type) {
	case handoff.Opened:
		n.note(m.ID, f.Peer, m)
	case handoff.DoneAck:
		n.note(m.ID, f.Peer, m)
	case handoff.Checked:
		n.note(m.Check.ID, f.Peer, m)
		if !m.Held {
			n.proves(claim{id: m.Check.ID, attempt: m.Check.Attempt}, false)
		}
	case handoff.Roster:
		n.joined(f.Peer)
	case handoff.Withdraw:
		delete(n.w.book.opened, opening{claim{m.ID, m.Attempt, f.Peer.Incarnation}, n.self.Incarnation})
	case handoff.Join:
		if n.joins == nil {
			n.joins = map[handoff.Member]handoff.Join{}
		}
		n.joins[f.Peer] = m
	}
}

// checkReady: a leader whose group stands holds no lease of before, so every pin that its
// ranks stated is being freed.
func (n *sidecar) checkReady() {
	for _, p := range n.roster {
		j := n.joins[p]
		for _, label := range j.Attach.Pins {
			if n.side == n && n.g.freed[label] <= j.Applied {
				n.w.fail("%v leads, and leaves %q pinned at rank %d for nobody", n.self, label, p.Rank)
			}
		}
	}
	clear(n.joins)
}
