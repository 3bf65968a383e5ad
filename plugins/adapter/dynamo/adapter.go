// Package dynamo has a group join an NVIDIA Dynamo deployment as it is shipped. It is an
// adapter: rank 0's sidecar runs it, built in or as a child.
//
// What it offers are three endpoints of a component of the deployment's namespace, which
// every Dynamo client finds and calls: handoff (import, abort, release, get, list, await,
// watch), reshard (plan, explain) and status. Manifests travel in disaggregated_params
// (Carrier), beside what an engine's own handlers put there. docs/DYNAMO.md has it for
// users.
//
// Nothing here decides about memory: calls go to the group's leader, and a caller that goes
// away only aborts its import.
package dynamo

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	natsgo "github.com/nats-io/nats.go"

	"github.com/batonkv/baton/plugins"
	"github.com/batonkv/baton/plugins/adapter"
	"github.com/batonkv/baton/plugins/adapter/dynamo/directory"
	"github.com/batonkv/baton/plugins/adapter/dynamo/kv"
	"github.com/batonkv/baton/plugins/adapter/dynamo/plane"
	"github.com/batonkv/baton/sidecar/control"
)

// Adapter speaks for one group. A new one is made for each life; Close ends what is left of
// one that was not drained.
type Adapter struct {
	Log     *slog.Logger    // nil: discards
	Reshard plugins.Reshard // plans between layouts

	cfg     Config
	calls   adapter.Calls
	callers callers
	blocks  adapter.BlockFeed
	news    *news
	id      uint64
	kv      atomic.Pointer[kv.Teller] // nil: routers are not told what the cache holds

	mu      sync.Mutex // guards:
	closed  bool
	server  *plane.Server
	backend directory.Backend
	keeper  *directory.Keeper
	fixed   []directory.Record // the endpoints; the card follows the state
	events  *publisher         // nil: none are told
	kvNATS  *natsgo.Conn       // of kv; nil: it has none
}

// Register implements adapter.Adapter.
func (a *Adapter) Register(context.Context) (adapter.Info, error) {
	return adapter.Info{Name: "dynamo", Version: "1", Wants: []control.Kind{control.Ready, control.NotReady, control.Exported, control.Over,
		control.Imported, control.Failed, control.Announced, control.Draining, control.Serving}}, nil
}

// Configure implements adapter.Adapter.
func (a *Adapter) Configure(_ context.Context, section []byte) (err error) {
	if a.Log == nil {
		a.Log = slog.New(slog.DiscardHandler)
	}
	a.news = newNews()
	a.cfg, err = ParseConfig(section)
	return err
}

// Ask implements adapter.Asker.
func (a *Adapter) Ask(calls adapter.Calls) { a.calls = calls }

// settle bounds the wait for the directory at the start. When that does not answer the
// adapter goes on: its records come later.
const settle = 2 * time.Second

// Sync begins to serve. It fails when the port is taken.
func (a *Adapter) Sync(ctx context.Context, s adapter.State) error {
	a.news.sync(s)
	if err := a.start(s.Group.Name); err != nil {
		return err
	}
	a.keeper.Set(a.records(s.Group))
	a.events.tell(Lifecycle{Kind: "up", Group: s.Group.Name, Role: string(s.Group.Role)})
	wait, cancel := context.WithTimeout(ctx, settle)
	defer cancel()
	if err := a.keeper.Settled(wait); err != nil {
		a.Log.Warn("Dynamo's directory does not answer; the sidecar serves and registers when it does", "err", err)
	}
	return nil
}

// start opens what a life has.
func (a *Adapter) start(group string) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return plane.ErrClosed
	}
	server, addr, err := a.cfg.Serve(a.Log)
	if err != nil {
		return err
	}
	a.server = server
	backend, look, err := a.cfg.Open()
	if err != nil {
		return err
	}
	a.backend = backend
	a.id = NewID()
	for name, h := range map[string]plane.Handler{"handoff": a.handoff, "reshard": a.reshard, "status": a.status} {
		e := a.cfg.Endpoint(name)
		i := directory.NewInstance(e, a.id, addr, a.cfg.Codec)
		r, err := i.Record()
		if err != nil {
			return err
		}
		if err := server.Handle(i.Path(), func(ctx context.Context, c plane.Call, out *plane.Stream) error {
			return Fault(h(ctx, c, out))
		}); err != nil {
			return err
		}
		a.fixed = append(a.fixed, r)
	}
	if err := a.tellEvents(); err != nil {
		return err
	}
	a.keeper = directory.Keep(backend, look, a.Log)
	if err := a.tellKV(group, addr, look); err != nil {
		return err
	}
	a.Log.Info("serves Dynamo's clients", "endpoints", a.cfg.Namespace+"."+a.cfg.Component, "addr", addr, "instance", fmt.Sprintf("%x", a.id))
	return nil
}

