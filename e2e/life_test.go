package e2e

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/batonkv/baton/cmd/dev"
	"github.com/batonkv/baton/examples/engine/front"
	"github.com/batonkv/baton/internal/capture"
	"github.com/batonkv/baton/lifeline"
	"github.com/batonkv/baton/sidecar/control"
	"github.com/batonkv/baton/sidecar/handoff"
)

// tree is a baton command with everything that it started.
type tree struct {
	cmd    *exec.Cmd
	out    *capture.Buffer
	dir    string // its TMPDIR
	procs  []proc // itself first
	kinds  map[string][]proc
	exited chan error
}

// grow runs a command until its stdout says word, and takes hold of its processes.
func grow(t *testing.T, dir, word string, args ...string) *tree {
	t.Helper()
	cmd := exec.Command(binary, args...)
	cmd.Env = append(os.Environ(), "TMPDIR="+dir)
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	tr := &tree{cmd: cmd, out: &capture.Buffer{}, dir: dir, kinds: map[string][]proc{}, exited: make(chan error, 1)}
	cmd.Stderr = tr.out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	said := make(chan struct{})
	go func() { // ends with the process
		lines := bufio.NewScanner(stdout)
		for lines.Scan() {
			fmt.Fprintln(tr.out, lines.Text())
			if strings.Contains(lines.Text(), word) && said != nil {
				close(said)
				said = nil
			}
		}
		io.Copy(io.Discard, stdout)
		tr.exited <- cmd.Wait()
	}()
	t.Cleanup(func() { cmd.Process.Kill() })
	wait := said
	select {
	case <-wait:
	case err := <-tr.exited:
		t.Fatalf("%v ended: %v\n%s", args, err, tr.out)
	case <-bounded(t).Done():
		t.Fatalf("%v never said %q:\n%s", args, word, tr.out)
	}
	for _, pid := range append([]int{cmd.Process.Pid}, children(cmd.Process.Pid)...) {
		p := watch(t, pid)
		tr.procs = append(tr.procs, p)
		b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if words := strings.Split(string(b), "\x00"); len(words) > 1 {
			tr.kinds[words[1]] = append(tr.kinds[words[1]], p)
		}
	}
	return tr
}

// children are all descendants of a process.
func children(pid int) (all []int) {
	parents := map[int][]int{}
	dirs, _ := os.ReadDir("/proc")
	for _, d := range dirs {
		child, err := strconv.Atoi(d.Name())
		if err != nil {
			continue
		}
		b, err := os.ReadFile(filepath.Join("/proc", d.Name(), "stat"))
		if err != nil {
			continue
		}
		f := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
		parent, _ := strconv.Atoi(f[1])
		parents[parent] = append(parents[parent], child)
	}
	for queue := []int{pid}; len(queue) > 0; queue = queue[1:] {
		all = append(all, parents[queue[0]]...)
		queue = append(queue, parents[queue[0]]...)
	}
	return all
}

// over waits for the end of every process and returns how the first one ended.
func (tr *tree) over(t *testing.T) error {
	t.Helper()
	for i, p := range tr.procs {
		p.gone(t, fmt.Sprintf("process %d of %v", i, tr.cmd.Args[1:]))
	}
	err := <-tr.exited
	if said := tr.out.String(); strings.Contains(said, "panic:") {
		t.Errorf("a process broke down:\n%s", said)
	}
	return err
}

// runDirs are the run directories under a TMPDIR.
func runDirs(t *testing.T, dir string) []string {
	t.Helper()
	ds, err := filepath.Glob(filepath.Join(dir, "baton-*", "run-*"))
	if err != nil {
		t.Fatal(err)
	}
	return ds
}

func shmFiles() (names []string) {
	ds, _ := os.ReadDir("/dev/shm")
	for _, d := range ds {
		names = append(names, d.Name())
	}
	return names
}

