package front_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/batonkv/baton/examples/engine/front"
	"github.com/batonkv/baton/examples/engine/sample"
	"github.com/batonkv/baton/sidecar/handoff"
)

// script is an engine that plays its events and tells when a request was aborted.
type script struct {
	events  []front.Event
	got     chan front.Request
	aborted chan struct{}
}

func (s *script) Submit(ctx context.Context, r front.Request) (<-chan front.Event, error) {
	if r.Label == "busy" {
		return nil, front.ErrBusy
	}
	if r.Label == "never" {
		return nil, fmt.Errorf("%w: %w: too long", front.ErrRequest, handoff.ErrCapacity)
	}
	if r.Label == "late" {
		return nil, fmt.Errorf("%w: the engine stops", handoff.ErrDraining)
	}
	s.got <- r
	ch := make(chan front.Event, len(s.events)+1)
	for _, e := range s.events {
		ch <- e
	}
	context.AfterFunc(ctx, func() {
		ch <- front.Event{Err: errors.New("aborted")}
		close(s.aborted)
	})
	return ch, nil
}

func serve(t *testing.T, events ...front.Event) (*script, string) {
	s := &script{events: events, got: make(chan front.Request, 8), aborted: make(chan struct{})}
	path := filepath.Join(t.TempDir(), "front.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := front.Serve(ctx, l, s); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() { cancel(); wg.Wait() })
	return s, path
}

var manifest = handoff.Manifest{ID: handoff.ID{Group: "p", Instance: 1<<63 + 1, Leader: 1<<64 - 1, N: 3}, Key: handoff.Key{1, 255},
	Label: "a", Tokens: 4, Position: 4, Resume: handoff.Resume{Tokens: []int32{7}, Finished: true}}

func TestGenerate(t *testing.T) {
	lp := float32(-0.5)
	want := front.Result{Reason: "exported", Blocks: 2, Cached: 16, Forwarded: 3, Manifest: &manifest}
	s, path := serve(t, front.Event{Token: 0}, front.Event{Token: 257, Logprob: &lp}, front.Event{Result: &want})
	c, err := front.Dial(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	req := front.Request{Tokens: []int32{1, 2}, MaxNew: 3, Label: "a", Mode: front.Import, Manifest: &manifest, DeadlineMS: 9, Answer: 3}
	var events []front.Event
	res, err := c.Stream(t.Context(), req, func(e front.Event) { events = append(events, e) })
	if err != nil || !reflect.DeepEqual(res, want) || !reflect.DeepEqual(events, []front.Event{{Token: 0}, {Token: 257, Logprob: &lp}}) {
		t.Fatalf("%+v %v %v", res, events, err)
	}
	if got := <-s.got; !reflect.DeepEqual(got, req) {
		t.Fatalf("engine got %+v", got)
	}
}

func TestGenerateSampled(t *testing.T) {
	s, path := serve(t, front.Event{Token: 0}, front.Event{Token: 257}, front.Event{Result: &front.Result{Reason: "eos"}})
	c, err := front.Dial(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	req := front.Request{Tokens: []int32{1}, MaxNew: 3, Mode: front.Full, Answer: 1,
		Sample: sample.Params{Seed: 1<<64 - 1, Temperature: 0.7, TopK: 5, TopP: 0.1, Answers: 2, Logprobs: true, Stop: [][]int32{{1, 2}}}}
	var tokens []int32
	if _, err := c.Generate(t.Context(), req, func(t int32) { tokens = append(tokens, t) }); err != nil || !slices.Equal(tokens, []int32{0, 257}) {
		t.Fatalf("%v %v", tokens, err)
	}
	if got := <-s.got; !reflect.DeepEqual(got, req) {
		t.Fatalf("engine got %+v", got)
	}
}

// TestEngineEnds: an engine that ends in the middle of a request is a peer that is lost.
func TestEngineEnds(t *testing.T) {
	for sends, want := range map[string]error{"": handoff.ErrPeer, "{\"token\":7}\n": handoff.ErrPeer, "{\"tok": front.ErrProtocol,
		strings.Repeat("x", 1<<25): front.ErrProtocol} {
		path := filepath.Join(t.TempDir(), "front.sock")
		l, err := net.Listen("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		wg.Go(func() {
			conn, err := l.Accept()
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close()
			if _, err := bufio.NewReader(conn).ReadString('\n'); err != nil {
				t.Error(err)
			}
			_, _ = conn.Write([]byte(sends)) // a client that has enough hangs up
		})
		if _, err := front.New(path).Generate(t.Context(), front.Request{Tokens: []int32{1}, MaxNew: 2, Mode: front.Full}, nil); !errors.Is(err, want) {
			t.Errorf("%.20q: %v", sends, err)
		}
		l.Close()
		wg.Wait()
	}
}

func TestErrors(t *testing.T) {
	_, path := serve(t, front.Event{Err: errors.New("no room")})
	c, err := front.Dial(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	req := front.Request{Tokens: []int32{1}, MaxNew: 1, Mode: front.Full}
	if _, err := c.Generate(t.Context(), req, nil); !errors.Is(err, front.ErrFailed) || !strings.Contains(err.Error(), "no room") {
		t.Error(err)
	}
	req.Label = "busy"
	if _, err := c.Generate(t.Context(), req, nil); !errors.Is(err, front.ErrFailed) || !errors.Is(err, handoff.ErrCapacity) || !strings.Contains(err.Error(), "busy") {
		t.Error(err)
	}
	req.Label = "never"
	if _, err := c.Generate(t.Context(), req, nil); !errors.Is(err, front.ErrRequest) || !errors.Is(err, handoff.ErrCapacity) || !strings.Contains(err.Error(), "too long") {
		t.Error(err)
	}
	req.Label = "late"
	if _, err := c.Generate(t.Context(), req, nil); !errors.Is(err, front.ErrFailed) || !errors.Is(err, handoff.ErrDraining) {
		t.Error(err)
	}
	req.MaxNew = 0
	if _, err := c.Generate(t.Context(), req, nil); !errors.Is(err, front.ErrRequest) {
		t.Error(err)
	}
	if _, err := front.Dial(t.Context(), path+"x"); err == nil {
		t.Error("dialled nothing")
	}
}

// TestHangUpAborts: the end of the caller's connection is the end of its request.
func TestHangUpAborts(t *testing.T) {
	s, path := serve(t, front.Event{Token: 1})
	c, _ := front.Dial(t.Context(), path)
	ctx, cancel := context.WithCancel(t.Context())
	_, err := c.Generate(ctx, front.Request{Tokens: []int32{1}, MaxNew: 9, Mode: front.Full}, func(int32) { cancel() })
	if !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	<-s.aborted
}

func TestBadLines(t *testing.T) {
	_, path := serve(t)
	for _, in := range []string{"{", "[]", `{"mode":"full","max_new":1,"tokens":[1],"x":2}`, `{"mode":"halt"}`,
		`{"mode":"full","max_new":1,"tokens":["a"]}`, `{"mode":"stats","answer":1}`,
		`{"mode":"full","max_new":1,"tokens":[1],"answer":1}`, `{"mode":"export","max_new":1,"tokens":[1],"label":"a","answer":1,"sample":{"n":2}}`,
		`{"mode":"adopt","max_new":1,"label":"a","answer":-1}`, `{"mode":"adopt","max_new":1,"label":"a","sample":{"seed":1}}`,
		`{"mode":"full","max_new":1,"tokens":[1],"sample":{"temperature":-1}}`, `{"mode":"full","max_new":1,"tokens":[1],"sample":{"stop":[[]]}}`,
		`{"mode":"export","max_new":1,"tokens":[1]}`,
		`{"mode":"full","max_new":1,"tokens":[1],"label":"` + strings.Repeat("x", 300) + `"}`} {
		conn, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintln(conn, in)
		line, err := bufio.NewReader(conn).ReadString('\n')
		if err != nil || !strings.Contains(line, `{"error":"front: bad request`) {
			t.Errorf("%.60s: %q %v", in, line, err)
		}
		conn.Close()
	}
}

func FuzzRequest(f *testing.F) {
	f.Add([]byte(`{"tokens":[256,1],"max_new":3,"label":"a","mode":"import","manifest":{"ID":{"Group":"g"}},"deadline_ms":5}`))
	f.Add([]byte(`{"mode":"adopt","label":"x","max_new":1}`))
	f.Add([]byte(`{"mode":"full","max_new":1,"tokens":[1],"answer":1,"sample":{"n":2,"top_p":0.5,"temperature":1,"stop":[[1,2]],"logprobs":true}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := front.ParseRequest(b)
		if err == nil && r.Check() != nil {
			t.Fatal("took a request that Check refuses")
		}
	})
}
