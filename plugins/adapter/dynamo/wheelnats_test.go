package dynamo

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/batonkv/baton/cmd/dev/servers"
	"github.com/batonkv/baton/plugins/adapter/dynamo/directory"
	"github.com/batonkv/baton/plugins/adapter/dynamo/plane"
	"github.com/batonkv/baton/plugins/adapter/dynamo/wire"
	"github.com/batonkv/baton/sidecar/handoff"
)

// overNATS starts etcd and NATS, a peer whose request plane is NATS, and gives the section of an
// adapter on the same.
func overNATS(t *testing.T, more string) (*peer, []byte) {
	e := startEtcd(t)
	n, err := servers.StartNATS(t.Context(), servers.NATSConfig{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(n.Stop)
	p := newPeer(t, append(etcdEnv(e), "DYN_REQUEST_PLANE=nats", "NATS_SERVER="+n.URL())...)
	return p, etcdSection(e.Endpoint(), fmt.Sprintf("request-plane: nats\nnats: {urls: ['%s']}\n%s", n.URL(), more))
}

// TestWheelCallsBatonOverNATS: calls, errors, many at once, a stop, and what is refused.
func TestWheelCallsBatonOverNATS(t *testing.T) {
	p, sec := overNATS(t, "waiting: 1")
	ctx := ctxOf(t)
	_, f := join(t, sec)
	p.must(ctx, words{"do": "wait", "endpoint": handoffs}, nil)
	var got []ImportAnswer
	p.must(ctx, words{"do": "call", "endpoint": handoffs, "body": importBody(t)}, &got)
	if len(got) != 1 || got[0].Label != "r2" || len(f.imports) != 1 || f.imports[0].Manifest.Key != manifest.Key {
		t.Errorf("%+v, imports %+v", got, f.imports)
	}
	f.mu.Lock()
	f.err = handoff.ErrTaken
	f.mu.Unlock()
	for range 2 { // the error took nothing out of use
		if err := p.ask(ctx, words{"do": "call", "endpoint": handoffs, "body": importBody(t)}, nil); err == nil || !strings.Contains(err.Error(), "handoff.taken: ") {
			t.Errorf("%v, want handoff.taken", err)
		}
	}
	f.mu.Lock()
	f.err = nil
	f.mu.Unlock()
	var many int
	if p.must(ctx, words{"do": "many", "endpoint": statuses, "n": 200, "body": words{}}, &many); many != 200 {
		t.Errorf("%d answers of 200 calls at once", many)
	}
	for _, name := range []string{"w1", "w2"} { // a stream has a place again after the stop of one before
		var first []Notice
		for len(first) == 0 {
			if err := p.ask(ctx, words{"do": "begin", "name": name, "endpoint": handoffs, "body": words{"op": "watch"}, "most": 1}, &first); err != nil && ctx.Err() != nil {
				t.Fatal(err)
			}
		}
		p.must(ctx, words{"do": "stop", "name": name}, nil)
		p.must(ctx, words{"do": "rest", "name": name}, nil)
	}
	f.hold = make(chan struct{})
	p.must(ctx, words{"do": "begin", "name": "c1", "endpoint": handoffs, "body": importBody(t)}, nil)
	for range cap(f.begun) {
		<-f.begun
		if len(f.begun) == 0 {
			break
		}
	}
	p.must(ctx, words{"do": "stop", "name": "c1"}, nil)
	if got := <-f.aborted; got != id {
		t.Errorf("aborted %v", got)
	}
}

// TestWheelIsRefusedOverNATS: a server without room says so at once.
func TestWheelIsRefusedOverNATS(t *testing.T) {
	p, sec := overNATS(t, "calls: 1")
	ctx := ctxOf(t)
	_, f := join(t, sec)
	f.hold = make(chan struct{})
	p.must(ctx, words{"do": "wait", "endpoint": handoffs}, nil)
	p.must(ctx, words{"do": "begin", "name": "c1", "endpoint": handoffs, "body": importBody(t)}, nil)
	<-f.begun
	if err := p.ask(ctx, words{"do": "call", "endpoint": handoffs, "body": importBody(t)}, nil); err == nil || !strings.Contains(err.Error(), "Server overloaded: 1 calls run") {
		t.Errorf("%v, want Server overloaded", err)
	}
	p.must(ctx, words{"do": "stop", "name": "c1"}, nil)
	<-f.aborted
}

// TestBatonCallsWheelOverNATS: our client calls a Dynamo worker, hears its errors, cancels it, and
// learns of its death.
func TestBatonCallsWheelOverNATS(t *testing.T) {
	p, sec := overNATS(t, "")
	ctx := ctxOf(t)
	cfg := mustParse(t, sec)
	p.must(ctx, words{"do": "serve", "endpoint": "dynamo.worker.generate"}, nil)
	backend, _, err := cfg.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer backend.Close()
	var to plane.Target
	var i directory.Instance
	for s, err := range backend.Watch(ctx, directory.Instances+"dynamo/worker/") {
		if err != nil {
			t.Fatal(err)
		}
		if len(s) > 0 {
			i = instance(t, s[0])
			break
		}
	}
	to.Address, to.Path, _ = i.Called()
	if want := directory.NewInstance(directory.Endpoint{Namespace: "dynamo", Component: "worker", Name: "generate"}, i.ID, "", "").Path(); to.Address != "" || to.Path != want {
		t.Errorf("%+v, ours would be called by %s", to, want)
	}
	c, err := cfg.Client()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for _, to.Codec = range []wire.Codec{wire.JSON, wire.Msgpack} {
		a, err := c.Call(ctx, to, ask{Mode: "fail"})
		if err != nil {
			t.Fatal(err)
		}
		err = a.Next(ctx, &struct{}{})
		if f, ok := errors.AsType[*wire.Fault](err); !ok || !strings.Contains(f.Message, "boom") {
			t.Errorf("%v: %v", to.Codec, err)
		}
		a.Close()
		wheelStops(t, c, to, p, int(to.Codec)+1)
	}
	p.kill()
	if _, err := c.Call(ctx, to, ask{}); !errors.Is(err, handoff.ErrPeer) {
		t.Errorf("a dead worker: %v", err)
	}
}
