package dynamo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"reflect"
	"strings"
	"sync"
	"testing"

	"github.com/batonkv/baton/discovery"
	"github.com/batonkv/baton/plugins/adapter"
	"github.com/batonkv/baton/plugins/adapter/dynamo/directory"
	"github.com/batonkv/baton/plugins/adapter/dynamo/plane"
	"github.com/batonkv/baton/plugins/adapter/dynamo/wire"
	"github.com/batonkv/baton/plugins/route"
	"github.com/batonkv/baton/sidecar/control"
	"github.com/batonkv/baton/sidecar/handoff"
)

// fake is a group's leader.
type fake struct {
	mu      sync.Mutex // guards:
	err     error
	imports []handoff.Import
	aborted chan handoff.ID
	hold    chan struct{} // an import waits for an abort, or for this; nil: it does not
	begun   chan struct{}
}

func (f *fake) Import(ctx context.Context, m handoff.Import) (handoff.Imported, error) {
	f.mu.Lock()
	f.imports = append(f.imports, m)
	err, hold := f.err, f.hold
	f.mu.Unlock()
	if hold != nil {
		f.begun <- struct{}{}
		select {
		case <-hold:
		case id := <-f.aborted:
			f.aborted <- id
			return handoff.Imported{}, fmt.Errorf("%s: %w", m.Label, handoff.ErrAborted)
		case <-ctx.Done():
			return handoff.Imported{}, handoff.ErrInDoubt
		}
	}
	return handoff.Imported{Label: m.Label, ID: m.Manifest.ID, Bytes: 1 << 40, Cached: 3}, err
}

func (f *fake) fail() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.err
}

func (f *fake) Get(_ context.Context, id handoff.ID) (control.Info, error) {
	return control.Info{ID: id, Role: control.Destination, Phase: control.Pulling, Bytes: 7}, f.fail()
}

func (f *fake) List(context.Context, control.Query) (control.Page, error) {
	return control.Page{Infos: []control.Info{{ID: id, Role: control.Source, Phase: control.Held, Copies: 1}}, Next: "s9"}, f.fail()
}

func (f *fake) Abort(_ context.Context, id handoff.ID, key handoff.Key) error {
	if key != manifest.Key {
		return handoff.ErrUnknown
	}
	f.aborted <- id
	return f.fail()
}

func (f *fake) Release(context.Context, handoff.ID, handoff.Key) error { return f.fail() }

var (
	id       = handoff.ID{Group: "p", Instance: 1 << 60, Leader: 1 << 61, N: 5}
	manifest = handoff.Manifest{ID: id, Key: handoff.Key{1, 2}, Label: "r1", Tokens: 3, Position: 3, BlockTokens: 16, Resume: handoff.Resume{Tokens: []int32{9}}}
)

// rig is an adapter that serves, and a client of it.
type rig struct {
	*caller
	a    *Adapter
	fake *fake
}

func newRig(t *testing.T, more string) *rig {
	folder := t.TempDir()
	r := &rig{caller: newCaller(t, folder), fake: &fake{aborted: make(chan handoff.ID, 8), begun: make(chan struct{}, 8)},
		a: &Adapter{Log: slog.New(slog.NewTextHandler(t.Output(), nil)), Reshard: route.Layouts()}}
	if err := r.a.Configure(t.Context(), append(section(folder), more...)); err != nil {
		t.Fatal(err)
	}
	r.a.Ask(r.fake)
	s := adapter.State{Group: adapter.Group{Pool: "m", Name: "d", Role: discovery.Decode, Model: "tiny", WeightsEpoch: 1 << 60,
		Status: control.Status{Ready: true, Ranks: 2, Capacity: handoff.Capacity{Blocks: 8, Slots: 2, BlockTokens: 16}}}}
	if err := r.a.Sync(ctxOf(t), s); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.a.Close() })
	return r
}

func params(t *testing.T, c wire.Codec, m handoff.Manifest) Params {
	b, err := c.Encode(FromManifest(m))
	if err != nil {
		t.Fatal(err)
	}
	own, err := c.Encode([]int{1, 2})
	if err != nil {
		t.Fatal(err)
	}
	return Params{Carrier: b, "block_ids": own}
}

