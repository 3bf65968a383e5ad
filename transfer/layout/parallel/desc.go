// Package parallel builds shards from tp, pp, ep and expt_tp for the memory
// layouts of the common engines. It is a convenience: package layout knows only
// boxes, and an engine with a layout of its own states those.
package parallel

import (
	"fmt"

	"github.com/batonkv/baton/transfer/layout"
)

// Names of the states that this package builds.
const (
	AttnK      = "attn.k"
	AttnV      = "attn.v"
	AttnLatent = "attn.latent"
	ConvX      = "conv.x"
	ConvB      = "conv.b"
	ConvC      = "conv.c"
	SSM        = "ssm"
)

// Desc says which state a model has. A nil part is one that it lacks.
type Desc struct {
	Attention *Attention
	Latent    *Latent
	Mamba     *Mamba
}

// Attention is grouped-query attention: K and V of Heads KV heads a layer. Heads
// are cut by TP; with more ranks than heads, ranks share one.
type Attention struct{ Layers, Heads, Dim int32 }

// Latent is MLA: one vector a token and layer, whole on every rank of a stage.
type Latent struct{ Layers, Dim int32 }

// Mamba is the Mamba2 mixer: convolution bands x | B | C and the recurrent state.
// TP cuts Heads; a rank holds the B and C groups that its heads read, so with
// fewer groups than ranks a group is on several.
type Mamba struct {
	Layers, Heads, HeadDim, StateDim, Groups int32
	Window                                   int32 // k, the convolution's width
}

// Model is the geometry that both sides of a hand-off state.
func (d Desc) Model() layout.Model {
	var m layout.Model
	add := func(name string, p layout.Paging, layers, units, elems int32) {
		m.States = append(m.States, layout.State{Name: name, Paging: p, Layers: layers, Units: units, Elems: elems})
	}
	if a := d.Attention; a != nil {
		add(AttnK, layout.PerBlock, a.Layers, a.Heads, a.Dim)
		add(AttnV, layout.PerBlock, a.Layers, a.Heads, a.Dim)
	}
	if l := d.Latent; l != nil {
		add(AttnLatent, layout.PerBlock, l.Layers, 1, l.Dim)
	}
	if s := d.Mamba; s != nil {
		add(ConvX, layout.PerRequest, s.Layers, s.Heads, s.HeadDim)
		add(ConvB, layout.PerRequest, s.Layers, s.Groups, s.StateDim)
		add(ConvC, layout.PerRequest, s.Layers, s.Groups, s.StateDim)
		add(SSM, layout.PerRequest, s.Layers, s.Heads, s.HeadDim*s.StateDim)
	}
	return m
}

// Check reports a number that cannot be.
func (d Desc) Check() error {
	if s := d.Mamba; s != nil {
		switch {
		case s.HeadDim < 1 || s.StateDim < 1 || int64(s.HeadDim)*int64(s.StateDim) > layout.MaxElems:
			return fmt.Errorf("%w: mamba head dim %d times state dim %d: want 1 to %d", layout.ErrGeometry, s.HeadDim, s.StateDim, layout.MaxElems)
		case s.Groups < 1 || s.Heads < s.Groups || s.Heads%s.Groups != 0:
			return fmt.Errorf("%w: mamba groups %d: each takes an equal share of the %d heads", layout.ErrGeometry, s.Groups, s.Heads)
		case s.Window < 2:
			return fmt.Errorf("%w: mamba convolution width %d: want at least 2", layout.ErrGeometry, s.Window)
		}
	}
	return d.Model().Check(nil)
}

// Cut is how a group divides a model. Zero counts mean 1.
type Cut struct {
	// Ranks are numbered with ExptTP fastest, then EP, TP, PP. EP and ExptTP cut
	// experts, which have no state here, so they only repeat it.
	TP, PP, EP, ExptTP int32
	// Stages give the layers of every pipeline stage, counted within the state, for
	// uneven pipelines; nil is the even cut, the first stages one layer smaller
	// where it does not divide. A stage may be empty.
	AttentionStages, LatentStages, MambaStages []layout.Span
}

