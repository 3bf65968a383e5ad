// Package model is the arithmetic of the reference engine: small language models
// (grouped-query, latent and sliding-window attention, Mamba2 mixers, MLPs, experts) with seeded
// weights, of which a rank holds and computes only its own units.
//
// Equality across layouts is exact. A unit (some query heads of one KV head, some SSM
// heads of one B/C group, a group of MLP columns) computes alone and gives one partial
// sum; the partial sums of all units are added in one fixed order, whoever holds them.
// What several units read (a KV head, a B/C group, a latent) is made alike, from the
// seed, on every rank that holds one of them. So one rank or four give equal bits. The
// package knows neither processes nor sockets: what ranks tell each other goes through a
// Group.
//
// A stage of the pipeline has some of the layers. Each of its ranks takes the residual
// from its neighbour in the stage before and gives it to the one in the stage after; the
// last stage makes the logits, and rank 0 has them.
//
// Each kind of layer has a file: attention, latent, mamba, mlp, moe. A file holds the kind's
// weights, what a token adds to its state, and what it reads there.
package model

import (
	"errors"
	"fmt"
	"math"
	"strings"
)

// ErrConfig reports a model, a cut or a memory that cannot be.
var ErrConfig = errors.New("model: bad config")

// Tokens of the byte-level vocabulary, which the seeded models have.
const (
	BOS   int32 = 256
	EOS   int32 = 257
	Vocab int32 = 258
)

// Config is a model. Sizes are small, counts are per layer.
type Config struct {
	Name string
	// Pattern is one mixer per layer: '*' attention, 'W' attention to the last Sliding
	// tokens, 'L' latent attention, 'M' Mamba2. Behind them may come 'D', the draft layer
	// of multi-token prediction, which nothing follows.
	Pattern string
	// Feeds is what follows each mixer, 'D' aside: '-' an MLP, 'E' experts. Empty: an MLP everywhere.
	Feeds  string
	Hidden int
	Vocab  int32
	EOS    int32   // ends an answer; -1: no token does
	Eps    float64 // of every norm

	QueryHeads, KVHeads, HeadDim int
	Theta                        float64 // base of the rotary frequencies
	Rotary                       int     // elements of a head of K and Q that carry the position, the first ones
	// QueryUnits divide the query heads for TP: equal shares, each within one KV head.
	QueryUnits           int
	Sliding              int // rows that a 'W' layer attends to, its own included
	LatentDim, RotaryDim int // of 'L': the latent, and the rotary key behind it

	SSMHeads, SSMHeadDim, Groups, StateDim, Window int
	// SSMUnits divide the SSM heads for TP: equal shares, each within one group.
	SSMUnits int
	// WholeNorm: the gated norm of a Mamba2 mixer is over all its heads, not over each unit's.
	WholeNorm bool

	MLPGroups, MLPColumns int  // columns per group
	Gated                 bool // MLPs have a gate (SwiGLU)
	Proposals             int  // tokens that 'D' drafts at once

	Experts, TopK               int // of an 'E' layer; a token goes to TopK of them
	ExpertGroups, ExpertColumns int // groups of an expert's columns, columns per group

	Seed uint64
	Dir  string // of the weights, see Load; empty: they are drawn from Seed
}

// Hybrid is the model of two Mamba2 and two attention layers.
func Hybrid(seed uint64) Config { return sized("hybrid", "M*M*", seed) }

// Attention is the model of four attention layers: no per-request state.
func Attention(seed uint64) Config { return sized("attention", "****", seed) }

// GQA is the hybrid with so few KV heads and groups that the ranks of TP 4 share them.
func GQA(seed uint64) Config {
	c := sized("gqa", "M*M*", seed)
	c.KVHeads, c.Groups = 2, 2
	return c
}

// MLA is the model of four layers of latent attention.
func MLA(seed uint64) Config { return sized("mla", "LLLL", seed) }

// SWA is the model whose every other layer attends to a sliding window.
func SWA(seed uint64) Config { return sized("swa", "W*W*", seed) }

// MTP is the hybrid with a draft layer.
func MTP(seed uint64) Config { return sized("mtp", "M*M*", seed).WithDrafts(3) }

