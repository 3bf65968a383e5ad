package route

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/batonkv/baton/discovery"
	"github.com/batonkv/baton/internal/pause"
	"github.com/batonkv/baton/proto/errs"
	"github.com/batonkv/baton/sidecar/control"
	"github.com/batonkv/baton/sidecar/control/client"
	"github.com/batonkv/baton/sidecar/handoff"
)

type handoffs struct{ *Router }

// Import has no deadline of its own: the sidecar answers within the import's.
func (h handoffs) Import(ctx context.Context, group string, m handoff.Import) (handoff.Imported, error) {
	return unbounded(ctx, h.Router, group, func(ctx context.Context, c *client.Client) (handoff.Imported, error) { return c.Import(ctx, m) })
}

func (h handoffs) Get(ctx context.Context, group string, id handoff.ID) (control.Info, error) {
	return call(ctx, h.Router, group, func(ctx context.Context, c *client.Client) (control.Info, error) { return c.Get(ctx, id) })
}

func (h handoffs) List(ctx context.Context, group string, q control.Query) (control.Page, error) {
	return call(ctx, h.Router, group, func(ctx context.Context, c *client.Client) (control.Page, error) { return c.List(ctx, q) })
}

func (h handoffs) Abort(ctx context.Context, group string, id handoff.ID) error {
	return done(ctx, h.Router, group, func(ctx context.Context, c *client.Client) error { return c.Abort(ctx, id, handoff.Key{}) })
}

func (h handoffs) Release(ctx context.Context, id handoff.ID, key handoff.Key) error {
	return done(ctx, h.Router, id.Group, func(ctx context.Context, c *client.Client) error { return c.Release(ctx, id, key) })
}

func (h handoffs) Watch(ctx context.Context, group string, from control.Cursor) iter.Seq2[control.Notice, error] {
	return func(yield func(control.Notice, error) bool) {
		if _, err := h.leader(ctx, group); errors.Is(err, handoff.ErrGroup) {
			yield(control.Notice{}, err)
			return
		}
		f := following{Router: h.Router, group: group, from: from, yield: yield, heard: time.Now()}
		if err := f.run(ctx); err != nil {
			yield(control.Notice{}, err)
		}
	}
}

// following is one Watch over all the leaders that it meets.
type following struct {
	*Router
	group string
	from  control.Cursor
	yield func(control.Notice, error) bool
	over  bool      // the reader has enough
	heard time.Time // when a leader was last there
}

// run returns nil when the reader has enough.
func (f *following) run(ctx context.Context) error {
	for wait := againMin; ; wait = min(2*wait, againMax/5) {
		before := f.from
		err := f.one(ctx)
		switch {
		case f.over:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil && final(err):
			return err
		}
		if f.from != before {
			wait = againMin
		}
		if gone := time.Since(f.heard); gone > f.cfg.Patience {
			return fmt.Errorf("group %s: nothing was heard of a leader for %v: %w", f.group, gone.Round(time.Second), orGone(err))
		}
		f.cfg.Log.Debug("watch goes on with the next leader", "group", f.group, "err", err)
		pause.For(ctx, wait)
	}
}

// final says that another leader, or another attempt, would say the same.
func final(err error) bool {
	for _, f := range []error{handoff.ErrDenied, handoff.ErrVersion, handoff.ErrBound, handoff.ErrHost} {
		if errors.Is(err, f) {
			return true
		}
	}
	return false
}

func orGone(err error) error {
	if err == nil {
		return handoff.ErrPeer // it ended the stream
	}
	return err
}

// one watches the present leader until it ends, is another process, or the reader has enough.
func (f *following) one(ctx context.Context) error {
	rec, err := f.leader(ctx, f.group)
	if err != nil {
		return err
	}
	c, err := f.conns.take(rec)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() { // ends with this call
		defer close(ended)
		f.otherLeader(ctx, rec)
		cancel()
	}()
	defer func() {
		cancel()
		<-ended
		f.conns.give(c, err)
	}()
	notices, err := c.client.OpenWatch(ctx, f.from)
	if err != nil {
		return err
	}
	defer func() {
		if !errs.Spoken(err) { // a leader that had nothing to tell was there all the same
			f.heard = time.Now()
		}
	}()
	for n, werr := range notices {
		if err = werr; err != nil {
			return err
		}
		f.from = n.After()
		if !f.yield(n, nil) {
			f.over = true
			return nil
		}
	}
	return nil
}

// otherLeader returns when another process leads the group, or ctx ends.
func (f *following) otherLeader(ctx context.Context, rec discovery.Record) {
	for {
		s, _, changed, _ := f.view.get()
		if now, ok := s.leaders[f.group]; ok && processOf(now) != processOf(rec) {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}
