package load

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/batonkv/baton/proto/errs"
	"github.com/batonkv/baton/sidecar/handoff"
)

// beat is the longest pause between two steps: the other ranks hear their sidecars in one.
const beat = 20 * time.Millisecond

// lead is rank 0's part: it hears the driver and the leading sidecar, and makes the steps.
type lead struct {
	r        *Rank
	commands chan Command
	events   chan Event // to the driver

	through uint64
	queue   []startOp // exports that wait for memory, first in, first out
	full    uint64    // 1 + frees when the first of queue found no memory
	letGo   map[string]map[int]bool
	aborts  map[string]int // steps until an import's own end; AtReserve: at its Reserve
	armed   map[string]int // of those whose Reserve was answered
	steps   uint64
}

func newLead(r *Rank) *lead {
	return &lead{r: r, commands: make(chan Command, 1024), events: make(chan Event, 1<<16),
		letGo: map[string]map[int]bool{}, aborts: map[string]int{}, armed: map[string]int{}}
}

// serve makes steps until ctx ends.
func (l *lead) serve(ctx context.Context) error {
	tick := time.NewTicker(beat)
	defer tick.Stop()
	due := true
	for {
		if ctx.Err() != nil {
			b, _ := json.Marshal(step{Stop: true})
			_ = l.r.group.Broadcast(b)
			return nil
		}
		if err := l.collect(); err != nil {
			return err
		}
		if l.over() {
			b, _ := json.Marshal(step{Stop: true})
			return l.r.group.Broadcast(b)
		}
		if st := l.plan(); !st.empty() || due && l.r.cfg.TP > 1 {
			due = false
			if err := l.step(st); err != nil {
				if ctx.Err() != nil {
					return nil
				}
				return err
			}
			continue
		}
		select {
		case <-ctx.Done():
		case <-l.r.session.Wake():
		case c := <-l.commands:
			if err := l.command(c); err != nil {
				return err
			}
		case <-tick.C:
			due = true
		}
	}
}

// over reports whether the group was told to stop and nothing runs any more.
func (l *lead) over() bool {
	return l.r.life.Stopping() && len(l.queue)+len(l.r.exports)+len(l.r.imports)+len(l.r.decodes) == 0
}

// collect takes what came since the last step.
func (l *lead) collect() error {
	if err := l.r.session.Err(); err != nil {
		return fmt.Errorf("the sidecar's session ended: %w", err)
	}
	for _, m := range l.r.session.Poll(nil) {
		l.hear(m)
	}
	for {
		select {
		case c := <-l.commands:
			if err := l.command(c); err != nil {
				return err
			}
			continue
		default:
			return nil
		}
	}
}

func (l *lead) command(c Command) error {
	if err := l.r.life.Intake(); err != nil && (c.Op == Announce || c.Op == Export || c.Op == Import) {
		return l.tell(failed(c.Label, err, true))
	}
	switch c.Op {
	case Announce:
		return l.r.send(handoff.Announce{Label: c.Label})
	case Export:
		l.queue = append(l.queue, startOp{Label: c.Label, Prompt: *c.Prompt, Finished: c.Finished, Copies: c.Copies, MaxHold: c.MaxHold})
	case Release:
		l.queue = slices.DeleteFunc(l.queue, func(o startOp) bool { return o.Label == c.Label })
		l.full = 0
		return l.r.send(handoff.ReleaseExport{Label: c.Label})
	case Import:
		if c.AbortAt != AbortNever {
			l.aborts[c.Label] = c.AbortAt
		}
		im := handoff.Import{Label: c.Label, Manifest: *c.Manifest, Tokens: c.Prompt.Tokens(), Deadline: c.Deadline}
		if err := l.r.session.Send(im); err != nil {
			return l.tell(failed(c.Label, err, true)) // refused alone; a session that is over ends the rank anyway
		}
	case Abort:
		return l.r.send(handoff.AbortImport{Label: c.Label})
	case Stats:
		s := l.r.pool.Stats()
		return l.tell(Event{Kind: Held, Label: c.Label, Holding: &Holding{FreeBlocks: s.Free + s.Idle, FreeSlots: s.SlotsFree, Queued: int32(len(l.queue)),
			Exports: int32(len(l.r.exports)), Imports: int32(len(l.r.imports)), Decodes: int32(len(l.r.decodes)), Steps: l.steps}})
	}
	return nil
}

