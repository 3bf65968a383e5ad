package dynamo

import (
	"strings"
	"sync"
	"testing"

	natsgo "github.com/nats-io/nats.go"

	"github.com/batonkv/baton/cmd/dev/servers"
	"github.com/batonkv/baton/plugins/adapter"
	"github.com/batonkv/baton/plugins/adapter/dynamo/directory"
	"github.com/batonkv/baton/plugins/adapter/dynamo/wire"
	"github.com/batonkv/baton/sidecar/control"
)

// TestEvents: what happens is told in Dynamo's envelope, in order, and nobody who hears it
// can import.
func TestEvents(t *testing.T) {
	server, err := servers.StartNATS(t.Context(), servers.NATSConfig{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Stop)
	nc, err := natsgo.Connect(server.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	heard, err := nc.SubscribeSync("namespace.dynamo.component.baton.endpoint.handoff.baton-handoff")
	if err == nil {
		err = nc.Flush()
	}
	if err != nil {
		t.Fatal(err)
	}
	r, ctx := newRig(t, "\nnats: {urls: ['"+server.URL()+"']}"), ctxOf(t)
	for s, err := range r.files.Watch(ctx, directory.Channels) {
		if err != nil || len(s) != 1 || !strings.Contains(string(s[0].Value), `"topic":"baton-handoff"`) {
			t.Errorf("%s, %v", s, err)
		}
		break
	}
	whole := r.a.news.now()
	for _, u := range []adapter.Update{{Notices: []control.Notice{{Kind: control.Exported, ID: id, Label: "r1", Manifest: &manifest}, {Kind: control.Over, ID: id}}}, {Whole: &whole, Lost: 4}} {
		if err := r.a.Notify(ctx, u); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.a.Drain(ctx); err != nil {
		t.Fatal(err)
	}
	for n, kind := range []string{"up", "exported", "over", "gap", "down"} {
		m, err := heard.NextMsgWithContext(ctx)
		if err != nil {
			t.Fatal(kind, err)
		}
		e, err := wire.DecodeEvent(m.Data)
		if err != nil || e.Sequence != uint64(n) || e.Topic != Topic || e.Publisher != r.a.events.id || e.PublishedAt == 0 {
			t.Fatalf("%+v, %v", e, err)
		}
		var l Lifecycle
		if err := wire.Msgpack.Decode(e.Payload, &l); err != nil || l.Kind != kind || l.Group != "d" || l.Role != "decode" {
			t.Errorf("%+v, %v, want %s", l, err, kind)
		}
		if kind == "exported" && (l.Label != "r1" || l.Tokens != 3 || *l.ID != FromID(id)) || kind == "gap" && l.Lost != 4 {
			t.Errorf("%+v", l)
		}
		if strings.Contains(string(e.Payload), FromManifest(manifest).Key) || strings.Contains(string(e.Payload), string(manifest.Key[:])) {
			t.Errorf("%s tells the key", kind)
		}
	}
}

// TestCloseWhileNotified: an adapter may be closed while it is told something.
func TestCloseWhileNotified(t *testing.T) {
	r, ctx := newRig(t, "\nnats: {urls: ['nats://127.0.0.1:1']}"), ctxOf(t)
	var told sync.WaitGroup
	told.Go(func() {
		for range 100 {
			if err := r.a.Notify(ctx, adapter.Update{Notices: []control.Notice{{Kind: control.Over, ID: id}}}); err != nil {
				t.Error(err)
			}
		}
	})
	if err := r.a.Close(); err != nil {
		t.Error(err)
	}
	told.Wait()
}

// TestEventsWithoutNATS: a server that is away costs the events, and nothing else.
func TestEventsWithoutNATS(t *testing.T) {
	r, ctx := newRig(t, "\nnats: {urls: ['nats://127.0.0.1:1']}"), ctxOf(t)
	if err := r.a.Notify(ctx, adapter.Update{Notices: []control.Notice{{Kind: control.Over, ID: id}}}); err != nil {
		t.Error(err)
	}
	if got, err := call[StatusAnswer](ctx, r.caller, "status", struct{}{}); err != nil || got.State != "serving" {
		t.Errorf("%+v, %v", got, err)
	}
	if err := r.a.Drain(ctx); err != nil {
		t.Error(err)
	}
}
