package cmd

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/batonkv/baton/cmd/config"
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