// TestHandoff calls each operation, in both codecs.
func TestHandoff(t *testing.T) {
	for _, codec := range []wire.Codec{wire.JSON, wire.Msgpack} {
		r, ctx := newRig(t, "\ncodec: "+codec.String()), ctxOf(t)
		got, err := call[ImportAnswer](ctx, r.caller, "handoff", HandoffRequest{Op: "import", Label: "r2", Tokens: []int32{7, 8, 9}, Params: params(t, codec, manifest), Deadline: 5000})
		if err != nil || got.Label != "r2" || got.ID != FromID(id) || got.Bytes != 1<<40 || got.Cached != 3 || len(got.Phases) != 6 {
			t.Errorf("%v: %+v, %v", codec, got, err)
		}
		m := FromManifest(manifest)
		if _, err = call[ImportAnswer](ctx, r.caller, "handoff", HandoffRequest{Op: "import", Label: "r3", Tokens: []int32{7}, Manifest: &m}); err != nil {
			t.Error(err)
		}
		if all := r.fake.imports; len(all) != 2 || !reflect.DeepEqual(all[0].Manifest, manifest) || all[0].Deadline.Seconds() != 5 || len(all[0].Tokens) != 3 || all[1].Deadline != defaultDeadline {
			t.Errorf("%v: %+v", codec, all)
		}
		i, err := call[InfoAnswer](ctx, r.caller, "handoff", HandoffRequest{Op: "get", ID: &m.ID})
		if err != nil || i.Phase != "pulling" || i.Role != "destination" || i.Bytes != 7 || i.ID != m.ID {
			t.Errorf("%v: %+v, %v", codec, i, err)
		}
		l, err := call[ListAnswer](ctx, r.caller, "handoff", HandoffRequest{Op: "list"})
		if err != nil || len(l.Handoffs) != 1 || l.Next != "s9" || l.Handoffs[0].Role != "source" {
			t.Errorf("%v: %+v, %v", codec, l, err)
		}
		for _, q := range []HandoffRequest{{Op: "abort", ID: &m.ID, Key: m.Key}, {Op: "release", ID: &m.ID, Key: m.Key}} {
			if d, err := call[Done](ctx, r.caller, "handoff", q); err != nil || !d.OK {
				t.Errorf("%v %s: %v", codec, q.Op, err)
			}
		}
		if got := <-r.fake.aborted; got != id {
			t.Errorf("aborted %v", got)
		}
	}
}

