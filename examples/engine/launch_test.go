package engine_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/batonkv/baton/examples/engine"
	"github.com/batonkv/baton/examples/engine/front"
	"github.com/batonkv/baton/examples/engine/tp"
	"github.com/batonkv/baton/sidecar/handoff"
)

// launch starts the ranks of a group in goroutines, with sessions of w unless it is nil.
func launch(t testing.TB, w *world, cfg engine.Config) []*engine.Rank {
	groups := tp.Pipes(cfg.Ranks())
	g := newGroup(cfg.Group)
	var ranks []*engine.Rank
	for i := range cfg.Ranks() {
		c := cfg
		c.Rank = i
		r, err := engine.New(c)
		if err != nil {
			t.Fatal(err)
		}
		ranks = append(ranks, r)
		if w != nil {
			g.sessions = append(g.sessions, w.attach(g, r, i))
		}
	}
	if w != nil {
		w.mu.Lock()
		w.groups[cfg.Group] = g
		w.mu.Unlock()
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	for i, r := range ranks {
		var s engine.Session
		if w != nil {
			s = g.sessions[i]
		}
		wg.Go(func() {
			if err := run(ctx, w, r, groups[i], s); err != nil {
				t.Errorf("rank %d: %v", i, err)
				_ = groups[i].Close()
			}
		})
	}
	t.Cleanup(func() {
		cancel()
		wg.Wait()
		for _, r := range ranks {
			_ = r.Close()
		}
	})
	return ranks
}

// run runs a rank, and again after each switch with a session of its new launch.
func run(ctx context.Context, w *world, r *engine.Rank, g *tp.Group, s engine.Session) error {
	for {
		err := r.Run(ctx, g, s)
		if !errors.Is(err, engine.ErrSwitched) {
			return err
		}
		if s, err = w.again(ctx, r); err != nil {
			return r.Run(ctx, g, nil)
		}
	}
}

// again attaches a rank as another launch, and waits until all of its ranks are.
func (w *world) again(ctx context.Context, r *engine.Rank) (engine.Session, error) {
	a := r.Attach()
	w.mu.Lock()
	g := w.groups[a.Group]
	if g.next == nil {
		g.next = newGroup(a.Group)
	}
	n := g.next
	w.mu.Unlock()
	s := w.attach(n, r, int(a.Rank))
	w.mu.Lock()
	n.sessions = append(n.sessions, s)
	if len(n.sessions) == int(a.Ranks) {
		slices.SortFunc(n.sessions, func(a, b *session) int { return a.rank - b.rank })
		w.groups[a.Group] = n
		close(n.formed)
	}
	w.mu.Unlock()
	select {
	case <-n.formed:
		return s, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func newGroup(name string) *group {
	return &group{name: name, formed: make(chan struct{}), exports: map[string][]handoff.Export{}, pulls: map[uint64]*pull{}, ids: map[string]handoff.ID{}}
}

// ask runs one request to its end.
func ask(t testing.TB, r *engine.Rank, req front.Request) ([]int32, front.Result, error) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	events, err := r.Submit(ctx, req)
	if err != nil {
		return nil, front.Result{}, err
	}
	return drainResult(events)
}

func drain(events <-chan front.Event) ([]int32, error) {
	tokens, _, err := drainResult(events)
	return tokens, err
}

func drainResult(events <-chan front.Event) (tokens []int32, _ front.Result, _ error) {
	for ev := range events {
		switch {
		case ev.Err != nil:
			return tokens, front.Result{}, ev.Err
		case ev.Result != nil:
			return tokens, *ev.Result, nil
		default:
			tokens = append(tokens, ev.Token)
		}
	}
	return nil, front.Result{}, errors.New("events ended")
}
