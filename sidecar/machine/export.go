package machine

import (
	"fmt"
	"slices"
	"strings"

	"github.com/batonkv/baton/sidecar/events"
	"github.com/batonkv/baton/sidecar/handoff"
)

// held is a source with the instant at which its answers may be forgotten.
type held struct {
	*handoff.Source
	forget Now // 0: not over
}

// announce: a label will be exported; the leader names the hand-off already.
func (m *Machine) announce(label string) {
	if !m.leads() {
		return
	}
	s, err := m.source(label)
	if err != nil {
		m.toEngine(handoff.Failed{Label: label, Err: err})
		return
	}
	man := m.manifest(s)
	m.do(Notify{Notice{Kind: NoticeAnnounced, Label: label, Manifest: &man, ID: s.ID}})
}

// source returns the source of a label, new if it must be.
func (m *Machine) source(label string) (*held, error) {
	if id, ok := m.lead.labels[label]; ok {
		return m.lead.sources[id], nil
	}
	switch {
	case m.lead.roster == nil:
		return nil, fmt.Errorf("%w: not every rank of group %s is attached", handoff.ErrNotReady, m.cfg.Self.Group)
	case len(m.lead.sources) >= m.cfg.MaxSources:
		return nil, fmt.Errorf("%w: %d labels are held or remembered", handoff.ErrCapacity, len(m.lead.sources))
	}
	m.lead.lastID++
	id := handoff.ID{Group: m.cfg.Self.Group, Instance: m.lead.roster.Instance, Leader: m.cfg.Self.Incarnation, N: m.lead.lastID}
	s := &held{Source: handoff.NewSource(id, m.mintKey(), label, int32(len(m.lead.roster.Members)))}
	m.lead.sources[id], m.lead.labels[label] = s, id
	return s, nil
}

func (m *Machine) mintKey() (k handoff.Key) {
	for i := range k {
		if i%8 == 0 {
			v := m.cfg.Mint()
			for j := range 8 {
				k[i+j] = byte(v >> (8 * j))
			}
		}
	}
	return k
}

// export pins at this rank and tells the leader.
func (m *Machine) export(e handoff.Export) {
	if err := m.checkExport(e); err != nil {
		m.toEngine(handoff.Failed{Label: e.Label, Err: err})
		return
	}
	m.lastPin++
	p := &handoff.Pin{Label: e.Label, Deadline: m.now + m.cfg.MaxHold + m.cfg.Margin, Info: handoff.PinInfo{
		Rank: m.cfg.Self.Rank, Pin: m.lastPin, Generation: 1, Blocks: e.Blocks, Slot: e.Slot, Tokens: e.Tokens, Position: e.Position}}
	m.pins[m.lastPin] = p
	if m.leads() {
		s, err := m.source(e.Label)
		if err == nil {
			err = s.Exported(e)
		}
		if err != nil {
			delete(m.pins, m.lastPin)
			m.toEngine(handoff.Failed{Label: e.Label, Err: err})
			return
		}
	}
	m.toLeader(handoff.Pinned{Label: e.Label, Pin: p.Info})
}

func (m *Machine) checkExport(e handoff.Export) error {
	c := m.engine.attach.Capacity
	need := (e.Tokens + c.BlockTokens - 1) / c.BlockTokens
	switch {
	case e.Label == "":
		return fmt.Errorf("%w: export without a label", handoff.ErrEngine)
	case e.Tokens < 1 || int64(len(e.Blocks)) < int64(need):
		return fmt.Errorf("%w: export of %q: %d tokens need %d blocks, %d are given", handoff.ErrEngine, e.Label, e.Tokens, need, len(e.Blocks))
	case e.Position != e.Tokens && e.Position != e.Tokens-1:
		return fmt.Errorf("%w: export of %q: state at %d, KV at %d", handoff.ErrPosition, e.Label, e.Position, e.Tokens)
	case c.Slots > 0 && e.Slot < 0:
		return fmt.Errorf("%w: export of %q brings no slot of its per-request state", handoff.ErrEngine, e.Label)
	}
	return nil
}