// Place is where one rank stands.
type Place struct{ TP, PP, EP, ExptTP int32 }

func (c Cut) ones() Cut {
	c.TP, c.PP, c.EP, c.ExptTP = max(c.TP, 1), max(c.PP, 1), max(c.EP, 1), max(c.ExptTP, 1)
	return c
}

// Ranks is the number of ranks. The cut must have passed Check.
func (c Cut) Ranks() int32 {
	c = c.ones()
	return c.TP * c.PP * c.EP * c.ExptTP
}

// Place is where rank r stands.
func (c Cut) Place(r layout.Rank) Place {
	c = c.ones()
	n := int32(r)
	return Place{ExptTP: n % c.ExptTP, EP: n / c.ExptTP % c.EP, TP: n / c.ExptTP / c.EP % c.TP, PP: n / c.ExptTP / c.EP / c.TP}
}

// Check reports counts or stages that cannot be.
func (c Cut) Check() error {
	n := int64(1)
	for _, x := range [...]struct {
		name string
		n    int32
	}{{"tp", c.TP}, {"pp", c.PP}, {"ep", c.EP}, {"expt_tp", c.ExptTP}} {
		if x.n < 0 {
			return fmt.Errorf("%w: %s=%d: want at least 1", layout.ErrGeometry, x.name, x.n)
		}
		if n *= int64(max(x.n, 1)); n > layout.MaxRank {
			return fmt.Errorf("%w: %s=%d: a group has at most %d ranks", layout.ErrGeometry, x.name, x.n, layout.MaxRank)
		}
	}
	for _, s := range [...]struct {
		name string
		s    []layout.Span
	}{{"attention", c.AttentionStages}, {"latent", c.LatentStages}, {"mamba", c.MambaStages}} {
		if s.s != nil && len(s.s) != int(c.ones().PP) {
			return fmt.Errorf("%w: %d %s stages for pp=%d: give one a stage, or none", layout.ErrGeometry, len(s.s), s.name, c.ones().PP)
		}
	}
	return nil
}

// even is part i of n things in parts.
func even(n, parts, i int32) layout.Span {
	return layout.Span{Lo: int32(int64(n) * int64(i) / int64(parts)), Hi: int32(int64(n) * int64(i+1) / int64(parts))}
}

// heads is what rank i of tp holds of n heads: its share, or the one that it
// shares with others, head i / (tp / n).
func heads(n, tp, i int32) layout.Span {
	if tp <= n {
		return even(n, tp, i)
	}
	lo := int32(int64(i) * int64(n) / int64(tp))
	return layout.Span{Lo: lo, Hi: lo + 1}
}

// groups is what the heads of span read.
func (s *Mamba) groups(span layout.Span) layout.Span {
	per := s.Heads / s.Groups
	return layout.Span{Lo: span.Lo / per, Hi: (span.Hi + per - 1) / per}
}

func stage(stages []layout.Span, layers, pp, i int32) layout.Span {
	if stages != nil {
		return stages[i]
	}
	return even(layers, pp, i)
}

// Stages turns a cut of a model's layers into a cut of one state's: at is the
// model layer of each of the state's layers, ascending, cuts the first model layer
// of each stage and the end.
func Stages(at []int32, cuts []int32) []layout.Span {
	var out []layout.Span
	i := int32(0)
	for k := 0; k+1 < len(cuts); k++ {
		lo := i
		for int(i) < len(at) && at[i] < cuts[k+1] {
			i++
		}
		out = append(out, layout.Span{Lo: lo, Hi: i})
	}
	return out
}

// EvenCuts are the cuts of an even pipeline of n model layers, for Stages.
func EvenCuts(n, pp int32) []int32 {
	out := make([]int32, 0, pp+1)
	for i := range pp {
		out = append(out, even(n, pp, i).Lo)
	}
	return append(out, n)
}
