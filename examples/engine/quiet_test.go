package engine_test

import (
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

// A reset ends what runs, and leaves nothing in the memory.
func TestReset(t *testing.T) {
	for _, m := range []model.Config{model.Attention(1), model.Hybrid(1)} {
		cfg := config(m, "g", 2)
		r := launch(t, nil, cfg)[0]
		req := front.Request{Tokens: prompt(60, 0, 1), MaxNew: 8, Mode: front.Full}
		if _, _, err := ask(t, r, req); err != nil {
			t.Fatal(err)
		}
		run := long(t, cfg, 60, 200, 1)[0]
		run.Mode = front.Full
		events, err := r.Submit(t.Context(), run)
		if err != nil {
			t.Fatal(err)
		}
		<-events // it decodes
		_, res, err := ask(t, r, front.Request{Mode: front.Reset})
		if err != nil || res.Pool.FreeBlocks != cfg.Blocks {
			t.Errorf("%s: %+v %v", m.Name, res, err)
		}
		if _, err := drain(events); !errors.Is(err, engine.ErrReset) {
			t.Errorf("%s: what ran ended with %v", m.Name, err)
		}
		got, res, err := ask(t, r, req)
		if want := reference(t, cfg, req.Tokens, 8); err != nil || !slices.Equal(got, want) || res.Cached != 0 {
			t.Errorf("%s: afterwards %v %+v %v, want %v", m.Name, got, res, err, want)
		}
	}
}

// resetFails asks for a reset that says what it waits for, and stands in nobody's way afterwards.
func resetFails(t *testing.T, r *engine.Rank, says string) {
	t.Helper()
	_, _, err := ask(t, r, front.Request{Mode: front.Reset, DeadlineMS: 1})
	if !errors.Is(err, engine.ErrTouched) || !strings.Contains(err.Error(), says) {
		t.Fatalf("%v, want it to say: %s", err, says)
	}
	tells(t, r, "")
}

// A reset frees nothing that an importer may still read or a copy may still write: it says
// what that is, and goes through once it is over.
func TestResetWaits(t *testing.T) {
	m := model.Hybrid(1)
	w := newWorld(t)
	src, dst := launch(t, w, config(m, "prefill", 2))[0], launch(t, w, config(m, "decode", 2))[0]
	tokens := prompt(40, 0, 1)
	_, res, err := ask(t, src, front.Request{Tokens: tokens, MaxNew: newTokens, Mode: front.Export, Label: "a"})
	if err != nil {
		t.Fatal(err)
	}
	resetFails(t, src, `export "a" is held for importers`)
	w.mu.Lock()
	w.hold = true
	w.mu.Unlock()
	imp := front.Request{Tokens: tokens, MaxNew: newTokens, Mode: front.Import, Label: "b", Manifest: res.Manifest}
	if _, err := dst.Submit(t.Context(), imp); err != nil {
		t.Fatal(err)
	}
	for reserved := false; !reserved; {
		freeBlocks(t, dst)
		w.mu.Lock()
		reserved = len(w.held) == 1
		w.mu.Unlock()
	}
	resetFails(t, dst, `import "b" may still be written`)
	both := []*engine.Rank{src, dst}
	var waiting []<-chan front.Event
	for _, r := range both {
		ev, err := r.Submit(t.Context(), front.Request{Mode: front.Reset})
		if err != nil {
			t.Fatal(err)
		}
		waiting = append(waiting, ev)
		if _, _, err := ask(t, r, front.Request{Tokens: tokens, MaxNew: 1, Mode: front.Full}); !errors.Is(err, handoff.ErrDraining) {
			t.Errorf("a request beside a reset: %v", err)
		}
		if _, _, err := ask(t, r, front.Request{Mode: front.Reset}); !errors.Is(err, front.ErrBusy) {
			t.Errorf("a second reset: %v", err)
		}
		tells(t, r, "handoff.draining")
		if len(ev) > 0 {
			t.Error("it did not wait")
		}
	}
	w.admitWhen("decode", 1) // which frees the source
	for i, ev := range waiting {
		if _, res, err := drainResult(ev); err != nil || res.Pool.FreeBlocks != 24 || res.Pool.FreeSlots != 4 {
			t.Errorf("%d: %+v %v", i, res, err)
		}
		tells(t, both[i], "")
	}
	if got, _ := handOff(t, src, dst, "c", tokens); !slices.Equal(got, reference(t, config(m, "x", 1), tokens, newTokens)) {
		t.Errorf("after the resets: %v", got)
	}
}

// Engines refuse what is the other role's; whole requests run in each.
func TestRoles(t *testing.T) {
	m := model.Attention(1)
	w := newWorld(t)
	full := front.Request{Tokens: prompt(20, 0, 1), MaxNew: 4, Mode: front.Full}
	want := reference(t, config(m, "x", 1), full.Tokens, 4)
	man := &handoff.Manifest{ID: handoff.ID{Group: "x", N: 1}, Label: "a"}
	refused := map[engine.Role][]front.Request{
		engine.RolePrefill: {{Tokens: full.Tokens, MaxNew: 4, Mode: front.Import, Label: "a", Manifest: man}, {MaxNew: 4, Mode: front.Adopt, Label: "a"}},
		engine.RoleDecode:  {{Tokens: full.Tokens, MaxNew: 4, Mode: front.Export, Label: "a"}},
	}
	for _, role := range []engine.Role{engine.RolePrefill, engine.RoleDecode, engine.RoleBoth} {
		cfg := config(m, string(role), 1)
		cfg.Role = role
		r := launch(t, w, cfg)[0]
		if _, res, err := ask(t, r, front.Request{Mode: front.Tell}); err != nil || res.Reason != string(role) || res.Closed != "" {
			t.Errorf("%s tells %+v %v", role, res, err)
		}
		for _, req := range refused[role] {
			if _, _, err := ask(t, r, req); !errors.Is(err, handoff.ErrRole) {
				t.Errorf("%s: mode %s: %v", role, req.Mode, err)
			}
		}
		if got, _, err := ask(t, r, full); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %v %v", role, got, err)
		}
	}
}

