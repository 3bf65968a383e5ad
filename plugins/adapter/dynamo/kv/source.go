package kv

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/batonkv/baton/plugins/adapter/dynamo/directory"
	"github.com/batonkv/baton/plugins/adapter/dynamo/wire"
)

// Times of a Source.
const (
	quiet     = time.Second // after which the newest event is told once more
	tryAgain  = 200 * time.Millisecond
	liveAfter = 2 * time.Second // from its record on until routers that cannot ask should listen
)

// Source tells for one worker, of one data-parallel rank. Its owner calls Close.
type Source struct {
	rank      uint32
	worker    uint64
	publisher uint64
	log       *Log
	sink      Sink
	logger    *slog.Logger
	sequence  uint64        // of the next message; run's own
	asked     atomic.Uint64 // answers to routers
	sent      atomic.Uint64 // messages
	stop      context.CancelFunc
	over      sync.WaitGroup
}

// NewSource begins to tell what happens from here on; what is held before is for routers that
// ask. The sink is its own.
func NewSource(w directory.Worker, publisher uint64, l *Log, sink Sink, logger *slog.Logger) *Source {
	s := &Source{worker: w.ID, rank: w.Rank, publisher: publisher, log: l, sink: sink, logger: logger}
	ctx, stop := context.WithCancel(context.Background())
	s.stop = stop
	from := l.Last()
	s.over.Go(func() { s.run(ctx, from) })
	return s
}

// Close ends it.
func (s *Source) Close() {
	s.stop()
	s.over.Wait()
	s.sink.Close()
}

// run tells each event once, and the newest again when nothing follows it: who missed it sees
// so, and asks.
func (s *Source) run(ctx context.Context, told uint64) {
	var newest []CacheEvent
	failing := false
	timer := time.NewTimer(quiet)
	defer timer.Stop()
	for ctx.Err() == nil {
		events, change := s.log.Next(told)
		err := s.send(events)
		if err != nil && !failing {
			s.logger.Warn("KV events wait until Dynamo's event plane is there", "worker", fmt.Sprintf("%x", s.worker), "err", err)
		}
		failing = err != nil
		switch {
		case failing:
			change = nil
			timer.Reset(tryAgain)
		case len(events) > 0:
			told, newest = events[len(events)-1].ID, events[len(events)-1:]
			timer.Reset(quiet)
			continue
		}
		select {
		case <-ctx.Done():
		case <-change:
		case <-timer.C:
			if !failing && s.send(newest) != nil {
				timer.Reset(quiet)
			}
		}
	}
}

// router is events as a router hears them; never nil.
func (s *Source) router(events []CacheEvent) []RouterEvent {
	all := make([]RouterEvent, 0, len(events))
	for _, e := range events {
		e.Rank = s.rank
		all = append(all, RouterEvent{Worker: s.worker, Tier: Device, Domain: ByWorker, Event: e})
	}
	return all
}

// send makes a message of events, of none if there are none.
func (s *Source) send(events []CacheEvent) error {
	if len(events) == 0 {
		return nil
	}
	payload, err := EncodeBatch(s.router(events))
	if err != nil {
		return err
	}
	b, err := wire.Event{Publisher: s.publisher, Sequence: s.sequence, PublishedAt: uint64(time.Now().UnixMilli()), Topic: Topic, Payload: payload}.Encode()
	if err != nil {
		return err
	}
	sequence := s.sequence
	s.sequence++
	if err := s.sink.Send(s.publisher, sequence, b); err != nil {
		return err
	}
	s.sent.Add(1)
	return nil
}
