package dynamo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/batonkv/baton/cmd/dev/servers"
	"github.com/batonkv/baton/discovery"
	"github.com/batonkv/baton/plugins/adapter"
	"github.com/batonkv/baton/plugins/adapter/dynamo/directory"
	"github.com/batonkv/baton/plugins/adapter/dynamo/plane"
	"github.com/batonkv/baton/plugins/adapter/dynamo/wire"
	"github.com/batonkv/baton/plugins/route"
	"github.com/batonkv/baton/sidecar/control"
	"github.com/batonkv/baton/sidecar/handoff"
)

const handoffs, statuses = "dynamo.baton.handoff", "dynamo.baton.status"

// etcdSection joins an etcd under a short lease.
func etcdSection(endpoint, more string) []byte {
	return fmt.Appendf(nil, "namespace: dynamo\netcd: {endpoints: ['%s'], ttl: 2s}\n%s", endpoint, more)
}

// join begins an adapter's life in a deployment.
func join(t *testing.T, sec []byte) (*Adapter, *fake) {
	f := &fake{aborted: make(chan handoff.ID, 300), begun: make(chan struct{}, 300)}
	a := &Adapter{Reshard: route.Layouts()}
	if err := a.Configure(t.Context(), sec); err != nil {
		t.Fatal(err)
	}
	a.Ask(f)
	if err := a.Sync(ctxOf(t), adapter.State{Group: adapter.Group{Name: "d", Pool: "m", Role: discovery.Decode, Model: "tiny", Status: control.Status{Ready: true}}}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close() })
	return a, f
}

