package engine_test

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// TestDocsName: docs/ENGINES.md names functions that are where it says.
func TestDocsName(t *testing.T) {
	b, err := os.ReadFile("../../docs/ENGINES.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(b), "## What an engine must do\n")
	section, _, _ := strings.Cut(rest, "\n## ")
	n := 0
	for _, place := range regexp.MustCompile("`([a-z/]+\\.go)`: ((?:`[A-Za-z]+`(?:, )?)+)").FindAllStringSubmatch(section, -1) {
		src, err := os.ReadFile(place[1])
		if err != nil {
			t.Error(err)
			continue
		}
		for _, name := range regexp.MustCompile("[A-Za-z]+").FindAllString(place[2], -1) {
			if n++; !regexp.MustCompile(`(?m)^func (\([^)]*\) )?` + name + `\(`).Match(src) {
				t.Errorf("%s has no func %s", place[1], name)
			}
		}
	}
	if n < 18 {
		t.Errorf("%d functions are named: want 18", n)
	}
}
