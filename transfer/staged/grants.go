package staged

import (
	"fmt"
	"slices"
	"time"
)

// Grants is the book of one source rank: which pins may be packed from, and by which
// open grants. It belongs to whoever unpins.
//
// Invariant: a pin is unpinned when Over, End or Exit says so, and at no other time. No
// grant begins at or after the end of the lease, so a grant delays an unpin by the packs
// that were running then.
type Grants struct{ held []holding }

type holding struct {
	pin   Pin
	until time.Duration
	over  bool
	open  []loan
}

// loan is one open grant.
type loan struct {
	grant uint64
	by    Packer
}

// Packer is a mover process of the source's end that packs: the local mover is the zero
// Packer, any other is the wire mover of a peer group.
type Packer struct {
	Group string
	Wire  Incarnation
}

func (g *Grants) find(p Pin) int {
	return slices.IndexFunc(g.held, func(h holding) bool { return h.pin == p })
}

// Hold enters a pin whose lease ends at until, or moves that end.
func (g *Grants) Hold(p Pin, until time.Duration) {
	if i := g.find(p); i < 0 {
		g.held = append(g.held, holding{pin: p, until: until})
	} else {
		g.held[i].until = until
	}
}

// Ask answers AskGrant at the instant now, for the packs of a mover: nil is Granted, ErrLease
// is Refused.
func (g *Grants) Ask(grant uint64, by Packer, p Pin, now time.Duration) error {
	i := g.find(p)
	if i < 0 || g.held[i].over || now >= g.held[i].until {
		return fmt.Errorf("%w: pin %d, generation %d", ErrLease, p.ID, p.Generation)
	}
	g.held[i].open = append(g.held[i].open, loan{grant, by})
	return nil
}

// Open is how many grants are open.
func (g *Grants) Open() (n int) {
	for _, h := range g.held {
		n += len(h.open)
	}
	return n
}

// End answers EndGrant. unpin: the pin was over and this was its last grant.
func (g *Grants) End(grant uint64) (p Pin, unpin bool) {
	ps := g.end(func(l loan) bool { return l.grant == grant })
	if len(ps) == 0 {
		return Pin{}, false
	}
	return ps[0], true
}

// Exit ends the grants of a mover whose exit was seen, and those alone: what another
// process packs goes on. Each that was not over gets Revoked, so that no later mover packs
// under it. It returns the pins that were over and have none left.
func (g *Grants) Exit(by Packer) (revoke []uint64, unpin []Pin) {
	for _, h := range g.held {
		for _, l := range h.open {
			if l.by == by && !h.over {
				revoke = append(revoke, l.grant)
			}
		}
	}
	return revoke, g.end(func(l loan) bool { return l.by == by })
}

func (g *Grants) end(which func(loan) bool) (unpin []Pin) {
	for i := range g.held {
		g.held[i].open = slices.DeleteFunc(g.held[i].open, which)
	}
	g.held = slices.DeleteFunc(g.held, func(h holding) bool {
		gone := h.over && len(h.open) == 0
		if gone {
			unpin = append(unpin, h.pin)
		}
		return gone
	})
	return unpin
}

// Over ends a pin's lease, by the leader's word or the rank's own deadline. Each open
// grant gets Revoked, and the last one's end unpins; when none is open the pin may be
// unpinned at once.
func (g *Grants) Over(p Pin) (open []uint64) {
	i := g.find(p)
	if i < 0 {
		return nil
	}
	for _, l := range g.held[i].open {
		open = append(open, l.grant)
	}
	if len(open) == 0 {
		g.held = slices.Delete(g.held, i, i+1)
		return nil
	}
	g.held[i].over = true
	return open
}

// Of is the pin of an open grant.
func (g *Grants) Of(grant uint64) (p Pin, ok bool) {
	for _, h := range g.held {
		if slices.ContainsFunc(h.open, func(l loan) bool { return l.grant == grant }) {
			return h.pin, true
		}
	}
	return Pin{}, false
}

// Pins are those that a mover holds grants of.
func (g *Grants) Pins(by Packer) (ps []Pin) {
	for _, h := range g.held {
		if slices.ContainsFunc(h.open, func(l loan) bool { return l.by == by }) {
			ps = append(ps, h.pin)
		}
	}
	return ps
}

// By are the movers that hold the grants of a pin, each once, in the order in which
// they asked.
func (g *Grants) By(p Pin) (by []Packer) {
	if i := g.find(p); i >= 0 {
		for _, l := range g.held[i].open {
			if !slices.Contains(by, l.by) {
				by = append(by, l.by)
			}
		}
	}
	return by
}
