package cmd

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

// TestSidecarCheck: --check tells what a start would refuse, and starts nothing.
func TestSidecarCheck(t *testing.T) {
	dir := t.TempDir()
	for _, args := range []string{"certs ca --dir " + dir, "certs leaf --dir " + dir + " --cluster c --tenant default --group g --rank 0"} {
		if code, _, errs := runBaton(strings.Fields(args)...); code != 0 {
			t.Fatal(errs)
		}
	}
	file := filepath.Join(dir, "sidecar.yaml")
	check := func(more string) (int, string) {
		text := "cluster: c\npool: p\ngroup: g\nrun-dir: " + dir + "/run\netcd: {endpoints: ['http://127.0.0.1:1']}\n" +
			"tls: {ca: ca.pem, cert: c_default_g_0.pem, key: c_default_g_0-key.pem}\n" + more
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		code, out, errs := runBaton("sidecar", "--config", file, "--check")
		return code, out + errs
	}
	for more, want := range map[string]string{
		"":        "nothing is wrong with the configuration of c/default/g/0",
		"rank: 1": "tls.cert is of c/default/g/0, this sidecar is c/default/g/1",
		"runk: 1": `unknown key "runk"`,
		"adapters: [{name: a, built-in: webhook, config: {file: f}}]": `file: "f": want an absolute path`,
	} {
		if code, said := check(more); !strings.Contains(said, want) || (code == 0) != (more == "") {
			t.Errorf("%s: %d %s", more, code, said)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "run")); !os.IsNotExist(err) {
		t.Errorf("the run directory: %v", err)
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
