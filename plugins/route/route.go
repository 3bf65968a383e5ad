// Package route is the interfaces of package plugins over the sidecars themselves: it finds
// the leader of the group that a call names and calls its control service. It keeps no
// state of a hand-off: a router may die at any instant.
//
// One watch of discovery is shared by all calls. A group's leader is rank 0 of the newest
// snapshot; a connection to it is kept while it is the leader, and is closed after the last
// call on it.
package route

import (
	"context"
	"crypto/tls"
	"fmt"
	"iter"
	"log/slog"
	"sync"
	"time"

	"github.com/batonkv/baton/discovery"
	"github.com/batonkv/baton/plugins"
	"github.com/batonkv/baton/sidecar/control/client"
	"github.com/batonkv/baton/sidecar/handoff"
)

// Source is where sidecars are found; its snapshots are of one cluster. One and Discovery
// make one. A non-nil error is the last item.
type Source func(ctx context.Context) iter.Seq2[discovery.Snapshot, error]

// Discovery is every sidecar of a cluster.
func Discovery(r discovery.Registry, cluster string) Source {
	return func(ctx context.Context) iter.Seq2[discovery.Snapshot, error] {
		return r.Watch(ctx, discovery.Scope{Cluster: cluster})
	}
}

// Config is what a Router needs; zero durations and counts have defaults.
type Config struct {
	Source Source
	// TLS is how the sidecar of a record is dialled: it shows a certificate of control/…
	// or admin/…, and takes that sidecar's alone.
	TLS func(discovery.Record) *tls.Config
	// Call bounds a call whose context has no deadline, but Import and Watch; 30 s.
	Call time.Duration
	// Patience is how long a Watch waits for a leader that is gone; 1 min.
	Patience time.Duration
	// Connections bounds those to leaders that no call uses; 256.
	Connections int
	Log         *slog.Logger // nil: discards
}

// Router is the three interfaces. Safe for concurrent use. Its owner calls Close.
type Router struct {
	cfg   Config
	view  *view
	conns *conns
	stop  context.CancelFunc
	over  sync.WaitGroup
}

// New starts to watch. It waits for nothing.
func New(c Config) *Router {
	if c.Call == 0 {
		c.Call = 30 * time.Second
	}
	if c.Patience == 0 {
		c.Patience = time.Minute
	}
	if c.Connections == 0 {
		c.Connections = 256
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	ctx, stop := context.WithCancel(context.Background())
	r := &Router{cfg: c, view: newView(), conns: newConns(c.Connections, c.TLS), stop: stop}
	r.over.Go(func() { r.view.run(ctx, c.Source, c.Log, r.conns.keep) })
	return r
}

// Close ends the watch and every connection, with the calls on it.
func (r *Router) Close() error {
	r.stop()
	r.over.Wait()
	return r.conns.close()
}

// Handoff, Reshard and Cluster are the interfaces.
func (r *Router) Handoff() plugins.Handoff { return handoffs{r} }
func (r *Router) Reshard() plugins.Reshard { return reshards{r} }
func (r *Router) Cluster() plugins.Cluster { return clusters{r} }

// leader is the record of group's rank 0, as of now.
func (r *Router) leader(ctx context.Context, group string) (discovery.Record, error) {
	s, err := r.view.first(ctx)
	if err != nil {
		return discovery.Record{}, err
	}
	return s.leader(group)
}

// call has f call the leader of group. What fails names the group.
func call[T any](ctx context.Context, r *Router, group string, f func(context.Context, *client.Client) (T, error)) (T, error) {
	if _, bounded := ctx.Deadline(); !bounded {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, r.cfg.Call)
		defer cancel()
	}
	return unbounded(ctx, r, group, f)
}

// unbounded is call without a deadline of its own.
func unbounded[T any](ctx context.Context, r *Router, group string, f func(context.Context, *client.Client) (T, error)) (got T, err error) {
	rec, err := r.leader(ctx, group)
	if err != nil {
		return got, err
	}
	c, err := r.conns.take(rec)
	if err != nil {
		return got, fmt.Errorf("group %s: %w", group, err)
	}
	defer func() { r.conns.give(c, err) }()
	if got, err = f(ctx, c.client); err != nil {
		return got, fmt.Errorf("group %s: %w", group, err)
	}
	return got, nil
}

// done is call for what answers nothing.
func done(ctx context.Context, r *Router, group string, f func(context.Context, *client.Client) error) error {
	_, err := call(ctx, r, group, func(ctx context.Context, c *client.Client) (struct{}, error) { return struct{}{}, f(ctx, c) })
	return err
}

// unknown names a group that nobody registered.
func unknown(group string, s *snapshot) error {
	if near := s.nearest(group); near != "" {
		return fmt.Errorf("%w: %s: did you mean %s?", handoff.ErrGroup, group, near)
	}
	return fmt.Errorf("%w: %s: no sidecar of it is registered; %d other groups are", handoff.ErrGroup, group, len(s.groups))
}
