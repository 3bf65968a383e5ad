package engine

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/batonkv/baton/examples/engine/front"
	"github.com/batonkv/baton/examples/engine/paged"
	"github.com/batonkv/baton/examples/engine/sample"
	"github.com/batonkv/baton/proto/errs"
	"github.com/batonkv/baton/sidecar/handoff"
)

// Submit takes a caller's request on rank 0. Its events end with a Result or an Err;
// ending ctx aborts it. It never waits: ErrBusy when too many requests are queued.
func (r *Rank) Submit(ctx context.Context, req front.Request) (<-chan front.Event, error) {
	if r.sched == nil {
		return nil, fmt.Errorf("%w: rank %d does not schedule: ask rank 0", ErrConfig, r.cfg.Rank)
	}
	if err := req.Check(); err != nil {
		return nil, err
	}
	if req.Mode == front.Tell {
		told := make(chan front.Event, 1)
		told <- front.Event{Result: &front.Result{Reason: string(r.Role()), Closed: r.closed(), Room: r.holds(), Block: r.cfg.BlockTokens}}
		return told, nil
	}
	for _, t := range append(slices.Concat(req.Sample.Stop...), req.Tokens...) {
		if t < 0 || t >= r.cfg.Model.Vocab {
			return nil, fmt.Errorf("%w: token %d: want 0 to %d", front.ErrRequest, t, r.cfg.Model.Vocab-1)
		}
	}
	if err := r.fits(req); err != nil {
		return nil, err
	}
	deadline := r.cfg.Deadline
	if req.DeadlineMS > 0 {
		deadline = time.Duration(req.DeadlineMS) * time.Millisecond
	}
	t := &task{req: req, events: make(chan front.Event, req.MaxNew+2), gone: ctx.Done(), deadline: time.Now().Add(deadline),
		answer: sample.NewAnswer(req.Sample, req.Answer, req.MaxNew, r.cfg.Model.EOS), logprobs: req.Sample.Logprobs}
	s := r.sched
	if err := s.queue(t); err != nil {
		return nil, err
	}
	// The kick outlives the call and ends with ctx.
	context.AfterFunc(ctx, func() {
		select {
		case s.kick <- struct{}{}:
		default:
		}
	})
	return t.events, nil
}

// closed names the error of new requests, "" while they are taken.
func (r *Rank) closed() string {
	name, _ := r.shut.Load().(string)
	return name
}

// tellShut has callers know with which error new requests end: any, or those that hand over.
func (r *Rank) tellShut() {
	name := ""
	switch {
	case r.life.Intake() != nil, r.sched != nil && r.sched.settling != nil:
		name = errs.Name(handoff.ErrDraining)
	case r.sched != nil && r.session != nil && (r.down != "" || r.sched.missing() != ""):
		name = errs.Name(handoff.ErrPeer)
	}
	r.shut.Store(name)
}

// holds is how many tokens of prompt and answer fit: the last token is not computed.
func (r *Rank) holds() int32 {
	return int32(min(int64(r.cfg.Blocks)*int64(r.cfg.BlockTokens)+1, math.MaxInt32))
}

// fits refuses what can never fit the pool, before anything is computed or imported.
func (r *Rank) fits(req front.Request) error {
	n := int32(len(req.Tokens))
	if n > 0 && req.Mode != front.Export {
		n += req.MaxNew - 1
	}
	if want := r.pool.BlocksFor(n); want > r.cfg.Blocks {
		return neverFits(fmt.Errorf("%w: %d tokens of prompt and answer want %d blocks, the pool has %d", paged.ErrNever, n, want, r.cfg.Blocks))
	}
	return nil
}

func (s *scheduler) queue(t *task) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return ErrEnded
	}
	select {
	case s.submit <- t:
		return nil
	default:
		return fmt.Errorf("%w: %d requests wait", front.ErrBusy, cap(s.submit))
	}
}
