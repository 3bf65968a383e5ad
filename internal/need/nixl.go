package need

import (
	"os"
	"testing"
)

// EnvNIXL names the real library for tests. It is not what sidecars look at, so that tests of
// other things do not move bytes by it.
const EnvNIXL = "BATON_TEST_NIXL"

// NIXL is the path of the real library. Without it the test is skipped, "nixl".
func NIXL(t testing.TB) string {
	t.Helper()
	path := os.Getenv(EnvNIXL)
	if path == "" {
		Skip(t, "nixl", "%s does not name a libnixl_capi.so (.ci/run nixl downloads one)", EnvNIXL)
	}
	return path
}
