package machine

import (
	"fmt"

	"github.com/batonkv/baton/sidecar/events"
	"github.com/batonkv/baton/sidecar/handoff"
	"github.com/batonkv/baton/transfer/layout"
)

// engine is the attached engine rank.
type engine struct {
	session Session
	attach  handoff.Attach
	fdKey   uint64
	ready   bool            // BuffersReady came
	mapped  bool            // the mover reaches its buffers
	decided uint64          // the last decision that was passed on
	held    uint64          // as the engine's client says
	applied uint64          // as the engine says
	asked   map[uint64]bool // Reserve decisions that it has not answered
	freeing freeing
}

func (m *Machine) fromEngine(s Session, msg handoff.FromEngine) {
	if a, ok := msg.(handoff.Attach); ok {
		m.attach(s, a)
		return
	}
	if m.engine == nil || m.engine.session != s {
		m.do(CloseEngine{s, fmt.Errorf("%w: %T before Attach", handoff.ErrEngine, msg)})
		return
	}
	if _, ok := msg.(handoff.BuffersReady); ok {
		if m.engine.ready {
			m.do(CloseEngine{s, fmt.Errorf("%w: BuffersReady comes once", handoff.ErrEngine)})
			return
		}
		m.engine.ready = true
		m.do(MapBuffers{s, m.engine.fdKey, m.engine.attach.Buffers})
		return
	}
	if !m.engine.mapped {
		m.do(CloseEngine{s, fmt.Errorf("%w: %T before the buffers are mapped: wait for MoverStarted", handoff.ErrEngine, msg)})
		return
	}
	switch msg := msg.(type) {
	case handoff.Announce:
		m.announce(msg.Label)
	case handoff.Export:
		m.export(msg)
	case handoff.ReleaseExport:
		m.releaseLabel(msg.Label)
	case handoff.Import:
		m.importEngine(msg)
	case handoff.AbortImport:
		m.abortLabel(msg.Label)
	case handoff.Held:
		m.heldApplied(s, msg.N, m.engine.applied)
	case handoff.Applied:
		m.heldApplied(s, m.engine.held, msg.N)
	case handoff.Reserved:
		m.reserved(msg)
	case handoff.Freed:
		if m.leads() {
			m.lead.freed = true
			m.reserveNext()
		}
	}
}

// heldApplied passes on what the engine says of decisions, if it can be true.
func (m *Machine) heldApplied(s Session, held, applied uint64) {
	e := m.engine
	if held > e.decided || held < e.held || applied > held || applied < e.applied {
		m.do(CloseEngine{s, fmt.Errorf("%w: it holds %d decisions and applied %d: it was sent %d, held %d and applied %d before",
			handoff.ErrEngine, held, applied, e.decided, e.held, e.applied)})
		return
	}
	if held != e.held {
		e.held = held
		m.toLeader(handoff.RankHeld{N: held})
	}
	if applied != e.applied {
		e.applied = applied
		e.freeing.applied(applied)
		m.toLeader(handoff.RankApplied{N: applied})
	}
}

// attach takes the first message of a session.
func (m *Machine) attach(s Session, a handoff.Attach) {
	if err := m.checkAttach(a); err != nil {
		m.do(CloseEngine{s, err})
		return
	}
	m.engine = &engine{session: s, attach: a, fdKey: m.cfg.Mint(), asked: map[uint64]bool{}, freeing: freeing{}}
	m.do(ExpectBuffers{s, m.engine.fdKey, len(a.Buffers)},
		ToEngine{s, handoff.Attached{Incarnation: m.cfg.Self.Incarnation, FDKey: m.engine.fdKey}})
}

