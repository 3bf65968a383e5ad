package bench

import (
	"errors"
	"strings"
	"testing"
)

// TestMissed: a row that missed its target is named with both figures; one without a target, or
// that met it, is not.
func TestMissed(t *testing.T) {
	r := Report{Rows: []Result{AtMost(Result{Name: "a", Unit: "us", Samples: []float64{2}}, 3), {Name: "b"}}}
	if err := r.Missed(); err != nil {
		t.Error(err)
	}
	r.Rows = append(r.Rows, AtLeast(Result{Name: "c", Unit: "x", Samples: []float64{0.5}}, 0.85))
	if err := r.Missed(); !errors.Is(err, ErrMissed) || !strings.HasSuffix(err.Error(), ": c is 0.50 x, want >= 0.85") {
		t.Error(err)
	}
}
