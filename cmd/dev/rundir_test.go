package dev

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestRunDir(t *testing.T) {
	tmp, err := os.MkdirTemp("/tmp", "rd")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(tmp)
	for _, c := range []struct{ tmpdir, says string }{
		{tmp, ""},
		{"relative", `TMPDIR "relative": want an absolute path`},
		{filepath.Join(tmp, strings.Repeat("x", 60)), "too long for sockets"},
		{filepath.Join(tmp, "nope"), "TMPDIR names no directory"},
	} {
		t.Setenv("TMPDIR", c.tmpdir)
		dir, err := runDir("prefill-0.0")
		if c.says == "" && err != nil || c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says)) {
			t.Errorf("%s: %q %v", c.tmpdir, dir, err)
		}
		if _, err := os.Lstat(c.tmpdir); c.says != "" && err == nil {
			t.Errorf("%s was made", c.tmpdir)
		}
	}
	t.Setenv("TMPDIR", tmp)
	if err := os.Chmod(root(), 0o777); err != nil {
		t.Fatal(err)
	}
	if _, err := runDir("x.0"); err == nil || !strings.Contains(err.Error(), "this user alone") {
		t.Errorf("a directory that all can write to: %v", err)
	}
}
