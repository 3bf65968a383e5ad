package handoff

import (
	"fmt"
	"time"

	"github.com/batonkv/baton/transfer/layout"
)

// DestState is the state of a Dest.
type DestState uint8

const (
	Reserving  DestState = iota + 1 // the engine has not answered; nothing is held
	Linking                         // blocks are held; nothing was submitted
	Moving                          // tickets are open, or their proofs are, or parts follow
	Good                            // every ticket is done and every pin was still held after it
	Bad                             // failed; tickets may still be open
	Quarantine                      // dropped by the leader; tickets may still be open
	Ended                           // terminal: admitted, released, or never held anything
)

var destNames = [...]string{Reserving: "reserving", Linking: "linking", Moving: "moving", Good: "good",
	Bad: "bad", Quarantine: "quarantine", Ended: "ended"}

func (s DestState) String() string {
	if int(s) < len(destNames) && s > 0 {
		return destNames[s]
	}
	return fmt.Sprintf("DestState(%d)", uint8(s))
}

// Read is one source rank that a Dest reads: by one ticket, or by one after the other while
// parts come.
type Read struct {
	Source PinInfo
	From   Member
	Pair   uint32 // of the plan
	Ticket uint64 // the newest; 0: not submitted
	Pulls  uint32 // tickets so far

	at     Reach    // what tickets read, the open one too
	open   bool     // the newest ticket has not settled
	whole  bool     // no ticket follows
	proved bool     // Checked, held, after the last ticket
	adding uint64   // ticket of the sums that are being made of what was read; 0: none
	finds  Compared // that some differ, until Blame
}

// done reports whether all of it is read.
func (r *Read) done() bool { return r.whole && !r.open }

// Waits reports whether something of it is to be read and no ticket does.
func (r *Read) Waits() bool { return !r.whole && !r.open }

// Dest is one rank's half of an import. Two facts are kept apart: being done (what
// the leader hears) and being quiet (no ticket can touch the blocks). Blocks go back
// to the engine only by the leader's ReleaseQuarantine, which follows every rank's quiet.
type Dest struct {
	D        Decision // the Reserve
	Reserved Reserved // the engine's answer
	Reads    []Read
	Bytes    int64

	state      DestState
	started    time.Duration
	quietSince time.Duration
	why        string
	differs    bool // why it is bad: its bytes are not the source's
	cancelled  bool // its tickets were asked to stop, at asked
	asked      time.Duration
	toldBad    bool // Landed went out while tickets were open
	toldQuiet  bool // Landed went out when none was
}

// NewDest starts with a Reserve decision.
func NewDest(d Decision) *Dest { return &Dest{D: d, state: Reserving} }

// State returns where d is.
func (d *Dest) State() DestState { return d.state }

// Quiet reports whether no ticket is open.
func (d *Dest) Quiet() bool {
	for i := range d.Reads {
		if d.Reads[i].open {
			return false
		}
	}
	return true
}

// Hold takes the engine's answer and what must be read for it.
func (d *Dest) Hold(r Reserved, reads []Read) {
	d.Reserved, d.Reads, d.state = r, reads, Linking
	for i := range reads {
		reads[i].at = All(r.Cached)
	}
	d.settle()
}

// settle makes d good once nothing is left to read, to prove or to compare.
func (d *Dest) settle() {
	for i := range d.Reads {
		if r := &d.Reads[i]; !r.proved || r.adding != 0 || r.finds.Differ > 0 {
			return
		}
	}
	if !d.D.More && (d.state == Linking || d.state == Moving) {
		d.state = Good
	}
}

// Grows takes a part: what may be read since the one before. One that came before changes
// nothing.
func (d *Dest) Grows(p Part) {
	if p.Part <= d.D.Part && d.D.Part > 0 || d.state > Moving {
		return
	}
	if err := continues(d.D.Extent, d.D.Tokens, d.D.Sources, p); err != nil {
		d.Fail(err.Error())
		return
	}
	d.D.Extent, d.D.Sources = p.Extent, grownPins(d.D.Sources, p.Pins)
	for i := range d.Reads {
		for _, s := range d.D.Sources {
			if s.Rank == d.Reads[i].From.Rank {
				d.Reads[i].Source = s
			}
		}
	}
	d.settle()
}

// Next is what read i is to pull at this instant; ok is false when it has nothing to do.
func (d *Dest) Next(i int) (p Piece, ok bool) {
	r := &d.Reads[i]
	if !r.Waits() || d.state != Linking && d.state != Moving {
		return Piece{}, false
	}
	return r.at.next(d.D.Extent, d.D.Tokens)
}

// Submitted says that a piece of read i is under way.
func (d *Dest) Submitted(i int, p Piece, ticket uint64, now time.Duration) {
	if d.started == 0 {
		d.started = now
	}
	r := &d.Reads[i]
	r.Ticket, r.open, r.at, r.whole = ticket, true, p.at, p.Whole
	r.Pulls++
	d.state = Moving
}

