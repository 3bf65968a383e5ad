// Package mutants holds a list of undone rules against the code and its tests. A
// mutant is one text of a file, what it becomes, and the test that must notice. The
// list cannot grow stale: every ordinary run finds each old text exactly once. Where
// BATON_MUTANTS is set, each change is made through `go test -overlay`, which leaves
// the checkout as it is.
package mutants

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// Mutant is one rule undone.
type Mutant struct {
	Name string
	File string   // relative to the list's package
	Old  string   // is in File once
	New  string   // what it becomes
	In   string   // folder of the package whose tests run, relative like File
	Test string   // the test that must fail; "": any of In
	Args []string // flags of Test
	// Caught is what the output of the failed run must hold; nil: Test's failure is enough.
	Caught *regexp.Regexp
}

const (
	maxLine    = 4 << 10
	maxMutants = 1024
)

// ErrList is a list that does not say what it must.
var ErrList = errors.New("mutants: bad list")

// Parse reads blocks of "key: value" lines with an empty line between; # starts a
// comment line. The keys are name, file, old, new, in ("." if absent), test (a name,
// then flags) and caught (an expression); a block has test or caught. In old and new,
// \n and \t stand for a line's end and a tab.
func Parse(r io.Reader) ([]Mutant, error) {
	var out []Mutant
	block := map[string]string{}
	end := func() error {
		if len(block) == 0 {
			return nil
		}
		m, err := mutant(block)
		if err != nil {
			return err
		}
		if len(out) == maxMutants {
			return fmt.Errorf("%w: more than %d mutants", ErrList, maxMutants)
		}
		out = append(out, m)
		clear(block)
		return nil
	}
	s := bufio.NewScanner(r)
	s.Buffer(make([]byte, 0, maxLine), maxLine)
	for s.Scan() {
		line := strings.TrimSpace(s.Text())
		key, value, ok := strings.Cut(line, ":")
		switch _, twice := block[key]; {
		case line == "":
			if err := end(); err != nil {
				return nil, err
			}
		case line[0] == '#':
		case !ok || twice || !strings.Contains(" name file old new in test caught ", " "+key+" "):
			return nil, fmt.Errorf("%w: line %.80q: want a key that the block has not had, a colon and a value", ErrList, line)
		default:
			block[key] = strings.TrimSpace(value)
		}
	}
	if err := s.Err(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrList, err)
	}
	return out, end()
}

var unescape = strings.NewReplacer(`\n`, "\n", `\t`, "\t")

func mutant(block map[string]string) (Mutant, error) {
	m := Mutant{Name: block["name"], File: block["file"], Old: unescape.Replace(block["old"]), New: unescape.Replace(block["new"]), In: block["in"]}
	if m.In == "" {
		m.In = "."
	}
	if words := strings.Fields(block["test"]); len(words) > 0 {
		m.Test, m.Args = words[0], words[1:]
	}
	if c := block["caught"]; c != "" {
		var err error
		if m.Caught, err = regexp.Compile(c); err != nil {
			return m, fmt.Errorf("%w: %q: caught: %w", ErrList, m.Name, err)
		}
	}
	if m.Name == "" || m.File == "" || m.Old == "" || m.Old == m.New || m.Test == "" && m.Caught == nil {
		return m, fmt.Errorf("%w: %q: want a name, a file, an old and another new text, and a test or what it says", ErrList, m.Name)
	}
	return m, nil
}

// inside is set in the runs of mutants: they run no mutants themselves.
const inside = "BATON_MUTANT"

