package machine

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/batonkv/baton/discovery"
	"github.com/batonkv/baton/sidecar/handoff"
)

// What a broken session took with it is known at once, not when a deadline ends.
func TestSessionTakesAnswers(t *testing.T) {
	for name, c := range map[string]struct {
		drop func(_, _ handoff.Member, _ handoff.PeerMessage) bool
		rank int
		want error
	}{
		"opened":   {dropType[handoff.Opened], 0, handoff.ErrPeer},
		"done":     {dropType[handoff.DoneAck], 0, handoff.ErrPeer},
		"checked":  {dropType[handoff.Checked], 1, handoff.ErrTransfer},
		"buffers":  {dropType[handoff.Buffers], 1, handoff.ErrTransfer},
		"geometry": {dropType[handoff.Geometry], 0, nil},
	} {
		t.Run(name, func(t *testing.T) {
			w := pair(t, 2, 1)
			man := w.export("p", "r1", 40)
			w.drop = c.drop
			call := w.importStart("d", man)
			w.run()
			w.drop = nil
			w.cut(w.at("d", 0).self, w.at("p", c.rank).self)
			w.run()
			if c.want == nil {
				w.advance(time.Second) // a question that may be asked again is
			}
			if r := w.ended(call); !errors.Is(r.Err, c.want) || (c.want == nil) != (r.Err == nil) {
				t.Fatal(r.Err)
			}
		})
	}
}

func TestAbortWithdraws(t *testing.T) {
	w := pair(t, 2, 1)
	w.onPull = func(*node, Pull) error { return errStuck }
	man := w.export("p", "r1", 40)
	c := w.importStart("d", man)
	w.run()
	d := w.at("d", 0)
	d.step(Abort{Call: 77, ID: man.ID})
	w.run()
	if w.ended(77).Err != nil || !errors.Is(w.ended(c).Err, handoff.ErrAborted) || w.sent["Withdraw"] != 1 {
		t.Fatalf("%v, %v, %d withdrawn", w.ended(77).Err, w.ended(c).Err, w.sent["Withdraw"])
	}
	if d.step(Abort{Call: 78, ID: man.ID}); !errors.Is(w.ended(78).Err, handoff.ErrUnknown) {
		t.Fatalf("aborted again: %v", w.ended(78).Err)
	}
	d.step(EngineDown{d.eng.session}) // copies into its memory are still under way
	d.step(FromEngine{991, d.eng.attach})
	if n := len(d.closed); n == 0 || !errors.Is(d.closed[n-1], handoff.ErrAttach) {
		t.Fatalf("attached under open copies: %v", d.closed)
	}
}

// TestAbortEndsItsOwn: an abort that names a key ends no import of another under the same id,
// and finds its own behind it.
func TestAbortEndsItsOwn(t *testing.T) {
	for _, foreignFirst := range []bool{true, false} {
		w := pair(t, 2, 1)
		w.drop = dropType[handoff.Open]
		man := w.export("p", "r1", 40)
		foreign := man
		foreign.Label, foreign.Key[0] = "r2", ^man.Key[0]
		calls := map[handoff.Key]Call{}
		for _, m := range []handoff.Manifest{man, foreign} {
			calls[m.Key] = w.importStart("d", m)
			w.run()
		}
		d, first, last := w.at("d", 0), man, foreign
		if foreignFirst {
			first, last = foreign, man
		}
		d.step(Abort{Call: 77, ID: man.ID, Key: first.Key})
		w.run()
		if w.ended(77).Err != nil || !errors.Is(w.ended(calls[first.Key]).Err, handoff.ErrAborted) {
			t.Fatalf("%v, %v", w.ended(77).Err, w.ended(calls[first.Key]).Err)
		}
		if _, ended := w.calls[calls[last.Key]]; ended {
			t.Fatalf("the other import ended too, foreign first: %v", foreignFirst)
		}
		if d.step(Abort{Call: 78, ID: man.ID, Key: first.Key}); !errors.Is(w.ended(78).Err, handoff.ErrUnknown) {
			t.Fatalf("aborted again: %v", w.ended(78).Err)
		}
		if d.step(Abort{Call: 79, ID: man.ID}); w.ended(79).Err != nil {
			t.Fatalf("without a key: %v", w.ended(79).Err)
		}
	}
}