// WithDrafts is the model with a draft layer that proposes n tokens at once.
func (c Config) WithDrafts(n int) Config {
	c.Pattern, c.Proposals = c.Pattern+"D", n
	return c
}

// MaxProposals bounds the tokens that are drafted at once.
const MaxProposals = 8

// MoE is the model of four attention layers, of which all but the first have experts.
func MoE(seed uint64) Config { return withExperts(sized("moe", "****", seed), "-EEE") }

// HybridMoE is the hybrid with experts in every other layer.
func HybridMoE(seed uint64) Config { return withExperts(sized("hybrid-moe", "M*M*", seed), "E-E-") }

func withExperts(c Config, feeds string) Config {
	c.Feeds, c.Experts, c.TopK, c.ExpertGroups, c.ExpertColumns = feeds, 8, 2, 2, 64
	return c
}

var named = []struct {
	name string
	make func(seed uint64) Config
}{{"hybrid", Hybrid}, {"attention", Attention}, {"gqa", GQA}, {"mla", MLA}, {"swa", SWA}, {"mtp", MTP}, {"moe", MoE}, {"hybrid-moe", HybridMoE}}

// Names are the models of ByName, for people.
func Names() string {
	var all []string
	for _, n := range named {
		all = append(all, n.name)
	}
	last := len(all) - 1
	return strings.Join(all[:last], ", ") + " or " + all[last]
}

// ByName is a seeded model.
func ByName(name string, seed uint64) (Config, error) {
	for _, n := range named {
		if n.name == name {
			return n.make(seed), nil
		}
	}
	return Config{}, fmt.Errorf("%w: model %q: want %s", ErrConfig, name, Names())
}

// Open is the model of a command line: that of a directory, see Load, else ByName's.
func Open(dir, name string, seed uint64) (Config, error) {
	if dir != "" {
		return Load(dir)
	}
	return ByName(name, seed)
}

func sized(name, pattern string, seed uint64) Config {
	return Config{Name: fmt.Sprintf("baton-tiny-%s-%d", name, seed), Pattern: pattern, Hidden: 64,
		Vocab: Vocab, EOS: EOS, Eps: 1e-6, Theta: 10000, Rotary: 16,
		QueryHeads: 8, KVHeads: 4, HeadDim: 16, QueryUnits: 4, Sliding: 24, LatentDim: 32, RotaryDim: 8,
		SSMHeads: 8, SSMHeadDim: 16, Groups: 4, StateDim: 16, Window: 4, SSMUnits: 4,
		MLPGroups: 4, MLPColumns: 64, Seed: seed}
}

