package client

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/batonkv/baton/proto/codec"
	"github.com/batonkv/baton/sidecar/handoff"
)

// record is what this rank has to state when it attaches again: what it exported and
// holds, what it asked for and was not answered, and the decisions that it holds. It
// follows the messages in both directions, in their order, and does no I/O.
//
// A label ends once: an export by Free (when the engine takes that decision), Failed other
// than ErrGone, or UnpinExport, an import by Imported or Failed. What ends a label that has ended is not
// passed on. A label that is announced ends with Failed, or when it is exported; what a lost
// session knew of it is said again in the next.
type record struct {
	rank      int32
	pins      map[string]bool    // exports that are held
	bounds    handoff.Bounds     // of what the rank attaches
	growing   map[string]growing // of pins, those whose parts leave
	announced map[string]bool    // and neither exported nor refused
	imports   map[string]awaited // imports without an end
	log       []handoff.Decision // held and not settled, or not taken; by number, without gaps; of the applied no contents
	held      uint64             // decisions 1 to held have arrived,
	taken     uint64             // 1 to taken were handed to the engine,
	applied   uint64             // 1 to applied it has applied,
	settled   uint64             // and 1 to settled nobody need state any more
	fenced    uint64             // the highest fence that the engine passed
	weights   uint64             // the engine's weights epoch
	draining  bool               // a decision stopped its intake
}

// awaited is an import without an end.
type awaited struct {
	id       handoff.ID
	key      handoff.Key
	deadline time.Time // when OnDownFail gives it up, if no sidecar is there
}

// Bounds of a record: what one Attach can state.
const (
	maxPins    = codec.MaxPins
	maxImports = codec.MaxPins
	maxHeld    = codec.MaxStated
)

// newRecord goes on from what an engine states of an earlier client's sessions. The
// decisions that it states are the engine's already.
func newRecord(a handoff.Attach, now time.Time) *record {
	r := &record{rank: int32(a.Rank), bounds: handoff.NewBounds(a), pins: map[string]bool{}, growing: map[string]growing{}, announced: map[string]bool{}, imports: map[string]awaited{},
		log: slices.Clone(a.Decisions), held: a.Held, taken: a.Held, applied: a.Applied, weights: a.Model.WeightsEpoch, draining: a.Draining}
	for _, l := range a.Pins {
		r.pins[l] = true
	}
	for _, l := range a.Imports {
		r.imports[l] = awaited{deadline: now.Add(defaultDeadline)}
	}
	for _, d := range a.Decisions {
		r.settled = max(r.settled, d.Settled)
	}
	handoff.Tail(r.log).Applied(r.applied)
	return r
}

// state is a with what this rank has to say at this instant. What grows ends here: a session
// goes on with no part of another.
func (r *record) state(a handoff.Attach) handoff.Attach {
	clear(r.growing)
	a.Pins, a.Imports = slices.Sorted(maps.Keys(r.pins)), slices.Sorted(maps.Keys(r.imports))
	a.Applied, a.Held, a.Model.WeightsEpoch = r.applied, r.held, r.weights
	a.Draining = r.draining
	// The log keeps what the engine has not taken, whatever a leader settles.
	a.Decisions = slices.Clone(r.log[r.after(r.settled):])
	if len(a.Decisions) == 0 {
		a.Decisions = nil
	}
	return a
}

// after is the index in the log of the first decision behind n.
func (r *record) after(n uint64) int {
	i, _ := slices.BinarySearchFunc(r.log, n+1, func(d handoff.Decision, n uint64) int {
		switch {
		case d.N < n:
			return -1
		case d.N > n:
			return 1
		}
		return 0
	})
	return i
}

// sends takes a message of the engine before it goes out. told: it was said before and
// need not be again. An error refuses it and changes nothing. That the message is lost
// with its session is covered by what state says.
func (r *record) sends(m handoff.FromEngine, now time.Time) (told bool, err error) {
	wrong := func(format string, args ...any) (bool, error) {
		return false, fmt.Errorf("%w: "+format, append([]any{handoff.ErrEngine}, args...)...)
	}
	switch m := m.(type) {
	case handoff.Announce:
		if len(r.announced) >= maxPins {
			return false, fmt.Errorf("%w: %d labels are announced", handoff.ErrBound, maxPins)
		}
		if !r.pins[m.Label] {
			r.announced[m.Label] = true
		}
	case handoff.Export:
		if m.Parts > 0 {
			return r.closes(m)
		}
		return false, r.exports(m)
	case handoff.ExportPart:
		return r.grows(m)
	case handoff.ReleaseExport:
		delete(r.announced, m.Label)
		delete(r.growing, m.Label)
	case handoff.Import:
		return r.asks(m, now)
	case handoff.Applied:
		if m.N > r.taken || m.N < r.applied {
			return wrong("it says that %d decisions are applied: it has taken %d and applied %d", m.N, r.taken, r.applied)
		}
		ds := r.log[r.after(r.applied):r.after(m.N)]
		for _, d := range ds {
			if d.Kind == handoff.SetWeightsEpoch {
				r.weights = d.WeightsEpoch
			}
			r.draining = d.Draining(r.draining)
		}
		handoff.Tail(ds).Applied(m.N)
		r.applied = m.N
		r.trim()
	case handoff.Reserved:
		if m.Full || m.Why != "" {
			break
		}
		if err := r.bounds.Reserved(m); err != nil {
			return false, fmt.Errorf("answer to decision %d: %w", m.N, err)
		}
	case handoff.Fenced:
		r.fenced = max(r.fenced, m.N)
	case handoff.LifecycleAck:
		if m.N == 0 || m.N > r.taken {
			return wrong("it answers decision %d and has taken %d", m.N, r.taken)
		}
	case handoff.Attach, handoff.BuffersReady, handoff.Held:
		return wrong("%T is the client's to say", m)
	}
	return false, nil
}

