package engine_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/batonkv/baton/examples/engine"
	"github.com/batonkv/baton/examples/engine/front"
	"github.com/batonkv/baton/examples/engine/model"
	"github.com/batonkv/baton/sidecar/handoff"
)

func TestDropGivesBack(t *testing.T) {
	m := model.Hybrid(1)
	w := newWorld(t)
	src := launch(t, w, config(m, "prefill", 1))[0]
	dst := launch(t, w, config(m, "decode", 2))[0]
	tokens := prompt(100, 0, 1)
	w.mu.Lock()
	w.fail = true
	w.mu.Unlock()
	_, res, err := ask(t, src, front.Request{Tokens: tokens, MaxNew: 8, Mode: front.Export, Label: "a"})
	if err != nil {
		t.Fatal(err)
	}
	imp := front.Request{Tokens: tokens, MaxNew: 8, Mode: front.Import, Label: "a", Manifest: res.Manifest}
	for range 10 { // more than the slots and blocks there are
		if _, _, err := ask(t, dst, imp); !errors.Is(err, handoff.ErrTransfer) {
			t.Fatal(err)
		}
	}
	w.mu.Lock()
	w.fail = false
	w.mu.Unlock()
	got, _, err := ask(t, dst, imp)
	if want := reference(t, config(m, "x", 1), tokens, 8); err != nil || !slices.Equal(got, want) {
		t.Fatalf("%v %v, want %v", err, got, want)
	}
}

// TestWaitsForCapacity: an import that does not fit is told Full, and comes in once a
// request has ended.
func TestWaitsForCapacity(t *testing.T) {
	m := model.Hybrid(1)
	w := newWorld(t)
	src := launch(t, w, config(m, "prefill", 2))[0]
	small := config(m, "decode", 1)
	small.Slots = 1
	dst := launch(t, w, small)[0]
	w.mu.Lock()
	w.hold = true
	w.mu.Unlock()
	var events []<-chan front.Event
	for i := range 4 {
		tokens, label := prompt(50, 0, i), fmt.Sprint(i)
		_, res, err := ask(t, src, front.Request{Tokens: tokens, MaxNew: 16, Mode: front.Export, Label: label})
		if err != nil {
			t.Fatal(err)
		}
		ev, err := dst.Submit(t.Context(), front.Request{Tokens: tokens, MaxNew: 16, Mode: front.Import, Label: label, Manifest: res.Manifest})
		if err != nil {
			t.Fatal(err)
		}
		events = append(events, ev)
	}
	w.admitWhen("decode", len(events))
	for i, ch := range events {
		got, err := drain(ch)
		if want := reference(t, small, prompt(50, 0, i), 16); err != nil || !slices.Equal(got, want) {
			t.Errorf("%d: %v %v, want %v", i, err, got, want)
		}
	}
}

func TestUnpinNeedsEveryRank(t *testing.T) {
	m := model.Hybrid(1)
	w := newWorld(t)
	c := config(m, "prefill", 2)
	c.Slots = 1
	src := launch(t, w, c)[0]
	req := front.Request{Tokens: prompt(20, 0, 1), MaxNew: 4, Mode: front.Export, Label: "a"}
	if _, _, err := ask(t, src, req); err != nil {
		t.Fatal(err)
	}
	full := front.Request{Tokens: prompt(20, 0, 1), MaxNew: 1, Mode: front.Full, DeadlineMS: 300}
	unpin := func(rank int) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.groups["prefill"].sessions[rank].push(handoff.UnpinExport{Label: "a"})
	}
	unpin(1)
	if _, _, err := ask(t, src, full); !errors.Is(err, engine.ErrDeadline) {
		t.Fatalf("the slot is pinned at rank 0: %v", err)
	}
	unpin(0)
	full.DeadlineMS = 0
	if _, _, err := ask(t, src, full); err != nil {
		t.Fatal(err)
	}
}

