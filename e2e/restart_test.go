package e2e

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/batonkv/baton/cmd/dev"
	"github.com/batonkv/baton/examples/engine/front"
	"github.com/batonkv/baton/sidecar/control"
	"github.com/batonkv/baton/sidecar/handoff"
)

// victim is a process that is killed while hand-offs run.
type victim struct {
	group func(*world) *dev.Running
	rank  int32
	mover bool
}

func (v victim) String() string {
	what := "sidecar"
	if v.mover {
		what = "mover"
	}
	return fmt.Sprintf("%s of rank %d", what, v.rank)
}

// kill ends the victim's process and waits until another one is in its place.
func (w *world) kill(v victim) {
	w.t.Helper()
	g := v.group(w)
	old := w.Sidecar(g, v.rank)
	if v.mover {
		st, err := w.dial(old.Addr, "control").Status(bounded(w.t))
		if err != nil {
			w.t.Fatal(err)
		}
		p := watch(w.t, int(st.MoverPID))
		p.signal(w.t, unix.SIGKILL)
		p.gone(w.t, "mover")
		return
	}
	p := watch(w.t, old.PID)
	p.signal(w.t, unix.SIGKILL)
	p.gone(w.t, "sidecar")
	eventually(w.t, "the sidecar is started again", func() bool { return w.Sidecar(g, v.rank).PID != old.PID })
}

// traffic are requests that run until the end of a test, a few at a time.
type traffic struct {
	w       *world
	prompts [][]int32
	want    [][]int32
	stop    chan struct{}
	wg      sync.WaitGroup

	mu     sync.Mutex // guards:
	good   int
	failed []error
}

// run starts n callers.
func (w *world) run(n int) *traffic {
	tr := &traffic{w: w, stop: make(chan struct{})}
	for i := range 6 {
		p := prompt(100+i, 5+19*i)
		tr.prompts, tr.want = append(tr.prompts, p), append(tr.want, w.reference(p))
	}
	for i := range n {
		tr.wg.Go(func() { tr.call(i) })
	}
	return tr
}

func (tr *traffic) call(caller int) {
	rnd := rand.New(rand.NewPCG(11, uint64(caller)))
	for n := 0; ; n++ {
		select {
		case <-tr.stop:
			return
		default:
		}
		k := rnd.IntN(len(tr.prompts))
		got, err := tr.request(fmt.Sprintf("c%d.%d", caller, n), tr.prompts[k], rnd.IntN(2) == 0)
		tr.mu.Lock()
		switch {
		case err != nil:
			tr.failed = append(tr.failed, err)
		case !slices.Equal(got, tr.want[k]):
			tr.w.t.Errorf("caller %d, request %d: tokens %v, one engine gives %v", caller, n, got, tr.want[k])
		default:
			tr.good++
		}
		tr.mu.Unlock()
	}
}

// request takes a prompt through both groups; by says whether the decode engine asks for
// the import itself, or a control plane does.
func (tr *traffic) request(label string, p []int32, by bool) ([]int32, error) {
	ctx, cancel := context.WithTimeout(tr.w.t.Context(), patience)
	defer cancel()
	const deadline = 15 * time.Second
	out := front.Request{Tokens: p, MaxNew: maxNew, Label: label, Mode: front.Export, DeadlineMS: deadline.Milliseconds()}
	res, err := generate(ctx, tr.w.prefill, out, nil)
	if err != nil {
		return nil, fmt.Errorf("export: %w", err)
	}
	var got []int32
	if by {
		in := front.Request{Tokens: p, MaxNew: maxNew, Label: label, Mode: front.Import, Manifest: res.Manifest, DeadlineMS: deadline.Milliseconds()}
		_, err = generate(ctx, tr.w.decode, in, &got)
	} else {
		got, err = tr.adopt(ctx, handoff.Import{Label: label, Manifest: *res.Manifest, Tokens: p, Deadline: deadline})
	}
	if err != nil { // else its lease holds the prompt's memory for a while
		tr.release(ctx, *res.Manifest)
		return nil, fmt.Errorf("import, by the engine %v: %w", by, err)
	}
	return got, nil
}

// release gives a hand-off up, also to a leader that is being started again.
func (tr *traffic) release(ctx context.Context, man handoff.Manifest) {
	look := time.NewTicker(5 * time.Millisecond)
	defer look.Stop()
	for {
		err := tr.w.prefill.Leader.Release(ctx, man.ID, man.Key)
		if err == nil || errors.Is(err, handoff.ErrGone) {
			return
		}
		select {
		case <-look.C:
		case <-ctx.Done():
			tr.w.t.Errorf("release: %v", err)
			return
		}
	}
}

// adopt imports as a control plane does. A call that breaks is in doubt: the request is
// waited for until the leader, or its successor, tells what became of it.
func (tr *traffic) adopt(ctx context.Context, im handoff.Import) (got []int32, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	adopted := make(chan error, 1)
	go func() {
		_, err := generate(ctx, tr.w.decode, front.Request{MaxNew: maxNew, Label: im.Label, Mode: front.Adopt}, &got)
		adopted <- err
	}()
	_, err = tr.w.decode.Leader.Import(ctx, im)
	if errors.Is(err, handoff.ErrInDoubt) && tr.admitted(ctx, im.Manifest.ID) {
		err = nil
	}
	if err != nil {
		cancel()
		<-adopted
		return nil, err
	}
	return got, <-adopted
}

