package machine

import (
	"errors"
	"testing"
	"time"

	"github.com/batonkv/baton/sidecar/handoff"
)

// exportHeld exports label with a MaxHold.
func (w *world) exportHeld(group, label string, hold time.Duration) handoff.Manifest {
	w.change = func(e *handoff.Export) { e.MaxHold = hold }
	defer func() { w.change = nil }()
	return w.export(group, label, 40)
}

// held is the leader's lease and the ranks' pins, of the only hand-off of group p.
func (w *world) leases(t *testing.T) (lease Now, pins []Now) {
	t.Helper()
	for _, id := range w.at("p", 0).m.lead.labels {
		lease = w.at("p", 0).m.lead.sources[id].Deadline()
	}
	for r := range 2 {
		for _, p := range w.at("p", r).m.pins {
			pins = append(pins, p.Deadline)
		}
	}
	return lease, pins
}

// A lease is renewed half-way, up to what the export asked; a rank frees later than its
// leader, always by the margin.
func TestLeaseIsRenewed(t *testing.T) {
	w := pair(t, 2, 1)
	man := w.exportHeld("p", "r1", 100*time.Second)
	for w.now < 99*time.Second {
		w.advance(time.Second)
		lease, pins := w.leases(t)
		if want := min(w.now+30*time.Second, 100*time.Second); lease > want || lease < min(w.now+15*time.Second, 100*time.Second) {
			t.Fatalf("at %v the lease is to %v", w.now, lease)
		}
		for _, p := range pins {
			if len(pins) != 2 || p < lease+5*time.Second {
				t.Fatalf("at %v the lease is to %v, pins to %v", w.now, lease, pins)
			}
		}
	}
	if n := w.sent["Extend"]; n != w.sent["Extended"] || n < 4 || n > 6 {
		t.Errorf("%d Extend, %d Extended", n, w.sent["Extended"])
	}
	c := w.importStart("d", man)
	w.run()
	if r := w.ended(c); r.Err != nil {
		t.Fatal(r.Err)
	}
}

func TestMaxHoldEndsTheLease(t *testing.T) {
	for _, c := range []struct{ asked, ends time.Duration }{
		{0, 30 * time.Second}, {20 * time.Second, 20 * time.Second}, {70 * time.Second, 70 * time.Second}, {time.Hour, 5 * time.Minute}} {
		w := pair(t, 2, 1)
		w.exportHeld("p", "r1", c.asked)
		for len(w.at("p", 1).eng.freed) == 0 && w.now < time.Hour {
			w.advance(time.Second)
		}
		if w.now != c.ends {
			t.Errorf("asked %v, ended at %v, want %v", c.asked, w.now, c.ends)
		}
	}
}

// A renewal that one rank does not acknowledge ends the lease where it stood, also when
// the acknowledgement comes after that.
func TestRenewalUnanswered(t *testing.T) {
	w := pair(t, 2, 1)
	man := w.exportHeld("p", "r1", 100*time.Second)
	var late handoff.PeerMessage
	w.drop = func(from, _ handoff.Member, msg handoff.PeerMessage) bool {
		if _, ok := msg.(handoff.Extended); ok && from == w.at("p", 1).self {
			late = msg
			return true
		}
		return false
	}
	w.advance(15 * time.Second)
	if late == nil {
		t.Fatal("no renewal at half the lease")
	}
	w.drop = nil
	w.now = 30 * time.Second
	p0 := w.at("p", 0)
	p0.step(FromPeer{w.at("p", 1).self, late}) // before the Tick that ends the lease
	w.run()
	if len(p0.eng.freed) != 1 || p0.refused[len(p0.refused)-1].Why != Unmatched {
		t.Fatalf("%d frees, refused %v", len(p0.eng.freed), p0.refused)
	}
	c := w.importStart("d", man)
	w.run()
	if r := w.ended(c); !errors.Is(r.Err, handoff.ErrGone) {
		t.Fatal(r.Err)
	}
}

// A rank that does not hold a pin does not acknowledge for it, and the word is counted.
func TestExtendOfNothing(t *testing.T) {
	w := pair(t, 2, 1)
	man := w.exportHeld("p", "r1", 100*time.Second)
	p1 := w.at("p", 1)
	for _, e := range []handoff.Extend{{ID: man.ID, Pin: 99, N: 1, Hold: time.Hour}, {ID: handoff.ID{N: 5}, Pin: p1.pinOf("r1"), N: 1, Hold: time.Hour}} {
		was := len(p1.refused)
		p1.step(FromPeer{w.at("p", 0).self, e})
		if len(p1.refused) != was+1 || w.sent["Extended"] != 0 {
			t.Errorf("%+v: refused %v, %d acknowledged", e, p1.refused, w.sent["Extended"])
		}
	}
	_, pins := w.leases(t)
	if pins[1] != 35*time.Second {
		t.Errorf("pin to %v", pins[1])
	}
	p1.step(FromPeer{w.at("d", 0).self, handoff.Extend{ID: man.ID, Pin: p1.pinOf("r1"), N: 1, Hold: time.Hour}})
	if got := p1.refused[len(p1.refused)-1].Why; got != NotMember {
		t.Errorf("Extend of a stranger: %v", got)
	}
}

// A leader that hears of a pin only after its rank freed it by itself starts a lease that
// nobody covers: the rank's answer to Leased ends it.
func TestLeaseOfAPinThatIsNoMore(t *testing.T) {
	w := pair(t, 2, 1)
	p0, p1 := w.at("p", 0), w.at("p", 1)
	e := handoff.Export{Label: "r1", Blocks: []int32{0}, Slot: 0, Tokens: 8, Position: 8}
	var late handoff.PeerMessage
	w.drop = func(from, _ handoff.Member, msg handoff.PeerMessage) bool {
		if _, ok := msg.(handoff.Pinned); ok && from == p1.self {
			late = msg
			return true
		}
		return false
	}
	p1.step(FromEngine{p1.eng.session, e})
	w.run()
	w.drop = nil
	w.advance(305 * time.Second)
	if late == nil || len(p1.m.pins) != 0 {
		t.Fatalf("after max-hold and the margin: %v, %d pins", late, len(p1.m.pins))
	}
	p0.step(FromEngine{p0.eng.session, e})
	p0.step(FromPeer{p1.self, late})
	w.run()
	if len(p0.m.lead.labels) != 0 || len(p0.m.pins) != 0 || p0.refusals("r1") != 1 {
		t.Errorf("%d labels, %d pins, %d refusals: %+v", len(p0.m.lead.labels), len(p0.m.pins), p0.refusals("r1"), p0.eng.got)
	}
}

// refusals counts how often the engine heard that label failed.
func (n *node) refusals(label string) (c int) {
	for _, msg := range n.eng.got {
		if f, ok := msg.(handoff.Failed); ok && f.Label == label {
			c++
		}
	}
	return c
}
