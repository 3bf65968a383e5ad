package machine

import (
	"fmt"

	"github.com/batonkv/baton/sidecar/events"
	"github.com/batonkv/baton/sidecar/handoff"
)

// engine is the attached engine rank.
type engine struct {
	session Session
	attach  handoff.Attach
	bounds  handoff.Bounds // of attach
	fdKey   uint64
	ready   bool            // BuffersReady came
	mapped  bool            // the mover reaches its buffers
	stated  uint64          // decisions that it held when it attached
	decided uint64          // the last decision that was passed on
	held    uint64          // as the engine's client says
	applied uint64          // as the engine says
	fenced  uint64          // as the engine says
	asked   map[uint64]bool // Reserve decisions that it has not answered
	freeing freeing
	tail    handoff.Tail
	waits   []handoff.Decision       // behind a Free whose memory is packed from; the engine has not got them
	early   map[uint64]*handoff.Dest // of Reserves among them that grew meanwhile
	acks    []handoff.LifecycleAck   // the newest, oldest first
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
	if !m.engine.mapped && begins(msg) {
		m.do(CloseEngine{s, fmt.Errorf("%w: %T before the buffers are mapped: wait for MoverStarted", handoff.ErrEngine, msg)})
		return
	}
	switch msg := msg.(type) {
	case handoff.Announce:
		m.announce(msg.Label)
	case handoff.Export:
		m.export(msg)
	case handoff.ExportPart:
		m.exportPart(msg)
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
	case handoff.LifecycleAck:
		m.ack(msg)
	case handoff.Fenced:
		m.fenced(msg)
	case handoff.Freed:
		if m.leads() {
			m.freed()
		}
	}
}

// begins reports whether msg asks for something new, which must wait until the buffers are
// mapped. An engine that attaches again goes on with its steps meanwhile, and says so.
func begins(msg handoff.FromEngine) bool {
	switch msg.(type) {
	case handoff.Announce, handoff.Export, handoff.ExportPart, handoff.Import:
		return true
	}
	return false
}

// forgetWaits: what was not passed on is not stated, so it comes again, or others in its
// place.
func (e *engine) forgetWaits() {
	for _, d := range e.waits {
		if d.Kind == handoff.Free && e.freeing[d.Label] == d.N {
			delete(e.freeing, d.Label)
		}
	}
	e.waits = nil
	clear(e.early)
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
		e.tail.Applied(applied)
		m.toLeader(handoff.RankApplied{N: applied})
	}
}

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

// joinLeader states what this rank has, once per leader session. The leader is the one
// that discovery shows: from here on another one is not heard any more, and its session
// ends, so that it takes nothing for a group that has left it.
func (m *Machine) joinLeader() {
	if m.engine == nil || !m.engine.mapped {
		return
	}
	l := m.cfg.Self
	if !m.leads() {
		var ok bool
		if l, ok = m.leaderOf(l.Group); !ok {
			return
		}
	}
	switch {
	case m.joined && m.boss == l:
		return
	case !m.leads() && !m.up(l):
		m.want(l)
		return
	}
	if m.boss != l {
		if m.up(m.boss) {
			m.do(ClosePeer{m.boss})
		}
		m.member = nil
	}
	m.joined, m.boss = true, l
	m.engine.forgetWaits()
	m.do(ToPeer{l, m.statement()})
}

// engineDown forgets the engine. Its imports fail, its tickets end by themselves,
// and its buffers stay mapped until they have. Sessions end: who mapped its memory
// must not read it for a later engine's, the leader learns that this rank left, and the
// ranks of a leader state anew what they have.
func (m *Machine) engineDown(s Session) {
	if m.engine == nil || m.engine.session != s {
		return
	}
	m.engine, m.joined, m.member = nil, false, nil
	for _, l := range m.leaving {
		l.says = nil
	}
	for _, p := range m.sortedPins() {
		m.leave(p, nil)
	}
	clear(m.kept)
	for _, n := range m.sortedDests() {
		d := m.dests[n]
		d.Fail("the engine rank is gone")
		m.cancelReads(d)
	}
	m.publish(events.Detached, events.Event{})
	m.unmap, m.gone = s, m.now
	m.unmapQuiet()
	if m.leads() {
		m.memberDown(m.cfg.Self)
	}
	for _, p := range m.sortedPeers() {
		if m.up(p) {
			m.do(ClosePeer{p})
		}
	}
}
