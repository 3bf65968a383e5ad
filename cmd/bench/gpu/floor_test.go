//go:build cgo

package gpu

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/batonkv/baton/cmd/bench"
	"github.com/batonkv/baton/kernels/cuda/cudatest"
)

// floor is the C program that docs/PERFORMANCE.md compares with, made by the line that its head,
// the docs and .ci/gpu tell.
func floor(t *testing.T) (path string) {
	t.Helper()
	const root = "../../.."
	var texts [3]string
	for i, file := range []string{"kernels/dma/bench/floor.c", "docs/PERFORMANCE.md", ".ci/gpu"} {
		b, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			t.Fatal(err)
		}
		texts[i] = string(b)
	}
	_, line, _ := strings.Cut(texts[0], "\n//   gcc ")
	line, _, _ = strings.Cut(line, "\n")
	line = "gcc " + line
	if !strings.Contains(texts[1], "\n    "+line+"\n") || !strings.Contains(texts[2], strings.Replace(line, "-o floor", `-o "$1/floor"`, 1)) {
		t.Errorf("docs/PERFORMANCE.md or .ci/gpu makes it by another line than %q", line)
	}
	args := strings.Fields(line)
	path = filepath.Join(t.TempDir(), "floor")
	args[slices.Index(args, "floor")] = path
	c := exec.CommandContext(t.Context(), args[0], args[1:]...)
	c.Dir = root
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", line, err, out)
	}
	return path
}

// The C program measures its rows on a driver without a GPU, and says what it misses.
func TestFloor(t *testing.T) {
	driver := cudatest.Library(t)
	path := floor(t)
	run := func(env string, args ...string) (string, int) {
		c := exec.CommandContext(t.Context(), path, args...)
		c.Env = append(os.Environ(), "LD_LIBRARY_PATH="+filepath.Dir(driver), env)
		out, err := c.CombinedOutput()
		if c.ProcessState == nil {
			t.Fatal(err)
		}
		return string(out), c.ProcessState.ExitCode()
	}
	saved := filepath.Join(t.TempDir(), "floor.json")
	out, code := run("FAKE_CUDA_DEVICES=2", "--rounds", "2", "--shrink", "32", "--save", saved)
	if code != 0 {
		t.Fatalf("exit %d\n%s", code, out)
	}
	var r bench.Report
	b, err := os.ReadFile(saved)
	if err == nil {
		err = json.Unmarshal(b, &r)
	}
	if err != nil {
		t.Fatalf("%v\n%s", err, b)
	}
	var names []string
	for _, x := range r.Rows {
		names = append(names, x.Name)
		if len(x.Samples) != 2 || x.Samples[0] <= 0 || x.Value != x.Samples[1] || !strings.Contains(out, x.Name) || !strings.Contains(out, x.What) {
			t.Errorf("%+v\n%s", x, out)
		}
	}
	want, err := os.ReadFile("testdata/floor.txt")
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(names, "\n") + "\n"; got != string(want) {
		t.Errorf("rows\n%s\nwant\n%s", got, want)
	}
	if !strings.HasPrefix(r.Go, "gcc ") || !strings.HasPrefix(r.CPU, "2 of 2 Fake GPU 0, CUDA 13.0, ") || r.Command != "./floor --rounds 2" {
		t.Errorf("%s, %s: %s", r.CPU, r.Go, r.Command)
	}
	for _, c := range []struct {
		env, args, says string
		code            int
	}{
		{"FAKE_CUDA_DEVICES=1", "--rounds 1", "two GPUs are needed, and there are 1", 1},
		{"FAKE_CUDA_FAIL=cuMemcpy3DAsync:0:700", "--rounds 1 --shrink 32", "CUDA_ERROR_ILLEGAL_ADDRESS", 1},
		{"FAKE_CUDA_DEVICES=2", "--rounds 0", "usage: floor ", 2},
		{"FAKE_CUDA_DEVICES=2", "--help", "usage: floor ", 2},
	} {
		if out, code := run(c.env, strings.Fields(c.args)...); code != c.code || !strings.Contains(out, c.says) {
			t.Errorf("%s %s: exit %d, want %d and %q\n%s", c.env, c.args, code, c.code, c.says, out)
		}
	}
}
