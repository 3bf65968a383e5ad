package machine

import (
	"fmt"
	"slices"

	"github.com/batonkv/baton/sidecar/events"
	"github.com/batonkv/baton/sidecar/handoff"
	"github.com/batonkv/baton/transfer/layout"
)

// leader is what rank 0's sidecar keeps for its group.
type leader struct {
	joins  map[layout.Rank]join
	roster *handoff.Roster // nil: not every rank is here, the group takes nothing
	seq    *handoff.Sequence
	unmap  Session // a gone engine's buffers, unmapped when quiet

	sources  map[handoff.ID]*held
	labels   map[string]handoff.ID // announced or held labels
	lastID   uint64
	opens    map[handoff.Member][]handoff.Open // that wait for the importer's geometry
	askers   []handoff.Member                  // WantGeometry before the roster stood
	imports  []*importing                      // by arrival: the queue is its Waiting ones
	attempts handoff.Attempt
	freed    bool      // room came back while a Reserve was under way
	done     []Outcome // the last finished imports, oldest first
	groups   map[handoff.Member]*sourceGroup
	shown    map[handoff.Member]map[handoff.Digest]bool // geometries that a rank was sent
}

type join struct {
	from   handoff.Member
	attach handoff.Attach
}

func newLeader() leader {
	return leader{joins: map[layout.Rank]join{}, sources: map[handoff.ID]*held{}, labels: map[string]handoff.ID{},
		opens:  map[handoff.Member][]handoff.Open{},
		groups: map[handoff.Member]*sourceGroup{}, shown: map[handoff.Member]map[handoff.Digest]bool{}}
}

// fromPeer dispatches a message of another sidecar, or of this one to itself.
func (m *Machine) fromPeer(p handoff.Member, msg handoff.PeerMessage) {
	own := p.Group == m.cfg.Self.Group
	switch msg := msg.(type) {
	case handoff.WantGeometry:
		m.wantGeometry(p)
	case handoff.WantBuffers:
		m.wantBuffers(p)
	case handoff.Buffers:
		m.buffers(p, msg)
	case handoff.Check:
		m.check(p, msg)
	case handoff.Checked:
		m.checked(p, msg)
	case handoff.Geometry:
		m.geometry(p, msg)
	case handoff.Open, handoff.Done, handoff.Withdraw, handoff.ReleaseManifest, handoff.Opened, handoff.DoneAck:
		if !m.leads() {
			m.refuse(p, msg, NotLeader)
			return
		}
		m.betweenLeaders(p, msg)
	case handoff.Roster, handoff.Leased, handoff.Unpin, handoff.Decision:
		if !own || p.Rank != 0 {
			m.refuse(p, msg, NotMember)
			return
		}
		m.fromLeader(msg)
	default:
		if !own || !m.leads() {
			m.refuse(p, msg, NotMember)
			return
		}
		m.fromRank(p, msg)
	}
}

func (m *Machine) fromLeader(msg handoff.PeerMessage) {
	switch msg := msg.(type) {
	case handoff.Roster:
		m.member = &msg
	case handoff.Leased:
		m.leased(msg)
	case handoff.Unpin:
		m.unpin(msg)
	case handoff.Decision:
		m.decision(msg)
	}
}

func (m *Machine) fromRank(p handoff.Member, msg handoff.PeerMessage) {
	if j, ok := msg.(handoff.Join); ok {
		m.join(p, j)
		return
	}
	if m.lead.roster == nil || m.lead.joins[p.Rank].from != p {
		m.refuse(p, msg, NotMember)
		return
	}
	switch msg := msg.(type) {
	case handoff.Pinned:
		m.pinned(p, msg)
	case handoff.RankHeld:
		m.rankHeld(p.Rank, msg.N)
	case handoff.RankApplied:
		m.applied(m.lead.seq.Applied(int(p.Rank), msg.N))
	case handoff.RankReserved:
		m.granted(p, msg.Reserved)
	case handoff.Landed:
		m.landed(p, msg)
	case handoff.Abort:
		m.abortImport(msg.ID, handoff.ErrAborted)
	}
}

// join takes a rank's statement. The roster stands when every rank of one launch is here.
func (m *Machine) join(p handoff.Member, j handoff.Join) {
	a := j.Attach
	if a.Group != m.cfg.Self.Group || a.Rank != p.Rank || a.Ranks < 1 || a.Ranks > maxRanks || int32(a.Rank) >= a.Ranks {
		m.refuse(p, j, Malformed)
		return
	}
	if err := a.Model.Layout.Check(a.Shards); err != nil {
		m.refuse(p, j, Malformed)
		return
	}
	if m.lead.roster != nil {
		m.breakRoster(fmt.Errorf("%w: rank %d joined anew", handoff.ErrNotReady, p.Rank))
	}
	m.lead.joins[p.Rank] = join{p, a}
	m.form()
}

