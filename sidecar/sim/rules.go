package sim

import (
	"github.com/batonkv/baton/sidecar/handoff"
	"github.com/batonkv/baton/sidecar/machine"
	"github.com/batonkv/baton/transfer/layout"
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

// checkOpened: a copy goes to a claim that this very process opened, and that did not
// withdraw.
func (n *sidecar) checkOpened(c claim) {
	if !n.w.book.opened[opening{c, n.self.Incarnation}] {
		n.w.fail("%v gives a copy of %v to attempt %d of %x, which it has not opened", n.self, c.id, c.attempt, c.leader)
	}
}

// checkAttempt: no two lives of a leader try under one number.
func (n *sidecar) checkAttempt(o handoff.Open) {
	asked, t := n.w.book.asked, try{o.ID, o.Attempt, n.g}
	if was, ok := asked[t]; ok && was != n.self.Incarnation {
		n.w.fail("%v opens %v by attempt %d, which was its predecessor's", n.self, o.ID, o.Attempt)
	}
	asked[t] = n.self.Incarnation
}

// heard looks at what reaches a sidecar, before it acts on it.
func (n *sidecar) heard(f machine.FromPeer) {
	switch m := f.Msg.(type) {
	case handoff.Withdraw:
		delete(n.w.book.opened, opening{claim{m.ID, m.Attempt, f.Peer.Incarnation}, n.self.Incarnation})
	case handoff.Join:
		if n.joins == nil {
			n.joins = map[layout.Rank]handoff.Join{}
		}
		n.joins[f.Peer.Rank] = m
	}
}

// checkReady: a leader whose group stands holds no lease of before, so every pin that its
// ranks stated is being freed.
func (n *sidecar) checkReady() {
	for r, j := range n.joins {
		for _, label := range j.Attach.Pins {
			if n.g.freed[label] <= j.Applied {
				n.w.fail("%v leads, and leaves %q pinned at rank %d for nobody", n.self, label, r)
			}
		}
	}
	clear(n.joins)
}
