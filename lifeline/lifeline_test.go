package lifeline

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const envRole = "LIFELINE_TEST_ROLE"

type hello struct {
	PID, Grandchild int
	FDs             []string
}

// roles are what the test binary does when a test starts it as a child.
var roles = map[string]func() error{
	"ready": func() error { return errors.Join(Ready(hello{PID: os.Getpid()}), await()) },
	"fail":  func() error { return errors.New("port 1234 is taken") },
	"huge":  func() error { return errors.Join(Ready(strings.Repeat("x", maxReady)), await()) },
	"noise": func() error {
		_, err := os.NewFile(readyFD, "ready").WriteString("not json\n")
		return errors.Join(err, await())
	},
	"flood": func() error {
		_, err := os.NewFile(readyFD, "ready").Write(bytes.Repeat([]byte("x"), 2*maxReady))
		return err
	},
	"stubborn": func() error {
		signal.Ignore(syscall.SIGTERM)
		return errors.Join(Ready(hello{PID: os.Getpid()}), await())
	},
	"fds":    listFDs,
	"parent": func() error { return parent("ready") },
	"grand":  func() error { return parent("fds") },
}

func TestMain(m *testing.M) {
	role, ok := roles[os.Getenv(envRole)]
	if !ok {
		os.Exit(m.Run())
	}
	os.Unsetenv(envRole)
	if err := role(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(3)
	}
}

func await() error { <-Watch(); return nil }

// listFDs reports the descriptors from 3 up that survived exec.
func listFDs() error {
	b, err := json.Marshal(hello{PID: os.Getpid(), FDs: inherited()})
	fmt.Println(string(b))
	return err
}

func inherited() (open []string) {
	for fd := 3; fd < 64; fd++ {
		if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil && flags&unix.FD_CLOEXEC == 0 {
			to, _ := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
			open = append(open, fmt.Sprintf("%d:%s", fd, to))
		}
	}
	return open
}

// parent starts a grandchild; for "fds" without a lifeline, to see what leaks.
func parent(role string) error {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), envRole+"="+role)
	if role == "fds" {
		out, err := cmd.Output()
		if err != nil {
			return err
		}
		return Ready(json.RawMessage(bytes.TrimSpace(out)))
	}
	c, err := Start(cmd)
	if err != nil {
		return err
	}
	var h hello
	if err := c.AwaitReady(context.Background(), &h); err != nil {
		return err
	}
	return errors.Join(Ready(hello{PID: os.Getpid(), Grandchild: h.PID}), await())
}

func start(t *testing.T, role string, edit func(*exec.Cmd)) *Child {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), envRole+"="+role)
	if edit != nil {
		edit(cmd)
	}
	c, err := Start(cmd)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Kill(); <-c.Exited() })
	return c
}

func awaitReady(t *testing.T, c *Child) hello {
	t.Helper()
	var h hello
	if err := c.AwaitReady(t.Context(), &h); err != nil {
		t.Fatal(err)
	}
	return h
}

func TestReadyAndStop(t *testing.T) {
	c := start(t, "ready", nil)
	if h := awaitReady(t, c); h.PID != c.PID() {
		t.Errorf("ready line says pid %d, want %d", h.PID, c.PID())
	}
	if err := c.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	<-c.Exited()
	var ee *exec.ExitError
	if !errors.As(c.Err(), &ee) || ee.Sys().(syscall.WaitStatus).Signal() != syscall.SIGTERM {
		t.Errorf("Err() = %v, want SIGTERM", c.Err())
	}
	if err := c.Stop(t.Context()); err != nil {
		t.Errorf("second Stop: %v", err)
	}
}

func TestStopKillsStubborn(t *testing.T) {
	for name, ctx := range map[string]func() context.Context{
		"grace":    context.Background,
		"deadline": func() context.Context { c, end := context.WithCancel(context.Background()); end(); return c },
	} {
		t.Run(name, func(t *testing.T) {
			c := start(t, "stubborn", nil)
			if name == "grace" {
				c.grace = time.Millisecond
			}
			awaitReady(t, c)
			if err := c.Stop(ctx()); err != nil {
				t.Fatal(err)
			}
			if c.Err() == nil || !strings.Contains(c.Err().Error(), "killed") {
				t.Errorf("Err() = %v, want killed", c.Err())
			}
		})
	}
}

func TestNotReady(t *testing.T) {
	for role, want := range map[string]string{
		"fail":  "port 1234 is taken",
		"noise": "not json",
		"flood": "exceeds",
		"huge":  "at most",
	} {
		t.Run(role, func(t *testing.T) {
			c := start(t, role, nil)
			var h hello
			if role == "huge" {
				c.life.Close() // it reports the refused line when it exits
			}
			err := c.AwaitReady(t.Context(), &h)
			if !errors.Is(err, ErrNotReady) || !strings.Contains(err.Error(), want) {
				t.Errorf("AwaitReady = %v, want ErrNotReady with %q", err, want)
			}
		})
	}
}

