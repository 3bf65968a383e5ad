package cmd

import (
	"fmt"
	"io"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// terminal says whether w is a terminal that takes colours.
func terminal(w any) bool {
	if o, ok := w.(*output); ok {
		w = o.to
	}
	f, ok := w.(*os.File)
	if !ok || os.Getenv("NO_COLOR") != "" || os.Getenv("TERM") == "dumb" {
		return false
	}
	st, err := f.Stat()
	return err == nil && st.Mode()&os.ModeCharDevice != 0
}

// whileRead has the command end when nobody reads its output any more, as a write would:
// a command that seldom writes learns it late otherwise. stop ends the look.
func whileRead(w io.Writer) (stop func(), err error) {
	o, ok := w.(*output)
	if !ok {
		return func() {}, nil
	}
	f, ok := o.to.(*os.File)
	if !ok {
		return func() {}, nil
	}
	r, end, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("watch stdout: %w", err)
	}
	var over sync.WaitGroup
	over.Go(func() { // ends with stop
		fds := []unix.PollFd{{Fd: int32(f.Fd())}, {Fd: int32(r.Fd()), Events: unix.POLLIN}}
		for {
			if _, err := unix.Poll(fds, -1); err == unix.EINTR {
				continue
			}
			if fds[0].Revents != 0 && fds[1].Revents == 0 {
				o.lost(syscall.EPIPE)
			}
			return
		}
	})
	return func() {
		end.Close()
		over.Wait()
		r.Close()
	}, nil
}
