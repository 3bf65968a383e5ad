package sidecar

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
)

// TestSaid: lines are lines of the log, however they come; endless ones are cut.
func TestSaid(t *testing.T) {
	var out bytes.Buffer
	s := &said{log: slog.New(slog.NewTextHandler(&out, nil))}
	for _, b := range []string{"one\ntw", "o\n\n  \nthree ", "four\n", strings.Repeat("x", 2*maxSaid+1), "\nlast"} {
		if n, err := s.Write([]byte(b)); n != len(b) || err != nil {
			t.Fatal(n, err)
		}
	}
	var texts []string
	for line := range strings.Lines(out.String()) {
		_, text, _ := strings.Cut(strings.TrimSpace(line), "text=")
		texts = append(texts, text)
	}
	long := strings.Repeat("x", maxSaid)
	want := []string{"one", "two", `"three four"`, long, long, "x"}
	if strings.Join(texts, "|") != strings.Join(want, "|") {
		t.Errorf("got %.200q", texts)
	}
}
