package etcd

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/batonkv/baton/discovery"
)

// lookAgain is the pause between two looks at a key whose watch broke, or whose holder
// lives: a process that dies changes no key.
const lookAgain = time.Second

// goodbye bounds the last word to an etcd that may be gone itself: a lease that is not
// ended runs out, and a process that ends does not wait for that.
const goodbye = time.Second

// Register implements discovery.Registry.
func (g *Registry) Register(ctx context.Context, r discovery.Record) (discovery.Registration, error) {
	value, err := discovery.EncodeRecord(r)
	if err != nil {
		return nil, err
	}
	ask, cancel := g.bounded(ctx)
	defer cancel()
	grant, err := g.client.Grant(ask, int64(g.cfg.TTL/time.Second))
	if err != nil {
		return nil, g.down("ask for a lease", err)
	}
	life, end := context.WithCancel(context.Background())
	reg := &registration{
		registry: g, lease: grant.ID, key: r.Key(), record: r,
		end: end, lost: make(chan struct{}), done: make(chan struct{}),
	}
	// The lease lives while the key is waited for, so its renewal starts first.
	alive, err := g.client.KeepAlive(life, grant.ID)
	if err != nil {
		end()
		return nil, errors.Join(g.down("renew the lease", err), reg.revoke(ctx))
	}
	rev, err := reg.claim(ctx, string(value))
	if err == nil && !g.keep(reg) {
		err = fmt.Errorf("%w: the registry is closed", discovery.ErrDown)
	}
	if err != nil {
		end()
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), goodbye)
		defer cancel()
		return nil, errors.Join(err, reg.revoke(last))
	}
	go reg.run(life, alive, rev)
	return reg, nil
}

// registration implements discovery.Registration. Its goroutine, run, ends when the
// record is lost or Close asks; it closes lost.
type registration struct {
	registry *Registry
	lease    clientv3.LeaseID
	key      string
	record   discovery.Record // as registered: name and incarnation are for life
	end      context.CancelFunc
	lost     chan struct{}
	done     chan struct{} // closed when run has ended

	revoking sync.Once
	revoked  error
}

// claim puts value at the key as soon as the takeover rule lets it, and gives the
// revision of that. ErrTaken when ctx ends before.
func (r *registration) claim(ctx context.Context, value string) (int64, error) {
	cmp := clientv3.Compare(clientv3.CreateRevision(r.key), "=", 0)
	var told uint64 // incarnation of the holder that the log names
	for {
		rev, held, err := r.tryPut(ctx, cmp, value)
		if err != nil || rev != 0 {
			return rev, err
		}
		cmp = clientv3.Compare(clientv3.CreateRevision(r.key), "=", 0)
		if held == nil {
			continue // it went between the comparison and the read's answer
		}
		holder, bad := discovery.DecodeAt(r.key, held.Value)
		if bad == nil && r.record.Replaces(holder, r.registry.cfg.Alive) {
			cmp = clientv3.Compare(clientv3.ModRevision(r.key), "=", held.ModRevision)
			continue
		}
		if bad == nil && holder.Incarnation != told {
			told = holder.Incarnation
			r.registry.log.Warn(fmt.Sprintf("rank is held by pid %d on host %s; waiting", holder.PID, holder.Host),
				"name", holder.Name(), "addr", holder.Addr, "here", holder.Host == r.record.Host)
		}
		if err := r.awaitChange(ctx, held.ModRevision); err == nil {
			continue
		} else if ctx.Err() == nil {
			return 0, err
		}
		if bad != nil {
			return 0, fmt.Errorf("%w: %s holds what is no record of it: delete the key: %w", discovery.ErrTaken, r.key, bad)
		}
		return 0, holder.Taken(context.Cause(ctx))
	}
}

// tryPut puts value under the lease when cmp holds and gives the revision; else it
// gives what the key holds, nil when nothing.
func (r *registration) tryPut(ctx context.Context, cmp clientv3.Cmp, value string) (int64, *mvccpb.KeyValue, error) {
	g := r.registry
	ask, cancel := g.bounded(ctx)
	defer cancel()
	resp, err := g.client.Txn(ask).If(cmp).
		Then(clientv3.OpPut(r.key, value, clientv3.WithLease(r.lease))).
		Else(clientv3.OpGet(r.key)).
		Commit()
	if err != nil {
		return 0, nil, g.down("register "+r.key, err)
	}
	if resp.Succeeded {
		return resp.Header.Revision, nil, nil
	}
	if kvs := resp.Responses[0].GetResponseRange().Kvs; len(kvs) > 0 {
		return 0, kvs[0], nil
	}
	return 0, nil, nil
}

