package drive

import (
	"context"
	"errors"
	"iter"
	"slices"
	"sync"

	"github.com/batonkv/baton/plugins/adapter"
	"github.com/batonkv/baton/sidecar/control"
	"github.com/batonkv/baton/sidecar/handoff"
	"github.com/batonkv/baton/transfer/layout"
)

// Of is the source that a group's leader is. Of g the names and the role are taken.
func Of(g adapter.Group, svc control.Service) Source {
	return &leader{Service: svc, group: adapter.Group{Cluster: g.Cluster, Pool: g.Pool, Name: g.Name, Tenant: g.Tenant, Role: g.Role}}
}

type leader struct {
	control.Service
	group adapter.Group

	mu     sync.Mutex // guards:
	of     handoff.Instance
	digest [32]byte // of the geometry of this launch
}

// State asks for its parts one after the other. What changes meanwhile is in the next one.
func (l *leader) State(ctx context.Context) (adapter.State, error) {
	s := adapter.State{Group: l.group}
	var err error
	if s.Group.Status, err = l.Status(ctx); err != nil {
		return adapter.State{}, err
	}
	s.Group.Status.Counters = nil // they change with every message
	switch g, err := l.Geometry(ctx); {
	case err == nil:
		s.Group.Model, s.Group.WeightsEpoch, s.Group.Geometry = g.Name, g.WeightsEpoch, l.sum(g)
	case !errors.Is(err, handoff.ErrNotReady):
		return adapter.State{}, err
	}
	s.Handoffs, s.More, err = l.handoffs(ctx)
	return s, err
}

// handoffs are held or running.
func (l *leader) handoffs(ctx context.Context) (all []control.Info, more bool, err error) {
	for q := (control.Query{Live: true}); len(all) < adapter.MaxHandoffs; {
		p, err := l.List(ctx, q)
		if err != nil {
			return nil, false, err
		}
		for _, i := range p.Infos {
			i.Err = nil // it ends soon, and a notice says why
			all = append(all, i)
		}
		if q.Page, more = p.Next, p.Next != ""; !more {
			break
		}
	}
	slices.SortFunc(all, func(a, b control.Info) int { return adapter.Compare(a.ID, b.ID) })
	return slices.CompactFunc(all, func(a, b control.Info) bool { return a.ID == b.ID }), more, nil
}

// sum is the digest of a launch's geometry, which is made once.
func (l *leader) sum(g control.Geometry) [32]byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.of != g.Instance || g.Instance == 0 {
		l.of, l.digest = g.Instance, layout.GeometryDigest(g.Model, g.Shards)
	}
	return l.digest
}

func (l *leader) Watch(ctx context.Context) iter.Seq2[control.Notice, error] {
	return l.Service.Watch(ctx, control.Cursor{})
}
