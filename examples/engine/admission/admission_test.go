package admission_test

import (
	"errors"
	"testing"

	"pgregory.net/rapid"

	"github.com/batonkv/baton/examples/engine/admission"
	"github.com/batonkv/baton/transfer/golden"
)

// TestGolden holds every decision of the reference.
func TestGolden(t *testing.T) {
	type file struct {
		Graphs map[string][][3]int32
		Cases  []struct {
			Graphs        string
			ActiveTokens  int32 `json:"active_tokens"`
			ActivePrefill int32 `json:"active_prefill"`
			ActiveDecode  int32 `json:"active_decode"`
			Budget        int32
			Strict        bool
			Chunk         *int32
		}
	}
	for _, v := range golden.Read(t, "testdata", "aux_cuda_graph_admission") {
		f := golden.Decode[file](t, v)
		if len(f.Cases) == 0 {
			t.Fatal("no cases")
		}
		for _, c := range f.Cases {
			r := admission.Rules{Strict: c.Strict}
			for _, g := range f.Graphs[c.Graphs] {
				r.Shapes = append(r.Shapes, admission.Shape{Tokens: g[0], Prefills: g[1], Decodes: g[2]})
			}
			b := admission.Batch{Tokens: c.ActiveTokens, Prefills: c.ActivePrefill, Decodes: c.ActiveDecode}
			var want int32
			if c.Chunk != nil {
				want = *c.Chunk
			}
			if got := r.Chunk(b, c.Budget); got != want {
				t.Errorf("%+v: chunk %d, want %d", c, got, want)
			}
		}
	}
}

// TestChunkIsMost compares with every chunk that there is.
func TestChunkIsMost(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		small := rapid.Int32Range(0, 12)
		r := admission.Rules{Strict: rapid.Bool().Draw(t, "strict")}
		for range rapid.IntRange(0, 5).Draw(t, "shapes") {
			r.Shapes = append(r.Shapes, admission.Shape{Tokens: small.Draw(t, "tokens"), Prefills: small.Draw(t, "prefills"), Decodes: small.Draw(t, "decodes")})
		}
		b := admission.Batch{Tokens: small.Draw(t, "active"), Prefills: small.Draw(t, "p"), Decodes: small.Draw(t, "d")}
		budget := small.Draw(t, "budget")
		var want int32
		for n := int32(1); n <= budget; n++ {
			if _, ok := r.Match(admission.Batch{Tokens: b.Tokens + n, Prefills: b.Prefills + 1, Decodes: b.Decodes}); ok {
				want = n
			}
		}
		if got := r.Chunk(b, budget); got != want {
			t.Fatalf("chunk %d, want %d", got, want)
		}
	})
}

func TestGate(t *testing.T) {
	one := []admission.Shape{{Tokens: 8, Prefills: 1, Decodes: 2}, {Tokens: 4, Decodes: 4}}
	type step struct {
		batch   admission.Batch
		prompt  admission.Prompt
		verdict admission.Verdict
		chunk   int32
		err     error
		waits   int
	}
	for name, tc := range map[string]struct {
		rules admission.Rules
		steps []step
	}{
		"no shapes let all in": {steps: []step{{admission.Batch{Tokens: 3, Decodes: 3}, admission.Prompt{Left: 9}, admission.Run, 9, nil, 0}}},
		"waits behind others, then runs": {admission.Rules{Shapes: one, Strict: true}, []step{
			{admission.Batch{Tokens: 3, Decodes: 3}, admission.Prompt{Left: 5}, admission.Wait, 0, nil, 1},
			{admission.Batch{Tokens: 3, Decodes: 3}, admission.Prompt{Left: 5}, admission.Wait, 0, nil, 2},
			{admission.Batch{Tokens: 2, Decodes: 2}, admission.Prompt{Left: 9}, admission.Run, 6, nil, 0}}},
		"a decode takes a prefill's place": {admission.Rules{Shapes: []admission.Shape{{8, 2, 1}}}, []step{
			{admission.Batch{Tokens: 2, Decodes: 2}, admission.Prompt{Left: 2}, admission.Run, 2, nil, 0}}},
		"not in a strict engine": {admission.Rules{Shapes: []admission.Shape{{8, 2, 1}}, Strict: true}, []step{
			{admission.Batch{Tokens: 2, Decodes: 2}, admission.Prompt{Left: 2}, admission.Wait, 0, nil, 1}}},
		"idle without coverage": {admission.Rules{Shapes: one[1:]}, []step{
			{admission.Batch{}, admission.Prompt{Left: 2}, 0, 0, admission.ErrShapes, 0}}},
		"a lone continuation runs eagerly": {admission.Rules{Shapes: one[1:]}, []step{
			{admission.Batch{}, admission.Prompt{Left: 2, Started: true}, admission.Eager, 2, nil, 0}}},
		"one that is not alone waits": {admission.Rules{Shapes: one[1:]}, []step{
			{admission.Batch{Tokens: 1, Decodes: 1}, admission.Prompt{Left: 2, Started: true}, admission.Wait, 0, nil, 1}}},
	} {
		t.Run(name, func(t *testing.T) {
			g := admission.Gate{Rules: tc.rules}
			for i, s := range tc.steps {
				v, n, err := g.Admit(s.batch, s.prompt, 64)
				if v != s.verdict || n != s.chunk || !errors.Is(err, s.err) || g.Waits() != s.waits {
					t.Fatalf("step %d: %v, %d tokens, %v, waited %d; want %+v", i, v, n, err, g.Waits(), s)
				}
			}
		})
	}
}

func TestShorten(t *testing.T) {
	for _, c := range []struct {
		chunk, left, pos int32
		align            bool
		want             int32
	}{
		{10, 10, 0, true, 10}, // the last one
		{10, 40, 0, false, 10},
		{10, 11, 0, false, 9}, // one token would be left
		{1, 2, 0, false, 1},
		{10, 40, 0, true, 8},
		{10, 40, 3, true, 9},
		{3, 40, 1, true, 3}, // no boundary within it
	} {
		if got := admission.Shorten(c.chunk, c.left, c.pos, 4, c.align); got != c.want {
			t.Errorf("%+v: %d", c, got)
		}
	}
}
