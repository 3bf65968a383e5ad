package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/batonkv/baton/cmd/dev"
	"github.com/batonkv/baton/internal/capture"
	"github.com/batonkv/baton/internal/need"
	"github.com/batonkv/baton/kernels/cuda/cudatest"
)

// pyGroup is what engines in Python are told of their group.
type pyGroup struct {
	Group    string   `json:"group"`
	Instance string   `json:"instance"`
	Dirs     []string `json:"dirs"` // run directories of the ranks' sidecars
	PIDs     []int    `json:"pids"`
}

// TestPyClient hands requests over between engines in Python, of several cuts, through real
// sidecars and movers.
func TestPyClient(t *testing.T) {
	python := need.PyClient(t, "..")
	for _, shards := range []string{
		"tp=2,role=prefill+tp=1,role=decode",
		"tp=1,role=prefill+tp=2,role=decode",
		"tp=2,role=prefill+tp=2,role=decode",
	} {
		t.Run(shards, func(t *testing.T) { pyEngines(t, shards, python, "../sidecar/engine/python/tests/handoff.py") })
	}
}

// TestPyClientExample runs the engine that the client's README shows.
func TestPyClientExample(t *testing.T) {
	pyEngines(t, "tp=1,role=prefill+tp=1,role=decode", need.PyClient(t, ".."), "../sidecar/engine/python/tests/run_example.py")
}

// TestPyClientGPU hands over what lies on GPUs: of one allocation, and of several. The driver is
// the stand-in, for engines and movers.
func TestPyClientGPU(t *testing.T) {
	python := need.PyClient(t, "..")
	for _, kind := range []string{"cuda", "chunks"} {
		t.Run(kind, func(t *testing.T) {
			t.Setenv("LD_LIBRARY_PATH", filepath.Dir(cudatest.Library(t)))
			t.Setenv("TOY_MEMORY", kind)
			pyEngines(t, "tp=2,role=prefill+tp=1,role=decode", python, "../sidecar/engine/python/tests/handoff.py")
		})
	}
}

// pyEngines brings sidecars up and runs a program that is all engines.
func pyEngines(t *testing.T, shards string, command ...string) {
	groups, err := dev.ParseShards(shards)
	if err != nil {
		t.Fatal(err)
	}
	log, said := &capture.Buffer{}, &capture.Buffer{}
	ctx, cancel := context.WithCancelCause(bounded(t))
	defer cancel(nil)
	ended, told := make(chan error, 1), map[string]*pyGroup{}
	var stdin io.WriteCloser
	attach := func(_ context.Context, g *dev.Running, rank int32, dir string) error {
		if rank == 0 {
			told[string(g.Role)] = &pyGroup{Group: g.Name, Instance: strconv.FormatUint(g.Instance, 16)}
		}
		p := told[string(g.Role)]
		p.Dirs, p.PIDs = append(p.Dirs, dir), append(p.PIDs, g.Ranks[rank].Sidecar.PID)
		if n := len(told["prefill"].Dirs); told["decode"] == nil || n+len(told["decode"].Dirs) < total(groups) {
			return nil
		}
		in, err := json.Marshal(told)
		if err != nil {
			return err
		}
		cmd := exec.CommandContext(ctx, command[0], command[1:]...)
		cmd.Stdout, cmd.Stderr = said, said
		if stdin, err = cmd.StdinPipe(); err != nil {
			return err
		}
		if err := cmd.Start(); err != nil {
			return err
		}
		if _, err := stdin.Write(append(in, '\n')); err != nil {
			return err
		}
		go func() { // ends with the process
			err := cmd.Wait()
			if err != nil {
				cancel(fmt.Errorf("the engines: %w", err))
			}
			ended <- err
		}()
		return nil
	}
	c, err := dev.Up(ctx, dev.Options{Groups: groups, Binary: binary, Stderr: log, Restart: true, Engine: attach})
	if err == nil {
		_, _ = io.WriteString(stdin, "the cluster is up\n") // one that has ended says why
		if err = <-ended; err == nil {
			err = c.Close()
		} else {
			_ = c.Close()
		}
	}
	if err != nil {
		t.Fatalf("%v\nengines said:\n%s\nsidecars said:\n%s", err, said, log)
	}
}

func total(groups []dev.Group) (n int) {
	for _, g := range groups {
		n += int(g.Size())
	}
	return n
}
