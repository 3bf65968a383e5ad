package need

import (
	"os"
	"testing"
)

// EnvTransformers names a Python that has transformers, torch and gRPC.
const EnvTransformers = "BATON_TRANSFORMERS"

// Transformers is that Python. Without it the test is skipped, "transformers".
func Transformers(t testing.TB) string {
	t.Helper()
	python := os.Getenv(EnvTransformers)
	if python == "" {
		Skip(t, "transformers", "%s names no Python with examples/engine/model/python/requirements.txt (.ci/run transformers makes one)", EnvTransformers)
	}
	return python
}