// TestTreeEnds: however dev and demo end, nothing of them stays.
func TestTreeEnds(t *testing.T) {
	dir := filepath.Join(tmp, "t")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	shm := shmFiles()
	shards := "--inference-shards=tp=2,role=prefill+tp=1,role=decode"
	for _, c := range []struct {
		args []string
		word string
		by   unix.Signal
		each int // processes of a rank
	}{
		{[]string{"dev", shards, "--engine=none", "-o=json"}, `"rank":0,"ranks":1,"run_dir":`, unix.SIGINT, 2},
		{[]string{"dev", shards}, "up; Ctrl-C", unix.SIGINT, 3},
		{[]string{"dev", shards}, "up; Ctrl-C", unix.SIGTERM, 3},
		{[]string{"dev", shards}, "up; Ctrl-C", unix.SIGKILL, 3},
		{[]string{"demo", shards, "--new=4000"}, "up in", unix.SIGINT, 3},
		{[]string{"demo", shards, "--new=4000"}, "up in", unix.SIGKILL, 3},
	} {
		t.Run(fmt.Sprintf("%s %d %v", c.args[0], c.each, c.by), func(t *testing.T) {
			tr := grow(t, dir, c.word, c.args...)
			if n := len(tr.procs); n != 1+3*c.each {
				t.Errorf("%d processes, want %d", n, 1+3*c.each)
			}
			if ds := runDirs(t, dir); len(ds) != 1 {
				t.Errorf("run directories %v: want the living owner's alone", ds)
			}
			tr.procs[0].signal(t, c.by)
			err := tr.over(t)
			if c.args[0] == "dev" && c.by != unix.SIGKILL && err != nil {
				t.Errorf("dev ended with %v:\n%s", err, tr.out)
			}
			if ds := runDirs(t, dir); c.by != unix.SIGKILL && len(ds) != 0 {
				t.Errorf("it left %v", ds)
			}
		})
	}
	// The last one was killed: the next start removes what it could not.
	if ds := runDirs(t, dir); len(ds) != 1 {
		t.Errorf("run directories %v: want the killed owner's", ds)
	}
	tr := grow(t, dir, "up; Ctrl-C", "dev", shards)
	if ds := runDirs(t, dir); len(ds) != 1 {
		t.Errorf("run directories %v: want the living owner's alone", ds)
	}
	tr.procs[0].signal(t, unix.SIGTERM)
	tr.over(t)
	if now := shmFiles(); !slices.Equal(now, shm) {
		t.Errorf("/dev/shm held %v, now %v", shm, now)
	}
}

// TestDevTellsOfDeaths: dev starts a sidecar again that dies, also while it starts, and ends
// with everything when an engine does; it says which. A mover is its sidecar's and comes back.
func TestDevTellsOfDeaths(t *testing.T) {
	dir := filepath.Join(tmp, "d")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	tr := grow(t, dir, "up; Ctrl-C", "dev", "--inference-shards=tp=1,role=prefill+tp=1,role=decode")
	sidecars := func() (pids []int) {
		for _, pid := range children(tr.cmd.Process.Pid) {
			if b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)); strings.Contains(string(b), "\x00sidecar\x00") {
				pids = append(pids, pid)
			}
		}
		return pids
	}
	tr.kinds["sidecar"][0].signal(t, unix.SIGKILL)
	tr.kinds["sidecar"][0].gone(t, "sidecar")
	was := tr.kinds["sidecar"][1].pid
	for range 3 { // killed as soon as it is seen
		eventually(t, "dev starts the sidecar again", func() bool {
			now := slices.DeleteFunc(sidecars(), func(pid int) bool { return pid == was })
			return len(now) == 1 && unix.Kill(now[0], unix.SIGKILL) == nil
		})
	}
	eventually(t, "the sidecar is up again", func() bool { return strings.Contains(tr.out.String(), "is up again") && len(sidecars()) == 2 })
	if said := tr.out.String(); !strings.Contains(said, "ended by itself (signal: killed): starting it again") {
		t.Errorf("dev does not say that a sidecar died:\n%s", said)
	}
	tr.kinds["engine"][0].signal(t, unix.SIGKILL)
	var exit *exec.ExitError
	if err := tr.over(t); !errors.As(err, &exit) || exit.ExitCode() != 1 {
		t.Errorf("dev ended with %v", err)
	}
	if said := tr.out.String(); !strings.Contains(said, "baton: engine") {
		t.Errorf("dev does not say that an engine died:\n%s", said)
	}
	if ds := runDirs(t, dir); len(ds) != 0 {
		t.Errorf("it left %v", ds)
	}
	eventually(t, "nothing of it runs", func() bool { return len(running()) == 0 })
}

// TestSidecarDies: its mover ends with it, its engine serves on without it, and other
// groups do not notice.
func TestSidecarDies(t *testing.T) {
	for _, by := range []unix.Signal{unix.SIGKILL, unix.SIGTERM} {
		t.Run(by.String(), func(t *testing.T) {
			w := up(t, "tp=2,role=prefill+tp=1,dp=2,role=decode", "hybrid")
			w.handoff("first", prompt(1, 30))
			other := w.Groups[2]
			w.between(w.prefill, other, "other", prompt(2, 30))
			ctx, p := bounded(t), prompt(3, 40)
			man, err := w.export(ctx, w.prefill, "held", p)
			if err != nil {
				t.Fatal(err)
			}
			k := w.decode.Ranks[0]
			side, mover := watch(t, k.Sidecar.PID), watch(t, k.Sidecar.MoverPID)
			side.signal(t, by)
			side.gone(t, "sidecar")
			mover.gone(t, "its mover")
			m, err := w.bring(ctx, other, man, "elsewhere", p)
			if err != nil {
				t.Fatalf("another group imports: %v", err)
			}
			w.equal("elsewhere", p, m.tokens)
			var got []int32
			if _, err := generate(ctx, w.decode, front.Request{Tokens: p, MaxNew: maxNew, Mode: front.Full}, &got); err != nil {
				t.Errorf("the engine without its sidecar: %v", err)
			}
			w.equal("full", p, got)
			_, err = generate(ctx, w.decode, front.Request{Tokens: p, MaxNew: 1, Label: "x", Mode: front.Import, Manifest: &man}, nil)
			if err == nil || !strings.Contains(err.Error(), "no sidecar") {
				t.Errorf("import without a sidecar: %v", err)
			}
			for _, g := range []*dev.Running{w.prefill, other} {
				w.allFree(g, poolBlocks, poolSlots)
			}
		})
	}
}

