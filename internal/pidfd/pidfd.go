// Package pidfd holds on to processes that need not be children: it tells of their exit
// and ends them, and never confuses one with a later process of the same pid.
//
// The exit that it tells is of the whole process, every thread of it: nothing of it
// touches memory any more.
package pidfd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// ErrGone reports a pid that no process has.
var ErrGone = errors.New("pidfd: no such process")

// Process is a hold on one process. Its owner calls Close, after the last Wait.
type Process struct {
	pid int
	f   *os.File
}

// Open takes hold of the process that has pid at this instant.
func Open(pid int) (*Process, error) {
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	switch {
	case errors.Is(err, unix.ESRCH):
		return nil, fmt.Errorf("%w: pid %d", ErrGone, pid)
	case err != nil:
		return nil, fmt.Errorf("pidfd: pid %d: %w", pid, err)
	}
	return &Process{pid, os.NewFile(uintptr(fd), fmt.Sprintf("pidfd of %d", pid))}, nil
}

// PID is the process's id, which another process may have after its exit.
func (p *Process) PID() int { return p.pid }

// Exited reports whether the process has exited.
func (p *Process) Exited() bool {
	c, err := p.f.SyscallConn()
	if err != nil {
		return false
	}
	over := false
	err = c.Control(func(fd uintptr) { over = readable(fd) })
	return err == nil && over
}

// readable: a pidfd can be read once its process has exited.
func readable(fd uintptr) bool {
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(fds, 0)
		if err != unix.EINTR {
			return err == nil && n == 1 && fds[0].Revents&unix.POLLIN != 0
		}
	}
}

// Wait returns nil once the process has exited, or the cause of ctx's end. One Wait
// runs at a time.
func (p *Process) Wait(ctx context.Context) error {
	c, err := p.f.SyscallConn()
	if err != nil {
		return fmt.Errorf("pidfd: pid %d: %w", p.pid, err)
	}
	if err := p.f.SetReadDeadline(time.Time{}); err != nil {
		return fmt.Errorf("pidfd: pid %d: %w", p.pid, err)
	}
	stop := context.AfterFunc(ctx, func() { _ = p.f.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	err = c.Read(readable)
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err != nil {
		return fmt.Errorf("pidfd: pid %d: %w", p.pid, err)
	}
	return nil
}

// Kill sends SIGKILL and does not wait. A process that has exited is no error.
func (p *Process) Kill() error {
	c, err := p.f.SyscallConn()
	if err != nil {
		return fmt.Errorf("pidfd: pid %d: %w", p.pid, err)
	}
	var sent error
	if err := c.Control(func(fd uintptr) { sent = unix.PidfdSendSignal(int(fd), unix.SIGKILL, nil, 0) }); err != nil {
		sent = err
	}
	if sent != nil && !errors.Is(sent, unix.ESRCH) {
		return fmt.Errorf("pidfd: kill pid %d: %w", p.pid, sent)
	}
	return nil
}

// Close lets go.
func (p *Process) Close() error { return p.f.Close() }