// form makes the roster if it can.
func (m *Machine) form() {
	if m.engine == nil || !m.engine.mapped {
		return
	}
	own := m.engine.attach
	r := &handoff.Roster{Instance: own.Instance, Members: make([]handoff.Member, own.Ranks)}
	g := handoff.Geometry{Group: m.cfg.Self.Group, Instance: own.Instance, Model: own.Model.Layout}
	for rank := range layout.Rank(own.Ranks) {
		j, ok := m.lead.joins[rank]
		if !ok || j.attach.Instance != own.Instance || j.attach.Ranks != own.Ranks {
			return
		}
		if modelDigest(j.attach.Model) != modelDigest(own.Model) {
			m.refuse(j.from, handoff.Join{}, Malformed)
			return
		}
		r.Members[rank] = j.from
		g.Shards = append(g.Shards, j.attach.Shards...)
	}
	g.Members = r.Members
	r.Geometry = g
	m.lead.roster, m.lead.seq = r, handoff.NewSequence(own.Ranks)
	clear(m.lead.shown)
	for _, p := range r.Members {
		m.do(ToPeer{p, *r})
	}
	m.advertise()
	m.publish(events.Ready, events.Event{})
	m.do(Notify{Notice{Kind: NoticeReady}})
	for _, p := range m.lead.askers {
		m.do(ToPeer{p, g})
	}
	m.lead.askers = nil
}

func (m *Machine) advertise() {
	r := m.lead.roster
	c := m.engine.attach.Capacity
	m.do(Advertise{Instance: r.Instance, Ranks: int32(len(r.Members)), Geometry: geometryDigest(r.Geometry).String(),
		FreeBlocks: c.Blocks, FreeSlots: c.Slots})
}

// memberDown: a rank of this group left. What the group holds is over: its leases are
// gone, its imports fail, and ranks that live free their pins at their own deadline.
func (m *Machine) memberDown(p handoff.Member) {
	if m.lead.joins[p.Rank].from != p {
		return
	}
	delete(m.lead.joins, p.Rank)
	if m.lead.roster != nil {
		m.breakRoster(fmt.Errorf("%w: rank %d of group %s left", handoff.ErrEngine, p.Rank, p.Group))
	}
}

func (m *Machine) breakRoster(why error) {
	m.lead.roster = nil
	for _, id := range m.sortedSources() {
		m.endSource(id, false)
	}
	for _, i := range slices.Clone(m.lead.imports) {
		m.failImport(i, why)
		i.drained(m)
	}
	m.lead.imports = nil
	clear(m.lead.opens)
	m.publish(events.Detached, events.Event{Cause: why.Error()})
	m.do(Notify{Notice{Kind: NoticeLost, Err: why}})
}

// decideAll issues one decision to every rank, in order.
func (m *Machine) decideAll(d handoff.Decision) uint64 {
	d.N = m.lead.seq.Next()
	for _, p := range m.lead.roster.Members {
		m.do(ToPeer{p, d})
	}
	return d.N
}

// decision is the leader's word at one rank: the sidecar's part first, so that a
// Check never says yes for memory that the engine may reuse.
func (m *Machine) decision(d handoff.Decision) {
	switch d.Kind {
	case handoff.Reserve:
		m.dests[d.N] = handoff.NewDest(d)
	case handoff.Admit:
		m.endDest(d.Of)
	case handoff.Drop:
		m.dropDest(d)
	case handoff.ReleaseQuarantine:
		m.endDest(d.Of)
	case handoff.Free:
		m.freePin(d.ID, d.Label)
	}
	d.Members, d.Sources = nil, nil
	m.toEngine(d)
	if m.leads() && m.lead.roster != nil {
		// Rank 0's engine reads its session in order: whatever Through follows, it holds d.
		m.rankHeld(0, d.N)
	}
}

// rankHeld takes a rank's statement; rank 0's engine hears what every rank holds.
func (m *Machine) rankHeld(r layout.Rank, n uint64) {
	if n, grew := m.lead.seq.Held(int(r), n); grew {
		m.toEngine(handoff.Through{N: n})
	}
}

// applied takes what all ranks of the group applied.
func (m *Machine) applied(all uint64) {
	for _, i := range slices.Clone(m.lead.imports) {
		if i.Applied(all, m.now) {
			m.admitted(i)
		}
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
}

// Status tells who is attached.
func (m *Machine) Status() Status {
	var s Status
	if m.engine == nil {
		return s
	}
	a := m.engine.attach
	s = Status{Instance: a.Instance, Ranks: a.Ranks, Ready: m.lead.roster != nil, Capacity: a.Capacity}
	if !m.leads() {
		s.Ready = m.member != nil && m.member.Instance == a.Instance
		return s
	}
	for r := range layout.Rank(a.Ranks) {
		rec := m.records[key(m.cfg.Self.Group, r)]
		j, ok := m.lead.joins[r]
		ms := MemberStatus{Member: handoff.Member{Group: m.cfg.Self.Group, Rank: r, Incarnation: handoff.Incarnation(rec.Incarnation)},
			PID: rec.PID, Addr: rec.Addr, Attached: ok && j.attach.Instance == a.Instance}
		s.Members = append(s.Members, ms)
	}
	return s
}