// TestImportsShareTheLastBlocks: imports that outgrow the pool together do not block
// each other for ever: the newest are computed anew, and all are right.
func TestImportsShareTheLastBlocks(t *testing.T) {
	m := model.Attention(1)
	w := newWorld(t)
	src := launch(t, w, config(m, "prefill", 1))[0]
	small := config(m, "decode", 2)
	small.Blocks = 6
	dst := launch(t, w, small)[0]
	w.mu.Lock()
	w.hold = true
	w.mu.Unlock()
	var events []<-chan front.Event
	prompts := long(t, small, 30, newTokens, 3) // each has two blocks, and wants four
	for i, p := range prompts {
		label, tokens := fmt.Sprint(i), p.Tokens
		_, res, err := ask(t, src, front.Request{Tokens: tokens, MaxNew: newTokens, Mode: front.Export, Label: label})
		if err != nil {
			t.Fatal(err)
		}
		ev, err := dst.Submit(t.Context(), front.Request{Tokens: tokens, MaxNew: newTokens, Mode: front.Import, Label: label, Manifest: res.Manifest})
		if err != nil {
			t.Fatal(err)
		}
		events = append(events, ev)
	}
	w.admitWhen("decode", 3)
	var preempted int32
	for i, ch := range events {
		got, res, err := drainResult(ch)
		if want := reference(t, small, prompts[i].Tokens, newTokens); err != nil || !slices.Equal(got, want) {
			t.Errorf("%d: %v %v, want %v", i, got, err, want)
		}
		preempted += res.Preempted
	}
	if preempted == 0 {
		t.Error("nobody was preempted")
	}
}

func TestAbortFrees(t *testing.T) {
	r := launch(t, nil, config(model.Hybrid(1), "g", 2))[0]
	for range 12 {
		ctx, cancel := context.WithCancel(t.Context())
		events, err := r.Submit(ctx, front.Request{Tokens: prompt(60, 0, 1), MaxNew: 300, Mode: front.Full})
		if err != nil {
			t.Fatal(err)
		}
		<-events
		cancel()
		for ev := range events {
			if ev.Err != nil || ev.Result != nil {
				break
			}
		}
	}
	if _, _, err := ask(t, r, front.Request{Tokens: prompt(300, 0, 1), MaxNew: 2, Mode: front.Full}); err != nil {
		t.Fatal(err)
	}
}

// TestSidecarLost: hand-offs fail with the reason, whole requests go on.
func TestSidecarLost(t *testing.T) {
	for _, rank := range []int{0, 1} {
		m := model.Hybrid(1)
		w := newWorld(t)
		r := launch(t, w, config(m, "g", 2))[0]
		waiting, err := r.Submit(t.Context(), front.Request{MaxNew: 1, Mode: front.Adopt, Label: "never"})
		if err != nil {
			t.Fatal(err)
		}
		w.mu.Lock()
		s := w.groups["g"].sessions[rank]
		s.err = errors.New("it went away")
		w.mu.Unlock()
		if ev := <-waiting; !errors.Is(ev.Err, engine.ErrSidecar) || !errors.Is(ev.Err, handoff.ErrPeer) {
			t.Errorf("rank %d: adopt: %+v", rank, ev)
		}
		if _, _, err := ask(t, r, front.Request{Tokens: prompt(5, 0, 0), MaxNew: 1, Mode: front.Export, Label: "a"}); !errors.Is(err, engine.ErrSidecar) {
			t.Errorf("rank %d: export: %v", rank, err)
		}
		got, _, err := ask(t, r, front.Request{Tokens: prompt(5, 0, 0), MaxNew: 4, Mode: front.Full})
		if want := reference(t, config(m, "x", 1), prompt(5, 0, 0), 4); err != nil || !slices.Equal(got, want) {
			t.Errorf("rank %d: full: %v %v", rank, got, err)
		}
	}
}

// TestSidecarAway: while a rank has no sidecar no hand-off begins, and what waits goes on
// when it is back.
func TestSidecarAway(t *testing.T) {
	for _, rank := range []int{0, 1} {
		m := model.Hybrid(1)
		w := newWorld(t)
		src, dst := launch(t, w, config(m, "prefill", 1))[0], launch(t, w, config(m, "decode", 2))[0]
		tokens := prompt(40, 0, 1)
		_, res, err := ask(t, src, front.Request{Tokens: tokens, MaxNew: newTokens, Mode: front.Export, Label: "a"})
		if err != nil {
			t.Fatal(err)
		}
		w.mu.Lock()
		w.hold = true
		w.mu.Unlock()
		waiting, err := dst.Submit(t.Context(), front.Request{Tokens: tokens, MaxNew: newTokens, Mode: front.Import, Label: "a", Manifest: res.Manifest})
		if err != nil {
			t.Fatal(err)
		}
		s := w.groups["decode"].sessions[rank]
		stand := func(err error) {
			w.mu.Lock()
			s.away = err
			w.mu.Unlock()
		}
		stand(errors.New("it is restarted"))
		export := func(label string) error {
			_, _, err := ask(t, dst, front.Request{Tokens: tokens, MaxNew: 1, Mode: front.Export, Label: label})
			return err
		}
		for n := 0; ; n++ { // another rank says so with its next report
			if err := export(fmt.Sprint("x", n)); err != nil {
				if !errors.Is(err, engine.ErrSidecar) || !strings.Contains(err.Error(), "it is restarted") {
					t.Errorf("rank %d: export while it is away: %v", rank, err)
				}
				break
			}
		}
		tells(t, dst, "handoff.peer")
		stand(nil)
		for n := 0; export(fmt.Sprint("y", n)) != nil; n++ {
		}
		tells(t, dst, "")
		w.admitWhen("decode", 1)
		var got []int32
		for ev := range waiting {
			if ev.Err != nil {
				t.Fatalf("rank %d: the import that waited: %v", rank, ev.Err)
			}
			if ev.Result != nil {
				break
			}
			got = append(got, ev.Token)
		}
		if want := reference(t, config(m, "x", 1), tokens, newTokens); !slices.Equal(got, want) {
			t.Errorf("rank %d: %v, want %v", rank, got, want)
		}
	}
}

