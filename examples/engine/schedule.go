package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/batonkv/baton/examples/engine/admission"
	"github.com/batonkv/baton/examples/engine/front"
	"github.com/batonkv/baton/examples/engine/paged"
	"github.com/batonkv/baton/examples/engine/sample"
	"github.com/batonkv/baton/sidecar/handoff"
)

// idle is the longest pause between two steps: deadlines are looked at, and the other
// ranks report.
const idle = 100 * time.Millisecond

// phase is where a task stands.
type phase uint8

const (
	queued    phase = iota + 1 // waits for memory, first in, first out
	prefill                    // its prompt is being computed
	proposing                  // to be exported: tokens behind its first ones are being drafted
	decode                     // next is to be computed
	computed                   // to be exported: an earlier hand-off of its label is not over
	pinned                     // exported: waits for the manifest
	waiting                    // waits for its import's Admit
)

// task is a caller's request on rank 0.
type task struct {
	req      front.Request
	events   chan front.Event // room for every token and the end
	gone     <-chan struct{}  // the caller left
	deadline time.Time

	phase     phase
	id        reqID
	left      int32   // prompt tokens to compute
	chunk     int32   // of them, those of the step that is under way
	chunked   bool    // some of them were computed since the request started
	emitted   []int32 // tokens of the answer
	next      int32   // the last of them, not computed yet
	preempted int32   // how often its memory was taken
	answer    *sample.Answer
	logprobs  bool // tell them
	draft     drafting
	begun     beginning // of an export, once its prompt is computed
	answered  int       // so many of its answers have drafts
	cached    int32
	forwarded int32
	blocked   uint64 // 1 + frees seen when memory was missing: tried again once there are more
}

// scheduler is rank 0's: it owns the tasks, and makes the steps.
type scheduler struct {
	r      *Rank
	submit chan *task    // bounded by MaxQueue; full answers ErrBusy
	kick   chan struct{} // capacity 1: a caller left

	mu    sync.Mutex
	ended bool // guarded by mu: nothing is submitted any more

	tasks   []*task          // in order of arrival
	labels  map[string]*task // tasks with a label
	ready   map[string]*request
	readyAt map[string]time.Time
	resumes map[string]handoff.Resume
	lastID  reqID
	through uint64
	st      step // being put together
	gate    admission.Gate
	// settling is a caller's reset or switch, which waits for the engine to be quiet.
	settling *task

	letGo   map[string]map[int]bool // export label to ranks whose sidecar let go
	away    map[int]string          // ranks without a sidecar, and why
	overs   []string                // exports that were freed in this step
	adopted []*task                 // whose import was admitted in this step
	stale   []reqID                 // admitted imports that a second of their label replaced
	starts  []*task                 // of st.Start
	running []*task                 // of st.Run
}

func newScheduler(r *Rank) *scheduler {
	return &scheduler{r: r, gate: admission.Gate{Rules: r.rules()}, submit: make(chan *task, r.cfg.MaxQueue), kick: make(chan struct{}, 1),
		labels: map[string]*task{}, ready: map[string]*request{},
		readyAt: map[string]time.Time{}, resumes: map[string]handoff.Resume{}, letGo: map[string]map[int]bool{}, away: map[int]string{}}
}

// serve makes steps until ctx ends. What waits is kept for the next Run when the role is
// another one, and failed else.
func (s *scheduler) serve(ctx context.Context) error {
	err := s.loop(ctx)
	if !errors.Is(err, ErrSwitched) {
		s.close()
	}
	return err
}

func (s *scheduler) loop(ctx context.Context) error {
	tick := time.NewTicker(idle)
	defer tick.Stop()
	var wake <-chan struct{}
	if s.r.session != nil {
		wake = s.r.session.Wake()
	}
	defer s.r.closeLate(ctx)()
	beat := true
	for {
		if ctx.Err() != nil {
			b, _ := json.Marshal(step{Stop: true})
			_ = s.r.group.Broadcast(b)
			return nil
		}
		s.collect()
		if s.over() {
			b, _ := json.Marshal(step{Stop: true})
			return s.r.group.Broadcast(b)
		}
		s.plan()
		if s.st.Turn != nil {
			return s.leave()
		}
		if !s.st.empty() || beat && s.r.group.Size() > 1 {
			if err := s.step(); err != nil {
				if ctx.Err() != nil {
					return nil
				}
				return err
			}
			beat = false
			continue
		}
		submit := s.submit
		if len(s.tasks) >= s.r.cfg.MaxQueue {
			submit = nil
		}
		select {
		case <-ctx.Done():
		case <-wake:
		case <-s.kick:
		case t := <-submit:
			s.take(t)
		case <-tick.C:
			beat = true
		}
	}
}

