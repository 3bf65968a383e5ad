package plugintest

import (
	"context"
	"errors"
	"iter"
	"sync"
	"testing"
	"time"

	"github.com/batonkv/baton/internal/pause"
	"github.com/batonkv/baton/plugins/adapter"
	"github.com/batonkv/baton/plugins/adapter/session"
	"github.com/batonkv/baton/sidecar/handoff"
)

// blockTokens is how many tokens a block of the suite's engine has.
const blockTokens = 16

// cache is the prefix cache of the world's engine: one sequence, of blocks 1, 2, 3….
type cache struct {
	mu     sync.Mutex // guards:
	change chan struct{}
	blocks int
	again  int  // how often everything was told anew
	breaks bool // the read that runs ends
	reads  int  // that began,
	ended  int  // and that ended
}

func newCache() *cache { return &cache{change: make(chan struct{})} }

// do changes what a read tells.
func (c *cache) do(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f()
	close(c.change)
	c.change = make(chan struct{})
}

var errBroken = errors.New("the suite ends this read")

// Blocks implements adapter.BlockFeed.
func (c *cache) Blocks(ctx context.Context) iter.Seq2[adapter.BlockEvent, error] {
	return func(yield func(adapter.BlockEvent, error) bool) {
		c.do(func() { c.reads++ })
		defer c.do(func() { c.ended++ })
		for told, again := 0, -1; ; {
			c.mu.Lock()
			blocks, change, broken, anew := c.blocks, c.change, c.breaks, c.again
			c.breaks = false
			c.mu.Unlock()
			var e adapter.BlockEvent
			switch {
			case broken:
				yield(e, errBroken)
				return
			case anew != again:
				e = adapter.BlockEvent{Kind: handoff.BlocksCleared, Lost: uint64(anew)}
				again, told = anew, 0
			case told < blocks:
				told++
				e = stored(told)
			case told > blocks:
				e = adapter.BlockEvent{Kind: handoff.BlocksRemoved, Removed: []uint64{uint64(told)}}
				told--
			default:
				select {
				case <-change:
				case <-ctx.Done():
					yield(e, ctx.Err())
					return
				}
				continue
			}
			if !yield(e, nil) {
				return
			}
		}
	}
}

// stored is block n, which continues the one before it.
func stored(n int) adapter.BlockEvent {
	b := adapter.StoredBlock{ID: uint64(n)}
	for i := range int32(blockTokens) {
		b.Tokens = append(b.Tokens, int32(n)*blockTokens+i)
	}
	return adapter.BlockEvent{Kind: handoff.BlocksStored, Parent: uint64(n - 1), BlockTokens: blockTokens, Blocks: []adapter.StoredBlock{b}}
}

// hold has the cache hold n blocks, and waits until the control plane shows them.
func (w *world) hold(n int) {
	w.t.Helper()
	w.cache.do(func() { w.cache.blocks = n })
	began := time.Now()
	for got := w.s.Blocks(w.t); got != n; got = w.s.Blocks(w.t) {
		if time.Since(began) > patience {
			w.t.Fatalf("the control plane shows %d blocks, want %d", got, n)
		}
		pause.For(w.t.Context(), time.Millisecond) // a control plane tells nobody what it shows
	}
}

// blocks tells what the engine's prefix cache holds: what changes, after a read that ended,
// after everything is told anew, and to another life. No read outlasts its life, and an adapter
// that reads none is told of none.
func blocks(t *testing.T, s Subject) {
	w := start(t, s, s.Section)
	w.serving(0)
	if s.Blocks != nil {
		w.hold(5)
		w.hold(3)
		w.cache.do(func() { w.cache.breaks, w.cache.blocks = true, 2 })
		w.hold(2)
		w.hold(4)
		w.cache.do(func() { w.cache.again++ })
		w.hold(1)
		w.kill()
		w.await("waits", func(st session.Status) bool { return st.Stage == session.Waiting })
		w.cache.do(func() { w.cache.blocks = 6 })
		w.clock.advance(w.cfg.Most)
		w.serving(1)
		w.hold(6)
		w.hold(0)
	}
	w.told()
	w.stop()
	w.cache.mu.Lock()
	defer w.cache.mu.Unlock()
	if reads, want := w.cache.reads, s.Blocks != nil; reads != w.cache.ended || want != (reads > 0) || want && reads < 3 {
		t.Errorf("%d reads began, %d ended", reads, w.cache.ended)
	}
}