// TestEngineDies: its group takes nothing until another engine attaches, then it
// serves again; what the dead one exported is gone.
func TestEngineDies(t *testing.T) {
	w := up(t, "tp=1,role=prefill+tp=1,role=decode", "hybrid")
	ctx := bounded(t)
	w.handoff("first", prompt(1, 30))
	man, err := w.export(ctx, w.prefill, "held", prompt(2, 30))
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range []*dev.Running{w.decode, w.prefill} {
		k := g.Ranks[0]
		cmdline, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", k.Engine.PID))
		if err != nil {
			t.Fatal(err)
		}
		old := watch(t, k.Engine.PID)
		old.signal(t, unix.SIGKILL)
		old.gone(t, "engine")
		w.notice(ctx, g, control.NotReady)
		if g == w.decode {
			_, err := g.Leader.Import(ctx, handoff.Import{Label: "early", Manifest: man, Tokens: prompt(2, 30)})
			if !errors.Is(err, handoff.ErrNotReady) {
				t.Errorf("import without an engine: %v", err)
			}
		}
		eventually(t, "the mover lets go of the dead engine", func() bool {
			return len(mapped(t, k.Sidecar.MoverPID)) <= 1 && !mapped(t, k.Sidecar.MoverPID)[g.Name+"-0"]
		})
		args := strings.Split(strings.TrimRight(string(cmdline), "\x00"), "\x00")[1:]
		i := slices.Index(args, "--instance")
		args[i+1] = "abc" + args[i+1][:8]
		c := exec.Command(binary, args...)
		c.Stderr = w.log
		child, err := lifeline.Start(c)
		if err != nil {
			t.Fatal(err)
		}
		defer child.Stop(context.WithoutCancel(ctx))
		if err := child.AwaitReady(ctx, &k.Engine); err != nil {
			t.Fatal(err)
		}
		w.notice(ctx, g, control.Ready)
		if g == w.decode {
			m, err := w.bring(ctx, w.decode, man, "late", prompt(2, 30))
			if err != nil {
				t.Fatalf("import by the new engine: %v", err)
			}
			w.equal("late", prompt(2, 30), m.tokens)
			if man, err = w.export(ctx, w.prefill, "lost", prompt(3, 30)); err != nil {
				t.Fatal(err)
			}
		}
	}
	_, err = w.bring(ctx, w.decode, man, "gone", prompt(3, 30))
	if !errors.Is(err, handoff.ErrGone) {
		t.Errorf("import of what a dead engine held: %v", err)
	}
	w.handoff("last", prompt(4, 30))
}

// notice waits until the newest of a group's Ready and NotReady is k.
func (w *world) notice(ctx context.Context, g *dev.Running, k control.Kind) {
	w.t.Helper()
	eventually(w.t, fmt.Sprintf("%s is %v", g.Name, k), func() bool {
		st, err := g.Leader.Status(ctx)
		return err == nil && st.Ready == (k == control.Ready)
	})
}

// TestEndsWhileStarting: also what is being started ends with dev.
func TestEndsWhileStarting(t *testing.T) {
	dir := filepath.Join(tmp, "s")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, stage := range []string{"starting etcd", "starting sidecars", "starting engines", "waiting for the groups"} {
		for _, by := range []unix.Signal{unix.SIGINT, unix.SIGKILL} {
			t.Run(fmt.Sprintf("%s %v", stage, by), func(t *testing.T) {
				cmd := exec.CommandContext(bounded(t), binary, "dev", "--inference-shards=tp=2,role=prefill+tp=1,role=decode")
				cmd.Env = append(os.Environ(), "TMPDIR="+dir)
				r, wr, err := os.Pipe()
				if err != nil {
					t.Fatal(err)
				}
				defer r.Close()
				cmd.Stderr = wr // a file: Wait waits for no copying
				if err := cmd.Start(); err != nil {
					t.Fatal(err)
				}
				wr.Close()
				lines := bufio.NewScanner(r)
				for lines.Scan() && !strings.Contains(lines.Text(), stage) {
				}
				if err := cmd.Process.Signal(by); err != nil {
					t.Error(err)
				}
				_ = cmd.Wait()
				eventually(t, "nothing of it runs", func() bool { return len(running()) == 0 })
				if ds := runDirs(t, dir); by == unix.SIGINT && len(ds) > 0 {
					t.Errorf("it left %v", ds)
				}
				for lines.Scan() { // all that it and its children said, to the end
					if strings.Contains(lines.Text(), "panic") {
						t.Error(lines.Text())
					}
				}
			})
		}
	}
}