func startEtcd(t *testing.T) *servers.Etcd {
	e, err := servers.StartEtcd(t.Context(), servers.EtcdConfig{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Stop)
	return e
}

func etcdEnv(e *servers.Etcd) []string {
	return []string{"DYN_DISCOVERY_BACKEND=etcd", "ETCD_ENDPOINTS=" + e.Endpoint(), "ETCD_LEASE_TTL=2"}
}

func importBody(t *testing.T) words {
	b, err := Carry([]byte(`{"block_ids":[1,2]}`), manifest)
	if err != nil {
		t.Fatal(err)
	}
	return words{"op": "import", "label": "r2", "tokens": []int{7, 8, 9}, "disaggregated_params": json.RawMessage(b)}
}

// TestWheelCallsBaton: a Dynamo client finds and calls the endpoints, whatever codec they
// name, on etcd and on files.
func TestWheelCallsBaton(t *testing.T) {
	for _, k := range []struct{ discovery, codec string }{{"etcd", "msgpack"}, {"etcd", "json"}, {"file", "msgpack"}} {
		t.Run(k.discovery+" "+k.codec, func(t *testing.T) {
			var env []string
			var sec []byte
			if k.discovery == "etcd" {
				e := startEtcd(t)
				env, sec = etcdEnv(e), etcdSection(e.Endpoint(), "codec: "+k.codec)
			} else {
				folder := t.TempDir()
				env, sec = []string{"DYN_DISCOVERY_BACKEND=file", "DYN_FILE_KV=" + folder}, append(section(folder), "\ncodec: "+k.codec...)
			}
			p, ctx := newPeer(t, env...), ctxOf(t)
			a, f := join(t, sec)
			var ids []string
			p.must(ctx, words{"do": "wait", "endpoint": handoffs}, &ids)
			if !slices.Equal(ids, []string{fmt.Sprint(a.id)}) {
				t.Fatalf("instances %v, want %d", ids, a.id)
			}
			var id string
			if p.must(ctx, words{"do": "find", "endpoint": handoffs, "key": "baton_group", "value": "d"}, &id); id != ids[0] {
				t.Errorf("by its card: %s, want %s", id, ids[0])
			}
			var got []ImportAnswer
			p.must(ctx, words{"do": "call", "endpoint": handoffs, "id": id, "body": importBody(t)}, &got)
			if len(got) != 1 || got[0].Label != "r2" || got[0].Bytes != 1<<40 || len(f.imports) != 1 || f.imports[0].Manifest.Key != manifest.Key {
				t.Errorf("%+v, imports %+v", got, f.imports)
			}
			for text, body := range map[string]words{"op \"x\": want": {"op": "x"}, "handoff.bound: ": {"op": "import"}} {
				if err := p.ask(ctx, words{"do": "call", "endpoint": handoffs, "body": body}, nil); err == nil || !strings.Contains(err.Error(), text) {
					t.Errorf("%v, want %q", err, text)
				}
			}
			for text, is := range map[string]error{"Conflict: handoff.taken: ": handoff.ErrTaken, "NotFound: handoff.gone: ": handoff.ErrGone,
				"CapacityExhausted: handoff.capacity: ": handoff.ErrCapacity, "Unavailable: handoff.draining: ": handoff.ErrDraining,
				"Internal: handoff.in-doubt: ": handoff.ErrInDoubt} {
				if p.old() {
					_, text, _ = strings.Cut(text, ": ")
				}
				f.mu.Lock()
				f.err = is
				f.mu.Unlock()
				for range 2 { // round robin goes on calling it: the error took nothing out of use
					if err := p.ask(ctx, words{"do": "call", "endpoint": handoffs, "body": importBody(t)}, nil); err == nil || !strings.Contains(err.Error(), text) {
						t.Errorf("%v, want %q", err, text)
					}
				}
			}
			var n int
			if p.must(ctx, words{"do": "many", "endpoint": statuses, "n": 200, "body": words{}}, &n); n != 200 {
				t.Errorf("%d answers of 200 calls at once", n)
			}
			var plan []PlanAnswer
			p.must(ctx, words{"do": "call", "endpoint": "dynamo.baton.reshard", "body": ReshardRequest{Op: "plan", Source: "tp=2", Destination: "tp=1", Model: "llama-3.1-8b"}.words()}, &plan)
			if len(plan) != 1 || len(plan[0].Moves) == 0 {
				t.Errorf("%+v", plan)
			}
		})
	}
}

func (q ReshardRequest) words() words {
	return words{"op": q.Op, "source": q.Source, "destination": q.Destination, "model": q.Model}
}

// TestWheelCarriesMuch: 8 MiB items, both ways.
func TestWheelCarriesMuch(t *testing.T) {
	e := startEtcd(t)
	p, ctx := newPeer(t, etcdEnv(e)...), ctxOf(t)
	a, _ := join(t, etcdSection(e.Endpoint(), ""))
	const size = 8 << 20
	name := a.cfg.Endpoint("big")
	i := directory.NewInstance(name, a.id, a.server.Addr().String(), "msgpack")
	handler := func(_ context.Context, c plane.Call, out *plane.Stream) error {
		var q struct {
			S string `json:"s"`
		}
		if err := c.Decode(&q); err != nil {
			return err
		}
		return errors.Join(out.Send(q), out.Send(q))
	}
	if err := a.server.Handle(i.Path(), handler); err != nil {
		t.Fatal(err)
	}
	r, err := i.Record()
	if err != nil {
		t.Fatal(err)
	}
	a.keeper.Set(append(a.fixed, r))
	p.must(ctx, words{"do": "wait", "endpoint": name.String()}, nil)
	var got []struct{ S string }
	p.must(ctx, words{"do": "call", "endpoint": name.String(), "body": words{"s": strings.Repeat("x", size)}}, &got)
	if len(got) != 2 || len(got[1].S) != size {
		t.Errorf("%d items", len(got))
	}
}

// TestWheelCancels: a stop of a Dynamo client reaches an import, which is aborted.
func TestWheelCancels(t *testing.T) {
	e := startEtcd(t)
	p, ctx := newPeer(t, etcdEnv(e)...), ctxOf(t)
	_, f := join(t, etcdSection(e.Endpoint(), ""))
	f.hold = make(chan struct{})
	p.must(ctx, words{"do": "wait", "endpoint": handoffs}, nil)
	p.must(ctx, words{"do": "begin", "name": "c1", "endpoint": handoffs, "body": importBody(t)}, nil)
	<-f.begun
	began := time.Now()
	p.must(ctx, words{"do": "stop", "name": "c1"}, nil)
	if got := <-f.aborted; got != id {
		t.Errorf("aborted %v", got)
	}
	t.Logf("a stop took %v to become an abort", time.Since(began))
}

// TestWheelStopsAStream: a stop of a Dynamo client reaches a stream that is in the middle, whose
// place is free again.
func TestWheelStopsAStream(t *testing.T) {
	e := startEtcd(t)
	p, ctx := newPeer(t, etcdEnv(e)...), ctxOf(t)
	a, _ := join(t, etcdSection(e.Endpoint(), "waiting: 1"))
	p.must(ctx, words{"do": "wait", "endpoint": handoffs}, nil)
	for _, name := range []string{"w1", "w2"} {
		var first []Notice
		for len(first) == 0 { // the place is free soon after a stream's end
			if err := p.ask(ctx, words{"do": "begin", "name": name, "endpoint": handoffs, "body": words{"op": "watch"}, "most": 1}, &first); err != nil && ctx.Err() != nil {
				t.Fatal(err)
			}
		}
		if first[0].Kind != "begin" {
			t.Fatalf("%+v", first)
		}
		began := time.Now()
		p.must(ctx, words{"do": "stop", "name": name}, nil)
		p.must(ctx, words{"do": "rest", "name": name}, nil)
		t.Logf("a stop took %v to become the stream's end", time.Since(began))
	}
	a.server.Close(ctx) // returns when no call is left
}

// TestBatonCallsWheel: our client calls a Dynamo worker, hears its errors, cancels it, and
// learns of its death.
func TestBatonCallsWheel(t *testing.T) {
	e := startEtcd(t)
	p, ctx := newPeer(t, etcdEnv(e)...), ctxOf(t)
	p.must(ctx, words{"do": "serve", "endpoint": "dynamo.worker.generate"}, nil)
	backend, _, err := (&Config{Discovery: "etcd", Etcd: mustParse(t, etcdSection(e.Endpoint(), "")).Etcd}).Open()
	if err != nil {
		t.Fatal(err)
	}
	defer backend.Close()
	var to plane.Target
	for s, err := range backend.Watch(ctx, directory.Instances+"dynamo/worker/") {
		if err != nil {
			t.Fatal(err)
		}
		if len(s) == 0 {
			continue
		}
		to.Address, to.Path, _ = instance(t, s[0]).Called()
		break
	}
	c, err := plane.NewClient("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for _, to.Codec = range []wire.Codec{wire.JSON, wire.Msgpack} {
		wheelAnswers(t, c, to, p, int(to.Codec)+1)
	}
	a, err := c.Call(ctx, to, ask{Mode: "slow"})
	if err == nil {
		err = a.Next(ctx, &struct{}{})
	}
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	p.kill()
	for err = nil; err == nil; {
		err = a.Next(ctx, &struct{}{})
	}
	if !errors.Is(err, handoff.ErrPeer) {
		t.Errorf("a worker that dies: %v", err)
	}
	if _, err := c.Call(ctx, to, ask{}); !errors.Is(err, handoff.ErrPeer) {
		t.Errorf("a dead worker: %v", err)
	}
}

// instance is one that a record tells of.
func instance(t *testing.T, r directory.Record) (i directory.Instance) {
	if err := json.Unmarshal(r.Value, &i); err != nil {
		t.Fatal(err)
	}
	return i
}

type ask struct {
	Mode string `json:"mode"`
	Echo string `json:"echo,omitempty"`
	Size int    `json:"size,omitempty"`
}

func mustParse(t *testing.T, sec []byte) Config {
	c, err := ParseConfig(sec)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// wheelAnswers calls a Dynamo worker in each of its modes; after it the worker has heard of so many stops.
func wheelAnswers(t *testing.T, c *plane.Client, to plane.Target, p *peer, stops int) {
	ctx := ctxOf(t)
	type item struct {
		I    int    `json:"i"`
		Echo string `json:"echo"`
		S    string `json:"s"`
	}
	all := func(q ask) (got []item, err error) {
		a, err := c.Call(ctx, to, q)
		if err != nil {
			return nil, err
		}
		defer a.Close()
		for err == nil {
			var i item
			if err = a.Next(ctx, &i); err == nil {
				got = append(got, i)
			}
		}
		if errors.Is(err, io.EOF) {
			err = nil
		}
		return got, err
	}
	if got, err := all(ask{Mode: "ok", Echo: "é"}); err != nil || len(got) != 3 || got[2].I != 2 || got[2].Echo != "é" {
		t.Errorf("%v: %+v, %v", to.Codec, got, err)
	}
	if got, err := all(ask{Mode: "big", Size: 8 << 20}); err != nil || len(got) != 1 || len(got[0].S) != 8<<20 {
		t.Errorf("%v: %d items, %v", to.Codec, len(got), err)
	}
	for mode, want := range map[string]wire.Fault{"fail": {Type: wire.Type{Name: wire.InvalidArgument, Backend: true}, Message: "boom"}, "conflict": {Type: wire.Type{Name: wire.Unknown}, Message: "busy"}} {
		if p.old() {
			want.Type = wire.Type{Name: wire.InvalidArgument, Backend: true}
		}
		_, err := all(ask{Mode: mode})
		if f, ok := errors.AsType[*wire.Fault](err); !ok || f.Type != want.Type || !strings.Contains(f.Message, want.Message) {
			t.Errorf("%v %s: %v", to.Codec, mode, err)
		}
	}
	wheelStops(t, c, to, p, stops)
	if p.old() {
		return // it takes a call of an endpoint that it has not, and never answers
	}
	bad := to
	bad.Path = "nope"
	if _, err := c.Call(ctx, bad, ask{}); !errors.Is(err, handoff.ErrPeer) || !strings.Contains(err.Error(), "unknown endpoint nope") {
		t.Errorf("%v: %v", to.Codec, err)
	}
}

// wheelStops cancels an answer of a Dynamo worker.
func wheelStops(t *testing.T, c *plane.Client, to plane.Target, p *peer, stops int) {
	ctx := ctxOf(t)
	a, err := c.Call(ctx, to, ask{Mode: "slow"})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	if err := errors.Join(a.Next(ctx, &struct{}{}), a.Stop()); err != nil {
		t.Fatal(err)
	}
	for err = nil; err == nil; {
		err = a.Next(ctx, &struct{}{})
	}
	if !errors.Is(err, io.EOF) {
		t.Errorf("%v: after a stop: %v", to.Codec, err)
	}
	p.must(ctx, words{"do": "stopped", "n": stops}, nil)
}
