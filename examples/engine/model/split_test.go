package model_test

import (
	"errors"
	"math"
	"slices"
	"testing"

	"github.com/batonkv/baton/examples/engine/model"
	"github.com/batonkv/baton/examples/engine/tp"
	"github.com/batonkv/baton/transfer/layout"
)

// splits are cuts of a model of four layers: by units, by stages, even and uneven, such
// that a stage has no attention, or no recurrent state, and both at once. A draft layer
// is in the last stage. Experts are spread too, and their columns cut.
func splits(c model.Config) []model.Split {
	all := []model.Split{{TP: 2}, {TP: 4}, {PP: 2}, {PP: 3}, {PP: 4}, {PP: 2, Layers: []int{3, 1}}, {TP: 2, PP: 2}, {TP: 2, PP: 3, Layers: []int{1, 1, 2}}}
	for _, s := range all {
		if n := len(s.Layers); n > 0 && c.Drafts() {
			s.Layers[n-1]++
		}
	}
	if c.ExpertLayers() > 0 {
		all = append(all[4:], model.Split{EP: 2}, model.Split{ExptTP: 2}, model.Split{EP: 8}, model.Split{EP: 4, ExptTP: 2},
			model.Split{TP: 2, PP: 2, EP: 2}, model.Split{TP: 2, PP: 3, EP: 2, ExptTP: 2})
	}
	if raceDetector || testing.Short() {
		return all[len(all)-2:]
	}
	return all
}

// TestSplitsAgree holds logits of every split to equal bits, whatever the chunks.
func TestSplitsAgree(t *testing.T) {
	prompt := text(prose)
	for _, cfg := range models(1) {
		last := func(split model.Split, chunk int) []float32 {
			ranks := newSplit(t, cfg, sizes, split)
			got := generate(t, ranks, seq, prompt, 6, chunk, nil)
			return forward(t, ranks, seq, got[5:], int32(len(prompt)+5))
		}
		want := last(model.Split{}, len(prompt))
		for i, split := range splits(cfg) {
			if !slices.Equal(last(split, 5+i), want) {
				t.Errorf("%s, %v: logits differ from those of one rank", cfg.Name, split)
			}
		}
	}
}

// TestStages: each layer is in one stage, counted within its kind, and a stage without a
// kind of state has neither memory nor shards of it.
func TestStages(t *testing.T) {
	cfg := model.Hybrid(1) // M*M*
	for _, c := range []struct {
		split       model.Split
		layers, kvs []layout.Span
		ssms        []layout.Span
	}{
		{model.Split{PP: 2}, spans(0, 2, 4), spans(0, 1, 2), spans(0, 1, 2)},
		{model.Split{PP: 3}, spans(0, 1, 2, 4), spans(0, 0, 1, 2), spans(0, 1, 1, 2)},
		{model.Split{PP: 3, Layers: []int{2, 1, 1}}, spans(0, 2, 3, 4), spans(0, 1, 1, 2), spans(0, 1, 2, 2)},
		{model.Split{TP: 2, PP: 2, Layers: []int{1, 3}}, spans(0, 1, 4), spans(0, 0, 2), spans(0, 1, 2)},
	} {
		each := c.split.Ranks() / len(c.layers)
		for rank := range c.split.Ranks() {
			p, err := cfg.Cut(rank, c.split)
			if err != nil {
				t.Fatal(err)
			}
			i := rank / each
			if p.Layers != c.layers[i] || p.Attention != c.kvs[i] || p.SSM != c.ssms[i] || !p.Latent.Empty() {
				t.Errorf("%v rank %d: layers %v, attention %v, ssm %v, latent %v", c.split, rank, p.Layers, p.Attention, p.SSM, p.Latent)
			}
			bytes := cfg.Bytes(p, sizes)
			if (bytes[model.BufferKV] == 0) != p.Attention.Empty() || (bytes[model.BufferSSM] == 0) != p.SSM.Empty() || (bytes[model.BufferConv] == 0) != p.SSM.Empty() {
				t.Errorf("%v rank %d: buffers of %d bytes", c.split, rank, bytes)
			}
			m, err := cfg.Shards(rank, c.split, sizes)
			if err != nil {
				t.Fatal(err)
			}
			if has := slices.DeleteFunc(bytes[:], func(n int64) bool { return n == 0 }); !slices.Equal(has, m.Buffers) {
				t.Errorf("%v rank %d: buffers of %d bytes, the shards say %d", c.split, rank, has, m.Buffers)
			}
		}
	}
}

