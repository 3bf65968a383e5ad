package engine_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/batonkv/baton/examples/engine"
	"github.com/batonkv/baton/examples/engine/model"
)

// splitConfig is config of ranks that divide the model in any way.
func splitConfig(m model.Config, group string, s model.Split) engine.Config {
	c := config(m, group, s.TP)
	c.PP, c.EP, c.ExptTP, c.Layers = s.PP, s.EP, s.ExptTP, s.Layers
	return c
}

// crossing is a hand-off between two splits.
type crossing struct {
	model    model.Config
	src, dst model.Split
}

func (c crossing) String() string { return fmt.Sprintf("%s/%v to %v", c.model.Name, c.src, c.dst) }

// crossings are stages that meet others, even and uneven, with units cut too.
func crossings() (all []crossing) {
	for _, m := range []model.Config{model.Hybrid(1), model.Attention(1), model.GQA(1), model.MLA(1), model.SWA(1)} {
		for _, pair := range [][2]model.Split{
			{{TP: 2, PP: 2}, {PP: 3}}, {{PP: 4}, {TP: 4}}, {{PP: 3, Layers: []int{1, 2, 1}}, {TP: 2, PP: 2, Layers: []int{3, 1}}},
		} {
			all = append(all, crossing{m, pair[0], pair[1]})
		}
	}
	for _, m := range []model.Config{model.MoE(1), model.HybridMoE(1)} {
		for _, pair := range [][2]model.Split{
			{{TP: 2, PP: 2, EP: 2}, {PP: 3}}, {{PP: 3}, {TP: 2, PP: 2, EP: 2}}, {{EP: 2, ExptTP: 2}, {EP: 4, PP: 2}}, {{}, {TP: 4, ExptTP: 2}},
		} {
			all = append(all, crossing{m, pair[0], pair[1]})
		}
	}
	all = append(all, crossing{model.HybridMoE(1).WithDrafts(2), model.Split{TP: 2, PP: 2, EP: 2}, model.Split{PP: 3, Layers: []int{2, 1, 2}}})
	if short() {
		return []crossing{all[0], all[5], all[15], all[21]}
	}
	return all
}

// bytesInto is what a hand-off of tokens writes into each rank of a split: its layers and
// units alone.
func bytesInto(m model.Config, s model.Split, tokens int) (out []int64) {
	for rank := range s.Ranks() {
		p, err := m.Cut(rank, s)
		if err != nil {
			panic(err)
		}
		kv := tokens * (2*int(p.Attention.Len()*p.KV.Len())*m.HeadDim + int(p.Latent.Len())*(m.LatentDim+m.RotaryDim)) * 2
		heads := int(p.Heads.Len()) * m.SSMHeads / m.SSMUnits * m.SSMHeadDim
		state := int(p.SSM.Len()) * ((heads+2*int(p.Groups.Len())*m.StateDim)*m.Window + heads*m.StateDim) * 4
		out = append(out, int64(kv+state))
	}
	return out
}

// TestHandOffAcrossSplits: whoever has which layers and units, tokens equal those of one
// engine, and each rank takes what is its own.
func TestHandOffAcrossSplits(t *testing.T) {
	for _, c := range crossings() {
		t.Run(c.String(), func(t *testing.T) {
			w := newWorld(t)
			src := launch(t, w, splitConfig(c.model, "prefill", c.src))[0]
			dst := launch(t, w, splitConfig(c.model, "decode", c.dst))[0]
			for _, n := range []int{1, 32, 43} {
				tokens := prompt(n, 0, n)
				want := reference(t, config(c.model, "x", 1), tokens, newTokens)
				w.mu.Lock()
				w.into = map[int]int64{}
				w.mu.Unlock()
				got, res := handOff(t, src, dst, fmt.Sprint("r", n), tokens)
				if !slices.Equal(got, want) || res.Forwarded != 0 {
					t.Errorf("%d tokens: got %v, want %v, %+v", n, got, want, res)
				}
				w.mu.Lock()
				for rank, want := range bytesInto(c.model, c.dst, n) {
					if w.into[rank] != want {
						t.Errorf("%d tokens: %d bytes into rank %d, want %d", n, w.into[rank], rank, want)
					}
				}
				if len(w.errs) > 0 {
					t.Error(w.errs)
				}
				w.mu.Unlock()
			}
		})
	}
}

// TestCorruptShowsAcrossSplits: damage on ranks that hold a part of the layers shows too.
func TestCorruptShowsAcrossSplits(t *testing.T) {
	pair := [2]model.Split{{TP: 2, PP: 2}, {PP: 3}}
	for _, m := range []model.Config{model.Hybrid(1), model.MLA(1), model.HybridMoE(1)} {
		for _, c := range []engine.Corrupt{engine.CorruptKV, engine.CorruptState, engine.CorruptHeadSwap, engine.CorruptOneBlock, engine.CorruptPosition} {
			if !has(m, c, 1) || short() && c != engine.CorruptKV {
				continue
			}
			t.Run(fmt.Sprintf("%s/%s", m.Name, c), func(t *testing.T) {
				damageShows(t, splitConfig(m, "prefill", pair[0]), splitConfig(m, "decode", pair[1]), c)
			})
		}
	}
}
