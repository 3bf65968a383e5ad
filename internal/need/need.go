// Package need is what a test does that misses something of its machine, or of the time that
// it is given: a GPU, a wheel, the whole of the walks.
package need

import (
	"os"
	"slices"
	"strings"
	"testing"
)

// Env names what must be there, with commas between: a test that misses it fails.
const Env = "BATON_REQUIRE"

// Skip skips the test with the reason that what is missing, or fails it if Env names what.
func Skip(t testing.TB, what, format string, args ...any) {
	t.Helper()
	if slices.Contains(strings.Split(os.Getenv(Env), ","), what) {
		t.Fatalf(Env+" names "+what+": "+format, args...)
	}
	t.Skipf(format, args...)
}