// TestFaults: what fails keeps its name, and the type that a client decides by.
func TestFaults(t *testing.T) {
	r, ctx := newRig(t, ""), ctxOf(t)
	m := FromManifest(manifest)
	bad := m
	bad.Key = "x"
	for _, k := range []struct {
		q    HandoffRequest
		err  error
		kind string
		text string
	}{
		{HandoffRequest{Op: "impotr"}, nil, wire.InvalidArgument, "want import"},
		{HandoffRequest{Op: "import"}, nil, wire.InvalidArgument, "handoff.bound: handoff: over a limit: import: no manifest"},
		{HandoffRequest{Op: "import", Params: Params{"baton.v2": wire.Raw("\x01")}}, nil, wire.InvalidArgument, "handoff.version: "},
		{HandoffRequest{Op: "import", Manifest: &bad}, nil, wire.InvalidArgument, "key: "},
		{HandoffRequest{Op: "import", Manifest: &m, Deadline: -1}, nil, wire.InvalidArgument, "deadline_ms"},
		{HandoffRequest{Op: "import", Manifest: &m, Label: strings.Repeat("x", 300)}, nil, wire.InvalidArgument, "label"},
		{HandoffRequest{Op: "get"}, nil, wire.InvalidArgument, "id.instance"},
		{HandoffRequest{Op: "release", ID: &m.ID}, nil, wire.InvalidArgument, "key"},
		{HandoffRequest{Op: "abort", ID: &m.ID}, nil, wire.InvalidArgument, "key"},
		{HandoffRequest{Op: "abort", ID: &m.ID, Key: strings.Repeat("0f", 16)}, nil, wire.NotFound, "handoff.unknown: "},
		{HandoffRequest{Op: "import", Manifest: &m}, handoff.ErrGone, wire.NotFound, "handoff.gone: "},
		{HandoffRequest{Op: "import", Manifest: &m}, handoff.ErrTaken, wire.Conflict, "handoff.taken: "},
		{HandoffRequest{Op: "import", Manifest: &m}, handoff.ErrCapacity, wire.ResourceExhausted, "handoff.capacity: "},
		{HandoffRequest{Op: "import", Manifest: &m}, handoff.ErrDraining, wire.Unavailable, "handoff.draining: "},
		{HandoffRequest{Op: "get", ID: &m.ID}, handoff.ErrUnknown, wire.NotFound, "handoff.unknown: "},
		{HandoffRequest{Op: "list"}, handoff.ErrInDoubt, wire.Unknown, "handoff.in-doubt: "},
	} {
		r.fake.mu.Lock()
		r.fake.err = k.err
		r.fake.mu.Unlock()
		_, err := call[Done](ctx, r.caller, "handoff", k.q)
		f, ok := errors.AsType[*wire.Fault](err)
		if !ok || f.Kind() != k.kind || f.Type.Backend || !strings.Contains(f.Message, k.text) {
			t.Errorf("%+v: %v, want %s: %s", k.q, err, k.kind, k.text)
		}
	}
}

// TestAwaitAndWatch: a handler gets what its request carries, a watcher hears of it.
func TestAwaitAndWatch(t *testing.T) {
	r, ctx := newRig(t, ""), ctxOf(t)
	w, err := r.client.Call(ctx, r.targets(ctx, "handoff")[0], HandoffRequest{Op: "watch"})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	var n Notice
	if err := w.Next(ctx, &n); err != nil || n.Kind != "begin" {
		t.Fatal(n, err)
	}
	waits, err := r.client.Call(ctx, r.targets(ctx, "handoff")[0], HandoffRequest{Op: "await", Label: "r1"})
	if err != nil {
		t.Fatal(err)
	}
	defer waits.Close()
	tell := func(u adapter.Update) {
		t.Helper()
		if err := r.a.Notify(ctx, u); err != nil {
			t.Fatal(err)
		}
	}
	tell(adapter.Update{Notices: []control.Notice{{Kind: control.Exported, ID: id, Label: "r1", Manifest: &manifest}}})
	var got AwaitAnswer
	if err := waits.Next(ctx, &got); err != nil {
		t.Fatal(err)
	}
	if m, ok, err := got.Params.Carried(wire.Msgpack); err != nil || !ok || !reflect.DeepEqual(m, manifest) {
		t.Errorf("%+v, %v, %v", m, ok, err)
	}
	if err := w.Next(ctx, &n); err != nil || n.Kind != "exported" || n.Label != "r1" || len(n.Params) != 1 {
		t.Errorf("%+v, %v", n, err)
	}
	tell(adapter.Update{Notices: []control.Notice{{Kind: control.Over, ID: id}}})
	if _, err := call[AwaitAnswer](ctx, r.caller, "handoff", HandoffRequest{Op: "await", Label: "r1", Deadline: 1}); err == nil || !strings.Contains(err.Error(), "handoff.deadline") {
		t.Errorf("an export that is over: %v", err)
	}
	whole := r.a.news.now()
	tell(adapter.Update{Whole: &whole, Lost: 9})
	for n.Kind != "gap" {
		n = Notice{}
		if err := w.Next(ctx, &n); err != nil {
			t.Fatal(err)
		}
	}
	if n.Lost != 9 {
		t.Errorf("%+v", n)
	}
	if err := w.Stop(); err != nil {
		t.Fatal(err)
	}
	if err := w.Next(ctx, &n); !errors.Is(err, io.EOF) {
		t.Errorf("a watch that was stopped: %v", err)
	}
}

