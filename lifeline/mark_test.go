package lifeline

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// marked starts a child and marks it.
func marked(t *testing.T) (*Child, string) {
	t.Helper()
	c := start(t, "stubborn", nil)
	awaitReady(t, c)
	path := filepath.Join(t.TempDir(), "mark")
	if err := Mark(path, c.PID()); err != nil {
		t.Fatal(err)
	}
	return c, path
}

func TestEndSeesTheExit(t *testing.T) {
	c, path := marked(t)
	began, err := StartTime(c.PID())
	if err != nil {
		t.Fatal(err)
	}
	if pid, err := End(t.Context(), path); err != nil || pid != c.PID() {
		t.Fatalf("ended %d, %v: want %d", pid, err, c.PID())
	}
	if Alive(c.PID(), began) {
		t.Error("End returned before the exit")
	}
	<-c.Exited()
	if pid, err := End(t.Context(), path); err != nil || pid != 0 {
		t.Errorf("again: %d, %v", pid, err)
	}
}

// TestMarkOnAFullDisk: a mark that cannot be written leaves the one before it, so that
// whoever comes next starts.
func TestMarkOnAFullDisk(t *testing.T) {
	c, path := marked(t)
	if err := os.Symlink("/dev/full", path+".next"); err != nil {
		t.Fatal(err)
	}
	if err := Mark(path, os.Getpid()); !errors.Is(err, ErrMark) || !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("a mark on a full disk: %v", err)
	}
	if left, err := os.ReadDir(filepath.Dir(path)); err != nil || len(left) != 1 || !left[0].Type().IsRegular() {
		t.Fatalf("left: %v, %v: want the mark alone", left, err)
	}
	if pid, err := End(t.Context(), path); err != nil || pid != c.PID() {
		t.Errorf("ended %d, %v: want %d", pid, err, c.PID())
	}
}

// TestEndSparesOthers: a mark is of one process alone, whatever its pid is afterwards.
func TestEndSparesOthers(t *testing.T) {
	for name, change := range map[string]func(*mark){
		"the pid was given again": func(m *mark) { m.Started++ },
		"another boot":            func(m *mark) { m.Boot = "0" + m.Boot[1:] + "0" },
	} {
		t.Run(name, func(t *testing.T) {
			c, path := marked(t)
			m, err := readMark(path)
			if err != nil {
				t.Fatal(err)
			}
			change(&m)
			b, _ := json.Marshal(m)
			if err := os.WriteFile(path, b, 0o600); err != nil {
				t.Fatal(err)
			}
			if pid, err := End(t.Context(), path); err != nil || pid != 0 {
				t.Errorf("ended %d, %v", pid, err)
			}
			select {
			case <-c.Exited():
				t.Error("it was killed")
			default:
			}
		})
	}
}

func TestMarkAbsentOrDamaged(t *testing.T) {
	path := filepath.Join(t.TempDir(), "mark")
	if pid, err := End(t.Context(), path); err != nil || pid != 0 {
		t.Errorf("no mark: %d, %v", pid, err)
	}
	for _, s := range []string{"", "{", `{"pid":-1,"boot":"b"}`, `{"pid":1}`, strings.Repeat(" ", maxMark+1)} {
		if err := os.WriteFile(path, []byte(s), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := End(t.Context(), path); !errors.Is(err, ErrMark) || !strings.Contains(err.Error(), "remove it") {
			t.Errorf("%.20q: %v", s, err)
		}
	}
	if err := Mark(filepath.Join(path, "x"), os.Getpid()); !errors.Is(err, ErrMark) {
		t.Errorf("a mark that cannot be written: %v", err)
	}
}
