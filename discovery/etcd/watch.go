package etcd

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"sync"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/batonkv/baton/discovery"
	"github.com/batonkv/baton/discovery/internal/feed"
)

// ready is the name of a connection's one good state. gRPC's own type stays out of
// this package, which speaks to etcd and not gRPC.
const ready = "READY"

// Watch implements discovery.Registry. The view is stale, and the watch ends, when
// the connection breaks, etcd has no leader, or history was compacted away.
func (g *Registry) Watch(ctx context.Context, scope discovery.Scope) iter.Seq2[discovery.Snapshot, error] {
	return func(yield func(discovery.Snapshot, error) bool) {
		f := feed.New()
		rev, err := g.load(ctx, f, scope)
		if err != nil {
			yield(discovery.Snapshot{}, err)
			return
		}
		g.follow(ctx, f, scope, rev, yield)
	}
}

// load reads the scope's records at one revision.
func (g *Registry) load(ctx context.Context, f *feed.Feed, scope discovery.Scope) (int64, error) {
	if err := scope.Check(); err != nil {
		return 0, err
	}
	var gets []clientv3.Op
	for _, p := range scope.Prefixes() {
		gets = append(gets, clientv3.OpGet(p, clientv3.WithPrefix()))
	}
	ask, cancel := g.bounded(ctx)
	defer cancel()
	resp, err := g.client.Txn(ask).Then(gets...).Commit()
	if err != nil {
		return 0, g.down("read "+discovery.Root+scope.Cluster, err)
	}
	rev := resp.Header.Revision
	f.Change(rev, func(v *discovery.View) {
		for _, part := range resp.Responses {
			for _, kv := range part.GetResponseRange().Kvs {
				g.put(v, string(kv.Key), kv.Value)
			}
		}
	})
	return rev, nil
}

// follow yields what changes after rev. Its goroutines end before it returns.
func (g *Registry) follow(ctx context.Context, f *feed.Feed, scope discovery.Scope, rev int64, yield func(discovery.Snapshot, error) bool) {
	watch, cancel := context.WithCancel(ctx)
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	for _, p := range scope.Prefixes() {
		all.Go(func() { g.followPrefix(watch, f, p, rev) })
	}
	all.Go(func() { g.followConnection(watch, f) })
	f.Each(ctx, yield)
}

func (g *Registry) followPrefix(ctx context.Context, f *feed.Feed, prefix string, rev int64) {
	opts := []clientv3.OpOption{clientv3.WithPrefix(), clientv3.WithRev(rev + 1)}
	for resp := range g.client.Watch(clientv3.WithRequireLeader(ctx), prefix, opts...) {
		if err := resp.Err(); err != nil {
			f.Fail(fmt.Errorf("%w: watch of %s: %w: watch again", discovery.ErrDown, prefix, err))
			return
		}
		if len(resp.Events) == 0 {
			continue
		}
		f.Change(resp.Header.Revision, func(v *discovery.View) {
			for _, e := range resp.Events {
				if e.Type == clientv3.EventTypeDelete {
					v.Delete(string(e.Kv.Key))
				} else {
					g.put(v, string(e.Kv.Key), e.Kv.Value)
				}
			}
		})
	}
	if ctx.Err() == nil {
		f.Fail(fmt.Errorf("%w: watch of %s: %w", discovery.ErrDown, prefix, errors.New("the registry is closed")))
	}
}

// followConnection fails the feed when the connection leaves its good state: etcd's
// client would resume the watch in silence, however long that takes.
func (g *Registry) followConnection(ctx context.Context, f *feed.Feed) {
	conn := g.client.ActiveConnection()
	for state := conn.GetState(); state.String() == ready; state = conn.GetState() {
		if !conn.WaitForStateChange(ctx, state) {
			return
		}
	}
	f.Fail(g.down("watch", errors.New("the connection broke, the view is stale")))
}

// put adds a record to the view. What does not decode is as good as absent: one bad
// writer does not blind the watchers.
func (g *Registry) put(v *discovery.View, key string, value []byte) {
	r, err := discovery.DecodeAt(key, value)
	if err != nil {
		g.log.Warn("etcd: a record is passed over", "key", key, "err", err)
		v.Delete(key)
		return
	}
	v.Put(r)
}