// over forgets an export.
func (r *record) over(label string) {
	delete(r.pins, label)
	delete(r.growing, label)
}

// asks takes an import. The same one under its label is under way already.
func (r *record) asks(m handoff.Import, now time.Time) (told bool, err error) {
	label := importLabel(m)
	if r.rank != 0 {
		return false, fmt.Errorf("%w: rank %d asks for an import: rank 0 alone does", handoff.ErrRole, r.rank)
	}
	if label == "" {
		return false, fmt.Errorf("%w: an import has a label", handoff.ErrEngine)
	}
	if old, open := r.imports[label]; open {
		if old.id == m.Manifest.ID && old.key == m.Manifest.Key {
			return true, nil
		}
		return false, fmt.Errorf("%w: label %q names another import under way", handoff.ErrUnknown, label)
	}
	if len(r.imports) >= maxImports {
		return false, fmt.Errorf("%w: %d imports have no end", handoff.ErrBound, maxImports)
	}
	d := m.Deadline
	if d <= 0 {
		d = defaultDeadline
	}
	r.imports[label] = awaited{m.Manifest.ID, m.Manifest.Key, now.Add(d)}
	return false, nil
}

// importLabel is the label that the sidecar knows an import by.
func importLabel(m handoff.Import) string {
	if m.Label == "" {
		return m.Manifest.Label
	}
	return m.Label
}

// errGap reports decisions that did not come in order: another session brings them.
var errGap = errors.New("a decision is missing")

// hears takes a message of the sidecar other than a decision and says whether the
// engine has to hear it.
func (r *record) hears(m handoff.ToEngine) bool {
	switch m := m.(type) {
	case handoff.Imported:
		a, open := r.imports[m.Label]
		if !open || a.id != (handoff.ID{}) && a.id != m.ID {
			return false
		}
		delete(r.imports, m.Label)
	case handoff.Failed:
		switch {
		case hasKey(r.imports, m.Label):
			delete(r.imports, m.Label)
		case r.pins[m.Label]:
			if m.SourceSafe {
				return false // of the announcement before: the export is answered by itself
			}
			if !errors.Is(m.Err, handoff.ErrGone) { // else Free ends it, or has: the label may be exported anew
				r.over(m.Label)
			}
		case r.announced[m.Label]:
			delete(r.announced, m.Label)
		default:
			return false
		}
	case handoff.UnpinExport:
		if !r.pins[m.Label] {
			return false
		}
		r.over(m.Label)
	}
	return true
}

func hasKey[V any](m map[string]V, k string) bool { _, ok := m[k]; return ok }

// holds takes a decision. One that is held already says at most what is settled.
func (r *record) holds(d handoff.Decision) error {
	switch {
	case d.N > r.held+1:
		return fmt.Errorf("%w: decision %d after %d: %w", handoff.ErrEngine, d.N, r.held, errGap)
	case d.N == r.held+1:
		r.log = append(r.log, d)
		r.held = d.N
	}
	if d.Settled <= r.held {
		r.settled = max(r.settled, d.Settled)
	}
	r.trim()
	return nil
}

// trim drops what need not be stated: decisions that are settled and taken. A leader
// that settles nothing does not make the log grow for ever: the oldest applied go.
func (r *record) trim() {
	n := r.after(min(r.settled, r.applied))
	if over := len(r.log) - maxHeld; over > n {
		n = min(over, r.after(r.applied))
	}
	clear(r.log[:n])
	r.log = r.log[n:]
}

// take hands the engine the decisions up to through that it has not taken.
func (r *record) take(through uint64) []handoff.Decision {
	from := r.after(r.taken)
	to := max(r.after(through), from)
	if from == to {
		return nil
	}
	ds := slices.Clone(r.log[from:to])
	for _, d := range ds {
		if d.Kind == handoff.Free {
			r.over(d.Label)
		}
	}
	r.taken = ds[len(ds)-1].N
	return ds
}

// waiting is how many decisions the engine has not taken.
func (r *record) waiting() int { return int(r.held - r.taken) }

// afterwards is what has to be said again once the rank is attached: the fence, since an
// answer of before may wait for it, and the labels that are announced, in order.
func (r *record) afterwards() (out []handoff.FromEngine) {
	if r.fenced > 0 {
		out = append(out, handoff.Fenced{N: r.fenced})
	}
	for _, l := range slices.Sorted(maps.Keys(r.announced)) {
		out = append(out, handoff.Announce{Label: l})
	}
	return out
}

// giveUp ends the imports whose deadline has come, all of them with all, and returns
// their labels in order.
func (r *record) giveUp(now time.Time, all bool) (labels []string) {
	for l, a := range r.imports {
		if all || !a.deadline.After(now) {
			labels = append(labels, l)
			delete(r.imports, l)
		}
	}
	slices.Sort(labels)
	return labels
}

// due is when giveUp has something to do; ok is false when it never has.
func (r *record) due() (at time.Time, ok bool) {
	for _, a := range r.imports {
		if !ok || a.deadline.Before(at) {
			at, ok = a.deadline, true
		}
	}
	return at, ok
}
