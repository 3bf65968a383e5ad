package lifeline

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// maxReady bounds a ready line in bytes.
const maxReady = 64 << 10

// AwaitReady waits for the child's ready line and unmarshals it into v, a pointer.
// Call it once. It fails with ErrNotReady when the child exits first, with the
// child's last stderr lines, and with ctx's error when ctx ends first.
func (c *Child) AwaitReady(ctx context.Context, v any) error {
	stop := context.AfterFunc(ctx, func() { _ = c.ready.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	defer c.ready.Close()
	line, err := readLine(c.ready)
	switch {
	case err == nil:
	case errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Errorf("%w: pid %d: %w%s", ErrNotReady, c.PID(), context.Cause(ctx), c.said())
	case errors.Is(err, io.ErrUnexpectedEOF):
		return c.unready(ctx)
	default:
		return fmt.Errorf("%w: pid %d: %w%s", ErrNotReady, c.PID(), err, c.said())
	}
	if err := json.Unmarshal(line, v); err != nil {
		return fmt.Errorf("%w: pid %d: ready line %.200q: %w", ErrNotReady, c.PID(), line, err)
	}
	return nil
}

// unready words the error of a child that closed descriptor 3 without a line.
func (c *Child) unready(ctx context.Context) error {
	select {
	case <-c.exited:
		how := "exit status 0"
		if c.err != nil {
			how = c.err.Error()
		}
		return fmt.Errorf("%w: pid %d ended: %s%s", ErrNotReady, c.PID(), how, c.said())
	case <-ctx.Done():
		return fmt.Errorf("%w: pid %d closed its ready pipe: %w%s", ErrNotReady, c.PID(), context.Cause(ctx), c.said())
	}
}

// said is the stderr tail as a suffix of an error.
func (c *Child) said() string {
	if s := c.Stderr(); s != "" {
		return "; it said:\n" + s
	}
	return ""
}

func readLine(r io.Reader) ([]byte, error) {
	var line []byte
	buf := make([]byte, 1024)
	for {
		n, err := r.Read(buf)
		line = append(line, buf[:n]...)
		if i := bytes.IndexByte(line, '\n'); i >= 0 {
			return line[:i], nil
		}
		switch {
		case len(line) > maxReady:
			return nil, fmt.Errorf("ready line exceeds %d bytes", maxReady)
		case errors.Is(err, io.EOF):
			return nil, io.ErrUnexpectedEOF
		case err != nil:
			return nil, err
		}
	}
}

// Ready writes v as one JSON line to descriptor 3 and closes it. It does nothing
// when whoever started this process gave it no write-only descriptor 3, so a
// process run by hand needs no special case. Call it once, when the process serves.
func Ready(v any) error {
	if !readyGiven {
		return nil
	}
	readyGiven = false
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("lifeline: ready line: %w", err)
	}
	if len(b) >= maxReady {
		return fmt.Errorf("lifeline: ready line of %d bytes: at most %d", len(b), maxReady-1)
	}
	f := os.NewFile(readyFD, "ready")
	defer f.Close()
	if _, err := f.Write(append(b, '\n')); err != nil {
		return fmt.Errorf("lifeline: ready line: %w", err)
	}
	return nil
}

// inheritedWriter reports whether fd came from the parent and can only be written.
// Descriptors that Go opens are close-on-exec, and one that survived exec is not.
func inheritedWriter(fd int) bool {
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
	if err != nil || flags&unix.FD_CLOEXEC != 0 {
		return false
	}
	mode, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	return err == nil && mode&unix.O_ACCMODE == unix.O_WRONLY
}
