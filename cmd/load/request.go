package load

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	engine "github.com/batonkv/baton/examples/load"
	"github.com/batonkv/baton/internal/pause"
	"github.com/batonkv/baton/proto/errs"
	"github.com/batonkv/baton/sidecar/handoff"
)

// request is one made-up request; one goroutine runs it, with others beside it for its
// imports.
type request struct {
	d     *driver
	rnd   *rand.Rand
	label string
	kind  string
	src   *group

	tries            int // imports that were asked for, for their labels
	imports, refused int
}

// hold is how long exports live that the request will see to: longer than any request, or
// not so long that those of requests that a kill cut are waited for.
func (d *driver) hold() time.Duration {
	if d.opt.KillSidecars > 0 {
		return 8 * time.Second
	}
	return 5 * time.Minute
}

// families is how many prefixes there are that prompts share.
const families = 8

// prompt makes one that shares a beginning with others, or does not. No other has its
// tail.
func (r *request) prompt() engine.Prompt {
	p := engine.Prompt{Prefix: uint64(r.rnd.IntN(families)), Tail: r.rnd.Uint64(), Steps: int32(r.rnd.IntN(8))}
	p.Shared = int32(r.rnd.IntN(5)) * 16 * int32(r.rnd.IntN(2))
	p.Len = p.Shared + 1 + int32(r.rnd.IntN(80))
	return p
}

// upTo draws a time of any magnitude from 16 µs to most.
func (r *request) upTo(most time.Duration) time.Duration {
	return time.Duration(math.Exp2(4+r.rnd.Float64()*math.Log2(float64(most/(16*time.Microsecond))))) * time.Microsecond
}

// export is one hand-off that is held for importers.
type export struct {
	man    handoff.Manifest
	prompt engine.Prompt
	label  string
	fin    bool
}

// handOut prefills a prompt under the label and returns what is held.
func (r *request) handOut(ctx context.Context, c engine.Command) (export, error) {
	if c.MaxHold == 0 {
		c.MaxHold = r.d.hold()
	}
	c.Op = engine.Export
	if c.Label == "" {
		c.Label = r.label
	}
	if err := r.say(r.src, engine.Command{Op: engine.Announce, Label: c.Label}, c); err != nil {
		return export{}, err
	}
	return r.held(ctx, c)
}

// say gives commands in order.
func (r *request) say(g *group, cs ...engine.Command) error {
	for _, c := range cs {
		if err := g.eng.Send(c); err != nil {
			return err
		}
	}
	return nil
}

// held waits until what c exports is held.
func (r *request) held(ctx context.Context, c engine.Command) (export, error) {
	b := r.src.box(c.Label)
	select {
	case e := <-b.exported:
		x := export{man: *e.Manifest, prompt: *c.Prompt, label: c.Label, fin: c.Finished}
		x.prompt.Version = x.man.WeightsEpoch
		return x, nil
	case e := <-b.freed:
		b.freed <- e // holds several
		select {
		case e := <-b.exported:
			b.exported <- e
			return r.held(ctx, c)
		default:
			return export{}, fmt.Errorf("%w: %s came back without a manifest", handoff.ErrGone, c.Label)
		}
	case e := <-b.failed:
		return export{}, fmt.Errorf("export of %s: %w", c.Label, errs.FromName(e.Name, e.Err))
	case <-ctx.Done():
		return export{}, fmt.Errorf("export of %s: %w", c.Label, context.Cause(ctx))
	}
}

// over waits until the source has all of it back.
func (r *request) over(ctx context.Context, label string) error {
	select {
	case <-r.src.box(label).freed:
		r.src.forget(label)
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%w: %s never came back on %s: %w", ErrLeaked, label, r.src.Name, context.Cause(ctx))
	}
}

// try is one import.
type try struct {
	dst      *group
	label    string
	deadline time.Duration
	byEngine bool // rank 0's engine asks, else a control plane
	abortAt  int  // byEngine
}

// next makes a try into a random group. One goroutine of a request calls it.
func (r *request) next(into ...*group) try {
	r.tries++
	if len(into) == 0 {
		into = r.d.decode
	}
	return try{dst: into[r.rnd.IntN(len(into))], label: fmt.Sprintf("%s.%d", r.label, r.tries), deadline: r.d.opt.Deadline, byEngine: r.rnd.IntN(2) == 0}
}

// outcome is how an import ended.
type outcome struct {
	handoff.Imported
	err  error // of Baton
	safe bool  // the source is still held
}

