package bench

import (
	"context"
	_ "embed" // of dynamoKV
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"os"
	"time"

	"github.com/batonkv/baton/plugins/adapter/dynamo"
	"github.com/batonkv/baton/plugins/adapter/dynamo/directory"
	"github.com/batonkv/baton/sidecar/handoff"
)

//go:embed dynamokv.py
var dynamoKV string

const (
	kvTokens = 16   // of a block
	kvCount  = 1024 // events of a turn, each of one block
)

// kvSide is a worker that routers are told of.
type kvSide struct {
	at directory.Endpoint
	id uint64
}

// kvEvents measures how fast one of Dynamo's KV routers takes events of a chain of blocks: of
// the adapter, and of Dynamo's own publisher in a Python worker.
func kvEvents(ctx context.Context, o Options, python string) (r Result, err error) {
	r = Result{Name: "dynamo/kv-events", What: fmt.Sprintf("KV events a second until one of Dynamo's KV routers has them all, %d of a block each", kvCount),
		Unit: "x of Dynamo's own KvEventPublisher", BaseUnit: "events/s"}
	folder, err := os.MkdirTemp("", "baton-bench")
	if err != nil {
		return r, err
	}
	defer os.RemoveAll(folder)
	cache := make(kvFeed, kvCount)
	a, err := joinDynamo(ctx, folder, cache)
	if err != nil {
		return r, err
	}
	defer a.Close()
	ours := kvSide{directory.Endpoint{Namespace: "dynamo", Component: "ours", Name: "generate"}, dynamo.NewID()}
	its := kvSide{directory.Endpoint{Namespace: "dynamo", Component: "its", Name: "generate"}, dynamo.NewID()}
	end, err := kvWorkers(ctx, folder, ours, its)
	if err != nil {
		return r, err
	}
	defer end()
	publisher, err := startDynamo(python, folder, dynamoKV, "publish", its.at.String(), fmt.Sprint(its.id), fmt.Sprint(kvTokens))
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, publisher.close()) }()
	router, err := startDynamo(python, folder, dynamoKV, "route", fmt.Sprint(kvTokens), ours.at.String(), its.at.String())
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, router.close()) }()
	if err := errors.Join(publisher.ready(ctx), router.ready(ctx)); err != nil {
		return r, err
	}
	var rates []float64
	for n := range 1 + o.Rounds { // the first one is for connections and schedulers
		mine, base, err := kvTurn(ctx, n, cache, ours, its, publisher, router)
		if err != nil {
			return r, err
		}
		if n > 0 {
			rates = append(rates, mine)
			r.Samples, r.Baseline = append(r.Samples, mine/base), append(r.Baseline, base)
		}
	}
	r.Note = fmt.Sprintf("%s, Dynamo's %s", figure(Median(rates)), figure(Median(r.Baseline)))
	return AtLeast(r, 1), nil
}

// kvTurn is one turn of each, in either order: events a second.
func kvTurn(ctx context.Context, turn int, cache kvFeed, ours, its kvSide, publisher, router *dynamoProcess) (mine, base float64, err error) {
	events, tokens, ids := kvChain(turn)
	measure := func(side kvSide, publish func() error) (float64, error) {
		err := router.tell(map[string]any{"endpoint": side.at.String(), "tokens": tokens})
		if err == nil {
			err = router.ready(ctx)
		}
		if err != nil {
			return 0, err
		}
		took, err := timed(func() error {
			if err := publish(); err != nil {
				return err
			}
			return router.ready(ctx)
		})
		return kvCount / took, err
	}
	order := []func() error{func() (err error) {
		mine, err = measure(ours, func() error {
			for _, e := range events {
				cache <- e // it has room for all
			}
			return nil
		})
		return err
	}, func() (err error) {
		err = publisher.tell(map[string]any{"tokens": tokens, "ids": ids})
		if err == nil {
			err = publisher.ready(ctx)
		}
		if err == nil {
			base, err = measure(its, func() error { return publisher.tell("go") })
		}
		return err
	}}
	for n := range order {
		if err := order[(n+turn)%2](); err != nil {
			return 0, 0, err
		}
	}
	return mine, base, nil
}

// kvChain are the events of a turn, and what they tell of.
func kvChain(turn int) (events []handoff.BlockEvent, tokens []int32, ids []uint64) {
	for n := range kvCount * kvTokens {
		tokens = append(tokens, int32(turn<<20+n))
	}
	for n := range kvCount {
		id := uint64(1 + turn*kvCount + n)
		e := handoff.BlockEvent{Kind: handoff.BlocksStored, BlockTokens: kvTokens,
			Blocks: []handoff.StoredBlock{{ID: id, Tokens: tokens[n*kvTokens : (n+1)*kvTokens]}}}
		if n > 0 {
			e.Parent = id - 1
		}
		events, ids = append(events, e), append(ids, id)
	}
	return events, tokens, ids
}

// kvWorkers have routers find the workers: the adapter tells of ours.
func kvWorkers(ctx context.Context, folder string, ours, its kvSide) (end func(), err error) {
	files, err := directory.OpenFiles(folder)
	if err != nil {
		return nil, err
	}
	keeper := directory.Keep(files, time.Second, slog.New(slog.DiscardHandler))
	var records []directory.Record
	for _, side := range []kvSide{ours, its} {
		runtime := map[string]any{"kv_event_publishing_enabled": true, "enable_local_indexer": true, "runtime_data": map[string]string{"baton_group": "none"}}
		if side == ours {
			runtime["runtime_data"] = map[string]string{"baton_group": "d"}
			runtime["kv_state_endpoint"] = directory.Endpoint{Namespace: "dynamo", Component: "baton", Name: "state"}
		}
		card, err := json.Marshal(map[string]any{"display_name": "tiny", "slug": "tiny", "source_path": "tiny", "kv_cache_block_size": kvTokens, "migration_limit": 0,
			"model_type": "Completions", "model_input": "Tokens", "worker_type": "aggregated", "needs": []string{}, "runtime_config": runtime})
		instance, err2 := directory.NewInstance(side.at, side.id, "127.0.0.1:1", "msgpack").Record() // nobody calls it
		model, err3 := directory.NewModel(side.at, side.id, card).Record()
		if err := errors.Join(err, err2, err3); err != nil {
			return nil, err
		}
		records = append(records, instance, model)
	}
	keeper.Set(records)
	return func() { keeper.Close(ctx); files.Close() }, nil
}

// kvFeed is a cache that tells what it is given.
type kvFeed chan handoff.BlockEvent

// Blocks implements adapter.BlockFeed.
func (c kvFeed) Blocks(ctx context.Context) iter.Seq2[handoff.BlockEvent, error] {
	return func(yield func(handoff.BlockEvent, error) bool) {
		for more := true; more; {
			select {
			case e := <-c:
				more = yield(e, nil)
			case <-ctx.Done():
				more = yield(handoff.BlockEvent{}, ctx.Err()) && false
			}
		}
	}
}
