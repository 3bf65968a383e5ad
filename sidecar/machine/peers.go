package machine

import (
	"slices"

	"github.com/batonkv/baton/discovery"
	"github.com/batonkv/baton/sidecar/handoff"
	"github.com/batonkv/baton/transfer/layout"
)

// peer is another sidecar process that this one talks or wants to talk to.
type peer struct {
	up      bool
	dialing bool
	retry   Now  // dial again then; 0: not wanted or not waiting
	wanted  bool // somebody here needs the session
}

// linkState is how far a link to a source rank is.
type linkState uint8

const (
	linkAsked  linkState = iota + 1 // WantBuffers was sent, or waits for the session
	linkOpens                       // OpenLink is under way
	linkOpened                      // pulls may be submitted
)

type link struct {
	state linkState
	open  int  // tickets
	dead  bool // close when open is 0
}

// found takes a new view of discovery: peers that are wanted and were not there are dialled.
func (m *Machine) found(rs []discovery.Record) {
	clear(m.records)
	for _, r := range rs {
		m.records[key(r.Group, layout.Rank(r.Rank))] = r
	}
	if !m.leads() && m.engine != nil && m.engine.mapped {
		m.joinLeader()
	}
	for _, p := range m.sortedPeers() {
		if at, _, ok := m.lookup(p.Group, p.Rank); (!ok || at != p) && !m.peers[p].up && !m.peers[p].dialing {
			delete(m.peers, p) // its process is over
			continue
		}
		m.dial(p)
	}
	if m.leads() {
		m.findSources()
	}
}

func key(group string, r layout.Rank) string { return handoff.Member{Group: group, Rank: r}.String() }

// lookup returns the live sidecar of a rank as discovery sees it.
func (m *Machine) lookup(group string, r layout.Rank) (handoff.Member, string, bool) {
	rec, ok := m.records[key(group, r)]
	return handoff.Member{Group: group, Rank: r, Incarnation: handoff.Incarnation(rec.Incarnation)}, rec.Addr, ok
}

func (m *Machine) leaderOf(group string) (handoff.Member, bool) {
	l, _, ok := m.lookup(group, 0)
	return l, ok
}

func (m *Machine) up(p handoff.Member) bool { return m.peers[p] != nil && m.peers[p].up }

// want makes sure that a session to p exists or is being made.
func (m *Machine) want(p handoff.Member) {
	if m.peers[p] == nil {
		m.peers[p] = &peer{}
	}
	m.peers[p].wanted = true
	m.dial(p)
}

func (m *Machine) dial(p handoff.Member) {
	st := m.peers[p]
	if st.up || st.dialing || !st.wanted || st.retry > m.now {
		return
	}
	at, addr, ok := m.lookup(p.Group, p.Rank)
	if !ok || at != p {
		return // discovery brings it, or its successor, which is another peer
	}
	st.dialing, st.retry = true, 0
	m.do(Dial{p, addr})
}

func (m *Machine) retryPeers() {
	for _, p := range m.sortedPeers() {
		if st := m.peers[p]; st.retry > 0 && st.retry <= m.now {
			st.retry = 0
			m.dial(p)
		}
	}
}

// sortedPeers keeps effects in one order whatever the map's.
func (m *Machine) sortedPeers() []handoff.Member {
	ps := make([]handoff.Member, 0, len(m.peers))
	for p := range m.peers {
		ps = append(ps, p)
	}
	slices.SortFunc(ps, compareMember)
	return ps
}

func (m *Machine) peerUp(p handoff.Member) {
	if m.peers[p] == nil {
		m.peers[p] = &peer{}
	}
	st := m.peers[p]
	st.up, st.dialing, st.retry = true, false, 0
	if l, ok := m.leaderOf(m.cfg.Self.Group); ok && l == p && !m.leads() {
		m.joinLeader()
	}
	if l := m.links[p]; l != nil && l.state == linkAsked {
		m.do(ToPeer{p, handoff.WantBuffers{}})
	}
	if m.leads() {
		m.sourceUp(p)
	}
}

func (m *Machine) peerDown(p handoff.Member) {
	st := m.peers[p]
	if st == nil {
		return
	}
	was := st.up
	st.up, st.dialing = false, false
	if st.wanted {
		st.retry = m.now + m.cfg.Redial
		if at, _, ok := m.lookup(p.Group, p.Rank); !ok || at != p {
			st.retry = 0 // discovery decides
		}
	}
	if p.Group == m.cfg.Self.Group && p.Rank == 0 {
		m.joined = false
	}
	if !was {
		return
	}
	m.readsLost(p)
	if l := m.links[p]; l != nil {
		l.dead = true
		m.reapLink(p)
	}
	if m.leads() {
		delete(m.lead.opens, p)
		m.memberDown(p)
		m.sourceDown(p)
	}
}

// link makes sure that pulls from p can be submitted, now or soon.
func (m *Machine) link(p handoff.Member) bool {
	l := m.links[p]
	if l != nil && !l.dead {
		return l.state == linkOpened
	}
	if l != nil {
		return false // its tickets end first
	}
	m.links[p] = &link{state: linkAsked}
	m.want(p)
	if m.up(p) {
		m.do(ToPeer{p, handoff.WantBuffers{}})
	}
	return false
}

// buffers takes a peer's answer to WantBuffers.
func (m *Machine) buffers(p handoff.Member, b handoff.Buffers) {
	l := m.links[p]
	if l == nil || l.dead || l.state != linkAsked {
		m.refuse(p, b, Unmatched)
		return
	}
	if b.Why != "" {
		delete(m.links, p)
		m.linkFailed(p, b.Why)
		return
	}
	l.state = linkOpens
	m.do(OpenLink{p, b})
}

func (m *Machine) linked(e Linked) {
	l := m.links[e.Peer]
	if l == nil || l.state != linkOpens {
		if e.Err == nil {
			m.do(CloseLink{e.Peer})
		}
		return
	}
	switch {
	case e.Err != nil:
		delete(m.links, e.Peer)
		m.linkFailed(e.Peer, e.Err.Error())
	case l.dead:
		l.state = linkOpened
		m.reapLink(e.Peer)
	default:
		l.state = linkOpened
		m.submitReads()
	}
}

// linksLost follows a mover's death: its mappings are gone with it.
func (m *Machine) linksLost() {
	for p, l := range m.links {
		if l.state == linkOpened {
			delete(m.links, p)
		}
	}
}

// reapLink closes a dead link once nothing is open on it.
func (m *Machine) reapLink(p handoff.Member) {
	l := m.links[p]
	if l == nil || !l.dead || l.open > 0 || l.state == linkOpens {
		return
	}
	if l.state == linkOpened {
		m.do(CloseLink{p})
	}
	delete(m.links, p)
}

func compareMember(a, b handoff.Member) int {
	switch {
	case a.Group != b.Group:
		if a.Group < b.Group {
			return -1
		}
		return 1
	case a.Rank != b.Rank:
		return int(a.Rank - b.Rank)
	case a.Incarnation < b.Incarnation:
		return -1
	case a.Incarnation > b.Incarnation:
		return 1
	}
	return 0
}
