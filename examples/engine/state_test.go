package engine_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/batonkv/baton/examples/engine"
	"github.com/batonkv/baton/examples/engine/model"
	"github.com/batonkv/baton/transfer/layout"
)

// states is a hand-off between two cuts and two sets of types.
type states struct {
	model    model.Config
	src, dst int // tp
	from, to model.Types
}

func (s states) String() string {
	return fmt.Sprintf("%s/tp%d %v to tp%d %v", s.model.Name, s.src, s.from, s.dst, s.to)
}

// typed are pairs of types that between them have every conversion of each state.
var typed = [][2]model.Types{
	{{KV: layout.BF16}, {KV: layout.F16, Conv: layout.BF16, SSM: layout.BF16}},
	{{KV: layout.F16, SSM: layout.BF16}, {KV: layout.BF16, Conv: layout.BF16}},
	{{KV: layout.F32, Conv: layout.BF16, SSM: layout.BF16}, {KV: layout.BF16}},
	{{KV: layout.BF16}, {KV: layout.F32, SSM: layout.BF16}},
	{{KV: layout.F32, Conv: layout.BF16}, {KV: layout.F16}},
	{{KV: layout.F16}, {KV: layout.F32}},
}

// matrix is every kind of state between cuts, and between types.
func matrix() (all []states) {
	for i, m := range []model.Config{model.GQA(1), model.MLA(1), model.SWA(1), model.MTP(1)} {
		for _, pair := range [][2]int{{1, 4}, {4, 1}, {2, 4}, {4, 2}, {4, 4}} {
			all = append(all, states{model: m, src: pair[0], dst: pair[1]})
		}
		for j, t := range typed {
			pair := [][2]int{{2, 1}, {1, 2}, {4, 2}, {1, 4}}[(i+j)%4]
			all = append(all, states{m, pair[0], pair[1], t[0], t[1]})
		}
	}
	if short() {
		return []states{all[2], all[5], all[13], all[17]}
	}
	return all
}

// moved is what a hand-off of tokens writes: each rank's share of the state, as it
// stores it. What ranks share is written on each.
func (s states) moved(tokens int) int64 {
	m, t := s.model, s.to.WithDefaults()
	kv := m.AttentionLayers()*2*max(m.KVHeads, s.dst)*m.HeadDim + m.LatentLayers()*s.dst*(m.LatentDim+m.RotaryDim)
	conv := m.SSMLayers() * (m.SSMHeads*m.SSMHeadDim + 2*max(m.Groups, s.dst)*m.StateDim) * m.Window
	ssm := m.SSMLayers() * m.SSMHeads * m.SSMHeadDim * m.StateDim
	return int64(tokens*kv)*t.KV.Size() + int64(conv)*t.Conv.Size() + int64(ssm)*t.SSM.Size()
}

// TestHandOffOfStates: whatever is kept, shared and converted, tokens equal those of one
// engine, and the bytes are those of the closed form.
func TestHandOffOfStates(t *testing.T) {
	shows := short() // that converting changes tokens at all
	for _, s := range matrix() {
		t.Run(s.String(), func(t *testing.T) {
			w := newWorld(t)
			a, b := config(s.model, "prefill", s.src), config(s.model, "decode", s.dst)
			a.Types, b.Types = s.from, s.to
			src, dst := launch(t, w, a)[0], launch(t, w, b)[0]
			for _, n := range []int{1, 32, 43} {
				tokens := prompt(n, 0, n)
				want, err := engine.ReferenceConverted(t.Context(), a, s.to, tokens, newTokens)
				if err != nil {
					t.Fatal(err)
				}
				shows = shows || s.from != s.to && !slices.Equal(want, reference(t, a, tokens, newTokens))
				w.mu.Lock()
				w.bytes = 0
				w.mu.Unlock()
				got, res := handOff(t, src, dst, fmt.Sprint("r", n), tokens)
				if !slices.Equal(got, want) || res.Forwarded != 0 {
					t.Errorf("%d tokens: got %v, want %v, %+v", n, got, want, res)
				}
				w.mu.Lock()
				if w.bytes != s.moved(n) || len(w.errs) > 0 {
					t.Errorf("%d tokens: %d bytes, want %d; %v", n, w.bytes, s.moved(n), w.errs)
				}
				w.mu.Unlock()
			}
		})
	}
	if !shows {
		t.Error("no conversion changes a token: they prove nothing")
	}
}
