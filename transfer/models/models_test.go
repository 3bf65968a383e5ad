package models_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/batonkv/baton/transfer/layout"
	"github.com/batonkv/baton/transfer/layout/parallel"
	"github.com/batonkv/baton/transfer/models"
)

// bytes of one token's KV and of one request's state, as the sources give them:
// bf16 KV and conv with k columns, fp32 recurrent state.
func TestGeometry(t *testing.T) {
	for _, c := range []struct {
		name       string
		kv, states int64
	}{
		{"llama-3.1-8b", 131072, 0},
		{"Llama-3.1-70B", 327680, 0},
		{"qwen3-235b-a22b", 94 * 2 * 4 * 128 * 2, 0},
		{"deepseek-v3", 61 * 576 * 2, 0},
		{"deepseek-v3/r1", 61 * 576 * 2, 0},
		{"nemotron-h-8b", 4 * 2 * 8 * 128 * 2, 24 * ((8192+2*1024)*4*2 + 128*64*128*4)},
	} {
		m, err := models.ByName(c.name)
		if err != nil {
			t.Fatal(err)
		}
		s, err := m.Desc.Shards(m.Cut(parallel.Cut{}), parallel.Memory{Blocks: 4, BlockTokens: 16, KV: layout.BF16, Slots: 1, Conv: layout.BF16, SSM: layout.F32})
		if err != nil {
			t.Fatal(err)
		}
		var kv, states int64
		for _, x := range s {
			st := m.Desc.Model().States[x.State]
			n := x.Box.Area() * int64(st.Elems) * x.DType.Size()
			if st.Paging == layout.PerBlock {
				kv += n
			} else {
				states += n * int64(x.Rows)
			}
		}
		if kv != c.kv || states != c.states {
			t.Errorf("%s: %d bytes a token and %d a request, want %d and %d", c.name, kv, states, c.kv, c.states)
		}
	}
}

func TestAll(t *testing.T) {
	seen := map[string]bool{}
	for _, m := range models.All() {
		if seen[m.Slug] || m.Slug == "" || strings.ToLower(m.Slug) != m.Slug {
			t.Errorf("slug %q", m.Slug)
		}
		seen[m.Slug] = true
		got, err := models.ByName(m.Name)
		if len(m.Lacks) > 0 {
			var s *models.StateError
			if !errors.Is(err, models.ErrState) || !errors.As(err, &s) || s.Model != m.Slug {
				t.Errorf("%s: %v, want ErrState", m.Name, err)
			}
			continue
		}
		if err != nil || got.Slug != m.Slug {
			t.Fatalf("%s: %v", m.Name, err)
		}
		for _, pp := range []int32{1, 2, 3, 4} {
			for _, tp := range []int32{1, 2, 3, 8, 16} {
				if _, err := m.Desc.Shards(m.Cut(parallel.Cut{TP: tp, PP: pp}), parallel.Memory{Blocks: 4, BlockTokens: 16, KV: layout.BF16,
					Slots: 1, Conv: layout.BF16, SSM: layout.F32}); err != nil {
					t.Errorf("%s tp=%d pp=%d: %v", m.Slug, tp, pp, err)
				}
			}
		}
	}
	if len(seen) < 20 {
		t.Errorf("%d models", len(seen))
	}
}

func TestRefusals(t *testing.T) {
	for name, says := range map[string]string{
		"qwen3-next-80b-a3b": "GDN", "gpt-oss-20b": "sliding", "kimi-linear-48b-a3b": "KDA", "jamba-v0.1": "Mamba1",
		"llama-3.1-80b": "llama-3.1-70b", "nemotron": "nemotron-h-4b", "minimax-m2": "did you mean", "": "did you mean",
	} {
		_, err := models.ByName(name)
		if err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v does not say %q", name, err, says)
		}
	}
	var u *models.UnknownError
	if _, err := models.ByName("lama-3.1-70b"); !errors.As(err, &u) || !errors.Is(err, models.ErrUnknown) || u.Near[0] != "llama-3.1-70b" {
		t.Errorf("%v", err)
	}
}
