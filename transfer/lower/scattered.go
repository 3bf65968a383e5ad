package lower

import "github.com/batonkv/baton/transfer/layout"

// ScatteredJob is a job of n source blocks whose tables are no run of neighbours,
// or, with consecutive, are one: what plans are explained and measured with. Pools hold at least
// twice the blocks named.
func ScatteredJob(t *Template, n, srcRows, dstRows int32, consecutive bool) Job {
	tokens := int64(n) * int64(srcRows)
	j := Job{Pair: t.pair, Tokens: layout.Span{Hi: int32(tokens)}}
	j.SrcBlocks = scatter(n, consecutive)
	j.DstBlocks = scatter(int32((tokens+int64(dstRows)-1)/int64(dstRows)), consecutive)
	return j
}

// scatter names the numbers below n once each, never two neighbours in a row: it
// deals them into hands 64 apart.
func scatter(n int32, consecutive bool) []int32 {
	out := make([]int32, 0, n)
	if consecutive || n < 3 {
		for i := range n {
			out = append(out, i)
		}
		return out
	}
	const step = 64
	for first := range int32(step) {
		for i := first; i < n; i += step {
			out = append(out, i)
		}
	}
	return out
}
