package control_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"net"
	"reflect"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/batonkv/baton/sidecar/control"
	"github.com/batonkv/baton/sidecar/control/client"
	"github.com/batonkv/baton/sidecar/handoff"
	"github.com/batonkv/baton/sidecar/internal/certtest"
	"github.com/batonkv/baton/transfer/choice"
	"github.com/batonkv/baton/transfer/layout"
)

// fake answers with what a test sets, and tells what it was asked.
type fake struct {
	*control.Log
	imports  chan handoff.Import
	imported handoff.Imported
	info     control.Info
	status   control.Status
	page     control.Page
	geometry control.Geometry
	links    control.Links
	drain    control.Drain
	asked    []any
	err      error
}

func (f *fake) Import(_ context.Context, m handoff.Import) (handoff.Imported, error) {
	f.imports <- m
	return f.imported, f.err
}
func (f *fake) Get(_ context.Context, id handoff.ID) (control.Info, error) {
	f.asked = append(f.asked, id)
	return f.info, f.err
}
func (f *fake) Abort(_ context.Context, id handoff.ID, key handoff.Key) error {
	f.asked = append(f.asked, id, key)
	return f.err
}
func (f *fake) Release(_ context.Context, id handoff.ID, key handoff.Key) error {
	f.asked = append(f.asked, id, key)
	return f.err
}
func (f *fake) SetWeightsEpoch(_ context.Context, epoch uint64) error {
	f.asked = append(f.asked, epoch)
	return f.err
}
func (f *fake) Reset(context.Context) error {
	f.asked = append(f.asked, "reset")
	return f.err
}
func (f *fake) Status(context.Context) (control.Status, error) { return f.status, f.err }
func (f *fake) List(_ context.Context, q control.Query) (control.Page, error) {
	f.asked = append(f.asked, q)
	return f.page, f.err
}
func (f *fake) Geometry(context.Context) (control.Geometry, error) { return f.geometry, f.err }
func (f *fake) Do(_ context.Context, a handoff.Action) error {
	f.asked = append(f.asked, a)
	return f.err
}
func (f *fake) Drain(_ context.Context, resume bool) (control.Drain, error) {
	f.asked = append(f.asked, resume)
	return f.drain, f.err
}
func (f *fake) Links(_ context.Context, q control.LinksQuery) (control.Links, error) {
	f.asked = append(f.asked, q)
	return f.links, f.err
}
func (f *fake) Watch(ctx context.Context, from control.Cursor) iter.Seq2[control.Notice, error] {
	return f.Log.Watch(ctx, from)
}

// process numbers the notices of the fake.
const process handoff.Incarnation = 77

type world struct {
	*fake
	ca   *certtest.CA
	addr string
	stop func()
}

func start(t *testing.T, opts ...control.Option) *world {
	t.Helper()
	f := &fake{Log: control.NewLog(process, 8), imports: make(chan handoff.Import, 8)}
	w := serving(t, f, opts...)
	w.fake = f
	return w
}

// serving is a world with svc in it, and without a fake.
func serving(t *testing.T, svc control.Service, opts ...control.Option) *world {
	t.Helper()
	w := &world{ca: certtest.New(t)}
	server, _ := w.ca.Configs(t, "baton://c/t/g/0")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer(grpc.Creds(credentials.NewTLS(server)))
	control.Register(s, svc, nil, opts...)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Serve(l)
	}()
	w.addr = l.Addr().String()
	w.stop = func() {
		s.Stop()
		<-done
	}
	t.Cleanup(w.stop)
	return w
}

