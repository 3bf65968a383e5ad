package directory

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/batonkv/baton/discovery/etcd"
)

// Etcd is the backend that Dynamo uses unless told otherwise.
type Etcd struct {
	client *clientv3.Client
	ttl    time.Duration
}

// OpenEtcd makes a client. It dials when it is used.
func OpenEtcd(cfg etcd.Config) (*Etcd, error) {
	c, err := cfg.Connect()
	if err != nil {
		return nil, err
	}
	return &Etcd{client: c, ttl: cfg.TTL}, nil
}

// Close implements Backend.
func (e *Etcd) Close() error { return e.client.Close() }

func (e *Etcd) down(op string, err error) error {
	return fmt.Errorf("%w: etcd at %s: %s: %w", ErrDown, strings.Join(e.client.Endpoints(), ", "), op, err)
}

// Lease implements Backend.
func (e *Etcd) Lease(ctx context.Context) (Lease, error) {
	g, err := e.client.Grant(ctx, int64(e.ttl/time.Second))
	if err != nil {
		return nil, e.down("ask for a lease", err)
	}
	life, end := context.WithCancel(context.Background())
	alive, err := e.client.KeepAlive(life, g.ID)
	if err != nil {
		end()
		return nil, e.down("renew the lease", err)
	}
	l := &etcdLease{etcd: e, id: g.ID, end: end, lost: make(chan struct{})}
	l.over.Go(func() {
		defer close(l.lost)
		for range alive {
		}
	})
	return l, nil
}

type etcdLease struct {
	etcd *Etcd
	id   clientv3.LeaseID
	end  context.CancelFunc
	lost chan struct{}
	over sync.WaitGroup
}

func (l *etcdLease) Lost() <-chan struct{} { return l.lost }

// Put takes over its own value from an earlier lease, whose end would remove it.
func (l *etcdLease) Put(ctx context.Context, r Record) error {
	put := clientv3.OpPut(r.Key, string(r.Value), clientv3.WithLease(l.id))
	resp, err := l.etcd.client.Txn(ctx).If(clientv3.Compare(clientv3.CreateRevision(r.Key), "=", 0)).
		Then(put).Else(clientv3.OpGet(r.Key)).Commit()
	if errors.Is(err, rpctypes.ErrLeaseNotFound) {
		l.end() // etcd has forgotten it: Lost need not wait for the next renewal
	}
	if err != nil {
		return l.etcd.down("put "+r.Key, err)
	}
	if resp.Succeeded {
		return nil
	}
	kvs := resp.Responses[0].GetResponseRange().Kvs
	switch {
	case len(kvs) == 0:
		return l.etcd.down("put "+r.Key, fmt.Errorf("it came and went"))
	case !bytes.Equal(kvs[0].Value, r.Value):
		return fmt.Errorf("%w: etcd key %s: delete it if its process is gone", ErrTaken, r.Key)
	case kvs[0].Lease == int64(l.id):
		return nil
	}
	resp, err = l.etcd.client.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(r.Key), "=", kvs[0].ModRevision)).Then(put).Commit()
	if err == nil && !resp.Succeeded {
		err = fmt.Errorf("it changes")
	}
	if err != nil {
		return l.etcd.down("take over "+r.Key, err)
	}
	return nil
}

func (l *etcdLease) Delete(ctx context.Context, key string) error {
	_, err := l.etcd.client.Txn(ctx).If(clientv3.Compare(clientv3.LeaseValue(key), "=", l.id)).Then(clientv3.OpDelete(key)).Commit()
	if err != nil {
		return l.etcd.down("delete "+key, err)
	}
	return nil
}

func (l *etcdLease) End(ctx context.Context) error {
	l.end()
	l.over.Wait()
	if _, err := l.etcd.client.Revoke(ctx, l.id); err != nil {
		return l.etcd.down("end the lease", err)
	}
	return nil
}

// Watch implements Backend.
func (e *Etcd) Watch(ctx context.Context, prefix string) iter.Seq2[Snapshot, error] {
	return func(yield func(Snapshot, error) bool) {
		ask, cancel := context.WithTimeout(ctx, within)
		got, err := e.client.Get(ask, prefix, clientv3.WithPrefix())
		cancel()
		if err != nil {
			yield(nil, e.down("read "+prefix, err))
			return
		}
		view := map[string]Record{}
		for _, kv := range got.Kvs {
			put(view, string(kv.Key), kv.Value)
		}
		if !yield(snapshot(view), nil) {
			return
		}
		watch, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
		defer cancel()
		changes := e.client.Watch(watch, prefix, clientv3.WithPrefix(), clientv3.WithRev(got.Header.Revision+1))
		for resp := range changes {
			for more := true; more; {
				if err := resp.Err(); err != nil {
					yield(nil, e.down("watch "+prefix, err))
					return
				}
				apply(view, resp.Events)
				select {
				case resp, more = <-changes:
				default:
					more = false
				}
			}
			if !yield(snapshot(view), nil) {
				return
			}
		}
		if err := ctx.Err(); err != nil {
			yield(nil, err)
		} else {
			yield(nil, e.down("watch "+prefix, fmt.Errorf("it has ended")))
		}
	}
}

func apply(view map[string]Record, events []*clientv3.Event) {
	for _, ev := range events {
		if ev.Type == clientv3.EventTypeDelete {
			delete(view, string(ev.Kv.Key))
		} else {
			put(view, string(ev.Kv.Key), ev.Kv.Value)
		}
	}
}

// put notes a record; one over the bound is as if it were not there.
func put(view map[string]Record, key string, value []byte) {
	if len(value) > MaxRecord {
		delete(view, key)
		return
	}
	view[key] = Record{key, value}
}

func snapshot(view map[string]Record) Snapshot {
	s := make(Snapshot, 0, len(view))
	for _, key := range slices.Sorted(maps.Keys(view)) {
		s = append(s, view[key])
	}
	return s
}