// admitted asks how an import ended.
func (tr *traffic) admitted(ctx context.Context, id handoff.ID) bool {
	look := time.NewTicker(5 * time.Millisecond)
	defer look.Stop()
	for {
		switch i, err := tr.w.decode.Leader.Get(ctx, id); { // ErrNotReady until the group is whole
		case errors.Is(err, handoff.ErrUnknown), err == nil && (i.Phase == control.Failing || i.Err != nil):
			return false
		case err == nil && i.Phase == control.Admitted:
			return true
		}
		select {
		case <-look.C:
		case <-ctx.Done():
			return false
		}
	}
}

// more waits until n more requests went well.
func (tr *traffic) more(n int) {
	tr.w.t.Helper()
	begin := -1
	var good int
	var failed []error
	defer func() {
		if tr.w.t.Failed() {
			tr.w.t.Logf("%d good; the last failures: %v", good, failed[max(0, len(failed)-5):])
		}
	}()
	eventually(tr.w.t, "hand-offs go well", func() bool {
		tr.mu.Lock()
		defer tr.mu.Unlock()
		if good, failed = tr.good, tr.failed; begin < 0 {
			begin = good
		}
		return good >= begin+n
	})
}

func (tr *traffic) end() {
	close(tr.stop)
	tr.wg.Wait()
}

// TestSidecarStandsStill: a sidecar that stops for longer than its registration lasts is
// not replaced while its process lives, whoever tries, and goes on when it does: what its
// group held is right or failed, and new hand-offs work.
func TestSidecarStandsStill(t *testing.T) {
	for _, rank := range []int32{0, 1} {
		w := up(t, "tp=1,role=prefill+tp=2,role=decode", "hybrid", func(o *dev.Options) { o.TTL = time.Second })
		tr := w.run(3)
		tr.more(3)
		old := w.Sidecar(w.decode, rank)
		p := watch(t, old.PID)
		p.halt(t)
		second := exec.Command(binary, "sidecar", "--config", filepath.Join(old.Engine, "sidecar.yaml"))
		out, err := second.CombinedOutput()
		if err == nil || !strings.Contains(string(out), fmt.Sprintf("held by process %d: stop it", old.PID)) {
			t.Errorf("a second sidecar of the run directory: %v\n%s", err, out)
		}
		w.registered(2) // of three
		p.signal(t, unix.SIGCONT)
		tr.more(8)
		tr.end()
		w.nothingHeld()
	}
}

// TestProcessesKilledUnderLoad: sidecars of both groups, leaders and others, and movers
// are killed while hand-offs run, and started again. The engines live on, every request
// ends with right tokens or an error, the group takes new hand-offs after each kill, and
// at the end nothing is held on any rank: their allocators are mirrored, and rank 0's is
// told.
func TestProcessesKilledUnderLoad(t *testing.T) {
	w := up(t, "tp=2,role=prefill+tp=2,role=decode", "hybrid", func(o *dev.Options) { o.Restart = true })
	var engines []proc
	for _, g := range w.Groups {
		for _, k := range g.Ranks {
			engines = append(engines, watch(t, k.Engine.PID))
		}
	}
	prefill, decode := func(w *world) *dev.Running { return w.prefill }, func(w *world) *dev.Running { return w.decode }
	victims := []victim{{decode, 1, false}, {decode, 0, false}, {prefill, 1, false}, {prefill, 0, false}, {decode, 1, true},
		{prefill, 0, true}, {decode, 0, false}, {decode, 1, false}}
	tr := w.run(6)
	rnd := rand.New(rand.NewPCG(5, 6))
	for _, v := range victims {
		tr.more(1 + rnd.IntN(8))
		t.Logf("kill the %s of %s", v, v.group(w).Name)
		w.kill(v)
	}
	tr.more(8)
	tr.end()
	t.Logf("%d hand-offs, %d failed", tr.good, len(tr.failed))
	for _, p := range engines {
		if err := unix.PidfdSendSignal(p.fd, 0, nil, 0); err != nil {
			t.Errorf("engine %d: %v", p.pid, err)
		}
	}
	for _, g := range w.Groups {
		w.notice(bounded(t), g, control.Ready)
		w.allFree(g, poolBlocks, poolSlots)
	}
	got, err := tr.request("after", tr.prompts[0], false)
	if err != nil || !slices.Equal(got, tr.want[0]) {
		t.Errorf("after: %v, %v; one engine gives %v", got, err, tr.want[0])
	}
}

// TestDemoKill: the demo kills a sidecar in the middle of a hand-off, and its tokens are
// still those of one engine.
func TestDemoKill(t *testing.T) {
	for _, of := range []string{"decode-0/0", "prefill-0/0"} {
		out, err := exec.CommandContext(bounded(t), binary, "demo", "--new=4", "--kill", of).CombinedOutput()
		if err != nil || !strings.Contains(string(out), "killed the sidecar of "+of) || !strings.Contains(string(out), "are EQUAL") {
			t.Errorf("--kill %s: %v\n%s", of, err, out)
		}
	}
}
