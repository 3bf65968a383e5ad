package handoff

import "slices"

// Sequence numbers a group's decisions and follows which rank holds and applied
// them. Rank 0's engine may apply through n once every rank's engine client holds
// decisions 1 to n: then no rank ever waits inside a step.
type Sequence struct {
	n, through    uint64
	held, applied []uint64 // by rank
}

// NewSequence goes on after decision n, of which each rank holds and applied so many:
// nothing of nothing at the first roster of a launch. The slices become the sequence's.
func NewSequence(n uint64, held, applied []uint64) *Sequence {
	return &Sequence{n: n, through: slices.Min(held), held: held, applied: applied}
}

// Next mints a number.
func (q *Sequence) Next() uint64 {
	q.n++
	return q.n
}

// Held takes a rank's statement; through is what rank 0's engine hears when it grew.
func (q *Sequence) Held(rank int, n uint64) (through uint64, grew bool) {
	if rank < 0 || rank >= len(q.held) || n > q.n || n <= q.held[rank] {
		return q.through, false
	}
	q.held[rank] = n
	if m := slices.Min(q.held); m > q.through {
		q.through = m
		return m, true
	}
	return q.through, false
}

// Stated reports whether a rank that says it holds and applied so much can go on: it
// lost nothing that it said before, and claims nothing that was not decided.
func (q *Sequence) Stated(rank int, held, applied uint64) bool {
	return rank >= 0 && rank < len(q.held) && held <= q.n && applied <= held && held >= q.held[rank] && applied >= q.applied[rank]
}

// N is the newest number.
func (q *Sequence) N() uint64 { return q.n }

// HeldBy is the newest number that a rank of the group holds.
func (q *Sequence) HeldBy(rank int) uint64 { return q.held[rank] }

// AllHeld is the newest number that every rank holds.
func (q *Sequence) AllHeld() uint64 { return slices.Min(q.held) }

// AllApplied is the newest number that every rank applied.
func (q *Sequence) AllApplied() uint64 { return slices.Min(q.applied) }

// Behind are the ranks that have not applied every decision.
func (q *Sequence) Behind() (ranks []int) {
	for r, n := range q.applied {
		if n < q.n {
			ranks = append(ranks, r)
		}
	}
	return ranks
}

// Applied takes a rank's statement and returns what every rank applied.
func (q *Sequence) Applied(rank int, n uint64) uint64 {
	if rank >= 0 && rank < len(q.applied) && n <= q.n && n > q.applied[rank] {
		q.applied[rank] = n
	}
	return q.AllApplied()
}