// tellEvents opens what lifecycle events go to.
func (a *Adapter) tellEvents() (err error) {
	if len(a.cfg.NATS.URLs) == 0 {
		return nil
	}
	e := a.cfg.Endpoint("handoff")
	if a.events, err = newPublisher(a.cfg.NATS, e, a.Log); err != nil {
		return err
	}
	r, err := directory.NewChannel(e, Topic, a.events.id).Record()
	a.fixed = append(a.fixed, r)
	return err
}

// Notify implements adapter.Adapter.
func (a *Adapter) Notify(_ context.Context, u adapter.Update) error {
	s := a.news.tell(u)
	a.keeper.Set(a.records(s.Group))
	if u.Whole != nil {
		a.events.tell(Lifecycle{Kind: control.Gap.String(), Group: s.Group.Name, Role: string(s.Group.Role), Lost: u.Lost})
	}
	for _, n := range u.Notices {
		a.events.tell(lifecycle(s.Group, n))
	}
	return nil
}

// Drain removes the records, so that nobody calls any more, lets what runs end for as long
// as ctx lasts, and ends the rest.
func (a *Adapter) Drain(ctx context.Context) error {
	a.end(ctx)
	return nil
}

// Close ends at once what is left.
func (a *Adapter) Close() error {
	now, cancel := context.WithCancel(context.Background())
	cancel()
	a.end(now)
	return nil
}

// goodbye bounds the removal of records, also when ctx has ended.
const goodbye = time.Second

// end ends a life, once.
func (a *Adapter) end(ctx context.Context) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return
	}
	a.closed = true
	if a.keeper != nil {
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), goodbye)
		a.keeper.Close(last)
		cancel()
	}
	if t := a.kv.Load(); t != nil {
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), goodbye)
		t.Close(last)
		cancel()
	}
	if a.kvNATS != nil {
		a.kvNATS.Close()
	}
	if a.news != nil {
		g := a.news.now().Group
		a.events.tell(Lifecycle{Kind: "down", Group: g.Name, Role: string(g.Role)})
		a.news.close()
	}
	a.events.close()
	if a.server != nil {
		a.server.Close(ctx)
	}
	if a.backend != nil {
		if err := a.backend.Close(); err != nil {
			a.Log.Debug("the client of Dynamo's directory did not end in order", "err", err)
		}
	}
}

// records are the endpoints, and while the group takes work the card that shows what it
// can: wait_for_instance_by_runtime_data finds it.
func (a *Adapter) records(g adapter.Group) []directory.Record {
	if g.Status.Draining || !g.Status.Ready {
		return a.fixed
	}
	r, err := a.card(g)
	if err != nil {
		a.Log.Warn("no card", "err", err)
		return a.fixed
	}
	return append(a.fixed[:len(a.fixed):len(a.fixed)], r)
}

// card is a model card that no router routes to: its model type is empty. Frontends list a
// model once the workers that its cards need are there. This one needs a prefill worker of a
// name that nobody else has, so it is never listed.
func (a *Adapter) card(g adapter.Group) (directory.Record, error) {
	name := "baton-" + g.Name
	type runtime struct {
		Data map[string]string `json:"runtime_data"`
	}
	b, err := json.Marshal(struct {
		Name      string     `json:"display_name"`
		Slug      string     `json:"slug"`
		Block     int32      `json:"kv_cache_block_size"`
		Migration int32      `json:"migration_limit"`
		Type      string     `json:"model_type"`
		Input     string     `json:"model_input"`
		Worker    string     `json:"worker_type"`
		Needs     [][]string `json:"needs"`
		Runtime   runtime    `json:"runtime_config"`
	}{Name: name, Slug: name, Block: g.Status.Capacity.BlockTokens, Input: "Tokens", Worker: "decode", Needs: [][]string{{"prefill"}}, Runtime: runtime{map[string]string{
		"baton": strings.TrimPrefix(Carrier, family), "baton_group": g.Name, "baton_role": string(g.Role), "baton_model": g.Model,
	}}})
	if err != nil {
		return directory.Record{}, err
	}
	return directory.NewModel(a.cfg.Endpoint("handoff"), a.id, b).Record()
}
