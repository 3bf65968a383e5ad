package lifeline

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/batonkv/baton/internal/pidfd"
)

// ErrMark reports a mark that cannot be read, or whose process cannot be ended.
var ErrMark = errors.New("lifeline: mark of a process")

// mark names one process for whoever comes after its parent: a pid alone is given again.
type mark struct {
	PID     int    `json:"pid"`
	Started uint64 `json:"started"` // as StartTime says
	Boot    string `json:"boot"`    // of the kernel
}

// maxMark bounds a mark's file in bytes.
const maxMark = 4 << 10

// Mark writes to path which process pid is, in place of what is there. End ends it. After an
// error what was there is there still, and pid must not run on: nobody would find it.
func Mark(path string, pid int) error {
	st, err := readStat(pid)
	if err != nil {
		return err
	}
	boot, err := bootID()
	if err != nil {
		return err
	}
	b, err := json.Marshal(mark{PID: pid, Started: st.start, Boot: boot})
	if err != nil {
		return err
	}
	// Whole or not at all, also when this process is killed or the disk is full meanwhile.
	next := path + ".next"
	err = writeSynced(next, b)
	if err == nil {
		err = os.Rename(next, path)
	}
	if err != nil {
		_ = os.Remove(next) // no reason of its own: the mark is what was asked for
		return fmt.Errorf("%w: %w", ErrMark, err)
	}
	return nil
}

// writeSynced is os.WriteFile whose bytes are on the disk when it returns.
func writeSynced(path string, b []byte) error {
	f, err := os.OpenFile(filepath.Clean(path), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// End kills the process that was marked at path and returns once its exit was seen; pid
// is 0 when there was nothing to end. A mark of another boot, and one whose pid another
// process has, are of a process that is gone.
func End(ctx context.Context, path string) (pid int, err error) {
	m, err := readMark(path)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	boot, err := bootID()
	if err != nil || m.Boot != boot {
		return 0, err
	}
	p, err := pidfd.Open(m.PID)
	if errors.Is(err, pidfd.ErrGone) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("%w: %w", ErrMark, err)
	}
	defer p.Close()
	// Compared while p is held: the pid is not given again meanwhile.
	if st, err := readStat(m.PID); err != nil || st.start != m.Started || p.Exited() {
		return 0, nil
	}
	if err := p.Kill(); err != nil {
		return m.PID, fmt.Errorf("%w: %s: end it by hand: %w", ErrMark, path, err)
	}
	if err := p.Wait(ctx); err != nil {
		return m.PID, fmt.Errorf("%w: %s: pid %d was killed and has not exited: %w", ErrMark, path, m.PID, err)
	}
	return m.PID, nil
}

func readMark(path string) (m mark, err error) {
	st, err := os.Stat(path)
	if err != nil {
		return m, err
	}
	damaged := func(what any) (mark, error) {
		return mark{}, fmt.Errorf("%w: %s: %v: see that no process that it may have named is left, and remove it", ErrMark, path, what)
	}
	if st.Size() > maxMark {
		return damaged(fmt.Sprintf("%d bytes", st.Size()))
	}
	b, err := os.ReadFile(filepath.Clean(path))
	if err != nil {
		return m, err
	}
	if err := json.Unmarshal(b, &m); err != nil {
		return damaged(err)
	}
	if m.PID < 1 || m.Boot == "" {
		return damaged("it names no process")
	}
	return m, nil
}

// bootID is this run of the kernel's.
func bootID() (string, error) {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("lifeline: boot id: %w", err)
	}
	return strings.TrimSpace(string(b)), nil
}