// pinned takes a rank's pin at the leader. Ranks run at their own pace: a pin may come
// before the leader's own engine exported.
func (m *Machine) pinned(p handoff.Member, msg handoff.Pinned) {
	s, err := m.source(msg.Label)
	if err == nil && msg.Pin.Rank != p.Rank {
		err = fmt.Errorf("%w: rank %d pins for rank %d", handoff.ErrEngine, p.Rank, msg.Pin.Rank)
	}
	if err == nil {
		err = s.Pinned(msg.Pin)
	}
	if err != nil {
		m.refuse(p, msg, Malformed)
		m.toEngine(handoff.Failed{Label: msg.Label, Err: err})
		return
	}
	if s.State() == handoff.Announced && s.Complete() {
		m.lease(s)
	}
}

// lease starts the lease, gives each rank its own later deadline, and shows the manifest.
func (m *Machine) lease(s *held) {
	hold := m.cfg.Lease
	if h := s.Export().MaxHold; h > 0 {
		hold = min(hold, h)
	}
	hold = min(hold, m.cfg.MaxHold)
	waiting := s.Lease(m.now, hold)
	for _, p := range s.Pins() {
		m.do(ToPeer{m.lead.roster.Members[p.Rank], handoff.Leased{ID: s.ID, Label: s.Label, Pin: p.Pin, Hold: hold + m.cfg.Margin}})
	}
	man := m.manifest(s)
	m.toEngine(handoff.Exported{Label: s.Label, Manifest: man})
	m.do(Notify{Notice{Kind: NoticeExported, Label: s.Label, Manifest: &man, ID: s.ID}})
	m.publish(events.Exported, events.Event{Handoff: s.ID.String(), Label: s.Label})
	for _, o := range waiting {
		m.answerOpen(s, o)
	}
}

func (m *Machine) manifest(s *held) handoff.Manifest {
	a := m.engine.attach
	man := handoff.Manifest{ID: s.ID, Key: s.Key, Label: s.Label, Model: modelDigest(a.Model),
		Geometry: geometryDigest(m.lead.roster.Geometry), WeightsEpoch: a.Model.WeightsEpoch, BlockTokens: a.Capacity.BlockTokens}
	if e := s.Export(); e != nil {
		man.Tokens, man.Position, man.Resume = e.Tokens, e.Position, e.Resume
	}
	return man
}

// leased and freePin move a rank's pin by its leader's word.
func (m *Machine) leased(l handoff.Leased) {
	if p := m.pins[l.Pin]; p != nil && p.Label == l.Label {
		p.ID, p.Deadline = l.ID, m.now+l.Hold
	}
}

func (m *Machine) freePin(id handoff.ID, label string) {
	for n, p := range m.pins {
		if p.ID == id || p.ID == (handoff.ID{}) && p.Label == label {
			delete(m.pins, n)
		}
	}
}

// unpin frees a pin whose lease the leader does not hold, outside the group's order.
func (m *Machine) unpin(u handoff.Unpin) {
	if p := m.pins[u.Pin]; p != nil {
		delete(m.pins, u.Pin)
		m.toEngine(handoff.UnpinExport{Label: p.Label, ID: u.ID})
	}
}

// expirePins frees what has reached the rank's own deadline: no leader is heard.
func (m *Machine) expirePins() {
	for _, p := range m.sortedPins() {
		if p.Deadline <= m.now {
			m.unpin(handoff.Unpin{ID: p.ID, Pin: p.Info.Pin})
		}
	}
}

func (m *Machine) sortedPins() []*handoff.Pin {
	ps := make([]*handoff.Pin, 0, len(m.pins))
	for _, p := range m.pins {
		ps = append(ps, p)
	}
	slices.SortFunc(ps, func(a, b *handoff.Pin) int { return int(a.Info.Pin) - int(b.Info.Pin) })
	return ps
}

// check answers whether a pin is held at this instant.
func (m *Machine) check(p handoff.Member, c handoff.Check) {
	pin := m.pins[c.Pin]
	held := pin != nil && pin.Answers(c) && m.now < pin.Deadline
	m.do(ToPeer{p, handoff.Checked{Check: c, Held: held}})
}

func (m *Machine) sortedSources() []handoff.ID {
	ids := make([]handoff.ID, 0, len(m.lead.sources))
	for id := range m.lead.sources {
		ids = append(ids, id)
	}
	slices.SortFunc(ids, func(a, b handoff.ID) int { return int(int64(a.N) - int64(b.N)) })
	return ids
}

