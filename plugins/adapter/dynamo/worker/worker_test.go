package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/batonkv/baton/discovery"
	"github.com/batonkv/baton/plugins/adapter/dynamo"
	"github.com/batonkv/baton/plugins/adapter/dynamo/directory"
	"github.com/batonkv/baton/plugins/adapter/dynamo/plane"
	"github.com/batonkv/baton/plugins/adapter/dynamo/wire"
	"github.com/batonkv/baton/sidecar/handoff"
)

const limit = time.Minute // of a test's waits: a fault, not a measure

var held = handoff.Manifest{ID: handoff.ID{Group: "p", Instance: 1, Leader: 1 << 60, N: 3}, Key: handoff.Key{7}, Tokens: 3, Resume: handoff.Resume{Tokens: []int32{40}}}

// scripted is an engine.
type scripted struct {
	began   chan Job
	from    chan *handoff.Manifest
	hold    chan struct{} // what runs waits for this, or for its end; nil: it does not
	err     error
	prefill handoff.Manifest
}

func newScripted() *scripted {
	return &scripted{began: make(chan Job, 8), from: make(chan *handoff.Manifest, 8), prefill: held}
}

func (s *scripted) wait(ctx context.Context) error {
	if s.hold == nil {
		return s.err
	}
	select {
	case <-s.hold:
		return s.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *scripted) Prefill(ctx context.Context, j Job) (handoff.Manifest, int32, error) {
	s.began <- j
	_ = s.wait(ctx) // it holds the state already when its caller goes
	return s.prefill, 40, s.err
}

func (s *scripted) Decode(ctx context.Context, j Job, m *handoff.Manifest, each func(int32, *float32) error) (string, error) {
	s.began <- j
	s.from <- m
	for n := range j.MaxNew {
		if err := each(40+n, nil); err != nil {
			return "", err
		}
		if err := s.wait(ctx); err != nil {
			return "", err
		}
	}
	return "length", nil
}

// rig is a deployment on files: a group whose handoff endpoint notes releases, a worker, a
// client.
type rig struct {
	t        *testing.T
	cfg      dynamo.Config
	engine   *scripted
	worker   *Worker
	client   *plane.Client
	files    directory.Backend
	released chan dynamo.HandoffRequest
	gone     error // that a release ends with; nil: none
	log      *slog.Logger
}

func newRig(t *testing.T, role discovery.Role, named bool, change ...func(*Config)) *rig {
	cfg, err := dynamo.ParseConfig([]byte("namespace: dynamo\ndiscovery: file\nfolder: " + t.TempDir()))
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	r := &rig{t: t, cfg: cfg, engine: newScripted(), released: make(chan dynamo.HandoffRequest, 8), log: log}
	r.group(log, named)
	if r.client, err = plane.NewClient("127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.client.Close() })
	c := Config{Dynamo: cfg, Component: "c", Role: role, Model: "tiny", Block: 16, MaxNew: 4, Log: log}
	for _, f := range change {
		f(&c)
	}
	r.worker, err = Start(c, r.engine)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.close(context.Background()) })
	r.worker.Offer(true)
	if err := r.worker.Ready(r.ctx()); err != nil {
		t.Fatal(err)
	}
	return r
}

func (r *rig) close(ctx context.Context) {
	if r.worker != nil {
		r.worker.Close(ctx)
		r.worker = nil
	}
}

func (r *rig) ctx() context.Context {
	ctx, cancel := context.WithTimeout(r.t.Context(), limit)
	r.t.Cleanup(cancel)
	return ctx
}

// group serves the handoff endpoint of group p; named: with its card.
func (r *rig) group(log *slog.Logger, named bool) {
	s, addr, err := r.cfg.Serve(log)
	if err != nil {
		r.t.Fatal(err)
	}
	e := r.cfg.Endpoint("handoff")
	i := directory.NewInstance(e, 5, addr, "msgpack")
	err = s.Handle(i.Path(), func(_ context.Context, c plane.Call, out *plane.Stream) error {
		var q dynamo.HandoffRequest
		if err := c.Decode(&q); err != nil {
			return err
		}
		if r.released <- q; r.gone != nil {
			return r.gone
		}
		return out.Send(dynamo.Done{OK: true})
	})
	instance, err3 := i.Record()
	m, err2 := directory.NewModel(e, 5, json.RawMessage(`{"runtime_config":{"runtime_data":{"baton_group":"p","more":1}}}`)).Record()
	if err = errors.Join(err, err2, err3); err != nil {
		r.t.Fatal(err)
	}
	records := []directory.Record{instance, m}
	if !named {
		records = records[:1]
	}
	if r.files, _, err = r.cfg.Open(); err != nil {
		r.t.Fatal(err)
	}
	k := directory.Keep(r.files, time.Second, log)
	k.Set(records)
	if err := k.Settled(r.ctx()); err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { k.Close(context.Background()); s.Close(context.Background()) })
}

