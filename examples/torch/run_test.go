// Package torch holds tests of run.py, which is in Python: see README.md.
package torch

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/batonkv/baton/internal/need"
)

// saved is what run.py --save writes.
type saved struct {
	Cases []struct {
		Model           string
		Prefill, Decode int
		Corrupt         string
		Requests        map[string]struct {
			Prompt, Bytes int
			Margin        float64
			Equal         bool
			Tokens        []int
		}
	}
}

// run runs run.py and returns its exit code and what it said.
func run(t *testing.T, python, baton string, args ...string) (int, string) {
	cmd := exec.CommandContext(t.Context(), python, append([]string{"run.py", "--baton", baton}, args...)...)
	out, err := cmd.CombinedOutput()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), string(out)
}

// want are the cases of run.py --suite short.
var want = []string{"llama 2 1 ", "hybrid 2 1 ", "mla 1 2 ", "hybrid 2 1 state"}

// TestHandOver runs real models over real sidecars: tokens after a hand-off are those of one
// process; damage is found, and ends a run with exit code 1.
func TestHandOver(t *testing.T) {
	python := need.Transformers(t)
	baton := filepath.Join(t.TempDir(), "baton")
	if out, err := exec.Command("go", "build", "-ldflags=-w", "-o", baton, "../..").CombinedOutput(); err != nil {
		t.Fatalf("build baton: %v: %s", err, out)
	}
	t.Run("suite", func(t *testing.T) { suite(t, python, baton) })
	t.Run("save", func(t *testing.T) {
		if code, out := run(t, python, baton, "--save", filepath.Join(t.TempDir(), "none", "x.json")); code != 2 {
			t.Errorf("--save into a folder that is not there ended with %d:\n%s", code, out)
		}
	})
	t.Run("damage", func(t *testing.T) {
		code, out := run(t, python, baton, "--model", "mla", "--prefill", "tp=1", "--corrupt")
		if code != 1 || !strings.Contains(out, "NOT EQUAL") {
			t.Errorf("run.py --corrupt ended with %d:\n%s", code, out)
		}
	})
}

func suite(t *testing.T, python, baton string) {
	file := filepath.Join(t.TempDir(), "saved.json")
	code, out := run(t, python, baton, "--suite", "short", "--save", file)
	if code != 0 {
		t.Fatalf("run.py --suite short ended with %d:\n%s", code, out)
	}
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var got saved
	if err := json.Unmarshal(b, &got); err != nil {
		t.Fatal(err)
	}
	if len(got.Cases) != len(want) {
		t.Fatalf("%d cases, want %d:\n%s", len(got.Cases), len(want), out)
	}
	for i, c := range got.Cases {
		if name := fmt.Sprint(c.Model, " ", c.Prefill, " ", c.Decode, " ", c.Corrupt); name != want[i] {
			t.Errorf("case %d is %q, want %q", i, name, want[i])
		}
		if len(c.Requests) != 6 {
			t.Errorf("%s: %d requests, want 6", want[i], len(c.Requests))
		}
		differ := 0
		for label, r := range c.Requests {
			if r.Bytes == 0 || len(r.Tokens) != 24 || c.Corrupt == "" && !r.Equal {
				t.Errorf("%s, %s: %d bytes moved, tokens %v, equal %v", want[i], label, r.Bytes, r.Tokens, r.Equal)
			}
			if !r.Equal {
				differ++
			}
		}
		if c.Corrupt != "" && differ == 0 {
			t.Errorf("%s: damage was not found", want[i])
		}
	}
}
