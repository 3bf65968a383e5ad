package handoff

import (
	"fmt"
	"slices"
	"time"
)

// SourceState is the state of a Source.
type SourceState uint8

const (
	Announced SourceState = iota + 1 // the label is known, nothing is pinned by all
	Leasing                          // every rank pins it; the leader's lease runs
	Over                             // terminal: consumed, released or expired; its answers stay
)

// claim is one try of one importer.
type claim struct {
	Importer Importer
	Attempt  Attempt
}

// Source is the leader's half of one hand-off on the prefill side: who holds it,
// until when, and which importer may have it. Every answer compares the lease with
// the clock at the instant of answering, so a late tick frees nothing early.
type Source struct {
	ID    ID
	Key   Key
	Label string

	state    SourceState
	pins     []PinInfo // by rank, as importers were told; Pin 0 is absent, since pin ids start at 1
	export   *Export   // of the leader's engine
	grown    grown     // while parts of it leave
	copies   int32
	deadline time.Duration // of the announcement, then of the lease
	opened   map[claim]bool
	answers  map[claim]Status // tombstones: the same claim gets the same answer
	waiting  []Open           // opened while Announced

	term  time.Duration // of one stretch of the lease
	until time.Duration // no extension passes it
	renew time.Duration // the next extension goes out then
	open  renewal
}

// maxClaims bounds what one hand-off remembers of importers. A claim beyond it is
// refused at Open and never consumes.
const maxClaims = 1024

// NewSource makes the source of a label in a group of ranks. One that is not exported
// by until is over: its label is not held for a request that never comes.
func NewSource(id ID, key Key, label string, ranks int32, until time.Duration) *Source {
	return &Source{ID: id, Key: key, Label: label, state: Announced, deadline: until, pins: make([]PinInfo, ranks),
		opened: map[claim]bool{}, answers: map[claim]Status{}}
}

// State returns where s is.
func (s *Source) State() SourceState { return s.state }

// Pins are the pins by rank; complete once s is Leasing.
func (s *Source) Pins() []PinInfo { return s.pins }

// Export is what the leader's engine exported; nil before.
func (s *Source) Export() *Export { return s.export }

// Copies is how many imports may still consume s.
func (s *Source) Copies() int32 { return s.copies }

// Deadline is when the announcement or the lease ends; it means nothing once s is Over.
func (s *Source) Deadline() time.Duration { return s.deadline }

// Exported takes the leader's own export, which closes as many parts as the leader's engine
// exported.
func (s *Source) Exported(e Export) error {
	if s.export != nil || e.Parts != s.grown.own || s.state != Announced && !s.Growing() {
		return fmt.Errorf("%w: label %q was exported before", ErrEngine, s.Label)
	}
	s.export = &e
	s.copies = max(e.Copies, 1)
	return nil
}

// Pinned takes a rank's pin, or what a part adds to it. Ranks that disagree on tokens or
// position hold different prompts under one label, which nothing can repair.
func (s *Source) Pinned(m Pinned) error {
	p := m.Pin
	if m.Part > 1 {
		return s.grow(m)
	}
	if s.state != Announced || p.Rank < 0 || int(p.Rank) >= len(s.pins) || s.pins[p.Rank].Pin != 0 {
		return fmt.Errorf("%w: rank %d pins label %q twice or too late", ErrEngine, p.Rank, s.Label)
	}
	for _, o := range s.pins {
		if o.Pin != 0 && (o.Tokens != p.Tokens || o.Position != p.Position) {
			return fmt.Errorf("%w: label %q: rank %d holds %d tokens at position %d, rank %d %d at %d",
				ErrPosition, s.Label, o.Rank, o.Tokens, o.Position, p.Rank, p.Tokens, p.Position)
		}
	}
	s.pins[p.Rank] = p
	s.grown.first(m, len(s.pins))
	return nil
}

// Await ends s at that instant if it is not leased by then.
func (s *Source) Await(until time.Duration) {
	if s.state == Announced {
		s.deadline = min(s.deadline, until)
	}
}

