package engine

import (
	"fmt"
	"slices"

	"github.com/batonkv/baton/examples/engine/front"
	"github.com/batonkv/baton/sidecar/handoff"
)

// With ExportParts the chunks of a prompt that is to be exported leave as they are computed.
// Their memory is importers' to read from the first of them on: the table stays what it is,
// and a request that ends before it is exported gives back what it holds when the sidecars
// have let go of it, as an export does.

// partly makes a request's chunks leave under a label.
func (r *Rank) partly(q *request, label string) error {
	if label == "" || r.session == nil {
		return nil
	}
	if r.exports[label] != nil || r.growing[label] != nil {
		return fmt.Errorf("%w: parts of request %d as %q, which is exported already", ErrDiverged, q.id, label)
	}
	q.parts = label
	return r.pool.Settle(q.hold)
}

// exportPart says that a request's prompt is computed up to a token. A prompt of one chunk
// leaves whole.
func (r *Rank) exportPart(q *request, computed int32) error {
	n := int32(len(q.prompt))
	if q.parts == "" || q.said == 0 && computed == n {
		return nil
	}
	q.said++
	e := handoff.ExportPart{Label: q.parts, Part: q.said, Tokens: n, Position: n, Reach: handoff.All(computed), WeightsEpoch: q.epoch}
	if q.said == 1 {
		r.growing[q.parts] = q
		e.Blocks = slices.Clone(q.table.Blocks[:r.pool.BlocksFor(n)])
	}
	return r.send(e)
}

// partsOver is the end of what was said of a prompt under a label, and reports whether there
// was something. The request computes on, and is exported whole.
func (r *Rank) partsOver(label string) bool {
	q := r.growing[label]
	if q == nil {
		return false
	}
	delete(r.growing, label)
	q.parts, q.said = "", 0
	return true
}

// keeps holds what a request has for importers that may read parts of it, and reports
// whether there may be some.
func (r *Rank) keeps(q *request) bool {
	if q.parts == "" || q.said == 0 {
		return false
	}
	delete(r.growing, q.parts)
	r.exports[q.parts] = q
	r.givenUp[q.parts] = true
	return true
}

// grows reports whether parts of a task's prompt have left.
func (s *scheduler) grows(t *task) bool {
	q := s.r.growing[t.req.Label]
	return t.req.Mode == front.Export && q != nil && q.id == t.id
}

// partsOf is the label under which a task's chunks leave. What was preempted leaves whole.
func (s *scheduler) partsOf(t *task) string {
	if !s.r.cfg.ExportParts || t.req.Mode != front.Export || t.preempted > 0 {
		return ""
	}
	return t.req.Label
}

// giveUp ends what importers read of a task that is preempted. They may wait on for what is
// computed anew.
func (s *scheduler) giveUp(t *task) {
	s.say(handoff.ReleaseExport{Label: t.req.Label})
	s.say(handoff.Announce{Label: t.req.Label})
}
