// Package feed hands the newest state of a view to one watcher: the writer never
// waits for the reader, and a slow reader misses states, never the last.
package feed

import (
	"context"
	"sync"

	"github.com/batonkv/baton/discovery"
)

// Feed joins one writer side (Change, Fail) and one reader (Each).
type Feed struct {
	wake chan struct{} // holds one token when something is unread

	mu   sync.Mutex
	view discovery.View
	rev  int64
	err  error
}

// New is an empty feed; the first Change makes its first snapshot.
func New() *Feed { return &Feed{wake: make(chan struct{}, 1)} }

// Change edits the view at revision rev; revisions of one feed only rise.
func (f *Feed) Change(rev int64, edit func(*discovery.View)) {
	f.mu.Lock()
	edit(&f.view)
	f.rev = max(f.rev, rev)
	f.mu.Unlock()
	f.signal()
}

// Fail ends the feed with err; the first one counts.
func (f *Feed) Fail(err error) {
	f.mu.Lock()
	if f.err == nil {
		f.err = err
	}
	f.mu.Unlock()
	f.signal()
}

func (f *Feed) signal() {
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// Each yields the newest snapshot after each wake-up, until yield says no, the feed
// fails or ctx ends; the last two yield their error. Snapshots are made when the
// reader is ready for one, so a burst of changes costs one copy.
func (f *Feed) Each(ctx context.Context, yield func(discovery.Snapshot, error) bool) {
	for {
		select {
		case <-f.wake:
		case <-ctx.Done():
			yield(discovery.Snapshot{}, context.Cause(ctx))
			return
		}
		f.mu.Lock()
		err := f.err
		var s discovery.Snapshot
		if err == nil {
			s = f.view.Snapshot(f.rev)
		}
		f.mu.Unlock()
		if !yield(s, err) || err != nil {
			return
		}
	}
}
