package engine

import (
	"fmt"
	"slices"
	"time"

	"github.com/batonkv/baton/examples/engine/front"
	"github.com/batonkv/baton/sidecar/handoff"
)

// collect takes everything that came since the last step.
func (s *scheduler) collect() {
	for len(s.tasks) < s.r.cfg.MaxQueue {
		select {
		case t := <-s.submit:
			s.take(t)
			continue
		default:
		}
		break
	}
	if s.r.session != nil {
		for _, m := range s.r.session.Poll(nil) {
			s.hear(m)
		}
		s.r.look()
		delete(s.away, 0)
		if s.r.away != "" {
			s.away[0] = s.r.away
		}
	}
	s.r.tellShut()
	now := time.Now()
	for _, t := range slices.Clone(s.tasks) {
		select {
		case <-t.gone:
			s.fail(t, front.ErrFailed)
			continue
		default:
		}
		switch {
		case now.After(t.deadline):
			s.fail(t, ErrDeadline)
		case s.r.down != "" && (t.phase == waiting || t.phase == pinned || t.phase == computed):
			s.fail(t, fmt.Errorf("%w: %s", ErrSidecar, s.r.down))
		}
	}
	if t := s.settling; t != nil {
		select {
		case <-t.gone:
			s.unsettle(front.ErrFailed)
		default:
			if now.After(t.deadline) {
				s.unsettle(ErrDeadline)
			}
		}
	}
	for label, at := range s.readyAt {
		if now.Sub(at) > s.r.cfg.AdoptHold || s.resetting() {
			s.st.End = append(s.st.End, s.ready[label].id)
			s.forget(label)
		}
	}
}

// take lets a caller's request in.
func (s *scheduler) take(t *task) {
	handing := t.req.Mode != front.Full
	label := t.req.Label
	switch {
	case t.req.Mode == front.Stats:
		t.events <- front.Event{Result: &front.Result{Reason: "stats", Pool: s.stats()}}
		return
	case t.req.Mode == front.Reset || t.req.Mode == front.Switch:
		s.settle(t)
		return
	case s.intake(t.req.Mode) != nil:
		t.events <- front.Event{Err: s.intake(t.req.Mode)}
		return
	case s.r.cfg.takes(t.req.Mode) != nil:
		t.events <- front.Event{Err: s.r.cfg.takes(t.req.Mode)}
		return
	case t.req.Mode != front.Adopt && s.r.life.Intake() != nil: // what is adopted is imported already, or never will be
		t.events <- front.Event{Err: s.r.life.Intake()}
		return
	case handing && s.r.session == nil:
		t.events <- front.Event{Err: fmt.Errorf("%w: mode %s needs one", ErrSidecar, t.req.Mode)}
		return
	case handing && s.r.down != "":
		t.events <- front.Event{Err: fmt.Errorf("%w: %s", ErrSidecar, s.r.down)}
		return
	case handing && t.req.Mode != front.Adopt && s.missing() != "": // what is adopted may be decided already
		t.events <- front.Event{Err: fmt.Errorf("%w: %s", ErrSidecar, s.missing())}
		return
	case handing && (s.labels[label] != nil || t.req.Mode == front.Export && s.r.exports[label] != nil):
		t.events <- front.Event{Err: fmt.Errorf("%w: %q", ErrLabel, label)}
		return
	}
	s.tasks = append(s.tasks, t)
	t.phase = queued
	if !handing {
		return
	}
	s.labels[label] = t
	switch t.req.Mode {
	case front.Export:
		s.say(handoff.Announce{Label: label})
	case front.Import:
		// A manifest comes from the caller: one that the session does not take is its
		// request's failure only.
		if err := s.r.send(handoff.Import{Label: label, Manifest: *t.req.Manifest, Tokens: t.req.Tokens, Deadline: time.Until(t.deadline)}); err != nil {
			s.fail(t, fmt.Errorf("%w: %w", front.ErrRequest, err))
			return
		}
		t.phase = waiting
	default:
		t.phase = waiting
		s.adopt(t)
	}
}

// missing says which sidecar of the group is not there at the moment, "" when all are.
func (s *scheduler) missing() string {
	for rank := range s.r.cfg.Ranks() {
		if why := s.away[rank]; why != "" {
			return why
		}
	}
	return ""
}

// stats is of the instant between two steps.
func (s *scheduler) stats() *front.Pool {
	return &front.Pool{FreeBlocks: s.r.pool.Available(), FreeSlots: s.r.pool.Stats().SlotsFree,
		Exports: int32(len(s.r.exports)), Imports: int32(len(s.r.imports) + len(s.ready))}
}

