package machine

import (
	"fmt"

	"github.com/batonkv/baton/sidecar/handoff"
)

// fenced: the engine's steps behind fences up to N have ended. What waited for that goes
// on: pins are stated to the leader, and copies into reserved memory are submitted.
func (m *Machine) fenced(f handoff.Fenced) {
	e := m.engine
	if f.N < e.fenced {
		m.do(CloseEngine{e.session, fmt.Errorf("%w: Fenced %d after %d: fences rise", handoff.ErrEngine, f.N, e.fenced)})
		return
	}
	e.fenced = f.N
	for _, p := range m.sortedPins() {
		m.statePin(p)
	}
	m.submitReads()
}

// clear reports whether no step behind fence n can write its memory any more.
func (m *Machine) clear(n uint64) bool { return n <= m.engine.fenced }

// statePin tells the leader of a pin, or what a part adds to it, whose memory stands still;
// of all of it once it is summed up.
func (m *Machine) statePin(p *handoff.Pin) {
	for {
		msg, ok := p.Clear(m.engine.fenced)
		if !ok {
			return
		}
		if msg.More || !m.sumPin(p, msg) {
			m.toLeader(msg)
		}
	}
}
