package sidecar

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/batonkv/baton/cmd/config"
	"github.com/batonkv/baton/lifeline"
	"github.com/batonkv/baton/plugins/adapter/child"
	"github.com/batonkv/baton/sidecar/sockfd"
	"github.com/batonkv/baton/transfer/staged/drive"
)

func TestRunDir(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "run")
	for range 2 { // made, then found
		if err := runDir(dir); err != nil {
			t.Fatal(err)
		}
	}
	if st, err := os.Stat(dir); err != nil || st.Mode().Perm() != 0o700 {
		t.Errorf("%v %v", st, err)
	}
	for _, mode := range []os.FileMode{0o750, 0o705, 0o777} {
		if err := os.Chmod(dir, mode); err != nil {
			t.Fatal(err)
		}
		if err := runDir(dir); !errors.Is(err, config.ErrConfig) || !strings.Contains(err.Error(), fmt.Sprintf("mode 0%o", mode)) ||
			!strings.Contains(err.Error(), "chmod 0700") {
			t.Errorf("mode %v: %v", mode, err)
		}
	}
}

// TestTakeOver: what an earlier sidecar left to copy, or to bring chunks, has exited before
// this one goes on, and a run directory has one sidecar.
func TestTakeOver(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	if err := runDir(dir); err != nil {
		t.Fatal(err)
	}
	marks := []string{filepath.Join(dir, markFile), wireMark(dir, drive.Route{Group: "decode-0", Transport: config.TCP}),
		wireMark(dir, drive.Route{Group: "decode-1", Transport: config.TCP})}
	left := filepath.Join(dir, child.Folder+"1", "socket") // of an adapter
	if err := os.MkdirAll(filepath.Dir(left), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(left, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, len(marks))
	for _, mark := range marks {
		left := exec.Command("sleep", "600")
		if err := left.Start(); err != nil {
			t.Fatal(err)
		}
		go func() { ended <- left.Wait() }()
		if err := lifeline.Mark(mark, left.Process.Pid); err != nil {
			t.Fatal(err)
		}
	}
	c := config.Default()
	c.RunDir = dir
	first, second := &parts{cfg: c, log: slog.New(slog.DiscardHandler)}, &parts{cfg: c, log: slog.New(slog.DiscardHandler)}
	if err := first.takeOver(t.Context()); err != nil {
		t.Fatal(err)
	}
	for range marks {
		<-ended // SIGKILL: else the test would wait ten minutes
	}
	if _, err := os.Stat(filepath.Dir(left)); !os.IsNotExist(err) {
		t.Errorf("the folder of an adapter's socket: %v", err)
	}
	err := second.takeOver(t.Context())
	if !errors.Is(err, sockfd.ErrSocket) || !strings.Contains(err.Error(), fmt.Sprintf("held by process %d: stop it", os.Getpid())) {
		t.Errorf("a second sidecar of the run directory: %v", err)
	}
	if err := errors.Join(second.close(), first.close()); err != nil {
		t.Fatal(err)
	}
	if err := second.takeOver(t.Context()); err != nil {
		t.Errorf("after the first is gone: %v", err)
	}
	if err := second.close(); err != nil {
		t.Error(err)
	}
}

func TestMoverEnded(t *testing.T) {
	var out bytes.Buffer
	p := &parts{log: slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelWarn}))}
	p.moverEnded(7, errors.New("killed"))
	p.moverEnded(0, errors.New("no such file"))
	p.closing.Store(true)
	p.moverEnded(8, nil)
	s := out.String()
	for _, want := range []string{"mover ended", "pid=7", "killed", "mover did not start", "pid=0", "no such file"} {
		if !strings.Contains(s, want) {
			t.Errorf("no %q in\n%s", want, s)
		}
	}
	if strings.Contains(s, "pid=8") {
		t.Errorf("a mover that was told to end is no warning:\n%s", s)
	}
}