func TestAwaitReadyEndsWithContext(t *testing.T) {
	c := start(t, "ready", func(c *exec.Cmd) { c.Path, c.Args = "/bin/sleep", []string{"sleep", "60"} })
	ctx, end := context.WithCancel(t.Context())
	end()
	if err := c.AwaitReady(ctx, new(hello)); !errors.Is(err, ErrNotReady) || !errors.Is(err, context.Canceled) {
		t.Errorf("AwaitReady = %v, want ErrNotReady and context.Canceled", err)
	}
}

// The kill of a parent ends its grandchild too: the chain is one pipe per level.
func TestKillOfParentEndsTree(t *testing.T) {
	c := start(t, "parent", nil)
	h := awaitReady(t, c)
	fd, err := unix.PidfdOpen(h.Grandchild, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	began, err := StartTime(h.Grandchild)
	if err != nil || !Alive(h.Grandchild, began) {
		t.Fatalf("grandchild: start %d, %v", began, err)
	}
	c.Kill()
	<-c.Exited()
	if _, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 30_000); err != nil && err != unix.EINTR {
		t.Fatal(err)
	}
	if Alive(h.Grandchild, began) {
		t.Error("grandchild outlives its parent")
	}
}

func TestNothingLeaksToGrandchild(t *testing.T) {
	// What leaked into the test itself from whoever started it is not ours.
	if h, had := awaitReady(t, start(t, "grand", nil)), inherited(); !slices.Equal(h.FDs, had) {
		t.Errorf("grandchild inherited %v, of which %v come from outside", h.FDs, had)
	}
}

func TestExtraFilesAndStderr(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	var errOut bytes.Buffer
	c := start(t, "ready", func(c *exec.Cmd) {
		c.Path, c.Args = "/bin/sh", []string{"sh", "-c", fmt.Sprintf("echo extra >&%d; echo warning >&2; echo '{\"PID\":7}' >&3", FirstExtra)}
		c.ExtraFiles = []*os.File{w}
		c.Stderr = &errOut
	})
	w.Close()
	if h := awaitReady(t, c); h.PID != 7 {
		t.Errorf("ready says %d", h.PID)
	}
	if s, err := bufio.NewReader(r).ReadString('\n'); s != "extra\n" {
		t.Errorf("extra file got %q, %v", s, err)
	}
	<-c.Exited()
	if c.Err() != nil {
		t.Errorf("Err() = %v", c.Err())
	}
	if s := c.Stderr(); s != "warning" || errOut.String() != "warning\n" {
		t.Errorf("stderr tail %q, passed on %q", s, errOut.String())
	}
}

func TestNoLifeline(t *testing.T) {
	if Watch() != nil {
		t.Error("Watch is not nil without a parent's pipe")
	}
	if _, err := Start(exec.Command("/does/not/exist")); err == nil {
		t.Error("started a file that does not exist")
	}
}

func TestTailIsBounded(t *testing.T) {
	tl := newTail(nil)
	for i := range 100_000 {
		fmt.Fprintf(tl, "line %d\n", i)
	}
	s := tl.String()
	if n := strings.Count(s, "\n") + 1; n != tailLines || !strings.HasSuffix(s, "line 99999") || cap(tl.buf) > 8*tailBytes {
		t.Errorf("%d lines, cap %d, end %.20q", n, cap(tl.buf), s[len(s)-10:])
	}
}

func TestParseStat(t *testing.T) {
	const rest = " S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 4 0 987654 20"
	for line, want := range map[string]uint64{
		"12 (sh)" + rest:           987654,
		"12 (a) b) S 1 (c)" + rest: 987654,
		"12 (sh) S 1 2":            0,
		"no name":                  0,
		"":                         0,
		"1 (x) S" + " y y y y y y y y y y y y y y y y y y y": 0,
	} {
		if st, err := parseStat([]byte(line)); st.start != want || (err == nil) != (want > 0) {
			t.Errorf("parseStat(%q) = %+v, %v", line, st, err)
		}
	}
	if Alive(os.Getpid(), 1) {
		t.Error("a recycled pid counts as alive")
	}
	if _, err := StartTime(-1); err == nil {
		t.Error("StartTime(-1) has no error")
	}
}

func FuzzParseStat(f *testing.F) {
	b, _ := os.ReadFile("/proc/self/stat")
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) { _, _ = parseStat(b) })
}

func FuzzReadLine(f *testing.F) {
	f.Add([]byte("{}\nrest"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if line, err := readLine(io.NopCloser(bytes.NewReader(b))); err == nil && len(line) > maxReady+1024 {
			t.Errorf("line of %d bytes", len(line))
		}
	})
}
