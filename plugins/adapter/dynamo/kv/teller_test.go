package kv

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/batonkv/baton/plugins/adapter/dynamo/directory"
	"github.com/batonkv/baton/plugins/adapter/dynamo/plane"
	"github.com/batonkv/baton/sidecar/handoff"
)

var state = directory.Endpoint{Namespace: "dynamo", Component: "baton", Name: "state"}

var quietLog = slog.New(slog.DiscardHandler)

// TestCounts: what sources that have ended have sent stays counted, and what they have not sent
// is the queue.
func TestCounts(t *testing.T) {
	r := newRig(t, false)
	<-r.feed.reads
	r.workers.Set([]directory.Record{r.card(7)})
	out := <-r.sinks
	r.sources(1)
	r.feed.events <- chain(0, 2)
	<-out.said
	for r.teller.Counts().Queue > 0 {
		runtime.Gosched() // it has been sent, and is counted next
	}
	was := r.teller.Counts()
	if was.Messages == 0 || was.Bytes == 0 || was.Lost != 3 || was.Stored != 2 || was.Blocks != 2 {
		t.Errorf("%+v", was)
	}
	out.set(true)
	r.feed.events <- removed(102)
	r.feed.events <- chain(1, 2)
	r.feed.events <- removed(102) // taken, so the two before it are told
	if c := r.teller.Counts(); c.Queue < 2 {
		t.Errorf("%+v", c)
	}
	r.workers.Set(nil)
	r.sources(0)
	if c := r.teller.Counts(); c.Messages < was.Messages || c.Bytes < was.Bytes || c.Lost != 3 || c.Queue != 0 {
		t.Errorf("%+v after %+v", c, was)
	}
}

// feed is what a test gives.
type feed struct {
	events chan handoff.BlockEvent
	reads  chan struct{} // one for each that begins
}

func (f feed) Blocks(ctx context.Context) iter.Seq2[handoff.BlockEvent, error] {
	return func(yield func(handoff.BlockEvent, error) bool) {
		select {
		case f.reads <- struct{}{}:
		default:
		}
		for {
			select {
			case e, ok := <-f.events:
				if !ok {
					yield(e, handoff.ErrHost)
					return
				}
				if !yield(e, nil) {
					return
				}
			case <-ctx.Done():
				yield(handoff.BlockEvent{}, ctx.Err())
				return
			}
		}
	}
}

// rig is a teller on a folder.
type rig struct {
	t       *testing.T
	teller  *Teller
	files   *directory.Files
	workers *directory.Keeper
	other   *directory.Keeper // of the records that were there first
	sinks   chan *tape
	feed    feed
}

