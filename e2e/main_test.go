// Package e2e tests whole processes: the baton binary with embedded etcd and NATS,
// real sidecars, movers and engines. What a pure machine or a suite can show is not
// repeated here.
//
// Tests wait for conditions and for the exits of processes, never for time; patience
// bounds every wait and is no claim about speed.
package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/batonkv/baton/plugins/adapter/child"
)

// binary is baton as every test runs it; tmp is where run directories go.
var binary, tmp string

// patience is the safety limit of one wait.
const patience = 60 * time.Second

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == askerArg {
		child.Serve(&asker{})
	}
	if len(os.Args) > 1 && os.Args[1] == blocksArg {
		child.Serve(&blockFile{})
	}
	os.Exit(run(m))
}

func run(m *testing.M) int {
	fail := func(err error) int {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		return 1
	}
	var err error
	if tmp, err = os.MkdirTemp("", "be2e"); err != nil {
		return fail(err)
	}
	defer os.RemoveAll(tmp)
	if err := os.Setenv("TMPDIR", tmp); err != nil { // dev makes its run directories there
		return fail(err)
	}
	if binary = os.Getenv("BATON_BINARY"); binary == "" {
		binary = filepath.Join(tmp, "baton")
		build := exec.Command("go", "build", "-o", binary, "..")
		build.Stderr = os.Stderr
		if err := build.Run(); err != nil {
			return fail(fmt.Errorf("build baton: %w", err))
		}
	}
	if binary, err = filepath.EvalSymlinks(binary); err == nil {
		binary, err = filepath.Abs(binary)
	}
	if err != nil {
		return fail(err)
	}
	code := m.Run()
	if code == 0 {
		if left := running(); len(left) > 0 {
			return fail(fmt.Errorf("processes outlived the tests: %v", left))
		}
	}
	return code
}

// running are the baton processes of these tests: those that run the binary with
// their run directories in tmp.
func running() (pids []int) {
	dirs, _ := os.ReadDir("/proc")
	for _, d := range dirs {
		pid, err := strconv.Atoi(d.Name())
		if err != nil {
			continue
		}
		if exe, err := os.Readlink(filepath.Join("/proc", d.Name(), "exe")); err != nil || exe != binary {
			continue
		}
		if env, err := os.ReadFile(filepath.Join("/proc", d.Name(), "environ")); err == nil && strings.Contains(string(env), "TMPDIR="+tmp) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// bounded is a context that ends with the test or when patience does.
func bounded(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// eventually looks until ok says yes. The state that it looks at is another process's,
// and no event tells of it.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	ctx, look := bounded(t), time.NewTicker(2*time.Millisecond)
	defer look.Stop()
	for !ok() {
		select {
		case <-look.C:
		case <-ctx.Done():
			t.Fatalf("never: %s", what)
		}
	}
}

// proc is a process that a test watches until its exit, whoever's child it is.
type proc struct{ pid, fd int }

// watch takes hold of a live process.
func watch(t *testing.T, pid int) proc {
	t.Helper()
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		t.Fatalf("pid %d: %v", pid, err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	return proc{pid, fd}
}

func (p proc) signal(t *testing.T, s unix.Signal) {
	t.Helper()
	if err := unix.PidfdSendSignal(p.fd, s, nil, 0); err != nil {
		t.Fatalf("signal %v to pid %d: %v", s, p.pid, err)
	}
}

// halt stops the process and waits until all its threads stand still.
func (p proc) halt(t *testing.T) {
	t.Helper()
	p.signal(t, unix.SIGSTOP)
	eventually(t, "the process stands still", func() bool {
		threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", p.pid))
		for _, f := range threads {
			b, err := os.ReadFile(f)
			if _, state, ok := strings.Cut(string(b), ") "); err != nil || !ok || state[0] != 'T' {
				return false
			}
		}
		return len(threads) > 0
	})
}

// gone waits for the exit.
func (p proc) gone(t *testing.T, who string) {
	t.Helper()
	fds := []unix.PollFd{{Fd: int32(p.fd), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(fds, int(patience.Milliseconds()))
		if err == unix.EINTR {
			continue
		}
		if n == 0 || err != nil {
			t.Errorf("%s (pid %d) is still there: %v", who, p.pid, err)
		}
		return
	}
}