// say sends what fits every session; a refusal is taken for the session's end.
func (s *scheduler) say(m handoff.FromEngine) {
	if err := s.r.send(m); err != nil && s.r.down == "" {
		s.r.down = err.Error()
	}
}

// hear takes one message of rank 0's sidecar.
func (s *scheduler) hear(m handoff.ToEngine) {
	s.r.hear(m)
	switch m := m.(type) {
	case handoff.Through:
		s.through = max(s.through, m.N)
	case handoff.Exported:
		if q := s.r.exports[m.Label]; q != nil && !m.More && s.r.cfg.Role == RolePrefill {
			s.r.corrupt(q)
		}
		if t := s.labels[m.Label]; t != nil && t.phase == pinned && !m.More {
			man := m.Manifest
			s.finish(t, "exported", &man)
		}
	case handoff.Failed:
		if s.r.growing[m.Label] != nil { // every rank is to let go of it
			s.say(handoff.ReleaseExport{Label: m.Label})
		}
		if t := s.labels[m.Label]; t != nil && (t.phase == pinned || t.phase == waiting) {
			err := m.Err
			if err == nil {
				err = front.ErrFailed
			}
			s.fail(t, err)
		}
	}
}

// admitted is called within a step, when an import became a request.
func (s *scheduler) admitted(q *request) {
	if old := s.ready[q.label]; old != nil { // the label came twice and nobody took the first
		s.stale = append(s.stale, old.id)
	}
	s.ready[q.label], s.readyAt[q.label] = q, time.Now()
	if t := s.labels[q.label]; t != nil && t.phase == waiting {
		s.adopted = append(s.adopted, t)
	}
}

// adopt joins a task with its import, if that was admitted: the sampled token comes
// from the resume packet, and is computed next.
func (s *scheduler) adopt(t *task) {
	q := s.ready[t.req.Label]
	if q == nil {
		return
	}
	s.forget(t.req.Label)
	t.id, t.phase = q.id, decode
	t.cached, t.forwarded = q.table.Cached, 0
	if err := s.r.imported(q, t.req); err != nil {
		s.r.cfg.Log.Warn("blocks are not told", "err", err)
	}
	if q.bad != nil {
		s.fail(t, fmt.Errorf("%w: the resume packet of %q: %w", front.ErrFailed, t.req.Label, q.bad))
		return
	}
	s.goOn(t, q.resume)
}

func (s *scheduler) forget(label string) {
	delete(s.ready, label)
	delete(s.readyAt, label)
}

// resume is what the leader's Export of a label carries.
func (s *scheduler) resume(label string) handoff.Resume {
	res := s.resumes[label]
	delete(s.resumes, label)
	return res
}

// exportOver is called within a step, when an export was freed.
func (s *scheduler) exportOver(label string) {
	delete(s.letGo, label)
	s.overs = append(s.overs, label)
}

// finish ends a task that was served.
func (s *scheduler) finish(t *task, reason string, man *handoff.Manifest) {
	res := front.Result{Reason: reason, Cached: t.cached, Forwarded: t.forwarded, Preempted: t.preempted, Manifest: man,
		Drafted: t.draft.drafted, Accepted: t.draft.accepted}
	if q := s.r.requests[t.id]; q != nil {
		res.Blocks = int32(len(q.table.Blocks))
	} else if q := s.r.exports[t.req.Label]; q != nil && man != nil {
		res.Blocks = int32(len(q.table.Blocks))
	}
	t.events <- front.Event{Result: &res}
	s.remove(t)
}

// fail ends a task that was not. What it holds is freed in the next step, or given up
// at the sidecar.
func (s *scheduler) fail(t *task, err error) {
	t.events <- front.Event{Err: err}
	if t.phase == waiting {
		s.say(handoff.AbortImport{Label: t.req.Label})
	}
	if t.req.Mode == front.Export {
		// Not told to the ranks yet: then the request ends as any other.
		before := len(s.st.Export)
		s.st.Export = slices.DeleteFunc(s.st.Export, func(o exportOp) bool { return o.ID == t.id })
		if len(s.st.Export) < before {
			t.phase = decode
			delete(s.resumes, t.req.Label)
		}
		s.say(handoff.ReleaseExport{Label: t.req.Label})
	}
	s.remove(t)
}

// remove takes a task out and frees its request, unless that is exported.
func (s *scheduler) remove(t *task) {
	s.tasks = slices.DeleteFunc(s.tasks, func(o *task) bool { return o == t })
	if s.labels[t.req.Label] == t {
		delete(s.labels, t.req.Label)
	}
	if t.id != 0 && t.phase != pinned {
		s.st.End = append(s.st.End, t.id)
	}
}
