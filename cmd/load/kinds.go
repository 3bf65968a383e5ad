package load

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	engine "github.com/batonkv/baton/examples/load"
	"github.com/batonkv/baton/sidecar/handoff"
)

// kind is one way in which a request goes, or is ended.
type kind struct {
	name   string
	weight int
	run    func(context.Context, *request) error
}

var kinds = []kind{
	{"plain", 20, plain},
	{"several copies", 8, copies},
	{"aborted by a call", 12, abortedByCall},
	{"aborted by the engine", 14, abortedByEngine},
	{"too late, then elsewhere", 8, tooLate},
	{"ended at prefill", 8, endedAtPrefill},
	{"all in the cache", 6, allCached},
	{"before its export", 8, beforeExport},
	{"never exported", 3, neverExported},
	{"preempted prefill", 6, preempted},
	{"asked for twice", 8, askedTwice},
	{"lease ends", 5, leaseEnds},
	{"released", 5, released},
	{"released while it is read", 4, releasedEarly},
	{"fits nowhere", 1, fitsNowhere},
}

func pick(rnd *rand.Rand) kind {
	total := 0
	for _, k := range kinds {
		total += k.weight
	}
	n := rnd.IntN(total)
	for _, k := range kinds {
		if n -= k.weight; n < 0 {
			return k
		}
	}
	return kinds[0]
}

func plain(ctx context.Context, r *request) error {
	p := r.prompt()
	x, err := r.handOut(ctx, engine.Command{Prompt: &p})
	if err != nil {
		return err
	}
	return r.deliver(ctx, x)
}

