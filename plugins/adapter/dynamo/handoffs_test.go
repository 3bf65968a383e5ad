package dynamo

import (
	"context"
	"errors"
	"io"
	"maps"
	"runtime"
	"strings"
	"testing"

	"github.com/batonkv/baton/plugins/adapter/dynamo/plane"
	"github.com/batonkv/baton/plugins/adapter/dynamo/wire"
	"github.com/batonkv/baton/sidecar/handoff"
)

// TestCallerGoes: an import whose caller stops or goes away is aborted, and the import's own
// end is the answer.
func TestCallerGoes(t *testing.T) {
	for _, stop := range []bool{true, false} {
		r, ctx := newRig(t, ""), ctxOf(t)
		r.fake.hold = make(chan struct{})
		m := FromManifest(manifest)
		a, err := r.client.Call(ctx, r.targets(ctx, "handoff")[0], HandoffRequest{Op: "import", Label: "r2", Manifest: &m})
		if err != nil {
			t.Fatal(err)
		}
		<-r.fake.begun
		if !stop {
			a.Close()
		} else if err := a.Stop(); err != nil {
			t.Fatal(err)
		}
		got := <-r.fake.aborted
		if r.fake.aborted <- got; got != id {
			t.Errorf("aborted %v", got)
		}
		if stop {
			err := a.Next(ctx, &Done{})
			if f, ok := errors.AsType[*wire.Fault](err); !ok || f.Kind() != wire.Cancelled || !strings.Contains(f.Message, "handoff.aborted") {
				t.Errorf("after a stop: %v", err)
			}
			a.Close()
		}
	}
}

// TestCallerGoesOthersStay: a call that goes away aborts neither the import of another key under
// the same id, nor one that another call of the same waits for.
func TestCallerGoesOthersStay(t *testing.T) {
	r, ctx := newRig(t, ""), ctxOf(t)
	r.fake.hold = make(chan struct{})
	m := FromManifest(manifest)
	foreign := m
	foreign.Key = strings.Repeat("0f", 16)
	begin := func(m Manifest) *plane.Answer {
		t.Helper()
		a, err := r.client.Call(ctx, r.targets(ctx, "handoff")[0], HandoffRequest{Op: "import", Label: "r2", Manifest: &m})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(a.Close)
		<-r.fake.begun
		return a
	}
	stays, goes, other := begin(m), begin(m), begin(foreign)
	for _, a := range []*plane.Answer{goes, other} {
		if err := a.Stop(); err != nil {
			t.Fatal(err)
		}
	}
	for { // until the server has heard of both
		r.a.callers.mu.Lock()
		left := maps.Clone(r.a.callers.of)
		r.a.callers.mu.Unlock()
		if len(left) == 1 && left[owned{manifest.ID, manifest.Key}] == 1 {
			break
		}
		if ctx.Err() != nil {
			t.Fatalf("%v", left)
		}
		runtime.Gosched()
	}
	close(r.fake.hold)
	var got ImportAnswer
	if err := stays.Next(ctx, &got); err != nil || got.Label != "r2" {
		t.Errorf("%+v, %v", got, err)
	}
	select {
	case id := <-r.fake.aborted:
		t.Errorf("%v was aborted", id)
	default:
	}
}

// TestWaitingKeepsNobodyOut: calls that wait for something to happen leave room for imports,
// have a bound of their own, and end with it.
func TestWaitingKeepsNobodyOut(t *testing.T) {
	r, ctx := newRig(t, "\ncalls: 1\nwaiting: 2"), ctxOf(t)
	to := r.targets(ctx, "handoff")[0]
	var first *plane.Answer
	for n := range 2 {
		a, err := r.client.Call(ctx, to, HandoffRequest{Op: "watch"})
		if err == nil {
			err = a.Next(ctx, &Notice{})
		}
		if err != nil {
			t.Fatalf("watch %d: %v", n, err)
		}
		defer a.Close()
		first = a
	}
	m := FromManifest(manifest)
	if _, err := call[ImportAnswer](ctx, r.caller, "handoff", HandoffRequest{Op: "import", Label: "r2", Manifest: &m}); err != nil {
		t.Error(err)
	}
	ask := func(q HandoffRequest) (err error) { // the one place is free soon after an answer
		for err = handoff.ErrCapacity; errors.Is(err, handoff.ErrCapacity) && ctx.Err() == nil; {
			_, err = call[Notice](ctx, r.caller, "handoff", q)
		}
		return err
	}
	for _, op := range []string{"watch", "await"} {
		err := ask(HandoffRequest{Op: op, Label: "x"})
		if f, ok := errors.AsType[*wire.Fault](err); !ok || f.Kind() != wire.ResourceExhausted || !strings.Contains(f.Message, "2 calls wait") {
			t.Errorf("a third %s: %v", op, err)
		}
	}
	err := ask(HandoffRequest{Op: "watch", Label: strings.Repeat("x", 1<<17)})
	if f, ok := errors.AsType[*wire.Fault](err); !ok || f.Kind() != wire.InvalidArgument {
		t.Errorf("a large request that waits: %v", err)
	}
	if err := first.Stop(); err != nil {
		t.Fatal(err)
	}
	if err := first.Next(ctx, &Notice{}); !errors.Is(err, io.EOF) {
		t.Error(err)
	}
	for err = errors.New("none"); err != nil; { // so is that of a watch
		if err = ask(HandoffRequest{Op: "watch"}); ctx.Err() != nil {
			t.Fatal(err)
		}
	}
}

// TestDrainLeavesImports: the end of the adapter does not abort what it asked for.
func TestDrainLeavesImports(t *testing.T) {
	r, ctx := newRig(t, ""), ctxOf(t)
	r.fake.hold = make(chan struct{})
	m := FromManifest(manifest)
	a, err := r.client.Call(ctx, r.targets(ctx, "handoff")[0], HandoffRequest{Op: "import", Label: "r2", Manifest: &m})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	<-r.fake.begun
	now, cancel := context.WithCancel(ctx)
	cancel()
	if err := r.a.Drain(now); err != nil {
		t.Fatal(err)
	}
	err = a.Next(ctx, &Done{})
	if f, ok := errors.AsType[*wire.Fault](err); !ok || !strings.Contains(f.Message, "handoff.in-doubt") {
		t.Errorf("%v", err)
	}
	select {
	case id := <-r.fake.aborted:
		t.Errorf("%v was aborted", id)
	default:
	}
	if left := r.targets(ctx, "handoff"); len(left) != 0 {
		t.Errorf("still registered: %v", left)
	}
}
