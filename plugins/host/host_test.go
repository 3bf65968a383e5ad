package host_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/batonkv/baton/internal/capture"
	"github.com/batonkv/baton/plugins"
	"github.com/batonkv/baton/plugins/host"
	"github.com/batonkv/baton/proto/errs"
	"github.com/batonkv/baton/sidecar/control"
	"github.com/batonkv/baton/sidecar/handoff"
)

// What the test binary is, beside a plugin.
const (
	asHost = "BATON_TEST_HOST"
	breaks = "BATON_TEST_BREAK"
)

// beHost opens a plugin, says its pid, and waits to be killed.
func beHost() int {
	h, err := host.Open(context.Background(), host.Config{Command: []string{os.Args[0]}, Env: []string{asHost + "="}})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Println(h.PID())
	_, _ = io.Copy(io.Discard, os.Stdin)
	return 0
}

var id = handoff.ID{Group: "g", Instance: 1, Leader: 2, N: 3}

func TestCalls(t *testing.T) {
	for name, plain := range map[string]bool{"mutual TLS": false, "plain": true} {
		t.Run(name, func(t *testing.T) {
			log := &capture.Buffer{}
			h, ctx := open(t, func(c *host.Config) { c.Plain, c.Stderr = plain, log }), bounded(t)
			if got, err := h.Handoff().Import(ctx, "g", handoff.Import{Label: "r", Manifest: handoff.Manifest{ID: id}}); err != nil || got.ID != id || got.Bytes != int64(h.PID()) {
				t.Errorf("import: %+v, %v", got, err)
			}
			if got, err := h.Handoff().Get(ctx, "g", id); err != nil || got.ID != id || !errors.Is(got.Err, handoff.ErrGone) {
				t.Errorf("get: %+v, %v", got, err)
			}
			if got, err := h.Handoff().List(ctx, "g", control.Query{Role: control.Destination, Page: "p"}); err != nil || got.Next != "p+" || got.Infos[0].Role != control.Destination {
				t.Errorf("list: %+v, %v", got, err)
			}
			q := plugins.PlanQuery{Source: plugins.Side{Group: "g"}, Destination: plugins.Side{Layout: "tp=2"}}
			if got, err := h.Reshard().Plan(ctx, q); err != nil || got.Digest[0] != 9 {
				t.Errorf("plan: %+v, %v", got, err)
			}
			if got, err := h.Reshard().Explain(ctx, q, 7, plugins.SVG); err != nil || string(got) != fmt.Sprint("tp=2", 7, plugins.SVG) {
				t.Errorf("explain: %s, %v", got, err)
			}
			if got, err := h.Cluster().Groups(ctx); err != nil || got[0].Name != "g" {
				t.Errorf("groups: %+v, %v", got, err)
			}
			if got, err := h.Cluster().Drain(ctx, "g", false); err != nil || !got.Draining || got.Waits[0] != "w" {
				t.Errorf("drain: %+v, %v", got, err)
			}
			if got, err := h.Cluster().Describe(ctx, "g"); err != nil || !got.Status.Ready || got.Geometry.Shards != nil {
				t.Errorf("describe: %+v, %v", got, err)
			}
			if got, err := h.Cluster().Links(ctx, "g", 2, control.LinksQuery{Meet: true}); err != nil || got.Self.Rank != 2 || got.More != 3 {
				t.Errorf("links: %+v, %v", got, err)
			}
			if _, err := h.Cluster().Links(ctx, "g", -1, control.LinksQuery{}); !errors.Is(err, handoff.ErrBound) {
				t.Errorf("links of rank -1: %v", err)
			}
			h.Close()
			if !strings.Contains(log.String(), "written to standard error") {
				t.Errorf("the plugin's standard error is lost: %q", log)
			}
			if _, err := h.Cluster().Groups(ctx); !errors.Is(err, handoff.ErrHost) {
				t.Errorf("after Close: %v", err)
			}
		})
	}
}

// calls are all that name a group.
func calls(ctx context.Context, h *host.Host, group string) map[string]error {
	_, im := h.Handoff().Import(ctx, group, handoff.Import{Label: "r"})
	_, ge := h.Handoff().Get(ctx, group, id)
	_, li := h.Handoff().List(ctx, group, control.Query{})
	_, de := h.Cluster().Describe(ctx, group)
	_, lk := h.Cluster().Links(ctx, group, 0, control.LinksQuery{})
	_, dr := h.Cluster().Drain(ctx, group, true)
	q := plugins.PlanQuery{Source: plugins.Side{Group: group}, Destination: plugins.Side{Layout: "tp=2"}}
	_, pl := h.Reshard().Plan(ctx, q)
	_, ex := h.Reshard().Explain(ctx, q, 1, plugins.Text)
	var wa error
	if group == "exit" { // its watch goes on with the next plugin, which ends too
		wa = handoff.ErrHost
	} else {
		for _, err := range h.Handoff().Watch(ctx, group, control.Cursor{}) {
			wa = err
			break
		}
	}
	rid := id
	rid.Group = group
	return map[string]error{"import": im, "get": ge, "list": li, "describe": de, "links": lk, "drain": dr, "plan": pl, "explain": ex, "watch": wa,
		"abort": h.Handoff().Abort(ctx, group, id), "release": h.Handoff().Release(ctx, rid, handoff.Key{}), "do": h.Cluster().Do(ctx, group, handoff.ActionPause),
		"weights": h.Cluster().SetWeightsEpoch(ctx, group, 1), "reset": h.Cluster().Reset(ctx, group)}
}