// tells holds what an engine tells of new requests against the name of an error.
func tells(t *testing.T, r *engine.Rank, want string) {
	t.Helper()
	if _, res, err := ask(t, r, front.Request{Mode: front.Tell}); err != nil || res.Closed != want || res.Room < 2 || res.Block < 1 {
		t.Errorf("it tells %q, room %d, %v; want %q", res.Closed, res.Room, err, want)
	}
}

// TestFreedBeforeTheManifest: a hand-off that ends before its manifest came fails its
// request, which waits for nothing then.
func TestFreedBeforeTheManifest(t *testing.T) {
	w := newWorld(t)
	w.over = true
	r := launch(t, w, config(model.Hybrid(1), "g", 2))[0]
	_, _, err := ask(t, r, front.Request{Tokens: prompt(20, 0, 1), MaxNew: 4, Mode: front.Export, Label: "a"})
	if !errors.Is(err, engine.ErrSidecar) || !strings.Contains(err.Error(), "before a manifest") {
		t.Error(err)
	}
}

// TestManifestOverBound: what the session refuses to carry fails its request alone.
func TestManifestOverBound(t *testing.T) {
	w := newWorld(t)
	r := launch(t, w, config(model.Hybrid(1), "g", 1))[0]
	big := handoff.Manifest{Resume: handoff.Resume{Sampler: make([]byte, 200)}}
	req := front.Request{Tokens: prompt(5, 0, 0), MaxNew: 1, Mode: front.Import, Label: "a", Manifest: &big}
	if _, _, err := ask(t, r, req); !errors.Is(err, handoff.ErrBound) || !errors.Is(err, front.ErrRequest) {
		t.Error(err)
	}
	if _, _, err := ask(t, r, front.Request{Tokens: prompt(5, 0, 0), MaxNew: 1, Mode: front.Export, Label: "a"}); err != nil {
		t.Error(err)
	}
}

// TestFinishedAtPrefill completes without a decode step.
func TestFinishedAtPrefill(t *testing.T) {
	m := model.Attention(1)
	w := newWorld(t)
	src := launch(t, w, config(m, "prefill", 1))[0]
	dst := launch(t, w, config(m, "decode", 1))[0]
	tokens := prompt(32, 0, 1)
	_, res, err := ask(t, src, front.Request{Tokens: tokens, MaxNew: 1, Mode: front.Export, Label: "a"})
	if err != nil || !res.Manifest.Resume.Finished {
		t.Fatalf("%+v %v", res, err)
	}
	got, _, err := ask(t, dst, front.Request{Tokens: tokens, MaxNew: 9, Mode: front.Import, Label: "a", Manifest: res.Manifest})
	if want := reference(t, config(m, "x", 1), tokens, 1); err != nil || !slices.Equal(got, want) {
		t.Fatalf("%v %v", got, err)
	}
}

// TestExportAborted: the caller leaves while its prompt is computed or pinned; the
// memory comes back.
func TestExportAborted(t *testing.T) {
	w := newWorld(t)
	c := config(model.Hybrid(1), "g", 2)
	c.Slots = 2
	r := launch(t, w, c)[0]
	for i := range 8 {
		ctx, cancel := context.WithCancel(t.Context())
		events, err := r.Submit(ctx, front.Request{Tokens: prompt(200, 0, i), MaxNew: 4, Mode: front.Export, Label: fmt.Sprint(i)})
		if err != nil {
			t.Fatal(err)
		}
		cancel()
		ev := <-events
		if ev.Result != nil { // exported before the caller left: it gives the hand-off up
			w.mu.Lock()
			w.free(w.groups["g"], fmt.Sprint(i))
			w.mu.Unlock()
		}
	}
	if _, _, err := ask(t, r, front.Request{Tokens: prompt(300, 0, 1), MaxNew: 2, Mode: front.Full}); err != nil {
		t.Fatal(err)
	}
}
