package e2e

import (
	"bufio"
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/batonkv/baton/cmd/dev"
)

// seen is what these tests read of a line of `baton watch -o json`.
type seen struct {
	Group, Event, Label string
	Bytes               int64
	Rank                *int32
}

// watched is a `baton watch -o json` that runs.
type watched struct {
	t     *testing.T
	cmd   *exec.Cmd
	lines chan seen
	early []seen       // that nobody waited for yet
	errs  bytes.Buffer // read after the exit
}

// watching starts one; its end is the test's.
func (w *world) watching(args ...string) *watched {
	w.t.Helper()
	args = append([]string{"watch", "-o", "json", "--config", w.Control()}, args...)
	x := &watched{t: w.t, cmd: exec.CommandContext(w.t.Context(), binary, args...), lines: make(chan seen, 1024)}
	x.cmd.Stderr = &x.errs
	out, err := x.cmd.StdoutPipe()
	if err != nil {
		w.t.Fatal(err)
	}
	if err := x.cmd.Start(); err != nil {
		w.t.Fatal(err)
	}
	go func() { // ends with the process
		defer close(x.lines)
		for s := bufio.NewScanner(out); s.Scan(); {
			var l seen
			if err := json.Unmarshal(s.Bytes(), &l); err != nil {
				x.t.Errorf("not a line of JSON: %q", s.Text())
			}
			x.lines <- l
		}
	}()
	return x
}

// until waits for a line of that event, and label if that is not "". Groups have no order
// among each other, so lines that nobody waited for yet stay.
func (x *watched) until(group, event, label string) seen {
	x.t.Helper()
	is := func(l seen) bool { return l.Group == group && l.Event == event && (label == "" || l.Label == label) }
	if i := slices.IndexFunc(x.early, is); i >= 0 {
		l := x.early[i]
		x.early = slices.Delete(x.early, i, i+1)
		return l
	}
	for {
		select {
		case l, ok := <-x.lines:
			if !ok {
				x.t.Fatalf("ended before %s %s %s: %s", group, event, label, &x.errs)
			}
			if is(l) {
				return l
			}
			x.early = append(x.early, l)
		case <-bounded(x.t).Done():
			x.t.Fatalf("never: %s %s %s", group, event, label)
		}
	}
}

// TestWatchCommand: it tells who is there, a hand-off as it happens, the end and the
// return of a leader and what comes after, and ends on Ctrl-C with exit code 0.
func TestWatchCommand(t *testing.T) {
	w := up(t, "tp=1,role=prefill+tp=1,role=decode", "attention", func(o *dev.Options) { o.Restart = true })
	x := w.watching("--kept") // a hand-off may be quicker than the start of a watch
	x.until("decode-0", "here", "")
	x.until("prefill-0", "here", "")
	x.until("decode-0", "ready", "")
	w.handoff("one", prompt(1, 40))
	x.until("prefill-0", "exported", "one")
	if l := x.until("decode-0", "imported", "one"); l.Bytes == 0 {
		t.Errorf("%+v", l)
	}
	if _, err := w.KillSidecar(bounded(t), w.decode, 0); err != nil {
		t.Fatal(err)
	}
	if l := x.until("decode-0", "rank-up", ""); l.Rank == nil || *l.Rank != 0 {
		t.Errorf("%+v", l)
	}
	x.until("decode-0", "gap", "")
	x.until("decode-0", "ready", "")
	if err := x.cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	for range x.lines {
	}
	if code := exitCode(t, x.cmd); code != 0 {
		t.Errorf("exit code %d: %s", code, &x.errs)
	}
}

// TestWatchReaderGone: who watches for nobody ends, though nothing happens that it could write.
func TestWatchReaderGone(t *testing.T) {
	w := up(t, "tp=1,role=decode", "attention")
	r, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	var errs bytes.Buffer
	cmd := exec.CommandContext(bounded(t), binary, "watch", "--config", w.Control())
	cmd.Stdout, cmd.Stderr = out, &errs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	out.Close()
	line, err := bufio.NewReader(r).ReadString('\n')
	if err != nil || !strings.Contains(line, "decode-0  ") {
		t.Errorf("%q, %v", line, err)
	}
	p := watch(t, cmd.Process.Pid)
	r.Close()
	p.gone(t, "baton watch")
	if code := exitCode(t, cmd); code != 1 || !strings.Contains(errs.String(), "broken pipe") {
		t.Errorf("%d %s", code, errs.String())
	}
}

// TestSteerRefused: each mistake is told with what to do, and by its exit code.
func TestSteerRefused(t *testing.T) {
	w := up(t, "tp=1,role=decode", "attention")
	for _, c := range []struct {
		args string
		code int
		says []string
	}{
		{"drain decod-0 --config " + w.Control(), 1, []string{"handoff: no such group: decod-0", "did you mean decode-0?"}},
		{"drain decode-0 --config " + w.Control() + " --tls.cert " + w.Dir + "/certs/decode-0-0.pem --tls.key " + w.Dir + "/certs/decode-0-0-key.pem", 1, []string{"handoff: not allowed", "want a certificate of control/"}},
		{"watch --config " + w.Control() + " --etcd.endpoints http://127.0.0.1:1 --etcd.dial-timeout 300ms", 1, []string{"discovery: not reachable", "hint: is etcd up at http://127.0.0.1:1?"}},
		{"drain", 2, []string{"want the name of one group"}},
	} {
		cmd := exec.CommandContext(bounded(t), binary, strings.Fields(c.args)...)
		out, _ := cmd.CombinedOutput()
		for _, s := range c.says {
			if !strings.Contains(string(out), s) {
				t.Errorf("%s: no %q in %s", c.args, s, out)
			}
		}
		if code := cmd.ProcessState.ExitCode(); code != c.code {
			t.Errorf("%s: exit code %d, want %d", c.args, code, c.code)
		}
	}
	alone := exec.Command(binary, "watch")
	alone.Env = append(os.Environ(), "TMPDIR="+t.TempDir())
	if out, _ := alone.CombinedOutput(); alone.ProcessState.ExitCode() != 2 || !strings.Contains(string(out), "start baton dev") {
		t.Errorf("no cluster: %s", out)
	}
}

// TestDemoViaPlugin: an external process places the requests and aborts one.
func TestDemoViaPlugin(t *testing.T) {
	for _, corrupt := range []bool{false, true} {
		args := []string{"demo", "--via", "plugin", "--new", "6", "--inference-shards", "tp=2,role=prefill+tp=1,dp=2,role=decode"}
		if corrupt {
			args = append(args, "--corrupt", "kv")
		}
		cmd := exec.CommandContext(bounded(t), binary, args...)
		out, _ := cmd.CombinedOutput()
		says := []string{"plugin → decode-0", "plugin → decode-1", "aborted; prefill-0 still held it", "are EQUAL"}
		if corrupt {
			says = []string{"NOT EQUAL", "aborted; prefill-0 still held it"}
		}
		for _, s := range says {
			if !strings.Contains(string(out), s) {
				t.Errorf("corrupt %v: no %q in\n%s", corrupt, s, out)
			}
		}
		if code := cmd.ProcessState.ExitCode(); (code == 1) != corrupt {
			t.Errorf("corrupt %v: exit code %d", corrupt, code)
		}
	}
}
