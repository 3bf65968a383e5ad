package machine

import (
	"fmt"

	"github.com/batonkv/baton/sidecar/handoff"
)

// exportPart pins, or adds to a pin, what is computed of a prompt. What continues a pin that
// is over is dropped: its end was told to the engine, or is on its way.
func (m *Machine) exportPart(e handoff.ExportPart) {
	if e.Part == 1 {
		p := m.pin(handoff.Export{Label: e.Label, Blocks: e.Blocks, Tokens: e.Tokens, Position: e.Position,
			WeightsEpoch: e.WeightsEpoch, Salt: e.Salt}, e.Reach.Ahead)
		if p != nil && m.owns(p, func(s *held) error { return s.Exporting(e) }) {
			m.grown(p, p.Grow(e))
		}
		return
	}
	p := m.pinOf(e.Label)
	if p == nil {
		return
	}
	err := m.engine.bounds.Export(e.Label, p.Table(), e.Blocks, -1, e.Reach.Ahead, e.Tokens)
	if err == nil {
		err = p.Grow(e)
	}
	if err != nil || m.owned(e.Label, func(s *held) error { return s.Exporting(e) }) {
		m.grown(p, err)
	}
}

// exportLast closes the parts of a label.
func (m *Machine) exportLast(e handoff.Export) {
	p := m.pinOf(e.Label)
	if p == nil {
		return
	}
	c := m.engine.attach.Capacity
	err := m.engine.bounds.Export(e.Label, nil, e.Blocks, e.Slot, e.Tokens, e.Tokens)
	if err == nil {
		err = p.Exports(e)
	}
	if err == nil && c.Slots > 0 && e.Slot < 0 {
		err = fmt.Errorf("%w: export of %q brings no slot of its per-request state", handoff.ErrEngine, e.Label)
	}
	if err != nil || m.owned(e.Label, func(s *held) error { return s.Exported(e) }) {
		m.grown(p, err)
	}
}

// grown states what an engine said of its pin, or ends the session of one that contradicts
// itself.
func (m *Machine) grown(p *handoff.Pin, err error) {
	if err != nil {
		m.do(CloseEngine{m.engine.session, err})
		return
	}
	m.statePin(p)
}

// owned takes what continues the leader's own export. False: the hand-off of that label has
// ended, or is another, and Free is on its way.
func (m *Machine) owned(label string, take func(*held) error) bool {
	if !m.leads() {
		return true
	}
	id, ok := m.lead.labels[label]
	return ok && take(m.lead.sources[id]) == nil
}

// continued takes what a part adds to a rank's pin, at the leader. It begins nothing: of a
// hand-off that has ended no lease covers the pin.
func (m *Machine) continued(p handoff.Member, msg handoff.Pinned) {
	s := m.lead.sources[m.lead.labels[msg.Label]]
	if s == nil || msg.Pin.Rank != p.Rank || s.Pins()[p.Rank].Pin != msg.Pin.Pin {
		m.refuse(p, msg, Unmatched)
		m.do(ToPeer{p, handoff.Unpin{Pin: msg.Pin.Pin}})
		return
	}
	if err := s.Pinned(msg); err != nil {
		m.refuse(p, msg, Malformed)
		m.failExport(msg.Label, err)
		m.endSource(s.ID)
		return
	}
	switch {
	case s.Begins():
		m.lease(s)
	case s.Growing():
		m.tell(s)
	}
}

// begun shows the manifest of a hand-off whose first part every rank pins.
func (m *Machine) begun(s *held) {
	m.toEngine(handoff.Exported{Label: s.Label, Manifest: m.manifest(s), More: true})
	if !s.announced {
		m.notifyAnnounced(s)
	}
}

// tell tells those that read parts of what all ranks have stated. The last part closes it.
func (m *Machine) tell(s *held) {
	p, to, ok := s.Tell()
	if !ok {
		return
	}
	for _, o := range to {
		p.Attempt = o.Attempt
		m.do(ToPeer{leaderBy(o.Importer), p})
	}
	if p.More {
		return
	}
	waiting := s.Close(m.now, m.holdOf(s))
	m.lead.schedule(s)
	m.exported(s)
	for _, o := range waiting {
		m.answerOpen(s, o)
	}
}

// leaderBy is the importer's leader, which asked for itself.
func leaderBy(i handoff.Importer) handoff.Member {
	return handoff.Member{Group: i.Group, Rank: 0, Incarnation: i.Leader}
}

// readsParts reports whether every engine of this group takes a Reserve of what is not
// exported whole.
func (m *Machine) readsParts() bool {
	for _, j := range m.lead.joins {
		if !j.Attach.Parts {
			return false
		}
	}
	return true
}

// part is the source's word of more, at the importing leader.
func (m *Machine) part(p handoff.Member, msg handoff.Part) {
	i := m.importOf(msg.ID, msg.Attempt)
	if !m.leads() || p.Rank != 0 || i == nil || i.Source != p || !i.Awaits() {
		m.refuse(p, msg, Unmatched)
		return
	}
	fresh, err := i.Parts(msg)
	if err == nil && m.lead.roster != nil {
		err = m.checkSums(m.lead.roster.Geometry.Model, i.Opened)
	}
	if err != nil {
		m.failImport(i, err)
		return
	}
	if !fresh {
		return
	}
	msg.Reserve, msg.Resume = i.ReserveN, handoff.Resume{}
	for _, r := range m.lead.roster.Members {
		m.do(ToPeer{r, msg})
	}
}

// grows is the leader's word of more, at a rank. The Reserve that it is about may wait behind
// a Free: what the engine hears of it stays as it was decided.
func (m *Machine) grows(p handoff.Member, msg handoff.Part) {
	if !m.joined || p != m.boss || m.engine == nil {
		m.refuse(p, msg, NotMember)
		return
	}
	e := m.engine
	for _, w := range e.waits {
		if w.N == msg.Reserve && e.early[w.N] == nil {
			e.early[w.N] = handoff.NewDest(w)
		}
	}
	if d := e.early[msg.Reserve]; d != nil {
		d.Grows(msg)
	}
	if d := m.dests[msg.Reserve]; d != nil {
		d.Grows(msg)
		m.submit(d)
		m.report(d)
	}
}

// reserving is the rank's half of a Reserve that is passed on.
func (m *Machine) reserving(d handoff.Decision) *handoff.Dest {
	if early := m.engine.early[d.N]; early != nil {
		delete(m.engine.early, d.N)
		return early
	}
	return handoff.NewDest(d)
}
