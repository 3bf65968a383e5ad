// Package life is what an engine rank keeps of the actions that its group was told: whether
// it steps requests, takes new ones, ends, and is profiled. Ranks that are told the same in
// the same order stand alike. One goroutine uses a Life.
package life

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/pprof"

	"github.com/batonkv/baton/sidecar/handoff"
)

// ErrProfile: the engine cannot be profiled.
var ErrProfile = errors.New("engine: no profile")

// Life is one rank's. The zero Life runs, and refuses to be profiled.
type Life struct {
	Dir string // of profiles; empty: none are made
	// Forget gives up what can be rebuilt, at each suspend; nil: nothing is.
	Forget func()

	paused, suspended, draining, stopping bool
	profile                               *os.File
}

// Do carries out a Lifecycle decision. The error is the engine's refusal. What is told twice
// is done once.
func (l *Life) Do(d handoff.Decision) error {
	switch d.Action {
	case handoff.ActionPause:
		l.paused = true
	case handoff.ActionUnpause:
		l.paused = false
	case handoff.ActionSuspend:
		l.suspended = true
		if l.Forget != nil {
			l.Forget()
		}
	case handoff.ActionResume:
		l.suspended = false
	case handoff.ActionStop:
		l.stopping = true
	case handoff.ActionStopIntake, handoff.ActionResumeIntake:
		l.draining = d.Draining(l.draining)
	case handoff.ActionProfileStart:
		return l.start(d.N)
	case handoff.ActionProfileStop:
		return l.stop()
	default:
		return fmt.Errorf("%w: action %d", handoff.ErrBound, d.Action)
	}
	return nil
}

// Held reports whether no request may be stepped. What stops is stepped to its end.
func (l *Life) Held() bool { return (l.paused || l.suspended) && !l.stopping }

// Stopping reports whether the engine ends when nothing runs any more.
func (l *Life) Stopping() bool { return l.stopping }

// Intake says why no new request is taken, or returns nil.
func (l *Life) Intake() error {
	switch {
	case l.stopping:
		return fmt.Errorf("%w: the engine stops", handoff.ErrDraining)
	case l.draining:
		return fmt.Errorf("%w: the engine takes no new request", handoff.ErrDraining)
	}
	return nil
}

// start profiles the process into a file that the decision names.
func (l *Life) start(n uint64) error {
	switch {
	case l.profile != nil:
		return nil
	case l.Dir == "":
		return fmt.Errorf("%w: the engine has no directory for it", ErrProfile)
	}
	f, err := os.OpenFile(filepath.Join(l.Dir, fmt.Sprintf("engine-cpu-%d.pprof", n)), os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrProfile, err)
	}
	if err := pprof.StartCPUProfile(f); err != nil {
		return fmt.Errorf("%w: %w", ErrProfile, errors.Join(err, f.Close(), os.Remove(f.Name())))
	}
	l.profile = f
	return nil
}

func (l *Life) stop() error {
	if l.profile == nil {
		return nil
	}
	pprof.StopCPUProfile()
	err := l.profile.Close()
	l.profile = nil
	if err != nil {
		return fmt.Errorf("%w: %w", ErrProfile, err)
	}
	return nil
}

// Close ends a profile that runs.
func (l *Life) Close() error { return l.stop() }