// copies: one pin serves as many imports as it has copies, at once, and not one more.
func copies(ctx context.Context, r *request) error {
	p, n := r.prompt(), 2+r.rnd.IntN(3)
	x, err := r.handOut(ctx, engine.Command{Prompt: &p, Copies: int32(n)})
	if err != nil {
		return err
	}
	var wg sync.WaitGroup
	errs := make([]error, n)
	for i := range n {
		t := r.next()
		wg.Go(func() { _, errs[i] = r.attempt(ctx, x, t) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	o, err := r.attempt(ctx, x, r.next(), handoff.ErrTaken, handoff.ErrGone)
	if err == nil && o.err == nil {
		err = fmt.Errorf("%d copies were imported %d times", n, n+1)
	}
	return errors.Join(err, r.over(ctx, x.label))
}

// endOf follows an import that may have been ended: it goes elsewhere, or is given up.
func (r *request) endOf(ctx context.Context, x export, o outcome, from *group) error {
	if o.err == nil {
		return r.over(ctx, x.label)
	}
	if !o.safe {
		return fmt.Errorf("%w, and the source is not said to be safe", o.err)
	}
	if r.rnd.IntN(3) == 0 {
		return r.release(ctx, x)
	}
	others := slices.DeleteFunc(slices.Clone(r.d.decode), func(g *group) bool { return g == from })
	if _, err := r.attempt(ctx, x, r.next(others...)); err != nil {
		return fmt.Errorf("elsewhere: %w", err)
	}
	return r.over(ctx, x.label)
}

func abortedByCall(ctx context.Context, r *request) error {
	p := r.prompt()
	x, err := r.handOut(ctx, engine.Command{Prompt: &p})
	if err != nil {
		return err
	}
	t, wait := r.next(), r.upTo(2*time.Second)
	over, cancel := context.WithCancel(ctx)
	defer cancel()
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		for r.pause(over, wait) == nil {
			if err := t.dst.Leader.Abort(over, x.man.ID, x.man.Key); err == nil || errors.Is(err, handoff.ErrInDoubt) {
				return
			} // else it is not there yet, or over
			wait = time.Millisecond
		}
	})
	o, err := r.attempt(ctx, x, t, handoff.ErrAborted)
	if cancel(); err != nil {
		return err
	}
	wg.Wait()
	return r.endOf(ctx, x, o, t.dst)
}

// abortedByEngine ends an import at its Reserve, or some steps later: while bytes move,
// after they landed, before Admit is applied.
func abortedByEngine(ctx context.Context, r *request) error {
	p := r.prompt()
	x, err := r.handOut(ctx, engine.Command{Prompt: &p})
	if err != nil {
		return err
	}
	t := r.next()
	t.byEngine, t.abortAt = true, 1+r.rnd.IntN(6)
	if r.rnd.IntN(4) == 0 {
		t.abortAt = engine.AtReserve
	}
	o, err := r.attempt(ctx, x, t, handoff.ErrAborted)
	if err != nil {
		return err
	}
	return r.endOf(ctx, x, o, t.dst)
}

func tooLate(ctx context.Context, r *request) error {
	p := r.prompt()
	x, err := r.handOut(ctx, engine.Command{Prompt: &p})
	if err != nil {
		return err
	}
	t := r.next()
	t.deadline = r.upTo(4 * time.Second)
	o, err := r.attempt(ctx, x, t, handoff.ErrDeadline)
	if err != nil {
		return err
	}
	return r.endOf(ctx, x, o, t.dst)
}

// endedAtPrefill: nothing is decoded, and the source is consumed as any other.
func endedAtPrefill(ctx context.Context, r *request) error {
	p := r.prompt()
	x, err := r.handOut(ctx, engine.Command{Prompt: &p, Finished: true})
	if err != nil {
		return err
	}
	return r.deliver(ctx, x)
}

// allCached brings one prompt in twice: the second time its blocks are in the cache, if
// nobody evicted them, and the source is consumed all the same.
func allCached(ctx context.Context, r *request) error {
	p := r.prompt()
	p.Shared, p.Len = 0, 32*int32(1+r.rnd.IntN(3)) // whole blocks, whatever their size
	var dst *group
	for n := range 2 {
		x, err := r.handOut(ctx, engine.Command{Prompt: &p, Label: fmt.Sprintf("%s-%d", r.label, n)})
		if err != nil {
			return err
		}
		t := r.next()
		if dst == nil {
			dst = t.dst
		}
		t.dst = dst
		o, err := r.attempt(ctx, x, t)
		if err != nil {
			return err
		}
		if r.d.opt.KillSidecars == 0 && r.d.opt.Model == engine.Attention && (o.Cached == p.Len) != (o.Bytes == 0) {
			return fmt.Errorf("%w: %d of %d tokens were cached and %d bytes moved", ErrWrong, o.Cached, p.Len, o.Bytes)
		}
		if err := r.over(ctx, x.label); err != nil {
			return err
		}
	}
	return nil
}

// askedTwice: one import, called twice at once, is one import with one answer. Later
// calls find it taken or gone.
func askedTwice(ctx context.Context, r *request) error {
	p := r.prompt()
	x, err := r.handOut(ctx, engine.Command{Prompt: &p})
	if err != nil {
		return err
	}
	t := r.next()
	t.byEngine = false
	var wg sync.WaitGroup
	var second outcome
	var err2 error
	wg.Go(func() { second, err2 = r.ask(ctx, x, t) })
	first, err := r.ask(ctx, x, t)
	wg.Wait()
	if err := errors.Join(err, err2); err != nil {
		return err
	}
	if first.err != nil { // the second call may have been the one that was first
		first, second = second, first
	}
	switch over := []error{handoff.ErrTaken, handoff.ErrGone, handoff.ErrCapacity}; {
	case first.err != nil && r.allowed(first.err, handoff.ErrTransfer, handoff.ErrCapacity):
		t = r.next()
		if first, err = r.attempt(ctx, x, t); err != nil {
			return err
		}
	case first.err != nil:
		return fmt.Errorf("two calls of one import: %w, %w", first.err, second.err)
	case second.err != nil && !r.allowed(second.err, over...):
		return fmt.Errorf("the second call of one import: %w", second.err)
	default:
		if err := r.arrive(ctx, x, t, first); err != nil {
			return err
		}
	}
	o, err := r.attempt(ctx, x, r.next(), handoff.ErrTaken, handoff.ErrGone)
	if err == nil && o.err == nil {
		err = errors.New("one copy was imported twice")
	}
	return errors.Join(err, r.over(ctx, x.label))
}

// leaseEnds: an import at about the end of the lease is in, or finds it gone.
func leaseEnds(ctx context.Context, r *request) error {
	p, lease := r.prompt(), time.Millisecond+r.upTo(4*time.Second)
	x, err := r.handOut(ctx, engine.Command{Prompt: &p, MaxHold: lease})
	if err != nil {
		return err
	}
	if err := r.pause(ctx, time.Duration(r.rnd.Int64N(int64(lease)))); err != nil {
		return err
	}
	if _, err := r.attempt(ctx, x, r.next(), handoff.ErrGone, handoff.ErrTransfer); err != nil {
		return err
	}
	return r.over(ctx, x.label)
}

// released: what a control plane, or the engine, gives up is gone for who comes later.
func released(ctx context.Context, r *request) error {
	p := r.prompt()
	x, err := r.handOut(ctx, engine.Command{Prompt: &p})
	if err != nil {
		return err
	}
	if r.rnd.IntN(2) == 0 {
		err = r.say(r.src, engine.Command{Op: engine.Release, Label: x.label})
	} else {
		err = r.src.Leader.Release(ctx, x.man.ID, x.man.Key)
	}
	if err == nil {
		err = r.over(ctx, x.label)
	}
	if err != nil {
		return err
	}
	o, err := r.attempt(ctx, x, r.next(), handoff.ErrGone)
	if err == nil && o.err == nil {
		err = errors.New("what was released was imported")
	}
	return err
}

// releasedEarly: what is given up while somebody reads it is in, or gone.
func releasedEarly(ctx context.Context, r *request) error {
	p, wait := r.prompt(), r.upTo(time.Second)
	x, err := r.handOut(ctx, engine.Command{Prompt: &p})
	if err != nil {
		return err
	}
	t, ended := r.next(), make(chan error, 1)
	go func() { // ends with the import, which is received
		_, err := r.attempt(ctx, x, t, handoff.ErrGone, handoff.ErrTransfer)
		ended <- err
	}()
	if err = r.pause(ctx, wait); err == nil {
		err = r.say(r.src, engine.Command{Op: engine.Release, Label: x.label})
	}
	return errors.Join(err, <-ended, r.over(ctx, x.label))
}

// fitsNowhere: a prompt for which decode has not enough blocks is refused, its source
// stays.
func fitsNowhere(ctx context.Context, r *request) error {
	p := r.prompt()
	p.Len = 16 * r.d.opt.Blocks * 5 / 8
	x, err := r.handOut(ctx, engine.Command{Prompt: &p})
	if err != nil {
		return err
	}
	t := r.next()
	o, err := r.ask(ctx, x, t)
	switch {
	case err != nil:
		return err
	case !r.allowed(o.err, handoff.ErrCapacity) || !o.safe:
		return fmt.Errorf("%d tokens into %d blocks of %d: safe %v: %w", p.Len, t.dst.blocks, t.dst.block, o.safe, o.err)
	}
	return r.release(ctx, x)
}
