package sim

import (
	"fmt"
	"slices"
	"time"

	"github.com/batonkv/baton/sidecar/handoff"
	"github.com/batonkv/baton/sidecar/machine"
)

// Actions and drains: a control plane asks a leader for one at any time, and resumes what it
// drained, so that the group works on.

// steers puts them somewhere in a schedule.
func (w *world) steers(span time.Duration) {
	for range w.r.IntN(3) {
		g := w.groups[w.r.IntN(len(w.groups))]
		w.after(w.between(0, span), nil, func() { w.steer(g) })
	}
}

// steer asks a group for something that is no request: an action, a drain or its end.
func (w *world) steer(g *group) {
	n := g.seats[0].side
	if n == nil {
		return
	}
	if w.chance(50) {
		a := handoff.Action(1 + w.r.IntN(int(handoff.ActionResumeIntake)))
		if a == handoff.ActionStop || a == handoff.ActionStopIntake { // the first ends a launch, and the second has its own way below
			a = handoff.ActionProfileStop
		}
		w.ask(n, &call{at: n, kind: "action"}, func(c machine.Call) machine.Event { return machine.Lifecycle{Call: c, Action: a} })
		return
	}
	for i := range time.Duration(3) {
		w.after(w.between(0, i*500*time.Millisecond), nil, func() { w.drain(g, false) })
	}
	w.after(w.between(time.Second, 2*time.Second), nil, func() { w.serve(g) })
}

func (w *world) drain(g *group, resume bool) {
	if n := g.seats[0].side; n != nil {
		kind := "drain"
		if resume {
			kind = "serve"
		}
		w.ask(n, &call{at: n, kind: kind}, func(c machine.Call) machine.Event { return machine.Drain{Call: c, Resume: resume} })
	}
}

// serve resumes a group's intake. A leader that dies may take the call along, or what it
// decided and no engine has applied, and a call to drain may be slower.
func (w *world) serve(g *group) {
	w.drain(g, true)
	w.after(time.Second, nil, func() {
		if n := g.seats[0].side; n == nil || !n.m.Status().Ready || n.m.Status().Draining || w.drains() || g.drains() {
			w.serve(g)
		}
	})
}

// drains reports whether an engine takes no work.
func (g *group) drains() bool {
	return slices.ContainsFunc(g.seats, func(s *seat) bool { return s.eng != nil && s.eng.draining })
}

// drains reports whether a call to drain is on its way.
func (w *world) drains() bool {
	for _, c := range w.calls {
		if c.kind == "drain" {
			return true
		}
	}
	return false
}

// act answers an action, some of them with a refusal.
func (e *engine) act(d handoff.Decision) {
	e.draining = d.Draining(e.draining)
	ack := handoff.LifecycleAck{N: d.N}
	if e.w.chance(10) {
		ack.Err = fmt.Errorf("%w: not here", handoff.ErrRole)
	}
	e.conn.say(ack)
}

// checkServes: whatever was drained takes work again.
func (w *world) checkServes(s *seat) {
	if s.eng.draining || s.side.m.Status().Draining {
		w.fail("%s/%d still drains: its engine %v, its sidecar %v", s.g.name, s.rank, s.eng.draining, s.side.m.Status().Draining)
	}
}
