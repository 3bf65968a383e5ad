package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/batonkv/baton/cmd/dev"
	"github.com/batonkv/baton/examples/engine/front"
	"github.com/batonkv/baton/examples/load"
	"github.com/batonkv/baton/lifeline"
	"github.com/batonkv/baton/sidecar/control"
	"github.com/batonkv/baton/sidecar/events"
	"github.com/batonkv/baton/sidecar/handoff"
)

// driven is one group of the load engine.
type driven struct {
	*dev.Running
	t     *testing.T
	eng   *load.Client
	ranks []*lifeline.Child
	dirs  []string
	ended atomic.Int64 // requests that were decoded to their end

	mu    sync.Mutex // guards:
	boxes map[string]chan load.Event
}

// drivenGroups brings a prefill and a decode group of two ranks each up, on load engines.
func drivenGroups(t *testing.T) (w *world, src, dst *driven) {
	groups := map[string]*driven{}
	w = up(t, "tp=2,role=prefill+tp=2,role=decode", "hybrid", func(o *dev.Options) {
		o.Engine = func(ctx context.Context, g *dev.Running, rank int32, dir string) error {
			if groups[g.Name] == nil {
				groups[g.Name] = &driven{Running: g, t: t, boxes: map[string]chan load.Event{}}
			}
			return groups[g.Name].start(rank, dir)
		}
	})
	for _, d := range groups {
		d.connect()
	}
	for _, d := range groups {
		w.notice(bounded(t), d.Running, control.Ready) // else an action is refused
	}
	return w, groups[w.prefill.Name], groups[w.decode.Name]
}

func (d *driven) socket() string {
	return filepath.Join(filepath.Dir(d.dirs[0]), d.Name+".0", "drive.sock")
}

func (d *driven) start(rank int32, dir string) error {
	d.dirs = append(d.dirs, dir)
	args := []string{"load", "rank", "--group", d.Name, "--instance", strconv.FormatUint(d.Instance, 16), "--rank", strconv.Itoa(int(rank)),
		"--tp", strconv.Itoa(int(d.TP)), "--run-dir", dir, "--rendezvous", filepath.Join(filepath.Dir(dir), d.Name+".0")}
	if rank == 0 {
		args = append(args, "--driver", d.socket())
	}
	child, err := lifeline.Start(exec.Command(binary, args...))
	if err != nil {
		return err
	}
	d.ranks = append(d.ranks, child)
	d.t.Cleanup(func() { _ = child.Stop(context.Background()) })
	return nil
}

func (d *driven) connect() {
	for _, c := range d.ranks {
		var ready struct{}
		if err := c.AwaitReady(bounded(d.t), &ready); err != nil {
			d.t.Fatal(err)
		}
	}
	var err error
	if d.eng, err = load.Dial(bounded(d.t), d.socket()); err != nil {
		d.t.Fatal(err)
	}
	heard := make(chan struct{})
	go func() { defer close(heard); _ = d.eng.Events(d.hear) }()
	d.t.Cleanup(func() { d.eng.Close(); <-heard })
}

func (d *driven) box(k load.EventKind, label string) chan load.Event {
	d.mu.Lock()
	defer d.mu.Unlock()
	key := string(k) + " " + label
	if d.boxes[key] == nil {
		d.boxes[key] = make(chan load.Event, 64)
	}
	return d.boxes[key]
}

// forget drops a label's boxes: nothing more is expected of it.
func (d *driven) forget(label string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, k := range []load.EventKind{load.Exported, load.Freed, load.Imported, load.Failed, load.Admitted, load.Ended} {
		delete(d.boxes, string(k)+" "+label)
	}
}

func (d *driven) hear(e load.Event) {
	switch e.Kind {
	case load.Wrong:
		d.t.Errorf("%s: %s", d.Name, e.Err)
	case load.Ended:
		d.ended.Add(1)
	}
	d.box(e.Kind, e.Label) <- e
}

// await returns the first of a label's events of these kinds.
func (d *driven) await(ctx context.Context, label string, a, b load.EventKind) (load.Event, error) {
	select {
	case e := <-d.box(a, label):
		return e, nil
	case e := <-d.box(b, label):
		return e, nil
	case <-ctx.Done():
		return load.Event{}, fmt.Errorf("%s: neither %s nor %s of %s: %w", d.Name, a, b, label, ctx.Err())
	}
}

// ask goes through rank 0's loop, and returns what is held.
func (d *driven) ask() load.Holding {
	d.t.Helper()
	if err := d.eng.Send(load.Command{Op: load.Stats, Label: "stats"}); err != nil {
		d.t.Fatal(err)
	}
	e, err := d.await(bounded(d.t), "stats", load.Held, load.Held)
	if err != nil {
		d.t.Fatal(err)
	}
	return *e.Holding
}

