package model_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/batonkv/baton/examples/engine/model"
	"github.com/batonkv/baton/transfer/layout"
)

// splits are cuts of a model of four layers: by units, by stages, even and uneven, such
// that a stage has no attention, or no recurrent state, and both at once. A draft layer
// is in the last stage.
func splits(c model.Config) []model.Split {
	all := []model.Split{{TP: 2}, {TP: 4}, {PP: 2}, {PP: 3}, {PP: 4}, {PP: 2, Layers: []int{3, 1}}, {TP: 2, PP: 2}, {TP: 2, PP: 3, Layers: []int{1, 1, 2}}}
	for _, s := range all {
		if n := len(s.Layers); n > 0 && c.Drafts() {
			s.Layers[n-1]++
		}
	}
	return all
}

// TestSplitsAgree holds logits of every split to equal bits.
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
			if testing.Short() && i%2 == 0 {
				continue
			}
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

// spans are those between neighbours.
func spans(at ...int32) (out []layout.Span) {
	for i := range len(at) - 1 {
		out = append(out, layout.Span{Lo: at[i], Hi: at[i+1]})
	}
	return out
}

func TestSplitRefuses(t *testing.T) {
	for _, s := range []model.Split{{PP: 5}, {PP: -1}, {TP: 3, PP: 2}, {PP: 2, Layers: []int{4}}, {PP: 2, Layers: []int{4, 0}},
		{PP: 2, Layers: []int{2, 3}}, {PP: 2, Layers: []int{5, -1}}, {PP: 1 << 20}, {PP: 1 << 40}, {Layers: []int{3}}} {
		if _, err := model.Hybrid(1).Cut(0, s); !errors.Is(err, model.ErrConfig) {
			t.Errorf("%v: %v", s, err)
		}
	}
	if _, err := model.Hybrid(1).Cut(2, model.Split{PP: 2}); !errors.Is(err, model.ErrConfig) {
		t.Errorf("rank 2 of 2: %v", err)
	}
}
