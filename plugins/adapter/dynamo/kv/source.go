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
	live      bool          // nobody may ask
	asked     atomic.Uint64 // answers to routers
	sent      atomic.Uint64 // messages
	bytes     atomic.Uint64 // of them
	told      atomic.Uint64 // the newest event that was sent
	stop      context.CancelFunc
	over      sync.WaitGroup
}

// NewSource begins to tell what happens from here on; what is held before is for routers that
// ask; when live is set nobody can. The sink is its own.
func NewSource(w directory.Worker, publisher uint64, l *Log, sink Sink, live bool, logger *slog.Logger) *Source {
	s := &Source{worker: w.ID, rank: w.Rank, publisher: publisher, log: l, sink: sink, live: live, logger: logger}
	ctx, stop := context.WithCancel(context.Background())
	s.stop = stop
	s.told.Store(l.Last())
	s.over.Go(func() { s.run(ctx) })
	return s
}

// Close ends it.
func (s *Source) Close() {
	s.stop()
	s.over.Wait()
	s.sink.Close()
}

// Sent is what it has sent and was asked so far.
func (s *Source) Sent() Sent {
	return Sent{Messages: s.sent.Load(), Bytes: s.bytes.Load(), Asked: s.asked.Load(), Lost: s.sink.Lost()}
}

// run tells each event once, and the newest again when nothing follows it: who missed it sees
// so, and asks. When routers cannot ask, and events were forgotten before they were sent, all is
// told anew.
func (s *Source) run(ctx context.Context) {
	var newest []CacheEvent
	failing, gap := false, false
	timer := time.NewTimer(quiet)
	defer timer.Stop()
	for ctx.Err() == nil {
		told := s.told.Load()
		events, change := s.log.Next(told)
		gap = gap || len(events) > 0 && events[0].ID != told+1
		err := s.send(ctx, events)
		if err != nil && !failing {
			s.logger.Warn("KV events wait until Dynamo's event plane is there", "worker", fmt.Sprintf("%x", s.worker), "err", err)
		}
		failing = err != nil
		switch {
		case failing:
			change = nil
			timer.Reset(tryAgain)
		case len(events) > 0:
			newest = events[len(events)-1:]
			s.told.Store(newest[0].ID)
			if gap && s.live {
				s.log.Again()
			}
			gap = false
			timer.Reset(quiet)
			continue
		}
		select {
		case <-ctx.Done():
		case <-change:
		case <-timer.C:
			if !failing && s.send(ctx, newest) != nil {
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
func (s *Source) send(ctx context.Context, events []CacheEvent) error {
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
	if err := s.sink.Send(ctx, s.publisher, sequence, b); err != nil {
		return err
	}
	s.sent.Add(1)
	s.bytes.Add(uint64(len(b)))
	return nil
}
