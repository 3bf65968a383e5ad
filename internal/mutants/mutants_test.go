package mutants

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	ms, err := Parse(strings.NewReader("# a list\n\nname: one\nfile: a.go\nold: x:\\n\\ty\nnew:\ntest: TestA -n=3 -v\n\n\n" +
		"name: two\nfile: b.go\nold: p\nnew: q\nin: ../b\ncaught: I1|I2"))
	if err != nil || len(ms) != 2 {
		t.Fatal(ms, err)
	}
	if m := ms[0]; m.Name != "one" || m.Old != "x:\n\ty" || m.New != "" || m.In != "." || m.Test != "TestA" || len(m.Args) != 2 {
		t.Errorf("%+v", m)
	}
	if m := ms[1]; m.In != "../b" || m.Test != "" || !m.Caught.MatchString("I2") {
		t.Errorf("%+v", m)
	}
}

func TestParseRefuses(t *testing.T) {
	good := "name: a\nfile: a.go\nold: x\nnew: y\ntest: TestA\n"
	for name, text := range map[string]string{
		"unknown key":   good + "why: so",
		"key twice":     good + "name: b",
		"no colon":      good + "test",
		"no name":       "file: a.go\nold: x\nnew: y\ntest: TestA",
		"nothing new":   "name: a\nfile: a.go\nold: x\nnew: x\ntest: TestA",
		"no test":       "name: a\nfile: a.go\nold: x\nnew: y",
		"no expression": good + "caught: (",
		"long line":     good + "caught: " + strings.Repeat("a", maxLine),
		"long list":     strings.Repeat(good+"\n", maxMutants+1),
	} {
		if _, err := Parse(strings.NewReader(text)); !errors.Is(err, ErrList) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if ms, err := Parse(strings.NewReader(strings.Repeat(good+"\n", maxMutants))); err != nil || len(ms) != maxMutants {
		t.Errorf("%d mutants: %v", len(ms), err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add("name: a\nfile: a.go\nold: x\nnew: y\ntest: TestA -v\ncaught: I1\n")
	f.Fuzz(func(t *testing.T, text string) {
		ms, err := Parse(strings.NewReader(text))
		if err != nil && !errors.Is(err, ErrList) || len(ms) > maxMutants {
			t.Fatal(len(ms), err)
		}
		for _, m := range ms {
			if m.Name == "" || m.Old == "" || m.Old == m.New || m.In == "" || m.Test == "" && m.Caught == nil {
				t.Fatalf("%+v", m)
			}
		}
	})
}

func TestChange(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "a.go"), []byte("one two two"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := (Mutant{File: "a.go", Old: "one", New: "1"}).change(dir); err != nil || got != "1 two two" {
		t.Errorf("%q %v", got, err)
	}
	for _, old := range []string{"two", "three"} {
		if _, err := (Mutant{File: "a.go", Old: old}).change(dir); err == nil {
			t.Errorf("%q is not there once", old)
		}
	}
}

func TestVerdict(t *testing.T) {
	fail := "--- FAIL: TestA (0.01s)\n    a_test.go:9: seed 17: two copies\nFAIL\n"
	for _, c := range []struct {
		name, test, caught, out string
		failed                  bool
		want                    string // "": refused
	}{
		{"survives", "TestA", "", "ok", false, ""},
		{"does not compile", "TestA", "", "a.go:3: undefined: x\nFAIL [build failed]", true, ""},
		{"hangs", "TestA", "", "panic: test timed out", true, ""},
		{"another test", "TestB", "", fail, true, ""},
		{"another reason", "TestA", "three copies", fail, true, ""},
		{"named", "TestA", "", fail, true, "TestA, schedule 17"},
		{"reason", "", "two copies", fail, true, "TestA, schedule 17"},
		{"no seed", "TestA", "", "--- FAIL: TestA (0.01s)\n", true, "TestA"},
	} {
		m := Mutant{Name: c.name, Test: c.test}
		if c.caught != "" {
			m.Caught = regexp.MustCompile(c.caught)
		}
		if got, err := m.verdict(c.out, c.failed); got != c.want || (err == nil) != (c.want != "") {
			t.Errorf("%s: %q %v", c.name, got, err)
		}
	}
}
