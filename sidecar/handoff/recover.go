package handoff

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"
)

// Tail is what a holder of decisions keeps of them: the newest, in order and without
// gaps, from the first that not every rank is known to have applied. A leader that comes
// back makes its sequence from the tails of all ranks.
type Tail []Decision

// CheckTail says why ds cannot be the tail of an engine that holds decisions 1 to held
// and applied 1 to applied, or returns nil. A decision is never newer than what it says
// is settled, so whoever holds one has a tail.
func CheckTail(ds []Decision, applied, held uint64) error {
	switch {
	case applied > held:
		return fmt.Errorf("%w: %d decisions are applied and %d held", ErrAttach, applied, held)
	case held == 0 && len(ds) == 0:
		return nil
	case len(ds) == 0 || ds[len(ds)-1].N != held:
		return fmt.Errorf("%w: the stated decisions do not end at %d, the newest that is held", ErrAttach, held)
	case ds[0].N == 0 || ds[0].N > applied+1:
		return fmt.Errorf("%w: the stated decisions begin at %d, and %d are applied", ErrAttach, ds[0].N, applied)
	}
	for i, d := range ds {
		switch {
		case d.N != ds[0].N+uint64(i):
			return fmt.Errorf("%w: decision %d is stated after decision %d", ErrAttach, d.N, ds[i-1].N)
		case d.Kind < Reserve || d.Kind > Lifecycle:
			return fmt.Errorf("%w: decision %d is of kind %d", ErrAttach, d.N, d.Kind)
		case d.Action.Known() != (d.Kind == Lifecycle):
			return fmt.Errorf("%w: decision %d (%v) has the action %d", ErrAttach, d.N, d.Kind, d.Action)
		case d.Of >= d.N || d.Settled >= d.N:
			return fmt.Errorf("%w: decision %d is about decision %d and settles %d, which come later", ErrAttach, d.N, d.Of, d.Settled)
		}
	}
	return nil
}

// Add keeps d, the next decision, and forgets what it says is settled. What only a pull
// needs is not kept.
func (t Tail) Add(d Decision) Tail {
	d.Members, d.Sources, d.Extent = nil, nil, Extent{More: d.More}
	n := 0
	for n < len(t) && t[n].N <= d.Settled {
		n++
	}
	return append(slices.Delete(t, 0, n), d)
}

// Applied drops the contents of decisions 1 to n, which this rank's engine applied.
// Every rank's engine client holds them by then, so nobody will ask for more than what
// they were about.
func (t Tail) Applied(n uint64) {
	for i := range t {
		if d := &t[i]; d.N <= n && (d.Kind == Reserve || d.Kind == Admit) {
			d.Tokens, d.Hashes, d.Resume = 0, nil, Resume{}
		}
	}
}

// JoinTails makes one sequence of what the ranks of a group state: decisions low+1 to high,
// which are all that a rank may lack, with older ones that somebody still keeps before
// them. It fails when a decision is stated by nobody, when two ranks hold different ones
// under a number, or when the contents of one are gone that a rank may lack: one above
// held, the newest that every engine client holds.
func JoinTails(tails []Tail, low, high, held uint64) (Tail, error) {
	by := map[uint64]Decision{}
	for _, t := range tails {
		for _, d := range t {
			o, ok := by[d.N]
			switch {
			case ok && (o.Kind != d.Kind || o.ID != d.ID || o.Attempt != d.Attempt || o.Label != d.Label || o.Of != d.Of || o.Action != d.Action):
				return nil, fmt.Errorf("%w: two ranks hold different decisions %d", ErrAttach, d.N)
			case !ok || o.Kind == Reserve && o.Tokens == 0:
				by[d.N] = d
			}
		}
	}
	for n := low + 1; n <= high; n++ {
		switch d, ok := by[n]; {
		case !ok:
			return nil, fmt.Errorf("%w: no rank holds decision %d of %d any more", ErrAttach, n, high)
		case n > held && d.Kind == Reserve && d.Tokens == 0:
			return nil, fmt.Errorf("%w: no rank holds all of decision %d any more", ErrAttach, n)
		}
	}
	return slices.SortedFunc(maps.Values(by), func(a, b Decision) int { return cmp.Compare(a.N, b.N) }), nil
}

// Reservation is what a tail knows of one Reserve.
type Reservation struct {
	N        uint64 // of the Reserve
	ID       ID
	Attempt  Attempt
	Label    string // empty: the Reserve itself is not in the tail
	Admit    uint64 // number of its Admit; 0: none
	Drop     uint64 // of its newest Drop; 0: none
	Released bool   // its quarantine has ended
}

// Open reports whether its memory is out of use, or may be: it is neither admitted nor
// given back.
func (r Reservation) Open() bool { return r.Admit == 0 && !r.Released }

// Reservations are those that t tells of, by number. Of a Reserve that found no room and
// was decided again, only the last is told.
func (t Tail) Reservations() []Reservation {
	by := map[uint64]*Reservation{}
	type try struct {
		id ID
		a  Attempt
	}
	last := map[try]uint64{}
	of := func(n uint64, d Decision) *Reservation {
		if by[n] == nil {
			by[n] = &Reservation{N: n, ID: d.ID, Attempt: d.Attempt}
		}
		return by[n]
	}
	for _, d := range t {
		switch d.Kind {
		case Reserve:
			k := try{d.ID, d.Attempt}
			delete(by, last[k])
			last[k] = d.N
			of(d.N, d).Label = d.Label
		case Admit:
			of(d.Of, d).Admit = d.N
		case Drop:
			of(d.Of, d).Drop = d.N
		case ReleaseQuarantine:
			of(d.Of, d).Released = true
		}
	}
	var out []Reservation
	for _, n := range slices.Sorted(maps.Keys(by)) {
		out = append(out, *by[n])
	}
	return out
}

// Recovered is the import of a Reserve that a leader before this one decided. It is
// Admitting when that is decided, Draining when it was dropped, and else Consuming: Done
// may have gone out, and nobody can tell.
func Recovered(r Reservation, ranks int32, now time.Duration) *Leader {
	l := NewLeader(Import{Label: r.Label, Manifest: Manifest{ID: r.ID, Label: r.Label}}, r.Attempt, ranks, now, now)
	l.ReserveN, l.AdmitN, l.state = r.N, r.Admit, Consuming
	switch {
	case r.Admit > 0:
		l.state = Admitting
	case r.Drop > 0:
		l.state = Draining
	}
	return l
}