func (w *world) dial(t *testing.T, uri string) *client.Client {
	t.Helper()
	_, config := w.ca.Configs(t, uri)
	c, err := client.Dial(w.addr, config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func testCtx(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

var id = handoff.ID{Group: "p", Instance: 4, Leader: 5, N: 6}

func TestCalls(t *testing.T) {
	w, ctx := start(t), testCtx(t)
	c := w.dial(t, "baton://control/dev")
	m := handoff.Import{Label: "r1", Manifest: handoff.Manifest{ID: id, Key: handoff.Key{1}, Tokens: 3}, Tokens: []int32{7, 8, 9}, Deadline: time.Second}
	w.imported = handoff.Imported{Label: "r1", ID: id, Bytes: 1 << 40, Cached: 2, Phases: handoff.Phases{Open: 1, Admit: 6}}
	if got, err := c.Import(ctx, m); err != nil || !reflect.DeepEqual(got, w.imported) {
		t.Errorf("import: %+v, %v", got, err)
	}
	if got := <-w.imports; !reflect.DeepEqual(got, m) {
		t.Errorf("the service got %+v", got)
	}
	w.info = control.Info{ID: id, Role: control.Destination, Phase: control.Pulling, Label: "r1", Attempt: 2, Bytes: 9}
	if got, err := c.Get(ctx, id); err != nil || !reflect.DeepEqual(got, w.info) {
		t.Errorf("get: %+v, %v", got, err)
	}
	if err := errors.Join(c.Abort(ctx, id, handoff.Key{4}), c.Abort(ctx, id, handoff.Key{}), c.Release(ctx, id, handoff.Key{3}), c.SetWeightsEpoch(ctx, 7), c.Reset(ctx)); err != nil {
		t.Error(err)
	}
	if want := []any{id, id, handoff.Key{4}, id, handoff.Key{}, id, handoff.Key{3}, uint64(7), "reset"}; !reflect.DeepEqual(w.asked, want) {
		t.Errorf("asked %v, want %v", w.asked, want)
	}
	self := handoff.Member{Group: "g", Rank: 1, Incarnation: 8}
	w.status = control.Status{Self: self, Instance: 4, Ranks: 2, Ready: true,
		Members:  []control.MemberStatus{{Member: self, PID: 12, Addr: "h:1", Attached: true}},
		Capacity: handoff.Capacity{Blocks: 5, Slots: 6, BlockTokens: 16}, MoverPID: 99,
		Counters: map[string]uint64{"sent.Open": 1}, Draining: true}
	if got, err := c.Status(ctx); err != nil || !reflect.DeepEqual(got, w.status) {
		t.Errorf("status: %+v, %v", got, err)
	}
	w.page = control.Page{Infos: []control.Info{w.info, {ID: id, Role: control.Source, Phase: control.Held, Label: "r2", Copies: 1}}, Next: "s9"}
	w.asked = nil
	q := control.Query{Role: control.Source, Live: true, Page: "s3", Limit: 2}
	if got, err := c.List(ctx, q); err != nil || !reflect.DeepEqual(got, w.page) || !reflect.DeepEqual(w.asked, []any{q}) {
		t.Errorf("list: %+v, %v, asked %v", got, err, w.asked)
	}
	w.geometry = control.Geometry{Name: "m", WeightsEpoch: 3, Geometry: handoff.Geometry{Group: "g", Instance: 4, Members: []handoff.Member{self},
		Model: layout.Model{States: []layout.State{{Name: "ssm", Paging: layout.PerRequest, Layers: 1, Units: 2, Elems: 4}}},
		Shards: []layout.Shard{{Box: layout.Box{Layers: layout.Span{Hi: 1}, Units: layout.Span{Hi: 2}}, Rows: 1, Items: 3, DType: layout.F32,
			View: layout.View{Item: 32, Unit: 16, Elem: 4}}}}}
	if got, err := c.Geometry(ctx); err != nil || !reflect.DeepEqual(got, w.geometry) {
		t.Errorf("geometry: %+v, %v", got, err)
	}
	w.drain = control.Drain{Draining: true, Imports: 1, Exports: 2, Waits: []string{"a", "b"}}
	w.asked = nil
	if got, err := c.Drain(ctx, true); err != nil || !reflect.DeepEqual(got, w.drain) {
		t.Errorf("drain: %+v, %v", got, err)
	}
	for a := handoff.ActionPause; a.Known(); a++ {
		if err := c.Do(ctx, a); err != nil {
			t.Errorf("%v: %v", a, err)
		}
	}
	if len(w.asked) != 10 || w.asked[0] != true || w.asked[9] != handoff.ActionResumeIntake {
		t.Errorf("asked %v", w.asked)
	}
}

func TestActionsAndDrainsAreBounded(t *testing.T) {
	w, ctx := start(t), testCtx(t)
	c := w.dial(t, "baton://control/dev")
	for _, a := range []handoff.Action{0, 10, 200} {
		if err := c.Do(ctx, a); !errors.Is(err, handoff.ErrBound) || len(w.asked) > 0 {
			t.Errorf("action %d: %v", a, err)
		}
	}
	for _, d := range []control.Drain{{Waits: make([]string, control.MaxWaits+1)}, {Imports: -1}, {Waits: []string{strings.Repeat("x", 5000)}}} {
		w.drain = d
		if _, err := c.Drain(ctx, false); !errors.Is(err, handoff.ErrBound) {
			t.Errorf("%d imports, %d waits: %v", d.Imports, len(d.Waits), err)
		}
	}
}

func TestListIsBounded(t *testing.T) {
	w, ctx := start(t), testCtx(t)
	c := w.dial(t, "baton://control/dev")
	for _, q := range []control.Query{{Role: 3}, {Limit: -1}, {Limit: control.MaxPage + 1}, {Page: strings.Repeat("x", 300)}} {
		if _, err := c.List(ctx, q); !errors.Is(err, handoff.ErrBound) || len(w.asked) > 0 {
			t.Errorf("%+v: %v", q, err)
		}
	}
	w.page.Infos = make([]control.Info, control.MaxPage+1)
	if _, err := c.List(ctx, control.Query{}); !errors.Is(err, handoff.ErrBound) {
		t.Errorf("a page of %d: %v", len(w.page.Infos), err)
	}
}

func TestErrorsKeepTheirSentinels(t *testing.T) {
	w, ctx := start(t), testCtx(t)
	c := w.dial(t, "baton://admin/me")
	w.err = fmt.Errorf("r1: %w: %w", handoff.ErrTransfer, handoff.ErrPeer)
	_, ierr := c.Import(ctx, handoff.Import{})
	_, gerr := c.Get(ctx, id)
	_, serr := c.Status(ctx)
	_, lerr := c.List(ctx, control.Query{})
	_, merr := c.Geometry(ctx)
	_, derr := c.Drain(ctx, false)
	for name, err := range map[string]error{"import": ierr, "get": gerr, "status": serr, "abort": c.Abort(ctx, id, handoff.Key{4}), "release": c.Release(ctx, id, handoff.Key{}),
		"weights": c.SetWeightsEpoch(ctx, 1), "reset": c.Reset(ctx), "list": lerr, "geometry": merr,
		"do": c.Do(ctx, handoff.ActionPause), "drain": derr} {
		if !errors.Is(err, handoff.ErrTransfer) || !errors.Is(err, handoff.ErrPeer) || errors.Is(err, handoff.ErrInDoubt) || err.Error() != w.err.Error() {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := c.Import(ctx, handoff.Import{Label: strings.Repeat("x", 300)}); !errors.Is(err, handoff.ErrBound) {
		t.Errorf("oversized: %v", err)
	}
}

func TestOnlyControlPlanesMayCall(t *testing.T) {
	w, ctx := start(t), testCtx(t)
	for _, uri := range []string{"baton://c/t/g/0", "baton://controls/x", "baton://c/control/admin/1"} {
		c := w.dial(t, uri)
		_, ierr := c.Import(ctx, handoff.Import{})
		_, gerr := c.Get(ctx, id)
		_, serr := c.Status(ctx)
		var werr error
		for _, err := range c.Watch(ctx, control.Cursor{}) {
			werr = err
		}
		_, lerr := c.List(ctx, control.Query{})
		_, merr := c.Geometry(ctx)
		_, derr := c.Drain(ctx, false)
		for call, err := range map[string]error{"import": ierr, "get": gerr, "status": serr, "watch": werr, "abort": c.Abort(ctx, id, handoff.Key{4}), "release": c.Release(ctx, id, handoff.Key{}),
			"weights": c.SetWeightsEpoch(ctx, 1), "reset": c.Reset(ctx), "list": lerr, "geometry": merr,
			"do": c.Do(ctx, handoff.ActionPause), "drain": derr} {
			if !errors.Is(err, handoff.ErrDenied) || !strings.Contains(err.Error(), uri) || errors.Is(err, handoff.ErrInDoubt) {
				t.Errorf("%s by %s: %v", call, uri, err)
			}
		}
	}
	if len(w.imports)+len(w.asked) != 0 {
		t.Error("a refused call reached the service")
	}
}

// count is how many notices a watch that ends by itself yields.
func count(t *testing.T, c *client.Client) (n int) {
	for _, err := range c.Watch(testCtx(t), control.Cursor{}) {
		if n++; err != nil {
			t.Fatalf("an ordinary end became %v", err)
		}
	}
	return n
}

func TestWatch(t *testing.T) {
	w := start(t)
	c := w.dial(t, "baton://control/dev")
	manifest := handoff.Manifest{ID: id, Label: "r1", Tokens: 5}
	want := []control.Notice{
		{Seq: 1, Kind: control.Ready},
		{Seq: 2, Kind: control.Exported, Label: "r1", ID: id, Manifest: &manifest},
		{Seq: 3, Kind: control.Imported, Label: "r2", ID: id, Bytes: 10, Cached: 4, Phases: handoff.Phases{Move: 3}},
		{Seq: 4, Kind: control.Failed, Label: "r3", ID: id, SourceSafe: true},
		{Seq: 5, Kind: control.Announced, Label: "r4", ID: id, Manifest: &handoff.Manifest{ID: id, Key: handoff.Key{7}, Label: "r4"}},
	}
	for _, n := range want[:2] {
		w.Append(n)
	}
	for i := range want {
		want[i].Incarnation = process
	}
	var got []control.Notice
	for n, err := range c.Watch(testCtx(t), control.Cursor{}) {
		if err != nil {
			t.Fatal(err)
		}
		if got = append(got, n); len(got) == 2 {
			w.Append(want[2]) // while it watches
			w.Append(want[3])
			w.Append(want[4])
		}
		if len(got) == len(want) {
			break
		}
	}
	if !reflect.DeepEqual(got, want) {
		t.Fatalf("got  %+v\nwant %+v", got, want)
	}
	w.Append(control.Notice{Kind: control.Failed, Err: fmt.Errorf("r9: %w", handoff.ErrGone)})
	for n, err := range c.Watch(testCtx(t), want[4].After()) {
		if err != nil || !errors.Is(n.Err, handoff.ErrGone) || n.Seq != 6 {
			t.Fatalf("%+v, %v", n, err)
		}
		break
	}
	ctx, cancel := context.WithCancel(testCtx(t))
	defer cancel()
	for _, err := range c.Watch(ctx, control.Cursor{Incarnation: process, Seq: 1}) {
		if cancel(); err != nil && !errors.Is(err, context.Canceled) {
			t.Fatalf("ended context: %v", err)
		}
	}
	w.Log.Close()
	if n := count(t, c); n != 6 {
		t.Fatalf("%d notices of a closed log, want 6", n)
	}
	w.stop()
	for _, err := range c.Watch(testCtx(t), control.Cursor{}) {
		if !errors.Is(err, handoff.ErrPeer) {
			t.Fatalf("no sidecar: %v", err)
		}
	}
}

func TestLinks(t *testing.T) {
	w, ctx := start(t), testCtx(t)
	c := w.dial(t, "baton://control/dev")
	self := handoff.Member{Group: "g", Rank: 1, Incarnation: 8}
	w.links = control.Links{Self: self, Offers: []choice.Offer{{Name: "nixl", Protocol: "nixl/1", Missing: "no library"}}, More: 3,
		Links: []handoff.Link{{Reader: self, Peer: handoff.Member{Group: "p", Incarnation: 9},
			Choice: choice.Choice{Transport: "tcp", Code: choice.Lacks, Why: "why", Way: choice.TLS, Caveat: "c"}, Age: 5, Ago: 7,
			Measured: choice.Measured{Rate: 1.5e9, Latency: 3}, Expected: 2e9, Against: "itself", Finding: choice.Finding{Verdict: choice.Good, Cause: "x", Fix: "y"}}}}
	w.asked = nil
	if got, err := c.Links(ctx, control.LinksQuery{Meet: true}); err != nil || !reflect.DeepEqual(got, w.links) || !reflect.DeepEqual(w.asked, []any{control.LinksQuery{Meet: true}}) {
		t.Errorf("links: %+v, %v, asked %v", got, err, w.asked)
	}
	w.links.Links[0].Expected = math.NaN()
	if _, err := c.Links(ctx, control.LinksQuery{}); !errors.Is(err, handoff.ErrBound) {
		t.Errorf("a rate that is no number: %v", err)
	}
}