// Run holds the list against the code of the package whose test calls it. BATON_MUTANTS,
// an expression ("." is all), names the mutants that are run as well: as many at a time
// as -parallel says, each with env added to its environment. Forty take minutes: give
// -timeout.
func Run(t *testing.T, list string, env ...string) {
	if os.Getenv(inside) != "" {
		t.Skip("inside a mutant")
	}
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(list)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	ms, err := Parse(f)
	if err != nil {
		t.Fatal(err)
	}
	var chosen *regexp.Regexp
	if x := os.Getenv("BATON_MUTANTS"); x != "" {
		if chosen, err = regexp.Compile(x); err != nil {
			t.Fatalf("BATON_MUTANTS: %v", err)
		}
	}
	if chosen != nil {
		unchanged(t, dir, ms, env)
	}
	for _, m := range ms {
		t.Run(strings.ReplaceAll(m.Name, " ", "_"), func(t *testing.T) {
			changed, err := m.change(dir)
			if err != nil {
				t.Fatal(err)
			}
			if chosen == nil || !chosen.MatchString(m.Name) {
				return
			}
			t.Parallel()
			out, failed := m.run(t, dir, changed, env)
			why, err := m.verdict(out, failed)
			t.Logf("%s", firstLines(out, 40))
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("mutant %q: caught by %s", m.Name, why)
		})
	}
}

// change returns m's file with the rule undone.
func (m Mutant) change(dir string) (string, error) {
	src, err := os.ReadFile(filepath.Join(dir, m.File))
	if err != nil {
		return "", err
	}
	if n := strings.Count(string(src), m.Old); n != 1 {
		return "", fmt.Errorf("%s holds %d times %q, want once", m.File, n, m.Old)
	}
	return strings.Replace(string(src), m.Old, m.New, 1), nil
}

func (m Mutant) run(t *testing.T, dir, changed string, env []string) (out string, failed bool) {
	tmp := t.TempDir()
	file, overlay := filepath.Join(tmp, "changed.go"), filepath.Join(tmp, "overlay.json")
	js, err := json.Marshal(map[string]map[string]string{"Replace": {filepath.Join(dir, m.File): file}})
	if err != nil {
		t.Fatal(err)
	}
	for path, b := range map[string][]byte{file: []byte(changed), overlay: js} {
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	run := "."
	if m.Test != "" {
		run = "^" + m.Test + "$"
	}
	return goTest(t, dir, append([]string{"-overlay", overlay, "-run", run, "./" + filepath.ToSlash(m.In)}, m.Args...), append(slices.Clip(env), inside+"="+m.Name))
}

// unchanged demands that the tests pass without a mutant: else every one is caught.
func unchanged(t *testing.T, dir string, ms []Mutant, env []string) {
	passed := map[string]bool{}
	for _, m := range ms {
		if passed[m.In] {
			continue
		}
		passed[m.In] = true
		if out, failed := goTest(t, dir, []string{"./" + filepath.ToSlash(m.In)}, append(slices.Clip(env), inside+"=none")); failed {
			t.Fatalf("fails without a mutant:\n%s", firstLines(out, 40))
		}
	}
}

func goTest(t *testing.T, dir string, args, env []string) (out string, failed bool) {
	cmd := exec.CommandContext(t.Context(), "go", append([]string{"test", "-vet=off", "-failfast", "-timeout=120s"}, args...)...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), env...)
	b, err := cmd.CombinedOutput()
	return string(b), err != nil
}

var (
	failure = regexp.MustCompile(`(?m)^--- FAIL: (\S+)`)
	seed    = regexp.MustCompile(`\bseed (\d+):`)
)

// verdict says what caught m, or why that counts for nothing: a mutant that does not
// compile, or that another test catches, shows nothing about the test that it names.
func (m Mutant) verdict(out string, failed bool) (string, error) {
	if !failed {
		return "", fmt.Errorf("mutant %q survives", m.Name)
	}
	f := failure.FindStringSubmatch(out)
	switch {
	case f == nil || m.Test != "" && f[1] != m.Test:
		return "", fmt.Errorf("mutant %q: the run fails, and not by a test that is meant", m.Name)
	case m.Caught != nil && !m.Caught.MatchString(out):
		return "", fmt.Errorf("mutant %q: the test fails, and not by %q", m.Name, m.Caught)
	}
	if s := seed.FindStringSubmatch(out); s != nil { // seeds count from 1
		return fmt.Sprintf("%s, schedule %s", f[1], s[1]), nil
	}
	return f[1], nil
}

func firstLines(s string, n int) string {
	lines := strings.SplitN(s, "\n", n+1)
	return strings.Join(lines[:min(n, len(lines))], "\n")
}