func (l *lead) hear(m handoff.ToEngine) {
	l.r.hear(m)
	switch m := m.(type) {
	case handoff.Through:
		l.through = max(l.through, m.N)
	case handoff.Exported:
		if q := l.r.exports[m.Label]; q != nil && q.parts > 0 && !m.More {
			return // the driver has its manifest since the first part
		}
		_ = l.tell(Event{Kind: Exported, Label: m.Label, Manifest: &m.Manifest})
	case handoff.Imported:
		l.forget(m.Label)
		_ = l.tell(Event{Kind: Imported, Label: m.Label, Cached: m.Cached, Bytes: m.Bytes})
	case handoff.Failed:
		l.forget(m.Label)
		_ = l.tell(failed(m.Label, m.Err, m.SourceSafe))
	}
}

func failed(label string, err error, safe bool) Event {
	return Event{Kind: Failed, Label: label, Name: errs.Name(err), Err: fmt.Sprint(err), Safe: safe}
}

func (l *lead) forget(label string) {
	delete(l.aborts, label)
	delete(l.armed, label)
}

// reserving is called when the Reserve of an import is applied, before it is answered.
func (l *lead) reserving(label string) {
	switch n, ok := l.aborts[label]; {
	case !ok:
	case n == AtReserve:
		_ = l.r.send(handoff.AbortImport{Label: label})
	default:
		l.armed[label] = n
	}
}

// plan puts the next step together.
func (l *lead) plan() (st step) {
	if l.through > l.r.applied {
		st.Through = l.through
	}
	for label, ranks := range l.letGo {
		if len(ranks) == l.r.cfg.TP {
			st.Unpin = append(st.Unpin, label)
			delete(l.letGo, label)
		}
	}
	slices.Sort(st.Unpin)
	if l.r.life.Held() {
		return st
	}
	if l.full != l.r.frees+1 && len(l.queue) > 0 {
		n := min(len(l.queue), maxStarts)
		st.Start = slices.Clone(l.queue[:n])
		l.queue = slices.Delete(l.queue, 0, n)
	}
	st.Compute = len(l.r.growing) > 0
	st.Advance = len(l.r.decodes) > 0
	return st
}

// step carries out what was planned, on all ranks.
func (l *lead) step(st step) error {
	b, err := json.Marshal(st)
	if err != nil {
		return err
	}
	if err := l.r.group.Broadcast(b); err != nil {
		return err
	}
	out, err := l.r.apply(st)
	if err != nil {
		return err
	}
	l.steps++
	if len(out.failed) > 0 {
		l.queue = append(slices.Clone(out.failed), l.queue...)
		l.full = l.r.frees + 1
	}
	own := l.r.report()
	if err := l.took(0, own, own); err != nil {
		return err
	}
	if err := l.r.group.Gather(func(rank int, b []byte) error {
		var rep report
		if err := json.Unmarshal(b, &rep); err != nil {
			return fmt.Errorf("%w: report of rank %d: %w", ErrDiverged, rank, err)
		}
		return l.took(rank, rep, own)
	}); err != nil {
		return err
	}
	for _, e := range out.events {
		if err := l.tell(e); err != nil {
			return err
		}
	}
	return l.count()
}

// took takes a rank's report.
func (l *lead) took(rank int, rep, own report) error {
	if rep.Digest != own.Digest {
		return fmt.Errorf("%w: the allocator of rank %d differs from rank 0's", ErrDiverged, rank)
	}
	for _, label := range rep.LetGo {
		if l.r.exports[label] == nil {
			continue
		}
		if l.letGo[label] == nil {
			l.letGo[label] = map[int]bool{}
		}
		l.letGo[label][rank] = true
	}
	for _, w := range rep.Wrong {
		if err := l.tell(Event{Kind: Wrong, Err: w}); err != nil {
			return err
		}
	}
	return nil
}

// count brings imports whose own end was asked for nearer to it.
func (l *lead) count() error {
	for label, n := range l.armed {
		if l.armed[label] = n - 1; n > 1 {
			continue
		}
		l.forget(label)
		if err := l.r.send(handoff.AbortImport{Label: label}); err != nil {
			return err
		}
	}
	return nil
}

// tell queues an event. A driver that does not read ends the engine.
func (l *lead) tell(e Event) error {
	select {
	case l.events <- e:
		return nil
	default:
		return fmt.Errorf("%w: %d events wait for the driver", ErrCommand, cap(l.events))
	}
}
