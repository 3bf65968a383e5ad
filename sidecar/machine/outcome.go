package machine

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/batonkv/baton/sidecar/events"
	"github.com/batonkv/baton/sidecar/handoff"
)

// Outcome is what Get knows of an import or of a held hand-off.
type Outcome struct {
	ID         handoff.ID
	Label      string
	Source     handoff.SourceState // not 0: this group holds or held it
	Copies     int32               // Source: left
	State      handoff.LeaderState // of an import
	Attempt    handoff.Attempt
	Imported   handoff.Imported
	Err        error
	SourceSafe bool

	told bool // rank 0's engine heard
}

func (m *Machine) finish(i *importing, o Outcome) {
	m.brought(i)
	m.lead.imports = slices.DeleteFunc(m.lead.imports, func(x *importing) bool { return x == i })
	m.lead.done = append(m.lead.done, o)
	if n := len(m.lead.done) - m.cfg.KeepDone; n > 0 {
		m.lead.done = slices.Delete(m.lead.done, 0, n)
	}
	m.prune(i.Source)
}

// failImport ends an import and lets the next one in.
func (m *Machine) failImport(i *importing, err error) {
	m.endImport(i, err)
	m.reserveNext()
}

// endImport ends an import: who waits hears at once, the source may serve another,
// and blocks that a rank may still be writing stay out of use until it is quiet.
func (m *Machine) endImport(i *importing, err error) {
	if i.State() == handoff.Finished || i.State() == handoff.Draining {
		return
	}
	opened := i.State() >= handoff.Opening
	drop := i.Fail(err, m.now)
	if opened && !i.asked && m.up(i.Source) {
		m.do(ToPeer{i.Source, handoff.Withdraw{ID: i.ID(), Importer: i.importer, Attempt: i.Attempt}})
	}
	i.safe = !i.asked && !errors.Is(err, handoff.ErrGone) && !errors.Is(err, handoff.ErrTaken)
	if i.engine {
		m.tellFailed(i)
	}
	for _, c := range i.calls {
		m.do(Reply{Call: c, Err: err})
	}
	i.calls = nil
	m.do(Notify{Notice{Kind: NoticeFailed, Label: i.Import.Label, Err: err, ID: i.ID(), SourceSafe: i.safe}})
	m.publish(events.Dropped, events.Event{Handoff: i.ID().String(), Label: i.Import.Label, Cause: err.Error()})
	if drop {
		m.brought(i)
		m.decideAll(handoff.Decision{Kind: handoff.Drop, ID: i.ID(), Attempt: i.Attempt, Of: i.ReserveN})
		m.drained(i)
	} else {
		m.finish(i, m.outcome(i))
	}
}

func (m *Machine) outcome(i *importing) Outcome {
	return Outcome{ID: i.ID(), Label: i.Import.Label, State: i.State(), Attempt: i.Attempt, Err: i.Err, SourceSafe: i.safe, told: i.engine,
		Imported: handoff.Imported{Label: i.Import.Label, ID: i.ID(), Bytes: i.Bytes, Cached: i.Cached, Phases: i.Phases}}
}

// drained returns a dropped import's blocks once every rank is quiet.
func (m *Machine) drained(i *importing) {
	if m.lead.roster == nil || !i.Drained(m.now) {
		return
	}
	m.decideAll(handoff.Decision{Kind: handoff.ReleaseQuarantine, ID: i.ID(), Attempt: i.Attempt, Of: i.ReserveN})
	m.finish(i, m.outcome(i))
}

// due is when an import must not go on as it is; ok is false when it may.
func (i *importing) due(patience Now) (at Now, ok bool) {
	switch {
	case i.Abortable():
		return i.Deadline, true
	case i.State() == handoff.Consuming, i.State() == handoff.Admitting && !i.doubted:
		return i.Since() + patience, true
	}
	return 0, false
}

func (m *Machine) expireImports() {
	late := func(i *importing) bool { at, ok := i.due(m.cfg.Patience); return ok && at <= m.now }
	if !slices.ContainsFunc(m.lead.imports, late) {
		return
	}
	for _, i := range slices.Clone(m.lead.imports) {
		switch {
		case !late(i):
		case i.Abortable():
			m.failImport(i, m.tooLate(i))
		case i.State() == handoff.Consuming: // dropping costs a prefill at most: nobody else has this copy
			m.failImport(i, fmt.Errorf("%w: %v has not answered Done within %v", handoff.ErrPeer, i.Source, m.cfg.Patience))
		default:
			m.doubt(i)
		}
	}
}

