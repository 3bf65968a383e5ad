package kv

import (
	"context"
	"fmt"

	"github.com/batonkv/baton/plugins/adapter/dynamo/plane"
	"github.com/batonkv/baton/plugins/adapter/dynamo/wire"
)

// Query is how a router asks for what it missed. Without Start it knows nothing.
type Query struct {
	Worker     uint64  `json:"worker_id"`
	Rank       uint32  `json:"dp_rank"`
	Start      *uint64 `json:"start_event_id"` // the first event that it wants
	End        *uint64 `json:"end_event_id"`
	KnowsFails bool    `json:"supports_tree_dump_failed"` // since 1.6: TreeDumpFailed may answer
	Kind       string  `json:"kind,omitempty"`            // "recovery"; before 1.6 none
}

const recovery = "recovery"

// Answer is one of its fields.
type Answer struct {
	// Events are the missed ones up to the newest.
	Events *Events `json:"Events,omitempty"`
	// TreeDump is all that is held, when it knows nothing or too many were missed.
	TreeDump     *TreeDump     `json:"TreeDump,omitempty"`
	TooNew       *TooNew       `json:"TooNew,omitempty"`
	InvalidRange *InvalidRange `json:"InvalidRange,omitempty"`
	DumpFailed   *DumpFailed   `json:"TreeDumpFailed,omitempty"`
	Error        string        `json:"Error,omitempty"`
}

// Events are events as they were told.
type Events struct {
	Events []RouterEvent `json:"events"`
	Last   uint64        `json:"last_event_id"`
}

// TreeDump replaces what a router has of the worker's rank; its events count from 0.
type TreeDump struct {
	Events []RouterEvent `json:"events"`
	Last   uint64        `json:"last_event_id"`         // what it shows is as after this one
	Scope  string        `json:"reset_scope,omitempty"` // "all"; before 1.6 none
}

// TooNew says that the wanted events have not happened.
type TooNew struct {
	Start  *uint64 `json:"requested_start"`
	End    *uint64 `json:"requested_end"`
	Newest uint64  `json:"newest_available"`
}

// InvalidRange says that the last wanted event is before the first.
type InvalidRange struct {
	Start uint64 `json:"start_id"`
	End   uint64 `json:"end_id"`
}

// DumpFailed says that nothing can be told: the router goes on with what it has.
type DumpFailed struct {
	Last    uint64 `json:"last_event_id"`
	Message string `json:"message"`
}

// maxDump is how many bytes of an answer are blocks and events, at most; the largest message
// that routers take has a little more.
const maxDump = wire.MaxMessage - 1<<20

// Sizes of what a dump is made of, from above, in both codecs.
const (
	blockSize = 96
	eventSize = 320
)

// recover answers q for a source.
func (s *Source) recover(q Query) Answer {
	switch {
	case q.Worker != s.worker || q.Rank != s.rank:
		return Answer{Error: fmt.Sprintf("worker %d rank %d is asked for, this is worker %d rank %d", q.Worker, q.Rank, s.worker, s.rank)}
	case q.Kind != "" && q.Kind != recovery:
		return Answer{Error: fmt.Sprintf("kind %.20q: only %s is answered", q.Kind, recovery)}
	case q.Start != nil && q.End != nil && *q.End < *q.Start:
		return Answer{InvalidRange: &InvalidRange{*q.Start, *q.End}}
	}
	if q.Start != nil {
		events, last, whole := s.log.Since(*q.Start)
		if *q.Start > last {
			return Answer{TooNew: &TooNew{q.Start, q.End, last}}
		}
		if whole {
			return Answer{Events: &Events{s.router(events), last}}
		}
	}
	events, last := s.log.Dump()
	size := eventSize * len(events)
	for _, e := range events {
		size += blockSize * e.weight()
	}
	if size > maxDump {
		why := fmt.Sprintf("%d runs of blocks take about %d MiB, at most %d", len(events), size>>20, maxDump>>20)
		if q.KnowsFails {
			return Answer{DumpFailed: &DumpFailed{last, why}}
		}
		return Answer{Error: why}
	}
	return Answer{TreeDump: &TreeDump{s.router(events), last, "all"}}
}

// answer is the recovery endpoint. Routers want the answer bare.
func (s *Source) answer(_ context.Context, c plane.Call, out *plane.Stream) error {
	var q Query
	if err := c.Decode(&q); err != nil {
		return err
	}
	s.asked.Add(1)
	return out.SendBare(s.recover(q))
}
