package machine

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/batonkv/baton/sidecar/handoff"
)

// awaitRanks bounds the wait for the ranks that pin nothing of s yet by a lease from the first
// pin on: a fence or a sum keeps that back on every rank alike. What an export asks to be held
// for is importers' time, which has not begun.
func (m *Machine) awaitRanks(s *held) {
	s.Await(m.now + m.cfg.Lease)
	m.lead.schedule(s)
}

// incomplete tells the engines that pin what others do not, whose label is over, and returns
// why; "" where nobody is missing. An engine that the leader's engine is with hears Free, in
// the group's order: of a label that the leader's never exported it hears at once.
func (m *Machine) incomplete(s *held) string {
	missing := s.Missing()
	if len(missing) == 0 {
		return ""
	}
	err := fmt.Errorf("%w: ranks %v of group %s pin nothing of %q, others did %v ago: every rank exports a prompt, under one label",
		handoff.ErrDeadline, missing, m.cfg.Self.Group, s.Label, m.cfg.Lease)
	if s.Held() {
		m.failExport(s.Label, err)
		return err.Error()
	}
	for r, p := range s.Pins() {
		if p.Pin != 0 {
			m.do(ToPeer{m.lead.roster.Members[r], handoff.Unpin{ID: s.ID, Pin: p.Pin}})
		}
	}
	return err.Error()
}

// exports is how many exports the engine keeps for this sidecar.
func (m *Machine) exports() int {
	n := len(m.pins) + len(m.kept)
	for _, l := range m.leaving {
		if l.says != nil {
			n++
		}
	}
	return n
}

func (m *Machine) forget(p handoff.PinID) {
	delete(m.pins, p)
	m.pinEnds.drop(p)
}

// pinOf is the pin of a label, which has one at a time; nil: none.
func (m *Machine) pinOf(label string) *handoff.Pin {
	for _, p := range m.pins {
		if p.Label == label {
			return p
		}
	}
	return nil
}

func (m *Machine) sortedPins() []*handoff.Pin {
	ps := make([]*handoff.Pin, 0, len(m.pins))
	for _, p := range m.pins {
		ps = append(ps, p)
	}
	slices.SortFunc(ps, func(a, b *handoff.Pin) int { return cmp.Compare(a.Info.Pin, b.Info.Pin) })
	return ps
}