// liar is a group that changes what comes in an exchange.
type liar struct {
	*tp.Group
	lie func(v []float32) []float32
}

func (g liar) Exchange(ranks []int, out [][]float32, in func(i int, v []float32) error) error {
	return g.Group.Exchange(ranks, out, func(i int, v []float32) error { return in(i, g.lie(slices.Clone(v))) })
}

// TestExpertsRefuse: rows of another length, for no expert, answers and shares that are too
// few or too many, end the rank with an error.
func TestExpertsRefuse(t *testing.T) {
	cfg := model.MoE(1)
	m, err := model.New(cfg, 0, model.Split{})
	if err != nil {
		t.Fatal(err)
	}
	nth := func(n int, lie func(v []float32) []float32) func([]float32) []float32 {
		return func(v []float32) []float32 {
			if n--; n == 0 {
				return lie(v)
			}
			return v
		}
	}
	less := func(v []float32) []float32 { return v[:len(v)-cfg.Hidden] }
	for name, lie := range map[string]func([]float32) []float32{
		"half a row":        nth(1, func(v []float32) []float32 { return v[:cfg.Hidden/2] }),
		"more rows":         nth(1, func(v []float32) []float32 { return slices.Repeat(v, model.MaxChunk+1) }),
		"an expert too far": nth(1, func(v []float32) []float32 { v[0] = float32(cfg.Experts); return v }),
		"a negative expert": nth(1, func(v []float32) []float32 { v[0] = -1; return v }),
		"no expert":         nth(1, func(v []float32) []float32 { v[0] = float32(math.NaN()); return v }),
		"too few answers":   nth(2, less),
		"too few tokens":    nth(3, less),
		"too many tokens":   nth(3, func(v []float32) []float32 { return append(v, v...) }),
	} {
		bufs := alloc(cfg.Bytes(m.Part(), sizes))
		mem, err := model.NewMemory(cfg, m.Part(), sizes, bufs)
		if err != nil {
			t.Fatal(err)
		}
		run := model.NewRun(m, mem, liar{tp.Single(), lie})
		if _, err := run.Forward(seq, text("two"), 0); !errors.Is(err, model.ErrGroup) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// spans are those between neighbours.
func spans(at ...int32) (out []layout.Span) {
	for i := range len(at) - 1 {
		out = append(out, layout.Span{Lo: at[i], Hi: at[i+1]})
	}
	return out
}

func TestSplitRefuses(t *testing.T) {
	for _, s := range []model.Split{{PP: 5}, {PP: -1}, {TP: 3, PP: 2}, {PP: 2, Layers: []int{4}}, {PP: 2, Layers: []int{4, 0}},
		{PP: 2, Layers: []int{2, 3}}, {PP: 2, Layers: []int{5, -1}}, {PP: 1 << 20}, {PP: 1 << 40}, {Layers: []int{3}}, {EP: 2}, {ExptTP: 2}} {
		if _, err := model.Hybrid(1).Cut(0, s); !errors.Is(err, model.ErrConfig) {
			t.Errorf("%v: %v", s, err)
		}
	}
	for _, s := range []model.Split{{EP: 3}, {ExptTP: 4}, {EP: 16}, {EP: -2}} {
		if _, err := model.MoE(1).Cut(0, s); !errors.Is(err, model.ErrConfig) {
			t.Errorf("%v: %v", s, err)
		}
	}
	if _, err := model.Hybrid(1).Cut(2, model.Split{PP: 2}); !errors.Is(err, model.ErrConfig) {
		t.Errorf("rank 2 of 2: %v", err)
	}
}
