package control_test

import (
	"context"
	"errors"
	"iter"
	"testing"

	"github.com/batonkv/baton/sidecar/control"
	"github.com/batonkv/baton/sidecar/handoff"
)

// stuck begins every call and answers none.
type stuck struct{ began chan struct{} }

func (s stuck) wait(ctx context.Context) error {
	s.began <- struct{}{}
	<-ctx.Done()
	return ctx.Err()
}

func (s stuck) Import(ctx context.Context, _ handoff.Import) (handoff.Imported, error) {
	return handoff.Imported{}, s.wait(ctx)
}
func (s stuck) Get(ctx context.Context, _ handoff.ID) (control.Info, error) {
	return control.Info{}, s.wait(ctx)
}
func (s stuck) Abort(ctx context.Context, _ handoff.ID, _ handoff.Key) error   { return s.wait(ctx) }
func (s stuck) Release(ctx context.Context, _ handoff.ID, _ handoff.Key) error { return s.wait(ctx) }
func (s stuck) SetWeightsEpoch(ctx context.Context, _ uint64) error            { return s.wait(ctx) }
func (s stuck) Reset(ctx context.Context) error                                { return s.wait(ctx) }
func (s stuck) Status(ctx context.Context) (control.Status, error) {
	return control.Status{}, s.wait(ctx)
}
func (s stuck) List(ctx context.Context, _ control.Query) (control.Page, error) {
	return control.Page{}, s.wait(ctx)
}
func (s stuck) Geometry(ctx context.Context) (control.Geometry, error) {
	return control.Geometry{}, s.wait(ctx)
}
func (s stuck) Do(ctx context.Context, _ handoff.Action) error { return s.wait(ctx) }
func (s stuck) Drain(ctx context.Context, _ bool) (control.Drain, error) {
	return control.Drain{}, s.wait(ctx)
}
func (s stuck) Links(ctx context.Context, _ control.LinksQuery) (control.Links, error) {
	return control.Links{}, s.wait(ctx)
}
func (s stuck) Watch(ctx context.Context, _ control.Cursor) iter.Seq2[control.Notice, error] {
	return func(yield func(control.Notice, error) bool) { yield(control.Notice{}, s.wait(ctx)) }
}

// asked makes every call of a service. doubt are those that change something.
func asked(ctx context.Context, c control.Service) (doubt, plain map[string]func() error) {
	bring := func() error { _, err := c.Import(ctx, handoff.Import{Label: "r"}); return err }
	drain := func() error { _, err := c.Drain(ctx, false); return err }
	get := func() error { _, err := c.Get(ctx, id); return err }
	list := func() error { _, err := c.List(ctx, control.Query{}); return err }
	geometry := func() error { _, err := c.Geometry(ctx); return err }
	links := func() error { _, err := c.Links(ctx, control.LinksQuery{}); return err }
	status := func() error { _, err := c.Status(ctx); return err }
	watch := func() (last error) {
		for _, err := range c.Watch(ctx, control.Cursor{}) {
			last = err
		}
		return last
	}
	return map[string]func() error{"import": bring, "drain": drain,
		"abort":   func() error { return c.Abort(ctx, id, handoff.Key{}) },
		"release": func() error { return c.Release(ctx, id, handoff.Key{}) },
		"weights": func() error { return c.SetWeightsEpoch(ctx, 1) },
		"reset":   func() error { return c.Reset(ctx) },
		"do":      func() error { return c.Do(ctx, handoff.ActionPause) },
	}, map[string]func() error{"get": get, "list": list, "geometry": geometry, "links": links, "status": status, "watch": watch}
}

// TestBrokenCalls: a call that was sent and not answered is in doubt when it changes
// something, and else a lost peer.
func TestBrokenCalls(t *testing.T) {
	for name, brk := range map[string]func(*world, context.CancelFunc){
		"caller gone":  func(_ *world, cancel context.CancelFunc) { cancel() },
		"sidecar gone": func(w *world, _ context.CancelFunc) { w.stop() },
	} {
		t.Run(name, func(t *testing.T) {
			s := stuck{began: make(chan struct{}, 16)}
			w := serving(t, s)
			ctx, cancel := context.WithCancel(testCtx(t))
			defer cancel()
			type outcome struct {
				call      string
				err, want error
			}
			over := make(chan outcome)
			doubt, plain := asked(ctx, w.dial(t, "baton://control/dev"))
			for call, f := range doubt {
				go func() { over <- outcome{call, f(), handoff.ErrInDoubt} }()
			}
			for call, f := range plain {
				go func() { over <- outcome{call, f(), handoff.ErrPeer} }()
			}
			for range len(doubt) + len(plain) {
				<-s.began
			}
			brk(w, cancel)
			for range len(doubt) + len(plain) {
				o := <-over
				if !errors.Is(o.err, o.want) || errors.Is(o.err, handoff.ErrInDoubt) != (o.want == handoff.ErrInDoubt) {
					t.Errorf("%s: %v, want %v", o.call, o.err, o.want)
				}
				if errors.Is(o.err, context.Canceled) != (ctx.Err() != nil) {
					t.Errorf("%s: canceled: %v", o.call, o.err)
				}
			}
		})
	}
}
