package engine_test

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/batonkv/baton/examples/engine"
	"github.com/batonkv/baton/examples/engine/front"
	"github.com/batonkv/baton/examples/engine/model"
	"github.com/batonkv/baton/sidecar/handoff"
)

// act decides an action and returns what every rank answered to that decision.
func (w *world) act(name string, a handoff.Action) (n uint64, refused []error) {
	w.t.Helper()
	g := w.groups[name]
	w.mu.Lock()
	n = w.decide(g, handoff.Decision{Kind: handoff.Lifecycle, Action: a})
	w.mu.Unlock()
	for { // the ranks answer in a step of their own
		runtime.Gosched()
		w.mu.Lock()
		refused = nil
		for _, s := range g.sessions {
			if err, ok := s.acks[n]; ok {
				refused = append(refused, err)
			}
		}
		w.mu.Unlock()
		if len(refused) == len(g.sessions) {
			return n, refused
		}
	}
}

// do is act that no rank refuses.
func (w *world) do(name string, a handoff.Action) uint64 {
	w.t.Helper()
	n, refused := w.act(name, a)
	if err := errors.Join(refused...); err != nil {
		w.t.Errorf("%v: %v", a, err)
	}
	return n
}

// freeBlocks asks the scheduler, which goes round for it.
func freeBlocks(t *testing.T, r *engine.Rank) int32 {
	t.Helper()
	_, res, err := ask(t, r, front.Request{Mode: front.Stats})
	if err != nil {
		t.Fatal(err)
	}
	return res.Pool.FreeBlocks
}

// A group that is paused or suspended steps no request, whatever comes, and goes on where
// it was; suspended, it has forgotten its cache.
func TestPauseAndSuspend(t *testing.T) {
	w := newWorld(t)
	cfg := config(model.Attention(1), "g", 2)
	r := launch(t, w, cfg)[0]
	tokens := prompt(40, 0, 1)
	want := reference(t, config(model.Attention(1), "x", 1), tokens, newTokens)
	for i, pair := range [][2]handoff.Action{{handoff.ActionPause, handoff.ActionUnpause}, {handoff.ActionSuspend, handoff.ActionResume}} {
		w.do("g", pair[0])
		events, err := r.Submit(t.Context(), front.Request{Tokens: tokens, MaxNew: newTokens, Mode: front.Full})
		if err != nil {
			t.Fatal(err)
		}
		for range 20 {
			if n := freeBlocks(t, r); n != cfg.Blocks || len(events) > 0 {
				t.Fatalf("%v: %d blocks are free, %d events", pair[0], n, len(events))
			}
		}
		w.do("g", pair[1])
		var got []int32
		for ev := range events {
			if ev.Err != nil {
				t.Fatal(ev.Err)
			}
			if ev.Result != nil {
				if ev.Result.Cached != 0 {
					t.Errorf("round %d: %d tokens were cached", i, ev.Result.Cached)
				}
				break
			}
			got = append(got, ev.Token)
		}
		if len(got) != len(want) || got[0] != want[0] || got[len(got)-1] != want[len(want)-1] {
			t.Errorf("%v: %v, want %v", pair[0], got, want)
		}
	}
}

// A group whose intake is stopped refuses at its front, ends what runs, and takes requests
// again when it is told.
func TestIntake(t *testing.T) {
	w := newWorld(t)
	r := launch(t, w, config(model.Hybrid(1), "g", 2))[0]
	full := front.Request{Tokens: prompt(30, 0, 1), MaxNew: newTokens, Mode: front.Full}
	w.do("g", handoff.ActionStopIntake)
	tells(t, r, "handoff.draining")
	for _, req := range []front.Request{full, {Tokens: full.Tokens, MaxNew: 2, Mode: front.Export, Label: "a"}} {
		if _, _, err := ask(t, r, req); !errors.Is(err, handoff.ErrDraining) {
			t.Errorf("%s: %v", req.Mode, err)
		}
	}
	w.do("g", handoff.ActionResumeIntake)
	tells(t, r, "")
	if _, _, err := ask(t, r, full); err != nil {
		t.Error(err)
	}
}

// A group that is told to stop serves what it took, also when it is paused, and ends.
func TestStop(t *testing.T) {
	w := newWorld(t)
	r := launch(t, w, config(model.Hybrid(1), "g", 2))[0]
	w.do("g", handoff.ActionPause)
	events, err := r.Submit(t.Context(), front.Request{Tokens: prompt(30, 0, 1), MaxNew: newTokens, Mode: front.Full})
	if err != nil {
		t.Fatal(err)
	}
	freeBlocks(t, r) // it is taken
	w.do("g", handoff.ActionStop)
	tokens := 0
	for ev := range events {
		if ev.Err != nil {
			t.Fatal(ev.Err)
		}
		if ev.Result != nil {
			break
		}
		tokens++
	}
	if tokens == 0 {
		t.Error("nothing was decoded")
	}
	for {
		_, err := r.Submit(t.Context(), front.Request{Mode: front.Stats})
		if errors.Is(err, engine.ErrEnded) {
			return
		}
	}
}

// A profile is made once for all that asks; a second rank of the same process refuses.
func TestProfile(t *testing.T) {
	w := newWorld(t)
	cfg := config(model.Hybrid(1), "g", 1)
	cfg.Profiles = t.TempDir()
	launch(t, w, cfg)
	n := w.do("g", handoff.ActionProfileStart)
	w.do("g", handoff.ActionProfileStop)
	if files, err := filepath.Glob(filepath.Join(cfg.Profiles, "*.pprof")); err != nil || len(files) != 1 || n != 1 {
		t.Errorf("%v, %v", files, err)
	} else if st, err := os.Stat(files[0]); err != nil || st.Size() == 0 {
		t.Error(err)
	}
	cfg.Group, cfg.Profiles = "h", ""
	launch(t, w, cfg)
	if _, refused := w.act("h", handoff.ActionProfileStart); refused[0] == nil {
		t.Error("a profile without a directory")
	}
}