// TestStatusAndCard follow the group.
func TestStatusAndCard(t *testing.T) {
	r, ctx := newRig(t, ""), ctxOf(t)
	cards := func() (n int) {
		t.Helper()
		if err := r.a.keeper.Settled(ctx); err != nil {
			t.Fatal(err)
		}
		for s, err := range r.files.Watch(ctx, directory.Models) {
			if err != nil {
				t.Fatal(err)
			}
			for _, rec := range s {
				var m directory.Model
				if err := json.Unmarshal(rec.Value, &m); err != nil || !strings.Contains(string(m.Card), `"runtime_data":{"baton":"v1","baton_group":"d","baton_model":"tiny","baton_role":"decode"}`) {
					t.Errorf("%s, %v", rec.Value, err)
				}
			}
			return len(s)
		}
		return 0
	}
	step := func(change func(*adapter.Group), handoffs []control.Info, state string, safe bool, card int) {
		t.Helper()
		s := r.a.news.now()
		s.Handoffs = handoffs
		change(&s.Group)
		if err := r.a.Notify(ctx, adapter.Update{Whole: &s}); err != nil {
			t.Fatal(err)
		}
		got, err := call[StatusAnswer](ctx, r.caller, "status", struct{}{})
		if err != nil || got.State != state || got.SafeToDelete != safe || got.Exports != len(handoffs) || got.WeightsEpoch != "1152921504606846976" || got.Group != "d" {
			t.Errorf("%+v, %v, want %s", got, err, state)
		}
		if n := cards(); n != card {
			t.Errorf("%s: %d cards", state, n)
		}
	}
	held := []control.Info{{ID: id, Role: control.Source, Phase: control.Held}}
	step(func(*adapter.Group) {}, nil, "serving", false, 1)
	step(func(g *adapter.Group) { g.Status.Draining = true }, held, "draining", false, 0)
	step(func(*adapter.Group) {}, nil, "drained", true, 0)
	step(func(g *adapter.Group) { g.Status.Draining, g.Status.Ready = false, false }, nil, "not-ready", false, 0)
	step(func(g *adapter.Group) { g.Status.Ready = true }, held, "serving", false, 1)
}

// TestReshard plans and explains between layouts.
func TestReshard(t *testing.T) {
	r, ctx := newRig(t, ""), ctxOf(t)
	q := ReshardRequest{Op: "plan", Source: "tp=2", Destination: "tp=1", Model: "llama-3.1-8b"}
	p, err := call[PlanAnswer](ctx, r.caller, "reshard", q)
	if err != nil || len(p.Digest) != 64 || len(p.Moves) == 0 || p.Moves[0].Dst != 0 || p.Moves[0].State == "" {
		t.Errorf("%+v, %v", p, err)
	}
	q.Op = "explain"
	for _, f := range []string{"", "json", "svg"} {
		q.Format = f
		if e, err := call[ExplainAnswer](ctx, r.caller, "reshard", q); err != nil || len(e.Text) < 100 {
			t.Errorf("%s: %+v, %v", f, e, err)
		}
	}
	for _, bad := range []ReshardRequest{{Op: "plan"}, {Op: "paln", Source: "tp=1", Destination: "tp=1", Model: "llama-3.1-8b"}, {Op: "plan", Source: "tp=x", Destination: "tp=1", Model: "llama-3.1-8b"},
		{Op: "plan", Source: "tp=1", Destination: "tp=1", Model: "none"}, {Op: "explain", Source: "tp=1", Destination: "tp=1", Model: "llama-3.1-8b", Format: "pdf"}} {
		_, err := call[PlanAnswer](ctx, r.caller, "reshard", bad)
		if f, ok := errors.AsType[*wire.Fault](err); !ok || f.Kind() != wire.InvalidArgument {
			t.Errorf("%+v: %v", bad, err)
		}
	}
	if _, err := r.client.Call(ctx, plane.Target{Address: r.targets(ctx, "status")[0].Address, Path: "x", Codec: wire.JSON}, 1); !errors.Is(err, handoff.ErrPeer) {
		t.Error(err)
	}
}
