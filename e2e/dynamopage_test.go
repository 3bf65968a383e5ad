package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/batonkv/baton/internal/need"
)

// TestDynamoPage: what docs/DYNAMO.md says to type on one machine does what it says.
func TestDynamoPage(t *testing.T) {
	python := dynamoPython(t)
	for _, tool := range []string{"bash", "curl"} {
		if _, err := exec.LookPath(tool); err != nil {
			need.Skip(t, tool, "the page is typed with it: %v", err)
		}
	}
	page, err := os.ReadFile("../docs/DYNAMO.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(page), "\n```sh\n")
	script, _, ok := strings.Cut(rest, "\n```\n")
	if !ok {
		t.Fatal("the page has no script")
	}
	// Ports of a page are fixed; those of a test are free, and its folder is its own.
	dir := t.TempDir()
	for _, port := range []string{"8000", "9090", "9091"} {
		addr := freeAddr(t)
		script = regexp.MustCompile(`\b`+port+`\b`).ReplaceAllString(script, addr[strings.LastIndex(addr, ":")+1:])
	}
	script = strings.ReplaceAll(script, "examples/engine/tokenizer", mustAbs(t, tokenizer))
	bin := filepath.Join(dir, "bin")
	if err := os.Mkdir(bin, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(mustAbs(t, binary), filepath.Join(bin, "baton")); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(bounded(t), "bash", "-euo", "pipefail", "-c", "trap 'kill $(jobs -p) 2>&- || true' EXIT\n"+script)
	cmd.Dir, cmd.WaitDelay = dir, 10*time.Second
	cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true} // so that a test that runs out of time leaves nobody behind
	cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGTERM) }
	cmd.Env = append(os.Environ(), "PATH="+strings.Join([]string{bin, filepath.Dir(python), os.Getenv("PATH")}, ":"), "HOME="+dir)
	var said, log strings.Builder
	cmd.Stdout, cmd.Stderr = &said, &log
	err = cmd.Run()
	if err != nil || !strings.Contains(said.String(), `"text"`) || !regexp.MustCompile(`(?m)^baton_dynamo_worker_handoffs_total\{.*\} [1-9]`).MatchString(said.String()) {
		t.Errorf("%v\n%s\n%s", err, &said, &log)
	}
	if _, err := os.Stat(filepath.Join(dir, "try")); !os.IsNotExist(err) {
		t.Errorf("something is left: %v", err)
	}
}

func mustAbs(t *testing.T, path string) string {
	abs, err := filepath.Abs(path)
	if err != nil {
		t.Fatal(err)
	}
	return abs
}
