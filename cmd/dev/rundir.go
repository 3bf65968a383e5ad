package dev

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/batonkv/baton/lifeline"
)

// owner says whose a run directory is.
type owner struct {
	PID     int    `json:"pid"`
	Started uint64 `json:"started"` // clock ticks since boot: tells a reused pid
}

const ownerFile = "owner.json"

// root is where run directories are: short, since socket paths are bounded.
func root() string {
	return filepath.Join(os.TempDir(), fmt.Sprintf("baton-%d", os.Getuid()))
}

// maxRankDir is the longest path of a rank's directory: sockets lie in it, and a
// socket's path has 107 bytes at most.
const maxRankDir = 90

// checkRoot refuses a base directory in which sockets could not be bound. longest is
// the longest name of a rank's directory.
func checkRoot(base, longest string) error {
	if !filepath.IsAbs(base) {
		return fmt.Errorf("run directory: TMPDIR %q: want an absolute path, such as /tmp", os.Getenv("TMPDIR"))
	}
	if over := len(base) + len("/run-0123456789/") + len(longest) - maxRankDir; over > 0 {
		return fmt.Errorf("run directory: TMPDIR %q: %d bytes too long for sockets in it: name a shorter one, such as /tmp", os.Getenv("TMPDIR"), over)
	}
	return nil
}

// makeRoot makes base, or takes one that is there, if it is this user's alone.
func makeRoot(base string) error {
	err := os.Mkdir(base, 0o700)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("run directory: %w: TMPDIR names no directory", err)
	}
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("run directory: %w", err)
	}
	return checkOwn(base)
}

// checkOwn refuses a base directory in which others could put something.
func checkOwn(base string) error {
	var st syscall.Stat_t
	if err := syscall.Lstat(base, &st); err != nil {
		return fmt.Errorf("run directory: %s: %w", base, err)
	}
	if st.Mode&syscall.S_IFMT != syscall.S_IFDIR || int(st.Uid) != os.Getuid() || st.Mode&0o022 != 0 {
		return fmt.Errorf("run directory: %s is no directory that this user alone can write to: remove it, or name another TMPDIR", base)
	}
	return nil
}

// minSpace is what etcd's log, which it lays out whole, and all else of a run take on disk;
// etcd panics where it cannot lay it out.
const minSpace = 64 << 20

// checkSpace refuses a base directory whose file system has fewer bytes left than want.
func checkSpace(base string, want uint64) error {
	var st syscall.Statfs_t
	if err := syscall.Statfs(base, &st); err != nil {
		return fmt.Errorf("run directory: %s: %w", base, err)
	}
	if free := st.Bavail * uint64(st.Bsize); free < want {
		return fmt.Errorf("run directory: %s: %w: %d MiB are free, a run needs %d: make room, or name another TMPDIR", base, syscall.ENOSPC, free>>20, want>>20)
	}
	return nil
}

// runDir makes a fresh directory under root and removes those of dead owners. longest
// is the longest name that will be a rank's directory in it.
func runDir(longest string) (string, error) {
	base := root()
	if err := checkRoot(base, longest); err != nil {
		return "", err
	}
	if err := makeRoot(base); err != nil {
		return "", err
	}
	if err := sweep(base); err != nil {
		return "", fmt.Errorf("run directory: remove those of dead owners: %w", err)
	}
	if err := checkSpace(base, minSpace); err != nil {
		return "", err
	}
	dir, err := os.MkdirTemp(base, "run-")
	if err != nil {
		return "", fmt.Errorf("run directory: %w", err)
	}
	started, err := lifeline.StartTime(os.Getpid())
	if err == nil {
		var b []byte
		if b, err = json.Marshal(owner{os.Getpid(), started}); err == nil {
			err = os.WriteFile(filepath.Join(dir, ownerFile), b, 0o600)
		}
	}
	if err != nil {
		os.RemoveAll(dir)
		return "", fmt.Errorf("run directory: %w", err)
	}
	return dir, nil
}

// sweep removes run directories whose owner has ended. One without an owner file is
// being made by somebody else at this instant, or was left empty: it stays.
func sweep(base string) error {
	dirs, err := filepath.Glob(filepath.Join(base, "run-*"))
	if err != nil {
		return err
	}
	for _, d := range dirs {
		b, err := os.ReadFile(filepath.Join(d, ownerFile))
		var o owner
		if err != nil || json.Unmarshal(b, &o) != nil || lifeline.Alive(o.PID, o.Started) {
			continue
		}
		if err := os.RemoveAll(d); err != nil {
			return err
		}
	}
	return nil
}
