package hosts

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// spaces are what a host has of its own. A thread enters the one of process numbers for its
// children alone.
var spaces = []struct {
	file string
	flag int
}{{"net", unix.CLONE_NEWNET}, {"pid", unix.CLONE_NEWPID}, {"mnt", unix.CLONE_NEWNS}}

// inside runs f on a thread that is on the host, and that ends with it.
func (h *Host) inside(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // not unlocked: no other goroutine may run there
		done <- h.enter(f)
	}()
	return <-done
}

func (h *Host) enter(f func() error) error {
	dir, err := os.Getwd()
	if err != nil {
		return err
	}
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fmt.Errorf("a thread with a root of its own: %w", err)
	}
	for _, s := range spaces {
		fd, err := unix.Open(fmt.Sprintf("/proc/%d/ns/%s", h.pid, s.file), unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err == nil {
			err = unix.Setns(fd, s.flag)
			_ = unix.Close(fd)
		}
		if err != nil {
			return fmt.Errorf("enter the host at %s: %s: %w", h.addr, s.file, err)
		}
	}
	if err := unix.Chdir(dir); err != nil {
		return err
	}
	return f()
}

// PID is the caller's number of the process that has the number inner on the host; 0: there
// is none.
func (h *Host) PID(inner int) int {
	own, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", h.pid))
	if err != nil {
		return 0
	}
	all, _ := filepath.Glob("/proc/[0-9]*/status")
	for _, file := range all {
		b, err := os.ReadFile(file)
		if err != nil || !bytes.HasSuffix(numbers(b), []byte("\t"+strconv.Itoa(inner))) {
			continue
		}
		dir := filepath.Dir(file)
		if space, err := os.Readlink(dir + "/ns/pid"); err == nil && space == own {
			pid, _ := strconv.Atoi(filepath.Base(dir))
			return pid
		}
	}
	return 0
}

// numbers is the line NSpid of a status file: the process's number in each nested space.
func numbers(status []byte) []byte {
	for line := range strings.Lines(string(status)) {
		if strings.HasPrefix(line, "NSpid:") {
			return []byte(strings.TrimSpace(line))
		}
	}
	return nil
}
