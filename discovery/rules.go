package discovery

import "fmt"

// Replaces says whether a starting sidecar with record r may replace held, which it
// finds under its key: held is its own from before, or of a process of this host and PID
// namespace that alive says is dead. A nil alive takes every process for alive.
func (r Record) Replaces(held Record, alive func(pid int32, started uint64) bool) bool {
	if held.Incarnation == r.Incarnation {
		return true
	}
	return held.Host == r.Host && held.PIDSpace == r.PIDSpace && alive != nil && !alive(held.PID, held.Started)
}

// Succeeds says whether r may follow old in an update: the name and the incarnation
// are for life.
func (r Record) Succeeds(old Record) error {
	if r.Name() != old.Name() || r.Incarnation != old.Incarnation {
		return bad("update of %s, incarnation %x, with %s, incarnation %x: register that one instead",
			old.Name(), old.Incarnation, r.Name(), r.Incarnation)
	}
	return nil
}

// Taken is the ErrTaken of a starting sidecar that gave up, because of cause, while r
// held its key.
func (r Record) Taken(cause error) error {
	return fmt.Errorf("%w: %s is held by incarnation %x, pid %d at %s: stop that sidecar, wait until its registration expires, or choose another rank: %w",
		ErrTaken, r.Name(), r.Incarnation, r.PID, r.Addr, cause)
}
