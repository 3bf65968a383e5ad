package demo

import (
	"slices"
	"testing"
)

func TestPrompts(t *testing.T) {
	for _, block := range []int32{1, 2, 16, 64, 1024} {
		ps := prompts(block)
		lengths := map[string]int32{}
		for _, p := range ps {
			lengths[p.name] = int32(len(p.tokens))
			if len(p.tokens) == 0 {
				t.Errorf("block %d: %s is empty", block, p.name)
			}
			if need := (int32(len(p.tokens)) + 24 + block - 1) / block; need > blocks(block, 24) {
				t.Errorf("block %d: %s needs %d blocks of %d", block, p.name, need, blocks(block, 24))
			}
		}
		for name, want := range map[string]int32{"one token": 1, "block - 1": block - 1, "block": block, "block + 1": block + 1, "three blocks": 3 * block} {
			if lengths[name] != want {
				t.Errorf("block %d: %s has %d tokens, want %d", block, name, lengths[name], want)
			}
		}
		long, shared := ps[len(ps)-2].tokens, ps[len(ps)-1].tokens
		if int32(len(long)) <= 4*block || !slices.Equal(long[:4*block], shared[:4*block]) {
			t.Errorf("block %d: %d and %d tokens do not share four blocks", block, len(long), len(shared))
		}
	}
}
