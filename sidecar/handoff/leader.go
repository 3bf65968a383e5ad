package handoff

import (
	"fmt"
	"time"
)

// LeaderState is the state of a Leader.
type LeaderState uint8

const (
	Finding   LeaderState = iota + 1 // the source leader, its geometry, the plan
	Opening                          // Open was sent
	Waiting                          // opened; in the queue, holding nothing
	Granting                         // Reserve was decided; some rank has not answered
	Pulling                          // every rank holds blocks; some rank has not landed
	Consuming                        // Done was sent: the outcome is the source's
	Admitting                        // Admit was decided; some rank has not applied it
	Draining                         // Drop was decided; some rank is not quiet
	Finished                         // terminal
)

var leaderNames = [...]string{Finding: "finding", Opening: "opening", Waiting: "waiting", Granting: "granting",
	Pulling: "pulling", Consuming: "consuming", Admitting: "admitting", Draining: "draining", Finished: "finished"}

func (s LeaderState) String() string {
	if int(s) < len(leaderNames) && s > 0 {
		return leaderNames[s]
	}
	return fmt.Sprintf("LeaderState(%d)", uint8(s))
}

// Leader is the importing group's half of one hand-off, on rank 0's sidecar. It
// holds no memory: ranks do. Its word alone admits or drops.
type Leader struct {
	Import   Import
	Attempt  Attempt
	Source   Member // the source leader
	Deadline time.Duration
	Plan     Digest
	Opened   Opened
	ReserveN uint64 // the Reserve decision under way, 0 before
	AdmitN   uint64
	Cached   int32
	Bytes    int64
	Err      error // why it failed
	Phases   Phases
	// Late: Reserve was decided before the hand-off was exported whole, so Admit brings the
	// resume packet.
	Late bool

	state    LeaderState
	since    time.Duration // when state began
	reserved []*Reserved   // by rank
	landed   []bool        // by rank: landed good
	quiet    []bool        // by rank: no ticket open
}

// NewLeader starts an import into a group of ranks.
func NewLeader(i Import, a Attempt, ranks int32, now, deadline time.Duration) *Leader {
	return &Leader{Import: i, Attempt: a, Deadline: deadline, state: Finding, since: now,
		Source:   Member{Group: i.Manifest.ID.Group, Rank: 0, Incarnation: i.Manifest.ID.Leader},
		reserved: make([]*Reserved, ranks), landed: make([]bool, ranks), quiet: make([]bool, ranks)}
}

// State returns where l is.
func (l *Leader) State() LeaderState { return l.state }

// ID is the hand-off's.
func (l *Leader) ID() ID { return l.Import.Manifest.ID }

// Since is when l's state began.
func (l *Leader) Since() time.Duration { return l.since }

// Abortable reports whether the group may still drop l on its own: before Done is sent.
func (l *Leader) Abortable() bool { return l.state < Consuming }

func (l *Leader) enter(s LeaderState, now time.Duration) time.Duration {
	d := now - l.since
	l.state, l.since = s, now
	return d
}

// Open says that Open goes out.
func (l *Leader) Open(plan Digest) {
	l.Plan, l.state = plan, Opening // the open phase counts from the Import: since stays
}

// Answered takes Opened and returns why the import cannot go on, or nil. A Pending
// answer leaves l Opening: the source answers again at Export.
func (l *Leader) Answered(o Opened, now time.Duration) error {
	if l.state != Opening || o.Attempt != l.Attempt || o.Status == Pending {
		return nil
	}
	switch {
	case o.Status == Taken:
		return ErrTaken
	case o.Status == Gone:
		return ErrGone
	case o.Status != OK:
		return fmt.Errorf("%w: the source refuses: %s", ErrPlan, o.Why)
	case o.Plan != l.Plan:
		return fmt.Errorf("%w: source has %v, this group %v", ErrPlan, o.Plan, l.Plan)
	case int(o.Tokens) != len(l.Import.Tokens):
		return fmt.Errorf("%w: the source holds %d tokens, the import brings %d", ErrPosition, o.Tokens, len(l.Import.Tokens))
	case o.Position != o.Tokens && o.Position != o.Tokens-1:
		return fmt.Errorf("%w: state is at %d of %d tokens", ErrPosition, o.Position, o.Tokens)
	case o.More && (o.Part == 0 || !o.Reach.Within(o.Tokens)):
		return fmt.Errorf("%w: part %d reaches %+v of %d tokens", ErrPlan, o.Part, o.Reach, o.Tokens)
	}
	l.Opened = o
	l.Phases.Open = l.enter(Waiting, now)
	return nil
}

// Parts takes a part that was exported since Opened. fresh: the ranks that were asked to
// read are to hear of it. An error is why the import cannot go on.
func (l *Leader) Parts(p Part) (fresh bool, err error) {
	if p.Part <= l.Opened.Part {
		return false, nil
	}
	if err := continues(l.Opened.Extent, l.Opened.Tokens, l.Opened.Pins, p); err != nil {
		return false, err
	}
	l.Opened.Extent, l.Opened.Pins, l.Opened.Resume = p.Extent, grownPins(l.Opened.Pins, p.Pins), p.Resume
	return l.state == Granting || l.state == Pulling, nil
}

