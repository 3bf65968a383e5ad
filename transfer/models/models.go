// Package models knows the state geometry of published models, those whose numbers
// come from a public source. It is data for the plan command and for examples; an
// engine states its own geometry.
package models

import (
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/batonkv/baton/transfer/layout"
	"github.com/batonkv/baton/transfer/layout/parallel"
)

// ErrUnknown reports a name that no model has.
var ErrUnknown = errors.New("models: unknown model")

// ErrState reports a model with state that Baton cannot describe.
var ErrState = errors.New("models: state that Baton lacks")

// UnknownError gives the nearest names. It is an ErrUnknown.
type UnknownError struct {
	Name string
	Near []string // at most 3
}

func (e *UnknownError) Error() string {
	return fmt.Sprintf("%v %.80q: did you mean %s? `baton plan --list` shows all", ErrUnknown, e.Name, strings.Join(e.Near, ", "))
}

func (e *UnknownError) Unwrap() error { return ErrUnknown }

// StateError names what Baton lacks. It is an ErrState.
type StateError struct {
	Model string
	Lacks []string
}

func (e *StateError) Error() string {
	return fmt.Sprintf("%v: %s has %s: state its other boxes in a file and give that instead", ErrState, e.Model, strings.Join(e.Lacks, " and "))
}

func (e *StateError) Unwrap() error { return ErrState }

// Model is one published model.
type Model struct {
	Name, Slug string
	Layers     int32 // of the whole model
	MTPLayers  int32 // draft layers, whose state Desc leaves out
	Desc       parallel.Desc
	Lacks      []string // states that Desc cannot say

	attention, latent, mamba []int32 // model layer of each of the state's layers; nil: all
	aliases                  []string
}

//go:embed models.json
var data []byte

type component struct {
	Kind    string  `json:"kind"`
	Layers  int32   `json:"n_layers"`
	KVHeads int32   `json:"n_kv_heads"`
	Dim     int32   `json:"head_dim"`
	Lora    int32   `json:"kv_lora_rank"`
	Rope    int32   `json:"rope_dim"`
	Heads   int32   `json:"n_heads"`
	Groups  int32   `json:"n_groups"`
	State   int32   `json:"d_state"`
	Conv    int32   `json:"d_conv"`
	At      []int32 `json:"global_layer_indices"`
}

var load = sync.OnceValue(func() []Model {
	var f struct {
		Models []struct {
			Name, Slug string
			Aliases    []string
			Layers     int32
			MTPLayers  int32 `json:"mtp_layers"`
			Components []component
		}
	}
	if err := json.Unmarshal(data, &f); err != nil {
		panic("models: the embedded file is broken: " + err.Error()) // a test reads it
	}
	var out []Model
	for _, x := range f.Models {
		m := Model{Name: x.Name, Slug: x.Slug, Layers: x.Layers, MTPLayers: x.MTPLayers, aliases: x.Aliases}
		for _, c := range x.Components {
			m.add(c)
		}
		out = append(out, m)
	}
	slices.SortFunc(out, func(a, b Model) int { return strings.Compare(a.Slug, b.Slug) })
	return out
})

// lacking names the kinds of layers whose state no Desc says.
var lacking = map[string]string{
	"sliding": "sliding-window attention",
	"gdn":     "gated delta net (GDN)",
	"kda":     "Kimi delta attention (KDA)",
	"mamba1":  "Mamba1",
}

func (m *Model) add(c component) {
	switch c.Kind {
	case "full":
		m.Desc.Attention = &parallel.Attention{Layers: c.Layers, Heads: c.KVHeads, Dim: c.Dim}
		m.attention = c.At
	case "mla":
		m.Desc.Latent = &parallel.Latent{Layers: c.Layers, Dim: c.Lora + c.Rope}
		m.latent = c.At
	case "mamba2":
		m.Desc.Mamba = &parallel.Mamba{Layers: c.Layers, Heads: c.Heads, HeadDim: c.Dim, StateDim: c.State, Groups: c.Groups, Window: c.Conv}
		m.mamba = c.At
	default:
		name, ok := lacking[c.Kind]
		if !ok {
			name = c.Kind
		}
		m.Lacks = append(m.Lacks, name)
	}
}

// All are the models by slug, also those with state that Baton lacks.
func All() []Model { return slices.Clone(load()) }

// ByName finds a model by its slug ("llama-3.1-70b"), its name in any case, or an
// alias. Errors: UnknownError, StateError.
func ByName(name string) (Model, error) {
	want := slug(name)
	for _, m := range load() {
		if m.Slug != want && !slices.Contains(m.aliases, want) {
			continue
		}
		if len(m.Lacks) > 0 {
			return Model{}, &StateError{m.Slug, m.Lacks}
		}
		return m, nil
	}
	return Model{}, &UnknownError{name, near(want)}
}

// slug is lower case with a dash for whatever is neither letter, digit nor dot.
func slug(name string) string {
	var b strings.Builder
	if len(name) > 128 {
		name = name[:128]
	}
	for _, r := range strings.ToLower(name) {
		switch {
		case r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '.':
			b.WriteRune(r)
		case b.Len() > 0 && !strings.HasSuffix(b.String(), "-"):
			b.WriteByte('-')
		}
	}
	return strings.TrimSuffix(b.String(), "-")
}

// near are the three usable names that take the fewest edits.
func near(want string) []string {
	type scored struct {
		name string
		n    int
	}
	var all []scored
	for _, m := range load() {
		if len(m.Lacks) == 0 {
			for _, s := range append([]string{m.Slug}, m.aliases...) {
				all = append(all, scored{s, edits(want, s)})
			}
		}
	}
	slices.SortStableFunc(all, func(a, b scored) int { return a.n - b.n })
	var out []string
	for _, s := range all[:min(3, len(all))] {
		out = append(out, s.name)
	}
	return out
}

// edits is the Levenshtein distance, where leaving out the end of b costs little:
// "llama" is near to "llama-3.1-70b".
func edits(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j * 4
	}
	for i := range len(a) {
		diag := row[0]
		row[0] += 4
		for j := range len(b) {
			cost := diag
			if a[i] != b[j] {
				cost += 4
			}
			insert := 4
			if i == len(a)-1 {
				insert = 1
			}
			diag, row[j+1] = row[j+1], min(cost, row[j+1]+4, row[j]+insert)
		}
	}
	return row[len(b)]
}

// Cut is c with pipeline stages that cut the model's layers evenly, so that a
// state gets the layers that lie in each stage.
func (m Model) Cut(c parallel.Cut) parallel.Cut {
	cuts := parallel.EvenCuts(m.Layers, max(c.PP, 1))
	for _, x := range []struct {
		at  []int32
		out *[]layout.Span
	}{{m.attention, &c.AttentionStages}, {m.latent, &c.LatentStages}, {m.mamba, &c.MambaStages}} {
		if x.at != nil && *x.out == nil {
			*x.out = parallel.Stages(x.at, cuts)
		}
	}
	return c
}