// tooLate is the end of an import whose deadline passed, with what it waited for.
func (m *Machine) tooLate(i *importing) error {
	if i.State() == handoff.Finding && !m.listed(i.Source) {
		return fmt.Errorf("%w: %v: discovery shows no sidecar of group %s: is it registered, and in a pool that this one sees?",
			handoff.ErrDeadline, i.ID(), i.Source.Group)
	}
	return fmt.Errorf("%w: %v in state %v", handoff.ErrDeadline, i.ID(), i.State())
}

// doubt answers who waits for an import that is decided and not applied: it will be,
// or the group ends.
func (m *Machine) doubt(i *importing) {
	i.doubted = true
	for _, c := range i.calls {
		m.do(Reply{Call: c, Err: fmt.Errorf("%w: %v is admitted, and some rank has not applied that within %v", handoff.ErrInDoubt, i.ID(), m.cfg.Patience)})
	}
	i.calls = nil
}

// Aborts: by a control plane, a rank, or rank 0's engine.
func (m *Machine) abortCall(e Abort) {
	m.do(Reply{Call: e.Call, Err: m.abortImport(e.ID, e.Key, handoff.ErrAborted)})
}

// abortLabel is rank 0's engine's: of each import it hears one Imported or Failed, also
// when that crosses the abort.
func (m *Machine) abortLabel(label string) {
	for _, i := range slices.Backward(slices.Clone(m.lead.imports)) {
		if i.Import.Label != label {
			continue
		}
		told := i.engine
		i.engine = true // it hears of the end, whoever asked for the import
		switch {
		case i.Abortable():
			m.failImport(i, handoff.ErrAborted)
		case i.State() == handoff.Draining && !told:
			m.tellFailed(i)
		}
		return
	}
	for n := len(m.lead.done) - 1; n >= 0; n-- {
		if o := &m.lead.done[n]; o.Label == label {
			if !o.told {
				o.told = true
				m.tellEnd(*o)
			}
			return
		}
	}
	if slices.Contains(m.engine.attach.Imports, label) {
		return // of before the engine attached: its end follows when every rank is here
	}
	m.toEngine(handoff.Failed{Label: label, Err: fmt.Errorf("%w: no import %q", handoff.ErrUnknown, label)})
}

func (m *Machine) tellFailed(i *importing) {
	m.toEngine(handoff.Failed{Label: i.Import.Label, Err: i.Err, SourceSafe: i.safe})
}

// tellEnd tells the engine of an import that ended before it asked.
func (m *Machine) tellEnd(o Outcome) {
	if o.Err != nil {
		m.toEngine(handoff.Failed{Label: o.Label, Err: o.Err, SourceSafe: o.SourceSafe})
		return
	}
	m.toEngine(o.Imported)
}

// abortImport drops an import that is not decided yet. Who names a key ends none of another:
// ids are known to whoever watches, and an import under a wrong key waits for its refusal
// beside the right one.
func (m *Machine) abortImport(id handoff.ID, key handoff.Key, why error) error {
	for _, i := range slices.Clone(m.lead.imports) {
		if i.ID() != id || i.State() == handoff.Draining || key != (handoff.Key{}) && i.Import.Manifest.Key != key {
			continue
		}
		if !i.Abortable() {
			return fmt.Errorf("%w: %v is in state %v: its outcome is the source's", handoff.ErrInDoubt, id, i.State())
		}
		m.failImport(i, why)
		return nil
	}
	return fmt.Errorf("%w: no import of %v is under way", handoff.ErrUnknown, id)
}

// Get tells of an import that runs or ended not long ago. A hand-off that was asked for again
// has several: it is one that goes on, else the newest that was admitted, since a later one finds
// its source gone; else one that failed. What failed and drains hides neither.
func (m *Machine) Get(id handoff.ID) (Outcome, bool) {
	var failed *Outcome
	for _, i := range slices.Backward(m.lead.imports) {
		if i.ID() != id {
			continue
		}
		o := m.outcome(i)
		if o.Err == nil {
			return o, true
		}
		failed = cmp.Or(failed, &o)
	}
	for _, o := range slices.Backward(m.lead.done) {
		if o.ID != id {
			continue
		}
		if o.Err == nil {
			return o, true
		}
		failed = cmp.Or(failed, &o)
	}
	if failed != nil {
		return *failed, true
	}
	if s := m.lead.sources[id]; s != nil {
		return m.sourceOutcome(s), true
	}
	return Outcome{}, false
}

func (l *leader) deadlines(patience Now, earliest func(Now)) {
	if len(l.over) > 0 {
		earliest(l.sources[l.over[0]].forget)
	}
	if at, ok := l.dues.next(); ok {
		earliest(at)
	}
	for _, w := range l.awaited {
		earliest(w.due)
	}
	for _, i := range l.imports {
		if at, ok := i.due(patience); ok {
			earliest(at)
		}
	}
}