// over reports whether the group was told to stop and nothing runs any more.
func (s *scheduler) over() bool {
	return s.r.life.Stopping() && s.st.empty() && len(s.tasks)+len(s.r.requests)+len(s.r.exports)+len(s.r.imports) == 0
}

// close fails what is left.
func (s *scheduler) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	for len(s.submit) > 0 {
		t := <-s.submit
		t.events <- front.Event{Err: ErrEnded}
	}
	for _, t := range s.tasks {
		t.events <- front.Event{Err: ErrEnded}
	}
	if s.settling != nil {
		s.unsettle(ErrEnded)
	}
}

// step carries out what was planned, on all ranks.
func (s *scheduler) step() error {
	b, err := json.Marshal(s.st)
	if err != nil {
		return err
	}
	if err := s.r.group.Broadcast(b); err != nil {
		return err
	}
	out, err := s.r.apply(s.st)
	if err != nil {
		return err
	}
	mine := s.r.report(s.st)
	s.heard(0, mine)
	err = s.r.group.Gather(func(rank int, b []byte) error {
		rep, err := decodeReport(b)
		if err != nil {
			return err
		}
		if rep.Digest != mine.Digest {
			return fmt.Errorf("%w: the allocator of rank %d is not that of rank 0", ErrDiverged, rank)
		}
		s.heard(rank, rep)
		return nil
	})
	if err != nil {
		return err
	}
	s.absorb(out)
	return nil
}

// heard takes a rank's report.
func (s *scheduler) heard(rank int, rep report) {
	for _, label := range rep.Unpinned {
		if s.r.exports[label] == nil && s.r.growing[label] == nil {
			continue
		}
		if s.letGo[label] == nil {
			s.letGo[label] = map[int]bool{}
		}
		s.letGo[label][rank] = true
	}
	delete(s.away, rank)
	if rep.Away != "" {
		s.away[rank] = fmt.Sprintf("rank %d: %s", rank, rep.Away)
	}
	if rep.Down != "" && s.r.down == "" {
		s.r.down = fmt.Sprintf("rank %d: %s", rank, rep.Down)
	}
}

// absorb takes what the step did.
func (s *scheduler) absorb(out outcome) {
	if s.st.Reset {
		s.wasReset()
	}
	starts, running := s.starts, s.running
	s.st, s.starts, s.running = step{End: s.stale}, nil, nil
	s.stale = nil
	for i, t := range starts {
		switch err := out.starts[i]; {
		case err == nil:
			q := s.r.requests[t.id]
			t.phase, t.left, t.chunked = prefill, int32(len(q.prompt))-q.pos, false
			t.forwarded += max(int32(len(t.req.Tokens))-q.pos, 0)
			if t.preempted == 0 {
				t.cached = q.pos
			}
		case errors.Is(err, paged.ErrFull):
			t.id, t.blocked = 0, s.r.frees+1
		default:
			t.id = 0
			s.fail(t, neverFits(err))
		}
	}
	for i, t := range running {
		s.computed(t, out.runs[i])
	}
	for _, label := range s.overs {
		if t := s.labels[label]; t != nil && t.phase == pinned && s.r.exports[label] == nil {
			s.fail(t, fmt.Errorf("%w: its hand-off was over before a manifest came", ErrSidecar))
		}
	}
	adopted := s.adopted
	s.adopted, s.overs = nil, nil
	for _, t := range adopted {
		s.adopt(t)
	}
}

// computed takes one run's end.
func (s *scheduler) computed(t *task, res ran) {
	switch {
	case t.phase == proposing:
		s.proposed(t, res)
	case t.phase == decode:
		s.decoded(t, res)
	case res.err != nil:
		s.fail(t, res.err)
	case res.logits == nil:
		t.left, t.chunked = t.left-t.chunk, true
	default:
		s.prompted(t, res.logits[0])
	}
}
