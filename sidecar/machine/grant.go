package machine

import (
	"cmp"
	"maps"
	"slices"

	"github.com/batonkv/baton/sidecar/handoff"
	"github.com/batonkv/baton/transfer/staged"
)

// leaving is a pin that is over while somebody packs from it. Nobody is given leave any
// more, Check says gone, and the engine keeps the memory until the last grant has ended.
type leaving struct {
	label string
	since Now              // its packs were asked to end
	says  handoff.ToEngine // what the engine hears then; nil: nothing, since Free waits for it
}

func stagedPin(p *handoff.Pin) staged.Pin {
	return staged.Pin{ID: uint64(p.Info.Pin), Generation: uint64(p.Info.Generation)}
}

// askGrant answers who wants to pack: yes while the very pin is held, for a peer whose
// session stands. The leader told Peer its number against a manifest's key.
func (m *Machine) askGrant(e AskGrant) {
	p := m.pins[e.Of.Pin]
	if p == nil || !m.up(e.Peer) || !p.Pack(e.Peer, e.Of) {
		m.refuse(e.Peer, e.Of, NotHeld)
		m.do(GrantRefused{e.Grant})
		return
	}
	m.grants.Hold(stagedPin(p), p.Deadline)
	if m.grants.Ask(e.Grant, e.Packer, stagedPin(p), m.now) != nil {
		m.do(GrantRefused{e.Grant})
		return
	}
	m.lent++
	m.do(Granted{e.Grant, p.Info, p.Extent.Of(p.Info.Tokens)})
}

// Grants counts the grants that were given, and those of them that have not ended.
func (m *Machine) Grants() (given uint64, held int) { return m.lent, m.grants.Open() }

// leave ends a pin. The engine hears of it at once, or when the last pack has ended.
func (m *Machine) leave(p *handoff.Pin, says handoff.ToEngine) {
	m.forget(p.Info.Pin)
	open := m.grants.Over(stagedPin(p))
	if len(open) > 0 {
		m.leaving[stagedPin(p)] = &leaving{p.Label, m.now, says}
	} else if says != nil {
		m.toEngine(says)
	}
	for _, g := range open {
		m.do(Revoked{g})
	}
}

// leaves reports whether a label's memory is still packed from, its pin being over.
func (m *Machine) leaves(label string) bool {
	for _, l := range m.leaving {
		if l.label == label {
			return true
		}
	}
	return false
}

func (m *Machine) grantEnded(e GrantEnded) {
	if p, unpin := m.grants.End(e.Grant); unpin {
		m.left(p)
	}
	m.packsEnded()
}

func (m *Machine) packerExited(e PackerExited) {
	revoke, unpin := m.grants.Exit(e.Packer)
	for _, g := range revoke {
		m.do(Revoked{g})
	}
	for _, p := range unpin {
		m.left(p)
	}
	m.packsEnded()
}

// left is the end of the last grant of a pin that is over.
func (m *Machine) left(p staged.Pin) {
	l := m.leaving[p]
	delete(m.leaving, p)
	if l.says != nil {
		m.toEngine(l.says)
	}
}

// packsEnded does what may have waited for a pack.
func (m *Machine) packsEnded() {
	if m.engine != nil {
		m.passOn()
	}
	m.unmapQuiet()
}

// sortedLeaving keeps effects in one order whatever the map's.
func (m *Machine) sortedLeaving() []staged.Pin {
	return slices.SortedFunc(maps.Keys(m.leaving), func(a, b staged.Pin) int {
		return cmp.Or(cmp.Compare(a.ID, b.ID), cmp.Compare(a.Generation, b.Generation))
	})
}
