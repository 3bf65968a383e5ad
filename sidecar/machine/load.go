package machine

import "github.com/batonkv/baton/sidecar/handoff"

// Load counts what is under way in a sidecar. At rest it is the zero Load.
type Load struct {
	Imports int // not finished
	Labels  int // announced or held for importers
	Opens   int // importers that wait for their own geometry to come
	Pins    int
	Dests   int // imports that hold this rank's memory, or are about to
	Tickets int // copies
	Sums    int // that are being made
	Grants  int // to pack
	Leaving int // pins that are over, whose memory a pack keeps from the engine
	Dials   int // peers without a session, wanted
	Links   int // to peers without a session, or not made yet
}

// Load returns what is under way.
func (m *Machine) Load() Load {
	l := Load{Imports: len(m.lead.imports), Labels: len(m.lead.labels), Pins: m.exports(), Dests: len(m.dests), Tickets: len(m.tickets), Sums: len(m.adding),
		Grants: m.grants.Open(), Leaving: len(m.leaving)}
	for _, os := range m.lead.opens {
		l.Opens += len(os)
	}
	for _, p := range m.peers {
		if !p.up {
			l.Dials++
		}
	}
	for p, k := range m.links {
		if k.dead || k.state != linkOpened || !m.up(p) {
			l.Links++
		}
	}
	return l
}

// Leased reports whether this leader holds a lease on label at now, under which rank
// holds its part.
func (m *Machine) Leased(label string, now Now, rank handoff.Member) bool {
	s := m.lead.sources[m.lead.labels[label]]
	if s == nil || s.State() != handoff.Leasing || now >= s.Deadline() || m.lead.roster == nil {
		return false
	}
	return int(rank.Rank) < len(m.lead.roster.Members) && m.lead.roster.Members[rank.Rank] == rank
}

// Connected reports whether this sidecar takes a session with p to stand.
func (m *Machine) Connected(p handoff.Member) bool { return m.up(p) }

// Shape sums up the states that this sidecar's halves are in, whatever their number or
// name: two sidecars of one shape are at the same point of the protocol.
func (m *Machine) Shape() uint64 {
	var h uint64
	add := func(kind half, state int) {
		x := (uint64(kind)<<8 | uint64(state) + 1) * 0x9e3779b97f4a7c15
		h += x ^ x>>29
	}
	for _, id := range m.lead.labels {
		s := m.lead.sources[id]
		add(sourceHalf, int(s.State())<<4|int(s.Copies()))
	}
	for id := range m.pins {
		add(pinHalf, m.pinState(id))
	}
	for range m.leaving {
		add(pinHalf, pinLeaving)
	}
	for _, d := range m.dests {
		add(destHalf, int(d.State()))
	}
	for _, i := range m.lead.imports {
		add(leaderHalf, int(i.State()))
	}
	for p, l := range m.links {
		state := int(l.state) << 1
		if m.up(p) {
			state |= 1
		}
		add(numHalves, state)
	}
	add(launchHalf, m.launchState())
	return h
}
