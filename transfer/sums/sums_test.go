package sums

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/batonkv/baton/transfer/layout"
	"github.com/batonkv/baton/transfer/layout/parallel"
	"github.com/batonkv/baton/transfer/reshard"
)

var desc = parallel.Desc{
	Attention: &parallel.Attention{Layers: 5, Heads: 4, Dim: 16},
	Mamba:     &parallel.Mamba{Layers: 3, Heads: 8, HeadDim: 4, StateDim: 8, Groups: 2, Window: 4},
}

// truth is the sum of one cell and range, whoever holds it.
func truth(state, layer, unit int32, tokens layout.Span) uint64 {
	x := uint64(state+1)*0x9e3779b97f4a7c15 ^ uint64(layer+1)*0xd6e8feb86659fd93 ^ uint64(unit+1)<<32 ^ uint64(tokens.Lo)<<8 ^ uint64(tokens.Hi)
	return x * 0xd1b54a32d192ed03
}

// add is what a mover would answer.
func add(size int32, ps []Place) (out []uint64) {
	for _, p := range ps {
		for l := p.Box.Layers.Lo; l < p.Box.Layers.Hi; l++ {
			for u := p.Box.Units.Lo; u < p.Box.Units.Hi; u++ {
				if !p.Paged() {
					out = append(out, truth(p.State, l, u, layout.Span{Hi: p.Rows}))
					continue
				}
				for lo := p.Tokens.Lo; lo < p.Tokens.Hi; lo += size {
					out = append(out, truth(p.State, l, u, layout.Span{Lo: lo, Hi: min(lo+size, p.Tokens.Hi)}))
				}
			}
		}
	}
	return out
}

// group is the shards of a group, all and by rank.
func group(t *rapid.T, c parallel.Cut, mem parallel.Memory) (all []layout.Shard, by [][]layout.Shard) {
	for r := range c.Ranks() {
		rm, err := desc.Rank(c, mem, layout.Rank(r))
		if err != nil {
			t.Fatal(err)
		}
		all, by = append(all, rm.Shards...), append(by, rm.Shards)
	}
	return all, by
}

func drawSums(t *rapid.T, m layout.Model, shards []layout.Shard, tokens, ranks int32, mode Mode) Sums {
	s, err := Choose(m, shards, tokens, ranks, mode, rapid.Uint64().Draw(t, "seed"))
	if err != nil {
		t.Fatal(err)
	}
	here := s.Here(m, shards)
	if len(here) != len(s.Parts) {
		t.Fatalf("%d of %d parts have a place", len(here), len(s.Parts))
	}
	if err := s.Fill(add(s.Range, here)); err != nil {
		t.Fatal(err)
	}
	if err := s.Check(m, tokens); err != nil {
		t.Fatal(err)
	}
	return s
}

// Whatever the cuts, the destination's sums are the source's; every byte is in one that is
// compared, but for those of the range that the first moved token lies in; one that differs
// is found and named.
func TestEveryCutCompares(t *testing.T) {
	m := desc.Model()
	rapid.Check(t, func(t *rapid.T) {
		cut := func(name string) parallel.Cut {
			return rapid.SampledFrom([]parallel.Cut{{TP: 1}, {TP: 2}, {TP: 4}, {TP: 8}, {TP: 2, PP: 2}}).Draw(t, name)
		}
		mem := parallel.Memory{Blocks: 300, BlockTokens: 16, KV: layout.BF16, Slots: 2, Conv: layout.BF16, SSM: layout.F32}
		c := cut("source")
		src, ranks := group(t, c, mem)
		mem.BlockTokens = 64
		dst, _ := group(t, cut("destination"), mem)
		plan, err := reshard.New(m, src, dst)
		if err != nil {
			t.Fatal(err)
		}
		tokens := rapid.Int32Range(1, 4000).Draw(t, "tokens")
		cached := rapid.Int32Range(0, tokens/64).Draw(t, "cached") * 64
		mode := rapid.SampledFrom([]Mode{Sample, All}).Draw(t, "mode")
		for i, pair := range plan.Pairs() {
			s := drawSums(t, m, ranks[pair.Src], tokens, int32(len(ranks)), mode)
			x := s.Of(m, plan.Parts(uint32(i)), layout.Span{Lo: cached, Hi: tokens})
			made := add(x.Range, x.There(m))
			if n, first := x.Compare(m, made); n > 0 || x.Missing != "" || int64(len(made)) != x.Total() {
				t.Fatalf("%d differ, the first of %s; no sums of %s", n, first, x.Missing)
			}
			if mode == All {
				var want int64
				for p := range plan.Parts(uint32(i)) {
					if n := (tokens+x.Range-1)/x.Range - (cached+x.Range-1)/x.Range; m.States[p.State].Paging == layout.PerRequest {
						want += p.Box.Area()
					} else {
						want += p.Box.Area() * int64(max(n, 0))
					}
				}
				if x.Total() != want {
					t.Fatalf("%d sums are compared, want %d", x.Total(), want)
				}
			}
			if len(made) > 0 {
				at := rapid.IntRange(0, len(made)-1).Draw(t, "spoilt")
				made[at]++
				if n, first := x.Compare(m, made); n != 1 || !strings.HasPrefix(first, "state ") {
					t.Fatalf("one sum was spoilt: %d differ, the first of %q", n, first)
				}
			}
		}
	})
}