// awaitChange returns when the key changed after revision rev, when it is time to ask
// again whether the holder's process lives, or with an error.
func (r *registration) awaitChange(ctx context.Context, rev int64) error {
	watch, cancel := context.WithTimeout(clientv3.WithRequireLeader(ctx), lookAgain)
	defer cancel()
	for resp := range r.registry.client.Watch(watch, r.key, clientv3.WithRev(rev+1)) {
		if err := resp.Err(); err != nil {
			if resp.CompactRevision > 0 {
				return nil // the change is older than etcd's memory of changes
			}
			return r.registry.down("wait for "+r.key, err)
		}
		if len(resp.Events) > 0 {
			return nil
		}
	}
	if ctx.Err() == nil && watch.Err() != nil {
		return nil
	}
	return r.registry.down("wait for "+r.key, context.Cause(ctx))
}

// run keeps the lease and looks after the key until the record is no more ours. The
// two have a goroutine each: a watch that etcd does not answer must not hide that the
// lease has run out.
func (r *registration) run(ctx context.Context, alive <-chan *clientv3.LeaseKeepAliveResponse, rev int64) {
	defer close(r.done)
	var both sync.WaitGroup
	defer both.Wait()
	both.Go(func() {
		defer r.end()
		for range alive {
		}
	})
	both.Go(func() {
		defer r.end()
		r.followKey(ctx, rev)
	})
	<-ctx.Done()
	close(r.lost)
}

// followKey returns when the key is no more ours, or ctx ends.
func (r *registration) followKey(ctx context.Context, rev int64) {
	for ctx.Err() == nil {
		for resp := range r.registry.client.Watch(ctx, r.key, clientv3.WithRev(rev+1)) {
			if resp.Err() != nil {
				break
			}
			if !r.oursAfter(resp.Events) {
				return
			}
		}
		kept, at, err := r.ours(ctx)
		if err == nil && !kept {
			return
		}
		if err == nil {
			rev = at
		}
		select {
		case <-ctx.Done():
		case <-time.After(lookAgain):
		}
	}
}

func (r *registration) oursAfter(events []*clientv3.Event) bool {
	for _, e := range events {
		if e.Type == clientv3.EventTypeDelete || clientv3.LeaseID(e.Kv.Lease) != r.lease {
			return false
		}
	}
	return true
}

// ours reads whether the key is under our lease, and at which revision that was so.
func (r *registration) ours(ctx context.Context) (bool, int64, error) {
	ask, cancel := r.registry.bounded(ctx)
	defer cancel()
	resp, err := r.registry.client.Get(ask, r.key)
	if err != nil {
		return false, 0, err
	}
	kept := len(resp.Kvs) == 1 && clientv3.LeaseID(resp.Kvs[0].Lease) == r.lease
	return kept, resp.Header.Revision, nil
}

// Update implements discovery.Registration.
func (r *registration) Update(ctx context.Context, record discovery.Record) error {
	value, err := discovery.EncodeRecord(record)
	if err != nil {
		return err
	}
	if err := record.Succeeds(r.record); err != nil {
		return err
	}
	ask, cancel := r.registry.bounded(ctx)
	defer cancel()
	resp, err := r.registry.client.Txn(ask).
		If(clientv3.Compare(clientv3.LeaseValue(r.key), "=", r.lease)).
		Then(clientv3.OpPut(r.key, string(value), clientv3.WithLease(r.lease))).
		Commit()
	if err != nil && !errors.Is(err, rpctypes.ErrLeaseNotFound) {
		return r.registry.down("update "+r.key, err)
	}
	if err != nil || !resp.Succeeded {
		r.end() // run ends and closes Lost
		return fmt.Errorf("%w: %s: stop intake and register anew", discovery.ErrLost, r.record.Name())
	}
	return nil
}

// Lost implements discovery.Registration.
func (r *registration) Lost() <-chan struct{} { return r.lost }

// Close implements discovery.Registration: it removes the record, if it is still
// ours, by ending the lease.
func (r *registration) Close(ctx context.Context) error {
	r.registry.forget(r)
	r.end()
	<-r.done
	return r.revoke(ctx)
}

func (r *registration) revoke(ctx context.Context) error {
	r.revoking.Do(func() {
		ask, cancel := r.registry.bounded(ctx)
		defer cancel()
		if _, err := r.registry.client.Revoke(ask, r.lease); err != nil && !errors.Is(err, rpctypes.ErrLeaseNotFound) {
			r.revoked = r.registry.down("end the lease of "+r.key, err)
		}
	})
	return r.revoked
}
