package adapter

import (
	"fmt"
	"math"

	"github.com/batonkv/baton/sidecar/handoff"
)

// Bounds of what an adapter counts.
const (
	MaxCounts    = 64
	MaxCountName = 48 // bytes
)

// Counter is an ability of adapters that count what they do. The sidecar shows each count in
// its metrics as baton_adapter_NAME, with the adapter's name as a label.
type Counter interface {
	// Counts gives what CheckCounts allows: names, and values of this life. One whose name ends
	// in _total only grows. It may be called at any time, beside other calls, and returns at once.
	Counts() map[string]float64
}

// CheckCounts says what is wrong, as handoff.ErrBound.
func CheckCounts(counts map[string]float64) error {
	if len(counts) > MaxCounts {
		return fmt.Errorf("%w: an adapter counts %d things, at most %d", handoff.ErrBound, len(counts), MaxCounts)
	}
	for name, value := range counts {
		if !countName(name) || math.IsNaN(value) || math.IsInf(value, 0) {
			return fmt.Errorf("%w: an adapter counts %.*q as %v: want a number, and a name of at most %d lower-case letters, digits and _ that begins with a letter",
				handoff.ErrBound, MaxCountName, name, value, MaxCountName)
		}
	}
	return nil
}

func countName(name string) bool {
	for n, c := range []byte(name) {
		if letter := c >= 'a' && c <= 'z'; !letter && (n == 0 || c != '_' && (c < '0' || c > '9')) {
			return false
		}
	}
	return name != "" && len(name) <= MaxCountName
}