func TestPinsEndWithTheirEngine(t *testing.T) {
	w := pair(t, 2, 1)
	w.export("p", "r1", 40)
	p1 := w.at("p", 1)
	p1.step(EngineDown{p1.eng.session})
	if len(p1.m.pins) != 0 {
		t.Fatalf("%d pins of an engine that is gone", len(p1.m.pins))
	}
}

// An export that its leader could not hear of is given back when the rank joins again.
func TestExportDuringABreak(t *testing.T) {
	w := pair(t, 2, 1)
	p0, p1 := w.at("p", 0), w.at("p", 1)
	w.cut(p0.self, p1.self)
	p1.step(FromEngine{p1.eng.session, handoff.Export{Label: "x", Tokens: 16, Position: 16, Blocks: []int32{0}}})
	w.advance(time.Second)
	for rank := range 2 { // in the group's order: rank 0, which never exported it, ignores it
		if n := w.at("p", rank); len(n.eng.freed) != 1 || len(n.eng.unpinned) != 0 || len(n.m.pins) != 0 {
			t.Fatalf("rank %d: %d freed, %d given back, %d pins", rank, len(n.eng.freed), len(n.eng.unpinned), len(n.m.pins))
		}
	}
}

// What a rank pins under a label whose Free it has applied is freed anew, also when the
// leader hears of the one and the other by the same statement.
func TestExportAfterAFreeThatWasNotHeard(t *testing.T) {
	w := pair(t, 2, 1)
	p0, p1 := w.at("p", 0), w.at("p", 1)
	man := w.export("p", "x", 16)
	w.drop = func(from, _ handoff.Member, msg handoff.PeerMessage) bool {
		_, applied := msg.(handoff.RankApplied)
		return applied && from == p1.self
	}
	p0.step(Release{Call: 1, ID: man.ID, Key: man.Key})
	w.run()
	w.drop = nil
	w.cut(p0.self, p1.self)
	p1.step(FromEngine{p1.eng.session, handoff.Export{Label: "x", Tokens: 16, Position: 16, Blocks: []int32{0}}})
	w.advance(time.Second)
	for rank := range 2 {
		if n := w.at("p", rank); len(n.eng.freed) != 2 || len(n.m.pins) != 0 {
			t.Fatalf("rank %d: %d freed, %d pins", rank, len(n.eng.freed), len(n.m.pins))
		}
	}
}

// A pin that crosses the Free of its label makes no new hand-off.
func TestPinnedCrossesFree(t *testing.T) {
	w := pair(t, 2, 1)
	p0, p1 := w.at("p", 0), w.at("p", 1)
	p0.step(FromEngine{p0.eng.session, handoff.Announce{Label: "r"}})
	man := *p0.notices[len(p0.notices)-1].Manifest
	x := handoff.Export{Label: "r", Tokens: 16, Position: 16, Blocks: []int32{0}}
	p0.step(FromEngine{p0.eng.session, x})
	w.drop = func(from, _ handoff.Member, msg handoff.PeerMessage) bool {
		if _, ok := msg.(handoff.Pinned); ok && from == p1.self { // released while it is on its way
			p0.step(Release{Call: 1, ID: man.ID, Key: man.Key})
		}
		return false
	}
	p1.step(FromEngine{p1.eng.session, x})
	w.run()
	if len(p0.m.lead.labels) != 0 || len(p0.m.pins)+len(p1.m.pins) != 0 {
		t.Fatalf("labels %v, pins %d and %d", p0.m.lead.labels, len(p0.m.pins), len(p1.m.pins))
	}
}

