package machine

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/batonkv/baton/sidecar/handoff"
)

func (w *world) drain(group string, resume bool) Call {
	w.lastC++
	w.at(group, 0).step(Drain{Call: w.lastC, Resume: resume})
	return w.lastC
}

// drained drains and returns the answer, which comes at once.
func (w *world) drained(group string) Drained {
	w.t.Helper()
	r := w.ended(w.drain(group, false))
	if r.Err != nil || !r.Drained.Draining || len(r.Drained.Waits) > maxReasons+1 {
		w.t.Errorf("%+v, %v", r.Drained, r.Err)
	}
	return r.Drained
}

func (n *node) heard(kind NoticeKind) (times int) {
	for _, x := range n.notices {
		if x.Kind == kind {
			times++
		}
	}
	return times
}

// A group that drains ends what it has and begins nothing; who asks hears what is left.
func TestDrainImports(t *testing.T) {
	w := pair(t, 2, 2)
	w.onPull = func(*node, Pull) error { return errStuck }
	running, late := w.export("p", "a", 40), w.export("p", "b", 40)
	c := w.importStart("d", running)
	w.run()
	d := w.at("d", 0)
	if got := w.drained("d"); got.Safe || got.Imports != 1 {
		t.Errorf("while one runs: %+v", got)
	}
	w.run()
	if !d.eng.draining || !w.at("d", 1).eng.draining || !d.m.Status().Draining {
		t.Error("not every engine heard, or the status does not tell")
	}
	if err := w.ended(w.importStart("d", late)).Err; !errors.Is(err, handoff.ErrDraining) {
		t.Errorf("another import: %v", err)
	}
	w.importAsked("d", late)
	w.run()
	if d.eng.ends["b"] != "failed, safe true" {
		t.Errorf("the engine's own import: %q", d.eng.ends["b"])
	}
	if again := w.importStart("d", running); len(d.m.lead.imports[0].calls) != 2 {
		t.Errorf("the import under way is not joined: %v", w.calls[again].Err)
	}
	w.onPull = nil
	for r := range 2 {
		w.at("d", r).settle(nil)
	}
	if err := w.ended(c).Err; err != nil {
		t.Errorf("the import that ran: %v", err)
	}
	if got := w.drained("d"); !got.Safe || got.Imports != 0 {
		t.Errorf("when it has ended: %+v", got)
	}
	if r := w.ended(w.drain("d", true)); r.Err != nil || r.Drained.Draining || r.Drained.Safe {
		t.Errorf("resumed: %+v", r)
	}
	w.run()
	c = w.importStart("d", late)
	w.run()
	if err := w.ended(c).Err; err != nil || d.eng.draining {
		t.Errorf("resumed: %v, engine draining %v", err, d.eng.draining)
	}
	if d.heard(NoticeDraining) != 1 || d.heard(NoticeServing) != 1 || len(d.eng.acts) != 2 {
		t.Errorf("%d notices, %d actions of repeated calls", len(d.notices), len(d.eng.acts))
	}
}

// A source that drains goes on exporting what runs, and waits for who imports it.
func TestDrainExports(t *testing.T) {
	w := pair(t, 2, 1)
	w.drained("p")
	p := w.at("p", 0)
	p.step(FromEngine{p.eng.session, handoff.Announce{Label: "b"}})
	a := w.export("p", "a", 40)
	w.run()
	got := w.drained("p")
	if got.Safe || got.Exports != 1 || !strings.Contains(strings.Join(got.Waits, ";"), "1 export is held until") || !strings.Contains(got.Waits[0], "1 announced hand-off is not") {
		t.Errorf("%+v", got)
	}
	b := w.export("p", "b", 40)
	c := w.importStart("d", a)
	w.run()
	if err := w.ended(c).Err; err != nil {
		t.Error(err)
	}
	if got := w.drained("p"); got.Safe || got.Exports != 1 {
		t.Errorf("b is held: %+v", got)
	}
	_ = b // nobody imports it: its lease ends it
	w.advance(p.m.cfg.Lease)
	if got := w.drained("p"); !got.Safe {
		t.Errorf("%+v", got)
	}
	w.settled(t)
}

// What a copy may still write is not safe to stop.
func TestDrainWaitsForCopies(t *testing.T) {
	w := pair(t, 1, 1)
	w.onPull = func(*node, Pull) error { return errStuck }
	man := w.export("p", "a", 40)
	w.importStart("d", man)
	w.run()
	d := w.at("d", 0)
	d.step(Abort{Call: 77, ID: man.ID})
	w.run()
	if got := w.drained("d"); got.Safe || got.Imports != 0 || !strings.Contains(strings.Join(got.Waits, ";"), `copies of import "a" (`) {
		t.Errorf("%+v", got)
	}
	w.run()
	d.settle(errors.New("ended"))
	if got := w.drained("d"); !got.Safe {
		t.Errorf("%+v", got)
	}
}

