package life

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/batonkv/baton/sidecar/handoff"
)

func TestLife(t *testing.T) {
	forgot := 0
	l := Life{Forget: func() { forgot++ }}
	for i, c := range []struct {
		a        handoff.Action
		held     bool
		stopping bool
		open     bool
	}{
		{handoff.ActionPause, true, false, true},
		{handoff.ActionPause, true, false, true},
		{handoff.ActionSuspend, true, false, true},
		{handoff.ActionUnpause, true, false, true},
		{handoff.ActionResume, false, false, true},
		{handoff.ActionStopIntake, false, false, false},
		{handoff.ActionPause, true, false, false},
		{handoff.ActionResumeIntake, true, false, true},
		{handoff.ActionStop, false, true, false}, // what runs is stepped to its end
		{handoff.ActionResumeIntake, false, true, false},
	} {
		if err := l.Do(handoff.Decision{N: 1, Action: c.a}); err != nil {
			t.Fatal(err)
		}
		err := l.Intake()
		if l.Held() != c.held || l.Stopping() != c.stopping || (err == nil) != c.open || err != nil && !errors.Is(err, handoff.ErrDraining) {
			t.Errorf("%d, after %v: held %v, stopping %v, intake %v", i, c.a, l.Held(), l.Stopping(), err)
		}
	}
	if forgot != 1 {
		t.Errorf("forgot %d times", forgot)
	}
	if err := l.Do(handoff.Decision{}); !errors.Is(err, handoff.ErrBound) {
		t.Error(err)
	}
}

func TestProfile(t *testing.T) {
	start, stop := handoff.Decision{N: 7, Action: handoff.ActionProfileStart}, handoff.Decision{N: 8, Action: handoff.ActionProfileStop}
	l := Life{Dir: t.TempDir()}
	for _, d := range []handoff.Decision{stop, start, start} {
		if err := l.Do(d); err != nil {
			t.Fatal(err)
		}
	}
	other := Life{Dir: t.TempDir()}
	if err := other.Do(start); !errors.Is(err, ErrProfile) {
		t.Errorf("a second profile of one process: %v", err)
	}
	if left, _ := os.ReadDir(other.Dir); len(left) > 0 {
		t.Errorf("a profile that never began is left: %v", left)
	}
	if err := l.Do(stop); err != nil {
		t.Fatal(err)
	}
	if st, err := os.Stat(filepath.Join(l.Dir, "engine-cpu-7.pprof")); err != nil || st.Size() == 0 || st.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", st, err)
	}
	if err := other.Do(start); err != nil {
		t.Error(err)
	}
	if err := other.Close(); err != nil {
		t.Error(err)
	}
	if err := (&Life{}).Do(start); !errors.Is(err, ErrProfile) {
		t.Errorf("without a directory: %v", err)
	}
}
