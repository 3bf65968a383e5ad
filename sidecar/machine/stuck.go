package machine

import (
	"slices"

	"github.com/batonkv/baton/sidecar/handoff"
	"github.com/batonkv/baton/transfer/staged"
)

// cancelReads asks the open copies of d to stop. They may not: only their end, or the
// exit of the mover that holds them, frees what they write.
func (m *Machine) cancelReads(d *handoff.Dest) {
	for _, r := range d.Reads {
		if _, open := m.tickets[r.Ticket]; open {
			m.do(CancelPull{r.Ticket})
		}
	}
	d.Cancelled(m.now)
}

// killAt is when the mover must end for d to become quiet.
func (m *Machine) killAt(d *handoff.Dest) (at Now, ok bool) {
	since, ok := d.Stuck()
	return since + m.cfg.KillAfter, ok
}

// killAdderAt is when the mover must end for sums of a gone engine's memory, which keep the
// next engine from attaching. Another mover makes them again.
func (m *Machine) killAdderAt() (at Now, ok bool) {
	return m.gone + m.cfg.KillAfter, m.unmap != 0 && len(m.adding) > 0
}

func (m *Machine) killAdder() bool {
	at, ok := m.killAdderAt()
	if ok = ok && at <= m.now; ok {
		m.gone = m.now
	}
	return ok
}

// killStuck asks for the end of movers whose copies or packs were asked to stop and have
// not, or whose sums do not end. Their exit ends every ticket, and those alone free memory; another mover starts. A
// mover that has not exited as long again is asked for again.
func (m *Machine) killStuck() {
	local := m.killPackers()
	local = m.killAdder() || local
	due := false
	for _, d := range m.dests {
		at, ok := m.killAt(d)
		due = due || ok && at <= m.now
	}
	if due {
		for _, d := range m.dests {
			d.Cancelled(m.now)
		}
	}
	if due || local {
		m.do(KillMover{})
	}
}

// killPackers asks for the end of the wire movers that keep a pin which is over, and
// reports whether the local mover does. Movers of other peer groups go on.
func (m *Machine) killPackers() (local bool) {
	if len(m.leaving) == 0 {
		return false
	}
	var due []staged.Packer
	for _, p := range m.sortedLeaving() {
		l := m.leaving[p]
		if m.now < l.since+m.cfg.KillAfter {
			continue
		}
		l.since = m.now
		due = append(due, m.grants.By(p)...)
	}
	for i, by := range due {
		switch {
		case by == staged.Packer{}:
			local = true
		case !slices.Contains(due[:i], by):
			m.do(KillMover{by})
		}
	}
	return local
}