func TestNames(t *testing.T) {
	m := desc.Model()
	x := Match{Range: 32, Want: []Part{{State: 1, Box: layout.Box{Layers: layout.Span{Lo: 2, Hi: 4}, Units: layout.Span{Lo: 1, Hi: 3}},
		Tokens: layout.Span{Lo: 32, Hi: 70}, Sums: make([]uint64, 8)}, {State: 5, Box: layout.Box{Layers: layout.Span{Lo: 1, Hi: 2}, Units: layout.Span{Lo: 6, Hi: 7}}, Rows: 1, Sums: make([]uint64, 1)}}}
	made := make([]uint64, 9)
	made[7] = 1
	if n, first := x.Compare(m, made); n != 1 || first != "state attn.v layer 3 unit 2 tokens [64,70)" {
		t.Error(n, first)
	}
	made[7], made[8] = 0, 1
	if n, first := x.Compare(m, made); n != 1 || first != "state ssm layer 1 unit 6" {
		t.Error(n, first)
	}
	if n, _ := x.Compare(m, nil); n != 9 {
		t.Errorf("nothing was made: %d differ of 9", n)
	}
}

// What is converted on its way, or is not all there, is not compared, and counted.
func TestSkipped(t *testing.T) {
	m := layout.Model{States: []layout.State{{Name: "attn.k", Paging: layout.PerBlock, Layers: 1, Units: 2, Elems: 4},
		{Name: "conv.x", Paging: layout.PerRequest, Layers: 1, Units: 2, Elems: 4}}}
	box := layout.Box{Layers: layout.Span{Hi: 1}, Units: layout.Span{Hi: 2}}
	kv := layout.Shard{Box: box, Rows: 16, Items: 8, DType: layout.BF16}
	conv := layout.Shard{State: 1, Box: box, Rows: 4, Items: 2, DType: layout.BF16}
	s := Sums{Mode: All, Range: 32, Parts: []Part{{Box: box, DType: layout.BF16, Tokens: layout.Span{Hi: 100}, Sums: make([]uint64, 8)},
		{State: 1, Box: box, Rows: 4, DType: layout.BF16, Sums: make([]uint64, 2)}}}
	for _, c := range []struct {
		name           string
		kv, conv       layout.Shard
		lo             int32
		total, skipped int64
	}{
		{"all", kv, conv, 0, 10, 0},
		{"cached to a range", kv, conv, 32, 8, 0},
		{"cached into a range", kv, conv, 48, 6, 2},
		{"all cached", kv, conv, 100, 2, 0},
		{"cached into the last range", kv, conv, 97, 2, 2},
		{"converted", with(kv, func(s *layout.Shard) { s.DType = layout.F16 }), conv, 0, 2, 8},
		{"a column less", kv, with(conv, func(s *layout.Shard) { s.Rows = 3 }), 0, 8, 2},
		{"a column more", kv, with(conv, func(s *layout.Shard) { s.Rows = 5 }), 0, 10, 0},
	} {
		parts := slices.Values([]reshard.Part{{Move: reshard.Move{State: 0, Box: box}, From: &kv, To: &c.kv}, {Move: reshard.Move{State: 1, Box: box}, From: &conv, To: &c.conv}})
		x := s.Of(m, parts, layout.Span{Lo: c.lo, Hi: 100})
		if x.Total() != c.total || x.Skipped != c.skipped || x.Missing != "" {
			t.Errorf("%s: %d compared and %d not, want %d and %d; missing %q", c.name, x.Total(), x.Skipped, c.total, c.skipped, x.Missing)
		}
	}
	s.Parts = s.Parts[1:]
	if x := s.Of(m, slices.Values([]reshard.Part{{Move: reshard.Move{Box: box}, From: &kv, To: &kv}}), layout.Span{Hi: 100}); x.Missing == "" {
		t.Error("a source that sums everything and brings no sums of attn.k is believed")
	}
}

