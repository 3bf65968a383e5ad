package engine_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/batonkv/baton/examples/engine/model"
)

// TestRealWeights: models that transformers saved move between layouts, and their tokens
// after the hand-off are those of one engine.
func TestRealWeights(t *testing.T) {
	for _, name := range []string{"llama", "bamba", "groups"} {
		m, err := model.Load("model/testdata/" + name)
		if err != nil {
			t.Fatal(err)
		}
		for _, pair := range [][2]int{{2, 1}, {1, 2}} {
			if short() && pair[0] != 2 {
				continue
			}
			w := newWorld(t)
			src, dst := launch(t, w, config(m, "prefill", pair[0]))[0], launch(t, w, config(m, "decode", pair[1]))[0]
			for _, n := range lengths() {
				tokens := prompt(n, 0, n)
				want := reference(t, config(m, "x", 1), tokens, newTokens)
				got, res := handOff(t, src, dst, fmt.Sprint(name, n), tokens)
				if !slices.Equal(got, want) || res.Forwarded != 0 {
					t.Errorf("%s tp%d to tp%d, %d tokens: %v and %+v, want %v", name, pair[0], pair[1], n, got, res, want)
				}
			}
		}
	}
}
