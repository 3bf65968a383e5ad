package machine

import (
	"errors"
	"testing"
	"time"

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