// expireSources ends leases and forgets old answers.
func (m *Machine) expireSources() {
	for _, id := range m.sortedSources() {
		s := m.lead.sources[id]
		if s.Expired(m.now) {
			m.publish(events.Expired, events.Event{Handoff: id.String(), Label: s.Label})
			m.endSource(id, true)
		}
		if s.forget > 0 && s.forget <= m.now {
			delete(m.lead.sources, id)
		}
	}
}

// endSource releases what the group holds for id; free says that its ranks can be told
// in the group's order.
func (m *Machine) endSource(id handoff.ID, free bool) {
	s := m.lead.sources[id]
	if s == nil || s.forget > 0 {
		return
	}
	pinned := slices.ContainsFunc(s.Pins(), func(p handoff.PinInfo) bool { return p.Pin != 0 })
	for _, o := range s.End() {
		m.answerOpen(s, o)
	}
	s.forget = m.now + m.cfg.KeepSources
	if m.lead.labels[s.Label] == id {
		delete(m.lead.labels, s.Label)
	}
	if free && pinned {
		m.decideAll(handoff.Decision{Kind: handoff.Free, ID: id, Label: s.Label})
	}
	m.publish(events.Released, events.Event{Handoff: id.String(), Label: s.Label})
	m.do(Notify{Notice{Kind: NoticeReleased, Label: s.Label, ID: id}})
}

// releaseLabel: the engine gives up an export.
func (m *Machine) releaseLabel(label string) {
	if id, ok := m.lead.labels[label]; m.leads() && ok {
		m.endSource(id, true)
	}
}

func (m *Machine) releaseCall(e Release) {
	s := m.lead.sources[e.ID]
	if !m.leads() || s == nil || s.Key != e.Key {
		m.do(Reply{Call: e.Call, Err: fmt.Errorf("%w: no hand-off %v with this key", handoff.ErrGone, e.ID)})
		return
	}
	m.endSource(e.ID, true)
	m.do(Reply{Call: e.Call})
}

// betweenLeaders dispatches what leaders of two groups say to each other.
func (m *Machine) betweenLeaders(p handoff.Member, msg handoff.PeerMessage) {
	switch msg := msg.(type) {
	case handoff.Open:
		if msg.Importer.Group != p.Group || msg.Importer.Leader != p.Incarnation {
			m.refuse(p, msg, Importer)
			return
		}
		m.open(p, msg)
	case handoff.Done:
		if msg.Importer.Group != p.Group || msg.Importer.Leader != p.Incarnation {
			m.refuse(p, msg, Importer)
			return
		}
		m.doneAsked(p, msg)
	case handoff.Withdraw:
		if s := m.lead.sources[msg.ID]; s != nil && msg.Importer.Group == p.Group && msg.Importer.Leader == p.Incarnation {
			s.Withdraw(msg)
		}
	case handoff.ReleaseManifest:
		if s := m.lead.sources[msg.ID]; s != nil && s.Key == msg.Key {
			m.endSource(msg.ID, true)
		}
	case handoff.Opened:
		m.opened(p, msg)
	case handoff.DoneAck:
		m.doneAnswered(p, msg)
	}
}

// open answers an importer, once this side knows the importer's geometry: both sides
// plan, and compare, before the first byte.
func (m *Machine) open(p handoff.Member, o handoff.Open) {
	switch {
	case m.lead.sources[o.ID] == nil:
		m.do(ToPeer{p, handoff.Opened{ID: o.ID, Attempt: o.Attempt, Status: handoff.Gone}})
	case m.known(p, o.Importer.Instance) != nil:
		m.answerOpen(m.lead.sources[o.ID], o)
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
	to := handoff.Member{Group: o.Importer.Group, Rank: 0, Incarnation: o.Importer.Leader}
	a := s.Open(m.now, o)
	if a.Status == handoff.OK {
		a.Members, a.WeightsEpoch = m.lead.roster.Members, m.engine.attach.Model.WeightsEpoch
		d, err := m.planInto(m.lead.groups[to])
		if a.Plan = d; err != nil || d != o.Plan {
			a.Status, a.Why = handoff.Refused, fmt.Sprintf("plans differ: importer %v, source %v", o.Plan, d)
			if err != nil {
				a.Why = err.Error()
			}
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
		m.endSource(d.ID, true)
	}
}
