package sidecar

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/batonkv/baton/cmd/config"
	"github.com/batonkv/baton/lifeline"
	"github.com/batonkv/baton/plugins/adapter/child"
	"github.com/batonkv/baton/sidecar/sockfd"
	"github.com/batonkv/baton/transfer/staged/drive"
)

// moverGrace bounds the wait for the exit of a predecessor's mover, which was killed: a
// process that does not end within it hangs in the kernel.
const moverGrace = 30 * time.Second

// Files in the run directory: the lock of the one sidecar that it has, the mark of the mover
// that may touch its engine's memory, and those of wire movers, which may serve chunks: one
// for each route, which has one at a time.
const (
	lockFile   = "sidecar.lock"
	markFile   = "mover.mark"
	wirePrefix = "wire."
	markSuffix = ".mark" // a mark that is being written ends otherwise
)

func wireMark(dir string, r drive.Route) string {
	return filepath.Join(dir, wirePrefix+r.Transport+"."+r.Group+markSuffix)
}

// takeOver makes the run directory this process's. A predecessor that lives is refused
// by its pid; the mover of one that died may still copy, so it is ended and seen to have
// exited before an engine can attach.
func (p *parts) takeOver(ctx context.Context) error {
	dir := p.cfg.RunDir
	if err := runDir(dir); err != nil {
		return err
	}
	lock, err := sockfd.Lock(filepath.Join(dir, lockFile))
	if err != nil {
		return err
	}
	p.onClose(lock.Close)
	ending, cancel := context.WithTimeout(ctx, moverGrace)
	defer cancel()
	files, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("%w: run-dir: %w", config.ErrConfig, err)
	}
	for _, f := range files {
		if strings.HasPrefix(f.Name(), child.Folder) { // its adapter ended with the sidecar
			if err := os.RemoveAll(filepath.Join(dir, f.Name())); err != nil {
				return err
			}
		}
		wire := strings.HasPrefix(f.Name(), wirePrefix) && strings.HasSuffix(f.Name(), markSuffix)
		if !wire && f.Name() != markFile {
			continue
		}
		pid, err := lifeline.End(ending, filepath.Join(dir, f.Name()))
		if err != nil {
			return fmt.Errorf("a mover of an earlier sidecar: %w", err)
		}
		if pid != 0 {
			p.log.Warn("ended a mover that an earlier sidecar left", "pid", pid)
		}
		if wire { // its group may never be met again
			if err := os.Remove(filepath.Join(dir, f.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}

// runDir makes the directory, or takes one that is there, if it is this user's and
// nobody else's: who can reach its sockets is the engine.
func runDir(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("%w: run-dir: %w", config.ErrConfig, err)
	}
	var st syscall.Stat_t
	if err := syscall.Stat(dir, &st); err != nil {
		return fmt.Errorf("%w: run-dir: %s: %w", config.ErrConfig, dir, err)
	}
	if int(st.Uid) != os.Getuid() {
		return fmt.Errorf("%w: run-dir: %s is of user %d and this process of user %d: name another directory", config.ErrConfig, dir, st.Uid, os.Getuid())
	}
	if mode := st.Mode & 0o777; mode&0o077 != 0 {
		return fmt.Errorf("%w: run-dir: %s has mode %04o: others could reach the engine: chmod 0700 it, or name another directory", config.ErrConfig, dir, mode)
	}
	return nil
}
