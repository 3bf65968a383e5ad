package serve

import (
	"fmt"
	"log/slog"
	"os"

	"golang.org/x/sys/unix"
)

// watchHost returns a channel that closes when the host is gone: the process that started
// this one has ended, or nobody reads its standard output any more. Either alone would
// miss a host: one that starts its plugin through a shell is no parent, and one that ends
// before this process looks has left it another parent.
func watchHost(log *slog.Logger) (<-chan struct{}, error) {
	parent := os.Getppid()
	held, err := unix.PidfdOpen(parent, 0)
	if err != nil && err != unix.ESRCH {
		return nil, fmt.Errorf("plugin: take hold of the host, pid %d: %w", parent, err)
	}
	out, derr := unix.Dup(1) // go-plugin puts another file in the place of os.Stdout
	if derr != nil {
		return nil, fmt.Errorf("plugin: standard output: %w", derr)
	}
	unix.CloseOnExec(out)
	fds := []unix.PollFd{{Fd: int32(out)}} // tells POLLERR when no reader is left, and hears of nothing else
	if err == nil && os.Getppid() == parent {
		fds = append(fds, unix.PollFd{Fd: int32(held), Events: unix.POLLIN})
	}
	gone := make(chan struct{})
	go func() { // ends with the host, which this process does not outlive
		for {
			if _, err := unix.Poll(fds, -1); err == unix.EINTR || err == unix.EAGAIN {
				continue
			}
			break
		}
		log.Info("the host is gone", "parent", parent, "parent_ended", len(fds) > 1 && fds[1].Revents != 0)
		close(gone)
	}()
	return gone, nil
}
