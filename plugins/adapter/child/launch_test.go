package child

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/batonkv/baton/internal/capture"
	"github.com/batonkv/baton/lifeline"
	"github.com/batonkv/baton/plugins/adapter/drive"
	"github.com/batonkv/baton/sidecar/handoff"
)

const (
	envRole = "CHILD_TEST_ROLE"
	envDir  = "CHILD_TEST_DIR" // of a parent's sockets
)

// roles are what the test binary does when a test starts it as a child.
var roles = map[string]func(){
	"adapter": func() { Serve(&told{info: info}) },
	"loud": func() {
		for range 10 * maxLines {
			fmt.Fprintln(os.Stderr, strings.Repeat("x", 2*maxLine))
		}
		Serve(&told{info: info})
	},
	"fails":  func() { fmt.Fprintln(os.Stderr, "no such thing"); os.Exit(3) },
	"next":   func() { fmt.Println("1|2|unix|/none|grpc|"); <-lifeline.Watch() },
	"sleeps": func() { <-lifeline.Watch() },
	"parent": func() {
		os.Setenv(envRole, "adapter")
		l, err := Open([]string{os.Args[0]}, os.Getenv(envDir), slog.New(slog.DiscardHandler))(context.Background())
		if err == nil {
			err = lifeline.Ready(l.PID)
		}
		fmt.Fprintln(os.Stderr, err)
		<-lifeline.Watch()
	},
}

func TestMain(m *testing.M) {
	if role := roles[os.Getenv(envRole)]; role != nil {
		role()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// opener launches this binary in a role, with a folder for sockets of its own.
func opener(t *testing.T, role string, log *slog.Logger) drive.Opener {
	t.Setenv(envRole, role)
	dir := t.TempDir()
	t.Cleanup(func() {
		if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
			t.Errorf("left behind: %v, %v", left, err)
		}
	})
	return Open([]string{os.Args[0]}, dir, log)
}

func open(t *testing.T, role string, log *slog.Logger) *drive.Life {
	t.Helper()
	l, err := opener(t, role, log)(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestWhatIsNoAdapter(t *testing.T) {
	for role, want := range map[string]struct {
		is   error
		text string
	}{"fails": {handoff.ErrHost, "no such thing"}, "next": {handoff.ErrVersion, "Plugin version: 2"}} {
		_, err := opener(t, role, slog.New(slog.DiscardHandler))(t.Context())
		if !errors.Is(err, want.is) || !strings.Contains(err.Error(), want.text) {
			t.Errorf("%s: %v", role, err)
		}
	}
	opener(t, "", nil)
	if _, err := Open([]string{"/none/such"}, t.TempDir(), slog.New(slog.DiscardHandler))(t.Context()); !errors.Is(err, handoff.ErrHost) || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no program: %v", err)
	}
}

func TestOpenEndsWithItsContext(t *testing.T) {
	begin := opener(t, "sleeps", slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() {
		_, err := begin(ctx)
		done <- err
	}()
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}

// TestAStoppedProcess answers nothing, not even a polite end.
func TestAStoppedProcess(t *testing.T) {
	l := open(t, "adapter", slog.New(slog.DiscardHandler))
	if err := unix.Kill(l.PID, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() {
		_, err := l.Register(ctx)
		done <- err
	}()
	cancel()
	if err := errors.Join(l.Close(true)); err != nil {
		t.Error(err)
	}
	if err := <-done; err == nil {
		t.Error("a stopped process answered")
	}
	<-l.Done
	if !strings.Contains(l.Why().Error(), "killed") {
		t.Errorf("%v", l.Why())
	}
}

func TestPoliteEnd(t *testing.T) {
	l := open(t, "adapter", slog.New(slog.DiscardHandler))
	if got, err := l.Register(t.Context()); err != nil || got.Name != info.Name {
		t.Errorf("%+v, %v", got, err)
	}
	if err := l.Close(false); err != nil {
		t.Error(err)
	}
	<-l.Done
	if !strings.Contains(l.Why().Error(), "exit status 0") {
		t.Errorf("%v", l.Why())
	}
}

// TestItEndsWithItsSidecar kills a process that launched an adapter: it leaves a folder, of the
// name that the next one looks for.
func TestItEndsWithItsSidecar(t *testing.T) {
	cmd, dir := exec.Command(os.Args[0]), t.TempDir()
	cmd.Env = append(os.Environ(), envRole+"=parent", envDir+"="+dir)
	parent, err := lifeline.Start(cmd)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { parent.Kill(); <-parent.Exited() }()
	var pid int
	if err := parent.AwaitReady(t.Context(), &pid); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	parent.Kill()
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 60_000)
		if err == unix.EINTR {
			continue
		}
		if n != 1 || err != nil {
			t.Errorf("adapter %d outlives its sidecar: %v", pid, err)
		}
		if left, err := os.ReadDir(dir); err != nil || len(left) != 1 || !strings.HasPrefix(left[0].Name(), Folder) {
			t.Errorf("left behind: %v, %v", left, err)
		}
		return
	}
}

func TestRunByHand(t *testing.T) {
	t.Setenv(envRole, "adapter")
	out, err := exec.Command(os.Args[0]).CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 2 || !strings.Contains(string(out), "adapters:") {
		t.Errorf("%v: %s", err, out)
	}
}

func TestALoudChildIsCutShort(t *testing.T) {
	var out capture.Buffer
	l := open(t, "loud", slog.New(slog.NewTextHandler(&out, nil)))
	if err := l.Close(true); err != nil {
		t.Error(err)
	}
	if n := len(out.String()); n == 0 || n > 10*maxLines*maxLine {
		t.Errorf("%d bytes", n)
	}
}

func TestLines(t *testing.T) {
	var out bytes.Buffer
	now := time.Unix(1, 0)
	l := newLines(slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == "line" || a.Key == "lines-left-out" {
			return a
		}
		return slog.Attr{}
	}})))
	l.now = func() time.Time { return now }
	say := func(s string) string {
		out.Reset()
		if n, err := l.Write([]byte(s)); n != len(s) || err != nil {
			t.Errorf("%d, %v", n, err)
		}
		return out.String()
	}
	if got := say("a\nb"); got != "line=a\n" {
		t.Errorf("%q", got)
	}
	if got := say("c\n\n"); got != "line=bc\n" {
		t.Errorf("%q", got)
	}
	if got := say(strings.Repeat("x", 3*maxLine)) + say("y\n"); len(got) != len("line=\n")+maxLine {
		t.Errorf("%d bytes of a long line", len(got))
	}
	if got := strings.Count(say(strings.Repeat("z\n", 3*maxLines)), "z"); got != maxLines-4 {
		t.Errorf("%d lines more", got)
	}
	now = now.Add(window)
	if got := say("on\n"); got != fmt.Sprintf("lines-left-out=%d\nline=on\n", 2*maxLines+4) {
		t.Errorf("%q", got)
	}
}
