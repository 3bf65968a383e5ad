package machine

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/batonkv/baton/discovery"
	"github.com/batonkv/baton/sidecar/handoff"
	"github.com/batonkv/baton/transfer/layout"
)

// peer is another sidecar process that this one talks or wants to talk to.
type peer struct {
	up      bool
	dialing bool
	retry   Now           // dial again then; 0: not wanted or not waiting
	pause   time.Duration // before the next dial
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
	pin   handoff.PinID // that it was asked for by
	open  int           // tickets
	dead  bool          // close when open is 0
	stale bool          // the mover that opens it died meanwhile
}

// found takes a new view of discovery: peers that are wanted and were not there are dialled.
func (m *Machine) found(rs []discovery.Record) {
	clear(m.records)
	for _, r := range rs {
		m.records[place{r.Group, layout.Rank(r.Rank)}] = r
	}
	if !m.leads() && m.engine != nil && m.engine.mapped {
		m.joinLeader()
	}
	for _, p := range m.sortedPeers() {
		if !m.prune(p) {
			m.dial(p)
		}
	}
	m.failReplaced()
	if m.leads() {
		m.forgetGroups()
		m.findSources()
	}
}

// forgetGroups forgets the geometries of processes that are gone: without a session, not
// shown, and nothing is imported from them.
func (m *Machine) forgetGroups() {
	maps.DeleteFunc(m.lead.groups, func(p handoff.Member, _ *sourceGroup) bool {
		return !m.up(p) && !m.listed(p) && !slices.ContainsFunc(m.lead.imports, func(i *importing) bool { return i.Source == p })
	})
}

// failReplaced fails what waits for a link to a process that another has replaced: it is
// never dialled again. One that discovery does not show at all may come back.
func (m *Machine) failReplaced() {
	for _, p := range m.sortedPeers() {
		if l := m.links[p]; l == nil || l.state != linkAsked || m.up(p) {
			continue
		}
		if at, _, ok := m.lookup(p.Group, p.Rank); ok && at != p {
			delete(m.links, p)
			m.linkFailed(p, fmt.Sprintf("another process, %v, has its place", at))
			m.prune(p)
		}
	}
}

// place is where discovery shows one process at a time.
type place struct {
	group string
	rank  layout.Rank
}

// lookup returns the live sidecar of a rank as discovery sees it.
func (m *Machine) lookup(group string, r layout.Rank) (handoff.Member, string, bool) {
	rec, ok := m.records[place{group, r}]
	return handoff.Member{Group: group, Rank: r, Incarnation: handoff.Incarnation(rec.Incarnation)}, rec.Addr, ok
}

func (m *Machine) leaderOf(group string) (handoff.Member, bool) {
	l, _, ok := m.lookup(group, 0)
	return l, ok
}

// listed reports whether discovery shows p alive.
func (m *Machine) listed(p handoff.Member) bool {
	at, _, ok := m.lookup(p.Group, p.Rank)
	return ok && at == p
}

// needs reports whether something here waits for a session to p.
func (m *Machine) needs(p handoff.Member) bool {
	if l := m.links[p]; l != nil && l.state == linkAsked && !l.dead && m.awaited(p) {
		return true
	}
	if p.Group == m.cfg.Self.Group && p.Rank == 0 && m.engine != nil && m.engine.mapped && m.listed(p) {
		return true // an earlier life of the leader is not waited for
	}
	return slices.ContainsFunc(m.lead.imports, func(i *importing) bool { return i.Source == p && i.State() < handoff.Opening })
}

// awaited reports whether an import of this rank waits for a link to p.
func (m *Machine) awaited(p handoff.Member) bool {
	for _, d := range m.dests {
		if (d.State() == handoff.Linking || d.State() == handoff.Moving) &&
			slices.ContainsFunc(d.Reads, func(r handoff.Read) bool { return r.From == p && r.Waits() }) {
			return true
		}
	}
	return false
}

// prune forgets a peer without a session that nothing needs.
func (m *Machine) prune(p handoff.Member) bool {
	st := m.peers[p]
	if st == nil || st.up || st.dialing || m.needs(p) {
		return false
	}
	delete(m.peers, p)
	if l := m.links[p]; l != nil && l.state == linkAsked {
		delete(m.links, p) // nobody was there to answer
	}
	return true
}

func (m *Machine) up(p handoff.Member) bool { return m.peers[p] != nil && m.peers[p].up }

// want makes sure that a session to p exists or is being made.
func (m *Machine) want(p handoff.Member) {
	if m.peers[p] == nil {
		m.peers[p] = &peer{}
	}
	m.dial(p)
}

// meet makes a session to a peer that nothing here needs, if discovery shows it.
func (m *Machine) meet(p handoff.Member) {
	if m.listed(p) {
		m.want(p)
	}
}

func (m *Machine) dial(p handoff.Member) {
	st := m.peers[p]
	if st.up || st.dialing || st.retry > m.now || !m.listed(p) {
		return // discovery brings it, or its successor, which is another peer
	}
	_, addr, _ := m.lookup(p.Group, p.Rank)
	st.dialing, st.retry = true, 0
	m.do(Dial{p, addr})
}

