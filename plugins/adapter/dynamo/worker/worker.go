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
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/batonkv/baton/discovery"
	"github.com/batonkv/baton/internal/pause"
	"github.com/batonkv/baton/plugins/adapter/dynamo"
	"github.com/batonkv/baton/plugins/adapter/dynamo/directory"
	"github.com/batonkv/baton/plugins/adapter/dynamo/plane"
	"github.com/batonkv/baton/sidecar/handoff"
)

// Job is one request of an engine.
type Job struct {
	Label    string
	Tokens   []int32 // the prompt
	MaxNew   int32   // tokens to emit
	Sampling Sampling
	Logprobs bool // of each token that is chosen

	// Nothing but MaxNew ends an answer of fewer than MinNew tokens. Behind them the model's
	// end of text does, unless IgnoreEOS, and each of Stops.
	MinNew    int32
	IgnoreEOS bool
	Stops     []int32
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
	Assets    *Assets        // with which frontends make tokens of text; nil: none serves the model
	Group     string         // of the engine's sidecars, for the card; "": not told
	Context   int32          // tokens of prompt and answer; 0: what Assets say
	Block     int32          // tokens of a block
	System    string         // ip:port of /health, /live, /metrics and the model's files; "": none
	MaxNew    int32          // of a request that says no limit
	// Grace is how long a worker that ends still takes calls of clients that have not heard
	// of it; Dynamo's own wait 5 s.
	Grace time.Duration
	Log   *slog.Logger
}

// Worker serves until Close.
type Worker struct {
	cfg      Config
	engine   *watched
	id       uint64
	server   *plane.Server
	client   *plane.Client
	backend  directory.Backend
	keeper   *directory.Keeper
	instance directory.Instance // of generate
	base     string             // of the model's files; "": they are in their folder
	records  []directory.Record
	room     atomic.Int32 // tokens of prompt and answer that the engine can hold; 0: not known
	others   *decoders    // of a prefill worker
	offered  atomic.Bool
	meter    *meter
	status   *status        // nil: none
	tasks    sync.WaitGroup // releases, and what else Close waits for

	releases chan struct{} // holds a token of each that runs
}

// Start serves. Nobody finds the worker before Offer.
func Start(cfg Config, e Engine) (*Worker, error) {
	w := &Worker{cfg: cfg, engine: watch(e), id: dynamo.NewID(), releases: make(chan struct{}, maxReleases)}
	w.meter = newMeter(w.endpoint(), w.id, cfg.Log)
	server, addr, err := cfg.Dynamo.Serve(cfg.Log)
	if err != nil {
		return nil, err
	}
	now, cancel := context.WithCancel(context.Background())
	cancel()
	if w.client, err = cfg.Dynamo.Client(); err != nil {
		server.Close(now)
		return nil, err
	}
	backend, look, err := cfg.Dynamo.Open()
	if err != nil {
		server.Close(now)
		return nil, errors.Join(err, w.client.Close())
	}
	w.server, w.backend, w.keeper = server, backend, directory.Keep(backend, look, cfg.Log)
	serve := w.decode
	if cfg.Role == discovery.Prefill {
		serve, w.others = w.prefill, followDecoders(backend, cfg)
	}
	w.instance = directory.NewInstance(w.endpoint(), w.id, addr, cfg.Dynamo.Codec)
	if err := server.Handle(w.instance.Path(), w.meter.count(serve)); err != nil {
		w.Close(now)
		return nil, err
	}
	if cfg.System != "" {
		if err := w.serveStatus(); err != nil {
			w.Close(now)
			return nil, err
		}
		w.base = "http://" + cfg.Dynamo.Told(w.status.port).String() + w.files()
	}
	if err := w.describe(); err != nil {
		w.Close(now)
		return nil, err
	}
	cfg.Log.Info("serves Dynamo's routers", "endpoint", w.endpoint().String(), "role", string(cfg.Role), "addr", addr, "instance", fmt.Sprintf("%x", w.id))
	return w, nil
}

// describe makes the records of the instance.
func (w *Worker) describe() error {
	instance, err := w.instance.Record()
	card, err2 := w.card(w.base)
	if err = errors.Join(err, err2); err != nil {
		return err
	}
	w.records = []directory.Record{instance, card}
	return nil
}

func (w *Worker) endpoint() directory.Endpoint {
	return directory.Endpoint{Namespace: w.cfg.Dynamo.Namespace, Component: w.cfg.Component, Name: "generate"}
}

// Offer has clients find the worker, or not: of one whose engine is away they would see every
// call fail, and fast. It does not wait for the directory.
func (w *Worker) Offer(on bool) {
	if w.offered.Store(on); on {
		w.keeper.Set(w.records)
	} else {
		w.keeper.Set(nil)
	}
}

// Ready returns when the directory has what was offered last.
func (w *Worker) Ready(ctx context.Context) error { return w.keeper.Settled(ctx) }

// Close ends in Dynamo's order: the records go, calls of clients that have not heard of it are
// served for Grace, what runs ends by itself, or when ctx ends.
func (w *Worker) Close(ctx context.Context) {
	w.offered.Store(false)
	w.keeper.Close(ctx)
	pause.For(ctx, w.cfg.Grace)
	w.server.Close(ctx)
	w.tasks.Wait()
	w.others.close()
	if err := errors.Join(w.client.Close(), w.backend.Close(), w.status.close()); err != nil {
		w.cfg.Log.Debug("did not end in order", "err", err)
	}
}

// label is the engine's name of a call: one that comes twice is two requests.
func label(c plane.Call) string {
	return fmt.Sprintf("%.200s-%08x", c.ID, rand.Uint32())
}
