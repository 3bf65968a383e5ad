package engine_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/batonkv/baton/examples/engine"
	"github.com/batonkv/baton/examples/engine/front"
	"github.com/batonkv/baton/examples/engine/model"
	"github.com/batonkv/baton/examples/engine/sample"
	"github.com/batonkv/baton/internal/need"
	"github.com/batonkv/baton/transfer/layout"
)

// party is how one group of the matrix divides and stores a model.
type party struct {
	split model.Split
	types model.Types
}

func (s party) config(m model.Config, group string) engine.Config {
	c := splitConfig(m, group, s.split)
	c.Types = s.types
	return c
}

func (s party) String() string { return fmt.Sprintf("%v %v", s.split, s.types) }

// pairing is a prefill group and a decode group.
type pairing struct{ src, dst party }

func tpOf(n int) party { return party{split: model.Split{TP: n}} }

var (
	down    = pairing{tpOf(2), tpOf(1)}
	up      = pairing{tpOf(1), tpOf(2)}
	staged  = pairing{party{split: model.Split{TP: 2, PP: 2}}, party{split: model.Split{PP: 2}}}
	convert = pairing{party{split: model.Split{TP: 2}, types: model.Types{KV: layout.F32}}, party{split: model.Split{TP: 1}, types: model.Types{KV: layout.F16, SSM: layout.BF16}}}
	experts = pairing{party{split: model.Split{TP: 2, EP: 2}}, party{split: model.Split{TP: 1, PP: 2}}}
)

// subject is a kind of model and the crossings that it is taken through, the first one
// in every run.
type subject struct {
	m     model.Config
	pairs []pairing
}