func (m *Machine) checkAttach(a handoff.Attach) error {
	self := m.cfg.Self
	switch {
	case m.engine != nil:
		return fmt.Errorf("%w: rank %d of group %s has a live engine session: stop that engine first", handoff.ErrAttached, self.Rank, self.Group)
	case a.Group != self.Group:
		return fmt.Errorf("%w: group is %q, this sidecar serves %q", handoff.ErrAttach, a.Group, self.Group)
	case a.Rank != self.Rank:
		return fmt.Errorf("%w: rank is %d, this sidecar serves rank %d", handoff.ErrAttach, a.Rank, self.Rank)
	case a.Ranks < 1 || int32(a.Rank) >= a.Ranks || a.Ranks > maxRanks:
		return fmt.Errorf("%w: ranks is %d: want 1 to %d, and more than rank %d", handoff.ErrAttach, a.Ranks, maxRanks, a.Rank)
	case a.Instance == 0:
		return fmt.Errorf("%w: group_instance is 0: want a random number, equal on all ranks of one launch", handoff.ErrAttach)
	case a.Capacity.BlockTokens < 1:
		return fmt.Errorf("%w: capacity.block_tokens is %d", handoff.ErrAttach, a.Capacity.BlockTokens)
	case a.Held > 0 || a.Applied > 0 || len(a.Pins) > 0:
		return fmt.Errorf("%w: the engine holds decisions or pins of an earlier session: relaunch the group", handoff.ErrAttach)
	case m.openTickets() > 0:
		return fmt.Errorf("%w: copies into the previous engine's memory are not finished: attach again", handoff.ErrAttach)
	}
	lens := make([]int64, 0, len(a.Buffers))
	for i, b := range a.Buffers {
		if b.ID != uint32(i) || b.Len <= 0 || b.Off < 0 {
			return fmt.Errorf("%w: buffer %d: id %d, off %d, len %d: want ids from 0 and positive lengths", handoff.ErrAttach, i, b.ID, b.Off, b.Len)
		}
		lens = append(lens, b.Len)
	}
	for _, sh := range a.Shards {
		if sh.Rank != a.Rank {
			return fmt.Errorf("%w: a shard names rank %d, the attaching rank is %d", handoff.ErrAttach, sh.Rank, a.Rank)
		}
	}
	if err := a.Model.Layout.Check(a.Shards); err != nil {
		return fmt.Errorf("%w: %w", handoff.ErrAttach, err)
	}
	if err := layout.CheckMemory(a.Model.Layout, a.Shards, lens); err != nil {
		return fmt.Errorf("%w: %w", handoff.ErrAttach, err)
	}
	return nil
}

const maxRanks = 1024

// mapped: the mover reaches the engine's memory; the rank can join its group.
func (m *Machine) mapped(e Mapped) {
	if m.engine == nil || m.engine.session != e.Session {
		if m.unmap != e.Session { // else its last ticket unmaps
			m.do(UnmapBuffers{e.Session})
		}
		return
	}
	if e.Err != nil {
		m.do(CloseEngine{e.Session, fmt.Errorf("%w: %w", handoff.ErrAttach, e.Err)})
		return
	}
	again := m.engine.mapped // a mover that was restarted mapped them anew
	m.engine.mapped = true
	m.toEngine(handoff.MoverStarted{PID: e.PID})
	if again {
		return
	}
	m.publish(events.Attached, events.Event{})
	m.joinLeader()
}

// joinLeader states what this rank holds, once per leader session.
func (m *Machine) joinLeader() {
	if m.engine == nil || !m.engine.mapped || m.joined {
		return
	}
	l := m.cfg.Self
	if !m.leads() {
		var ok bool
		if l, ok = m.leaderOf(l.Group); !ok {
			return
		}
	}
	if m.member != nil && m.member.Members[0] != l {
		m.do(CloseEngine{m.engine.session, fmt.Errorf("%w: the leader of group %s, rank 0's sidecar, restarted: relaunch the group", handoff.ErrPeer, l.Group)})
		return
	}
	if !m.leads() && !m.up(l) {
		m.want(l)
		return
	}
	a := m.engine.attach
	a.Buffers = nil
	j := handoff.Join{Attach: a, Held: m.engine.held, Applied: m.engine.applied}
	for _, p := range m.sortedPins() {
		j.Pins = append(j.Pins, p.Info)
	}
	m.joined, m.boss = true, l
	m.do(ToPeer{l, j})
}

// engineDown forgets the engine. Its imports fail, its tickets end by themselves,
// and its buffers stay mapped until they have. Sessions end: who mapped its memory
// must not read it for a later engine's, and the leader learns that this rank left.
func (m *Machine) engineDown(s Session) {
	if m.engine == nil || m.engine.session != s {
		return
	}
	m.engine, m.joined, m.member = nil, false, nil
	clear(m.pins)
	for _, n := range m.sortedDests() {
		d := m.dests[n]
		d.Fail("the engine rank is gone")
		m.cancelReads(d)
	}
	m.publish(events.Detached, events.Event{})
	if m.openTickets() == 0 {
		m.do(UnmapBuffers{s})
		m.dropDests()
	} else {
		m.unmap = s
	}
	if m.leads() {
		m.memberDown(m.cfg.Self)
	}
	for _, p := range m.sortedPeers() {
		if m.up(p) && (p.Group != m.cfg.Self.Group || !m.leads()) {
			m.do(ClosePeer{p})
		}
	}
}
