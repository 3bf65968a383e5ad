package lifeline

import (
	"os"
	"os/signal"
	"strconv"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// What this process inherited. Set once by init, before any goroutine of ours.
var (
	lifeFD     = -1
	readyGiven bool
)

// init adopts the inherited descriptors at once: a grandchild that is started
// before Watch is called must get neither them nor the variable that names them.
func init() {
	readyGiven = inheritedWriter(readyFD)
	if readyGiven {
		unix.CloseOnExec(readyFD)
	}
	s, ok := os.LookupEnv(envPipe)
	if !ok {
		return
	}
	os.Unsetenv(envPipe)
	fd, err := strconv.Atoi(s)
	if err != nil || fd < readyFD {
		return
	}
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFIFO {
		return
	}
	unix.CloseOnExec(fd)
	lifeFD = fd
}

// Watch returns a channel that closes when the parent has ended or let go of this
// process. It is nil, and so never ready, in a process that was not started on a
// lifeline. Every call returns the same channel.
//
// From the first call on, a broken stdout or stderr is an error of the write and
// no longer ends the process: the pipe's reader dies with the parent, and a log
// line must not cut short an orderly exit.
func Watch() <-chan struct{} { return watch() }

var watch = sync.OnceValue(func() <-chan struct{} {
	if lifeFD < 0 {
		return nil
	}
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	_ = unix.SetNonblock(lifeFD, true) // so that the wait costs no thread
	f := os.NewFile(uintptr(lifeFD), "lifeline")
	gone := make(chan struct{})
	// Ends with the parent; the process has nothing to stop it for.
	go func() {
		defer close(gone)
		defer f.Close()
		b := make([]byte, 1)
		for {
			if _, err := f.Read(b); err != nil {
				return
			}
		}
	}()
	return gone
})
