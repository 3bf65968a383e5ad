package loop

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/batonkv/baton/discovery"
	"github.com/batonkv/baton/sidecar/control"
	"github.com/batonkv/baton/sidecar/handoff"
)

// Engines of two ranks carry every action out, over real sessions.
func TestActions(t *testing.T) {
	r := cluster(t, nil)
	p, ctx := r.sides["p/0"].Service(), t.Context()
	for a := handoff.ActionPause; a.Known(); a++ {
		if err := p.Do(ctx, a); err != nil {
			t.Errorf("%v: %v", a, err)
		}
	}
	if err := p.Do(ctx, 0); !errors.Is(err, handoff.ErrBound) {
		t.Error(err)
	}
	if err := r.sides["p/1"].Service().Do(ctx, handoff.ActionPause); !errors.Is(err, handoff.ErrNotReady) {
		t.Error(err)
	}
	r.handoff("r1", 20)
}

// A refusal keeps its sentinel over the engine's and the peer's session.
func TestARefusedAction(t *testing.T) {
	r := newRig(t)
	for _, n := range []int32{0, 1} {
		r.side("p", n, nil, nil)
	}
	r.group("p", 2)
	r.sides["p/1"].engine.refuses = map[handoff.Action]error{handoff.ActionSuspend: handoff.ErrRole}
	p, ctx := r.sides["p/0"].Service(), t.Context()
	if err := p.Do(ctx, handoff.ActionSuspend); !errors.Is(err, handoff.ErrRole) || errors.Is(err, handoff.ErrInDoubt) {
		t.Error(err)
	}
	if err := p.Do(ctx, handoff.ActionPause); err != nil {
		t.Error(err)
	}
}

// An engine that does not answer, and a caller that does not wait, both leave a doubt.
func TestActionsInDoubt(t *testing.T) {
	r := newRig(t)
	r.patience = 50 * time.Millisecond
	r.side("p", 0, nil, nil)
	r.side("p", 1, nil, nil)
	r.group("p", 2)
	r.sides["p/1"].engine.mute.Store(true)
	p := r.sides["p/0"].Service()
	if err := p.Do(t.Context(), handoff.ActionPause); !errors.Is(err, handoff.ErrInDoubt) || errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	ctx, end := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- p.Do(ctx, handoff.ActionUnpause) }()
	end()
	if err := <-ended; !errors.Is(err, handoff.ErrInDoubt) && !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// A group that drains refuses imports, shows it everywhere, ends what it holds, and serves
// again when it is told.
func TestDrain(t *testing.T) {
	r := cluster(t, nil)
	ctx := t.Context()
	p, d := r.sides["p/0"], r.sides["d/0"]
	late := r.export("p", "r1", 20)
	until := func(s *side, safe bool) control.Drain {
		for {
			got, err := s.Service().Drain(ctx, false)
			check(t, err)
			if got.Safe == safe {
				return got
			}
		}
	}
	until(d, true)
	if _, err := r.importNow(ctx, "d", late); !errors.Is(err, handoff.ErrDraining) {
		t.Error(err)
	}
	if got := until(p, false); got.Exports != 1 || len(got.Waits) == 0 {
		t.Errorf("%+v", got)
	}
	r.notice("d", 0, control.Draining, "")
	if st, err := d.Service().Status(ctx); err != nil || !st.Draining || d.scrape(t, "baton_draining") != 1 {
		t.Errorf("%+v, %v, metric %v", st, err, d.scrape(t, "baton_draining"))
	}
	d.shows(t, func(rec discovery.Record) bool { return rec.Draining })
	if got, err := d.Service().Drain(ctx, true); err != nil || got.Draining {
		t.Errorf("%+v, %v", got, err)
	}
	r.notice("d", 0, control.Serving, "")
	d.shows(t, func(rec discovery.Record) bool { return !rec.Draining })
	if _, err := r.importNow(ctx, "d", late); err != nil {
		t.Error(err)
	}
	until(p, true)
	if d.scrape(t, "baton_draining") != 0 || p.scrape(t, "baton_draining") != 1 {
		t.Error("the metric tells another thing")
	}
}

// shows waits until discovery's record of s is as wanted.
func (s *side) shows(t *testing.T, wanted func(discovery.Record) bool) {
	t.Helper()
	for snap, err := range s.cfg.Registry.Watch(t.Context(), discovery.Scope{Cluster: "c"}) {
		check(t, err)
		for _, rec := range snap.Records {
			if rec.Name() == s.cfg.Record.Name() && wanted(rec) {
				return
			}
		}
	}
	t.Fatal("the view ended")
}
