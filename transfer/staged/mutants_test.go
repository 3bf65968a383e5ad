package staged

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// mutant is one rule undone: a line of a file, what it becomes, and what notices.
type mutant struct {
	name, file, old, new string
	caught               string // expression that the failing test's output matches
}

// readMutants reads testdata/mutants.txt: blocks of "key: value" lines.
func readMutants(t *testing.T) (out []mutant) {
	b, err := os.ReadFile("testdata/mutants.txt")
	if err != nil {
		t.Fatal(err)
	}
	for _, block := range strings.Split(string(b), "\n\n") {
		var m mutant
		for _, line := range strings.Split(strings.TrimSpace(block), "\n") {
			if strings.HasPrefix(line, "#") {
				continue
			}
			key, value, _ := strings.Cut(line, ": ")
			to := map[string]*string{"name": &m.name, "file": &m.file, "old": &m.old, "new": &m.new, "caught": &m.caught}[key]
			if to == nil {
				t.Fatalf("mutants.txt: %q", line)
			}
			*to = strings.TrimSpace(value)
		}
		if m.name != "" {
			out = append(out, m)
		}
	}
	return out
}

// TestMutants holds the list against the code always, and runs it where BATON_MUTANTS
// names tests ("." is all): every mutant must fail them for the reason that it names.
func TestMutants(t *testing.T) {
	if os.Getenv("BATON_MUTANT") != "" {
		t.Skip("inside a mutant")
	}
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range readMutants(t) {
		t.Run(strings.ReplaceAll(m.name, " ", "_"), func(t *testing.T) {
			src, err := os.ReadFile(m.file)
			if err != nil {
				t.Fatal(err)
			}
			if n := strings.Count(string(src), m.old); n != 1 {
				t.Fatalf("%s holds %d times %q, want once", m.file, n, m.old)
			}
			if os.Getenv("BATON_MUTANTS") == "" {
				return
			}
			tmp := t.TempDir()
			changed := filepath.Join(tmp, "changed.go")
			overlay := filepath.Join(tmp, "overlay.json")
			js, _ := json.Marshal(map[string]map[string]string{"Replace": {filepath.Join(dir, m.file): changed}})
			if err := os.WriteFile(changed, []byte(strings.Replace(string(src), m.old, m.new, 1)), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(overlay, js, 0o600); err != nil {
				t.Fatal(err)
			}
			cmd := exec.Command("go", "test", "-vet=off", "-failfast", "-timeout=120s", "-run", os.Getenv("BATON_MUTANTS"), "-overlay", overlay, ".")
			cmd.Env = append(os.Environ(), "BATON_MUTANT="+m.name, "BATON_WALK=")
			out, err := cmd.CombinedOutput()
			if err == nil {
				t.Fatal("survives")
			}
			t.Logf("%s", firstLines(string(out), 60))
			if !regexp.MustCompile(m.caught).Match(out) {
				t.Errorf("fails, but not by %q", m.caught)
			}
		})
	}
}

func firstLines(s string, n int) string {
	lines := strings.SplitN(s, "\n", n+1)
	return strings.Join(lines[:min(n, len(lines))], "\n")
}
