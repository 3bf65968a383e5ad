package engine_test

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/batonkv/baton/examples/engine"
	"github.com/batonkv/baton/examples/engine/front"
	"github.com/batonkv/baton/examples/engine/model"
)

// TestSkewedRanks: ranks receive decisions at different times, and apply them in the same
// step all the same. What each has applied and computes in a step is what the others have.
func TestSkewedRanks(t *testing.T) {
	for seed := range uint64(3) {
		m := model.Hybrid(1)
		w, log := newWorld(t), newStepLog()
		w.skew = rand.New(rand.NewPCG(seed, 1))
		src := launch(t, w, config(m, "prefill", 1))[0]
		cfg := config(m, "decode", 4)
		cfg.Log = slog.New(log)
		dst := launch(t, w, cfg)[0]
		var events []<-chan front.Event
		var prompts [][]int32
		submit := func(r *engine.Rank, req front.Request) {
			ev, err := r.Submit(t.Context(), req)
			if err != nil {
				t.Fatal(err)
			}
			events, prompts = append(events, ev), append(prompts, req.Tokens)
		}
		for i := range 4 {
			label, tokens := fmt.Sprint(i), prompt(20+9*i, 0, i)
			_, res, err := ask(t, src, front.Request{Tokens: tokens, MaxNew: newTokens, Mode: front.Export, Label: label})
			if err != nil {
				t.Fatal(err)
			}
			submit(dst, front.Request{Tokens: tokens, MaxNew: newTokens, Mode: front.Import, Label: label, Manifest: res.Manifest})
			submit(dst, front.Request{Tokens: prompt(30, 0, 10+i), MaxNew: newTokens, Mode: front.Full})
		}
		for i, ev := range events {
			got, err := drain(ev)
			if want := reference(t, cfg, prompts[i], newTokens); err != nil || !slices.Equal(got, want) {
				t.Errorf("request %d: %v %v, want %v", i, got, err, want)
			}
		}
		freeBlocks(t, dst)
		first := log.of(0)
		for rank := int64(1); rank < 4; rank++ {
			steps := log.of(rank)
			n := min(len(first), len(steps)) // the last ones may be under way
			if n < newTokens || !slices.Equal(first[:n], steps[:n]) {
				t.Errorf("seed %d: rank %d did other things in its %d steps than rank 0", seed, rank, n)
			}
		}
		w.mu.Lock()
		if w.skewed == 0 || len(w.errs) > 0 {
			t.Errorf("seed %d: %d times a rank held other decisions than rank 0: %v", seed, w.skewed, w.errs)
		}
		w.mu.Unlock()
	}
}
