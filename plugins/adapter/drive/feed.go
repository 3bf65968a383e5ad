package drive

import (
	"context"
	"fmt"
	"iter"
	"sync"

	"github.com/batonkv/baton/plugins/adapter"
	"github.com/batonkv/baton/sidecar/handoff"
)

// feed passes on what an adapter reads of the prefix cache, for as long as its life lasts.
type feed struct {
	to     adapter.BlockFeed // nil: nothing is known of it
	ctx    context.Context
	cancel context.CancelFunc

	mu      sync.Mutex // guards:
	reading bool
	work    sync.WaitGroup
}

func newFeed(life context.Context, to adapter.BlockFeed) *feed {
	f := &feed{to: to}
	f.ctx, f.cancel = context.WithCancel(life)
	return f
}

// end ends the read that runs, and refuses others.
func (f *feed) end() {
	f.mu.Lock() // none begins beside it
	defer f.mu.Unlock()
	f.cancel()
}

// enter begins a read; leave ends it.
func (f *feed) enter(ctx context.Context) (_ context.Context, leave func(), err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.ctx.Err() != nil:
		return nil, nil, fmt.Errorf("%w: the adapter's life is over", handoff.ErrOrder)
	case f.reading:
		return nil, nil, fmt.Errorf("%w: the blocks are read already: end that read first", handoff.ErrOrder)
	}
	f.reading = true
	f.work.Add(1)
	ctx, cancel := context.WithCancel(ctx)
	unbind := context.AfterFunc(f.ctx, cancel)
	return ctx, func() {
		unbind()
		cancel()
		f.mu.Lock()
		f.reading = false
		f.mu.Unlock()
		f.work.Done()
	}, nil
}

// Blocks implements adapter.BlockFeed.
func (f *feed) Blocks(ctx context.Context) iter.Seq2[adapter.BlockEvent, error] {
	return func(yield func(adapter.BlockEvent, error) bool) {
		ctx, leave, err := f.enter(ctx)
		if err != nil {
			yield(adapter.BlockEvent{}, err)
			return
		}
		defer leave()
		if f.to != nil {
			f.to.Blocks(ctx)(yield)
			return
		}
		if yield(adapter.BlockEvent{Kind: handoff.BlocksCleared}, nil) {
			<-ctx.Done()
			yield(adapter.BlockEvent{}, ctx.Err())
		}
	}
}
