package loop

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/batonkv/baton/sidecar/control"
	"github.com/batonkv/baton/sidecar/handoff"
	"github.com/batonkv/baton/sidecar/machine"
)

// Service is what control planes call: the service to give to control.Register.
type Service struct{ s *Sidecar }

// Service returns it.
func (s *Sidecar) Service() Service { return Service{s} }

var errStopped = fmt.Errorf("%w: the sidecar stops", handoff.ErrNotReady)

// call posts an event that the machine answers by Reply. When ctx ends first, the
// outcome is in doubt for the caller, and goes on.
func (v Service) call(ctx context.Context, event func(machine.Call) machine.Event) (machine.Reply, error) {
	answer := make(chan machine.Reply, 1)
	err := v.s.postWithin(ctx, func() {
		if v.s.stage != running {
			answer <- machine.Reply{Err: errStopped}
			return
		}
		v.s.lastCall++
		v.s.calls[v.s.lastCall] = answer
		v.s.step(event(v.s.lastCall))
	})
	if err != nil {
		return machine.Reply{}, err // nothing was begun
	}
	select {
	case r := <-answer:
		return r, r.Err
	case <-ctx.Done():
		return machine.Reply{}, fmt.Errorf("%w: %w", handoff.ErrInDoubt, ctx.Err())
	case <-v.s.done:
		select {
		case r := <-answer:
			return r, r.Err
		default:
			return machine.Reply{}, fmt.Errorf("%w: the sidecar stopped", handoff.ErrInDoubt)
		}
	}
}

// ask runs f beside the machine.
func (v Service) ask(ctx context.Context, f func()) error {
	done := make(chan struct{})
	if err := v.s.postWithin(ctx, func() { f(); close(done) }); err != nil {
		return err
	}
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-v.s.done:
		return errStopped
	}
}

// Import brings a hand-off in; it returns when that was admitted or has failed.
func (v Service) Import(ctx context.Context, m handoff.Import) (handoff.Imported, error) {
	r, err := v.call(ctx, func(c machine.Call) machine.Event { return machine.Import{Call: c, Import: m} })
	return r.Imported, err
}

// Abort ends an import that is not decided; with a key that of this key alone.
func (v Service) Abort(ctx context.Context, id handoff.ID, key handoff.Key) error {
	_, err := v.call(ctx, func(c machine.Call) machine.Event { return machine.Abort{Call: c, ID: id, Key: key} })
	return err
}

// Release gives up a manifest.
func (v Service) Release(ctx context.Context, id handoff.ID, key handoff.Key) error {
	_, err := v.call(ctx, func(c machine.Call) machine.Event { return machine.Release{Call: c, ID: id, Key: key} })
	return err
}

// SetWeightsEpoch changes the group's weights; it returns when every rank applied that.
func (v Service) SetWeightsEpoch(ctx context.Context, epoch uint64) error {
	_, err := v.call(ctx, func(c machine.Call) machine.Event { return machine.SetWeightsEpoch{Call: c, Epoch: epoch} })
	return err
}

// Reset gives up every hand-off of the group.
func (v Service) Reset(ctx context.Context) error {
	_, err := v.call(ctx, func(c machine.Call) machine.Event { return machine.Reset{Call: c} })
	return err
}

// Do passes an action to every engine of the group; it returns when all acknowledged it.
func (v Service) Do(ctx context.Context, a handoff.Action) error {
	_, err := v.call(ctx, func(c machine.Call) machine.Event { return machine.Lifecycle{Call: c, Action: a} })
	return err
}

// Drain stops the group's intake, or resumes it, and tells what is left.
func (v Service) Drain(ctx context.Context, resume bool) (control.Drain, error) {
	r, err := v.call(ctx, func(c machine.Call) machine.Event { return machine.Drain{Call: c, Resume: resume} })
	return control.Drain(r.Drained), err
}

// Get tells of a hand-off that is held, under way or ended not long ago.
func (v Service) Get(ctx context.Context, id handoff.ID) (control.Info, error) {
	var o machine.Outcome
	var ok, ready bool
	if err := v.ask(ctx, func() { o, ok = v.s.machine.Get(id); ready = v.s.machine.Status().Ready }); err != nil {
		return control.Info{}, err
	}
	switch {
	case !ok && !ready:
		return control.Info{}, fmt.Errorf("%w: %v is not known, and what the group decided is not known while a rank is missing: ask again", handoff.ErrNotReady, id)
	case !ok:
		return control.Info{}, fmt.Errorf("%w: no hand-off %v", handoff.ErrUnknown, id)
	}
	return info(o), nil
}

