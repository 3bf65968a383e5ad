package child

import (
	"context"
	"errors"
	"fmt"
	"net"
	"reflect"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"

	"github.com/batonkv/baton/plugins/adapter"
	adapterv1 "github.com/batonkv/baton/proto/adapter/v1"
	controlv1 "github.com/batonkv/baton/proto/control/v1"
	"github.com/batonkv/baton/sidecar/control"
	"github.com/batonkv/baton/sidecar/handoff"
)

// told notes what it is told.
type told struct {
	info    adapter.Info
	err     error
	section []byte
	state   adapter.State
	update  adapter.Update
	drained bool
	calls   chan adapter.Calls
}

func (a *told) Register(context.Context) (adapter.Info, error)    { return a.info, a.err }
func (a *told) Configure(_ context.Context, section []byte) error { a.section = section; return a.err }
func (a *told) Sync(_ context.Context, s adapter.State) error     { a.state = s; return a.err }
func (a *told) Notify(_ context.Context, u adapter.Update) error  { a.update = u; return a.err }
func (a *told) Drain(context.Context) error                       { a.drained = true; return a.err }

// asking asks as well.
type asking struct{ *told }

func (a asking) Ask(c adapter.Calls) { a.calls <- c }

// connected is a client of a served adapter, over the real wire.
func connected(t *testing.T, a adapter.Adapter) *client {
	c, _ := connectedUntil(t, a)
	return c
}

// connectedUntil gives the end of the client's life as well.
func connectedUntil(t *testing.T, a adapter.Adapter) (*client, func()) {
	l := bufconn.Listen(1 << 20)
	s := grpc.NewServer()
	adapterv1.RegisterAdapterServer(s, newServer(a))
	var work sync.WaitGroup
	work.Go(func() { _ = s.Serve(l) })
	conn, err := grpc.NewClient("passthrough:x", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) { return l.Dial() }))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	c := &client{c: adapterv1.NewAdapterClient(conn), over: ctx}
	t.Cleanup(func() {
		cancel()
		c.close()
		conn.Close()
		s.Stop()
		work.Wait()
	})
	return c, cancel
}

var (
	id    = handoff.ID{Group: "p", Instance: 4, Leader: 5, N: 6}
	info  = adapter.Info{Name: "x", Version: "v1", Wants: []control.Kind{control.Exported, control.Serving}}
	state = adapter.State{Group: adapter.Group{Cluster: "c", Pool: "m", Name: "p", Tenant: "t", Role: "decode", Model: "model", WeightsEpoch: 7, Geometry: [32]byte{1, 31: 2},
		Status: control.Status{Self: handoff.Member{Group: "p", Incarnation: 5}, Instance: 4, Ranks: 1, Ready: true, MoverPID: 9, Draining: true,
			Members:  []control.MemberStatus{{Member: handoff.Member{Group: "p", Incarnation: 5}, PID: 8, Addr: "h:1", Attached: true}},
			Capacity: handoff.Capacity{Blocks: 5, Slots: 6, BlockTokens: 16}}},
		Handoffs: []control.Info{{ID: id, Role: control.Source, Phase: control.Held, Label: "r", Copies: 1}}, More: true}
	notice = control.Notice{Incarnation: 5, Seq: 3, Kind: control.Exported, Label: "r", ID: id, Manifest: &handoff.Manifest{ID: id, Key: handoff.Key{1}, Label: "r", Tokens: 4}}
)

func TestCallsCrossTheWire(t *testing.T) {
	a := &told{info: info}
	c, ctx := connected(t, a), t.Context()
	if got, err := c.Register(ctx); err != nil || !reflect.DeepEqual(got, info) || c.asks {
		t.Fatalf("%+v, %v", got, err)
	}
	updates := []adapter.Update{{}, {Whole: &state, Lost: 4}, {Group: &state.Group, Changed: state.Handoffs, Gone: []handoff.ID{id}, More: true, Notices: []control.Notice{notice}}}
	if err := errors.Join(c.Configure(ctx, []byte("a: 1")), c.Sync(ctx, state)); err != nil || string(a.section) != "a: 1" || !reflect.DeepEqual(a.state, state) {
		t.Fatalf("%+v, %v", a, err)
	}
	for _, u := range updates {
		if err := c.Notify(ctx, u); err != nil || !reflect.DeepEqual(a.update, u) {
			t.Errorf("%+v\nwant %+v: %v", a.update, u, err)
		}
	}
	c.Ask(nil) // it does not ask
	if err := c.Drain(ctx); err != nil || !a.drained {
		t.Error(err)
	}
	if err := c.Notify(ctx, adapter.Update{}); !errors.Is(err, handoff.ErrOrder) {
		t.Errorf("after drain: %v", err)
	}
}

