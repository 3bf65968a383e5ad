package plugintest

import (
	"context"
	"sync"
	"time"

	"github.com/batonkv/baton/plugins/adapter"
	"github.com/batonkv/baton/plugins/adapter/drive"
	"github.com/batonkv/baton/plugins/adapter/session"
)

// gate stands before an adapter: it notes calls that succeed, and lets the world meddle.
type gate struct {
	w     *world
	to    adapter.Adapter
	life  int
	ended chan struct{} // of an adapter without a process: it was killed
}

// pass makes one call.
func (g *gate) pass(ctx context.Context, c call, f func() error) error {
	g.w.mu.Lock()
	meddle := g.w.meddle
	if g.life != 1 || g.w.on != c.verb {
		meddle = nil
	} else {
		g.w.meddle = nil
	}
	g.w.mu.Unlock()
	if meddle != nil {
		meddle(g.w, ctx)
	}
	select {
	case <-g.ended:
		return errKilled
	case <-ctx.Done():
		return ctx.Err()
	default:
	}
	err := f()
	if err == nil {
		c.life = g.life
		g.w.do(func() { g.w.note(c) })
	}
	return err
}

// note keeps a call; under mu.
func (w *world) note(c call) {
	if w.made = append(w.made, c); c.verb != adapter.Notify {
		return
	}
	w.shown = w.shown.Apply(c.update)
	if n := len(c.update.Notices); n > 0 {
		w.heard = c.update.Notices[n-1].Seq
	}
}

func (g *gate) Register(ctx context.Context) (i adapter.Info, err error) {
	err = g.pass(ctx, call{verb: adapter.Register}, func() error { i, err = g.to.Register(ctx); return err })
	return i, err
}

func (g *gate) Configure(ctx context.Context, section []byte) error {
	return g.pass(ctx, call{verb: adapter.Configure}, func() error { return g.to.Configure(ctx, section) })
}

func (g *gate) Sync(ctx context.Context, s adapter.State) error {
	return g.pass(ctx, call{verb: adapter.Sync}, func() error {
		err := g.to.Sync(ctx, s)
		if err == nil {
			g.w.do(func() { g.w.shown = s })
		}
		return err
	})
}

func (g *gate) Notify(ctx context.Context, u adapter.Update) error {
	return g.pass(ctx, call{verb: adapter.Notify, update: u}, func() error { return g.to.Notify(ctx, u) })
}

func (g *gate) Drain(ctx context.Context) error {
	return g.pass(ctx, call{verb: adapter.Drain}, func() error { return g.to.Drain(ctx) })
}

// make makes one call by hand.
func (w *world) make(l *drive.Life, v adapter.Verb) error {
	ctx, cancel := context.WithTimeout(w.t.Context(), patience)
	defer cancel()
	switch v {
	case adapter.Register:
		_, err := l.Register(ctx)
		return err
	case adapter.Configure:
		return l.Configure(ctx, w.section)
	case adapter.Sync:
		return l.Sync(ctx, w.state)
	case adapter.Notify:
		return l.Notify(ctx, adapter.Update{})
	}
	return l.Drain(ctx)
}

// clock stands still until it is advanced.
type clock struct {
	mu   sync.Mutex // guards:
	now  session.Now
	at   session.Now
	wake chan time.Time // of the last At; nil: it woke
}

func newClock() *clock { return &clock{} }

func (c *clock) Now() session.Now {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

// At implements drive.Clock.
func (c *clock) At(at session.Now) <-chan time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	wake := make(chan time.Time, 1)
	c.at, c.wake = at, wake
	c.ring()
	return wake
}

// advance lets d pass.
func (c *clock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now += d
	c.ring()
}

// ring wakes who waits for what has passed; under mu.
func (c *clock) ring() {
	if c.wake != nil && c.at <= c.now {
		c.wake <- time.Time{}
		c.wake = nil
	}
}