func with(s layout.Shard, f func(*layout.Shard)) layout.Shard {
	f(&s)
	return s
}

// The number of sums is bounded whatever the prompt; what has too many cells is refused.
func TestBudget(t *testing.T) {
	m := layout.Model{States: []layout.State{{Name: "attn.k", Paging: layout.PerBlock, Layers: 80, Units: 8, Elems: 128}, {Name: "wide", Paging: layout.PerBlock, Layers: 1, Units: MaxSums, Elems: 1}}}
	kv := []layout.Shard{{Box: layout.Box{Layers: layout.Span{Hi: 80}, Units: layout.Span{Hi: 8}}, Rows: 16, Items: 9, DType: layout.BF16}}
	for _, tokens := range []int32{1, 16, 17, 8192, 1 << 20} {
		s, err := Choose(m, kv, tokens, 2, All, 0)
		if n := count(s.Parts, s.Range); err != nil || n > MaxSums/2 || n < 640 || n < MaxSums/8 && s.Range > MinRange {
			t.Errorf("%d tokens: %d sums of ranges of %d, %v", tokens, n, s.Range, err)
		}
		few, err := Choose(m, kv, tokens, 2, Sample, 3)
		if a, b := count(few.Parts, few.Range), count(s.Parts, s.Range); err != nil || a < 1 || a > b/4+8*20 || s.Range != few.Range {
			t.Errorf("%d tokens: a sample of %d of %d sums, %v", tokens, a, b, err)
		}
	}
	wide := []layout.Shard{{State: 1, Box: layout.Box{Layers: layout.Span{Hi: 1}, Units: layout.Span{Hi: MaxSums}}, Rows: 16, Items: 9, DType: layout.BF16}}
	if _, err := Choose(m, wide, 100, 2, All, 0); !errors.Is(err, ErrMany) {
		t.Error(err)
	}
	if s, err := Choose(m, kv, 100, 2, Off, 0); err != nil || s.Mode != Off || len(s.Parts) > 0 {
		t.Error(s, err)
	}
}

func TestCheckRefuses(t *testing.T) {
	m := desc.Model()
	box := layout.Box{Layers: layout.Span{Hi: 1}, Units: layout.Span{Hi: 1}}
	good := Part{Box: box, Tokens: layout.Span{Hi: 32}, DType: layout.BF16, Sums: make([]uint64, 2)}
	s := Sums{Mode: All, Range: 16, Parts: []Part{good}}
	if err := s.Check(m, 32); err != nil {
		t.Fatal(err)
	}
	for name, spoil := range map[string]func(s *Sums, p *Part){
		"mode":     func(s *Sums, _ *Part) { s.Mode = 9 },
		"range":    func(s *Sums, _ *Part) { s.Range = 24 },
		"short":    func(_ *Sums, p *Part) { p.Sums = p.Sums[1:] },
		"state":    func(_ *Sums, p *Part) { p.State = 99 },
		"negative": func(_ *Sums, p *Part) { p.State = -1 },
		"box":      func(_ *Sums, p *Part) { p.Box.Layers = layout.Span{Lo: 5, Hi: 6} },
		"empty":    func(_ *Sums, p *Part) { p.Box.Units.Hi = 0 },
		"paged":    func(_ *Sums, p *Part) { p.Rows = 1 },
		"columns":  func(_ *Sums, p *Part) { p.State, p.Tokens, p.Sums = 5, layout.Span{}, p.Sums[1:] },
		"first":    func(_ *Sums, p *Part) { p.Tokens.Lo = 5 },
		"last":     func(_ *Sums, p *Part) { p.Tokens.Hi = 31 },
		"beyond":   func(_ *Sums, p *Part) { p.Tokens = layout.Span{Lo: 32, Hi: 64} },
		"off":      func(s *Sums, _ *Part) { s.Mode = Off },
		"many":     func(s *Sums, _ *Part) { s.Parts = make([]Part, MaxParts+1) },
	} {
		bad := Sums{Mode: s.Mode, Range: s.Range, Parts: []Part{good}}
		spoil(&bad, &bad.Parts[0])
		if err := bad.Check(m, 32); err == nil {
			t.Errorf("%s: taken", name)
		}
	}
}

func TestModes(t *testing.T) {
	for _, m := range []Mode{Off, Sample, All} {
		if got, err := ParseMode(m.String()); err != nil || got != m {
			t.Error(m, got, err)
		}
	}
	if _, err := ParseMode("some"); err == nil || !strings.Contains(err.Error(), "off, sample or all") {
		t.Error(err)
	}
}
