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
	Linking                         // blocks are held; a link to a source rank is missing
	Moving                          // tickets are open, or their proofs are
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

// Read is one source rank that a Dest reads.
type Read struct {
	Source PinInfo
	From   Member
	Pair   uint32 // of the plan
	Ticket uint64 // 0: not submitted
	done   bool   // ticket settled
	proved bool   // Checked, held, after done
}

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
		if d.Reads[i].Ticket != 0 && !d.Reads[i].done {
			return false
		}
	}
	return true
}

// Hold takes the engine's answer and what must be read for it.
func (d *Dest) Hold(r Reserved, reads []Read) {
	d.Reserved, d.Reads, d.state = r, reads, Linking
	if len(reads) == 0 {
		d.state = Good
	}
}

// Submitted says that read i is under way.
func (d *Dest) Submitted(i int, ticket uint64, now time.Duration) {
	if d.started == 0 {
		d.started = now
	}
	d.Reads[i].Ticket = ticket
	d.state = Moving
}

// TicketDone settles a ticket. It returns the read to prove by Check, or nil.
func (d *Dest) TicketDone(ticket uint64, bytes int64, why string, now time.Duration) *Read {
	for i := range d.Reads {
		r := &d.Reads[i]
		if r.Ticket != ticket || r.done {
			continue
		}
		r.done = true
		d.quietSince = now
		d.Bytes += bytes
		if why != "" {
			d.Fail(why)
		}
		if d.state == Moving {
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
	good := true
	for i := range d.Reads {
		r := &d.Reads[i]
		if r.From == from && r.done && r.Source.Pin == c.Check.Pin && r.Source.Generation == c.Check.Generation {
			if !c.Held {
				d.Fail(fmt.Sprintf("source rank %d no longer holds what was read", from.Rank))
				return
			}
			r.proved = true
		}
		good = good && r.proved
	}
	if good {
		d.state = Good
	}
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
	l := Landed{ID: d.D.ID, Attempt: d.D.Attempt, N: d.D.N, OK: d.state == Good, Quiet: d.Quiet(), Why: d.why,
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
