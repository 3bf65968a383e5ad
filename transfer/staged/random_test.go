package staged

import (
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
)

// randomSetup draws a world: senders into small arenas, with or without faults.
func randomSetup(r *rand.Rand) setup {
	conf := func() Config {
		n := int32(1 + r.IntN(5))
		return Config{Chunks: n, PerPeer: 1 + r.Int32N(n), MaxJobs: 1 + r.Int32N(4)}
	}
	s := setup{src: conf(), dst: conf(), srcs: 1 + r.IntN(8), dsts: 1 + r.IntN(3), reconnect: uint8(r.IntN(4)), copies: atOnce}
	if r.IntN(2) == 0 {
		s.faults = uint8(1 + r.IntN(12))
	}
	if r.IntN(4) == 0 {
		s.copies = anyOrder
	}
	for range 1 + r.IntN(20) {
		s.jobs = append(s.jobs, jobSpec{src: r.IntN(s.srcs), dst: r.IntN(s.dsts), chunks: 1 + r.Int32N(24)})
	}
	if r.IntN(10) == 0 {
		s.jobs[0].chunks = 2*windowSize + 5
	}
	if s.faults == 0 { // Full is no fault of the world, and a pull that meets it ends
		s.src.MaxJobs, s.dst.MaxJobs = int32(len(s.jobs)), int32(len(s.jobs))
	}
	return s
}

// play steps a world at random until nothing but faults can happen.
func play(seed uint64, trace *[]string) (w *world, why string, steps int) {
	r := rand.New(rand.NewPCG(seed, 1))
	set := randomSetup(r)
	w = newWorld(&set)
	for ; ; steps++ {
		all := w.steps()
		var go_, idle []step
		for _, x := range all {
			if x.idle {
				idle = append(idle, x)
			} else {
				go_ = append(go_, x)
			}
		}
		if len(go_) == 0 {
			return w, w.stuck(), steps
		}
		x := go_[r.IntN(len(go_))]
		if len(idle) > 0 && r.IntN(12) == 0 {
			x = idle[r.IntN(len(idle))]
		}
		if trace != nil {
			*trace = append(*trace, x.label().String())
		}
		w.apply(x)
		if w.bad != "" {
			return w, w.bad, steps
		}
		if steps > 200_000 {
			return w, "goes on for ever", steps
		}
	}
}

// TestRandom lets many senders share small arenas. BATON_SEED=n replays one world with
// its trace, BATON_SEEDS=n says how many.
func TestRandom(t *testing.T) {
	if s := os.Getenv("BATON_SEED"); s != "" {
		seed, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		var trace []string
		w, why, _ := play(seed, &trace)
		t.Logf("%+v\n%s\n%s", *w.set, strings.Join(trace, "\n"), why)
		if why != "" {
			t.Fail()
		}
		return
	}
	n := uint64(400)
	if s, err := strconv.ParseUint(os.Getenv("BATON_SEEDS"), 10, 64); err == nil {
		n = s
	}
	if racing {
		n = min(n, 20)
	}
	steps, good, bad := 0, 0, 0
	for seed := range n {
		w, why, k := play(seed, nil)
		if why != "" {
			t.Fatalf("BATON_SEED=%d: after %d steps: %s", seed, k, why)
		}
		steps += k
		for _, j := range w.job {
			if j.why == 0 {
				good++
			} else {
				bad++
			}
		}
	}
	t.Logf("%d worlds, %d steps, %d jobs good, %d failed", n, steps, good, bad)
}
