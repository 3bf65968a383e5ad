package engine

import (
	"fmt"

	"github.com/batonkv/baton/examples/engine/front"
)

// Requests take blocks as they grow. When one finds none, the newest gives back what it
// holds and goes to where it was in the queue; once there is memory its prompt and what it
// emitted are computed anew, and its caller sees a pause. The oldest gives back only what
// one needs that cannot be computed anew, so something always ends.
//
// What is pinned for importers stays: they may be reading it. A prompt that is to be exported is
// announced and not pinned yet: importers wait on for it. Of one whose chunks have left, what they
// read is gone, and its memory comes back once the sidecars let go of it.

// preempt makes room for a request that decodes and found no block, and reports whether
// there is one.
func (s *scheduler) preempt() bool {
	var victim, stalled *task
	holders, leaving := 0, len(s.r.exports)+len(s.r.imports)+len(s.ready)
	for _, t := range s.tasks {
		if t.phase == proposing {
			leaving++
		}
		if t.phase != prefill && t.phase != decode {
			continue
		}
		holders++
		if again(t) {
			victim = t
		}
		if t.phase == decode && !s.mayFit(t) {
			stalled = t
		}
	}
	switch {
	case stalled == nil:
		return false
	case len(s.r.givenUp) > 0: // a victim's memory is on its way
	case victim != nil && holders > 1:
		if s.grows(victim) {
			s.giveUp(victim)
		}
		s.st.End = append(s.st.End, victim.id)
		victim.phase, victim.id, victim.blocked = queued, 0, 0
		victim.preempted++
	case leaving > 0: // they give memory back
	default:
		s.fail(stalled, fmt.Errorf("%w: every request waits for a block", ErrCapacity))
	}
	return true
}

// again says whether a request can be computed again: of one that was adopted only the
// engine it came from knows the prompt.
func again(t *task) bool { return t.req.Mode != front.Adopt }
