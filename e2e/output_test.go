package e2e

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// exitCode waits for cmd.
func exitCode(t *testing.T, cmd *exec.Cmd) int {
	t.Helper()
	err := cmd.Wait()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode()
}

// TestBrokenStdout: a reader that went away, or a full disk, leaves nothing behind.
func TestBrokenStdout(t *testing.T) {
	dir := filepath.Join(tmp, "o")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	r, closed, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	r.Close()
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		out *os.File
		say string
	}{{closed, "broken pipe"}, {full, "no space left"}} {
		defer c.out.Close()
		for _, args := range []string{"version", "dev --inference-shards=tp=1,role=prefill", "demo"} {
			var errs bytes.Buffer
			cmd := exec.CommandContext(bounded(t), binary, strings.Fields(args)...)
			cmd.Env = append(os.Environ(), "TMPDIR="+dir)
			cmd.Stdout, cmd.Stderr = c.out, &errs
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			if code := exitCode(t, cmd); code != 1 || !strings.Contains(errs.String(), "baton: write to stdout: "+c.say) {
				t.Errorf("%s: %d %s", args, code, errs.String())
			}
			if ds := runDirs(t, dir); len(ds) > 0 {
				t.Errorf("%s left %v", args, ds)
			}
		}
	}
}

// TestInterrupted: a start that was cut short is told in one line, and by 130.
func TestInterrupted(t *testing.T) {
	for _, by := range []unix.Signal{unix.SIGINT, unix.SIGTERM, unix.SIGHUP} {
		var errs bytes.Buffer
		cmd := exec.CommandContext(bounded(t), binary, "dev", "--inference-shards=tp=2,role=prefill+tp=1,role=decode")
		cmd.Stderr = &watcher{to: &errs, word: "starting sidecars", seen: func() { _ = cmd.Process.Signal(by) }}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if code := exitCode(t, cmd); code != 130 {
			t.Errorf("%v: %d", by, code)
		}
		if !strings.HasSuffix(errs.String(), "baton: interrupted\n") || strings.Count(errs.String(), "baton: ") != 1 {
			t.Errorf("%v: %s", by, errs.String())
		}
	}
}

// watcher calls seen once it has been written word.
type watcher struct {
	to   *bytes.Buffer
	word string
	seen func()
}

func (w *watcher) Write(b []byte) (int, error) {
	w.to.Write(b)
	if w.seen != nil && strings.Contains(w.to.String(), w.word) {
		w.seen()
		w.seen = nil
	}
	return len(b), nil
}