// counting counts as well.
type counting struct {
	*told
	counts map[string]float64
}

func (a *counting) Counts() map[string]float64 { return a.counts }

// TestCountsCrossTheWire: with each answer, within their bounds.
func TestCountsCrossTheWire(t *testing.T) {
	a := &counting{told: &told{info: info}}
	c, ctx := connected(t, a), t.Context()
	_, err := c.Register(ctx)
	if err = errors.Join(err, c.Configure(ctx, nil)); err != nil || c.Counts() != nil {
		t.Fatal(err, c.Counts())
	}
	for n, call := range []func() error{func() error { return c.Sync(ctx, state) }, func() error { return c.Notify(ctx, adapter.Update{}) }} {
		a.counts = map[string]float64{"calls_total": float64(n), "open": -0.5}
		if err := call(); err != nil || !reflect.DeepEqual(c.Counts(), a.counts) {
			t.Errorf("%v, %v", c.Counts(), err)
		}
	}
	a.counts = map[string]float64{"a name": 1}
	if err := c.Notify(ctx, adapter.Update{}); !errors.Is(err, handoff.ErrBound) {
		t.Errorf("%v", err)
	}
}

func TestErrorsKeepTheirSentinels(t *testing.T) {
	a := &told{info: info, err: fmt.Errorf("%w: line 3: no such key", handoff.ErrSection)}
	c := connected(t, a)
	_, err := c.Register(t.Context())
	if !errors.Is(err, handoff.ErrSection) || errors.Is(err, handoff.ErrHost) || err.Error() != a.err.Error() {
		t.Errorf("%v", err)
	}
	for name, bad := range map[string]adapter.State{
		"name":     {Group: adapter.Group{Name: strings.Repeat("x", 257)}},
		"handoffs": {Handoffs: make([]control.Info, adapter.MaxHandoffs+1)},
	} {
		if err := c.Sync(t.Context(), bad); !errors.Is(err, handoff.ErrBound) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := connected(t, a).Configure(t.Context(), make([]byte, adapter.MaxSection+1)); !errors.Is(err, handoff.ErrBound) {
		t.Errorf("section: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := c.Drain(ctx); !errors.Is(err, context.Canceled) || errors.Is(err, handoff.ErrHost) {
		t.Errorf("nobody waits: %v", err)
	}
}

// TestKindsOfALaterRelease: an adapter may want what this sidecar does not tell.
func TestKindsOfALaterRelease(t *testing.T) {
	i, err := decodeInfo(&adapterv1.RegisterResponse{Name: "x", Version: "1", Wants: []controlv1.NoticeKind{99, controlv1.NoticeKind(control.Over), 100}})
	if err != nil || !reflect.DeepEqual(i.Wants, []control.Kind{control.Over}) {
		t.Errorf("%+v, %v", i, err)
	}
	if _, err := decodeInfo(&adapterv1.RegisterResponse{Name: "x", Version: "1", Wants: []controlv1.NoticeKind{-1}}); !errors.Is(err, handoff.ErrBound) {
		t.Errorf("a kind that cannot be: %v", err)
	}
}

// service answers what is asked of it, or waits for the end of ctx.
type service struct {
	adapter.Calls
	waits chan context.Context
}

// wait tells of a call and answers it, as a sidecar does, when nobody waits any more.
func (s *service) wait(ctx context.Context) error {
	s.waits <- ctx
	<-ctx.Done()
	return errors.Join(handoff.ErrInDoubt, ctx.Err())
}

func (s *service) Import(ctx context.Context, m handoff.Import) (handoff.Imported, error) {
	if s.waits != nil {
		return handoff.Imported{}, s.wait(ctx)
	}
	return handoff.Imported{Label: m.Label, ID: m.Manifest.ID, Bytes: 5}, nil
}

func (s *service) Get(_ context.Context, id handoff.ID) (control.Info, error) {
	return control.Info{ID: id, Role: control.Source, Phase: control.Held}, nil
}

func (s *service) List(_ context.Context, q control.Query) (control.Page, error) {
	return control.Page{Infos: state.Handoffs, Next: q.Page + "+"}, nil
}

func (s *service) Abort(ctx context.Context, id handoff.ID, key handoff.Key) error {
	if s.waits != nil {
		return s.wait(ctx)
	}
	if key != (handoff.Key{1}) {
		return nil
	}
	return fmt.Errorf("%w: %v", handoff.ErrUnknown, id)
}

func (s *service) Release(ctx context.Context, _ handoff.ID, k handoff.Key) error {
	if s.waits != nil {
		return s.wait(ctx)
	}
	if k != (handoff.Key{9}) {
		return handoff.ErrGone
	}
	return nil
}

// asks brings an asking adapter to where it may ask.
func asks(t *testing.T, s *service) (calls adapter.Calls, over func()) {
	a := asking{&told{info: info, calls: make(chan adapter.Calls, 1)}}
	c, end := connectedUntil(t, a)
	_, err := c.Register(t.Context())
	if err = errors.Join(err, c.Configure(t.Context(), nil)); err != nil || !c.asks {
		t.Fatalf("asks %v: %v", c.asks, err)
	}
	c.Ask(s)
	if err := c.Sync(t.Context(), state); err != nil {
		t.Fatal(err)
	}
	return <-a.calls, func() { end(); c.close() }
}

func TestAsking(t *testing.T) {
	calls, _ := asks(t, &service{})
	ctx := t.Context()
	m := handoff.Import{Label: "r", Manifest: handoff.Manifest{ID: id, Tokens: 1}, Tokens: []int32{3}}
	var work sync.WaitGroup
	for range 50 {
		work.Go(func() {
			if got, err := calls.Import(ctx, m); err != nil || got.Label != "r" || got.ID != id || got.Bytes != 5 {
				t.Errorf("import: %+v, %v", got, err)
			}
			if got, err := calls.Get(ctx, id); err != nil || got.ID != id || got.Phase != control.Held {
				t.Errorf("get: %+v, %v", got, err)
			}
			if got, err := calls.List(ctx, control.Query{Page: "s1", Live: true}); err != nil || got.Next != "s1+" || !reflect.DeepEqual(got.Infos, state.Handoffs) {
				t.Errorf("list: %+v, %v", got, err)
			}
			if err := calls.Abort(ctx, id, handoff.Key{1}); !errors.Is(err, handoff.ErrUnknown) || !strings.Contains(err.Error(), id.String()) {
				t.Errorf("abort: %v", err)
			}
			if err := errors.Join(calls.Release(ctx, id, handoff.Key{9})); err != nil {
				t.Errorf("release: %v", err)
			}
		})
	}
	work.Wait()
	if _, err := calls.Import(ctx, handoff.Import{Label: strings.Repeat("x", 257)}); !errors.Is(err, handoff.ErrBound) || errors.Is(err, handoff.ErrInDoubt) {
		t.Errorf("oversized: %v", err)
	}
}

// changing are the calls that change something.
func changing(ctx context.Context, calls adapter.Calls) []func() error {
	return []func() error{
		func() error { _, err := calls.Import(ctx, handoff.Import{Label: "r"}); return err },
		func() error { return calls.Abort(ctx, id, handoff.Key{1}) },
		func() error { return calls.Release(ctx, id, handoff.Key{9}) },
	}
}

// TestNobodyWaits: the end of a question's ctx reaches the sidecar, and its answer is in doubt.
func TestNobodyWaits(t *testing.T) {
	s := &service{waits: make(chan context.Context, 1)}
	calls, _ := asks(t, s)
	for n := range changing(t.Context(), calls) {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- changing(ctx, calls)[n]() }()
		there := <-s.waits
		cancel()
		if err := <-done; !errors.Is(err, handoff.ErrInDoubt) || !errors.Is(err, context.Canceled) {
			t.Errorf("call %d: %v", n, err)
		}
		<-there.Done()
	}
	if got, err := calls.Get(t.Context(), id); err != nil || got.ID != id {
		t.Errorf("the stream is broken: %+v, %v", got, err)
	}
}

// TestEndOfALife: what runs is in doubt, what comes later is refused.
func TestEndOfALife(t *testing.T) {
	s := &service{waits: make(chan context.Context, adapter.MaxAsks)}
	calls, end := asks(t, s)
	done := make(chan error, adapter.MaxAsks)
	all := changing(context.Background(), calls)
	for n := range adapter.MaxAsks {
		go func() { done <- all[n%len(all)]() }()
	}
	for range adapter.MaxAsks {
		<-s.waits
	}
	if err := calls.Abort(t.Context(), id, handoff.Key{1}); !errors.Is(err, handoff.ErrCapacity) || errors.Is(err, handoff.ErrInDoubt) {
		t.Errorf("beyond the bound: %v", err)
	}
	end()
	for range adapter.MaxAsks {
		if err := <-done; !errors.Is(err, handoff.ErrInDoubt) {
			t.Fatalf("%v", err)
		}
	}
	if err := calls.Abort(t.Context(), id, handoff.Key{1}); !errors.Is(err, handoff.ErrHost) || errors.Is(err, handoff.ErrInDoubt) {
		t.Errorf("after the end: %v", err)
	}
}

func TestWeightIsEnough(t *testing.T) {
	long := strings.Repeat("x", 1<<12)
	m := handoff.Manifest{ID: handoff.ID{Group: strings.Repeat("g", 256), Instance: 1 << 63, Leader: 1 << 63, N: 1 << 63}, Label: long[:256],
		Key: handoff.Key{1}, Resume: handoff.Resume{Tokens: make([]int32, 1000), Logprobs: make([]float32, 1000), Sampler: make([]byte, 1<<20)}}
	for i := range m.Resume.Tokens {
		m.Resume.Tokens[i] = -1
	}
	for _, n := range []control.Notice{{Kind: control.Ready}, {Kind: control.Exported, ID: m.ID, Label: m.Label, Manifest: &m, Seq: 1 << 63},
		{Kind: control.Failed, ID: m.ID, Label: m.Label, Err: errors.New(long)}} {
		p, err := control.EncodeNotice(n)
		if err != nil {
			t.Fatal(err)
		}
		if got, limit := proto.Size(p), adapter.Weight(n); got > limit {
			t.Errorf("%v: %d bytes, counted as %d", n.Kind, got, limit)
		}
	}
}

func FuzzDecode(f *testing.F) {
	p, err := encodeUpdate(adapter.Update{Whole: &state, Group: &state.Group, Changed: state.Handoffs, Gone: []handoff.ID{id}, Notices: []control.Notice{notice}})
	if err != nil {
		f.Fatal(err)
	}
	i, err := encodeInfo(info)
	if err != nil {
		f.Fatal(err)
	}
	for _, m := range []proto.Message{p, p.Whole, i, &adapterv1.Question{N: 3, Question: &adapterv1.Question_Get{Get: p.Gone[0]}}} {
		wire, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(wire)
	}
	a := &answers{to: &service{}}
	f.Fuzz(func(t *testing.T, wire []byte) {
		var n adapterv1.NotifyRequest
		if proto.Unmarshal(wire, &n) == nil {
			if u, err := decodeUpdate(&n); err == nil {
				if _, err := encodeUpdate(u); err != nil {
					t.Fatalf("decoded %+v, cannot encode: %v", u, err)
				}
				s := state.Apply(u)
				_ = s.Diff(state)
			}
		}
		var r adapterv1.RegisterResponse
		if proto.Unmarshal(wire, &r) == nil {
			if i, err := decodeInfo(&r); err == nil {
				if _, err := encodeInfo(i); err != nil {
					t.Fatalf("decoded %+v, cannot encode: %v", i, err)
				}
			}
		}
		var q adapterv1.Question
		if proto.Unmarshal(wire, &q) == nil {
			_, _ = a.make(t.Context(), &q)
		}
	})
}
