package machine

import (
	"fmt"
	"slices"
	"strings"

	"github.com/batonkv/baton/sidecar/events"
	"github.com/batonkv/baton/sidecar/handoff"
)

// betweenLeaders dispatches what leaders of two groups say to each other.
func (m *Machine) betweenLeaders(p handoff.Member, msg handoff.PeerMessage) {
	if p.Rank != 0 {
		m.refuse(p, msg, NotLeader)
		return
	}
	switch msg := msg.(type) {
	case handoff.Open:
		if !speaksFor(p, msg.Importer) {
			m.refuse(p, msg, Importer)
			return
		}
		m.open(p, msg)
	case handoff.Done:
		if !m.launched(p, msg.Importer) {
			m.refuse(p, msg, Importer)
			return
		}
		m.doneAsked(p, msg)
	case handoff.Withdraw:
		if !m.launched(p, msg.Importer) {
			m.refuse(p, msg, Importer)
			return
		}
		m.withdrawn(p, msg)
	case handoff.Opened:
		m.opened(p, msg)
	case handoff.DoneAck:
		m.doneAnswered(p, msg)
	}
}

// speaksFor reports whether p leads the group that imports.
func speaksFor(p handoff.Member, i handoff.Importer) bool {
	return i.Group == p.Group && i.Leader == p.Incarnation
}

// launched is speaksFor, and that the launch is the one whose geometry p states: what an
// earlier launch of its group asked for, or never did, consumes nothing.
func (m *Machine) launched(p handoff.Member, i handoff.Importer) bool {
	g := m.lead.groups[p]
	return speaksFor(p, i) && (g == nil || g.digest == (handoff.Digest{}) || g.geometry.Instance == i.Instance)
}

// withdrawn ends a claim, also one that waits for the importer's geometry.
func (m *Machine) withdrawn(p handoff.Member, w handoff.Withdraw) {
	if waiting, ok := m.lead.opens[p]; ok {
		m.lead.opens[p] = slices.DeleteFunc(waiting, func(o handoff.Open) bool { return o.ID == w.ID && o.Attempt == w.Attempt })
	}
	if s := m.lead.sources[w.ID]; s != nil {
		s.Withdraw(w)
	}
}

// open answers an importer, once this side knows the importer's geometry: both sides
// plan, and compare, before the first byte.
func (m *Machine) open(p handoff.Member, o handoff.Open) {
	switch s := m.lead.sources[o.ID]; {
	case s == nil:
		m.do(ToPeer{p, handoff.Opened{ID: o.ID, Attempt: o.Attempt, Status: handoff.Gone}})
	case s.Key != o.Key:
		m.refuse(p, o, Key)
		m.answerOpen(s, o) // Gone
	case s.forget > 0:
		m.answerOpen(s, o) // Gone, or Taken
	case !m.up(p): // it outlived its session: nobody would answer for the geometry, nor hear
		m.refuse(p, o, Unmatched)
	case m.known(p, o.Importer.Instance) != nil:
		if !m.launched(p, o.Importer) { // asked anew, it states another launch
			m.refuse(p, o, Importer)
			return
		}
		m.answerOpen(s, o)
	case len(m.lead.opens[p]) >= m.cfg.MaxImports:
		m.refuse(p, o, TooMany)
	default:
		m.lead.opens[p] = append(m.lead.opens[p], o)
	}
}

// answerWaiting answers the opens of p that waited for its geometry.
func (m *Machine) answerWaiting(p handoff.Member) {
	waiting := m.lead.opens[p]
	delete(m.lead.opens, p)
	for _, o := range waiting {
		m.open(p, o)
	}
}

// answerOpen sends to the importer's leader, which asked for itself.
func (m *Machine) answerOpen(s *held, o handoff.Open) {
	to := leaderBy(o.Importer)
	a := s.Open(m.now, o)
	if a.Status == handoff.OK {
		a.Members = m.lead.roster.Members
		d, err := m.planInto(m.lead.groups[to])
		if a.Plan = d; err != nil || d != o.Plan {
			a.Status, a.Why = handoff.Refused, fmt.Sprintf("plans differ: importer %v, source %v", o.Plan, d)
			if err != nil {
				a.Why = err.Error()
			}
			a.Pins = nil
			s.Withdraw(handoff.Withdraw{ID: o.ID, Importer: o.Importer, Attempt: o.Attempt}) // it may not consume what it may not read
		}
	}
	m.do(ToPeer{to, a})
	m.publish(events.Opened, events.Event{Handoff: s.ID.String(), Label: s.Label, Peer: to.String(), Cause: strings.TrimPrefix(a.Status.String(), "ok")})
}

// planInto is planFrom seen from the source's side; only the digest is kept.
func (m *Machine) planInto(g *sourceGroup) (handoff.Digest, error) {
	if g == nil {
		return handoff.Digest{}, fmt.Errorf("%w: the importer's geometry is not known", handoff.ErrPlan)
	}
	own := geometryDigest(m.lead.roster.Geometry)
	if g.into == (handoff.Digest{}) || g.intoOwn != own {
		p, err := plan(g.geometry, m.lead.roster.Geometry)
		if err != nil {
			return handoff.Digest{}, err
		}
		g.into, g.intoOwn = p.Digest(), own
	}
	return g.into, nil
}

// doneAsked consumes a copy; with the last one the source is released.
func (m *Machine) doneAsked(p handoff.Member, d handoff.Done) {
	s := m.lead.sources[d.ID]
	if s == nil {
		m.do(ToPeer{p, handoff.DoneAck{ID: d.ID, Attempt: d.Attempt, Status: handoff.Gone}})
		return
	}
	a, over := s.Done(m.now, d)
	m.do(ToPeer{p, a})
	if over {
		m.endSource(d.ID)
	}
}
