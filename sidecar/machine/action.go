package machine

import (
	"fmt"

	"github.com/batonkv/baton/sidecar/handoff"
	"github.com/batonkv/baton/transfer/layout"
)

// lifecycleCall decides an action for every engine of the group. Reply follows their answers.
func (m *Machine) lifecycleCall(e Lifecycle) {
	err := m.whole()
	switch {
	case err != nil:
	case !e.Action.Known():
		err = fmt.Errorf("%w: action %d", handoff.ErrBound, e.Action)
	case m.waiting() >= maxCalls:
		err = fmt.Errorf("%w: %d calls wait for the engines of group %s", handoff.ErrCapacity, maxCalls, m.cfg.Self.Group)
	}
	if err != nil {
		m.do(Reply{Call: e.Call, Err: err})
		return
	}
	d := handoff.Decision{Kind: handoff.Lifecycle, Action: e.Action}
	if intake(d) {
		m.intend(d.Draining(false))
	}
	m.await(m.decideAll(d), e.Action, e.Call)
}

// ack passes on what an engine says of an action. The newest are kept, for a leader whose
// session broke meanwhile.
func (m *Machine) ack(a handoff.LifecycleAck) {
	e := m.engine
	if a.N == 0 || a.N > e.decided {
		m.do(CloseEngine{e.session, fmt.Errorf("%w: it answers decision %d: it was sent %d", handoff.ErrEngine, a.N, e.decided)})
		return
	}
	if e.acks = append(e.acks, a); len(e.acks) > maxCalls {
		e.acks = e.acks[1:]
	}
	m.toLeader(handoff.RankAcked{Ack: a})
}

// acked takes a rank's answer to an action. The first refusal is the answer to the call.
func (m *Machine) acked(rank layout.Rank, a handoff.LifecycleAck) {
	m.intakeAcked(rank, a)
	m.endAwaited(func(w *awaited) bool {
		if w.n != a.N || w.action == 0 {
			return false
		}
		w.acks[rank] = a.Err == nil
		return a.Err != nil
	}, func(w *awaited) error {
		return fmt.Errorf("rank %d of group %s refuses %v: %w", rank, m.cfg.Self.Group, w.action, a.Err)
	})
	m.answerAwaited()
}

// stopped: a rank left. If it held the word to stop, its leaving is the answer.
func (m *Machine) stopped(rank layout.Rank) {
	for _, w := range m.lead.awaited {
		if w.action == handoff.ActionStop && m.lead.launch.seq.HeldBy(int(rank)) >= w.n {
			w.acks[rank] = true
		}
	}
	m.answerAwaited()
}
