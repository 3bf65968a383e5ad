package machine

import (
	"errors"
	"strings"
	"testing"

	"github.com/batonkv/baton/sidecar/handoff"
)

func (w *world) reset(group string, rank int) Call {
	w.lastC++
	w.at(group, rank).step(Reset{Call: w.lastC})
	return w.lastC
}

// A reset gives everything up, frees nothing that may be touched, says what that is, and
// is answered quiet when it has come to its end by itself.
func TestReset(t *testing.T) {
	w := pair(t, 2, 2)
	w.onPull = func(n *node, _ Pull) error {
		if n.self.Rank == 1 {
			return errStuck
		}
		return nil
	}
	a, b := w.importStart("d", w.export("p", "r1", 40)), w.importTokens("d", w.export("p", "r2", 40), append([]int32{1}, make([]int32, 39)...))
	w.run()
	said := func(c Call, words ...string) {
		t.Helper()
		err := w.ended(c).Err
		for _, word := range words {
			if !errors.Is(err, handoff.ErrQuiet) || !strings.Contains(err.Error(), word) {
				t.Errorf("%v: does not say %q", err, word)
			}
		}
	}
	said(w.reset("d", 0), `"r1"`, `"r2"`, "on rank 1", "ranks 0 and 1 have not applied")
	w.run()
	if !errors.Is(w.ended(a).Err, handoff.ErrAborted) || !errors.Is(w.ended(b).Err, handoff.ErrAborted) {
		t.Errorf("imports ended %v, %v", w.ended(a).Err, w.ended(b).Err)
	}
	said(w.reset("d", 0), `"r1"`, "on rank 1")
	d1 := w.at("d", 1)
	if len(d1.eng.released) != 0 {
		t.Error("a reset frees what a copy may write")
	}
	for tk := range d1.open {
		d1.step(PullDone{Ticket: tk, Err: errors.New("ended")})
	}
	w.run()
	if err := w.ended(w.reset("d", 0)).Err; err != nil || len(d1.eng.released) != 2 {
		t.Errorf("quiet: %v, %d released", err, len(d1.eng.released))
	}
	said(w.reset("p", 0), "ranks 0 and 1 have not applied")
	w.run()
	if err := w.ended(w.reset("p", 0)).Err; err != nil || len(w.at("p", 1).eng.freed) != 2 || len(w.at("p", 1).m.pins) != 0 {
		t.Errorf("source: %v, %d freed, %d pins", err, len(w.at("p", 1).eng.freed), len(w.at("p", 1).m.pins))
	}
	if err := w.ended(w.reset("p", 1)).Err; !errors.Is(err, handoff.ErrNotReady) {
		t.Errorf("rank 1: %v", err)
	}
}

// What is decided is not taken back: a reset waits for it.
func TestResetWaitsForAdmit(t *testing.T) {
	w := pair(t, 1, 2)
	w.drop = dropType[handoff.RankApplied]
	c := w.importStart("d", w.export("p", "r1", 40))
	w.run()
	r := w.ended(w.reset("d", 0)).Err
	if _, ended := w.calls[c]; ended || !errors.Is(r, handoff.ErrQuiet) || !strings.Contains(r.Error(), "is admitted by decision 2") {
		t.Fatalf("import ended %v, reset %v", ended, r)
	}
}

// Without every rank nothing can be said to be quiet: neither when a session within the
// group broke, nor when the leader lost its engine's and another rank still copies, nor in
// a leader's second life before the ranks have said what they hold.
func TestResetWithoutRoster(t *testing.T) {
	w := pair(t, 1, 2)
	quiet := func(when string) {
		t.Helper()
		if err := w.ended(w.reset("d", 0)).Err; !errors.Is(err, handoff.ErrQuiet) || !strings.Contains(err.Error(), "not every rank is here") {
			t.Errorf("%s: %v", when, err)
		}
	}
	d := w.at("d", 0)
	w.cut(d.self, w.at("d", 1).self)
	quiet("broken roster")
	w.advance(d.m.cfg.Redial)
	w.onPull = func(n *node, _ Pull) error {
		if n.self.Rank == 1 {
			return errStuck
		}
		return nil
	}
	w.importStart("d", w.export("p", "r1", 40))
	w.run()
	d.step(EngineDown{d.eng.session})
	d.eng.session = 0
	quiet("the leader's engine session ended")
	w.run()
	d.reattach()
	w.advance(d.m.cfg.Redial)
	if err := w.ended(w.reset("d", 0)).Err; !errors.Is(err, handoff.ErrQuiet) || !strings.Contains(err.Error(), "on rank 1") {
		t.Errorf("recovered: %v", err)
	}
	w.start(w.end("d", 0))
	quiet("the leader's second life")
}