// A hand-off needs the prefix cache on both sides: without it there is no role, and no sidecar.
func TestNoPrefixCache(t *testing.T) {
	cfg := config(model.Attention(1), "g", 1)
	cfg.NoPrefixCache = true
	for _, role := range []engine.Role{engine.RolePrefill, engine.RoleDecode} {
		c := cfg
		c.Role = role
		if _, err := engine.New(c); !errors.Is(err, engine.ErrConfig) || !strings.Contains(err.Error(), "--prefix-cache") {
			t.Errorf("%s: %v", role, err)
		}
	}
	r := launch(t, nil, cfg)[0]
	for range 2 {
		_, res, err := ask(t, r, front.Request{Tokens: prompt(60, 0, 1), MaxNew: 1, Mode: front.Full})
		if err != nil || res.Cached != 0 || res.Forwarded != 60 {
			t.Errorf("%+v %v", res, err)
		}
	}
	if _, _, err := ask(t, r, front.Request{Mode: front.Switch, Role: "decode"}); !errors.Is(err, engine.ErrConfig) {
		t.Errorf("a switch: %v", err)
	}
}

// Two groups change their roles while they live, and hand over the other way round.
func TestSwitch(t *testing.T) {
	m := model.Hybrid(1)
	w := newWorld(t)
	one, two := config(m, "one", 2), config(m, "two", 1)
	one.Role, two.Role = engine.RolePrefill, engine.RoleDecode
	a, b := launch(t, w, one)[0], launch(t, w, two)[0]
	tokens := prompt(40, 0, 1)
	want := reference(t, config(m, "x", 1), tokens, newTokens)
	for round := range 3 {
		src, dst, roles := a, b, []string{"decode", "prefill"}
		if round%2 == 1 {
			src, dst, roles = b, a, []string{"prefill", "decode"}
		}
		if got, _ := handOff(t, src, dst, fmt.Sprint("r", round), tokens); !slices.Equal(got, want) {
			t.Errorf("round %d: %v, want %v", round, got, want)
		}
		// What is held is waited for.
		_, res, err := ask(t, src, front.Request{Tokens: tokens, MaxNew: newTokens, Mode: front.Export, Label: "held"})
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := ask(t, src, front.Request{Mode: front.Switch, Role: roles[0], DeadlineMS: 1}); !errors.Is(err, engine.ErrTouched) {
			t.Errorf("a switch beside an export: %v", err)
		}
		bring(t, dst, front.Request{Tokens: tokens, MaxNew: newTokens}, "held", res.Manifest)
		for i, r := range []*engine.Rank{a, b} {
			before := r.Attach().Instance
			if _, res, err := ask(t, r, front.Request{Mode: front.Switch, Role: roles[i]}); err != nil || res.Reason != roles[i] {
				t.Fatalf("round %d: switch %d: %+v %v", round, i, res, err)
			}
			if _, res, err := ask(t, r, front.Request{Mode: front.Tell}); err != nil {
				t.Errorf("round %d: it tells %+v %v", round, res, err)
			}
			if freeBlocks(t, r); r.Role() != engine.Role(roles[i]) {
				t.Errorf("round %d: role %s, want %s", round, r.Role(), roles[i])
			}
			if r.Attach().Instance == before {
				t.Error("the launch is the same")
			}
		}
	}
}
