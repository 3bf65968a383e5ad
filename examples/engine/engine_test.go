package engine_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/batonkv/baton/examples/engine"
	"github.com/batonkv/baton/examples/engine/front"
	"github.com/batonkv/baton/examples/engine/model"
	"github.com/batonkv/baton/sidecar/handoff"
	"github.com/batonkv/baton/transfer/layout"
)

const newTokens = 32

func config(m model.Config, group string, size int) engine.Config {
	return engine.Config{Model: m, Group: group, Instance: 7, TP: size, Blocks: 24, Slots: 4, BlockTokens: 16, Poison: true}
}

// prompt is BOS and n-1 bytes that depend on seed from byte keep on.
func prompt(n, keep, seed int) []int32 {
	p := []int32{model.BOS}
	for i := 1; i < n; i++ {
		v := i * 37
		if i >= keep {
			v += seed * 91 * (i + 3)
		}
		p = append(p, int32(v%251))
	}
	return p[:n]
}

// short leaves most of the arithmetic out: the race detector makes it slow and learns
// nothing from more of it.
func short() bool { return testing.Short() || raceDetector }

// lengths are one token, around a block of 16, several blocks.
func lengths() []int {
	if short() {
		return []int{17}
	}
	return []int{1, 15, 16, 17, 70}
}

func reference(t testing.TB, cfg engine.Config, tokens []int32, n int) []int32 {
	want, err := engine.Reference(t.Context(), cfg, tokens, n)
	if err != nil {
		t.Fatal(err)
	}
	return want
}

func handOff(t testing.TB, src, dst *engine.Rank, label string, tokens []int32) ([]int32, front.Result) {
	_, res, err := ask(t, src, front.Request{Tokens: tokens, MaxNew: newTokens, Mode: front.Export, Label: label})
	if err != nil || res.Manifest == nil {
		t.Fatalf("export %s: %+v %v", label, res, err)
	}
	got, out, err := ask(t, dst, front.Request{Tokens: tokens, MaxNew: newTokens, Mode: front.Import, Label: label, Manifest: res.Manifest})
	if err != nil {
		t.Fatalf("import %s: %v", label, err)
	}
	return got, out
}

// TestHandOff is the test of truth: tokens after a hand-off equal those of one engine
// doing both, for every pair of layouts.
func TestHandOff(t *testing.T) {
	for _, m := range []model.Config{model.Hybrid(1), model.Attention(1)} {
		for _, pair := range [][2]int{{1, 1}, {2, 1}, {1, 2}, {4, 2}, {2, 4}} {
			if short() && pair != [2]int{2, 1} {
				continue
			}
			t.Run(fmt.Sprintf("%s/tp%d to tp%d", m.Pattern, pair[0], pair[1]), func(t *testing.T) {
				w := newWorld(t)
				src := launch(t, w, config(m, "prefill", pair[0]))[0]
				dst := launch(t, w, config(m, "decode", pair[1]))[0]
				for _, n := range lengths() {
					tokens := prompt(n, 0, n)
					want := reference(t, config(m, "x", 1), tokens, newTokens)
					got, res := handOff(t, src, dst, fmt.Sprint("r", n), tokens)
					if !slices.Equal(got, want) {
						t.Errorf("%d tokens: got %v, want %v", n, got, want)
					}
					if res.Forwarded != 0 || res.Reason == "" {
						t.Errorf("%d tokens: %+v", n, res)
					}
				}
				shared := prompt(70, 64, 3)
				first := prompt(70, 64, 4)
				handOff(t, src, dst, "first", first)
				got, res := handOff(t, src, dst, "second", shared)
				if want := reference(t, config(m, "x", 1), shared, newTokens); !slices.Equal(got, want) || res.Cached != 64 {
					t.Errorf("shared prefix: %+v %v, want %v", res, got, want)
				}
				if w.mu.Lock(); len(w.errs) > 0 {
					t.Error(w.errs)
				}
				w.mu.Unlock()
			})
		}
	}
}

