package drive

import (
	"context"
	"errors"
	"iter"
	"log/slog"
	"testing"
	"testing/synctest"

	"github.com/batonkv/baton/plugins/adapter"
	"github.com/batonkv/baton/plugins/adapter/session"
	"github.com/batonkv/baton/sidecar/handoff"
)

// reader begins to read when it is given the feed, and is done when its close has seen the end.
type reader struct {
	*scripted
	lives chan *reading
	now   *reading
}

type reading struct {
	feed  adapter.BlockFeed
	first chan adapter.BlockEvent
	done  chan struct{}
	last  error // once done is closed
}

func (r *reader) ReadBlocks(f adapter.BlockFeed) {
	r.now = &reading{f, make(chan adapter.BlockEvent, 1), make(chan struct{}), nil}
	go r.now.read()
	r.lives <- r.now
}

// Close waits for what the life started.
func (r *reader) Close() error {
	<-r.now.done
	return nil
}

func (r *reading) read() {
	defer close(r.done)
	for e, err := range r.feed.Blocks(context.Background()) {
		if r.last = err; err != nil {
			return
		}
		r.first <- e
	}
}

// cleared is a feed of a cache that is empty.
type cleared struct{ reads int }

func (c *cleared) Blocks(ctx context.Context) iter.Seq2[adapter.BlockEvent, error] {
	return func(yield func(adapter.BlockEvent, error) bool) {
		c.reads++
		if yield(adapter.BlockEvent{Kind: handoff.BlocksCleared, Lost: 9}, nil) {
			<-ctx.Done()
			yield(adapter.BlockEvent{}, ctx.Err())
		}
		c.reads--
	}
}

// TestReadsEndWithTheirLife: a life that fails ends its read, and so does one that is drained,
// whether the sidecar has a feed or not.
func TestReadsEndWithTheirLife(t *testing.T) {
	for _, c := range []*cleared{{}, nil} {
		synctest.Test(t, func(t *testing.T) {
			fail := make(chan error, 1)
			r := &reader{lives: make(chan *reading, 2), scripted: &scripted{calls: make(chan adapter.Calls, 2), on: func(v adapter.Verb) error {
				if v == adapter.Notify {
					return <-fail
				}
				return nil
			}}}
			cfg := Config{Session: session.Default(), Open: BuiltIn(func() adapter.Adapter { return r }), Source: Of(adapter.Group{}, &service{}), Log: slog.New(slog.DiscardHandler)}
			lost := uint64(0)
			if c != nil {
				cfg.Blocks, lost = c, 9
			}
			s := Start(cfg)
			for life := range 2 {
				l := <-r.lives
				if e := <-l.first; e.Kind != handoff.BlocksCleared || e.Lost != lost {
					t.Errorf("%+v", e)
				}
				for _, err := range l.feed.Blocks(t.Context()) {
					if !errors.Is(err, handoff.ErrOrder) {
						t.Errorf("beside another read: %v", err)
					}
				}
				if life == 0 {
					fail <- errors.New("lost")
				} else {
					close(fail)
					stop(t, s)
				}
				if <-l.done; !errors.Is(l.last, context.Canceled) {
					t.Errorf("its life ended: %v", l.last)
				}
				for _, err := range l.feed.Blocks(t.Context()) {
					if !errors.Is(err, handoff.ErrOrder) {
						t.Errorf("after its life: %v", err)
					}
				}
			}
			if c != nil && c.reads != 0 {
				t.Errorf("%d reads go on", c.reads)
			}
		})
	}
}
