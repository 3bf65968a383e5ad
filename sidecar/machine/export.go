package machine

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/batonkv/baton/discovery"
	"github.com/batonkv/baton/sidecar/events"
	"github.com/batonkv/baton/sidecar/handoff"
)

// held is a source with the instant at which its answers may be forgotten.
type held struct {
	*handoff.Source
	forget    Now  // 0: not over
	announced bool // who watches was told of it
}

// pinned reports whether an engine keeps memory for it, or did so until a rank let go.
func (s *held) pinned() bool {
	return s.Held() || slices.ContainsFunc(s.Pins(), func(p handoff.PinInfo) bool { return p.Pin != 0 })
}

// announce: a label will be exported; the leader names the hand-off already.
func (m *Machine) announce(label string) {
	if !m.leads() {
		return
	}
	s, err := m.source(label)
	if err != nil { // an export that follows is answered by itself: SourceSafe
		m.toEngine(handoff.Failed{Label: label, Err: err, SourceSafe: true})
		return
	}
	m.notifyAnnounced(s)
}

func (m *Machine) notifyAnnounced(s *held) {
	man := m.manifest(s)
	s.announced = true
	m.do(Notify{Notice{Kind: NoticeAnnounced, Label: s.Label, Manifest: &man, ID: s.ID}})
}

