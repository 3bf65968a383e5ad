package model_test

import (
	"errors"
	"runtime"
	"slices"
	"testing"

	"github.com/batonkv/baton/examples/engine/model"
	"github.com/batonkv/baton/examples/engine/tp"
	"github.com/batonkv/baton/internal/need"
	"github.com/batonkv/baton/transfer/layout"
)

var sizes = model.Sizes{Blocks: 18, Slots: 3, BlockTokens: 16}

// table is out of order on purpose.
var seq = model.Seq{Blocks: []int32{9, 2, 14, 0, 5, 11, 3, 7, 1, 8, 6}, Slot: 1}

const prose = "A sidecar runs beside each GPU of an inference engine and carries its state."

func models(seed uint64) []model.Config {
	return []model.Config{model.Hybrid(seed), model.Attention(seed), model.GQA(seed), model.MLA(seed), model.SWA(seed), model.MTP(seed),
		model.MoE(seed), model.HybridMoE(seed)}
}

// TestTokensVary: a greedy sequence is not one token over and over, and two prompts differ.
func TestTokensVary(t *testing.T) {
	seeds := uint64(3)
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
	seeds := uint64(2)
	if raceDetector || testing.Short() {
		seeds = 1
	}
	for seed := range seeds {
		for _, cfg := range models(seed) {
			for _, prompt := range [][]int32{text(""), text("fifteen bytes"), text(prose)} {
				for name, do := range damage {
					if name == "state" && cfg.SSMLayers() == 0 || name == "head-swap" && cfg.AttentionLayers() == 0 {
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
	for _, size := range []int{-1, 3, 8} {
		if _, err := model.New(model.Hybrid(1), 0, model.Split{TP: size}); !errors.Is(err, model.ErrConfig) {
			t.Errorf("tp %d: %v", size, err)
		}
	}
	three := model.GQA(1)
	three.KVHeads, three.QueryHeads, three.QueryUnits = 3, 12, 12
	if _, err := three.Cut(0, model.Split{TP: 2}); !errors.Is(err, model.ErrConfig) {
		t.Errorf("3 KV heads on 2 ranks: %v", err)
	}
	for _, change := range []func(*model.Config){
		func(c *model.Config) { c.Pattern = "*?" }, func(c *model.Config) { c.QueryUnits = 3 }, func(c *model.Config) { c.SSMUnits = 2 },
		func(c *model.Config) { c.Pattern, c.LatentDim = "L", 0 }, func(c *model.Config) { c.Pattern, c.Sliding = "W", 0 },
		func(c *model.Config) { c.Feeds = "-E-E" }, func(c *model.Config) { *c = model.MoE(1); c.Feeds = "EE" },
		func(c *model.Config) { *c = model.MoE(1); c.Feeds = "EEEM" }, func(c *model.Config) { *c = model.MoE(1); c.TopK = 9 },
		func(c *model.Config) { *c = model.MoE(1); c.ExpertGroups = 0 },
	} {
		c := model.Hybrid(1)
		if change(&c); c.Check() == nil {
			t.Errorf("%+v is taken", c)
		}
	}
	if _, err := model.ByName("dense", 1); !errors.Is(err, model.ErrConfig) {
		t.Error(err)
	}
}

// TestTokensStand: a model of a name and a seed says what it has always said.
func TestTokensStand(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		need.Skip(t, "amd64", "another architecture may fuse multiplications with additions")
	}
	for _, c := range []struct {
		cfg  model.Config
		want []int32
	}{
		{model.Hybrid(1), []int32{230, 182, 78, 160, 102, 179, 60, 52, 18, 196, 133, 87, 252, 32, 160, 102, 255, 68, 157, 171, 253, 182, 149, 52}},
		{model.Hybrid(7), []int32{202, 119, 27, 81, 56, 154, 170, 187, 59, 210, 184, 88, 148, 237, 151, 129, 25, 79, 14, 236, 4, 243, 202, 82}},
		{model.GQA(1), []int32{24, 110, 32, 225, 169, 37, 193, 247, 32, 193, 247, 32, 193, 171, 87, 162, 172, 22, 220, 224, 78, 247, 173, 166}},
		{model.MLA(1), []int32{142, 250, 24, 160, 106, 250, 131, 30, 24, 160, 151, 69, 59, 234, 223, 59, 67, 30, 0, 257, 69, 174, 150, 202}},
		{model.SWA(1), []int32{133, 12, 12, 12, 12, 12, 12, 119, 80, 66, 255, 255, 73, 19, 215, 215, 215, 215, 215, 215, 215, 215, 215, 215}},
		{model.MoE(1), []int32{24, 82, 24, 82, 24, 119, 24, 82, 24, 82, 24, 41, 66, 190, 63, 80, 254, 184, 150, 66, 41, 31, 119, 98}},
		{model.HybridMoE(1), []int32{238, 193, 169, 205, 234, 220, 210, 160, 158, 42, 220, 250, 149, 62, 120, 39, 199, 227, 169, 149, 77, 157, 171, 171}},
		{model.Attention(1), []int32{150, 158, 60, 227, 250, 132, 117, 24, 181, 255, 181, 255, 125, 39, 252, 255, 181, 255, 138, 214, 150, 158, 82, 24}},
	} {
		if got := generate(t, newRanks(t, c.cfg, sizes, tp.Pipes(1)), seq, text(prose), 24, 64, nil); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", c.cfg.Name, got, c.want)
		}
	}
}

// TestTypes: every type of state is computed alike by all layouts, and is not another's.
func TestTypes(t *testing.T) {
	types := []model.Types{{}, {KV: layout.F16, Conv: layout.BF16}, {KV: layout.F32, SSM: layout.BF16}}
	prompt := text(prose)
	for _, cfg := range models(2) {
		var all [][]float32
		for _, s := range types {
			sizes := sizes
			sizes.Types = s
			var want []float32
			for _, size := range []int{1, 4} {
				ranks := newRanks(t, cfg, sizes, tp.Pipes(size))
				got := generate(t, ranks, seq, prompt, 4, 64/size, nil)
				logits := forward(t, ranks, seq, got[3:], int32(len(prompt)+3))
				if want == nil {
					want = logits
				}
				if !slices.Equal(logits, want) {
					t.Errorf("%s, %v, tp %d: logits differ from TP1", cfg.Name, s, size)
				}
			}
			if slices.ContainsFunc(all, func(o []float32) bool { return slices.Equal(o, want) }) {
				t.Errorf("%s, %v: logits equal those of other types", cfg.Name, s)
			}
			all = append(all, want)
		}
	}
	for _, bad := range []model.Types{{KV: layout.U8}, {Conv: layout.F16}, {SSM: layout.F8E4M3}} {
		if err := bad.Check(); !errors.Is(err, model.ErrConfig) {
			t.Errorf("%v: %v", bad, err)
		}
	}
}

// TestWindow: the oldest row of a window counts, the one before it does not.
func TestWindow(t *testing.T) {
	cfg := model.SWA(1)
	cfg.Pattern = "WW"
	one := model.Sizes{Blocks: 100, Slots: 1, BlockTokens: 1}
	table := make([]int32, 100)
	for i := range table {
		table[i] = int32(i)
	}
	for outside := range 2 {
		ranks := newRanks(t, cfg, one, tp.Pipes(1))
		prompt := text(prose)
		generate(t, ranks, model.Seq{Blocks: table}, prompt, 1, 64, nil)
		ranks[0].mem.PoisonBlock(int32(len(prompt) - cfg.Sliding + 1 - outside))
		_, err := ranks[0].run.Forward(model.Seq{Blocks: table}, []int32{1}, int32(len(prompt)))
		if errors.Is(err, model.ErrState) != (outside == 0) {
			t.Errorf("%d rows before the window: %v", outside, err)
		}
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