// An engine that will not stop its intake, or does not say, is told of.
func TestDrainThatEnginesRefuse(t *testing.T) {
	w := pair(t, 2, 1)
	w.at("p", 0).eng.mute, w.at("p", 1).eng.refuses = true, errors.New("no front")
	w.drained("p")
	w.run()
	said := strings.Join(w.drained("p").Waits, ";")
	if !strings.Contains(said, "rank 0 has not answered stop-intake") || !strings.Contains(said, "rank 1 does not change its intake: no front") {
		t.Error(said)
	}
	// The answer is asked for again under a new roster.
	w.at("p", 0).eng.mute, w.at("p", 1).eng.refuses = false, nil
	w.restart("p", 1)
	w.back()
	if got := w.drained("p"); !got.Safe {
		t.Errorf("%+v", got)
	}
}

// A drain outlives sessions, the engine's launch and the leader's process, each alone.
func TestDrainOutlives(t *testing.T) {
	strikes := map[string]func(w *world){
		"nothing":          func(*world) {},
		"leader restarts":  func(w *world) { w.restart("p", 0) },
		"rank 1 restarts":  func(w *world) { w.restart("p", 1) },
		"both restart":     func(w *world) { w.restart("p", 1); w.restart("p", 0) },
		"engine 0 is lost": func(w *world) { w.lose("p", 0) },
		"engine 1 is lost": func(w *world) { w.lose("p", 1) },
		"another launch": func(w *world) {
			inst := handoff.Instance(w.mint())
			for r := range 2 {
				n := w.at("p", r)
				a := n.eng.attach
				a.Instance = inst
				n.step(EngineDown{n.eng.session})
				w.run()
				n.attach(a)
			}
		},
	}
	for name, strike := range strikes {
		for _, quick := range []bool{false, true} { // before the engines hear of it
			w := pair(t, 2, 1)
			w.drain("p", false)
			if !quick {
				w.run()
			}
			strike(w)
			w.back()
			p := w.at("p", 0)
			if lost := quick && (name == "leader restarts" || name == "both restart") && !p.m.Status().Draining; lost {
				continue // nobody holds the decision: the asker's next call restores it
			}
			if !p.m.Status().Draining || !p.eng.draining || !w.at("p", 1).eng.draining {
				t.Errorf("%s, quick %v: leader %v, engines %v and %v", name, quick, p.m.Status().Draining, p.eng.draining, w.at("p", 1).eng.draining)
			}
			if got := w.drained("p"); !got.Safe {
				t.Errorf("%s, quick %v: %+v", name, quick, got)
			}
			w.drain("p", true)
			w.run()
			if p.m.Status().Draining || p.eng.draining || w.at("p", 1).eng.draining {
				t.Errorf("%s, quick %v: does not resume", name, quick)
			}
		}
	}
}

// What was asked while a rank was missing is said when it is back.
func TestDrainWithoutARank(t *testing.T) {
	w := pair(t, 2, 1)
	one := w.end("p", 1)
	w.run()
	if got := w.drained("p"); got.Safe || len(got.Waits) == 0 {
		t.Errorf("%+v", got)
	}
	w.start(one).reattach()
	w.back()
	if got := w.drained("p"); !got.Safe || !w.at("p", 1).eng.draining {
		t.Errorf("%+v", got)
	}
	if r := w.at("p", 1); true {
		r.step(Drain{Call: 99})
		if !errors.Is(w.ended(99).Err, handoff.ErrNotReady) {
			t.Error(w.ended(99).Err)
		}
	}
}

// The reasons of one answer are few, however much is under way.
func TestDrainSaysLittle(t *testing.T) {
	w := pair(t, 1, 1)
	w.onPull = func(*node, Pull) error { return errStuck }
	for i := range 20 {
		man := w.export("p", fmt.Sprint("r", i), 16)
		w.importTokens("d", man, slices.Repeat([]int32{int32(i)}, 16))
		w.run()
		w.at("d", 0).step(Abort{Call: Call(1000 + i), ID: man.ID})
		w.run()
	}
	if got := w.drained("d"); len(got.Waits) != maxReasons+1 || got.Waits[maxReasons] == "" {
		t.Errorf("%d: %q", len(got.Waits), got.Waits)
	}
	w.advance(time.Second)
}
