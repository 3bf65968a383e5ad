package hosts

import (
	"context"
	"fmt"
	"os"
	"os/signal"

	"golang.org/x/sys/unix"

	"github.com/batonkv/baton/lifeline"
)

// Serve is the whole life of a host's init: it takes the exits of processes whose parent
// died, and its own end is the end of all that runs there.
func Serve(ctx context.Context) error {
	if os.Getpid() != 1 {
		return fmt.Errorf("%w: not the first process of a host: hosts are started by what needs them", ErrHosts)
	}
	if err := unix.Mount("none", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("%w: mounts of its own: %w", ErrHosts, err)
	}
	if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("%w: a /proc of its own: %w", ErrHosts, err)
	}
	if err := up("lo"); err != nil {
		return fmt.Errorf("%w: loopback: %w", ErrHosts, err)
	}
	exits := make(chan os.Signal, 1)
	signal.Notify(exits, unix.SIGCHLD)
	defer signal.Stop(exits)
	if err := lifeline.Ready(os.Getpid()); err != nil {
		return err
	}
	for {
		select {
		case <-exits:
			for { // it has no children that anybody else waits for
				if pid, err := unix.Wait4(-1, nil, unix.WNOHANG, nil); pid <= 0 || err != nil {
					break
				}
			}
		case <-lifeline.Watch():
			return nil
		case <-ctx.Done():
			return nil
		}
	}
}
