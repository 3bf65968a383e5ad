package handoff

import "time"

// renewal is the extension that every rank is asked to acknowledge. The lease moves when
// the last one did: a rank that missed the word would free what the leader still promises.
type renewal struct {
	n       uint64
	to      time.Duration // what the deadline becomes
	missing int           // ranks that have not acknowledged n
	acked   []bool        // by rank
}

// Lease starts the lease; s is Complete. It lasts term, is prolonged by as much again and
// again, and ends at hold whatever is asked: with hold no longer than term it is never
// prolonged. It returns the opens that waited: those that read no parts wait on.
func (s *Source) Lease(now, term, hold time.Duration) []Open {
	s.state = Leasing
	s.begin()
	s.term, s.until = term, now+hold
	s.deadline = min(now+term, s.until)
	s.renew = now + term/2
	w := s.waiting
	s.waiting = nil
	return w
}

// Close follows the last part: the lease ends at hold from now, or where Lease said if that
// is earlier. It returns the opens that wait.
func (s *Source) Close(now, hold time.Duration) []Open {
	s.until = min(s.until, now+hold)
	s.deadline = min(s.deadline, s.until)
	w := s.waiting
	s.waiting = nil
	return w
}

// Renews is when the next extension is due; ok is false when none will be.
func (s *Source) Renews() (at time.Duration, ok bool) {
	return s.renew, s.state == Leasing && s.open.missing == 0 && s.deadline < s.until
}

// Extend starts the next extension if it is due: what every rank must acknowledge, and
// for how long from now the leader's lease lasts then. One that is not acknowledged ends
// the lease where it stood.
func (s *Source) Extend(now time.Duration) (n uint64, hold time.Duration, ok bool) {
	if at, due := s.Renews(); !due || now < at || now >= s.deadline {
		return 0, 0, false
	}
	to := min(now+s.term, s.until)
	s.open = renewal{n: s.open.n + 1, to: to, missing: len(s.pins), acked: make([]bool, len(s.pins))}
	return s.open.n, to - now, true
}

// Extended takes a rank's acknowledgement and reports whether it answers the open
// extension. The last one moves the lease, unless the lease is over by now.
func (s *Source) Extended(now time.Duration, rank int, e Extended) bool {
	o := &s.open
	if s.state != Leasing || now >= s.deadline || e.N != o.n || o.missing == 0 || rank < 0 || rank >= len(s.pins) ||
		s.pins[rank].Pin != e.Pin || o.acked[rank] {
		return false
	}
	o.acked[rank] = true
	if o.missing--; o.missing == 0 {
		s.deadline = min(o.to, s.until) // Close may have come since it was asked for
		s.renew = s.deadline - s.term/2
	}
	return true
}
