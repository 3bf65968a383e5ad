package pidfd

import (
	"context"
	"errors"
	"os/exec"
	"testing"
)

// sleeper is a process that ends when the test does, if not before.
func sleeper(t *testing.T) *exec.Cmd {
	t.Helper()
	c := exec.Command("sleep", "600")
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Process.Kill(); _ = c.Wait() })
	return c
}

func hold(t *testing.T, pid int) *Process {
	t.Helper()
	p, err := Open(pid)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

func TestExit(t *testing.T) {
	c := sleeper(t)
	p := hold(t, c.Process.Pid)
	if p.Exited() || p.PID() != c.Process.Pid {
		t.Fatalf("pid %d of a live process %d: exited %v", p.PID(), c.Process.Pid, p.Exited())
	}
	waited := make(chan error, 1)
	go func() { waited <- p.Wait(t.Context()) }()
	if err := p.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := <-waited; err != nil { // before anybody reaped it
		t.Fatal(err)
	}
	if !p.Exited() {
		t.Error("a zombie has not exited")
	}
	_ = c.Wait()
	if err := errors.Join(p.Wait(t.Context()), p.Kill()); err != nil || !p.Exited() {
		t.Errorf("after the reap: %v, exited %v", err, p.Exited())
	}
	if _, err := Open(c.Process.Pid); !errors.Is(err, ErrGone) {
		t.Errorf("a pid that nobody has: %v", err)
	}
}

func TestWaitEndsWithContext(t *testing.T) {
	p := hold(t, sleeper(t).Process.Pid)
	why := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(why)
	if err := p.Wait(ctx); !errors.Is(err, why) {
		t.Errorf("wait: %v", err)
	}
	if p.Exited() {
		t.Error("the end of a context is no exit")
	}
	if err := p.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := p.Wait(t.Context()); err != nil { // it waits again after one that ended
		t.Error(err)
	}
}
