package kv

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/batonkv/baton/internal/pause"
	"github.com/batonkv/baton/plugins/adapter"
	"github.com/batonkv/baton/plugins/adapter/dynamo/directory"
	"github.com/batonkv/baton/plugins/adapter/dynamo/plane"
	"github.com/batonkv/baton/sidecar/handoff"
)

// maxSources bounds the workers of one group. It has one, and for a while those before it.
const maxSources = 16

// beginAgain is the pause after a source that could not begin.
const beginAgain = 5 * time.Second

// Config is a Teller.
type Config struct {
	Group string             // whose cache it tells
	State directory.Endpoint // that cards of its workers name as kv_state_endpoint
	Live  bool               // nobody may ask for what was missed
	Sink  func() (Sink, error)
	NewID func() uint64
	// Server serves the recovery endpoints, as instance ID, at Addr, "" over NATS.
	Server *plane.Server
	ID     uint64
	Addr   string
	Codec  string

	Backend directory.Backend
	Look    time.Duration // as directory.Keep has it
	Log     *slog.Logger
}

// Teller tells what a group's cache holds for each Dynamo worker whose card names the group.
// It writes no record while another source of the same worker has one: of two, routers hear
// neither. Of two that began at once, the one of the lower publisher stays. Safe for
// concurrent use.
type Teller struct {
	cfg    Config
	keeper *directory.Keeper
	wake   chan struct{} // holds one token
	stop   context.CancelFunc
	over   sync.WaitGroup
	log    *Log

	mu      sync.Mutex                  // guards:
	blocks  int32                       // tokens of a block of the engine; 0: not known yet
	workers map[directory.Worker]int32  // tokens of a block, by card; nil: not read yet
	others  map[directory.Worker]uint64 // the lowest publisher of others' sources; nil: not read yet
	sources map[directory.Worker]*told
	before  Sent // of sources that have ended
	waits   bool // one goroutine does until a source that could not begin is tried again
	warned  map[string]bool
	doubled map[directory.Worker]bool // another source tells of them, which was said
}

// told is a source with its records.
type told struct {
	*Source
	records []directory.Record
	path    string // of its recovery endpoint; "": it has none
	life    context.Context
	stop    context.CancelFunc
}

// NewTeller starts one that reads feed. Its owner closes it before what it was given.
func NewTeller(cfg Config, feed adapter.BlockFeed) *Teller {
	ctx, stop := context.WithCancel(context.Background())
	t := &Teller{cfg: cfg, keeper: directory.Keep(cfg.Backend, cfg.Look, cfg.Log), wake: make(chan struct{}, 1), stop: stop,
		log: NewLog(), sources: map[directory.Worker]*told{}, warned: map[string]bool{}, doubled: map[directory.Worker]bool{}}
	t.over.Go(func() { t.watch(ctx, directory.Models+cfg.State.Namespace+"/", t.cards) })
	t.over.Go(func() { t.watch(ctx, directory.SourcesOf(cfg.State, Topic), t.foreign) })
	t.over.Go(func() { t.run(ctx) })
	t.over.Go(func() { t.read(ctx, feed) })
	return t
}

// read takes what happens in the cache. A read that ends says everything anew.
func (t *Teller) read(ctx context.Context, feed adapter.BlockFeed) {
	for {
		for e, err := range feed.Blocks(ctx) {
			if err != nil {
				t.cfg.Log.Debug("the cache's content is read anew", "why", err)
				break
			}
			t.log.Tell(e)
			if e.Kind == handoff.BlocksStored {
				t.mu.Lock()
				if e.BlockTokens != t.blocks {
					t.blocks = e.BlockTokens
					t.compare()
				}
				t.mu.Unlock()
			}
		}
		if !pause.For(ctx, tryAgain) {
			return
		}
	}
}

// compare warns of workers whose cards have another block size.
func (t *Teller) compare() {
	for w, tokens := range t.workers {
		if t.blocks != 0 && tokens != t.blocks {
			t.warn(fmt.Sprintf("the card of worker %x has blocks of %d tokens, the engine has %d: routers find no prefix there", w.ID, tokens, t.blocks))
		}
	}
}

// warn says a thing once.
func (t *Teller) warn(text string) {
	if !t.warned[text] && len(t.warned) < 4*maxSources {
		t.warned[text] = true
		t.cfg.Log.Warn(text)
	}
}

// Counts is what a Teller does.
type Counts struct {
	Content
	Changes
	Sent
	Sources int // that tell
	Waiting int // workers of which another source tells
	Events  uint64
	Queue   uint64 // events that the source which is most behind has not sent
}

// Sent is what sources have sent and were asked.
type Sent struct {
	Messages, Bytes uint64
	Asked           uint64 // by routers
	Lost            uint64 // messages, each for one subscriber that is behind
}

func (a Sent) plus(b Sent) Sent {
	return Sent{Messages: a.Messages + b.Messages, Bytes: a.Bytes + b.Bytes, Asked: a.Asked + b.Asked, Lost: a.Lost + b.Lost}
}

