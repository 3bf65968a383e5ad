package machine

import (
	"fmt"

	"github.com/batonkv/baton/sidecar/handoff"
	"github.com/batonkv/baton/transfer/layout"
)

// leader is what rank 0's sidecar keeps for its group.
type leader struct {
	joins  map[layout.Rank]join
	roster *handoff.Roster // nil: not every rank is here, the group takes nothing
	launch *launch         // nil: this launch has had no roster

	sources  map[handoff.ID]*held
	labels   map[string]handoff.ID // announced or held labels
	dues     agenda[handoff.ID]    // when each of labels is to be seen to
	over     []handoff.ID          // sources that keep their answers alone, oldest first
	lastID   uint64
	opens    map[handoff.Member][]handoff.Open // that wait for the importer's geometry
	askers   []handoff.Member                  // WantGeometry before the roster stood
	imports  []*importing                      // by arrival: the queue is its Waiting ones
	brings   map[uint64]*importing             // block hashes that an import under way adds to the cache
	attempts handoff.Attempt
	weights  weights
	awaited  []*awaited
	draining bool      // imports are refused
	intends  bool      // because a control plane told this process so; else a launch did
	freed    bool      // room came back while a Reserve was under way
	waits    bool      // the head of the queue waits for a Reserve to be applied
	done     []Outcome // the last finished imports, oldest first
	groups   map[handoff.Member]*sourceGroup
	shown    map[handoff.Member]map[handoff.Digest]bool // geometries that a rank was sent
}

type join struct {
	from  handoff.Member
	fresh bool // since the roster stood last
	handoff.Join
}

func newLeader() leader {
	return leader{joins: map[layout.Rank]join{}, sources: map[handoff.ID]*held{}, labels: map[string]handoff.ID{},
		opens: map[handoff.Member][]handoff.Open{}, brings: map[uint64]*importing{},
		groups: map[handoff.Member]*sourceGroup{}, shown: map[handoff.Member]map[handoff.Digest]bool{}}
}

// fromPeer dispatches a message of another sidecar, or of this one to itself.
func (m *Machine) fromPeer(p handoff.Member, msg handoff.PeerMessage) {
	own := p.Group == m.cfg.Self.Group
	switch msg := msg.(type) {
	case handoff.WantGeometry:
		m.wantGeometry(p)
	case handoff.WantBuffers:
		m.wantBuffers(p, msg)
	case handoff.Buffers:
		m.buffers(p, msg)
	case handoff.Check:
		m.check(p, msg)
	case handoff.Checked:
		m.checked(p, msg)
	case handoff.Geometry:
		m.geometry(p, msg)
	case handoff.Part:
		if own {
			m.grows(p, msg)
			return
		}
		m.part(p, msg)
	case handoff.Open, handoff.Done, handoff.Withdraw, handoff.Opened, handoff.DoneAck:
		if !m.leads() {
			m.refuse(p, msg, NotLeader)
			return
		}
		m.betweenLeaders(p, msg)
	case handoff.Roster, handoff.Leased, handoff.Extend, handoff.Unpin, handoff.Decision:
		if !m.joined || p != m.boss {
			m.refuse(p, msg, NotMember)
			return
		}
		m.fromLeader(p, msg)
	default:
		if !own || !m.leads() {
			m.refuse(p, msg, NotMember)
			return
		}
		m.fromRank(p, msg)
	}
}

func (m *Machine) fromLeader(p handoff.Member, msg handoff.PeerMessage) {
	switch msg := msg.(type) {
	case handoff.Roster:
		m.roster(p, msg)
	case handoff.Leased:
		m.leased(msg)
	case handoff.Extend:
		m.extend(p, msg)
	case handoff.Unpin:
		m.unpin(msg)
	case handoff.Decision:
		if m.member == nil { // of the launch before this engine: its session is ending
			m.refuse(p, msg, NotMember)
			return
		}
		m.decision(msg)
	}
}

// roster takes the leader's word that every rank is here, and says again what an
// earlier session may have lost.
func (m *Machine) roster(p handoff.Member, r handoff.Roster) {
	rank := int(m.cfg.Self.Rank)
	if m.engine == nil || r.Instance != m.engine.attach.Instance || rank >= len(r.Members) || r.Members[rank] != m.cfg.Self ||
		r.Members[0] != p || r.Geometry.Model.Check(r.Geometry.Shards) != nil {
		m.refuse(p, r, Malformed)
		return
	}
	m.member = &r
	m.restate()
}

func (m *Machine) fromRank(p handoff.Member, msg handoff.PeerMessage) {
	if j, ok := msg.(handoff.Join); ok {
		m.join(p, j)
		return
	}
	if m.lead.joins[p.Rank].from != p {
		m.refuse(p, msg, NotMember)
		return
	}
	if !m.rostered(p.Rank) {
		m.refuse(p, msg, NotReady)
		if pin, ok := msg.(handoff.Pinned); ok && pin.Part < 2 { // a later one is of a pin that Free is owed to
			m.do(ToPeer{p, handoff.Unpin{Pin: pin.Pin.Pin}}) // no lease will cover it
		}
		return
	}
	switch msg := msg.(type) {
	case handoff.Pinned:
		m.pinned(p, msg)
	case handoff.Extended:
		m.extended(p, msg)
	case handoff.RankHeld:
		m.held(p.Rank, msg.N)
	case handoff.RankApplied:
		m.applied(p.Rank, msg.N)
	case handoff.RankReserved:
		m.granted(p, msg.Reserved)
	case handoff.RankAcked:
		m.acked(p.Rank, msg.Ack)
	case handoff.Landed:
		m.landed(p, msg)
	}
}

