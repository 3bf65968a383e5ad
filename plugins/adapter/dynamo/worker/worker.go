// Package worker is a Dynamo worker for engines that have none: it serves endpoint generate
// of a prefill or a decode component on behalf of one engine, whose state moves by Baton.
//
// Prefill answers one item with the first token and a manifest in disaggregated_params.
// Decode takes that, has its engine import the hand-off, and streams tokens; without one it
// runs the whole request. A hand-off that will not be imported is released, once, through
// endpoint handoff of the group that holds it; if that is not reached its lease ends it.
package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/batonkv/baton/discovery"
	"github.com/batonkv/baton/plugins/adapter/dynamo"
	"github.com/batonkv/baton/plugins/adapter/dynamo/directory"
	"github.com/batonkv/baton/plugins/adapter/dynamo/plane"
	"github.com/batonkv/baton/plugins/adapter/dynamo/wire"
	"github.com/batonkv/baton/sidecar/handoff"
)

// Job is one request of an engine.
type Job struct {
	Label    string
	Tokens   []int32 // the prompt
	MaxNew   int32   // tokens to emit
	Sampling Sampling
}

// Engine runs requests. Ending ctx aborts one.
type Engine interface {
	// Prefill runs a prompt and holds its state. first is the token that it sampled.
	Prefill(ctx context.Context, j Job) (m handoff.Manifest, first int32, err error)
	// Decode imports m, or runs the whole request when that is nil, and calls each with every
	// token: the first one included. reason is length, eos or stop. An error of each ends it.
	Decode(ctx context.Context, j Job, m *handoff.Manifest, each func(token int32, logprob *float32) error) (reason string, err error)
}

// Config is a worker.
type Config struct {
	Dynamo dynamo.Config // whose component is the adapters': where hand-offs are released
	// Component of generate; prefill for a prefill worker, else backend.
	Component string
	Role      discovery.Role // Prefill or Decode
	Model     string         // that requests name
	Block     int32          // tokens of a block
	MaxNew    int32          // of a request that says no limit
	// Grace is how long a worker that ends still takes calls of clients that have not heard
	// of it; Dynamo's own wait 5 s.
	Grace time.Duration
	Log   *slog.Logger
}

// Worker serves until Close.
type Worker struct {
	cfg     Config
	engine  Engine
	id      uint64
	server  *plane.Server
	client  *plane.Client
	backend directory.Backend
	keeper  *directory.Keeper
	records []directory.Record
	release sync.WaitGroup
}

// Start serves and registers. It does not wait for the directory.
func Start(cfg Config, e Engine) (*Worker, error) {
	w := &Worker{cfg: cfg, engine: e, id: dynamo.NewID()}
	server, addr, err := cfg.Dynamo.Serve(cfg.Log)
	if err != nil {
		return nil, err
	}
	now, cancel := context.WithCancel(context.Background())
	cancel()
	if w.client, err = plane.NewClient(cfg.Dynamo.Answers()); err != nil {
		server.Close(now)
		return nil, err
	}
	backend, look, err := cfg.Dynamo.Open()
	if err != nil {
		server.Close(now)
		return nil, errors.Join(err, w.client.Close())
	}
	w.server, w.backend, w.keeper = server, backend, directory.Keep(backend, look, cfg.Log)
	at := w.endpoint()
	serve := w.decode
	if cfg.Role == discovery.Prefill {
		serve = w.prefill
	}
	server.Handle(directory.Path(at, w.id), func(ctx context.Context, c plane.Call, out *plane.Stream) error {
		return dynamo.Fault(serve(ctx, c, out))
	})
	instance, err := directory.NewInstance(at, w.id, addr, cfg.Dynamo.Codec).Record()
	card, err2 := w.card()
	if err = errors.Join(err, err2); err != nil {
		w.Close(now)
		return nil, err
	}
	w.records = []directory.Record{instance, card}
	w.Offer(true)
	cfg.Log.Info("serves Dynamo's routers", "endpoint", at.String(), "role", string(cfg.Role), "addr", addr, "instance", fmt.Sprintf("%x", w.id))
	return w, nil
}

func (w *Worker) endpoint() directory.Endpoint {
	return directory.Endpoint{Namespace: w.cfg.Dynamo.Namespace, Component: w.cfg.Component, Name: "generate"}
}

// Offer has clients find the worker, as they do from Start on, or not: of one whose engine is
// away they would see every call fail, and fast.
func (w *Worker) Offer(on bool) {
	if on {
		w.keeper.Set(w.records)
	} else {
		w.keeper.Set(nil)
	}
}

// Ready returns when the worker is registered.
func (w *Worker) Ready(ctx context.Context) error { return w.keeper.Settled(ctx) }

// Close ends in Dynamo's order: the records go, calls of clients that have not heard of it are
// served for Grace, what runs ends by itself, or when ctx ends.
func (w *Worker) Close(ctx context.Context) {
	w.keeper.Close(ctx)
	select {
	case <-ctx.Done():
	case <-time.After(w.cfg.Grace):
	}
	w.server.Close(ctx)
	w.release.Wait()
	if err := errors.Join(w.client.Close(), w.backend.Close()); err != nil {
		w.cfg.Log.Debug("did not end in order", "err", err)
	}
}

