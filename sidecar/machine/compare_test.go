package machine

import (
	"errors"
	"testing"

	"github.com/batonkv/baton/sidecar/handoff"
)

func (n *node) importer() handoff.Importer {
	return handoff.Importer{Group: n.self.Group, Instance: n.eng.attach.Instance, Leader: n.self.Incarnation}
}

// settle ends every copy of n that never settles by itself.
func (n *node) settle(err error) {
	for tk := range n.open {
		delete(n.open, tk)
		n.step(PullDone{Ticket: tk, Err: err})
	}
	n.w.run()
}

// A leader speaks for itself alone, and the source alone says what was consumed.
func TestImporterIsTheSender(t *testing.T) {
	w := pair(t, 1, 1)
	w.group("e", 1)
	p, d, e := w.at("p", 0), w.at("d", 0), w.at("e", 0)
	man := w.export("p", "r1", 16)
	w.onPull = func(*node, Pull) error { return errStuck }
	w.importStart("d", man)
	w.run()
	a := d.m.lead.imports[0].Attempt
	for _, msg := range []handoff.PeerMessage{
		handoff.Open{ID: man.ID, Key: man.Key, Importer: d.importer(), Attempt: a + 1},
		handoff.Done{ID: man.ID, Importer: d.importer(), Attempt: a},
		handoff.Withdraw{ID: man.ID, Importer: d.importer(), Attempt: a},
	} {
		was := len(p.refused)
		if p.step(FromPeer{e.self, msg}); len(p.refused) != was+1 || p.refused[was].Why != Importer {
			t.Errorf("%T for another group is taken: %v", msg, p.refused)
		}
	}
	w.drop = dropType[handoff.DoneAck]
	d.settle(nil)
	d.step(FromPeer{e.self, handoff.DoneAck{ID: man.ID, Attempt: a, Status: handoff.OK}})
	w.run()
	if len(d.eng.admitted) != 0 || len(d.refused) != 1 {
		t.Errorf("another group's DoneAck: %d admits, refused %v", len(d.eng.admitted), d.refused)
	}
}

// Every rank and the source hold the plan against their own.
func TestPlansAreCompared(t *testing.T) {
	w := pair(t, 1, 2)
	p, d, d1 := w.at("p", 0), w.at("d", 0), w.at("d", 1)
	var opened handoff.Opened
	var ack handoff.DoneAck
	w.drop = func(_, to handoff.Member, msg handoff.PeerMessage) bool {
		switch x := msg.(type) {
		case handoff.Opened:
			opened = x
		case handoff.DoneAck:
			ack = x
		case handoff.Decision:
			if to == d1.self && x.Kind == handoff.Reserve {
				x.Plan[0] ^= 1
				d1.step(FromPeer{d.self, x})
				return true
			}
		}
		return false
	}
	man := w.export("p", "r1", 40)
	c := w.importStart("d", man)
	w.run()
	if r := w.ended(c); !errors.Is(r.Err, handoff.ErrTransfer) || len(d1.eng.admitted) != 0 {
		t.Errorf("a rank reads by another plan: %v", r.Err)
	}
	p.step(FromPeer{d.self, handoff.Open{ID: man.ID, Key: man.Key, Importer: d.importer(), Attempt: 9, Plan: handoff.Digest{9}}})
	p.step(FromPeer{d.self, handoff.Done{ID: man.ID, Importer: d.importer(), Attempt: 9}})
	w.run()
	if opened.Attempt != 9 || opened.Status != handoff.Refused || len(opened.Pins) != 0 || ack.Attempt != 9 || ack.Status != handoff.Gone {
		t.Errorf("the source opens for another plan: %+v, then %+v", opened, ack)
	}
}

// A rank that no leader reaches frees by itself: at its own deadline, a margin later.
func TestRankDeadline(t *testing.T) {
	w := pair(t, 2, 1)
	w.export("p", "r1", 40)
	p1 := w.at("p", 1)
	w.drop = func(_, to handoff.Member, _ handoff.PeerMessage) bool { return to == p1.self }
	w.advance(p1.m.cfg.Lease + p1.m.cfg.Margin - 1)
	if len(p1.m.pins) != 1 || len(p1.eng.unpinned) != 0 {
		t.Fatalf("before: %d pins, %d given back", len(p1.m.pins), len(p1.eng.unpinned))
	}
	w.advance(1)
	if len(p1.m.pins) != 0 || len(p1.eng.unpinned) != 1 {
		t.Fatalf("after: %d pins, %d given back", len(p1.m.pins), len(p1.eng.unpinned))
	}
}

// A rank does not give back blocks that its own copies write, whatever its leader says.
func TestReleaseUnderCopies(t *testing.T) {
	w := pair(t, 1, 2)
	w.onPull = func(*node, Pull) error { return errStuck }
	w.importStart("d", w.export("p", "r1", 40))
	w.run()
	d1 := w.at("d", 1)
	n := d1.m.engine.decided
	d1.step(FromPeer{w.at("d", 0).self, handoff.Decision{N: n + 1, Kind: handoff.ReleaseQuarantine, Of: n}})
	if len(d1.closed) != 1 || !errors.Is(d1.closed[0], handoff.ErrEngine) {
		t.Fatalf("closed %v", d1.closed)
	}
}

// A claim that waits for its importer's geometry can be withdrawn.
func TestWithdrawWhileWaiting(t *testing.T) {
	w := pair(t, 1, 1)
	p, d := w.at("p", 0), w.at("d", 0)
	w.drop = func(_, to handoff.Member, msg handoff.PeerMessage) bool {
		_, ok := msg.(handoff.Geometry)
		return ok && to == p.self
	}
	man := w.export("p", "r1", 16)
	w.importStart("d", man)
	w.run()
	before := len(p.m.lead.opens[d.self])
	d.step(Abort{Call: 77, ID: man.ID})
	w.run()
	if after := len(p.m.lead.opens[d.self]); before != 1 || after != 0 {
		t.Fatalf("%d claims wait, then %d", before, after)
	}
}