// Check reports sizes that the arithmetic cannot take.
func (c Config) Check() error {
	switch {
	case len(c.Pattern) < 1 || len(c.Pattern) > 256:
		return fmt.Errorf("%w: pattern of %d layers: want 1 to 256", ErrConfig, len(c.Pattern))
	case c.Vocab < 1 || c.Vocab > 1<<20 || c.EOS < -1 || c.EOS >= c.Vocab:
		return fmt.Errorf("%w: vocabulary of %d, of which %d ends an answer", ErrConfig, c.Vocab, c.EOS)
	case !(c.Eps >= 0 && c.Eps < 1) || !(c.Theta >= 1 && c.Theta <= math.MaxFloat32):
		return fmt.Errorf("%w: eps %v, theta %v", ErrConfig, c.Eps, c.Theta)
	case c.Hidden < 1 || c.Hidden > 1<<13 || c.MLPGroups < 1 || c.MLPColumns < 1 || c.MLPColumns > 1<<15:
		return fmt.Errorf("%w: hidden %d, %d MLP groups of %d columns", ErrConfig, c.Hidden, c.MLPGroups, c.MLPColumns)
	case !divides(c.KVHeads, c.QueryUnits) || !divides(c.QueryUnits, c.QueryHeads) || c.HeadDim < 2 || c.HeadDim%2 != 0:
		return fmt.Errorf("%w: %d query heads in %d units over %d KV heads of %d", ErrConfig, c.QueryHeads, c.QueryUnits, c.KVHeads, c.HeadDim)
	case c.Rotary < 2 || c.Rotary%2 != 0 || c.Rotary > c.HeadDim:
		return fmt.Errorf("%w: %d rotary elements of a head of %d", ErrConfig, c.Rotary, c.HeadDim)
	case c.Sliding < 1 && strings.ContainsRune(c.Pattern, 'W'):
		return fmt.Errorf("%w: sliding window of %d tokens", ErrConfig, c.Sliding)
	case (c.LatentDim < 1 || c.RotaryDim < 2 || c.RotaryDim%2 != 0) && c.LatentLayers() > 0:
		return fmt.Errorf("%w: latent of %d, rotary key of %d", ErrConfig, c.LatentDim, c.RotaryDim)
	case !divides(c.Groups, c.SSMUnits) || !divides(c.SSMUnits, c.SSMHeads) || c.SSMHeadDim < 1 || c.StateDim < 1 || c.Window < 2:
		return fmt.Errorf("%w: %d SSM heads in %d units over %d groups, window %d", ErrConfig, c.SSMHeads, c.SSMUnits, c.Groups, c.Window)
	}
	if c.Drafts() && (c.Proposals < 1 || c.Proposals > MaxProposals) {
		return fmt.Errorf("%w: %d proposals: want 1 to %d", ErrConfig, c.Proposals, MaxProposals)
	}
	for _, m := range strings.TrimSuffix(c.Pattern, "D") {
		if !strings.ContainsRune("*WLM", m) {
			return fmt.Errorf("%w: mixer %q in pattern %q: want *, W, L or M, and D at the end", ErrConfig, m, c.Pattern)
		}
	}
	return c.checkFeeds()
}

func (c Config) checkFeeds() error {
	switch {
	case c.Feeds != "" && len(c.Feeds) != len(strings.TrimSuffix(c.Pattern, "D")) || strings.Trim(c.Feeds, "-E") != "":
		return fmt.Errorf("%w: feeds %q behind pattern %q: want - or E for each layer", ErrConfig, c.Feeds, c.Pattern)
	case c.ExpertLayers() == 0:
		return nil
	case c.Experts < 1 || c.Experts > 1<<10 || c.TopK < 1 || c.TopK > c.Experts:
		return fmt.Errorf("%w: %d of %d experts", ErrConfig, c.TopK, c.Experts)
	case c.ExpertGroups < 1 || c.ExpertColumns < 1 || c.ExpertColumns > 1<<15:
		return fmt.Errorf("%w: experts of %d groups of %d columns", ErrConfig, c.ExpertGroups, c.ExpertColumns)
	}
	return nil
}

func divides(n, of int) bool { return n > 0 && of > 0 && of%n == 0 }

// The mixers that keep each kind of state.
const (
	keepKV     = "*WD"
	keepLatent = "L"
	keepSSM    = "M"
)

// Drafts is whether the model has a draft layer.
func (c Config) Drafts() bool { return strings.HasSuffix(c.Pattern, "D") }

// AttentionLayers counts the layers that keep K and V: '*', 'W' and 'D'.
func (c Config) AttentionLayers() int { return len(c.at(keepKV)) }

// LatentLayers counts the layers that keep a latent.
func (c Config) LatentLayers() int { return len(c.at(keepLatent)) }

// SSMLayers counts the Mamba2 layers; 0 means that there is no per-request state.
func (c Config) SSMLayers() int { return len(c.at(keepSSM)) }

// ExpertLayers counts the layers with experts.
func (c Config) ExpertLayers() int { return strings.Count(c.Feeds, "E") }

// at is the layers whose mixer is one of kinds.
func (c Config) at(kinds string) (layers []int32) {
	for i, m := range c.Pattern {
		if strings.ContainsRune(kinds, m) {
			layers = append(layers, int32(i))
		}
	}
	return layers
}

// latentRow is the elements of a token's row of the latent cache.
func (c Config) latentRow() int { return c.LatentDim + c.RotaryDim }

// channels are those of the convolution over heads SSM heads and groups B/C groups.
func (c Config) channels(heads, groups int) int { return heads*c.SSMHeadDim + 2*groups*c.StateDim }