func (d *driven) do(a handoff.Action) {
	d.t.Helper()
	if err := d.Leader.Do(bounded(d.t), a); err != nil {
		d.t.Fatalf("%v of %s: %v", a, d.Name, err)
	}
}

// one hands a request from src over to d, and waits for its end there.
func (d *driven) one(ctx context.Context, src *driven, label string, n uint64) error {
	p := load.Prompt{Tail: n, Len: 20 + int32(n%40), Steps: 3}
	if err := src.eng.Send(load.Command{Op: load.Export, Label: label, Prompt: &p}); err != nil {
		return err
	}
	e, err := src.await(ctx, label, load.Exported, load.Failed)
	if err != nil || e.Kind == load.Failed {
		return fmt.Errorf("export of %s: %s: %w", label, e.Err, err)
	}
	for {
		_, err := d.Leader.Import(ctx, handoff.Import{Label: label, Manifest: *e.Manifest, Tokens: p.Tokens()})
		if err == nil {
			break
		}
		if !errors.Is(err, handoff.ErrDraining) {
			return fmt.Errorf("import of %s: %w", label, err)
		}
	}
	_, err = d.await(ctx, label, load.Ended, load.Ended)
	return err
}

// TestActionsUnderLoad: a group of two ranks carries out every action while it serves.
func TestActionsUnderLoad(t *testing.T) {
	_, src, dst := drivenGroups(t)
	over := make(chan struct{})
	var lanes sync.WaitGroup
	for lane := range 4 {
		lanes.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-over:
					return
				default:
				}
				if err := dst.one(bounded(t), src, fmt.Sprintf("r%d.%d", lane, n), uint64(lane<<20+n)); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	more := func() {
		t.Helper()
		was := dst.ended.Load()
		eventually(t, "requests end", func() bool { return dst.ended.Load() > was || t.Failed() })
	}
	more()
	for _, pair := range [][2]handoff.Action{{handoff.ActionPause, handoff.ActionUnpause}, {handoff.ActionSuspend, handoff.ActionResume}} {
		dst.do(pair[0])
		eventually(t, "imports come in", func() bool { return dst.ask().Decodes > 0 })
		was := dst.ended.Load()
		for range 20 {
			dst.ask()
		}
		if now := dst.ended.Load(); now != was {
			t.Errorf("%v: %d requests ended", pair[0], now-was)
		}
		dst.do(pair[1])
		more()
	}
	dst.profiled()
	dst.drained()
	more()
	close(over)
	lanes.Wait()
	src.do(handoff.ActionStopIntake)
	if err := dst.one(bounded(t), src, "late", 1); err == nil || !strings.Contains(err.Error(), handoff.ErrDraining.Error()) {
		t.Errorf("a new request at a front that is closed: %v", err)
	}
	dst.stopped(src)
}

// profiled: both ranks begin their profile at one decision, which names it.
func (d *driven) profiled() {
	d.t.Helper()
	d.do(handoff.ActionProfileStart)
	d.do(handoff.ActionProfileStop)
	var names []string
	for _, dir := range d.dirs {
		files, err := filepath.Glob(filepath.Join(dir, "engine-cpu-*.pprof"))
		if err != nil || len(files) != 1 {
			d.t.Fatalf("profiles in %s: %v, %v", dir, files, err)
		}
		if st, err := os.Stat(files[0]); err != nil || st.Size() == 0 {
			d.t.Errorf("%s: %v", files[0], err)
		}
		names = append(names, filepath.Base(files[0]))
	}
	if names[0] != names[1] {
		d.t.Errorf("the ranks began at %v", names)
	}
}

// drained: a drain comes to its end while others ask for imports, and is resumed.
func (d *driven) drained() {
	d.t.Helper()
	eventually(d.t, "safe to stop", func() bool {
		got, err := d.Leader.Drain(bounded(d.t), false)
		if err != nil {
			d.t.Fatal(err)
		}
		return got.Safe
	})
	st, err := d.Leader.Status(bounded(d.t))
	if err != nil || !st.Draining {
		d.t.Errorf("draining %v, %v", st.Draining, err)
	}
	if _, err := d.Leader.Drain(bounded(d.t), true); err != nil {
		d.t.Error(err)
	}
}

