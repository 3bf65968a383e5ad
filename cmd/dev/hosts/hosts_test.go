package hosts_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/batonkv/baton/cmd/dev/hosts"
	"github.com/batonkv/baton/cmd/dev/hosts/hoststest"
	"github.com/batonkv/baton/lifeline"
)

const envRole = "HOSTS_TEST_ROLE"

func TestMain(m *testing.M) {
	role, at := os.Getenv(envRole), os.Getenv("HOSTS_TEST_AT")
	if role == "" {
		os.Exit(m.Run())
	}
	var err error
	switch role {
	case "init":
		err = hosts.Serve(context.Background())
	case "serve":
		err = serve(at)
	case "read":
		err = read(at)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

type hello struct {
	PID   int
	Addr  string
	Bytes int64
	Alone bool // no other process's number is seen
}

// amount is what a server sends to whoever comes.
const amount = 1 << 20

func serve(at string) error {
	l, err := net.Listen("tcp", net.JoinHostPort(at, "0"))
	if err != nil {
		return err
	}
	go func() { // ends with the process
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = c.Write(make([]byte, amount))
			c.Close()
		}
	}()
	_, err = os.Stat("/proc/100")
	if err := lifeline.Ready(hello{PID: os.Getpid(), Addr: l.Addr().String(), Alone: errors.Is(err, os.ErrNotExist)}); err != nil {
		return err
	}
	<-lifeline.Watch()
	return nil
}

func read(at string) error {
	c, err := net.Dial("tcp", at)
	if err != nil {
		return err
	}
	n, err := io.Copy(io.Discard, c)
	if err != nil {
		return err
	}
	return lifeline.Ready(hello{PID: os.Getpid(), Bytes: n})
}

func on(t *testing.T, h *hosts.Host, role, at string) (hello, *lifeline.Child) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), envRole+"="+role, "HOSTS_TEST_AT="+at)
	c, err := h.Start(cmd)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Kill)
	var said hello
	if err := c.AwaitReady(t.Context(), &said); err != nil {
		t.Fatal(err)
	}
	return said, c
}

// TestHosts: what runs on a host sees its own processes alone, and reaches another over the
// network, whatever that delays and loses; a host's end is the end of all that runs there.
func TestHosts(t *testing.T) {
	if !hoststest.Lab(t) {
		return
	}
	for name, link := range map[string]hosts.Link{"the kernel": {}, "late and lossy": {Delay: time.Millisecond, Loss: 0.02}} {
		t.Run(name, func(t *testing.T) {
			n := hoststest.New(t, hosts.Config{Hosts: 2, Command: []string{os.Args[0]}, Link: link, Env: append(os.Environ(), envRole+"=init")})
			t.Log("packets go by " + n.How())
			a, b := n.Hosts[0], n.Hosts[1]
			served, child := on(t, a, "serve", a.Addr())
			if !served.Alone || a.PID(served.PID) != child.PID() || b.PID(served.PID) == child.PID() {
				t.Errorf("process %d of the host is %d here, want %d", served.PID, a.PID(served.PID), child.PID())
			}
			if got, _ := on(t, b, "read", served.Addr); got.Bytes != amount {
				t.Errorf("%d bytes came from host to host", got.Bytes)
			}
			c, err := net.Dial("tcp", served.Addr)
			if err != nil {
				t.Fatal(err)
			}
			if got, err := io.Copy(io.Discard, c); got != amount || err != nil {
				t.Errorf("%d bytes came here: %v", got, err)
			}
			fd, err := unix.PidfdOpen(child.PID(), 0)
			if err != nil {
				t.Fatal(err)
			}
			defer unix.Close(fd)
			a.Kill()
			<-child.Exited()
			if !errors.Is(unix.PidfdSendSignal(fd, 0, nil, 0), unix.ESRCH) {
				t.Error("a process outlived its host")
			}
		})
	}
}

func TestConfig(t *testing.T) {
	for _, c := range []hosts.Config{{}, {Hosts: 99, Command: []string{"x"}}, {Hosts: 1}, {Hosts: 1, Command: []string{"x"}, Link: hosts.Link{Loss: 0.9}}} {
		if n, err := hosts.New(t.Context(), c); !errors.Is(err, hosts.ErrHosts) {
			t.Errorf("%+v: %v", c, err)
			_ = n.Close()
		}
	}
}
