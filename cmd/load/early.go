package load

import (
	"context"
	"errors"
	"fmt"
	"time"

	engine "github.com/batonkv/baton/examples/load"
	"github.com/batonkv/baton/sidecar/handoff"
)

// announced announces the label and returns the manifest that names the hand-off.
func (r *request) announced(ctx context.Context) (handoff.Manifest, error) {
	if err := r.say(r.src, engine.Command{Op: engine.Announce, Label: r.label}); err != nil {
		return handoff.Manifest{}, err
	}
	select {
	case m := <-r.src.box(r.label).announced:
		return m, nil
	case e := <-r.src.box(r.label).failed:
		return handoff.Manifest{}, fmt.Errorf("announcement: %s", e.Err)
	case <-ctx.Done():
		return handoff.Manifest{}, fmt.Errorf("no announcement came: %w", context.Cause(ctx))
	}
}

// early starts an import of what is announced; the answer comes on the channel. It takes
// its turn, unless held says that it waits for nothing any more.
func (r *request) early(ctx context.Context, man handoff.Manifest, p engine.Prompt, held <-chan engine.Event, may ...error) <-chan error {
	t, ended := r.next(), make(chan error, 1)
	go func() { // ends with the import; its receiver waits
		select {
		case r.d.early <- struct{}{}:
			defer func() { <-r.d.early }()
		case <-held:
		case <-ctx.Done():
			ended <- context.Cause(ctx)
			return
		}
		o, err := r.attempt(ctx, export{man: man, prompt: p, label: r.label}, t, may...)
		if err == nil && o.err == nil && len(may) > 0 {
			err = errors.New("what was given up was imported")
		}
		ended <- err
	}()
	return ended
}

func beforeExport(ctx context.Context, r *request) error {
	man, err := r.announced(ctx)
	if err != nil {
		return err
	}
	p := r.prompt()
	wait := r.upTo(time.Second)
	ended := r.early(ctx, man, p, r.src.box(r.label).exported)
	if err := r.pause(ctx, wait); err != nil {
		return errors.Join(err, <-ended)
	}
	c := engine.Command{Op: engine.Export, Label: r.label, Prompt: &p, MaxHold: r.d.hold()}
	if err := r.say(r.src, c); err != nil {
		return errors.Join(err, <-ended)
	}
	if err := <-ended; err != nil {
		return err
	}
	return r.over(ctx, r.label)
}

func neverExported(ctx context.Context, r *request) error {
	man, err := r.announced(ctx)
	if err != nil {
		return err
	}
	ended := r.early(ctx, man, r.prompt(), nil, handoff.ErrGone)
	err = r.say(r.src, engine.Command{Op: engine.Release, Label: r.label})
	return errors.Join(err, <-ended)
}

// preempted: a prefill that was announced is given up, and comes again under its label.
// What was announced first is gone, also for who asked for it meanwhile.
func preempted(ctx context.Context, r *request) error {
	man, err := r.announced(ctx)
	if err != nil {
		return err
	}
	p := r.prompt()
	ended := r.early(ctx, man, p, nil, handoff.ErrGone)
	if err := r.say(r.src, engine.Command{Op: engine.Release, Label: r.label}); err != nil {
		return errors.Join(err, <-ended)
	}
	x, err := r.handOut(ctx, engine.Command{Prompt: &p})
	for errors.Is(err, handoff.ErrGone) { // another rank's pin came before the release, which ended it
		if err = r.over(ctx, r.label); err == nil {
			x, err = r.handOut(ctx, engine.Command{Prompt: &p})
		}
	}
	if err != nil {
		return errors.Join(err, <-ended)
	}
	if x.man.ID == man.ID {
		return errors.Join(fmt.Errorf("announced anew as %v", man.ID), <-ended)
	}
	return errors.Join(<-ended, r.deliver(ctx, x))
}
