// Package fake builds a library that looks like NIXL, for tests of what the real one does
// seldom or elsewhere. It reads like CMA does, from processes of this host.
package fake

import (
	_ "embed"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/batonkv/baton/internal/need"
)

const (
	// Env has the faults of a process's library, with commas between: see testdata/fake.c.
	Env = "FAKE_NIXL"
	// EnvMark is the file that a stuck read makes.
	EnvMark = "FAKE_NIXL_MARK"
)

//go:embed testdata/fake.c
var source string

// Build compiles the library and returns its path. Flags are gcc's: -DOLD leaves functions
// out, -DSTUB says that it is a stub.
func Build(t testing.TB, flags ...string) string {
	t.Helper()
	dir := t.TempDir()
	c, so := filepath.Join(dir, "fake.c"), filepath.Join(dir, "libnixl_capi.so")
	if err := os.WriteFile(c, []byte(source), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := exec.LookPath("gcc"); err != nil {
		need.Skip(t, "gcc", "a fake NIXL needs gcc: %v", err)
	}
	if b, err := exec.Command("gcc", append(flags, "-shared", "-fPIC", "-Wall", "-Werror", "-o", so, c)...).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, b)
	}
	return so
}
