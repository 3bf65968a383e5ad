package control

import (
	"context"
	"iter"
	"sync"

	"github.com/batonkv/baton/sidecar/handoff"
)

// Log keeps the newest notices for watchers. Append never waits for one. Safe for
// concurrent use; make it with NewLog.
type Log struct {
	process handoff.Incarnation // that numbers

	mu     sync.Mutex // guards:
	ring   []Notice   // notice n is at n % len
	next   uint64     // sequence number of the next notice
	change chan struct{}
	over   bool
}

// NewLog makes the log of a process that keeps at most bound notices, 1024 if that is 0 or less.
func NewLog(process handoff.Incarnation, bound int) *Log {
	if bound <= 0 {
		bound = 1024
	}
	return &Log{process: process, ring: make([]Notice, bound), next: 1, change: make(chan struct{})}
}

// Append numbers n and keeps it; it returns the number.
func (l *Log) Append(n Notice) uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	n.Seq, n.Incarnation = l.next, l.process
	l.ring[n.Seq%uint64(len(l.ring))] = n
	l.next++
	if !l.over {
		close(l.change)
		l.change = make(chan struct{})
	}
	return n.Seq
}

// Close ends every watcher after what is kept.
func (l *Log) Close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.over {
		l.over = true
		close(l.change)
	}
}

// oldest is the first number that is kept.
func (l *Log) oldest() uint64 {
	if kept := uint64(len(l.ring)); l.next > kept {
		return l.next - kept
	}
	return 1
}

// at returns notice n, or a Gap if it is gone. Without either: the channel that
// closes at the next change, nil when there will be none.
func (l *Log) at(n uint64) (Notice, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	old := l.oldest()
	switch {
	case n < old:
		return Notice{Incarnation: l.process, Kind: Gap, Seq: old - 1, Lost: old - n}, nil
	case n < l.next:
		return l.ring[n%uint64(len(l.ring))], nil
	case l.over:
		return Notice{}, nil
	}
	return Notice{}, l.change
}

// start is the first number for a watcher that asks for from, and the gap to tell first.
func (l *Log) start(from Cursor) (uint64, Notice) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch old := l.oldest(); {
	case from == Newest:
		return l.next, Notice{Incarnation: l.process, Kind: Gap, Seq: l.next - 1}
	case from.Incarnation != 0 && from.Incarnation != l.process, from.Seq > l.next:
		return old, Notice{Incarnation: l.process, Kind: Gap, Seq: old - 1}
	case from.Seq == 0:
		return old, Notice{}
	}
	return from.Seq, Notice{}
}

// Watch yields notices from a cursor on until ctx or the log ends. The error of ctx is the
// last item.
func (l *Log) Watch(ctx context.Context, from Cursor) iter.Seq2[Notice, error] {
	return func(yield func(Notice, error) bool) {
		n, first := l.start(from)
		if first.Kind == Gap && !yield(first, nil) {
			return
		}
		for {
			if err := ctx.Err(); err != nil {
				yield(Notice{}, err)
				return
			}
			got, change := l.at(n)
			switch {
			case got.Kind != 0:
				if !yield(got, nil) {
					return
				}
				n = got.Seq + 1
			case change == nil:
				return
			default:
				select {
				case <-change:
				case <-ctx.Done():
				}
			}
		}
	}
}
