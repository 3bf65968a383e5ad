package staged

import (
	"fmt"
	"slices"
	"time"
)

// Grants is the book of one source rank: which pins may be packed from, and by how
// many open grants. It belongs to whoever unpins.
//
// Invariant: a pin is in the book from Hold until End or Over says that it may be
// unpinned, and is unpinned at no other time. No grant begins at or after the end of
// the lease, so a grant delays an unpin by the packs that were running then.
type Grants struct{ held []holding }

type holding struct {
	pin   Pin
	until time.Duration
	over  bool
	open  []uint64
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

// Ask answers AskGrant at the instant now: nil is Granted, ErrLease is Refused.
func (g *Grants) Ask(grant uint64, p Pin, now time.Duration) error {
	i := g.find(p)
	if i < 0 || g.held[i].over || now >= g.held[i].until {
		return fmt.Errorf("%w: pin %d, generation %d", ErrLease, p.ID, p.Generation)
	}
	g.held[i].open = append(g.held[i].open, grant)
	return nil
}

// End answers EndGrant. unpin: the pin was over and this was its last grant.
func (g *Grants) End(grant uint64) (p Pin, unpin bool) {
	for i := range g.held {
		h := &g.held[i]
		k := slices.Index(h.open, grant)
		if k < 0 {
			continue
		}
		h.open = slices.Delete(h.open, k, k+1)
		p = h.pin
		if h.over && len(h.open) == 0 {
			g.held = slices.Delete(g.held, i, i+1)
			return p, true
		}
		return p, false
	}
	return Pin{}, false
}

// Over ends a pin's lease: by the leader's word or the rank's own deadline. Each grant
// in revoke gets Revoked. unpin: none is open, and the pin left the book.
func (g *Grants) Over(p Pin) (revoke []uint64, unpin bool) {
	i := g.find(p)
	if i < 0 || g.held[i].over {
		return nil, false
	}
	if len(g.held[i].open) == 0 {
		g.held = slices.Delete(g.held, i, i+1)
		return nil, true
	}
	g.held[i].over = true
	return slices.Clone(g.held[i].open), false
}
