// Package lifeline ties child processes to their parent.
//
// Every child inherits the read end of a pipe whose write end only the parent
// holds. The kernel closes the write end however the parent ends, so a child that
// watches the pipe notices kill -9 too, and the whole tree below it ends. The
// package starts, awaits and stops processes; what they do is none of its business.
//
// A child's descriptors are fixed: 3 takes its one ready line, 4 is the pipe, and
// the files that the caller put in Cmd.ExtraFiles follow from FirstExtra.
package lifeline

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"time"
)

const (
	// FirstExtra is the descriptor, in the child, of the first of the caller's ExtraFiles.
	FirstExtra = 5

	readyFD = 3
	pipeFD  = 4
	envPipe = "BATON_LIFELINE_FD"

	// stopGrace is how long a child has to exit after SIGTERM.
	stopGrace = 5 * time.Second
	// tailGrace bounds the wait for the last stderr lines of a child that has
	// exited while a process it started still holds its stderr.
	tailGrace = 250 * time.Millisecond
)

// ErrNotReady reports a child that ended, or was given up, before its ready line.
var ErrNotReady = errors.New("lifeline: child did not become ready")

// Child is a started process. Its owner calls Stop, or waits for Exited.
type Child struct {
	cmd    *exec.Cmd
	life   *os.File // write end; closing it tells the child to exit
	ready  *os.File // read end of descriptor 3
	tail   *tail
	grace  time.Duration
	exited chan struct{}
	err    error // valid once exited is closed
}

// Start starts cmd on a lifeline, in a process group of its own: Ctrl-C reaches
// the parent alone, which stops its children in the order it wants. Stderr goes
// where cmd says and its last lines are kept for errors. The caller closes its own
// ExtraFiles afterwards, as with exec.
func Start(cmd *exec.Cmd) (*Child, error) {
	var p pipes
	if err := p.open(); err != nil {
		p.closeAll()
		return nil, fmt.Errorf("lifeline: pipe: %w", err)
	}
	t := newTail(cmd.Stderr)
	cmd.Stderr = p.errW
	cmd.ExtraFiles = append([]*os.File{p.readyW, p.lifeR}, cmd.ExtraFiles...)
	if cmd.Env == nil {
		cmd.Env = os.Environ()
	}
	cmd.Env = append(cmd.Env, envPipe+"="+strconv.Itoa(pipeFD))
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setpgid = true
	if err := cmd.Start(); err != nil {
		p.closeAll()
		return nil, fmt.Errorf("lifeline: start %s: %w", cmd.Path, err)
	}
	p.closeChildSide()
	c := &Child{cmd: cmd, life: p.lifeW, ready: p.readyR, tail: t, grace: stopGrace, exited: make(chan struct{})}
	go t.drain(p.errR)
	go c.reap()
	return c, nil
}

// pipes are the three pipes between parent and child. All ends are close-on-exec;
// exec clears the flag on the copies that the child gets.
type pipes struct{ lifeR, lifeW, readyR, readyW, errR, errW *os.File }

func (p *pipes) open() (err error) {
	if p.lifeR, p.lifeW, err = os.Pipe(); err != nil {
		return err
	}
	if p.readyR, p.readyW, err = os.Pipe(); err != nil {
		return err
	}
	p.errR, p.errW, err = os.Pipe()
	return err
}

func (p *pipes) closeChildSide() {
	for _, f := range []*os.File{p.lifeR, p.readyW, p.errW} {
		f.Close()
	}
}

func (p *pipes) closeAll() {
	for _, f := range []*os.File{p.lifeR, p.lifeW, p.readyR, p.readyW, p.errR, p.errW} {
		if f != nil {
			f.Close()
		}
	}
}

// reap ends when the process does, which Stop sees to.
func (c *Child) reap() {
	err := c.cmd.Wait()
	c.err = err
	c.life.Close()
	close(c.exited)
}

// PID is the process id; it stays reserved until Exited closes.
func (c *Child) PID() int { return c.cmd.Process.Pid }

// Exited closes when the exit of the process was seen. A process that has exited
// touches no memory any more.
func (c *Child) Exited() <-chan struct{} { return c.exited }

// Err is nil after exit status 0, else an *exec.ExitError; valid once Exited is closed.
func (c *Child) Err() error {
	select {
	case <-c.exited:
		return c.err
	default:
		return nil
	}
}

// Stderr returns the last lines that the child wrote to its standard error, at
// most 20 lines and 8 KiB.
func (c *Child) Stderr() string {
	select {
	case <-c.exited:
		t := time.NewTimer(tailGrace)
		defer t.Stop()
		select {
		case <-c.tail.done:
		case <-t.C:
		}
	default:
	}
	return c.tail.String()
}

// Kill sends SIGKILL and does not wait.
func (c *Child) Kill() { _ = c.cmd.Process.Kill() }

// Stop sends SIGTERM, SIGKILL after 5 s or when ctx ends, and returns once the
// exit was seen. It returns nil whatever the exit status was; Err has it.
func (c *Child) Stop(ctx context.Context) error {
	if err := c.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("lifeline: stop pid %d: %w", c.PID(), err)
	}
	t := time.NewTimer(c.grace)
	defer t.Stop()
	select {
	case <-c.exited:
		return nil
	case <-t.C:
	case <-ctx.Done():
	}
	c.Kill()
	<-c.exited
	return nil
}

var _ io.Writer = (*tail)(nil)
