package machine

import (
	"github.com/batonkv/baton/sidecar/events"
	"github.com/batonkv/baton/sidecar/handoff"
)

// lease starts the lease and gives each rank its own later deadline. While parts leave it
// lasts as an announcement does; a hand-off whose export asks for more than one lease is
// renewed up to that.
func (m *Machine) lease(s *held) {
	hold := m.cfg.MaxHold
	if s.Complete() {
		hold = m.holdOf(s)
	}
	waiting := s.Lease(m.now, m.cfg.Lease, hold)
	m.lead.schedule(s)
	for _, p := range s.Pins() {
		m.do(ToPeer{m.lead.roster.Members[p.Rank],
			handoff.Leased{ID: s.ID, Label: s.Label, Pin: p.Pin, Hold: s.Deadline() - m.now + m.cfg.Margin}})
	}
	if s.Growing() {
		m.begun(s)
	} else {
		m.exported(s)
	}
	for _, o := range waiting {
		m.answerOpen(s, o)
	}
}

func (m *Machine) holdOf(s *held) Now {
	hold := s.Export().MaxHold
	if hold <= 0 {
		hold = m.cfg.Lease
	}
	return min(hold, m.cfg.MaxHold)
}

// exported shows the manifest of what every rank pins whole.
func (m *Machine) exported(s *held) {
	man := m.manifest(s)
	m.toEngine(handoff.Exported{Label: s.Label, Manifest: man})
	m.do(Notify{Notice{Kind: NoticeExported, Label: s.Label, Manifest: &man, ID: s.ID}})
	m.publish(events.Exported, events.Event{Handoff: s.ID.String(), Label: s.Label})
}

// renewLeases asks every rank to hold longer what is half-way through its lease.
func (m *Machine) renewLeases() {
	for _, id := range m.dueSources() {
		s := m.lead.sources[id]
		n, hold, ok := s.Extend(m.now)
		if !ok {
			continue
		}
		m.lead.schedule(s)
		for _, p := range s.Pins() {
			m.do(ToPeer{m.lead.roster.Members[p.Rank], handoff.Extend{ID: id, Pin: p.Pin, N: n, Hold: hold + m.cfg.Margin}})
		}
	}
}

// schedule notes when s, which is not over, ends or asks for its next extension. Whoever
// moves one of those instants says so here.
func (l *leader) schedule(s *held) {
	at := s.Deadline()
	if renews, ok := s.Renews(); ok {
		at = min(at, renews)
	}
	l.dues.set(s.ID, at)
}

// extended takes a rank's acknowledgement at the leader.
func (m *Machine) extended(p handoff.Member, e handoff.Extended) {
	s := m.lead.sources[e.ID]
	if s == nil || !s.Extended(m.now, int(p.Rank), e) {
		m.refuse(p, e, Unmatched)
		return
	}
	m.lead.schedule(s)
}

// leased gives a rank's pin its hand-off and its own deadline. Of a pin that the rank freed
// by itself, because its leader heard of it that late, the leader hears: its lease ends.
func (m *Machine) leased(l handoff.Leased) {
	if p := m.pins[l.Pin]; p != nil {
		p.Leased(l, m.now)
		m.pinEnds.set(l.Pin, p.Deadline)
		return
	}
	m.toLeader(handoff.Pinned{Label: l.Label, Pin: handoff.PinInfo{Rank: m.cfg.Self.Rank}})
}

// extend holds a rank's pin longer. What is not held is not acknowledged: the leader's
// lease stays as it was, and ends.
func (m *Machine) extend(p handoff.Member, e handoff.Extend) {
	pin := m.pins[e.Pin]
	if pin == nil || !pin.Extend(e, m.now) {
		m.refuse(p, e, Unmatched)
		return
	}
	m.pinEnds.set(e.Pin, pin.Deadline)
	m.toLeader(handoff.Extended{ID: e.ID, Pin: e.Pin, N: e.N})
}