// stopped: a group that is told to stop while a request runs ends it first, and then both
// ranks end in order.
func (d *driven) stopped(src *driven) {
	d.t.Helper()
	src.do(handoff.ActionResumeIntake)
	d.do(handoff.ActionPause)
	ran := make(chan error, 1)
	go func() { ran <- d.one(bounded(d.t), src, "last", 2) }()
	eventually(d.t, "it runs", func() bool { return d.ask().Decodes > 0 })
	d.do(handoff.ActionStop)
	if err := <-ran; err != nil {
		d.t.Error(err)
	}
	for r, c := range d.ranks {
		select {
		case <-c.Exited():
		case <-bounded(d.t).Done():
			d.t.Fatalf("rank %d does not end", r)
		}
		if c.Err() != nil {
			d.t.Errorf("rank %d: %v\n%s", r, c.Err(), c.Stderr())
		}
	}
	eventually(d.t, "the leader hears", func() bool {
		return errors.Is(d.Leader.Do(bounded(d.t), handoff.ActionPause), handoff.ErrNotReady)
	})
}

// TestRankKilledInTheMiddle: a rank that dies before it answered leaves the caller in doubt,
// and never waiting.
func TestRankKilledInTheMiddle(t *testing.T) {
	_, _, dst := drivenGroups(t)
	one := watch(t, dst.ranks[1].PID())
	one.halt(t)
	said := make(chan error, 1)
	go func() { said <- dst.Leader.Do(bounded(t), handoff.ActionPause) }()
	eventually(t, "the action is decided", func() bool {
		d, err := dst.Leader.Drain(bounded(t), true) // it serves, so this changes nothing
		if err != nil {
			t.Fatal(err)
		}
		return strings.Contains(strings.Join(d.Waits, ";"), "not applied every decision")
	})
	one.signal(t, unix.SIGKILL)
	if err := <-said; !errors.Is(err, handoff.ErrInDoubt) && !errors.Is(err, handoff.ErrNotReady) || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
}

// TestAuditOnNATS: who asked what, and what came of it.
func TestAuditOnNATS(t *testing.T) {
	w, _, dst := drivenGroups(t)
	heard := w.events(dst.Running)
	dst.do(handoff.ActionPause)
	if err := dst.Leader.Abort(bounded(t), handoff.ID{Group: "x", Instance: 1, Leader: 0xab, N: 3}, handoff.Key{}); !errors.Is(err, handoff.ErrUnknown) {
		t.Error(err)
	}
	for _, want := range []events.Event{{Call: "Lifecycle", Asked: "pause"}, {Call: "Abort", Handoff: "x@ab.3"}} {
		got := w.next(heard, events.Control, "")
		if got.By != "baton://control/dev" || got.Call != want.Call || got.Asked != want.Asked || got.Handoff != want.Handoff ||
			(got.Cause == "") != (want.Handoff == "") || got.Group != dst.Name || got.Elapsed <= 0 {
			t.Errorf("%+v, want %+v", got, want)
		}
	}
}

// TestReferenceEngineStops: the reference engine's front refuses what is new while the intake
// is stopped; told to stop, both ranks end what runs, and then themselves.
func TestReferenceEngineStops(t *testing.T) {
	w := up(t, "tp=2,role=prefill", "hybrid")
	g := w.prefill
	w.notice(bounded(t), g, control.Ready)
	var ranks []proc
	for _, k := range g.Ranks {
		ranks = append(ranks, watch(t, k.Engine.PID))
	}
	do := func(a handoff.Action) {
		t.Helper()
		if err := g.Leader.Do(bounded(t), a); err != nil {
			t.Fatalf("%v: %v", a, err)
		}
	}
	req := front.Request{Tokens: prompt(1, 30), MaxNew: maxNew, Mode: front.Full}
	do(handoff.ActionStopIntake)
	if _, err := generate(bounded(t), g, req, nil); !errors.Is(err, handoff.ErrDraining) {
		t.Errorf("a new request while the intake is stopped: %v", err)
	}
	do(handoff.ActionResumeIntake)
	c, err := front.Dial(bounded(t), g.Front())
	if err != nil {
		t.Fatal(err)
	}
	req.MaxNew = 200
	ran, began, tokens := make(chan error, 1), make(chan struct{}), 0
	go func() {
		_, err := c.Generate(bounded(t), req, func(int32) {
			if tokens++; tokens == 1 {
				close(began)
			}
		})
		ran <- err
	}()
	<-began
	do(handoff.ActionStop)
	if err := <-ran; err != nil || tokens != int(req.MaxNew) {
		t.Errorf("what ran when the group was told to stop: %d tokens, %v", tokens, err)
	}
	for i, p := range ranks {
		p.gone(t, fmt.Sprintf("the engine of rank %d", i))
	}
}