func TestAdoptBothOrders(t *testing.T) {
	m := model.Hybrid(2)
	w := newWorld(t)
	src := launch(t, w, config(m, "prefill", 2))[0]
	dst := launch(t, w, config(m, "decode", 1))[0]
	tokens := prompt(40, 0, 1)
	want := reference(t, config(m, "x", 1), tokens, newTokens)
	for _, early := range []bool{true, false} {
		label := fmt.Sprint("early ", early)
		_, res, err := ask(t, src, front.Request{Tokens: tokens, MaxNew: newTokens, Mode: front.Export, Label: label})
		if err != nil {
			t.Fatal(err)
		}
		bring := func() {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.reserve(w.groups["decode"], &pull{imp: handoff.Import{Label: label, Manifest: *res.Manifest, Tokens: tokens}})
		}
		req := front.Request{MaxNew: newTokens, Mode: front.Adopt, Label: label}
		if !early {
			bring()
		}
		events, err := dst.Submit(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		if early {
			bring()
		}
		var got []int32
		for ev := range events {
			if ev.Err != nil {
				t.Fatal(ev.Err)
			}
			if ev.Result != nil {
				break
			}
			got = append(got, ev.Token)
		}
		if !slices.Equal(got, want) {
			t.Errorf("early %v: %v, want %v", early, got, want)
		}
	}
}

func TestFull(t *testing.T) {
	for _, m := range []model.Config{model.Hybrid(3), model.Attention(3)} {
		for _, size := range []int{1, 4} {
			if short() && size == 1 {
				continue
			}
			r := launch(t, nil, config(m, "g", size))[0]
			// More than fits at once: they queue, and all are right.
			var events []<-chan front.Event
			for i := range 10 {
				ev, err := r.Submit(t.Context(), front.Request{Tokens: prompt(60, 32, i), MaxNew: 20, Mode: front.Full})
				if err != nil {
					t.Fatal(err)
				}
				events = append(events, ev)
			}
			for i, ch := range events {
				var got []int32
				var res *front.Result
				for ev := range ch {
					if ev.Err != nil {
						t.Fatalf("%s tp%d request %d: %v", m.Pattern, size, i, ev.Err)
					}
					if res = ev.Result; res != nil {
						break
					}
					got = append(got, ev.Token)
				}
				if want := reference(t, config(m, "x", 1), prompt(60, 32, i), 20); !slices.Equal(got, want) {
					t.Errorf("%s tp%d request %d: %v, want %v", m.Pattern, size, i, got, want)
				}
				if res.Forwarded+res.Cached != 60 {
					t.Errorf("request %d: %+v", i, res)
				}
			}
			_, res, err := ask(t, r, front.Request{Tokens: prompt(60, 32, 7), MaxNew: 1, Mode: front.Full})
			want := int32(48)
			if m.SSMLayers() > 0 {
				want = 0 // no snapshot of the state: it is computed again
			}
			if err != nil || res.Cached != want {
				t.Errorf("%s: again: %+v %v", m.Pattern, res, err)
			}
		}
	}
}

// has reports whether a rank of tp has what c damages.
func has(m model.Config, c engine.Corrupt, tp int) bool {
	switch c {
	case engine.CorruptState:
		return m.SSMLayers() > 0
	case engine.CorruptHeadSwap:
		return m.AttentionLayers() > 0 && m.KVHeads >= 2*tp
	}
	return true
}

// TestCorruptShows: each damage makes the tokens differ.
func TestCorruptShows(t *testing.T) {
	both := [][2]int{{2, 1}, {1, 2}}
	for _, of := range []struct {
		m     model.Config
		pairs [][2]int
	}{{model.Hybrid(1), both}, {model.Attention(1), both}, {model.GQA(1), both[:1]}, {model.MLA(1), both[:1]}, {model.SWA(1), both[:1]}} {
		for _, c := range []engine.Corrupt{engine.CorruptKV, engine.CorruptState, engine.CorruptHeadSwap, engine.CorruptOneBlock, engine.CorruptPosition} {
			for _, pair := range of.pairs {
				m := of.m
				if short() || !has(m, c, pair[1]) {
					continue
				}
				t.Run(fmt.Sprintf("%s/%s/tp%d to tp%d", m.Name, c, pair[0], pair[1]), func(t *testing.T) {
					damageShows(t, config(m, "prefill", pair[0]), config(m, "decode", pair[1]), c)
				})
			}
		}
	}
}

// damageShows: a hand-off to an engine that damages what it imports gives other tokens than
// one engine, whatever the prompt's length.
func damageShows(t *testing.T, from, to engine.Config, c engine.Corrupt) {
	t.Helper()
	w := newWorld(t)
	to.Corrupt = c
	src, dst := launch(t, w, from)[0], launch(t, w, to)[0]
	for _, n := range lengths() {
		tokens := prompt(n, 0, n)
		want := reference(t, to, tokens, newTokens)
		if got, _ := handOff(t, src, dst, fmt.Sprint(n), tokens); slices.Equal(got, want) {
			t.Errorf("%s, %s, %d tokens: the damage does not show", from.Model.Name, c, n)
		}
	}
}

func TestRefusals(t *testing.T) {
	good := config(model.Hybrid(1), "g", 1)
	for name, change := range map[string]func(*engine.Config){
		"tp 3":             func(c *engine.Config) { c.TP = 3 },
		"rank":             func(c *engine.Config) { c.Rank = 1 },
		"blocks":           func(c *engine.Config) { c.Blocks = 0 },
		"slots":            func(c *engine.Config) { c.Slots = 0 },
		"instance":         func(c *engine.Config) { c.Instance = 0 },
		"group":            func(c *engine.Config) { c.Group = "" },
		"corrupt":          func(c *engine.Config) { c.Corrupt = "all" },
		"no state":         func(c *engine.Config) { c.Model, c.Corrupt = model.Attention(1), engine.CorruptState },
		"one head, tp 4":   func(c *engine.Config) { c.TP, c.Corrupt = 4, engine.CorruptHeadSwap },
		"shared head":      func(c *engine.Config) { c.Model, c.TP, c.Corrupt = model.GQA(1), 2, engine.CorruptHeadSwap },
		"no heads":         func(c *engine.Config) { c.Model, c.Corrupt = model.MLA(1), engine.CorruptHeadSwap },
		"KV of bytes":      func(c *engine.Config) { c.Types.KV = layout.U8 },
		"state of halves":  func(c *engine.Config) { c.Types.SSM = layout.F16 },
		"negative maximum": func(c *engine.Config) { c.MaxQueue = -1 },
	} {
		c := good
		change(&c)
		if _, err := engine.New(c); !errors.Is(err, engine.ErrConfig) {
			t.Errorf("%s: %v", name, err)
		}
	}
	r := launch(t, nil, good)[0]
	for _, req := range []front.Request{{}, {Mode: front.Full, MaxNew: 1}, {Mode: front.Full, MaxNew: 1, Tokens: []int32{999}}, {Mode: front.Adopt, MaxNew: 1}} {
		if _, _, err := ask(t, r, req); !errors.Is(err, front.ErrRequest) {
			t.Errorf("%+v: %v", req, err)
		}
	}
	if _, _, err := ask(t, r, front.Request{Mode: front.Adopt, MaxNew: 1, Label: "a"}); !errors.Is(err, engine.ErrSidecar) {
		t.Errorf("adopt without a sidecar: %v", err)
	}
	if _, _, err := ask(t, r, front.Request{Mode: front.Full, MaxNew: 1, Tokens: prompt(1000, 0, 0)}); !errors.Is(err, engine.ErrCapacity) || !errors.Is(err, handoff.ErrCapacity) {
		t.Errorf("too long: %v", err)
	}
	room := good.Blocks * good.BlockTokens
	for _, c := range []struct {
		req  front.Request
		fits bool
	}{
		{front.Request{Mode: front.Full, MaxNew: 2, Tokens: prompt(int(room), 0, 0)}, false},
		{front.Request{Mode: front.Import, MaxNew: 2, Tokens: prompt(int(room), 0, 0), Label: "a", Manifest: &handoff.Manifest{Label: "a"}}, false},
		{front.Request{Mode: front.Export, MaxNew: 9, Tokens: prompt(int(room)+1, 0, 0), Label: "a"}, false},
		{front.Request{Mode: front.Export, MaxNew: 9, Tokens: prompt(int(room), 0, 0), Label: "a"}, true},
		{front.Request{Mode: front.Full, MaxNew: 1, Tokens: prompt(int(room), 0, 0)}, true},
	} {
		_, err := r.Submit(t.Context(), c.req) // it refuses before anything runs
		if c.fits && err != nil || !c.fits && !(errors.Is(err, front.ErrRequest) && errors.Is(err, handoff.ErrCapacity)) {
			t.Errorf("mode %s, %d tokens: %v", c.req.Mode, len(c.req.Tokens), err)
		}
	}
}

func TestMemoryIsTheShard(t *testing.T) {
	for _, size := range []int{1, 2, 4} {
		c := config(model.Hybrid(1), "g", size)
		r, err := engine.New(c)
		if err != nil {
			t.Fatal(err)
		}
		a := r.Attach()
		kv := int64(2 * 2 * 24 * 16 * (4 / size) * 16 * 2)
		conv, ssm := int64(2*4*(128+64+64)/size*4*4), int64(2*4*(8/size)*16*16*4)
		if len(a.Buffers) != 3 || a.Buffers[0].Len != kv || a.Buffers[1].Len != conv || a.Buffers[2].Len != ssm {
			t.Errorf("tp%d: %+v, want %d, %d and %d", size, a.Buffers, kv, conv, ssm)
		}
		_ = r.Close()
	}
}
