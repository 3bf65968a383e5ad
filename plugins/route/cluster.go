package route

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"

	"github.com/batonkv/baton/discovery"
	"github.com/batonkv/baton/plugins"
	"github.com/batonkv/baton/sidecar/control"
	"github.com/batonkv/baton/sidecar/control/client"
	"github.com/batonkv/baton/sidecar/handoff"
	"github.com/batonkv/baton/transfer/layout"
)

type clusters struct{ *Router }

func (c clusters) Groups(ctx context.Context) ([]plugins.Group, error) {
	s, err := c.view.first(ctx)
	if err != nil {
		return nil, err
	}
	return slices.Clone(s.groups), nil
}

func (c clusters) Watch(ctx context.Context) iter.Seq2[[]plugins.Group, error] {
	return func(yield func([]plugins.Group, error) bool) {
		for last := int64(0); ; {
			s, rev, changed, _ := c.view.get()
			if rev > last {
				if last = rev; !yield(slices.Clone(s.groups), nil) {
					return
				}
				continue
			}
			select {
			case <-changed:
			case <-ctx.Done():
				yield(nil, ctx.Err())
				return
			}
		}
	}
}

// Describe leaves the geometry empty while the group is not complete.
func (c clusters) Describe(ctx context.Context, group string) (plugins.Detail, error) {
	return call(ctx, c.Router, group, func(ctx context.Context, cl *client.Client) (d plugins.Detail, err error) {
		if d.Status, err = cl.Status(ctx); err != nil {
			return d, err
		}
		if d.Geometry, err = cl.Geometry(ctx); errors.Is(err, handoff.ErrNotReady) {
			err = nil
		}
		return d, err
	})
}

func (c clusters) Links(ctx context.Context, group string, rank layout.Rank, q control.LinksQuery) (control.Links, error) {
	s, err := c.view.first(ctx)
	if err != nil {
		return control.Links{}, err
	}
	i := slices.IndexFunc(s.records, func(r discovery.Record) bool { return r.Group == group && layout.Rank(r.Rank) == rank })
	switch {
	case s.ranks[group] == 0:
		return control.Links{}, unknown(group, s)
	case i < 0:
		return control.Links{}, fmt.Errorf("%w: group %s: rank %d is not registered, %d others are", handoff.ErrNotReady, group, rank, s.ranks[group])
	}
	l, err := c.linksOf(ctx, s.records[i], q)
	if err != nil {
		return l, fmt.Errorf("group %s, rank %d: %w", group, rank, err)
	}
	return l, nil
}

func (c clusters) Do(ctx context.Context, group string, a handoff.Action) error {
	return done(ctx, c.Router, group, func(ctx context.Context, cl *client.Client) error { return cl.Do(ctx, a) })
}

func (c clusters) SetWeightsEpoch(ctx context.Context, group string, epoch uint64) error {
	return done(ctx, c.Router, group, func(ctx context.Context, cl *client.Client) error { return cl.SetWeightsEpoch(ctx, epoch) })
}

func (c clusters) Drain(ctx context.Context, group string, resume bool) (control.Drain, error) {
	return call(ctx, c.Router, group, func(ctx context.Context, cl *client.Client) (control.Drain, error) {
		return cl.Drain(ctx, resume)
	})
}

func (c clusters) Reset(ctx context.Context, group string) error {
	return done(ctx, c.Router, group, func(ctx context.Context, cl *client.Client) error { return cl.Reset(ctx) })
}
