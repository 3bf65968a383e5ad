package dynamo

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/batonkv/baton/plugins/adapter"
	"github.com/batonkv/baton/plugins/adapter/dynamo/directory"
	"github.com/batonkv/baton/plugins/adapter/dynamo/wire"
	"github.com/batonkv/baton/sidecar/handoff"
)

// TestAdapterTells: an adapter with kv.events tells what its feed has for the worker whose
// card names the group and the endpoint state, and for no other; its status counts.
func TestAdapterTells(t *testing.T) {
	folder, ctx := t.TempDir(), ctxOf(t)
	a := &Adapter{}
	if err := a.Configure(ctx, append(section(folder), "\nkv: {events: zmq}"...)); err != nil {
		t.Fatal(err)
	}
	feed := make(cache, 8)
	a.Ask(&fake{})
	a.ReadBlocks(feed)
	if err := a.Sync(ctx, adapter.State{Group: adapter.Group{Name: "p"}}); err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	files, err := directory.OpenFiles(folder)
	if err != nil {
		t.Fatal(err)
	}
	workers := directory.Keep(files, time.Second, slog.New(slog.DiscardHandler))
	defer workers.Close(ctx)
	var cards []directory.Record
	state := string(must(wire.JSON.Encode(a.cfg.State())))
	for n, runtime := range []string{`{"runtime_data":{"baton_group":"p"},"kv_state_endpoint":` + state + `}`, `{"runtime_data":{"baton_group":"d"},"kv_state_endpoint":` + state + `}`,
		`{"runtime_data":{"baton_group":"p"}}`, `{"runtime_data":{"baton_group":7},"kv_state_endpoint":` + state + `}`, `[]`} {
		card := fmt.Appendf(nil, `{"kv_cache_block_size":%d,"runtime_config":%s}`, kvBlock, runtime)
		cards = append(cards, must(directory.NewModel(directory.Endpoint{Namespace: "dynamo", Component: "w", Name: "generate"}, uint64(n+1), card).Record()))
	}
	workers.Set(cards)
	feed <- handoff.BlockEvent{Kind: handoff.BlocksCleared, Lost: 7}
	feed <- stored(0, 3)
	c := newCaller(t, folder)
	var got StatusAnswer
	for got.KV == nil || got.KV.Sources == 0 || got.KV.Blocks != 3 {
		if got, err = call[StatusAnswer](ctx, c, "status", struct{}{}); err != nil && ctx.Err() != nil {
			t.Fatalf("%+v, %v", got.KV, err)
		}
	}
	if got.KV.Sources != 1 || got.KV.Waiting != 0 || got.KV.Events != "1" || got.KV.Untold != "0" || got.KV.Missed != "7" || got.KV.Apart != 0 {
		t.Errorf("%+v", got.KV)
	}
	if n := a.Counts(); adapter.CheckCounts(n) != nil || len(n) != 15 || n["kv_blocks"] != 3 || n["kv_stored_blocks_total"] != 3 || n["kv_missed_events_total"] != 7 || n["kv_sources"] != 1 {
		t.Errorf("%v, %v", n, adapter.CheckCounts(n))
	}
	for s, err := range files.Watch(ctx, directory.SourcesOf(a.cfg.State(), "kv-events")) {
		if err != nil {
			t.Fatal(err)
		}
		if len(s) == 1 && strings.Contains(string(s[0].Value), `"worker":{"worker_id":1,"dp_rank":0}`) && strings.Contains(string(s[0].Value), "recovery_target") {
			break
		}
	}
	a.Close()
	for s, err := range files.Watch(context.WithoutCancel(ctx), directory.Sources) {
		if err != nil || len(s) > 0 {
			t.Errorf("after the end: %v, %v", s, err)
		}
		break
	}
}

// TestKVConfig: what is wrong is said.
func TestKVConfig(t *testing.T) {
	for section, want := range map[string]string{"kv: {events: kafka}": "want nats or zmq", "kv: {events: nats}": "nats.urls", "kv: {live-only: true}": "want kv.events", "kv: {typo: 1}": "typo"} {
		if _, err := ParseConfig(fmt.Appendf(nil, "namespace: dynamo\ndiscovery: file\nfolder: /x\n%s", section)); !errors.Is(err, handoff.ErrSection) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", section, err)
		}
	}
}