func (m *Machine) retryPeers() {
	due := func(st *peer) bool { return st.retry > 0 && st.retry <= m.now }
	some := false
	for _, st := range m.peers {
		some = some || due(st)
	}
	if !some {
		return
	}
	for _, p := range m.sortedPeers() {
		if due(m.peers[p]) {
			m.peers[p].retry = 0
			if !m.prune(p) {
				m.dial(p)
			}
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
	st.up, st.dialing, st.retry, st.pause = true, false, 0, 0
	if l, ok := m.leaderOf(m.cfg.Self.Group); ok && l == p && !m.leads() {
		m.joinLeader()
	}
	if l := m.links[p]; l != nil && l.state == linkAsked {
		m.do(ToPeer{p, handoff.WantBuffers{Pin: l.pin}})
	}
	if m.leads() {
		m.findSources()
	}
}

func (m *Machine) peerDown(p handoff.Member) {
	st := m.peers[p]
	if st == nil {
		return
	}
	was := st.up
	st.up, st.dialing = false, false
	if m.boss == p {
		m.joined = false
	}
	if was {
		m.peerLost(p)
	}
	if !m.prune(p) && m.listed(p) { // else discovery decides
		st.pause = min(max(2*st.pause, m.cfg.Redial), m.cfg.RedialMax)
		st.retry = m.now + st.pause
	}
	if p.Group == m.cfg.Self.Group && p.Rank == 0 {
		m.joinLeader() // the present leader may be another process
	}
}

// peerLost ends what hung on the session to p.
func (m *Machine) peerLost(p handoff.Member) {
	m.readsLost(p)
	for _, pin := range m.pins {
		pin.Lost(p)
	}
	if l := m.links[p]; l != nil {
		l.dead = true
		m.reapLink(p, l)
	}
	if m.leads() {
		delete(m.lead.opens, p)
		m.lead.askers = slices.DeleteFunc(m.lead.askers, func(o handoff.Member) bool { return o == p })
		m.memberDown(p)
		m.sourceDown(p)
	}
}

// link makes sure that pulls from p can be submitted, now or soon. A link reaches the
// memory of one engine of p: p ends its sessions with that engine, and so the link.
func (m *Machine) link(p handoff.Member, pin handoff.PinID) bool {
	l := m.links[p]
	if l != nil {
		return !l.dead && l.state == linkOpened // the tickets of a dead one end first
	}
	l = &link{state: linkAsked, pin: pin}
	m.links[p] = l
	m.want(p)
	if m.up(p) {
		m.do(ToPeer{p, handoff.WantBuffers{Pin: l.pin}})
	}
	return false
}

// buffers takes a peer's answer to WantBuffers.
func (m *Machine) buffers(p handoff.Member, b handoff.Buffers) {
	l := m.links[p]
	if l == nil || l.state != linkAsked {
		m.refuse(p, b, Unmatched)
		return
	}
	if l.dead {
		delete(m.links, p)
		m.submitReads()
		return
	}
	if b.Why != "" {
		delete(m.links, p)
		m.linkRefused(p, l.pin, b.Why)
		return
	}
	l.state = linkOpens
	m.do(OpenLink{p, b})
}

// linkRefused fails what was to be read by the pin that the link was asked for by: it may
// be over. Whoever reads by another pin asks by that.
func (m *Machine) linkRefused(p handoff.Member, pin handoff.PinID, why string) {
	for _, n := range m.sortedDests() {
		d := m.dests[n]
		for _, r := range d.Reads {
			if r.From == p && r.Source.Pin == pin && r.Waits() {
				d.Fail(fmt.Sprintf("buffers of %v: %s", p, why))
			}
		}
		m.report(d)
	}
	m.submitReads()
}

func (m *Machine) linked(e Linked) {
	l := m.links[e.Peer]
	if l == nil || l.state != linkOpens {
		if e.Err == nil {
			m.do(CloseLink{e.Peer})
		}
		return
	}
	if e.Err != nil {
		delete(m.links, e.Peer)
		m.linkFailed(e.Peer, e.Err.Error())
		return
	}
	l.state = linkOpened
	switch {
	case l.stale:
		l.dead = true
		m.reapLink(e.Peer, l)
	case l.dead:
		m.reapLink(e.Peer, l)
	default:
		m.submitReads()
	}
}

// linksLost follows a mover's death: its mappings are gone with it. A link that is
// being opened may be the dead mover's or the new one's: it is closed and asked anew.
func (m *Machine) linksLost() {
	for p, l := range m.links {
		switch l.state {
		case linkOpened:
			delete(m.links, p) // its tickets keep it
		case linkOpens:
			l.stale = true
		}
	}
	m.submitReads()
}

// reapLink closes a dead link once nothing is open on it, and asks anew for whoever waits.
func (m *Machine) reapLink(p handoff.Member, l *link) {
	if !l.dead || l.open > 0 || l.state == linkOpens || m.links[p] != l {
		return
	}
	if l.state == linkOpened {
		m.do(CloseLink{p})
	}
	delete(m.links, p)
	m.submitReads()
}

func compareMember(a, b handoff.Member) int {
	return cmp.Or(cmp.Compare(a.Group, b.Group), cmp.Compare(a.Rank, b.Rank), cmp.Compare(a.Incarnation, b.Incarnation))
}