// source returns the source of a label, new if it must be.
func (m *Machine) source(label string) (*held, error) {
	if id, ok := m.lead.labels[label]; ok {
		return m.lead.sources[id], nil
	}
	switch {
	case m.lead.roster == nil:
		return nil, m.lacking()
	case label == "":
		return nil, fmt.Errorf("%w: a hand-off has a label", handoff.ErrEngine)
	case len(m.lead.labels) >= m.cfg.MaxSources:
		return nil, fmt.Errorf("%w: %d labels are held", handoff.ErrCapacity, len(m.lead.labels))
	}
	m.lead.lastID++
	id := handoff.ID{Group: m.cfg.Self.Group, Instance: m.lead.roster.Instance, Leader: m.cfg.Self.Incarnation, N: m.lead.lastID}
	s := &held{Source: handoff.NewSource(id, m.mintKey(), label, int32(len(m.lead.roster.Members)), m.now+m.cfg.MaxHold)}
	m.lead.sources[id], m.lead.labels[label] = s, id
	m.lead.schedule(s)
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

// mintPin returns a number that nobody can guess and no pin here has.
func (m *Machine) mintPin() handoff.PinID {
	for {
		if id := handoff.PinID(m.cfg.Mint()); id != 0 && m.pins[id] == nil {
			return id
		}
	}
}

// export pins at this rank and tells the leader, once no step writes the memory any more.
func (m *Machine) export(e handoff.Export) {
	if e.Parts > 0 {
		m.exportLast(e)
		return
	}
	if p := m.pin(e, e.Tokens); p != nil && m.owns(p, func(s *held) error { return s.Exported(e) }) {
		m.grown(p, p.Exports(e))
	}
}

// pin makes the pin of an export whose first tokens are computed: of nothing yet. Nil: the
// export is refused, and who asked was told.
func (m *Machine) pin(e handoff.Export, computed int32) *handoff.Pin {
	if err := m.checkExport(e, computed); err != nil {
		if id, ok := m.lead.labels[e.Label]; ok && (errors.Is(err, handoff.ErrGone) || errors.Is(err, handoff.ErrWeights)) {
			m.endSource(id) // announced anew, or for weights that are no more
		}
		m.toEngine(handoff.Failed{Label: e.Label, Err: err})
		if !m.leads() && !errors.Is(err, handoff.ErrGone) && !slices.Contains(m.labels(), e.Label) {
			m.toLeader(handoff.Pinned{Label: e.Label, WeightsEpoch: e.WeightsEpoch, Pin: handoff.PinInfo{Rank: m.cfg.Self.Rank}})
		}
		return nil
	}
	id := m.mintPin()
	p := handoff.NewPin(e.Label, handoff.PinInfo{Rank: m.cfg.Self.Rank, Pin: id, Generation: m.attaches, Tokens: e.Tokens, Position: e.Position},
		e.WeightsEpoch, e.Salt, m.now+m.cfg.MaxHold+m.cfg.Margin)
	m.pins[id] = p
	m.pinEnds.set(id, p.Deadline)
	return p
}

// owns takes the leader's own export, or its first part, into the hand-off of its label. It
// reports whether the pin stays.
func (m *Machine) owns(p *handoff.Pin, take func(*held) error) bool {
	if !m.leads() {
		return true
	}
	s, err := m.source(p.Label)
	if err == nil {
		err = take(s)
	}
	if err != nil {
		m.forget(p.Info.Pin)
		m.toEngine(handoff.Failed{Label: p.Label, Err: err})
	}
	return err == nil
}

func (m *Machine) checkExport(e handoff.Export, computed int32) error {
	c := m.engine.attach.Capacity
	switch {
	case m.cfg.Role == discovery.Decode:
		return fmt.Errorf("%w: group %s has the role decode: it exports nothing", handoff.ErrRole, m.cfg.Self.Group)
	case e.Label == "":
		return fmt.Errorf("%w: export without a label", handoff.ErrEngine)
	case m.engine.freeing[e.Label] > 0: // before all else: Free, on its way, is about this export too, and ends it
		return fmt.Errorf("%w: %q was released before it was exported", handoff.ErrGone, e.Label)
	case e.Tokens < 1:
		return fmt.Errorf("%w: export of %q: of %d tokens", handoff.ErrEngine, e.Label, e.Tokens)
	case e.Position != e.Tokens && e.Position != e.Tokens-1:
		return fmt.Errorf("%w: export of %q: state at %d, KV at %d", handoff.ErrPosition, e.Label, e.Position, e.Tokens)
	case c.Slots > 0 && e.Slot < 0:
		return fmt.Errorf("%w: export of %q brings no slot of its per-request state", handoff.ErrEngine, e.Label)
	case m.otherWeights(e.WeightsEpoch):
		return fmt.Errorf("%w: %q was made by weights of epoch %d, group %s is at %d", handoff.ErrWeights, e.Label, e.WeightsEpoch, m.cfg.Self.Group, m.epoch())
	case m.exports() >= m.cfg.MaxSources:
		return fmt.Errorf("%w: %d exports are pinned", handoff.ErrCapacity, m.exports())
	case m.kept[e.Label] > 0:
		return fmt.Errorf("%w: label %q is pinned since before the engine attached", handoff.ErrEngine, e.Label)
	case m.pinOf(e.Label) != nil || m.leaves(e.Label):
		return fmt.Errorf("%w: label %q is pinned already", handoff.ErrEngine, e.Label)
	}
	return m.engine.bounds.Export(e.Label, nil, e.Blocks, e.Slot, computed, e.Tokens)
}

// pinned takes a rank's pin at the leader. Ranks run at their own pace: a pin may come
// before the leader's own engine exported.
func (m *Machine) pinned(p handoff.Member, msg handoff.Pinned) {
	if m.lead.launch.freeing[p.Rank][msg.Label] > 0 {
		return // Free is on its way to that rank, and frees this pin
	}
	if msg.Pin.Pin == 0 {
		m.notExported(p, msg.Label)
		return
	}
	if m.otherWeights(msg.WeightsEpoch) {
		m.refuse(p, msg, Weights)
		m.do(ToPeer{p, handoff.Unpin{Pin: msg.Pin.Pin}})
		return
	}
	if msg.Part > 1 {
		m.continued(p, msg)
		return
	}
	s, err := m.source(msg.Label)
	if err == nil && msg.Pin.Rank != p.Rank {
		err = fmt.Errorf("%w: rank %d pins for rank %d", handoff.ErrEngine, p.Rank, msg.Pin.Rank)
	}
	if err == nil {
		err = s.Pinned(msg)
	}
	if err != nil {
		m.refuse(p, msg, Malformed)
		m.notPinned(p, msg, s, err)
		return
	}
	if s.Begins() {
		m.lease(s)
	} else {
		m.awaitRanks(s)
	}
}

// notExported ends a label that a rank refused to export: not every rank will ever pin it.
// Free reaches the engines that did, and meets an export that is still on its way.
func (m *Machine) notExported(p handoff.Member, label string) {
	if id, ok := m.lead.labels[label]; ok {
		if m.lead.sources[id].Held() {
			m.failExport(label, fmt.Errorf("%w: rank %d refused its export of %q", handoff.ErrEngine, p.Rank, label))
		}
		m.endSource(id)
	}
	if m.lead.launch.freeing[p.Rank][label] == 0 {
		m.decideAll(handoff.Decision{Kind: handoff.Free, Label: label})
	}
}

// failExport tells the leader's engine that its export has failed, which gives the memory
// back.
func (m *Machine) failExport(label string, err error) {
	says := handoff.Failed{Label: label, Err: err}
	if p := m.pinOf(label); p != nil {
		m.leave(p, says)
		return
	}
	m.toEngine(says)
}

// notPinned ends what a refused pin makes impossible. Ranks that hold different prompts
// under one label end the hand-off; any other pin is the rank's alone, and no lease will
// cover it.
func (m *Machine) notPinned(p handoff.Member, msg handoff.Pinned, s *held, err error) {
	switch {
	case errors.Is(err, handoff.ErrPosition):
		m.failExport(msg.Label, err)
		m.endSource(s.ID)
		m.do(ToPeer{p, handoff.Unpin{ID: s.ID, Pin: msg.Pin.Pin}})
	case s == nil || !slices.ContainsFunc(s.Pins(), func(o handoff.PinInfo) bool { return o.Rank == p.Rank && o.Pin == msg.Pin.Pin }):
		m.do(ToPeer{p, handoff.Unpin{Pin: msg.Pin.Pin}})
	}
}

func (m *Machine) manifest(s *held) handoff.Manifest {
	a := m.engine.attach
	man := handoff.Manifest{ID: s.ID, Key: s.Key, Label: s.Label, Model: modelDigest(a.Model),
		Geometry: geometryDigest(m.lead.roster.Geometry), WeightsEpoch: m.epoch(), BlockTokens: a.Capacity.BlockTokens}
	if e := s.Whole(); e != nil {
		man.Tokens, man.Position, man.Resume, man.WeightsEpoch = e.Tokens, e.Position, e.Resume, e.WeightsEpoch
	}
	return man
}

// freePin forgets a rank's pin by its leader's Free; the label is kept until that is passed
// on. A label is pinned once at a time, and what is freed may be of a leader before this
// one, whose ids nobody knows any more.
func (m *Machine) freePin(label string) {
	if p := m.pinOf(label); p != nil {
		m.kept[label] = p.Deadline
		m.leave(p, nil)
	}
}

// unpin frees a pin whose lease the leader does not hold, outside the group's order.
func (m *Machine) unpin(u handoff.Unpin) {
	if p := m.pins[u.Pin]; p != nil {
		m.leave(p, handoff.UnpinExport{Label: p.Label, ID: u.ID})
	}
}

// expirePins frees what has reached the rank's own deadline: no leader is heard.
func (m *Machine) expirePins() {
	for _, id := range slices.Sorted(slices.Values(m.pinEnds.due(m.now))) {
		m.unpin(handoff.Unpin{ID: m.pins[id].ID, Pin: id})
	}
	var due []string
	for l, at := range m.kept {
		if at <= m.now && !m.leaves(l) {
			due = append(due, l)
		}
	}
	slices.Sort(due)
	for _, l := range due {
		delete(m.kept, l)
		m.toEngine(handoff.UnpinExport{Label: l})
	}
}

// check answers whether a pin is held at this instant.
func (m *Machine) check(p handoff.Member, c handoff.Check) {
	pin := m.pins[c.Pin]
	held := pin != nil && pin.Answers(c) && m.now < pin.Deadline && !pin.Broken(p, c)
	if pin != nil && !pin.Answers(c) {
		m.refuse(p, c, Unmatched)
	}
	m.do(ToPeer{p, handoff.Checked{Check: c, Held: held}})
}

// sortedSources are the sources that are not over, by age.
func (m *Machine) sortedSources() []handoff.ID {
	ids := slices.Collect(maps.Values(m.lead.labels))
	slices.SortFunc(ids, func(a, b handoff.ID) int { return cmp.Compare(a.N, b.N) })
	return ids
}

// dueSources are the sources that are to be seen to, by age.
func (m *Machine) dueSources() []handoff.ID {
	due := m.lead.dues.due(m.now)
	slices.SortFunc(due, func(a, b handoff.ID) int { return cmp.Compare(a.N, b.N) })
	return due
}

// expireSources ends leases and announcements, and forgets old answers.
func (m *Machine) expireSources() {
	for _, id := range m.dueSources() {
		if s := m.lead.sources[id]; s.Expired(m.now) {
			m.publish(events.Expired, events.Event{Handoff: id.String(), Label: s.Label, Cause: m.incomplete(s)})
			m.endSource(id)
		}
	}
	for len(m.lead.over) > 0 && (len(m.lead.over) > m.cfg.KeepOver || m.lead.sources[m.lead.over[0]].forget <= m.now) {
		delete(m.lead.sources, m.lead.over[0])
		m.lead.over = m.lead.over[1:]
	}
}

// endSource releases what the group holds for id; its ranks hear in the group's order.
func (m *Machine) endSource(id handoff.ID) {
	s := m.lead.sources[id]
	if s == nil || s.forget > 0 {
		return
	}
	pinned := s.pinned()
	for _, o := range s.End() {
		m.answerOpen(s, o)
	}
	s.forget = m.now + m.cfg.KeepSources
	m.lead.over = append(m.lead.over, id)
	delete(m.lead.labels, s.Label)
	m.lead.dues.drop(id)
	if pinned {
		m.decideAll(handoff.Decision{Kind: handoff.Free, ID: id, Label: s.Label})
	}
	m.publish(events.Released, events.Event{Handoff: id.String(), Label: s.Label})
	m.do(Notify{Notice{Kind: NoticeReleased, Label: s.Label, ID: id}})
}

// releaseLabel: the engine gives up an export.
func (m *Machine) releaseLabel(label string) {
	if id, ok := m.lead.labels[label]; m.leads() && ok {
		m.endSource(id)
	}
}

func (m *Machine) releaseCall(e Release) {
	s := m.lead.sources[e.ID]
	if !m.leads() || s == nil || s.Key != e.Key {
		m.do(Reply{Call: e.Call, Err: fmt.Errorf("%w: no hand-off %v with this key", handoff.ErrGone, e.ID)})
		return
	}
	m.endSource(e.ID)
	m.do(Reply{Call: e.Call})
}
