package loop

import (
	"context"
	"errors"
	"iter"
	"log/slog"
	"sync"

	"github.com/batonkv/baton/sidecar/blocks"
	"github.com/batonkv/baton/sidecar/handoff"
	"github.com/batonkv/baton/sidecar/metrics"
)

// cached is what the prefix cache of rank 0's engine holds, for those who read it. It decides
// nothing, so it stands beside the machine, and readers do not wait for that. The engine is
// asked to tell only while somebody reads.
type cached struct {
	log *slog.Logger

	mu      sync.Mutex    // guards:
	source  engineSession // the engine that can tell; nil: none is attached
	cache   *blocks.Cache // of source, once it was asked; empty before
	change  chan struct{} // closed at the next change of cache
	readers int
	counts  metrics.Blocks
}

func newCached(log *slog.Logger) *cached {
	return &cached{log: log, cache: blocks.New(0), change: make(chan struct{})}
}

// attached takes the engine's session as the source. It is called again when nothing changed.
func (c *cached) attached(es engineSession, a handoff.Attach) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.source == es || a.Rank != 0 {
		return
	}
	if !a.TellsBlocks {
		if c.readers > 0 {
			c.log.Warn("the engine tells no block events: a reader of blocks has none", "engine", a.Group)
		}
		return
	}
	c.source = es
	c.cache.Resize(a.Capacity.Blocks)
	if c.readers > 0 {
		c.ask(true)
	}
}

// detached forgets what an engine held that has gone.
func (c *cached) detached(es engineSession) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.source != es {
		return
	}
	c.source = nil
	c.cache.Resize(0)
	c.ring()
}

func (c *cached) ring() {
	close(c.change)
	c.change = make(chan struct{})
}

// ask says whether the engine is to tell. What it does not take ends its session, which
// is told.
func (c *cached) ask(on bool) {
	if c.source != nil {
		_ = c.source.Send(handoff.TellBlocks{On: on})
	}
}

// hear takes what an engine tells.
func (c *cached) hear(es engineSession, m handoff.BlockEvents) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.source != es:
		c.counts.Refused += uint64(len(m.Events))
		return
	case c.readers == 0: // said before it heard that nobody reads any more
		return
	}
	for _, e := range m.Events {
		if err := c.cache.Apply(e); err != nil {
			if c.counts.Refused++; c.counts.Refused == 1 {
				c.log.Warn("a block event of the engine is refused; further ones are only counted", "err", err)
			}
			continue
		}
		c.counts.Events++
	}
	c.ring()
}

// read gives what a reader has to hear next, or the channel that closes when there may be
// more.
func (c *cached) read(r *blocks.Reader) (handoff.BlockEvent, bool, <-chan struct{}) {
	r.Prepare() // of all that the engine has: its feed does not wait for that
	c.mu.Lock()
	defer c.mu.Unlock()
	before := r.Gaps()
	e, ok := c.cache.Read(r)
	c.counts.Gaps += r.Gaps() - before
	return e, ok, c.change
}

// enter counts a reader; leave is its end.
func (c *cached) enter() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.readers++; c.readers == 1 {
		c.ask(true)
	}
}

func (c *cached) leave() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.readers--; c.readers == 0 {
		c.ask(false)
		_ = c.cache.Apply(handoff.BlockEvent{Kind: handoff.BlocksCleared}) // the next one has it told anew
	}
}

// now is what there is to show.
func (c *cached) now() metrics.Blocks {
	c.mu.Lock()
	defer c.mu.Unlock()
	b := c.counts
	b.Known, b.Ignored = c.cache.Len(), c.cache.Ignored()
	return b
}

// Blocks yields what the prefix cache of the group's engine holds: cleared first, then all that
// is held, then each change, until ctx or the sidecar ends. The error is the last item.
func (v Service) Blocks(ctx context.Context) iter.Seq2[handoff.BlockEvent, error] {
	return func(yield func(handoff.BlockEvent, error) bool) {
		c := v.s.cached
		c.enter()
		defer c.leave()
		for r := (blocks.Reader{}); ; {
			e, ok, change := c.read(&r)
			switch {
			case ctx.Err() != nil:
				yield(handoff.BlockEvent{}, ctx.Err())
				return
			case ok:
				if !yield(e, nil) {
					return
				}
				continue
			}
			select {
			case <-change:
			case <-ctx.Done():
			case <-v.s.done:
				yield(handoff.BlockEvent{}, errors.Join(errStopped, ctx.Err()))
				return
			}
		}
	}
}