// TestErrorsKeepTheirSentinels: errors.Is decides in the host's process as in the plugin's.
func TestErrorsKeepTheirSentinels(t *testing.T) {
	h, ctx := open(t), bounded(t)
	pid := h.PID()
	for i, want := range errs.Sentinels() {
		for call, err := range calls(ctx, h, fmt.Sprintf("err-%d", i)) {
			if !errors.Is(err, want) || !strings.Contains(err.Error(), "why") {
				t.Errorf("%s: %v, want %v", call, err, want)
			}
			for _, other := range []error{handoff.ErrInDoubt, handoff.ErrHost} {
				if errors.Is(err, other) && !errors.Is(want, other) {
					t.Errorf("%s: %v is also %v", call, err, other)
				}
			}
		}
	}
	for _, name := range []string{"", "No", strings.Repeat("x", 300)} {
		for call, err := range calls(ctx, h, name) {
			if call == "plan" || call == "explain" {
				continue // whose sides the router looks up
			}
			if !errors.Is(err, handoff.ErrGroup) && !errors.Is(err, handoff.ErrBound) {
				t.Errorf("%s of %.9q: %v", call, name, err)
			}
		}
	}
	if h.PID() != pid {
		t.Error("an error that the plugin said ended it")
	}
}

// TestPluginDies: what was in flight says so, in doubt where it may have been done, and the
// next call has the next plugin.
func TestPluginDies(t *testing.T) {
	h, ctx := open(t), bounded(t)
	doubt := map[string]bool{"import": true, "do": true, "weights": true, "abort": true, "release": true, "drain": true, "reset": true}
	for call, err := range calls(ctx, h, "exit") {
		if !errors.Is(err, handoff.ErrHost) || errors.Is(err, handoff.ErrInDoubt) != doubt[call] {
			t.Errorf("%s: %v", call, err)
		}
	}
	if _, err := h.Cluster().Groups(ctx); err != nil {
		t.Errorf("the next plugin: %v", err)
	}
}

func TestCallerGivesUp(t *testing.T) {
	h := open(t)
	pid := h.PID()
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	_, im := h.Handoff().Import(ctx, "wait", handoff.Import{Label: "r"})
	_, ge := h.Handoff().Get(ctx, "wait", id)
	if !errors.Is(im, context.DeadlineExceeded) || errors.Is(im, handoff.ErrHost) {
		t.Errorf("import: %v", im)
	}
	if !errors.Is(ge, context.DeadlineExceeded) || errors.Is(ge, handoff.ErrInDoubt) {
		t.Errorf("get: %v", ge)
	}
	if h.PID() != pid {
		t.Error("a caller that gave up ended the plugin")
	}
}

// TestWatchGoesOn: over the ends of plugins a watch tells every number once.
func TestWatchGoesOn(t *testing.T) {
	h := open(t)
	want := uint64(1)
	for n, err := range h.Handoff().Watch(bounded(t), "dies", control.Cursor{}) {
		if err != nil || n.Seq != want {
			t.Fatalf("notice %d, want %d: %v", n.Seq, want, err)
		}
		if want++; want > 9 {
			break
		}
		if n.Seq%3 == 0 {
			if err := unix.Kill(h.PID(), unix.SIGKILL); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func TestPluginThatDoesNotStart(t *testing.T) {
	_, err := host.Open(bounded(t), host.Config{Command: []string{os.Args[0]}, Env: []string{breaks + "=1"}})
	if !errors.Is(err, handoff.ErrHost) || !strings.Contains(err.Error(), "this plugin does not start") {
		t.Errorf("got %v", err)
	}
	if _, err := host.Open(bounded(t), host.Config{Command: []string{"/no/such/program"}}); !errors.Is(err, handoff.ErrHost) {
		t.Errorf("no program: %v", err)
	}
	if _, err := host.Open(bounded(t), host.Config{}); err == nil {
		t.Error("no command")
	}
	_, err = host.Open(bounded(t), host.Config{Command: []string{"sh", "-c", "echo '1|77|unix|/nowhere|grpc|'; cat"}})
	if !errors.Is(err, handoff.ErrVersion) || !strings.Contains(err.Error(), "77") {
		t.Errorf("another version: %v", err)
	}
}

// TestHostIsKilled: a plugin does not outlive its host, however that ends.
func TestHostIsKilled(t *testing.T) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), asHost+"=1", "TMPDIR="+t.TempDir())
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil {
		t.Fatal(err)
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 60_000)
		if err == unix.EINTR {
			continue
		}
		if n != 1 {
			t.Errorf("the plugin outlived its host: %v", err)
		}
		return
	}
}

// TestNothingIsLeft: goroutines of a host end with it.
func TestNothingIsLeft(t *testing.T) {
	before := runtime.NumGoroutine()
	for range 3 {
		h := open(t)
		for range h.Cluster().Watch(bounded(t)) {
			break
		}
		_, _ = h.Handoff().Get(bounded(t), "exit", id)
		_, _ = h.Cluster().Groups(bounded(t))
		h.Close()
	}
	ctx := bounded(t)
	for runtime.NumGoroutine() > before+4 { // bounded's own timers, and what ends a moment later
		select {
		case <-ctx.Done():
			b := make([]byte, 1<<20)
			t.Fatalf("%d goroutines, %d before:\n%s", runtime.NumGoroutine(), before, b[:runtime.Stack(b, true)])
		default:
			runtime.Gosched()
		}
	}
}
