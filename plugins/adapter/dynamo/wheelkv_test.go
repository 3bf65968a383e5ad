package dynamo

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	natsgo "github.com/nats-io/nats.go"

	"github.com/batonkv/baton/cmd/dev/servers"
	"github.com/batonkv/baton/plugins/adapter/dynamo/directory"
	"github.com/batonkv/baton/plugins/adapter/dynamo/kv"
	"github.com/batonkv/baton/plugins/adapter/dynamo/wire"
	"github.com/batonkv/baton/sidecar/handoff"
)

const kvBlock = 4

// told is a group's teller in a deployment, with one worker that routers route to.
type told struct {
	t      *testing.T
	cfg    Config
	teller *kv.Teller
	cache  cache
	keeper *directory.Keeper
	worker uint64
	at     directory.Endpoint
	card   []directory.Record // with the instance
	lose   atomic.Bool        // the next message
	losses chan struct{}      // one for each that was lost
}

// cache is a feed of what it is given.
type cache chan handoff.BlockEvent

func (c cache) Blocks(ctx context.Context) iter.Seq2[handoff.BlockEvent, error] {
	return func(yield func(handoff.BlockEvent, error) bool) {
		for {
			select {
			case e := <-c:
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

// tellTo starts one on an event plane, nats or zmq.
func tellTo(t *testing.T, events string, sec []byte, nats *servers.NATS) *told {
	w := &told{t: t, cfg: mustParse(t, sec), worker: NewID(), cache: make(cache, 16), losses: make(chan struct{}, 1), at: directory.Endpoint{Namespace: "dynamo", Component: "kvw", Name: "generate"}}
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	backend, look, err := w.cfg.Open()
	if err != nil {
		t.Fatal(err)
	}
	server, addr, err := w.cfg.Serve(log)
	if err != nil {
		t.Fatal(err)
	}
	state := w.cfg.Endpoint("state")
	sink := func() (kv.Sink, error) {
		ip := netip.MustParseAddr("127.0.0.1")
		return kv.OverZMQ(state, ip, ip)
	}
	if events == "nats" {
		c := w.cfg.NATS
		c.URLs = []string{nats.URL()}
		nc, err := c.Connect()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(nc.Close)
		sink = func() (kv.Sink, error) { return kv.OverNATS(nc, state), nil }
	}
	w.teller = kv.NewTeller(kv.Config{Group: "p", State: state, Live: w.cfg.KV.LiveOnly, NewID: NewID, Server: server, ID: NewID(), Addr: addr, Codec: "msgpack", Backend: backend, Look: look, Log: log,
		Sink: func() (kv.Sink, error) {
			s, err := sink()
			return lossy{s, w}, err
		}}, w.cache)
	w.keeper = directory.Keep(backend, look, log)
	w.serve(addr)
	t.Cleanup(func() {
		now, cancel := context.WithCancel(context.Background())
		cancel()
		w.teller.Close(context.Background())
		w.keeper.Close(context.Background())
		server.Close(now)
		backend.Close()
	})
	return w
}

// lossy loses messages.
type lossy struct {
	kv.Sink
	w *told
}

func (s lossy) Send(ctx context.Context, publisher, sequence uint64, b []byte) error {
	if s.w.lose.CompareAndSwap(true, false) {
		s.w.losses <- struct{}{}
		return nil
	}
	return s.Sink.Send(ctx, publisher, sequence, b)
}

// lost waits until one more message was lost.
func (w *told) lost(ctx context.Context) {
	w.t.Helper()
	select {
	case <-w.losses:
	case <-ctx.Done():
		w.t.Fatal("nothing was sent")
	}
}

// serve has the worker found by routers; its card names the group and where its KV events are.
func (w *told) serve(addr string) {
	card := fmt.Appendf(nil, `{"display_name":"tiny","slug":"tiny","source_path":"tiny","kv_cache_block_size":%d,"migration_limit":0,"model_type":"Completions","model_input":"Tokens","worker_type":"aggregated","needs":[],
		"runtime_config":{"kv_event_publishing_enabled":true,"enable_local_indexer":%t,"total_kv_blocks":1000,"data_parallel_size":1,"runtime_data":{"baton_group":"p"},"kv_state_endpoint":%s}}`, kvBlock, !w.cfg.KV.LiveOnly, must(json.Marshal(w.cfg.Endpoint("state"))))
	a, err := directory.NewInstance(w.at, w.worker, addr, "msgpack").Record()
	b, err2 := directory.NewModel(w.at, w.worker, card).Record()
	if err := errors.Join(err, err2); err != nil {
		w.t.Fatal(err)
	}
	w.card = []directory.Record{a, b}
	w.keeper.Set(w.card)
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func seqTokens(n int) (all []int32) {
	for i := range n {
		all = append(all, int32(i+1))
	}
	return all
}

// stored is an event of blocks from..to of one sequence of tokens 1, 2, 3…, whose names are 101, 102…
func stored(from, to int) handoff.BlockEvent {
	e := handoff.BlockEvent{Kind: handoff.BlocksStored, BlockTokens: kvBlock}
	if from > 0 {
		e.Parent = uint64(100 + from)
	}
	all := seqTokens(to * kvBlock)
	for i := from; i < to; i++ {
		e.Blocks = append(e.Blocks, handoff.StoredBlock{ID: uint64(101 + i), Tokens: all[i*kvBlock : (i+1)*kvBlock]})
	}
	return e
}

// overlap asks a router to expect n blocks within some seconds.
func (w *told) overlap(n, within int) words {
	return words{"do": "overlap", "endpoint": w.at.String(), "tokens": seqTokens(8 * kvBlock), "worker": fmt.Sprint(w.worker), "want": n, "within": within}
}

// overlaps waits until a router expects so many blocks.
func (w *told) overlaps(ctx context.Context, p *peer, n int) {
	w.t.Helper()
	var took float64
	p.must(ctx, w.overlap(n, 40), &took)
	w.t.Logf("overlap %d after %.3f s, %+v", n, took, w.teller.Counts())
}

// until waits until so many sources tell, and so many workers have another's.
func (w *told) until(ctx context.Context, sources, waiting int) {
	w.t.Helper()
	for c := w.teller.Counts(); c.Sources != sources || c.Waiting != waiting; c = w.teller.Counts() {
		if ctx.Err() != nil {
			w.t.Fatalf("%+v, want %d sources, %d that wait", c, sources, waiting)
		}
		runtime.Gosched()
	}
}

// TestWheelRoutes: a router sends requests where their prefix is, whichever event plane tells it.
func TestWheelRoutes(t *testing.T) {
	for _, k := range []struct{ events, discovery string }{{"nats", "etcd"}, {"zmq", "etcd"}, {"zmq", "file"}} {
		t.Run(k.events+" "+k.discovery, func(t *testing.T) {
			var env []string
			var sec []byte
			var nats *servers.NATS
			if k.discovery == "etcd" {
				e := startEtcd(t)
				env, sec = etcdEnv(e), etcdSection(e.Endpoint(), "")
			} else {
				folder := t.TempDir()
				env, sec = []string{"DYN_DISCOVERY_BACKEND=file", "DYN_FILE_KV=" + folder}, section(folder)
			}
			if k.events == "nats" {
				nats = startNATS(t)
				env = append(env, "NATS_SERVER="+nats.URL())
			}
			p, ctx := newPeer(t, append(env, "DYN_EVENT_PLANE="+k.events)...), ctxOf(t)
			w := tellTo(t, k.events, sec, nats)
			w.cache <- stored(0, 1) // before any router is there: it asks
			p.must(ctx, words{"do": "wait", "endpoint": w.at.String()}, nil)
			p.must(ctx, words{"do": "router", "endpoint": w.at.String(), "block": kvBlock}, nil)
			is := func(n int) { t.Helper(); w.overlaps(ctx, p, n) }
			is(1)
			w.cache <- stored(1, 3)
			is(3)
			var best struct {
				Worker string
				Blocks int
			}
			if p.must(ctx, words{"do": "best", "endpoint": w.at.String(), "tokens": seqTokens(8 * kvBlock)}, &best); best.Worker != fmt.Sprint(w.worker) || best.Blocks != 3 {
				t.Errorf("%+v", best)
			}
			w.lose.Store(true)
			w.cache <- stored(3, 4) // lost, and nothing comes after it but the same again
			is(4)
			w.lost(ctx)
			asked := w.teller.Counts().Asked
			w.lose.Store(true)
			w.cache <- stored(4, 5)
			w.lost(ctx)
			w.cache <- stored(5, 6)
			is(6)
			if n := w.teller.Counts().Asked; n == asked {
				t.Errorf("a router that missed an event asked %d times", n)
			}
			w.cache <- handoff.BlockEvent{Kind: handoff.BlocksRemoved, Removed: []uint64{102}}
			is(1)
			w.cache <- stored(1, 2) // and what follows it is held
			is(6)
			w.cache <- handoff.BlockEvent{Kind: handoff.BlocksCleared}
			is(0)
		})
	}
}

// TestWheelHashes: tokens hash as Dynamo's, and what is told makes its tree find the worker.
func TestWheelHashes(t *testing.T) {
	p, ctx := newPeer(t, "DYN_DISCOVERY_BACKEND=mem"), ctxOf(t)
	type list struct {
		Tokens []int32 `json:"tokens"`
		Block  int     `json:"block"`
		LoRA   string  `json:"lora,omitempty"`
	}
	r := rand.New(rand.NewPCG(1, 2))
	var lists []list
	for n := range 1000 {
		l := list{Block: 1 + n%128, Tokens: []int32{}}
		for range r.IntN(3*l.Block + 2) {
			l.Tokens = append(l.Tokens, int32(r.Uint32()>>1))
		}
		if n%10 == 0 {
			l.LoRA = fmt.Sprint("lora-", n)
		}
		lists = append(lists, l)
	}
	var got [][]string
	p.must(ctx, words{"do": "hashes", "lists": lists}, &got)
	for n, l := range lists {
		var want []string
		for i := l.Block; i <= len(l.Tokens); i += l.Block {
			want = append(want, fmt.Sprint(kv.TokensHash(kv.SeedOf(l.LoRA), l.Tokens[i-l.Block:i])))
		}
		if !slices.Equal(got[n], want) {
			t.Fatalf("%+v: %v, Dynamo has %v", l, want, got[n])
		}
	}
	log := kv.NewLog()
	for _, e := range []handoff.BlockEvent{stored(0, 5), {Kind: handoff.BlocksRemoved, Removed: []uint64{103}}, stored(5, 6), {Kind: handoff.BlocksRemoved, Removed: []uint64{106}}, stored(2, 3)} {
		log.Tell(e)
	}
	events, _, _ := log.Since(1)
	dump, _ := log.Dump()
	var find []string
	for i := range 8 {
		find = append(find, fmt.Sprint(kv.TokensHash(kv.SeedOf(""), seqTokens(8 * kvBlock)[i*kvBlock:(i+1)*kvBlock])))
	}
	for _, all := range [][]kv.CacheEvent{events, dump} {
		var texts []string
		for _, e := range all {
			texts = append(texts, string(must(wire.JSON.Encode(e))))
		}
		var scores map[string]int
		if p.must(ctx, words{"do": "tree", "worker": "77", "events": texts, "find": find}, &scores); scores["77"] != 5 {
			t.Errorf("%v after %v", scores, texts)
		}
	}
}

// TestWheelTells: what Dynamo's own publisher tells is read, and written with the same bytes.
func TestWheelTells(t *testing.T) {
	e, nats := startEtcd(t), startNATS(t)
	p, ctx := newPeer(t, append(etcdEnv(e), "DYN_EVENT_PLANE=nats", "NATS_SERVER="+nats.URL())...), ctxOf(t)
	nc := must(natsgo.Connect(nats.URL()))
	t.Cleanup(nc.Close)
	heard := make(chan *natsgo.Msg, 64)
	if _, err := nc.ChanSubscribe("namespace.>", heard); err != nil {
		t.Fatal(err)
	}
	if err := nc.FlushWithContext(ctx); err != nil {
		t.Fatal(err)
	}
	p.must(ctx, words{"do": "publish", "endpoint": "dynamo.kvp.generate", "block": kvBlock, "events": []words{
		{"tokens": seqTokens(8), "ids": []int{101, -5}}, {"tokens": seqTokens(4), "ids": []int{103}, "parent": 101, "lora": "lora-a"}, {"removed": []int{103, -5}}}}, nil)
	var next uint64 = 1
	for next <= 3 {
		var m *natsgo.Msg
		select {
		case m = <-heard:
		case <-ctx.Done():
			t.Fatal("nothing is heard after event", next)
		}
		if !strings.HasSuffix(m.Subject, "."+kv.Topic) {
			continue
		}
		d, err := wire.DecodeEvent(m.Data)
		if err != nil || d.Topic != kv.Topic {
			t.Fatal(d, err)
		}
		events, err := kv.DecodeBatch(d.Payload)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range events {
			if e.Event.ID != next || e.Tier != kv.Device || (e.Event.Data.Removed != nil) != (next == 3) {
				t.Errorf("%+v, want event %d", e, next)
			}
			next++
		}
		payload := must(kv.EncodeBatch(events))
		if d.Payload, err = payload, nil; !bytes.Equal(must(d.Encode()), m.Data) {
			t.Errorf("%s wrote\n%x, this is\n%x", p.version, m.Data, must(d.Encode()))
		}
	}
}

func startNATS(t *testing.T) *servers.NATS {
	s, err := servers.StartNATS(t.Context(), servers.NATSConfig{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Stop)
	return s
}