// card makes the instance one that routers route to.
func (w *Worker) card() (directory.Record, error) {
	type runtime struct {
		Data map[string]string `json:"runtime_data"`
	}
	kind := "decode"
	needs := [][]string{}
	if w.cfg.Role == discovery.Prefill {
		kind, needs = "prefill", [][]string{{"decode"}}
	}
	b, err := json.Marshal(struct {
		Name      string     `json:"display_name"`
		Slug      string     `json:"slug"`
		Source    string     `json:"source_path"`
		Block     int32      `json:"kv_cache_block_size"`
		Migration int32      `json:"migration_limit"`
		Type      string     `json:"model_type"`
		Input     string     `json:"model_input"`
		Worker    string     `json:"worker_type"`
		Needs     [][]string `json:"needs"`
		Runtime   runtime    `json:"runtime_config"`
	}{Name: w.cfg.Model, Slug: slug(w.cfg.Model), Source: w.cfg.Model, Block: w.cfg.Block, Type: "Completions", Input: "Tokens",
		Worker: kind, Needs: needs, Runtime: runtime{Data: map[string]string{"baton": "v1"}}})
	if err != nil {
		return directory.Record{}, err
	}
	return directory.NewModel(w.endpoint(), w.id, b).Record()
}

// slug is a model's name in the characters that Dynamo's cards allow: one with others makes
// no worker.
func slug(model string) string {
	return strings.Map(func(c rune) rune {
		switch {
		case c >= 'a' && c <= 'z', c >= '0' && c <= '9', c == '-', c == '_':
			return c
		case c >= 'A' && c <= 'Z':
			return c - 'A' + 'a'
		}
		return '_'
	}, model)
}

// label is the engine's name of a call: one that comes twice is two requests.
func label(c plane.Call) string {
	return fmt.Sprintf("%.200s-%08x", c.ID, rand.Uint32())
}

// Bounds of a release.
const (
	releaseWithin = 10 * time.Second
	maxAsked      = 64 // groups
)

// giveUp releases a hand-off that nobody will import. It waits for nothing.
func (w *Worker) giveUp(m handoff.Manifest) {
	w.release.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), releaseWithin)
		defer cancel()
		if err := w.giveUpNow(ctx, m); err != nil {
			w.cfg.Log.Warn("a hand-off that nobody imports may still be held; its lease ends it", "id", m.ID.String(), "err", err)
		}
	})
}

// giveUpNow asks the group that holds it, until one answers: first who has its card, then
// the others, since a group that takes no work has none.
func (w *Worker) giveUpNow(ctx context.Context, m handoff.Manifest) error {
	named, others, err := w.holders(ctx, m.ID.Group)
	if err != nil {
		return err
	}
	err = fmt.Errorf("%w: no endpoint %s", handoff.ErrGroup, w.cfg.Dynamo.Endpoint("handoff"))
	all := slices.Concat(named, others)
	for n, to := range all[:min(len(all), maxAsked)] {
		err = w.askRelease(ctx, to, m)
		f, answered := errors.AsType[*wire.Fault](err)
		switch {
		case err == nil, answered && n < len(named) && f.Kind() == wire.NotFound: // its import has used it up
			return nil
		case answered && n < len(named):
			return err
		}
	}
	return err
}

func (w *Worker) askRelease(ctx context.Context, to plane.Target, m handoff.Manifest) error {
	d := dynamo.FromManifest(m)
	a, err := w.client.Call(ctx, to, dynamo.HandoffRequest{Op: "release", ID: &d.ID, Key: d.Key})
	if err != nil {
		return err
	}
	defer a.Close()
	var done dynamo.Done
	return a.Next(ctx, &done)
}

// holders are the handoff endpoints, those of a group by its cards apart. A process that was
// killed has one until its lease ends.
func (w *Worker) holders(ctx context.Context, group string) (named, others []plane.Target, err error) {
	e := w.cfg.Dynamo.Endpoint("handoff")
	path := e.Namespace + "/" + e.Component + "/" + e.Name + "/"
	cards, err := first(ctx, w.backend, directory.Models+path)
	if err != nil {
		return nil, nil, err
	}
	records, err := first(ctx, w.backend, directory.Instances+path)
	if err != nil {
		return nil, nil, err
	}
	its := map[uint64]bool{}
	for _, r := range cards {
		var m directory.Model
		var card struct {
			Runtime struct {
				Data map[string]json.RawMessage `json:"runtime_data"`
			} `json:"runtime_config"`
		}
		if json.Unmarshal(r.Value, &m) == nil && json.Unmarshal(m.Card, &card) == nil && string(card.Runtime.Data["baton_group"]) == `"`+group+`"` {
			its[m.ID] = true
		}
	}
	for _, r := range records {
		var i directory.Instance
		if json.Unmarshal(r.Value, &i) != nil {
			continue
		}
		if to, ok := target(i); ok && its[i.ID] {
			named = append(named, to)
		} else if ok {
			others = append(others, to)
		}
	}
	return named, others, nil
}

// first is the first snapshot of a watch.
func first(ctx context.Context, b directory.Backend, prefix string) (directory.Snapshot, error) {
	for s, err := range b.Watch(ctx, prefix) {
		return s, err
	}
	return nil, ctx.Err()
}
