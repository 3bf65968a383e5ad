package lower_test

import (
	"github.com/batonkv/baton/transfer/layout"
	"github.com/batonkv/baton/transfer/lower"
	"github.com/batonkv/baton/transfer/reshard"
	"pgregory.net/rapid"
)

// pieces moves the first tokens of a pair, some layers after the others, and leaves the rest.
func (w *world) pieces(t *rapid.T, p *reshard.Plan, pair uint32, r reshard.Pair, hits [][]byte) (moved int64) {
	first := w.tokens
	first.Hi = rapid.Int32Range(first.Lo, first.Hi).Draw(t, "first tokens")
	layers := rapid.Int32Range(0, 4).Draw(t, "first layers")
	j := lower.Job{Pair: pair, SrcBlocks: w.srcBlocks, DstBlocks: w.dstBlocks, SrcSlot: -1, DstSlot: -1, Tokens: first}
	for _, span := range []layout.Span{{Hi: layers}, {Lo: layers, Hi: 1 << 30}} {
		tm, err := lower.Paged(p, pair, span)
		if err != nil {
			t.Fatal(err)
		}
		n, err := tm.Bytes(j)
		if err != nil {
			t.Fatal(err)
		}
		ns, err := tm.Nests(nil, j)
		if err != nil || n != lower.Bytes(ns) {
			t.Fatalf("%d bytes of %d: %v", lower.Bytes(ns), n, err)
		}
		for i := range ns {
			run(&ns[i], w.srcMem[r.Src], w.dstMem[r.Dst], hits)
		}
		moved += n
	}
	w.tokens.Lo = first.Hi
	return moved
}

// columns is how many the source keeps of a per-request state.
func (w *world) columns(state int32) int32 {
	for _, s := range w.src {
		if s.State == state {
			return s.Rows
		}
	}
	return 0
}
