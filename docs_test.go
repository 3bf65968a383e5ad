package main

import (
	"encoding/json"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/batonkv/baton/cmd/bench"
)

func read(t *testing.T, path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestFigures holds docs/PERFORMANCE.md against the runs that are checked in, every
// sample of them: no figure is written by hand.
func TestFigures(t *testing.T) {
	page := read(t, "docs/PERFORMANCE.md")
	runs, err := filepath.Glob("docs/bench/*.json")
	if err != nil || len(runs) == 0 {
		t.Fatalf("docs/bench has no runs: %v", err)
	}
	for _, f := range runs {
		var r bench.Report
		if err := json.Unmarshal([]byte(read(t, f)), &r); err != nil {
			t.Fatalf("%s: %v", f, err)
		}
		var want strings.Builder
		r.Markdown(&want)
		if !strings.Contains(page, want.String()) {
			t.Errorf("docs/PERFORMANCE.md does not have the table of %s:\n%s", f, &want)
		}
	}
}

// TestReadmeExample holds the README's engine against the example that compiles.
func TestReadmeExample(t *testing.T) {
	code := read(t, "sidecar/engine/client/example_test.go")
	_, body, _ := strings.Cut(code, "func Example() {\n")
	body = strings.TrimSuffix(body, "}\n")
	var flat strings.Builder
	for _, l := range strings.SplitAfter(body, "\n") {
		flat.WriteString(strings.TrimPrefix(l, "\t"))
	}
	if !strings.Contains(read(t, "README.md"), "```go\n"+flat.String()+"```") {
		t.Errorf("README.md's engine is not that of sidecar/engine/client/example_test.go:\n%s", &flat)
	}
}

// TestSafetyNamesTests: each test that docs/SAFETY.md names exists.
func TestSafetyNamesTests(t *testing.T) {
	have := map[string]bool{}
	named := regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\(`)
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(path, "_test.go") {
			for _, m := range named.FindAllStringSubmatch(read(t, path), -1) {
				have[m[1]] = true
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range regexp.MustCompile("`((?:Test|Fuzz)\\w+)`").FindAllStringSubmatch(read(t, "docs/SAFETY.md"), -1) {
		if !have[name[1]] {
			t.Errorf("docs/SAFETY.md names %s, which does not exist", name[1])
		}
	}
}

// TestDependencies: every direct dependency has its line.
func TestDependencies(t *testing.T) {
	page := read(t, "docs/DEPENDENCIES.md")
	out, err := exec.Command("go", "list", "-m", "-f", "{{if not (or .Indirect .Main)}}{{.Path}} | {{.Version}}{{end}}", "all").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	var want []string
	for l := range strings.Lines(string(out)) {
		if l = strings.TrimSpace(l); l != "" {
			want = append(want, "| "+l+" |")
		}
	}
	lines := 0
	for l := range strings.Lines(page) {
		if strings.HasPrefix(l, "| ") && !strings.HasPrefix(l, "| module") {
			lines++
		}
	}
	if len(want) == 0 || lines != len(want) {
		t.Errorf("docs/DEPENDENCIES.md has %d lines for %d direct dependencies", lines, len(want))
	}
	for _, w := range want {
		if !strings.Contains(page, w) {
			t.Errorf("docs/DEPENDENCIES.md lacks %q", w)
		}
	}
}
