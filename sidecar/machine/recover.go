package machine

import (
	"fmt"
	"slices"

	"github.com/batonkv/baton/sidecar/handoff"
)

// startLaunch makes the launch that every rank states: nothing at its first roster; after
// the leader's process or its engine's session has ended, the longest sequence that any
// rank holds. It returns what is known of that, or why no sequence can be made.
func (m *Machine) startLaunch(joins []join) (handoff.Tail, error) {
	l := &launch{}
	var held, applied []uint64
	var tails []handoff.Tail
	newest := uint64(0)
	for _, j := range joins {
		held, applied, tails = append(held, j.Held), append(applied, j.Applied), append(tails, j.Attach.Decisions)
		newest = max(newest, j.Attach.Held)
		l.freeing = append(l.freeing, freeing{})
	}
	ds, err := handoff.JoinTails(tails, slices.Min(applied), newest, slices.Min(held))
	if err != nil {
		return nil, err
	}
	l.seq = handoff.NewSequence(newest, held, applied)
	for _, d := range ds {
		if d.N > l.seq.AllHeld() {
			l.log = append(l.log, d)
		}
		if d.Kind == handoff.Reserve {
			l.reserved = d.N
		}
		for r := range joins {
			if d.Kind == handoff.Free && d.N > applied[r] {
				l.freeing[r][d.Label] = d.N
			}
		}
	}
	m.lead.launch, m.lead.weights = l, weights{epoch: m.engine.attach.Model.WeightsEpoch}
	for _, d := range ds {
		m.lead.weights.epoch = d.WeightsEpoch
		if d.Kind == handoff.SetWeightsEpoch {
			m.lead.weights.n = d.N
		}
	}
	m.startIntake(l, ds)
	return ds, nil
}

// recoverImports ends what a leader before this one had under way: what is undecided is
// dropped, what was dropped waits for the quiet of every rank, what is admitted is
// awaited. What its engine asked for and was never reserved can be tried elsewhere.
func (m *Machine) recoverImports(ds handoff.Tail) {
	l := m.lead.launch
	if n := l.seq.AllHeld(); len(ds) > 0 && n > 0 {
		m.toEngine(handoff.Through{N: n})
	}
	rs := ds.Reservations()
	newest := map[string]uint64{}
	for _, r := range rs {
		newest[r.Label] = r.N
	}
	why := fmt.Errorf("%w: the leader of group %s restarted", handoff.ErrPeer, m.cfg.Self.Group)
	var asked []string
	for _, label := range m.engine.attach.Imports {
		if newest[label] > 0 {
			asked = append(asked, label)
			continue
		}
		m.toEngine(handoff.Failed{Label: label, Err: why, SourceSafe: true})
	}
	m.engine.attach.Imports = nil
	for _, r := range rs {
		engine := newest[r.Label] == r.N && slices.Contains(asked, r.Label)
		i := &importing{Leader: handoff.Recovered(r, int32(len(m.lead.roster.Members)), m.now), engine: engine,
			recovered: true, asked: true, doubted: true, dropN: r.Drop}
		if engine && r.Admit == 0 && r.Drop > 0 {
			m.toEngine(handoff.Failed{Label: r.Label, Err: why})
		}
		switch {
		case r.Open() && r.Drop == 0:
			m.lead.imports = append(m.lead.imports, i)
			m.failImport(i, why)
		case r.Open():
			i.Err = why
			m.lead.imports = append(m.lead.imports, i)
		case r.Admit > l.seq.AllApplied(), r.Admit > 0 && engine:
			m.lead.imports = append(m.lead.imports, i)
		}
	}
}

// freeStated frees, in the group's order, what ranks pinned for a leader or under a roster
// that is no more: every lease of theirs has ended. A rank that does not hold a label
// ignores its Free, so allocators that are mirrored stay so.
func (m *Machine) freeStated(joins []join) {
	l := m.lead.launch
	for r, j := range joins {
		for _, label := range j.Attach.Pins {
			if l.freeing[r][label] == 0 {
				m.decideAll(handoff.Decision{Kind: handoff.Free, Label: label})
			}
		}
		kept := m.lead.joins[j.Attach.Rank]
		kept.fresh, kept.Attach.Pins, kept.Attach.Decisions = false, nil, nil
		m.lead.joins[j.Attach.Rank] = kept
	}
}

// endRecovered ends what needs no more word of any rank.
func (m *Machine) endRecovered() {
	for _, i := range slices.Clone(m.lead.imports) {
		m.drained(i)
	}
	m.endApplied()
}
