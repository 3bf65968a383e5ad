package dev

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

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

// runDir makes a fresh directory under root and removes those of dead owners.
func runDir() (string, error) {
	base := root()
	if err := os.MkdirAll(base, 0o700); err != nil {
		return "", fmt.Errorf("run directory: %w", err)
	}
	if err := sweep(base); err != nil {
		return "", fmt.Errorf("run directory: remove those of dead owners: %w", err)
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
