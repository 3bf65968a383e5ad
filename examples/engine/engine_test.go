package engine_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/batonkv/baton/examples/engine"
	"github.com/batonkv/baton/examples/engine/front"
	"github.com/batonkv/baton/examples/engine/model"
	"github.com/batonkv/baton/sidecar/handoff"
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

// lengths are one token, around a block of 16, several blocks. The race detector makes
// arithmetic slow: -short leaves most out.
func lengths() []int {
	if testing.Short() {
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
			if testing.Short() && pair != [2]int{2, 1} {
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
			if testing.Short() && size == 1 {
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

// TestCorruptShows: each damage makes the tokens differ.
func TestCorruptShows(t *testing.T) {
	for _, m := range []model.Config{model.Hybrid(1), model.Attention(1)} {
		for _, c := range []engine.Corrupt{engine.CorruptKV, engine.CorruptState, engine.CorruptHeadSwap, engine.CorruptOneBlock, engine.CorruptPosition} {
			if c == engine.CorruptState && m.SSMLayers() == 0 {
				continue
			}
			for _, pair := range [][2]int{{2, 1}, {1, 2}} {
				if testing.Short() {
					continue
				}
				t.Run(fmt.Sprintf("%s/%s/tp%d to tp%d", m.Pattern, c, pair[0], pair[1]), func(t *testing.T) {
					w := newWorld(t)
					src := launch(t, w, config(m, "prefill", pair[0]))[0]
					bad := config(m, "decode", pair[1])
					bad.Corrupt = c
					dst := launch(t, w, bad)[0]
					for _, n := range lengths() {
						tokens := prompt(n, 0, n)
						want := reference(t, bad, tokens, newTokens)
						if got, _ := handOff(t, src, dst, fmt.Sprint(n), tokens); slices.Equal(got, want) {
							t.Errorf("%d tokens: the damage does not show", n)
						}
					}
				})
			}
		}
	}
}

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
	type out struct {
		got []int32
		err error
	}
	outs := make([]chan out, 4)
	for i := range outs {
		tokens := prompt(50, 0, i)
		label := fmt.Sprint(i)
		_, res, err := ask(t, src, front.Request{Tokens: tokens, MaxNew: 16, Mode: front.Export, Label: label})
		if err != nil {
			t.Fatal(err)
		}
		outs[i] = make(chan out, 1)
		go func() {
			got, _, err := ask(t, dst, front.Request{Tokens: tokens, MaxNew: 16, Mode: front.Import, Label: label, Manifest: res.Manifest})
			outs[i] <- out{got, err}
		}()
	}
	for i, ch := range outs {
		o := <-ch
		if want := reference(t, small, prompt(50, 0, i), 16); o.err != nil || !slices.Equal(o.got, want) {
			t.Errorf("%d: %v %v, want %v", i, o.err, o.got, want)
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
// each other for ever: some finish, the others are refused, none is wrong.
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
	for i := range 3 { // each has two blocks, and wants four
		label, tokens := fmt.Sprint(i), prompt(30, 0, i)
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
	served := 0
	for i, ch := range events {
		var got []int32
		for ev := range ch {
			if ev.Err != nil {
				if !errors.Is(ev.Err, engine.ErrCapacity) {
					t.Error(ev.Err)
				}
				break
			}
			if ev.Result != nil {
				served++
				if want := reference(t, small, prompt(30, 0, i), newTokens); !slices.Equal(got, want) {
					t.Errorf("%d: %v, want %v", i, got, want)
				}
				break
			}
			got = append(got, ev.Token)
		}
	}
	if served == 0 {
		t.Error("nobody finished")
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
	if _, _, err := ask(t, r, front.Request{Mode: front.Full, MaxNew: 1, Tokens: prompt(1000, 0, 0)}); !errors.Is(err, engine.ErrCapacity) {
		t.Errorf("too long: %v", err)
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
		state := int64(2*4*(128+64+64)/size*4*4 + 2*4*(8/size)*16*16*4)
		if len(a.Buffers) != 2 || a.Buffers[0].Len != kv || a.Buffers[1].Len != state {
			t.Errorf("tp%d: %+v, want %d and %d", size, a.Buffers, kv, state)
		}
		_ = r.Close()
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
		if ev := <-waiting; !errors.Is(ev.Err, engine.ErrSidecar) {
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