// Room that comes back while a Reserve is answered Full is not forgotten.
func TestFreedCrossesFull(t *testing.T) {
	w := pair(t, 1, 2)
	man := w.export("p", "r1", 16)
	for rank := range 2 {
		w.at("d", rank).eng.full = true
	}
	hold := true
	w.drop = func(_, _ handoff.Member, msg handoff.PeerMessage) bool {
		if r, ok := msg.(handoff.RankReserved); ok && hold && r.Reserved.Full {
			hold = false
			d := w.at("d", 0)
			for rank := range 2 {
				w.at("d", rank).eng.full = false
			}
			d.step(FromEngine{d.eng.session, handoff.Freed{Blocks: 1}})
		}
		return false
	}
	c := w.importStart("d", man)
	w.run()
	if r := w.ended(c); r.Err != nil {
		t.Fatal(r.Err)
	}
}

// A link whose opening was under way when the mover died may be the dead mover's: it is
// closed, and the buffers are asked for anew.
func TestLinkOfADeadMover(t *testing.T) {
	w := pair(t, 1, 1)
	man := w.export("p", "r1", 40)
	d, p := w.at("d", 0), w.at("p", 0)
	var card handoff.PeerMessage
	w.drop = func(_, _ handoff.Member, msg handoff.PeerMessage) bool {
		if b, ok := msg.(handoff.Buffers); ok {
			card = b
			return true
		}
		return false
	}
	w.importStart("d", man)
	w.run()
	var got []string
	for _, e := range []Event{FromPeer{p.self, card}, LinksLost{}, Linked{Peer: p.self}} {
		for _, f := range d.m.Step(w.now, e) {
			switch f := f.(type) {
			case OpenLink, CloseLink, Pull:
				got = append(got, fmt.Sprintf("%T", f))
			case ToPeer:
				got = append(got, fmt.Sprintf("%T", f.Msg))
			}
		}
	}
	if want := []string{"machine.OpenLink", "machine.CloseLink", "handoff.WantBuffers"}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// A leader that cannot know sends a decision again: the rank takes it once, and no
// session ends over it.
func TestDecisionIsTakenOnce(t *testing.T) {
	w := pair(t, 2, 1)
	man := w.export("p", "r1", 40)
	p0, p1 := w.at("p", 0), w.at("p", 1)
	var free handoff.PeerMessage
	w.drop = func(_, to handoff.Member, msg handoff.PeerMessage) bool {
		if d, ok := msg.(handoff.Decision); ok && to == p1.self {
			free = d
		}
		return false
	}
	w.importStart("d", man)
	w.run()
	if free == nil || len(p1.eng.freed) != 1 {
		t.Fatalf("%v, %d freed", free, len(p1.eng.freed))
	}
	if out := p1.m.Step(w.now, FromPeer{p0.self, free}); len(out) != 0 {
		t.Errorf("taken again: %v", out)
	}
}

// What was planned with a process that is gone is not kept for ever: its session ends
// before discovery drops it, or after.
func TestGoneGroupsAreForgotten(t *testing.T) {
	for _, first := range []string{"session", "record"} {
		w := pair(t, 1, 1)
		d, p := w.at("d", 0), w.at("p", 0)
		w.importStart("d", w.export("p", "r1", 40))
		w.run()
		cut := func() { w.cut(d.self, p.self); w.run() }
		hide := func() {
			w.records = slices.DeleteFunc(w.records, func(r discovery.Record) bool { return r.Group == "p" })
			d.step(Found{slices.Clone(w.records)})
			w.run()
		}
		if len(d.m.lead.groups) != 1 {
			t.Fatalf("%d groups", len(d.m.lead.groups))
		}
		if first == "session" {
			cut()
			hide()
		} else {
			hide()
			if len(d.m.lead.groups) != 1 {
				t.Error("a group with a session is forgotten")
			}
			cut()
		}
		if len(d.m.lead.groups) != 0 {
			t.Errorf("%s ended first: %d groups are kept", first, len(d.m.lead.groups))
		}
	}
}