// Awaits reports whether l reads parts and the source has others to tell of.
func (l *Leader) Awaits() bool {
	return l.Opened.More && (l.state == Waiting || l.state == Granting || l.state == Pulling)
}

// Reserve says that decision n (Reserve) goes out.
func (l *Leader) Reserve(n uint64, now time.Duration) {
	l.ReserveN, l.Late = n, l.Opened.More
	l.enter(Granting, now)
	clear(l.reserved)
	clear(l.landed)
	clear(l.quiet)
}

// Granted takes a rank's Reserved. done: every rank answered; full: none holds
// anything, the import waits again; err: the ranks disagree or can never hold it.
func (l *Leader) Granted(rank int, r Reserved, now time.Duration) (done, full bool, err error) {
	if l.state != Granting || r.N != l.ReserveN || rank < 0 || rank >= len(l.reserved) {
		return false, false, nil
	}
	l.reserved[rank] = &r
	for _, o := range l.reserved {
		if o == nil {
			return false, false, nil
		}
	}
	first := l.reserved[0]
	for i, o := range l.reserved {
		if o.Digest != first.Digest || o.Full != first.Full || o.Cached != first.Cached || (o.Why == "") != (first.Why == "") {
			return true, false, fmt.Errorf("%w: ranks 0 and %d answered Reserve %d differently: their allocators diverged", ErrEngine, i, r.N)
		}
	}
	if first.Why != "" {
		return true, false, fmt.Errorf("%w: %s", ErrCapacity, first.Why)
	}
	if first.Full {
		l.enter(Waiting, now)
		return true, true, nil
	}
	l.Cached = first.Cached
	l.Phases.Reserve = l.enter(Pulling, now)
	return true, false, nil
}

// Landed takes a rank's report. all: every rank landed good, Done may go out; err:
// this rank failed.
func (l *Leader) Landed(rank int, r Landed, now time.Duration) (all bool, err error) {
	if r.N == 0 || r.N != l.ReserveN || r.Attempt != l.Attempt || rank < 0 || rank >= len(l.landed) {
		return false, nil
	}
	if r.Quiet && !l.quiet[rank] {
		l.quiet[rank] = true
		l.Bytes += r.Bytes
		l.Phases.Move = max(l.Phases.Move, r.Elapsed)
	}
	if l.state != Granting && l.state != Pulling {
		return false, nil
	}
	switch {
	case !r.OK && r.Differs:
		return false, fmt.Errorf("%w: rank %d: %s", ErrChecksum, rank, r.Why)
	case !r.OK:
		return false, fmt.Errorf("%w: rank %d: %s", ErrTransfer, rank, r.Why)
	}
	l.landed[rank] = true
	return l.Consumable(now), nil
}

// Consumable moves l to Consuming when every rank holds and landed: Done may go out.
func (l *Leader) Consumable(now time.Duration) bool {
	if l.state != Pulling || l.Opened.More {
		return false
	}
	for _, ok := range l.landed {
		if !ok {
			return false
		}
	}
	l.Phases.Check = max(l.enter(Consuming, now)-l.Phases.Move, 0)
	return true
}

// Consumed takes the source's answer: nil means that decision Admit may go out.
func (l *Leader) Consumed(a DoneAck) error {
	switch {
	case l.state != Consuming || a.Attempt != l.Attempt:
		return fmt.Errorf("%w: no Done is open", ErrEngine)
	case a.Status == OK:
		return nil
	case a.Status == Taken:
		return ErrTaken
	}
	return ErrGone
}

// Admit says that decision n (Admit) goes out.
func (l *Leader) Admit(n uint64, now time.Duration) {
	l.AdmitN = n
	l.Phases.Done = l.enter(Admitting, now)
}

// Applied takes what every rank applied and reports whether l ended admitted.
func (l *Leader) Applied(all uint64, now time.Duration) bool {
	if l.state != Admitting || all < l.AdmitN {
		return false
	}
	l.Phases.Admit = l.enter(Finished, now)
	return true
}

// Fail ends l. drop says that a Reserve is out, so Drop must follow and quiet be awaited.
func (l *Leader) Fail(err error, now time.Duration) (drop bool) {
	l.Err = err
	if l.state == Granting || l.state == Pulling || l.state == Consuming {
		l.enter(Draining, now)
		return true
	}
	l.enter(Finished, now)
	return false
}

// Busy are the ranks on which a ticket of l may be open.
func (l *Leader) Busy() (ranks []int) {
	for r, q := range l.quiet {
		if !q {
			ranks = append(ranks, r)
		}
	}
	return ranks
}

// Drained reports, once, that a dropped import is quiet on every rank.
func (l *Leader) Drained(now time.Duration) bool {
	if l.state != Draining {
		return false
	}
	if len(l.Busy()) > 0 {
		return false
	}
	l.enter(Finished, now)
	return true
}
