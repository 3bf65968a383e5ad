// Package python_test runs the tests of the engines' client in Python.
package python_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/batonkv/baton/internal/need"
	"github.com/batonkv/baton/kernels/cuda/cudatest"
)

const root = "../../.."

// run fails the test with what a command says.
func run(t *testing.T, env []string, command ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), command[0], command[1:]...)
	cmd.Env = append(os.Environ(), env...)
	said, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %v\n%s", command, err, said)
	}
	return string(said)
}

// TestUnits: shards, messages, and sessions with a sidecar that the tests play.
func TestUnits(t *testing.T) {
	python := need.PyClient(t, root)
	run(t, nil, python, "-m", "unittest", "test_shard", "test_wire", "test_session", "test_blocks", "test_example")
}

// TestGPU: what is passed of GPU memory, by the stand-in for the driver.
func TestGPU(t *testing.T) {
	python := need.PyClient(t, root)
	lib := filepath.Dir(cudatest.Library(t))
	said := run(t, []string{"LD_LIBRARY_PATH=" + lib, "BATON_FAKE_CUDA=1"}, python, "-m", "unittest", "test_gpu")
	if strings.Contains(said, "skipped") {
		t.Error(said)
	}
}

// TestTyped holds the package to strict types, of the oldest Python that it admits.
func TestTyped(t *testing.T) {
	run(t, nil, need.PyClient(t, root), "-m", "mypy", "--cache-dir", t.TempDir(), "baton")
}

// TestInstalled: pip installs the package, and it works without this folder.
func TestInstalled(t *testing.T) {
	python := need.PyClient(t, root)
	tree, to := filepath.Join(t.TempDir(), "tree"), t.TempDir()
	if err := os.CopyFS(filepath.Join(tree, "baton"), os.DirFS("baton")); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"pyproject.toml", "README.md"} {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(tree, name), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	run(t, nil, python, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-deps", "--no-index", "--no-build-isolation", "--target", to, tree)
	for _, name := range []string{"py.typed", "client.py", "_schema.py"} {
		if _, err := os.Stat(filepath.Join(to, "baton", name)); err != nil {
			t.Error(err)
		}
	}
	said := run(t, nil, python, "-c", "import sys; sys.path.insert(0, '"+to+"'); import baton; print(baton.__file__)")
	if !strings.HasPrefix(said, to) {
		t.Errorf("imported from %s", said)
	}
}

// TestReadmeExample: the README's engine is example.py, which e2e runs.
func TestReadmeExample(t *testing.T) {
	page, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	code, err := os.ReadFile("example.py")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(page), "```python\n"+string(code)+"```\n") {
		t.Error("README.md does not have example.py as it is")
	}
}