func subjects(t *testing.T) []subject {
	dense := []pairing{down, up, staged, convert}
	saved := func(name string) model.Config {
		m, err := model.Load(filepath.Join("model", "testdata", name))
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	return []subject{
		{model.Hybrid(1), []pairing{staged, down, up, convert}}, {model.Attention(1), dense}, {model.GQA(1), dense},
		{model.MLA(1), dense}, {model.SWA(1), dense}, {model.MTP(1), dense},
		{model.MoE(1), []pairing{experts, up}}, {model.HybridMoE(1), []pairing{experts, up}},
		{saved("llama"), dense}, {saved("bamba"), dense},
	}
}

// features are ways to ask that a hand-off has to carry.
func features() map[string]sample.Params {
	return map[string]sample.Params{
		"greedy": {}, "sampled": {Seed: 5, Temperature: 1.5, Logprobs: true},
		"cut": {Seed: 9, Temperature: 3, TopK: 20, TopP: 0.9}, "two answers": {Seed: 7, Temperature: 1, Answers: 2},
	}
}

// TestMatrix: tokens, logprobs and the end of an answer after a hand-off are those of one
// engine, for layouts x models x places of the last token in its block x ways to ask.
// BATON_MATRIX names a file: then all of it runs and is written there (testdata/matrix.log).
func TestMatrix(t *testing.T) {
	log, whole := os.Getenv("BATON_MATRIX"), os.Getenv("BATON_MATRIX") != ""
	var lines []string
	n := 0
	for _, s := range subjects(t) {
		for i, pair := range s.pairs {
			if i > 0 && !whole {
				continue
			}
			done := cross(t, s.m, pair, whole)
			n += done
			lines = append(lines, fmt.Sprintf("%-28s %v -> %v: %d combinations equal", s.m.Name, pair.src, pair.dst, done))
		}
	}
	lines = append(lines, fmt.Sprintf("%d combinations", n))
	t.Log("\n" + strings.Join(lines, "\n"))
	if whole && n < 60 {
		t.Errorf("%d combinations: want at least 60", n)
	}
	if whole && !t.Failed() {
		if err := os.WriteFile(log, []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// cross hands requests of one model from one layout to another and counts the
// combinations that were equal.
func cross(t *testing.T, m model.Config, pair pairing, whole bool) (equal int) {
	w := newWorld(t)
	from, to := pair.src.config(m, "prefill"), pair.dst.config(m, "decode")
	prefill, decode := launch(t, w, from), launch(t, w, to)
	checkBytes(t, from, prefill)
	checkBytes(t, to, decode)
	lengths := []int{15, 16, 17, 40}
	if !whole {
		lengths = []int{16, 17}
	}
	one := config(m, "x", 1)
	one.Types = pair.src.types
	for name, p := range features() {
		if !whole && name != "greedy" && name != "sampled" || short() && name != "greedy" {
			continue
		}
		for _, n := range lengths {
			req := front.Request{Tokens: prompt(n, 0, n), MaxNew: 12, Sample: p}
			export := req
			export.Mode, export.Label = front.Export, fmt.Sprint(name, n)
			_, made, err := answer(t, prefill[0], export)
			if err != nil {
				t.Fatalf("export %s: %v", export.Label, err)
			}
			good := true
			for req.Answer = range max(p.Answers, 1) { // an export is held until all are fetched
				want := expect(t, one, pair.dst.types, req)
				got, res := bring(t, decode[0], req, fmt.Sprint(export.Label, ".", req.Answer), made.Manifest)
				if !same(got, want) || res.Forwarded != 0 {
					t.Errorf("%s, %v to %v, %s, %d tokens: %+v and %+v, want %+v", m.Name, pair.src, pair.dst, name, n, got, res, want)
					good = false
				}
			}
			if good {
				equal++
			}
		}
	}
	return equal
}

// expect is what one engine answers that converts its state behind the prompt.
func expect(t *testing.T, one engine.Config, to model.Types, req front.Request) engine.Wanted {
	req.Mode = front.Full
	want, err := engine.ReferenceAnswer(t.Context(), one, to, req)
	if err != nil {
		t.Fatal(err)
	}
	if !req.Sample.Logprobs {
		want.Logprobs = nil
	}
	return want
}

// checkBytes holds what each rank keeps to closed forms: of its stage's layers, blocks
// times tokens times heads times dim for K and V, one row for a latent, and slots times
// channels or heads for what a request has.
func checkBytes(t *testing.T, c engine.Config, ranks []*engine.Rank) {
	t.Helper()
	m, types := c.Model, c.Types.WithDefaults()
	tp, pp := max(c.TP, 1), max(c.PP, 1)
	blocks, slots := int64(c.Blocks), int64(c.Slots)
	if c.EP > 1 {
		blocks, slots = blocks+1, slots+1 // of rows that are nobody's
	}
	for r, rank := range ranks {
		stage := r / (len(ranks) / pp)
		layers := m.Pattern[len(m.Pattern)*stage/pp : len(m.Pattern)*(stage+1)/pp]
		count := func(kinds string) (n int64) {
			for _, k := range kinds {
				n += int64(strings.Count(layers, string(k)))
			}
			return n
		}
		heads, groups := int64(max(m.KVHeads/tp, 1)), int64(max(m.Groups/tp, 1))
		inner := int64(m.SSMHeads * m.SSMHeadDim / tp)
		want := []int64{
			2 * count("*WD") * blocks * int64(c.BlockTokens) * heads * int64(m.HeadDim) * types.KV.Size(),
			count("L") * blocks * int64(c.BlockTokens) * int64(m.LatentDim+m.RotaryDim) * types.KV.Size(),
			count("M") * slots * (inner + 2*groups*int64(m.StateDim)) * int64(m.Window) * types.Conv.Size(),
			count("M") * slots * inner * int64(m.StateDim) * types.SSM.Size(),
		}
		var got []int64
		for _, b := range rank.Attach().Buffers {
			got = append(got, b.Len)
		}
		if want = slices.DeleteFunc(want, func(n int64) bool { return n == 0 }); !slices.Equal(got, want) {
			t.Errorf("%s, rank %d of %v: buffers of %d, want %d", m.Name, r, c.Split(), got, want)
		}
	}
}

// TestMatrixDamage: each kind of damage to each kind of model shows in the tokens.
func TestMatrixDamage(t *testing.T) {
	if short() {
		need.Skip(t, "matrix", "-short or the race detector: TestMatrix runs the same arithmetic")
	}
	for _, s := range subjects(t) {
		for _, c := range []engine.Corrupt{engine.CorruptKV, engine.CorruptState, engine.CorruptHeadSwap, engine.CorruptOneBlock, engine.CorruptPosition} {
			if !has(s.m, c, 1) {
				continue
			}
			w := newWorld(t)
			bad := config(s.m, "decode", 1)
			bad.Corrupt = c
			src, dst := launch(t, w, config(s.m, "prefill", 2))[0], launch(t, w, bad)[0]
			req := front.Request{Tokens: prompt(40, 0, 3), MaxNew: newTokens}
			if got, _ := carry(t, src, dst, req, string(c)); slices.Equal(got.Tokens, wanted(t, config(s.m, "x", 1), req).Tokens) {
				t.Errorf("%s, %s: the damage does not show", s.m.Name, c)
			}
		}
	}
}
