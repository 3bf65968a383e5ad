package machine

import (
	"fmt"
	"slices"

	"github.com/batonkv/baton/sidecar/handoff"
)

// awaited is a decision that control calls wait for: until every rank applied it and, when
// it asks for an action, every engine acknowledged that.
type awaited struct {
	n      uint64
	action handoff.Action // 0: of a change of weights
	acks   []bool         // of an action, by rank
	calls  []Call
	due    Now
}

// await lets c wait for decision n.
func (m *Machine) await(n uint64, a handoff.Action, c Call) {
	for _, w := range m.lead.awaited {
		if w.n == n {
			w.calls = append(w.calls, c)
			return
		}
	}
	w := &awaited{n: n, action: a, calls: []Call{c}, due: m.now + m.cfg.Patience}
	if a != 0 {
		w.acks = make([]bool, len(m.lead.roster.Members))
	}
	m.lead.awaited = append(m.lead.awaited, w)
}

// waiting counts the calls that wait for decisions.
func (m *Machine) waiting() (n int) {
	for _, w := range m.lead.awaited {
		n += len(w.calls)
	}
	return n
}

// over reports whether every rank did what w asks for; all is what every rank applied. An
// engine that was told to stop may say nothing after its acknowledgement.
func (w *awaited) over(all uint64) bool {
	return (w.n <= all || w.action == handoff.ActionStop) && !slices.Contains(w.acks, false)
}

// endAwaited answers who waits for what is chosen.
func (m *Machine) endAwaited(chosen func(*awaited) bool, err func(*awaited) error) {
	m.lead.awaited = slices.DeleteFunc(m.lead.awaited, func(w *awaited) bool {
		if !chosen(w) {
			return false
		}
		for _, c := range w.calls {
			m.do(Reply{Call: c, Err: err(w)})
		}
		return true
	})
}

// answerAwaited answers who waits for what every rank did.
func (m *Machine) answerAwaited() {
	all := m.lead.launch.seq.AllApplied()
	m.endAwaited(func(w *awaited) bool { return w.over(all) }, func(*awaited) error { return nil })
}

// expireAwaited answers who waits for an engine that does not step, or whose answer was lost.
func (m *Machine) expireAwaited() {
	m.endAwaited(func(w *awaited) bool { return w.due <= m.now }, func(w *awaited) error {
		if w.action == 0 {
			return fmt.Errorf("%w: epoch %d is decided, and some rank has not applied that within %v: ask again",
				handoff.ErrInDoubt, m.lead.weights.epoch, m.cfg.Patience)
		}
		return fmt.Errorf("%w: %v is decision %d, and no answer of %s came within %v: ask again", handoff.ErrInDoubt,
			w.action, w.n, spoken(missing(w.acks)), m.cfg.Patience)
	})
}

// doubtAwaited is the end of a launch for who waits in it. When rank 0's engine said that it
// stops and has left, so will the others, which apply the same decisions in the same step.
func (m *Machine) doubtAwaited(why error) {
	m.endAwaited(func(*awaited) bool { return true }, func(w *awaited) error {
		if w.action == handoff.ActionStop && w.acks[0] {
			return nil
		}
		return fmt.Errorf("%w: %w", handoff.ErrInDoubt, why)
	})
}

// missing are the ranks that have not acknowledged.
func missing(acks []bool) (ranks []int) {
	for r, ok := range acks {
		if !ok {
			ranks = append(ranks, r)
		}
	}
	return ranks
}
