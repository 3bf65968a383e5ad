package machine

import "github.com/batonkv/baton/sidecar/handoff"

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

// killStuck asks for the mover's end when copies that were asked to stop have not. Its
// exit ends every ticket, and those alone free memory; another mover starts. A mover that
// has not exited as long again is asked for again.
func (m *Machine) killStuck() {
	due := false
	for _, d := range m.dests {
		at, ok := m.killAt(d)
		due = due || ok && at <= m.now
	}
	if !due {
		return
	}
	for _, d := range m.dests {
		d.Cancelled(m.now)
	}
	m.do(KillMover{})
}
