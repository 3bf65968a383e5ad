package machine

import (
	"fmt"
	"slices"

	"github.com/batonkv/baton/sidecar/handoff"
)

// weights is what the leader keeps of its group's weights epoch.
type weights struct {
	epoch uint64 // as decided; a rank follows when the decision reaches it
	n     uint64 // of that decision, 0: none in this launch
}

// epoch is the group's weights epoch as this sidecar knows it.
func (m *Machine) epoch() uint64 {
	if m.leads() && m.lead.launch != nil {
		return m.lead.weights.epoch
	}
	return m.engine.attach.Model.WeightsEpoch
}

// otherWeights reports whether state of epoch e may not be used here.
func (m *Machine) otherWeights(e uint64) bool {
	return m.engine.attach.Weights != handoff.WeightsAllow && e != m.epoch()
}

// weightsCall changes the group's weights epoch. Who asks for the present one hears as
// soon as every rank applied it, so that a broken call is simply repeated.
func (m *Machine) weightsCall(e SetWeightsEpoch) {
	err := m.checkWeights(e.Epoch)
	if err == nil && e.Epoch > m.epoch() {
		m.setWeights(e.Epoch)
	}
	w := &m.lead.weights
	if err != nil || w.n == 0 || m.lead.launch.seq.AllApplied() >= w.n {
		m.do(Reply{Call: e.Call, Err: err})
		return
	}
	m.await(w.n, 0, e.Call)
}

func (m *Machine) checkWeights(epoch uint64) error {
	if err := m.whole(); err != nil {
		return err
	}
	switch {
	case epoch < m.epoch():
		return fmt.Errorf("%w: group %s is at epoch %d: %d is older, and epochs only rise", handoff.ErrWeights, m.cfg.Self.Group, m.epoch(), epoch)
	case m.waiting() >= maxCalls:
		return fmt.Errorf("%w: %d calls wait for the engines of group %s", handoff.ErrCapacity, maxCalls, m.cfg.Self.Group)
	}
	return nil
}

// setWeights drops what is not decided, decides the change, and ends what the old weights
// made, unless it stays good.
func (m *Machine) setWeights(epoch uint64) {
	w := &m.lead.weights
	m.failUndecided(fmt.Errorf("%w: group %s goes from epoch %d to %d", handoff.ErrWeights, m.cfg.Self.Group, w.epoch, epoch))
	w.epoch = epoch
	w.n = m.decideAll(handoff.Decision{Kind: handoff.SetWeightsEpoch})
	if m.engine.attach.Weights == handoff.WeightsAllow {
		return
	}
	for _, id := range m.sortedSources() {
		if m.lead.sources[id].pinned() {
			m.endSource(id)
		}
	}
}

// failUndecided drops every import that the group may still drop on its own word.
func (m *Machine) failUndecided(why error) {
	for _, i := range slices.Clone(m.lead.imports) {
		if i.State() != handoff.Admitting {
			m.endImport(i, why)
		}
	}
	m.reserveNext()
}