func (m *Machine) advertise() {
	r := m.lead.roster
	c := m.engine.attach.Capacity
	m.do(Advertise{Instance: r.Instance, Ranks: int32(len(r.Members)), Geometry: geometryDigest(r.Geometry).String(),
		CapacityBlocks: c.Blocks, CapacitySlots: c.Slots, Draining: m.lead.draining})
}

// decision is the leader's word at one rank. One that came before is sent again by a
// leader that cannot know, and one after a gap means that a word was lost: stating anew
// what is here brings it. Free ends its pin at once, so that a Check never says yes for
// memory that the engine may reuse, and no pack begins.
func (m *Machine) decision(d handoff.Decision) {
	e := m.engine
	if e == nil || d.N <= e.decided+uint64(len(e.waits)) {
		return
	}
	if d.N != e.decided+uint64(len(e.waits))+1 {
		m.refuse(m.boss, d, Malformed)
		m.do(ClosePeer{m.boss})
		return
	}
	if d.Kind == handoff.Free {
		m.freePin(d.Label)
		e.freeing[d.Label] = d.N
	}
	e.waits = append(e.waits, d)
	m.passOn()
}

// passOn gives the engine the decisions that wait, in order, as far as none frees what is
// packed from.
func (m *Machine) passOn() {
	for e := m.engine; len(e.waits) > 0; {
		d := e.waits[0]
		if d.Kind == handoff.Free && m.leaves(d.Label) {
			return
		}
		e.waits = e.waits[1:]
		m.pass(d)
	}
}

// pass does the sidecar's part of a decision first. The memory rule does not rest on the
// leader alone, so what breaks it ends the engine's session instead of reaching the engine;
// of imports from before the engine attached, nothing is left here that could tell.
func (m *Machine) pass(d handoff.Decision) {
	m.engine.decided = d.N
	dest := m.dests[d.Of]
	kept := dest == nil && d.Of > 0 && d.Of <= m.engine.stated
	if d.Kind == handoff.Admit && !kept && (dest == nil || dest.State() != handoff.Good) ||
		d.Kind == handoff.ReleaseQuarantine && dest != nil && !dest.Quiet() {
		m.do(CloseEngine{m.engine.session, fmt.Errorf("%w: decision %d (%v) is about memory that is not ready for it", handoff.ErrEngine, d.N, d.Kind)})
		return
	}
	switch d.Kind {
	case handoff.Reserve:
		m.dests[d.N] = m.reserving(d)
		m.engine.asked[d.N] = true
	case handoff.Admit, handoff.ReleaseQuarantine:
		m.endDest(d.Of)
	case handoff.Drop:
		m.dropDest(d)
	case handoff.Free: // its pin has ended when it came
		delete(m.kept, d.Label)
	case handoff.SetWeightsEpoch:
		m.engine.attach.Model.WeightsEpoch = d.WeightsEpoch
	case handoff.Lifecycle:
		m.engine.attach.Draining = d.Draining(m.engine.attach.Draining)
	}
	m.engine.tail = m.engine.tail.Add(d)
	d.Members, d.Sources, d.Extent = nil, nil, handoff.Extent{More: d.More}
	m.toEngine(d)
	if m.leads() && m.lead.roster != nil {
		// Rank 0's engine reads its session in order: whatever Through follows, it holds d.
		m.held(0, d.N)
	}
}

// MemberStatus is one rank of the group as its leader sees it.
type MemberStatus struct {
	handoff.Member
	PID      int32
	Addr     string
	Attached bool
}

// Status is this sidecar and, on rank 0, its group.
type Status struct {
	Instance handoff.Instance // 0: no engine
	Ranks    int32
	Ready    bool
	Members  []MemberStatus
	Capacity handoff.Capacity
	Draining bool // the group takes no new work; rank 0 alone knows
}

// Imports counts the imports that wait, run, or failed and whose memory is not quiet yet.
func (m *Machine) Imports() int { return len(m.lead.imports) }

// Status tells who is attached.
func (m *Machine) Status() Status {
	s := Status{Draining: m.lead.draining}
	if m.engine == nil {
		return s
	}
	a := m.engine.attach
	s = Status{Draining: s.Draining, Instance: a.Instance, Ranks: a.Ranks, Ready: m.lead.roster != nil, Capacity: a.Capacity}
	if !m.leads() {
		s.Ready = m.member != nil && m.member.Instance == a.Instance
		return s
	}
	for r := range layout.Rank(a.Ranks) {
		rec := m.records[place{m.cfg.Self.Group, r}]
		j, ok := m.lead.joins[r]
		ms := MemberStatus{Member: handoff.Member{Group: m.cfg.Self.Group, Rank: r, Incarnation: handoff.Incarnation(rec.Incarnation)},
			PID: rec.PID, Addr: rec.Addr, Attached: ok && j.Attach.Instance == a.Instance}
		s.Members = append(s.Members, ms)
	}
	return s
}