// Counts counts.
func (t *Teller) Counts() (c Counts) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c.Sources, c.Sent = len(t.sources), t.before
	for w := range t.workers {
		if _, ok := t.others[w]; ok && t.sources[w] == nil {
			c.Waiting++
		}
	}
	c.Content, c.Changes = t.log.Content()
	c.Events = t.log.Last()
	for _, s := range t.sources {
		c.Sent = c.plus(s.Sent())
		c.Queue = max(c.Queue, c.Events-min(s.told.Load(), c.Events))
	}
	return c
}

// Close removes the records, as far as the directory answers before ctx ends, and ends the
// sources.
func (t *Teller) Close(ctx context.Context) {
	t.stop()
	t.over.Wait()
	t.keeper.Close(ctx)
	t.mu.Lock()
	for w := range t.sources {
		t.end(w)
	}
	t.mu.Unlock()
	t.over.Wait()
}

// run brings the sources to what is wanted.
func (t *Teller) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.wake:
			t.mu.Lock()
			t.settle(ctx)
			t.mu.Unlock()
		}
	}
}

// settle ends sources of workers that are gone, and begins those of others. Records go
// before new ones come: the keeper sees to that.
func (t *Teller) settle(ctx context.Context) {
	if t.workers == nil || t.others == nil {
		return
	}
	t.compare()
	for w, n := range t.sources {
		_, wanted := t.workers[w]
		if other, ok := t.others[w]; !wanted || ok && other < n.publisher {
			t.end(w)
		}
	}
	t.compete()
	var fresh []*told
	for _, w := range sorted(t.workers) {
		switch _, ok := t.others[w]; {
		case ok: // compete says so
		case t.sources[w] == nil:
			n, err := t.begin(ctx, w)
			if err != nil {
				t.cfg.Log.Warn("KV events are not told", "worker", fmt.Sprintf("%x", w.ID), "err", err)
				if !t.waits {
					t.waits = true
					t.over.Go(func() { t.later(ctx) })
				}
				continue
			}
			fresh = append(fresh, n)
		}
	}
	var records []directory.Record
	for _, w := range sorted(t.sources) {
		records = append(records, t.sources[w].records...)
	}
	t.keeper.Set(records)
	for _, n := range fresh {
		if t.cfg.Live {
			t.over.Go(func() { t.again(n.life) })
		}
	}
}

// compete says of which workers another source tells, and when that is over.
func (t *Teller) compete() {
	for _, w := range sorted(t.workers) {
		if _, ok := t.others[w]; ok && !t.doubled[w] {
			t.doubled[w] = true
			t.cfg.Log.Warn("another source tells of this worker: routers hear nobody while there are two, so this one waits unless it was the first", "worker", fmt.Sprintf("%x", w.ID))
		}
	}
	for _, w := range sorted(t.doubled) {
		if _, ok := t.others[w]; ok {
			continue
		}
		delete(t.doubled, w)
		if _, ok := t.workers[w]; ok {
			t.cfg.Log.Info("no other source tells of this worker any more: routers hear this one", "worker", fmt.Sprintf("%x", w.ID))
		}
	}
}

// again tells everything to routers that cannot ask, when they should listen.
func (t *Teller) again(life context.Context) {
	if t.keeper.Settled(life) == nil && pause.For(life, liveAfter) {
		t.log.Again()
	}
}

// later tries once more.
func (t *Teller) later(ctx context.Context) {
	if pause.For(ctx, beginAgain) {
		t.mu.Lock()
		t.waits = false
		t.mu.Unlock()
		t.poke()
	}
}

// poke has run look again.
func (t *Teller) poke() {
	select {
	case t.wake <- struct{}{}:
	default:
	}
}

func sorted[V any](m map[directory.Worker]V) []directory.Worker {
	return slices.SortedFunc(maps.Keys(m), func(a, b directory.Worker) int { return cmp.Or(cmp.Compare(a.ID, b.ID), cmp.Compare(a.Rank, b.Rank)) })
}

// begin starts a source.
func (t *Teller) begin(ctx context.Context, w directory.Worker) (*told, error) {
	sink, err := t.cfg.Sink()
	if err != nil {
		return nil, err
	}
	n := &told{Source: NewSource(w, t.cfg.NewID(), t.log, sink, t.cfg.Live, t.cfg.Log)}
	n.life, n.stop = context.WithCancel(ctx)
	if n.records, err = t.records(n, w); err != nil {
		n.stop()
		n.Close()
		return nil, err
	}
	if !t.cfg.Live {
		if err := t.cfg.Server.Handle(n.path, n.answer); err != nil {
			n.stop()
			n.Close()
			return nil, err
		}
	}
	t.sources[w] = n
	t.cfg.Log.Info("tells Dynamo's routers what the cache holds", "worker", fmt.Sprintf("%x", w.ID), "publisher", fmt.Sprintf("%x", n.publisher))
	return n, nil
}

// end ends a source; its records are the keeper's.
func (t *Teller) end(w directory.Worker) {
	n := t.sources[w]
	delete(t.sources, w)
	n.stop()
	if n.path != "" {
		t.cfg.Server.Drop(n.path)
	}
	t.before = t.before.plus(n.Sent())
	t.over.Go(n.Close)
}
