package dynamo

import (
	"fmt"
	"log/slog"
	"runtime"
	"testing"
	"time"

	"github.com/batonkv/baton/plugins/adapter/dynamo/directory"
	"github.com/batonkv/baton/plugins/adapter/dynamo/kv"
	"github.com/batonkv/baton/sidecar/handoff"
)

// TestWheelHearsLiveOnly: a router that cannot ask hears what is told while it listens. When it
// misses an event it expects nothing of the worker, until sequences are stored from their
// beginning on.
func TestWheelHearsLiveOnly(t *testing.T) {
	folder := t.TempDir()
	p, ctx := newPeer(t, "DYN_DISCOVERY_BACKEND=file", "DYN_FILE_KV="+folder, "DYN_EVENT_PLANE=zmq"), ctxOf(t)
	w := tellTo(t, "zmq", append(section(folder), "\nkv: {events: zmq, live-only: true}"...), nil)
	p.must(ctx, words{"do": "wait", "endpoint": w.at.String()}, nil)
	p.must(ctx, words{"do": "router", "endpoint": w.at.String(), "block": kvBlock}, nil)
	for w.teller.Counts().Cleared == 0 { // everything is told once by itself: here nothing, and not in between
		if runtime.Gosched(); ctx.Err() != nil {
			t.Fatal(w.teller.Counts())
		}
	}
	again := func(n int) { // until it listens
		t.Helper()
		w.cache <- handoff.BlockEvent{Kind: handoff.BlocksCleared}
		w.cache <- stored(0, n)
	}
	for heard := false; !heard; {
		again(3)
		heard = p.ask(ctx, w.overlap(3, 3), nil) == nil
		if ctx.Err() != nil {
			t.Fatalf("nothing is heard, %+v", w.teller.Counts())
		}
	}
	w.cache <- handoff.BlockEvent{Kind: handoff.BlocksRemoved, Removed: []uint64{102}}
	w.overlaps(ctx, p, 1)
	w.cache <- stored(1, 2) // and what follows it is held
	w.overlaps(ctx, p, 3)
	w.lose.Store(true)
	w.cache <- stored(3, 4)
	w.lost(ctx)
	w.cache <- stored(4, 5)
	w.overlaps(ctx, p, 0)
	again(2)
	w.overlaps(ctx, p, 2)
	if c := w.teller.Counts(); c.Asked != 0 {
		t.Errorf("asked %d times", c.Asked)
	}
}

// TestWheelHasTwoSources: while another source tells of the worker routers hear neither, and
// go on serving. A worker that comes while there is one is told of when that has gone.
func TestWheelHasTwoSources(t *testing.T) {
	e := startEtcd(t)
	p, ctx := newPeer(t, append(etcdEnv(e), "DYN_EVENT_PLANE=zmq")...), ctxOf(t)
	w := tellTo(t, "zmq", etcdSection(e.Endpoint(), ""), nil)
	w.cache <- stored(0, 3)
	p.must(ctx, words{"do": "wait", "endpoint": w.at.String()}, nil)
	p.must(ctx, words{"do": "router", "endpoint": w.at.String(), "block": kvBlock}, nil)
	w.overlaps(ctx, p, 3)
	other := directory.Source{Type: "EventSource", Scope: directory.Scope{Kind: "endpoint", Endpoint: w.cfg.Endpoint("state")}, Topic: kv.Topic, ID: NewID()}
	other.Metadata = directory.SourceMetadata{State: w.cfg.Endpoint("state"), Worker: directory.Worker{ID: w.worker}, Publisher: other.ID}
	second := directory.Keep(must(directory.OpenEtcd(w.cfg.Etcd)), time.Second, slog.New(slog.DiscardHandler))
	second.Set([]directory.Record{must(other.Record())})
	w.overlaps(ctx, p, 0)
	var best struct{ Worker string }
	if p.must(ctx, words{"do": "best", "endpoint": w.at.String(), "tokens": seqTokens(8 * kvBlock)}, &best); best.Worker != fmt.Sprint(w.worker) {
		t.Errorf("%+v", best)
	}
	card := w.card
	w.keeper.Set(w.card[:1]) // the worker goes, and with it this source
	w.until(ctx, 0, 0)
	w.keeper.Set(card)
	w.until(ctx, 0, 1)
	second.Close(ctx)
	w.overlaps(ctx, p, 3)
}
