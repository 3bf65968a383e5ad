package transfertest

import (
	"testing"

	"golang.org/x/sys/unix"
)

// Freeze stops a child's process until the returned func runs. Each of its threads
// has stopped when Freeze returns: the signal alone does not say so.
func Freeze(t testing.TB, pid int) func() {
	t.Helper()
	if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	for {
		err := unix.Waitid(unix.P_PID, pid, nil, unix.WSTOPPED, nil)
		if err == nil {
			break
		}
		if err != unix.EINTR {
			t.Fatal(err)
		}
	}
	return func() { _ = unix.Kill(pid, unix.SIGCONT) }
}
