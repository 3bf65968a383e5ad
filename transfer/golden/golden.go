// Package golden finds golden vectors for tests: JSON files named after the vector,
// in a testdata folder or in the directory that BATON_GOLDEN names.
package golden

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Env names the directory that replaces every testdata folder of vectors.
const Env = "BATON_GOLDEN"

// kinds are the first letters of all vectors that any test of the project reads.
var kinds = []string{"kv", "hy", "ext", "aux_"}

// Vector is one golden file.
type Vector struct {
	Name string // the file's name without .json: what its subtest is called
	Data []byte
}

// Decode reads the vector into v and fails t if it cannot.
func Decode[T any](t testing.TB, v Vector) T {
	t.Helper()
	var out T
	if err := json.Unmarshal(v.Data, &out); err != nil {
		t.Fatalf("%s: %v", v.Name, err)
	}
	return out
}

// Read returns the vectors of a kind ("kv", "hy", "ext", "aux_block_hashes") from
// dir, or from the directory that BATON_GOLDEN names. Lacking the kind skips t;
// a directory with no vector of any kind fails it.
func Read(t testing.TB, dir, kind string) []Vector {
	t.Helper()
	if d := os.Getenv(Env); d != "" {
		dir = d
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var out []Vector
	some := false
	for _, e := range entries {
		name, ok := strings.CutSuffix(e.Name(), ".json")
		if !ok || e.IsDir() {
			continue
		}
		for _, k := range kinds {
			some = some || strings.HasPrefix(name, k)
		}
		if !strings.HasPrefix(name, kind) {
			continue
		}
		b, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, Vector{name, b})
	}
	if !some {
		t.Fatalf("%s holds no golden vector of any kind", dir)
	}
	if len(out) == 0 {
		t.Skipf("%s holds no %s vector", dir, kind)
	}
	return out
}
