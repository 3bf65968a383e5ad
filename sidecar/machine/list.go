package machine

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/batonkv/baton/sidecar/handoff"
	"github.com/batonkv/baton/transfer/layout"
)

// leading says why this sidecar does not speak for its group, or returns nil.
func (m *Machine) leading() error {
	if !m.leads() {
		return fmt.Errorf("%w: rank %d does not lead group %s: ask rank 0", handoff.ErrNotReady, m.cfg.Self.Rank, m.cfg.Self.Group)
	}
	return nil
}

// whole is leading, and that every rank of the group is here.
func (m *Machine) whole() error {
	if err := m.leading(); err != nil {
		return err
	}
	if m.lead.roster == nil {
		return m.lacking()
	}
	return nil
}

// lacking says that the roster does not stand, and which ranks are here under another instance.
func (m *Machine) lacking() error {
	also := ""
	if rs := m.Strangers(); len(rs) > 0 {
		also = fmt.Sprintf(": ranks %v are here under another instance than rank 0: all ranks of a launch state one number", rs)
	}
	return fmt.Errorf("%w: not every rank of group %s is attached%s", handoff.ErrNotReady, m.cfg.Self.Group, also)
}

// Strangers are the ranks whose engine is of another instance than the leader's own, in order. A
// launch that comes while another goes has some for a while: they wait for their rank 0.
func (m *Machine) Strangers() (out []layout.Rank) {
	if _, here := m.lead.joins[0]; m.engine == nil || !here {
		return nil
	}
	for r := range layout.Rank(m.engine.attach.Ranks) {
		if j, here := m.lead.joins[r]; here && j.Attach.Instance != m.engine.attach.Instance {
			out = append(out, r)
		}
	}
	return out
}

// Place is where an outcome is in the list of all: sources before imports, each by age.
// The zero Place is before the first.
type Place struct {
	Import bool
	N      uint64 // of the source's id, or the import's attempt
}

func (p Place) compare(o Place) int {
	if p.Import != o.Import {
		if o.Import {
			return -1
		}
		return 1
	}
	return cmp.Compare(p.N, o.N)
}

// Selection says which outcomes List tells.
type Selection struct {
	Sources, Imports bool
	Live             bool // those that have not ended
	After            Place
	Limit            int
}

// List tells what the group's leader knows of hand-offs: those of s, in order. more says
// that others follow last, the Place of the last one told.
func (m *Machine) List(s Selection) (os []Outcome, last Place, more bool, err error) {
	if err := m.leading(); err != nil {
		return nil, s.After, false, err
	}
	var at []Place
	take := func(p Place, ended bool) {
		if p.compare(s.After) > 0 && !(s.Live && ended) {
			at = append(at, p)
		}
	}
	ids, tries := map[uint64]handoff.ID{}, map[uint64]Outcome{}
	if s.Sources && !s.After.Import {
		for id, h := range m.lead.sources {
			ids[id.N] = id
			take(Place{N: id.N}, h.State() == handoff.Over)
		}
	}
	if s.Imports {
		for _, o := range m.lead.done {
			tries[uint64(o.Attempt)] = o
			take(Place{Import: true, N: uint64(o.Attempt)}, true)
		}
		for _, i := range m.lead.imports {
			tries[uint64(i.Attempt)] = m.outcome(i)
			take(Place{Import: true, N: uint64(i.Attempt)}, i.State() == handoff.Draining)
		}
	}
	slices.SortFunc(at, Place.compare)
	if more = len(at) > s.Limit; more {
		at = at[:s.Limit]
	}
	last = s.After
	for _, last = range at {
		if last.Import {
			os = append(os, tries[last.N])
		} else {
			os = append(os, m.sourceOutcome(m.lead.sources[ids[last.N]]))
		}
	}
	return os, last, more, nil
}

func (m *Machine) sourceOutcome(s *held) Outcome {
	return Outcome{ID: s.ID, Label: s.Label, Source: s.State(), Copies: s.Copies()}
}

// Geometry is the whole group's, with the name of its model and its weights epoch.
func (m *Machine) Geometry() (g handoff.Geometry, name string, weights uint64, err error) {
	if err := m.whole(); err != nil {
		return handoff.Geometry{}, "", 0, err
	}
	return m.lead.roster.Geometry, m.engine.attach.Model.Name, m.epoch(), nil
}
