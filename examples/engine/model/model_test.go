package model_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/batonkv/baton/examples/engine/model"
	"github.com/batonkv/baton/examples/engine/tp"
)

var sizes = model.Sizes{Blocks: 16, Slots: 3, BlockTokens: 16}

// table is out of order on purpose.
var seq = model.Seq{Blocks: []int32{9, 2, 14, 0, 5, 11, 3, 7, 1, 8, 6}, Slot: 1}

const prose = "A sidecar runs beside each GPU of an inference engine and carries its state."

func models(seed uint64) []model.Config {
	return []model.Config{model.Hybrid(seed), model.Attention(seed)}
}

// TestLayoutsAgree holds logits of TP1, TP2 and TP4 to equal bits, at once and in chunks.
func TestLayoutsAgree(t *testing.T) {
	prompt := text(prose)
	for _, cfg := range models(1) {
		var want []float32
		for _, size := range []int{1, 2, 4} {
			for _, chunk := range []int{len(prompt), 7} {
				t.Run(fmt.Sprintf("%s/tp%d/chunk%d", cfg.Pattern, size, chunk), func(t *testing.T) {
					ranks := newRanks(t, cfg, sizes, tp.Pipes(size))
					got := generate(t, ranks, seq, prompt, 12, chunk, nil)
					logits := forward(t, ranks, seq, got[11:], int32(len(prompt)+11))
					if want == nil {
						want = logits
					}
					if !slices.Equal(logits, want) {
						t.Fatalf("logits differ from TP1 at once")
					}
				})
			}
		}
	}
}

// TestTokensVary: a greedy sequence is not one token over and over, and two prompts differ.
func TestTokensVary(t *testing.T) {
	seeds := uint64(6)
	if raceDetector || testing.Short() {
		seeds = 1
	}
	for seed := range seeds {
		for _, cfg := range models(seed) {
			ranks := newRanks(t, cfg, sizes, tp.Pipes(1))
			a := generate(t, ranks, seq, text(prose), 32, 64, nil)
			b := generate(t, ranks, seq, text(prose+"!"), 32, 64, nil)
			kinds := slices.Compact(slices.Sorted(slices.Values(a)))
			t.Logf("%s: %d distinct %v", cfg.Name, len(kinds), a)
			if len(kinds) < 4 || slices.Equal(a, b) {
				t.Errorf("%s: %d distinct tokens in %v; another prompt: %v", cfg.Name, len(kinds), a, b)
			}
		}
	}
}

// TestTokensHangOnState: each kind of damage shows within 32 tokens.
func TestTokensHangOnState(t *testing.T) {
	damage := map[string]func(m *model.Memory, tokens int32){
		"kv":        func(m *model.Memory, n int32) { m.ScrambleRows(seq.Blocks, n) },
		"one-block": func(m *model.Memory, n int32) { m.ScrambleRows(seq.Blocks[:1], n) },
		"head-swap": func(m *model.Memory, n int32) { m.SwapHeads(seq.Blocks, n) },
		"state":     func(m *model.Memory, _ int32) { m.ScrambleSlot(seq.Slot) },
	}
	seeds := uint64(4)
	if raceDetector || testing.Short() {
		seeds = 1
	}
	for seed := range seeds {
		for _, cfg := range models(seed) {
			for _, prompt := range [][]int32{text(""), text("fifteen bytes"), text(prose)} {
				for name, do := range damage {
					if name == "state" && cfg.SSMLayers() == 0 {
						continue
					}
					ranks := newRanks(t, cfg, sizes, tp.Pipes(1))
					want := generate(t, ranks, seq, prompt, 32, 64, nil)
					got := generate(t, ranks, seq, prompt, 32, 64, func() { do(ranks[0].mem, int32(len(prompt))) })
					if slices.Equal(got, want) {
						t.Errorf("%s: %d tokens, %s: same tokens", cfg.Name, len(prompt), name)
					}
				}
			}
		}
	}
}

func TestPoisonShows(t *testing.T) {
	cfg := model.Attention(1)
	ranks := newRanks(t, cfg, sizes, tp.Pipes(1))
	if _, err := ranks[0].run.Forward(seq, []int32{1}, 1); !errors.Is(err, model.ErrState) {
		t.Fatalf("row 0 was never written: %v", err)
	}
	cfg = model.Hybrid(1)
	ranks = newRanks(t, cfg, sizes, tp.Pipes(1))
	if _, err := ranks[0].run.Forward(seq, []int32{1}, 0); !errors.Is(err, model.ErrState) {
		t.Fatalf("the slot was never written: %v", err)
	}
	generate(t, ranks, seq, text(prose), 1, 64, nil)
	ranks[0].mem.PoisonBlock(seq.Blocks[1])
	if _, err := ranks[0].run.Forward(seq, []int32{1}, 77); !errors.Is(err, model.ErrState) {
		t.Fatalf("a block is poisoned: %v", err)
	}
}

func TestForwardRefuses(t *testing.T) {
	r := newRanks(t, model.Hybrid(1), sizes, tp.Pipes(1))[0].run
	for name, do := range map[string]func() error{
		"no tokens":    func() error { _, err := r.Forward(seq, nil, 0); return err },
		"token":        func() error { _, err := r.Forward(seq, []int32{model.Vocab}, 0); return err },
		"negative":     func() error { _, err := r.Forward(seq, []int32{-1}, 0); return err },
		"past blocks":  func() error { _, err := r.Forward(seq, []int32{1}, 11*16); return err },
		"position":     func() error { _, err := r.Forward(seq, []int32{1}, -1); return err },
		"block number": func() error { _, err := r.Forward(model.Seq{Blocks: []int32{99}}, []int32{1}, 0); return err },
		"slot":         func() error { _, err := r.Forward(model.Seq{Blocks: []int32{1}, Slot: 3}, []int32{1}, 0); return err },
	} {
		if err := do(); !errors.Is(err, model.ErrConfig) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestCutRefuses(t *testing.T) {
	for _, size := range []int{0, 3, 8} {
		if _, err := model.New(model.Hybrid(1), 0, size); !errors.Is(err, model.ErrConfig) {
			t.Errorf("tp %d: %v", size, err)
		}
	}
	if _, err := model.ByName("dense", 1); !errors.Is(err, model.ErrConfig) {
		t.Error(err)
	}
}

func TestConvBF16(t *testing.T) {
	s := sizes
	s.ConvBF16 = true
	cfg, prompt := model.Hybrid(2), text(prose)
	a := generate(t, newRanks(t, cfg, s, tp.Pipes(1)), seq, prompt, 16, 64, nil)
	b := generate(t, newRanks(t, cfg, s, tp.Pipes(4)), seq, prompt, 16, 5, nil)
	if !slices.Equal(a, b) {
		t.Fatalf("%v\n%v", a, b)
	}
}

func BenchmarkPrompt100New32(b *testing.B) {
	for _, cfg := range models(1) {
		b.Run(cfg.Pattern, func(b *testing.B) {
			ranks := newRanks(b, cfg, sizes, tp.Pipes(1))
			prompt := text(prose + prose)[:100]
			for b.Loop() {
				generate(b, ranks, seq, prompt, 32, 100, nil)
			}
		})
	}
}