func info(o machine.Outcome) control.Info {
	return control.Info{ID: o.ID, Role: role(o), Phase: phase(o), Label: o.Label, Attempt: o.Attempt, Copies: o.Copies,
		Bytes: o.Imported.Bytes, Err: o.Err, SourceSafe: o.SourceSafe}
}

func role(o machine.Outcome) control.Role {
	if o.Source != 0 {
		return control.Source
	}
	return control.Destination
}

func phase(o machine.Outcome) control.Phase {
	switch {
	case o.Source == handoff.Over:
		return control.Ended
	case o.Source != 0:
		return control.Held
	case o.Err != nil:
		return control.Failing
	}
	switch o.State {
	case handoff.Finding, handoff.Opening:
		return control.Opening
	case handoff.Waiting:
		return control.Queued
	case handoff.Granting, handoff.Pulling:
		return control.Pulling
	case handoff.Consuming, handoff.Admitting:
		return control.Closing
	}
	return control.Admitted
}

// Status is this sidecar and, on rank 0, its group.
func (v Service) Status(ctx context.Context) (control.Status, error) {
	var st control.Status
	err := v.ask(ctx, func() {
		i := v.s.machine.Status()
		st = control.Status{Self: v.s.cfg.Machine.Self, Instance: i.Instance, Ranks: i.Ranks, Ready: i.Ready,
			Capacity: i.Capacity, MoverPID: v.s.cfg.MoverPID(), Counters: v.s.peers.Counts(),
			Draining: i.Draining}
		st.Counters["refused.Descriptor"] = v.s.engines.RefusedFDs()
		for what, n := range v.s.refused {
			st.Counters["refused."+what] = n
		}
		for _, m := range i.Members {
			st.Members = append(st.Members, control.MemberStatus{Member: m.Member, PID: m.PID, Addr: m.Addr, Attached: m.Attached})
		}
	})
	return st, err
}

// Watch yields notices from a cursor on.
func (v Service) Watch(ctx context.Context, from control.Cursor) iter.Seq2[control.Notice, error] {
	return v.s.notices.Watch(ctx, from)
}

var kinds = map[machine.NoticeKind]control.Kind{
	machine.NoticeReady: control.Ready, machine.NoticeLost: control.NotReady, machine.NoticeExported: control.Exported,
	machine.NoticeReleased: control.Over, machine.NoticeImported: control.Imported, machine.NoticeFailed: control.Failed,
	machine.NoticeAnnounced: control.Announced, machine.NoticeDraining: control.Draining, machine.NoticeServing: control.Serving,
}

// notify keeps a notice for watchers.
func (s *Sidecar) notify(n machine.Notice) {
	if n.Kind == machine.NoticeDraining || n.Kind == machine.NoticeServing {
		s.draining.Store(n.Kind == machine.NoticeDraining)
	}
	k, ok := kinds[n.Kind]
	if !ok {
		return
	}
	s.notices.Append(control.Notice{Kind: k, Label: n.Label, ID: n.ID, Manifest: n.Manifest, Bytes: n.Imported.Bytes,
		Cached: n.Imported.Cached, Phases: n.Imported.Phases, Err: n.Err, SourceSafe: n.SourceSafe})
}

// Healthy says why this sidecar cannot take work, nil when it can.
func (s *Sidecar) Healthy() error {
	if err := s.unregistered(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(s.ctx, time.Second)
	defer cancel()
	st, err := s.Service().Status(ctx)
	switch {
	case err != nil:
		return err
	case st.Instance == 0:
		return errors.New("no engine is attached")
	case !st.Ready:
		return fmt.Errorf("group is not complete: %s%s", absent(st), s.unlike(ctx))
	case st.MoverPID == 0:
		return errors.New("mover is not running")
	}
	return nil
}

// unlike names the ranks that are here and of another launch.
func (s *Sidecar) unlike(ctx context.Context) (text string) {
	err := s.Service().ask(ctx, func() {
		if rs := s.machine.Strangers(); len(rs) > 0 {
			text = fmt.Sprintf("; under another instance are %v", rs)
		}
	})
	if err != nil {
		return ""
	}
	return text
}

// absent names the ranks that a leader misses.
func absent(st control.Status) string {
	var missing []int32
	for _, m := range st.Members {
		if !m.Attached {
			missing = append(missing, int32(m.Rank))
		}
	}
	if len(missing) == 0 {
		return "the leader has not said that every rank is here"
	}
	return fmt.Sprintf("of %d ranks, not here are %v", st.Ranks, missing)
}