// call begins a call of generate.
func (r *rig) call(q Request) *plane.Answer {
	r.t.Helper()
	all, err := first(r.ctx(), r.files, directory.Instances+"dynamo/c/generate/")
	if err != nil || len(all) != 1 {
		r.t.Fatal(all, err)
	}
	var i directory.Instance
	if err := json.Unmarshal(all[0].Value, &i); err != nil {
		r.t.Fatal(err)
	}
	to, _ := target(i)
	a, err := r.client.Call(r.ctx(), to, q)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(a.Close)
	return a
}

func (r *rig) rest(a *plane.Answer) (tokens []int32, last Output, err error) {
	defer a.Close()
	for {
		var o Output
		if err := a.Next(r.ctx(), &o); errors.Is(err, io.EOF) {
			return tokens, last, nil
		} else if err != nil {
			return tokens, last, err
		}
		tokens, last = append(tokens, o.Tokens...), o
	}
}

// wantReleased holds the group against one release.
func (r *rig) wantReleased() {
	r.t.Helper()
	r.close(context.Background()) // it waits for its releases
	q := <-r.released
	if d := dynamo.FromManifest(held); q.Op != "release" || *q.ID != d.ID || q.Key != d.Key {
		r.t.Errorf("asked %+v", q)
	}
	r.wantNone()
}

func (r *rig) wantNone() {
	r.t.Helper()
	r.close(context.Background())
	select {
	case q := <-r.released:
		r.t.Errorf("asked %+v", q)
	default:
	}
}

func carrier(t *testing.T, key string) *PrefillResult {
	b, err := wire.Msgpack.Encode(dynamo.FromManifest(held))
	if err != nil {
		t.Fatal(err)
	}
	return &PrefillResult{Params: dynamo.Params{key: b}}
}

func limitOf(n int32) StopConditions { return StopConditions{MaxTokens: &n} }

func TestPrefillThenDecode(t *testing.T) {
	p := newRig(t, discovery.Prefill, true)
	tokens, last, err := p.rest(p.call(Request{Tokens: []int32{1, 2, 3}, Stop: limitOf(1)}))
	if err != nil || !reflect.DeepEqual(tokens, []int32{40}) || last.Finish != "length" {
		t.Fatalf("%v %+v %v", tokens, last, err)
	}
	if j := <-p.engine.began; j.MaxNew < 2 || len(j.Tokens) != 3 || j.Label == "" {
		t.Errorf("%+v: a limit of 1 is the router's, and would end the request", j)
	}
	m, ok, err := last.Params.Carried(wire.Msgpack)
	if err != nil || !ok || !reflect.DeepEqual(m, held) {
		t.Fatalf("%+v %v %v", m, ok, err)
	}
	p.wantNone()
	d := newRig(t, discovery.Decode, true)
	tokens, last, err = d.rest(d.call(Request{Tokens: []int32{1, 2, 3}, Stop: limitOf(3), Prefill: &PrefillResult{Params: last.Params}}))
	if err != nil || !reflect.DeepEqual(tokens, []int32{40, 41, 42}) || last.Finish != "length" {
		t.Errorf("%v %+v %v", tokens, last, err)
	}
	if from := <-d.engine.from; from == nil || !reflect.DeepEqual(*from, held) {
		t.Errorf("decode imports %+v", from)
	}
	d.wantNone()
}

// TestNormalPath: without a carrier the whole request runs; another version is refused.
func TestNormalPath(t *testing.T) {
	r := newRig(t, discovery.Decode, true)
	for _, from := range []*PrefillResult{nil, {}, carrier(t, "block_ids")} {
		if tokens, _, err := r.rest(r.call(Request{Tokens: []int32{1}, Prefill: from})); err != nil || len(tokens) != 4 {
			t.Errorf("%v %v", tokens, err)
		}
		if m := <-r.engine.from; m != nil {
			t.Errorf("imports %+v", m)
		}
	}
	n := int32(2)
	for text, q := range map[string]Request{"handoff.version": {Tokens: []int32{1}, Prefill: carrier(t, "baton.v2")}, "token_ids": {}, "max_tokens": {Tokens: []int32{1}, Stop: limitOf(0)},
		"sampling_options.n": {Tokens: []int32{1}, Sampling: Sampling{N: &n}}} {
		_, _, err := r.rest(r.call(q))
		if f, ok := errors.AsType[*wire.Fault](err); !ok || f.Kind() != wire.InvalidArgument || !strings.Contains(f.Message, text) {
			t.Errorf("%v, want %s", err, text)
		}
	}
	r.wantNone()
}

