package kv

import (
	"slices"
	"sync"

	"github.com/batonkv/baton/sidecar/handoff"
)

// Bounds of what a Log keeps of what happened, so that a router that missed some of it need
// not be told everything.
const (
	keptEvents = 1024
	keptBlocks = 1 << 16
)

// Log is what a group's cache holds and the newest changes of it, numbered from 1. Safe for
// concurrent use.
type Log struct {
	mu      sync.Mutex // guards:
	content *content
	newest  []CacheEvent // contiguous; the last one is number last
	weight  int          // of newest
	events  int          // most of newest,
	blocks  int          // and most weight
	last    uint64
	change  chan struct{} // closes with the next event
	changes Changes
}

// Changes is what events have told so far.
type Changes struct {
	Stored, Removed uint64 // blocks
	Cleared         uint64 // times
}

// NewLog is the log of an empty cache.
func NewLog() *Log {
	return &Log{content: newContent(), events: keptEvents, blocks: keptBlocks, change: make(chan struct{})}
}

// Tell takes what happened. What is not new to a router, or cannot be told, makes no event.
func (l *Log) Tell(e handoff.BlockEvent) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch e.Kind {
	case handoff.BlocksStored:
		l.append(l.content.store(e)...)
	case handoff.BlocksRemoved:
		l.append(l.content.remove(e.Removed)...)
	case handoff.BlocksCleared:
		if l.content.told > 0 {
			l.append(Data{})
		}
		l.content.clear()
		l.content.missed += e.Lost
	}
}

// Again tells everything once more, from a cleared cache on: for routers that cannot ask. So
// all of it is kept, however much it is, beside what is kept otherwise.
func (l *Log) Again() {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := append([]Data{{}}, l.content.dump()...)
	l.events, l.blocks = keptEvents+len(all), keptBlocks+l.content.told
	l.append(all...)
}

func (l *Log) append(all ...Data) {
	for _, d := range all {
		l.last++
		e := CacheEvent{ID: l.last, Data: d}
		l.newest = append(l.newest, e)
		l.weight += e.weight()
		switch {
		case d.Stored != nil:
			l.changes.Stored += uint64(e.weight())
		case d.Removed != nil:
			l.changes.Removed += uint64(e.weight())
		default:
			l.changes.Cleared++
		}
	}
	for len(l.newest) > l.events || l.weight > l.blocks && len(l.newest) > 1 {
		l.weight -= l.newest[0].weight()
		l.newest[0] = CacheEvent{}
		l.newest = l.newest[1:]
	}
	if len(all) > 0 {
		close(l.change)
		l.change = make(chan struct{})
	}
}

// Last is the number of the newest event.
func (l *Log) Last() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.last
}

// Next are events after number id, as many as a message takes; when those are forgotten it
// begins with the oldest that is not. change closes when there are more.
func (l *Log) Next(id uint64) (events []CacheEvent, change <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	after, _ := l.after(id)
	var weight int
	for n, e := range after {
		if weight += e.weight(); n == MaxEvents || n > 0 && weight > MaxBlocks {
			after = after[:n]
			break
		}
	}
	return slices.Clone(after), l.change
}

// after are the kept events above id; whole says that none between is forgotten.
func (l *Log) after(id uint64) (events []CacheEvent, whole bool) {
	missing := min(l.last-min(id, l.last), uint64(len(l.newest)))
	events = l.newest[uint64(len(l.newest))-missing:]
	return events, l.last-min(id, l.last) == missing
}

// Since are the events from number start on, and the number of the newest; false when some of
// them are forgotten.
func (l *Log) Since(start uint64) (events []CacheEvent, last uint64, whole bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if start > 0 {
		start--
	}
	after, whole := l.after(start)
	return slices.Clone(after), l.last, whole
}

// Dump is what is held, as events that would tell it to a router that knows nothing, numbered
// from 0, and the number of the newest event.
func (l *Log) Dump() (events []CacheEvent, last uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for n, d := range l.content.dump() {
		events = append(events, CacheEvent{ID: uint64(n), Data: d})
	}
	return events, l.last
}

// Content is how many blocks a cache holds, and what of it is not told.
type Content struct {
	Blocks int    // that are told as held
	Apart  int    // that are held, but not all before them: routers are not told of these
	Untold uint64 // that could not be told, each time that one was stored
	Missed uint64 // events of the cache that nobody told here: all was told anew behind them
}

// Content counts.
func (l *Log) Content() (Content, Changes) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.content
	return Content{Blocks: c.told, Apart: c.held - c.told, Untold: c.untold, Missed: c.missed}, l.changes
}