// Missing are the ranks that pin nothing of what others pin. What nobody pins misses none.
func (s *Source) Missing() (ranks []int32) {
	for r, p := range s.pins {
		if p.Pin == 0 {
			ranks = append(ranks, int32(r))
		}
	}
	if len(ranks) == len(s.pins) {
		return nil
	}
	return ranks
}

// Complete reports whether every rank pins all of it and the leader's engine exported.
func (s *Source) Complete() bool {
	return s.export != nil && s.pinned() && !s.grown.more()
}

func (s *Source) pinned() bool {
	return !slices.ContainsFunc(s.pins, func(p PinInfo) bool { return p.Pin == 0 })
}

// Open answers an importer and remembers that it asked. The caller fills in the
// geometry's part of the answer.
func (s *Source) Open(now time.Duration, o Open) Opened {
	a := Opened{ID: o.ID, Attempt: o.Attempt}
	c := claim{o.Importer, o.Attempt}
	switch {
	case o.Key != s.Key || s.state == Over || now >= s.deadline:
		a.Status = Gone
	case s.answers[c] != 0: // withdrawn, or done
		a.Status = Gone
	case !s.opened[c] && len(s.opened)+len(s.waiting) >= maxClaims:
		a.Status, a.Why = Refused, fmt.Sprintf("%d imports asked for this hand-off", maxClaims)
	case s.state == Announced || s.Growing() && !o.Parts:
		a.Status = Pending
		s.waiting = append(s.leave(c), o)
	case s.copies == 0:
		a.Status = Taken
	default:
		s.opened[c] = true
		a.Status = OK
		a.Pins = s.pins
		e := s.Whole()
		a.Tokens, a.Position, a.Resume, a.WeightsEpoch, a.Salt = e.Tokens, e.Position, e.Resume, e.WeightsEpoch, e.Salt
		if s.Growing() {
			a.Pins, a.Extent, a.Resume = slices.Clone(s.pins), s.grown.told, Resume{}
			s.grown.tell(o)
		}
	}
	return a
}

// Done answers a claim; over says that the last copy went with it. OK is only for a
// claim that was opened here and did not withdraw, and it is repeated to the same claim.
func (s *Source) Done(now time.Duration, d Done) (a DoneAck, over bool) {
	a = DoneAck{ID: d.ID, Attempt: d.Attempt}
	c := claim{d.Importer, d.Attempt}
	if st, ok := s.answers[c]; ok {
		a.Status = st
		return a, false
	}
	switch {
	case s.state == Over && s.copies == 0 && s.opened[c]:
		a.Status = Taken
	case s.state != Leasing || now >= s.deadline || !s.opened[c] || s.Growing():
		a.Status = Gone
	case s.copies == 0:
		a.Status = Taken
	default:
		a.Status = OK
		s.copies--
		over = s.copies == 0
	}
	s.remember(c, a.Status)
	if over {
		s.state = Over
	}
	return a, over
}

// remember keeps an answer. One to a claim that never opened, and showed no key, is kept
// while there is room of its own: it takes none from those that show one.
func (s *Source) remember(c claim, st Status) {
	if s.opened[c] || len(s.answers) < maxClaims {
		s.answers[c] = st
	}
}

// leave is waiting without the claim's opens.
func (s *Source) leave(c claim) []Open {
	return slices.DeleteFunc(s.waiting, func(o Open) bool { return claim{o.Importer, o.Attempt} == c })
}

// Withdraw ends a claim: a later Done of it is Gone.
func (s *Source) Withdraw(w Withdraw) {
	c := claim{w.Importer, w.Attempt}
	if _, ok := s.answers[c]; !ok {
		s.remember(c, Gone)
	}
	s.waiting = s.leave(c)
	s.grown.leave(c)
}

// Expired ends s when its lease, or its announcement, is over and says whether it did.
func (s *Source) Expired(now time.Duration) bool {
	if s.state == Over || now < s.deadline {
		return false
	}
	s.state = Over
	return true
}

// End ends s whatever it was; it returns the opens that wait, or read parts, to be answered
// Gone. Only its answers are kept.
func (s *Source) End() []Open {
	s.state = Over
	w := slices.Concat(s.waiting, s.grown.readers)
	s.waiting, s.pins, s.export, s.grown = nil, nil, nil, grown{}
	return w
}
