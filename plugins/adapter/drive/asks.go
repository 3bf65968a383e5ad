package drive

import (
	"context"
	"fmt"
	"sync"

	"github.com/batonkv/baton/plugins/adapter"
	"github.com/batonkv/baton/sidecar/control"
	"github.com/batonkv/baton/sidecar/handoff"
)

// asks passes on what an adapter asks, for as long as its life lasts.
type asks struct {
	to   adapter.Calls
	life context.Context
	room chan struct{} // holds a place for each that runs

	mu   sync.Mutex // guards:
	over bool
	work sync.WaitGroup
}

func newAsks(life context.Context, to adapter.Calls) *asks {
	return &asks{to: to, life: life, room: make(chan struct{}, adapter.MaxAsks)}
}

// refuse refuses what is asked from here on.
func (a *asks) refuse() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.over = true
}

// close refuses, and waits for what runs: its life has ended.
func (a *asks) close() {
	a.refuse()
	a.work.Wait()
}

// enter takes a place; leave gives it back. ctx ends with the life.
func (a *asks) enter(ctx context.Context) (_ context.Context, leave func(), err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.over {
		return nil, nil, fmt.Errorf("%w: the adapter's life is over", handoff.ErrOrder)
	}
	select {
	case a.room <- struct{}{}:
	default:
		return nil, nil, fmt.Errorf("%w: %d calls of this adapter run: ask again when one has ended", handoff.ErrCapacity, adapter.MaxAsks)
	}
	a.work.Add(1)
	ctx, cancel := context.WithCancel(ctx)
	unbind := context.AfterFunc(a.life, cancel)
	return ctx, func() { unbind(); cancel(); <-a.room; a.work.Done() }, nil
}

func (a *asks) Import(ctx context.Context, m handoff.Import) (handoff.Imported, error) {
	ctx, leave, err := a.enter(ctx)
	if err != nil {
		return handoff.Imported{}, err
	}
	defer leave()
	return a.to.Import(ctx, m)
}

func (a *asks) Get(ctx context.Context, id handoff.ID) (control.Info, error) {
	ctx, leave, err := a.enter(ctx)
	if err != nil {
		return control.Info{}, err
	}
	defer leave()
	return a.to.Get(ctx, id)
}

func (a *asks) List(ctx context.Context, q control.Query) (control.Page, error) {
	ctx, leave, err := a.enter(ctx)
	if err != nil {
		return control.Page{}, err
	}
	defer leave()
	return a.to.List(ctx, q)
}

func (a *asks) Abort(ctx context.Context, id handoff.ID, key handoff.Key) error {
	ctx, leave, err := a.enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	if key == (handoff.Key{}) { // which is any to the group
		return fmt.Errorf("%w: an abort of %v names no key", handoff.ErrUnknown, id)
	}
	return a.to.Abort(ctx, id, key)
}

func (a *asks) Release(ctx context.Context, id handoff.ID, key handoff.Key) error {
	ctx, leave, err := a.enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	return a.to.Release(ctx, id, key)
}
