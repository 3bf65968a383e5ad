package sim

import (
	"testing"

	"github.com/batonkv/baton/internal/mutants"
)

// TestMutants: see testdata/mutants.log for how many schedules each takes.
func TestMutants(t *testing.T) { mutants.Run(t, "testdata/mutants.txt") }
