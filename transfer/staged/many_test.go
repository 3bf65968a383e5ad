package staged

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

// drain steps w at random, and fetches between slow ends never, until nothing else can
// happen. slow may be nil.
func drain(w *world, r *rand.Rand, slow func(src, dst int) bool) string {
	for range 2_000_000 {
		var can []step
		for _, x := range w.steps() {
			fetch := x.act == actFetchPart || x.act == actFetchDone
			if !x.idle && !(fetch && slow != nil && slow(w.dst[x.a].fetches[x.b].src, x.a)) {
				can = append(can, x)
			}
		}
		if len(can) == 0 {
			return ""
		}
		if w.apply(can[r.IntN(len(can))]); w.bad != "" {
			return w.bad
		}
	}
	return "goes on for ever"
}

// TestManySenders: senders far more than the arena of their reader has chunks all come to
// their end, and while some of them stand still so do the others, as long as the slow ones
// leave a chunk. It is the same for many readers of one source.
func TestManySenders(t *testing.T) {
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 2))
		n, slows := 2+r.IntN(24), r.IntN(3)
		per := 1 + r.Int32N(2)
		small := Config{Chunks: int32(slows)*per + 1 + r.Int32N(2), PerPeer: 0, MaxJobs: 8}
		small.PerPeer = min(per, small.Chunks)
		wide := Config{Chunks: 1 + r.Int32N(3), PerPeer: 1, MaxJobs: 8}
		s := setup{src: wide, dst: small, srcs: n, dsts: 1, copies: atOnce}
		many := func(src, _ int) int { return src }
		if seed%2 == 1 {
			s.src, s.dst, s.srcs, s.dsts = small, wide, 1, n
			many = func(_, dst int) int { return dst }
		}
		for i := range n {
			for range 1 + r.IntN(2) {
				j := jobSpec{src: i % s.srcs, dst: i % s.dsts, chunks: 1 + r.Int32N(3*small.Chunks)}
				if many(j.src, j.dst) < slows {
					j.chunks = windowSize + 5
				}
				s.jobs = append(s.jobs, j)
			}
		}
		w := newWorld(&s)
		why := drain(w, r, func(src, dst int) bool { return many(src, dst) < slows })
		for j, x := range w.job {
			if slow := many(s.jobs[j].src, s.jobs[j].dst) < slows; why == "" && !slow && (x.ended != 1 || x.why != 0) {
				why = fmt.Sprintf("a slow peer holds up job %d of another", j)
			}
		}
		if why == "" {
			if why = drain(w, r, nil); why == "" {
				why = w.stuck()
			}
		}
		if why != "" {
			t.Fatalf("seed %d: %+v: %s", seed, s, why)
		}
	}
}