// ask runs an import to its answer.
func (r *request) ask(ctx context.Context, x export, t try) (o outcome, err error) {
	if t.byEngine {
		p := x.prompt
		if err := r.say(t.dst, engine.Command{Op: engine.Import, Label: t.label, Prompt: &p, Manifest: &x.man, Deadline: t.deadline, AbortAt: t.abortAt}); err != nil {
			return o, err
		}
		b := t.dst.box(t.label)
		select {
		case e := <-b.imported:
			o.Imported = handoff.Imported{Label: e.Label, Cached: e.Cached, Bytes: e.Bytes}
		case e := <-b.failed:
			o.err, o.safe = errs.FromName(e.Name, e.Err), e.Safe
		case <-ctx.Done():
			return o, fmt.Errorf("import of %s by %s: %w", t.label, t.dst.Name, context.Cause(ctx))
		}
		return o, nil
	}
	o.Imported, o.err = t.dst.Leader.Import(ctx, handoff.Import{Label: t.label, Manifest: x.man, Tokens: x.prompt.Tokens(), Deadline: t.deadline})
	if ctx.Err() != nil {
		return o, fmt.Errorf("import of %s by %s: %w: %w", t.label, t.dst.Name, context.Cause(ctx), o.err)
	}
	if o.err != nil {
		info, err := t.dst.Leader.Get(ctx, x.man.ID)
		o.safe = err == nil && info.SourceSafe && info.Label == t.label || errors.Is(err, handoff.ErrUnknown) // it was not even begun
	}
	return o, nil
}

// arrive checks what an admitted import is at the engine, and waits for its end.
func (r *request) arrive(ctx context.Context, x export, t try, o outcome) error {
	b := t.dst.box(t.label)
	defer t.dst.forget(t.label)
	late := 0
	select {
	case e := <-b.admitted:
		if e.Late {
			late = 1
		}
		switch {
		case *e.Prompt != x.prompt:
			return fmt.Errorf("%w: %s was given the prompt %+v, want %+v", ErrWrong, t.label, *e.Prompt, x.prompt)
		case e.Finished != x.fin || e.Cached != o.Cached && r.d.opt.KillSidecars == 0: // a leader's successor has no figures
			return fmt.Errorf("%w: %s: finished %v, %d cached, want %v, %d", ErrWrong, t.label, e.Finished, e.Cached, x.fin, o.Cached)
		}
	case <-ctx.Done():
		return fmt.Errorf("%s was imported and never admitted: %w", t.label, context.Cause(ctx))
	}
	select {
	case <-b.ended:
	case <-ctx.Done():
		return fmt.Errorf("%s was admitted and never ended: %w", t.label, context.Cause(ctx))
	}
	r.d.mu.Lock()
	defer r.d.mu.Unlock()
	r.d.moved += o.Bytes
	r.d.late += late
	r.imports++
	return nil
}

// allowed says whether err is one of those that a try may meet; they are counted.
func (r *request) allowed(err error, may ...error) bool {
	for _, e := range may {
		if errors.Is(err, e) {
			r.d.mu.Lock()
			defer r.d.mu.Unlock()
			r.refused++
			return true
		}
	}
	return false
}

// attempt tries until the import is in, or ends by an error that it may meet: kills fail
// copies, and a full queue refuses. The error is that of the last try when may has it,
// else what went wrong.
func (r *request) attempt(ctx context.Context, x export, t try, may ...error) (outcome, error) {
	label := t.label
	killed := 0
	for n := 1; ; n++ {
		o, err := r.ask(ctx, x, t)
		switch {
		case err != nil:
			return o, err
		case o.err == nil:
			return o, r.arrive(ctx, x, t, o)
		case r.allowed(o.err, may...):
			return o, nil
		case errors.Is(o.err, handoff.ErrCapacity) && o.Cached == 0 && n < 1000:
			if err := r.pause(ctx, time.Duration(n)*time.Millisecond); err != nil {
				return o, err
			}
		case r.d.opt.KillMovers > 0 && errors.Is(o.err, handoff.ErrTransfer) && killed < 100:
			killed++
			r.d.again()
			if err := r.pause(ctx, time.Duration(killed)*time.Millisecond); err != nil { // what was killed starts again
				return o, err
			}
		default:
			return o, fmt.Errorf("import of %s by %s: safe %v: %w", t.label, t.dst.Name, o.safe, o.err)
		}
		t.dst.forget(t.label)
		t.label = fmt.Sprintf("%s.again%d", label, n)
	}
}

// pause is the driver's own pace.
func (r *request) pause(ctx context.Context, d time.Duration) error {
	if !pause.For(ctx, d) {
		return context.Cause(ctx)
	}
	return nil
}

// deliver brings it in somewhere, whatever it takes, and waits for its source's end.
func (r *request) deliver(ctx context.Context, x export) error {
	if _, err := r.attempt(ctx, x, r.next()); err != nil {
		return err
	}
	return r.over(ctx, x.label)
}

// release gives it up by a control plane's word.
func (r *request) release(ctx context.Context, x export) error {
	if err := r.src.Leader.Release(ctx, x.man.ID, x.man.Key); err != nil {
		return fmt.Errorf("release of %s: %w", x.label, err)
	}
	return r.over(ctx, x.label)
}

func (d *driver) again() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.retried++
}