// TestReleasedOnce: on each way out that imports nothing.
func TestReleasedOnce(t *testing.T) {
	for _, named := range []bool{true, false} {
		for name, c := range map[string]struct {
			role discovery.Role
			act  func(r *rig)
		}{
			"decode fails": {discovery.Decode, func(r *rig) {
				r.engine.err = fmt.Errorf("no room: %w", handoff.ErrCapacity)
				_, _, err := r.rest(r.call(Request{Tokens: []int32{1}, Prefill: carrier(t, dynamo.Carrier)}))
				if f, ok := errors.AsType[*wire.Fault](err); !ok || f.Kind() != wire.ResourceExhausted {
					t.Errorf("%v", err)
				}
			}},
			"decode's caller stops": {discovery.Decode, func(r *rig) {
				r.engine.hold = make(chan struct{})
				a := r.call(Request{Tokens: []int32{1}, Prefill: carrier(t, dynamo.Carrier)})
				<-r.engine.began
				if err := a.Stop(); err != nil {
					t.Error(err)
				}
				if _, _, err := r.rest(a); err == nil {
					t.Error("the answer is whole")
				}
			}},
			"decode's caller goes": {discovery.Decode, func(r *rig) {
				r.engine.hold = make(chan struct{})
				a := r.call(Request{Tokens: []int32{1}, Prefill: carrier(t, dynamo.Carrier)})
				<-r.engine.began
				a.Close()
			}},
			"prefill's caller goes": {discovery.Prefill, func(r *rig) {
				r.engine.hold = make(chan struct{})
				a := r.call(Request{Tokens: []int32{1}})
				<-r.engine.began
				a.Close()
			}},
		} {
			t.Run(fmt.Sprint(name, " ", named), func(t *testing.T) {
				r := newRig(t, c.role, named)
				c.act(r)
				r.wantReleased()
			})
		}
	}
}

// TestReleasedByWhoLives: the card of a process that was killed, under the same group, is in
// nobody's way.
func TestReleasedByWhoLives(t *testing.T) {
	r := newRig(t, discovery.Decode, true)
	e := r.cfg.Endpoint("handoff")
	i, err := directory.NewInstance(e, 9, "127.0.0.1:1", "msgpack").Record()
	m, err2 := directory.NewModel(e, 9, json.RawMessage(`{"runtime_config":{"runtime_data":{"baton_group":"p"}}}`)).Record()
	if err = errors.Join(err, err2); err != nil {
		t.Fatal(err)
	}
	k := directory.Keep(r.files, time.Second, slog.New(slog.DiscardHandler))
	t.Cleanup(func() { k.Close(context.Background()) })
	k.Set([]directory.Record{i, m})
	if err := k.Settled(r.ctx()); err != nil {
		t.Fatal(err)
	}
	r.engine.err = handoff.ErrCapacity
	if _, _, err := r.rest(r.call(Request{Tokens: []int32{1}, Prefill: carrier(t, dynamo.Carrier)})); err == nil {
		t.Error("a failure is an answer")
	}
	r.wantReleased()
}

// TestOffer: a worker whose engine is away is not found, and comes back as what it was.
func TestOffer(t *testing.T) {
	r := newRig(t, discovery.Decode, true)
	there := func() directory.Snapshot {
		if err := r.worker.Ready(r.ctx()); err != nil {
			t.Fatal(err)
		}
		s, err := first(r.ctx(), r.files, directory.Instances+"dynamo/c/")
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	before := there()
	r.worker.Offer(false)
	if s := there(); len(s) != 0 {
		t.Errorf("%s is there", s)
	}
	r.worker.Offer(true)
	if s := there(); len(before) != 1 || !reflect.DeepEqual(s, before) {
		t.Errorf("%s, want %s", s, before)
	}
}

func TestSlug(t *testing.T) {
	for model, want := range map[string]string{"tiny": "tiny", "Meta/Llama-3.1_8B": "meta_llama-3_1_8b", "größe": "gr__e"} {
		if got := slug(model); got != want {
			t.Errorf("%q: %q, want %q", model, got, want)
		}
	}
}

// TestEnd: the records go first, what runs ends.
func TestEnd(t *testing.T) {
	r := newRig(t, discovery.Decode, true)
	r.engine.hold = make(chan struct{})
	a := r.call(Request{Tokens: []int32{1}})
	<-r.engine.began
	done := make(chan struct{})
	go func() { r.worker.Close(r.ctx()); close(done) }()
	for s, err := range r.files.Watch(r.ctx(), directory.Instances+"dynamo/c/") {
		if err != nil {
			t.Fatal(err)
		}
		if len(s) == 0 {
			break
		}
	}
	close(r.engine.hold)
	if tokens, last, err := r.rest(a); err != nil || len(tokens) != 4 || last.Finish != "length" {
		t.Errorf("%v %+v %v", tokens, last, err)
	}
	<-done
	r.worker = nil
}
