package sim

import (
	"bytes"
	"flag"
	"math"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/batonkv/baton/sidecar/machine"
)

var (
	schedules = flag.Uint64("schedules", 2000, "schedules of TestSchedules")
	oneSeed   = flag.Uint64("seed", 0, "run and trace this schedule alone")
)

// TestSchedules plays seeded clusters; see the package's comment for what must hold.
func TestSchedules(t *testing.T) {
	if *oneSeed != 0 {
		if bad := Replay(*oneSeed, os.Stdout); bad != "" {
			t.Error(bad)
		}
		return
	}
	r := Run(t.Context(), Options{Seed: 1, Schedules: *schedules})
	for _, f := range r.Failures {
		t.Errorf("seed %d: %s\nsee its trace by: go test ./sidecar/sim -run TestSchedules -v -seed=%d", f.Seed, f.What, f.Seed)
	}
	t.Log(r)
	for _, missed := range r.Coverage.Missed(0) { // what cannot happen, and did
		t.Error(missed)
	}
	if r.Admitted < r.Schedules*2 {
		t.Errorf("%d hand-offs in %d schedules: the worlds have become idle", r.Admitted, r.Schedules)
	}
}

// TestNever: every line that says what cannot happen names something, and says why.
func TestNever(t *testing.T) {
	lines := 0
	for line := range strings.Lines(never) {
		if !strings.HasPrefix(line, "#") {
			lines++
		}
		where, _, _ := strings.Cut(line, ": ")
		f := strings.Fields(where)
		for _, state := range strings.Split(f[min(1, len(f)-1)], ",") {
			for _, in := range strings.Split(f[len(f)-1], ",") {
				if _, ok := pairNamed(f[0] + " " + state + " " + in); !ok && f[0] != "#" {
					t.Errorf("%q names %s %s %s, which is no pair", line, f[0], state, in)
				}
			}
		}
	}
	if n := len(Never()); n < lines {
		t.Errorf("%d pairs in %d lines", n, lines)
	}
}

func pairNamed(name string) (machine.Pair, bool) {
	for p := range machine.Pair(machine.NumPairs) {
		if p.String() == name {
			return p, true
		}
	}
	return 0, false
}

// TestSketch: the estimate of distinct hashes is good to a few percent.
func TestSketch(t *testing.T) {
	for _, n := range []uint64{0, 1, 1000, 300_000} {
		var a, b sketch
		for i := range n {
			[]*sketch{&a, &b}[i%2].mark(i)
			a.mark(i / 2)
		}
		a.add(&b)
		if got := a.count(); math.Abs(float64(got)-float64(n)) > 0.04*float64(n) {
			t.Errorf("%d hashes count as %d", n, got)
		}
	}
}

// TestMoments: what comes first happens first, and at one instant in order, also when more
// comes meanwhile.
func TestMoments(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 1000 {
		var h moments
		var seq uint32
		last := moment{at: -1}
		for step := range 1500 {
			for range 8 {
				if seq++; step < 150 {
					h.push(moment{at: max(last.at, 0) + time.Duration(r.IntN(1+r.IntN(500))), seq: seq})
				}
			}
			if len(h) == 0 {
				continue
			}
			m := h.pop()
			if !last.before(&m) {
				t.Fatalf("%v/%d after %v/%d", m.at, m.seq, last.at, last.seq)
			}
			last = m
		}
	}
}

// TestReplay: a seed is one schedule.
func TestReplay(t *testing.T) {
	for seed := uint64(1); seed < 20; seed++ {
		var a, b bytes.Buffer
		if Replay(seed, &a) != Replay(seed, &b) || !bytes.Equal(a.Bytes(), b.Bytes()) {
			t.Fatalf("seed %d plays in two ways", seed)
		}
	}
}
