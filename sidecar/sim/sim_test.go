package sim

import (
	"bytes"
	"flag"
	"os"
	"testing"
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
	if r.Admitted < r.Schedules*2 {
		t.Errorf("%d hand-offs in %d schedules: the worlds have become idle", r.Admitted, r.Schedules)
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
