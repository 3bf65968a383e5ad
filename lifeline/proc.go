package lifeline

import (
	"bytes"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// stat is what /proc/PID/stat says of a process.
type stat struct {
	state   byte
	threads int64
	start   uint64 // clock ticks after boot
}

func readStat(pid int) (stat, error) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return stat{}, fmt.Errorf("lifeline: pid %d: %w", pid, err)
	}
	st, err := parseStat(b)
	if err != nil {
		return stat{}, fmt.Errorf("lifeline: pid %d: %w", pid, err)
	}
	return st, nil
}

// parseStat reads fields 3, 20 and 22. The command name before them may itself
// contain spaces and parentheses, so fields are counted from the last ')'.
func parseStat(b []byte) (stat, error) {
	i := bytes.LastIndexByte(b, ')')
	if i < 0 {
		return stat{}, fmt.Errorf("stat line %.80q: no command name", b)
	}
	f := bytes.Fields(b[i+1:])
	if len(f) < 20 {
		return stat{}, fmt.Errorf("stat line %.80q: %d fields after the name, want 20", b, len(f))
	}
	threads, err := strconv.ParseInt(string(f[17]), 10, 64)
	if err != nil {
		return stat{}, fmt.Errorf("stat field 20: %w", err)
	}
	start, err := strconv.ParseUint(string(f[19]), 10, 64)
	if err != nil {
		return stat{}, fmt.Errorf("stat field 22: %w", err)
	}
	return stat{state: f[0][0], threads: threads, start: start}, nil
}

// StartTime is when pid started, in clock ticks after boot. With the pid it names
// one process: a pid alone is given again.
func StartTime(pid int) (uint64, error) {
	st, err := readStat(pid)
	return st.start, err
}

// PIDSpace is the inode of this process's PID namespace: a pid names the same process for
// all who share it.
func PIDSpace() (uint64, error) {
	var st unix.Stat_t
	if err := unix.Stat("/proc/self/ns/pid", &st); err != nil {
		return 0, fmt.Errorf("pid namespace: %w", err)
	}
	return st.Ino, nil
}

// Alive reports whether the process that StartTime named may still touch memory. A
// zombie with no other thread is dead; one whose threads still end is not.
func Alive(pid int, start uint64) bool {
	st, err := readStat(pid)
	if err != nil || st.start != start {
		return false
	}
	return st.threads > 1 || st.state != 'Z' && st.state != 'X'
}
