package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/batonkv/baton/examples/load"
	"github.com/batonkv/baton/sidecar/control"
	"github.com/batonkv/baton/sidecar/handoff"
)

// lane hands requests over one after the other until a drain refuses one, whose manifest
// it returns with the number of those that were admitted.
func (d *driven) lane(src *driven, lane int) (man handoff.Manifest, admitted int64, err error) {
	ctx := bounded(d.t)
	for n := 0; ; n++ {
		label, p := fmt.Sprintf("r%d.%d", lane, n), load.Prompt{Tail: uint64(lane<<20 + n), Len: 20 + int32(n%40), Steps: 3}
		if err := src.eng.Send(load.Command{Op: load.Export, Label: label, Prompt: &p}); err != nil {
			return man, admitted, err
		}
		e, err := src.await(ctx, label, load.Exported, load.Failed)
		if err != nil || e.Kind == load.Failed {
			return man, admitted, fmt.Errorf("export of %s: %s: %w", label, e.Err, err)
		}
		_, err = d.Leader.Import(ctx, handoff.Import{Label: label, Manifest: *e.Manifest, Tokens: p.Tokens()})
		switch {
		case errors.Is(err, handoff.ErrDraining):
			return *e.Manifest, admitted, nil
		case err != nil:
			return man, admitted, fmt.Errorf("import of %s: %w", label, err)
		}
		admitted++
	}
}

// TestDrainThenKill: a group that `baton drain` says is safe to stop is killed, all of it
// and at once, and nothing is lost: what it admitted it had decoded to the end, and what it
// refused is still held by its source.
func TestDrainThenKill(t *testing.T) {
	w, src, dst := drivenGroups(t)
	const lanes = 6
	var (
		all  sync.WaitGroup
		mu   sync.Mutex // guards:
		kept []handoff.Manifest
		done int64
	)
	for n := range lanes {
		all.Go(func() {
			man, admitted, err := dst.lane(src, n)
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			kept, done = append(kept, man), done+admitted
		})
	}
	eventually(t, "requests run", func() bool { return dst.ended.Load() > 2*lanes || t.Failed() })
	cmd := exec.CommandContext(bounded(t), binary, "drain", dst.Name, "--config", w.Control())
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.HasSuffix(string(out), "\nsafe to stop\n") || !strings.Contains(string(out), dst.Name+" takes no new work") {
		t.Fatalf("%v\n%s", err, out)
	}
	held := dst.ask() // by rank 0's loop, after all that it told before
	all.Wait()
	if ended := dst.ended.Load(); held.Decodes+held.Imports+held.Queued != 0 || ended != done || len(kept) != lanes {
		t.Fatalf("safe to stop, and it holds %+v; %d admitted, %d ended, %d refused", held, done, ended, len(kept))
	}
	for r, c := range dst.ranks {
		c.Kill()
		watch(t, w.Sidecar(dst.Running, int32(r)).PID).signal(t, unix.SIGKILL)
	}
	for _, man := range kept {
		if i, err := src.Leader.Get(bounded(t), man.ID); err != nil || i.Phase != control.Held || i.Copies != 1 {
			t.Errorf("%s is %+v, %v", man.Label, i, err)
		}
		if err := src.Leader.Release(bounded(t), man.ID, man.Key); err != nil {
			t.Error(err)
		}
	}
	eventually(t, "all is given back", func() bool { h := src.ask(); return h.Exports+h.Queued == 0 })
	t.Logf("%d admitted and ended, %d refused and held; drain said\n%s", done, len(kept), out)
}

// TestDrainGivenUp: a drain that is interrupted, or runs out of time, says that the group
// goes on draining and how it takes work again.
func TestDrainGivenUp(t *testing.T) {
	w := up(t, "tp=1,role=prefill", "attention")
	if _, err := w.export(bounded(t), w.prefill, "held", prompt(1, 20)); err != nil {
		t.Fatal(err)
	}
	var said bytes.Buffer
	cmd := exec.CommandContext(bounded(t), binary, "drain", "prefill-0", "--config", w.Control())
	cmd.Stderr = &watcher{to: &said, word: "1 export left", seen: func() { _ = cmd.Process.Signal(unix.SIGINT) }}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if code := exitCode(t, cmd); code != 130 || !strings.Contains(said.String(), "prefill-0 goes on draining, 1 export left") || !strings.Contains(said.String(), "baton drain prefill-0 --resume") {
		t.Errorf("interrupted: %d %s", code, &said)
	}
	for _, c := range []struct {
		flags string
		code  int
		says  string
	}{
		{"--timeout 300ms", 3, "prefill-0 is not safe to stop after 300ms: 1 export left"},
		{"--resume", 0, "prefill-0 takes work"},
	} {
		cmd := exec.CommandContext(bounded(t), binary, append([]string{"drain", "prefill-0", "--config", w.Control()}, strings.Fields(c.flags)...)...)
		out, _ := cmd.CombinedOutput()
		if code := cmd.ProcessState.ExitCode(); code != c.code || !strings.Contains(string(out), c.says) {
			t.Errorf("%s: %d %s", c.flags, code, out)
		}
	}
	if _, err := w.export(bounded(t), w.prefill, "after", prompt(2, 20)); err != nil {
		t.Errorf("after --resume: %v", err)
	}
}