// Passed says that a piece of read i has no bytes. It returns the read to prove by Check, if
// there is one.
func (d *Dest) Passed(i int, p Piece) *Read {
	r := &d.Reads[i]
	r.at, r.whole = p.at, p.Whole
	if r.whole && r.Ticket != 0 {
		return r
	}
	r.proved = r.whole
	d.settle()
	return nil
}

// TicketDone settles a ticket. It returns the read to prove by Check, once it was the last of
// its source rank, or nil.
func (d *Dest) TicketDone(ticket uint64, bytes int64, why string, now time.Duration) *Read {
	for i := range d.Reads {
		r := &d.Reads[i]
		if r.Ticket != ticket || !r.open {
			continue
		}
		r.open = false
		d.quietSince = now
		d.Bytes += bytes
		if why != "" {
			d.Fail(why)
		}
		if d.state == Moving && r.whole {
			return r
		}
		return nil
	}
	return nil
}

// Check is the question about a read of d, once it is done.
func (d *Dest) Check(r *Read) Check {
	return Check{ID: d.D.ID, Attempt: d.D.Attempt, Pin: r.Source.Pin, Generation: r.Source.Generation}
}

// Proved takes a source rank's answer about a pin. A pin that is gone makes the
// bytes worthless.
func (d *Dest) Proved(from Member, c Checked) {
	if d.state != Moving || c.Check.ID != d.D.ID || c.Check.Attempt != d.D.Attempt {
		return
	}
	for i := range d.Reads {
		r := &d.Reads[i]
		if r.From == from && r.done() && r.Source.Pin == c.Check.Pin && r.Source.Generation == c.Check.Generation {
			if !c.Held {
				d.Fail(fmt.Sprintf("source rank %d no longer holds what was read", from.Rank))
				return
			}
			r.proved = true
		}
	}
	d.settle()
}

// Adding says that what r brought is added up under a ticket: d is not good before Added.
func (d *Dest) Adding(r *Read, ticket uint64) { r.adding = ticket }

// Compared is how many sums of a read were equal to the source's, how many were not, and how
// many cannot be compared. Why names one that differs.
type Compared struct {
	Equal, Differ, Skipped int64
	Why                    string
}

// Added is the end of that.
func (d *Dest) Added(ticket uint64, c Compared) {
	for i := range d.Reads {
		if r := &d.Reads[i]; r.adding == ticket {
			r.adding, r.finds = 0, c
		}
	}
	d.settle()
}

// Blame returns, once, a read whose pin was held after the last byte and whose sums differ all
// the same: d is bad. Of one that was not held, other sums say nothing: its memory may have
// been another's.
func (d *Dest) Blame() (Read, Compared, bool) {
	for i := range d.Reads {
		if r := &d.Reads[i]; r.proved && r.finds.Differ > 0 && (d.state == Moving || d.differs) {
			c := r.finds
			r.finds = Compared{}
			d.Differ(c.Why)
			return *r, c, true
		}
	}
	return Read{}, Compared{}, false
}

// Differ marks the import bad: the bytes are not those that the source summed up.
func (d *Dest) Differ(why string) {
	d.differs = d.differs || d.state == Linking || d.state == Moving
	d.Fail(why)
}

// Fail marks the import bad; tickets go on until they are done.
func (d *Dest) Fail(why string) {
	if d.state == Reserving || d.state == Linking || d.state == Moving {
		d.state, d.why = Bad, why
	}
}

// Drop is the leader's word: the import is over. Tickets to cancel are the open ones.
func (d *Dest) Drop() { d.state = Quarantine }

// Cancelled says that its open tickets were asked to stop, once more.
func (d *Dest) Cancelled(now time.Duration) {
	if d.state == Bad || d.state == Quarantine {
		d.cancelled, d.asked = true, now
	}
}

// Stuck reports whether a ticket that was asked to stop is open, and since when. Time
// frees nothing of it.
func (d *Dest) Stuck() (since time.Duration, ok bool) { return d.asked, d.cancelled && !d.Quiet() }

// End is Admit, ReleaseQuarantine, or an engine that holds nothing.
func (d *Dest) End() { d.state = Ended }

// Report returns what the leader should hear, once per change: Landed good; or bad,
// and again when a bad or dropped import becomes quiet.
func (d *Dest) Report(rank layout.Rank) (Landed, bool) {
	l := Landed{ID: d.D.ID, Attempt: d.D.Attempt, N: d.D.N, OK: d.state == Good, Quiet: d.Quiet(), Why: d.why, Differs: d.differs,
		Bytes: d.Bytes, Elapsed: max(d.quietSince-d.started, 0)}
	switch {
	case d.state != Good && d.state != Bad && d.state != Quarantine:
	case l.Quiet && !d.toldQuiet:
		d.toldQuiet = true
		return l, true
	case d.state == Bad && !l.Quiet && !d.toldBad:
		d.toldBad = true
		return l, true
	}
	return l, false
}

// Restate makes the next Report say again what was said: to a leader that may have
// missed it.
func (d *Dest) Restate() { d.toldBad, d.toldQuiet = false, false }

// Proved reports whether the pin was seen held after the read.
func (r Read) Proved() bool { return r.proved }