func newRig(t *testing.T, live bool, there ...directory.Record) *rig {
	files, err := directory.OpenFiles(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	server, err := plane.Serve(plane.Config{Listen: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, files: files, workers: directory.Keep(files, time.Second, quietLog), other: directory.Keep(files, time.Second, quietLog), sinks: make(chan *tape, 8),
		feed: feed{make(chan handoff.BlockEvent), make(chan struct{}, 8)}}
	r.other.Set(there)
	if err := r.other.Settled(t.Context()); err != nil {
		t.Fatal(err)
	}
	var ids uint64
	r.teller = NewTeller(Config{Group: "p", State: state, Live: live, NewID: func() uint64 { ids++; return ids }, Server: server, ID: 1, Addr: server.Addr().String(), Codec: "json",
		Backend: files, Look: time.Second, Log: quietLog, Sink: func() (Sink, error) {
			s := &tape{said: make(chan struct{}, 1)}
			r.sinks <- s
			return s, nil
		}}, r.feed)
	t.Cleanup(func() {
		r.teller.Close(context.Background())
		r.workers.Close(context.Background())
		r.other.Close(context.Background())
		now, cancel := context.WithCancel(context.Background())
		cancel()
		server.Close(now)
	})
	return r
}

// card is of a worker of the group.
func (r *rig) card(worker uint64) directory.Record {
	text := fmt.Appendf(nil, `{"kv_cache_block_size":4,"runtime_config":{"runtime_data":{"baton_group":"p"},"kv_state_endpoint":{"namespace":"dynamo","component":"baton","name":"state"}}}`)
	c, err := directory.NewModel(directory.Endpoint{Namespace: "dynamo", Component: "w", Name: "generate"}, worker, text).Record()
	if err != nil {
		r.t.Fatal(err)
	}
	return c
}

// sources waits until the directory has those of so many workers, and gives them.
func (r *rig) sources(n int) (all []directory.Source) {
	ctx, cancel := context.WithTimeout(r.t.Context(), time.Minute)
	defer cancel()
	for snap, err := range r.files.Watch(ctx, directory.Sources) {
		if err != nil {
			r.t.Fatal(err, all)
		}
		all = nil
		for _, rec := range snap {
			var s directory.Source
			if err := json.Unmarshal(rec.Value, &s); err != nil {
				r.t.Fatal(err)
			}
			all = append(all, s)
		}
		if len(all) == n {
			return all
		}
	}
	return nil
}

// TestTellerFollowsWorkers: a worker that comes has a source, one that goes has none, and one
// that comes again has another publisher; a read that ends is begun again.
func TestTellerFollowsWorkers(t *testing.T) {
	r := newRig(t, false)
	<-r.feed.reads
	r.workers.Set([]directory.Record{r.card(7)})
	first := <-r.sinks
	a := r.sources(1)[0]
	if a.Metadata.Worker != (directory.Worker{ID: 7}) || a.Metadata.Recovery == nil || a.Metadata.State != state {
		t.Errorf("%+v", a)
	}
	r.workers.Set([]directory.Record{r.card(7), r.card(8)})
	<-r.sinks
	r.sources(2)
	r.workers.Set(nil)
	r.sources(0)
	r.workers.Set([]directory.Record{r.card(7)})
	<-r.sinks
	if b := r.sources(1)[0]; b.ID == a.ID {
		t.Errorf("one publisher %d twice", b.ID)
	}
	close(r.feed.events)
	<-r.feed.reads
	r.teller.Close(t.Context())
	r.sources(0)
	if first.mu.Lock(); !first.closed {
		t.Error("a sink is open")
	}
	first.mu.Unlock()
}

// TestWaitsForAnother: while another source tells of a worker there is none here, and the
// worker counts as one that waits.
func TestWaitsForAnother(t *testing.T) {
	source, err := directory.NewSource(state, Topic, 99, directory.Worker{ID: 7}, nil).Record()
	if err != nil {
		t.Fatal(err)
	}
	r := newRig(t, false, source)
	r.workers.Set([]directory.Record{r.card(7), r.card(8)})
	<-r.sinks
	if all := r.sources(2); all[0].ID+all[1].ID <= 99 {
		t.Errorf("%+v", all)
	}
	if c := r.teller.Counts(); c.Sources != 1 || c.Waiting != 1 {
		t.Errorf("%+v", c)
	}
	r.other.Set(nil)
	<-r.sinks
	if err := r.other.Settled(t.Context()); err != nil {
		t.Fatal(err)
	}
	if all := r.sources(2); all[0].ID == 99 || all[1].ID == 99 {
		t.Errorf("%+v", all)
	}
}

// TestCompetes: that another source tells of a worker is said once, and once that it is over; of
// a worker that is gone only the first.
func TestCompetes(t *testing.T) {
	var said bytes.Buffer
	one, two := directory.Worker{ID: 1}, directory.Worker{ID: 2}
	teller := &Teller{cfg: Config{Log: slog.New(slog.NewTextHandler(&said, nil))}, workers: map[directory.Worker]int32{one: 4, two: 4}, doubled: map[directory.Worker]bool{}}
	step := func(begun, over int, others ...directory.Worker) {
		t.Helper()
		teller.others = map[directory.Worker]uint64{}
		for _, w := range others {
			teller.others[w] = 99
		}
		teller.compete()
		teller.compete()
		if a, b := strings.Count(said.String(), "another source"), strings.Count(said.String(), "no other source"); a != begun || b != over {
			t.Errorf("%d and %d times, want %d and %d: %s", a, b, begun, over, &said)
		}
	}
	step(0, 0)
	step(1, 0, one)
	step(2, 0, one, two)
	step(2, 1, two)
	step(3, 1, one, two)
	delete(teller.workers, one)
	step(3, 2)
}

// TestOfTwoOneStays: two that began at once do not both go on.
func TestOfTwoOneStays(t *testing.T) {
	r := newRig(t, false)
	r.workers.Set([]directory.Record{r.card(7)})
	out := <-r.sinks
	own := r.sources(1)[0]
	lower, err := directory.NewSource(state, Topic, own.ID-1, directory.Worker{ID: 7}, nil).Record()
	if err != nil {
		t.Fatal(err)
	}
	r.other.Set([]directory.Record{lower})
	if err := r.other.Settled(t.Context()); err != nil {
		t.Fatal(err)
	}
	if all := r.sources(1); all[0].ID != own.ID-1 {
		t.Errorf("%+v", all)
	}
	if c := r.teller.Counts(); c.Sources != 0 || c.Waiting != 1 {
		t.Errorf("%+v", c)
	}
	r.teller.Close(t.Context())
	if out.mu.Lock(); !out.closed {
		t.Error("a sink is open")
	}
	out.mu.Unlock()
}

// TestLiveOnly: nobody can ask, and everything is told when routers should listen.
func TestLiveOnly(t *testing.T) {
	r := newRig(t, true)
	<-r.feed.reads
	r.feed.events <- chain(0, 3)
	r.feed.events <- chain(3, 4)
	r.workers.Set([]directory.Record{r.card(7)})
	out := <-r.sinks
	if s := r.sources(1)[0]; s.Metadata.Recovery != nil {
		t.Errorf("%+v", s)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for len(out.ids()) < 2 && ctx.Err() == nil {
		select {
		case <-out.said:
		case <-ctx.Done():
		}
	}
	out.mu.Lock()
	defer out.mu.Unlock()
	if len(out.events) < 2 || out.events[0].Data != (Data{}) || len(out.events[1].Data.Stored.Blocks) != 4 {
		t.Errorf("%+v", out.events)
	}
}

// TestTriesAgainAtOnePace: however often it looks while a source cannot begin.
func TestTriesAgainAtOnePace(t *testing.T) {
	files, err := directory.OpenFiles(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		tries := 0
		ctx, stop := context.WithCancel(t.Context())
		teller := &Teller{cfg: Config{Log: quietLog, Sink: func() (Sink, error) { tries++; return nil, errors.New("no port") }},
			keeper: directory.Keep(files, time.Second, quietLog), wake: make(chan struct{}, 1), stop: stop, log: NewLog(),
			workers: map[directory.Worker]int32{{ID: 1}: 4, {ID: 2}: 4}, others: map[directory.Worker]uint64{}, sources: map[directory.Worker]*told{}, warned: map[string]bool{}}
		teller.over.Go(func() { teller.run(ctx) })
		const looks = 10
		for range looks {
			teller.poke()
			time.Sleep(beginAgain / 20)
		}
		time.Sleep(10 * beginAgain)
		synctest.Wait()
		if most := 2 * (looks + 10 + 1); tries > most || tries < 2*looks+2 {
			t.Errorf("%d tries, want %d at most", tries, most)
		}
		teller.Close(ctx)
	})
}
