package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/batonkv/baton/plugins/adapter/dynamo"
	"github.com/batonkv/baton/plugins/adapter/dynamo/directory"
	"github.com/batonkv/baton/plugins/adapter/dynamo/plane"
	"github.com/batonkv/baton/plugins/adapter/dynamo/wire"
	"github.com/batonkv/baton/sidecar/handoff"
)

// Bounds of a release.
const (
	releaseWithin = 10 * time.Second
	maxAsked      = 64  // groups
	maxReleases   = 256 // at once
)

// giveUp releases a hand-off that nobody will import. It waits for nothing. Callers bring
// manifests as fast as they like: what is beyond the bound is left to its lease.
func (w *Worker) giveUp(m handoff.Manifest) {
	select {
	case w.releases <- struct{}{}:
	default:
		w.unreleased(m, fmt.Errorf("%w: %d releases run", handoff.ErrCapacity, cap(w.releases)))
		return
	}
	w.tasks.Go(func() {
		defer func() { <-w.releases }()
		ctx, cancel := context.WithTimeout(context.Background(), releaseWithin)
		defer cancel()
		released, err := w.giveUpNow(ctx, m)
		switch {
		case err != nil:
			w.unreleased(m, err)
		case released:
			w.meter.released.Inc()
		}
	})
}

func (w *Worker) unreleased(m handoff.Manifest, err error) {
	w.meter.unreleased.Inc()
	w.cfg.Log.Warn("a hand-off that nobody imports may still be held; its lease ends it", "id", m.ID.String(), "err", err)
}

// giveUpNow asks the group that holds it, until one answers: first who has its card, then
// the others, since a group that takes no work has none. It reports whether it was held still.
func (w *Worker) giveUpNow(ctx context.Context, m handoff.Manifest) (bool, error) {
	named, others, err := w.holders(ctx, m.ID.Group)
	if err != nil {
		return false, err
	}
	err = fmt.Errorf("%w: no endpoint %s", handoff.ErrGroup, w.cfg.Dynamo.Endpoint("handoff"))
	all := slices.Concat(named, others)
	for n, to := range all[:min(len(all), maxAsked)] {
		err = w.askRelease(ctx, to, m)
		f, answered := errors.AsType[*wire.Fault](err)
		switch {
		case err == nil:
			return true, nil
		case answered && n < len(named) && f.Kind() == wire.NotFound: // its import has used it up
			return false, nil
		case answered && n < len(named):
			return false, err
		}
	}
	return false, err
}

func (w *Worker) askRelease(ctx context.Context, to plane.Target, m handoff.Manifest) error {
	d := dynamo.FromManifest(m)
	a, err := w.client.Call(ctx, to, dynamo.HandoffRequest{Op: "release", ID: &d.ID, Key: d.Key})
	if err != nil {
		return err
	}
	defer a.Close()
	var done dynamo.Done
	return a.Next(ctx, &done)
}

// holders are the handoff endpoints, those of a group by its cards apart. A process that was
// killed has one until its lease ends.
func (w *Worker) holders(ctx context.Context, group string) (named, others []plane.Target, err error) {
	e := w.cfg.Dynamo.Endpoint("handoff")
	path := e.Namespace + "/" + e.Component + "/" + e.Name + "/"
	cards, err := first(ctx, w.backend, directory.Models+path)
	if err != nil {
		return nil, nil, err
	}
	records, err := first(ctx, w.backend, directory.Instances+path)
	if err != nil {
		return nil, nil, err
	}
	its := map[uint64]bool{}
	for _, r := range cards {
		var m directory.Model
		if json.Unmarshal(r.Value, &m) == nil && m.Group() == group {
			its[m.ID] = true
		}
	}
	for _, r := range records {
		var i directory.Instance
		if json.Unmarshal(r.Value, &i) != nil {
			continue
		}
		if to, ok := target(i); ok && its[i.ID] {
			named = append(named, to)
		} else if ok {
			others = append(others, to)
		}
	}
	return named, others, nil
}

// missGroup warns when no group has the name that the worker was given: hand-offs are not
// released then, and routers hear of no cache. It warns of another worker of the group, too:
// routers take the one engine for two.
func (w *Worker) missGroup() {
	if w.cfg.Group == "" {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), releaseWithin)
	defer cancel()
	if named, _, err := w.holders(ctx, w.cfg.Group); err == nil && len(named) == 0 {
		w.cfg.Log.Warn("no group of this name has joined the deployment: look at --group, and whether rank 0's sidecar has the adapter", "group", w.cfg.Group, "component", w.cfg.Dynamo.Component)
	}
	e := w.endpoint()
	cards, err := first(ctx, w.backend, directory.Models+e.Namespace+"/"+e.Component+"/"+e.Name+"/")
	if err != nil {
		return
	}
	for _, r := range cards {
		var m directory.Model
		if json.Unmarshal(r.Value, &m) == nil && m.Group() == w.cfg.Group && m.ID != w.id {
			w.cfg.Log.Warn("another worker serves this group: an engine wants one, since routers take each for an engine of its own", "group", w.cfg.Group, "instance", fmt.Sprintf("%x", m.ID))
		}
	}
}

// first is the first snapshot of a watch.
func first(ctx context.Context, b directory.Backend, prefix string) (directory.Snapshot, error) {
	for s, err := range b.Watch(ctx, prefix) {
		return s, err
	}
	return nil, ctx.Err()
}
