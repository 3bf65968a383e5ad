package dev

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"syscall"
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
	if err := checkSpace(tmp, math.MaxUint64); !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), "TMPDIR") {
		t.Errorf("a full disk: %v", err)
	}
	if err := os.Chmod(root(), 0o777); err != nil {
		t.Fatal(err)
	}
	if _, err := runDir("x.0"); err == nil || !strings.Contains(err.Error(), "this user alone") {
		t.Errorf("a directory that all can write to: %v", err)
	}
}

// A cluster is found when its configuration for control planes is there and its owner lives.
func TestFind(t *testing.T) {
	tmp, err := os.MkdirTemp("/tmp", "rd")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(tmp)
	t.Setenv("TMPDIR", tmp)
	want := func(what string, dirs ...string) {
		t.Helper()
		found, err := Find()
		if err != nil || len(found) != len(dirs) {
			t.Fatalf("%s: %+v, %v", what, found, err)
		}
		for i, f := range found {
			if f.Dir != dirs[i] || f.PID != os.Getpid() || f.Control() != filepath.Join(f.Dir, ControlConfig) {
				t.Errorf("%s: %+v", what, f)
			}
		}
	}
	want("no directory")
	dir, err := runDir("x.0")
	if err != nil {
		t.Fatal(err)
	}
	want("not up yet")
	if err := (&Cluster{Dir: dir}).writeControl(); err != nil {
		t.Fatal(err)
	}
	want("up", dir)
	if err := os.WriteFile(filepath.Join(dir, ownerFile), []byte(`{"pid":1,"started":1}`), 0o600); err != nil {
		t.Fatal(err)
	}
	want("its owner is gone")
	if err := os.Chmod(root(), 0o777); err != nil {
		t.Fatal(err)
	}
	if f, err := Find(); err == nil {
		t.Errorf("in a directory that all can write to: %+v", f)
	}
}
