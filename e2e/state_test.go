package e2e

import (
	"fmt"
	"testing"

	"github.com/batonkv/baton/cmd/dev"
	"github.com/batonkv/baton/examples/engine/model"
)

// types are those of a group's state; a test without that group has the engine's own.
func types(g *dev.Running) model.Types {
	if g == nil {
		return model.Types{}
	}
	return model.Types{KV: g.KV, Conv: g.Conv, SSM: g.SSM}
}

// TestStates: what ranks share, latents and windows move through the real movers, and
// are converted on the way. The bytes are what the decode group stores of it.
func TestStates(t *testing.T) {
	const perSlot = 2 * 8 * 16 * 16 // elements of recurrent state of the hybrids
	for _, c := range []struct {
		model, shards        string
		token, request, size int64 // bytes that move: of a token, of a request; bytes of KV in all pools
	}{
		// Four ranks with one of two KV heads each; one of two B and C each.
		{"gqa", "tp=1,role=prefill+tp=4,role=decode", 2 * 2 * 4 * 16 * 2, 2*(128+2*4*16)*4*4 + perSlot*4, 2 * 2 * (2 + 4) * 16 * 2},
		{"gqa", "tp=4,kv=fp32,role=prefill+tp=1,kv=fp16,state=bf16,role=decode", 2 * 2 * 2 * 16 * 2, 2*(128+2*2*16)*4*2 + perSlot*2, 2 * 2 * (4*4 + 2*2) * 16},
		// The latent is whole on every rank.
		{"mla", "tp=2,role=prefill+tp=4,kv=fp32,role=decode", 4 * 40 * 4 * 4, 0, 4 * 40 * (2*2 + 4*4)},
		{"swa", "tp=4,kv=fp16,role=prefill+tp=2,role=decode", 4 * 2 * 4 * 16 * 2, 0, 4 * 2 * 4 * 16 * (2 + 2)},
	} {
		t.Run(fmt.Sprintf("%s %s", c.model, c.shards), func(t *testing.T) {
			w := up(t, c.shards, c.model)
			for i, n := range []int{1, block, 5*block + 3} {
				label := fmt.Sprintf("%d tokens", n)
				m := w.handoff(label, prompt(i+1, n))
				if want := int64(n)*c.token + c.request; m.Bytes != want {
					t.Errorf("%s: moved %d bytes, want %d", label, m.Bytes, want)
				}
			}
			var kv int64
			for _, g := range w.Groups {
				for _, k := range g.Ranks {
					kv += k.Engine.KVBytes
				}
				w.allFree(g, poolBlocks, poolSlots)
			}
			if want := c.size * poolBlocks * block; kv != want {
				t.Errorf("%d bytes of KV in all pools, want %d", kv, want)
			}
		})
	}
}
