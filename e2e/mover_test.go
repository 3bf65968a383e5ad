package e2e

import (
	"encoding/json"
	"errors"
	"os"
	"slices"
	"testing"

	"github.com/nats-io/nats.go"
	"golang.org/x/sys/unix"

	"github.com/batonkv/baton/cmd/dev"
	"github.com/batonkv/baton/sidecar/control"
	"github.com/batonkv/baton/sidecar/events"
	baton "github.com/batonkv/baton/sidecar/events/nats"
	"github.com/batonkv/baton/sidecar/handoff"
)

// events subscribes to what a group says of itself.
func (w *world) events(g *dev.Running) <-chan events.Event {
	w.t.Helper()
	nc, err := nats.Connect(w.NATS)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(nc.Close)
	ch := make(chan events.Event, 4096)
	if _, err := nc.Subscribe(baton.Root+".dev.dev."+g.Name+".>", func(m *nats.Msg) {
		var e events.Event
		if err := json.Unmarshal(m.Data, &e); err != nil {
			w.t.Errorf("event %.200q: %v", m.Data, err)
		}
		ch <- e
	}); err != nil {
		w.t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		w.t.Fatal(err)
	}
	return ch
}

// next waits for an event of a kind and label.
func (w *world) next(ch <-chan events.Event, k events.Kind, label string) events.Event {
	w.t.Helper()
	ctx := bounded(w.t)
	for {
		select {
		case e := <-ch:
			if e.Kind == k && e.Label == label {
				return e
			}
		case <-ctx.Done():
			w.t.Fatalf("no event %s of %q", k, label)
		}
	}
}

// nans counts the NaN in an engine's memory, read from its own files; the upper half of
// an fp32 NaN is one in bf16.
func nans(t *testing.T, pid int) (n int) {
	t.Helper()
	for _, f := range memfds(t, pid) {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		for i := 0; i+2 <= len(b); i += 2 {
			if b[i+1]&0x7f == 0x7f && b[i]&0x80 != 0 && b[i]&0x7f != 0 { // little endian
				n++
			}
		}
	}
	return n
}

// TestMoverCopies: while the mover stands still a reserved destination is all poison,
// and nobody else fills it; once it runs on the tokens are right.
func TestMoverCopies(t *testing.T) {
	for _, model := range []string{"attention", "hybrid"} {
		t.Run(model, func(t *testing.T) { moverCopies(t, up(t, "tp=2,role=prefill+tp=1,role=decode", model)) })
	}
}

func moverCopies(t *testing.T, w *world) {
	ctx, p := bounded(t), prompt(1, 4*block)
	ch := w.events(w.decode)
	w.handoff("first", prompt(9, 5)) // links stand
	man, err := w.export(ctx, w.prefill, "a", p)
	if err != nil {
		t.Fatal(err)
	}
	k := w.decode.Ranks[0]
	mover := watch(t, k.Sidecar.MoverPID)
	mover.halt(t)
	type result struct {
		moved
		err error
	}
	done := make(chan result, 1)
	go func() {
		m, err := w.bring(ctx, w.decode, man, "a", p)
		done <- result{m, err}
	}()
	w.next(ch, events.Moving, "a")
	// Fresh memory is poisoned, and so are blocks as they are handed out again.
	state := poolSlots * int(bytesOf(w.model, 0)) / 4
	kv := func(blocks int) int { return int(bytesOf(w.model, blocks*block)-bytesOf(w.model, 0)) / 2 }
	if want, got := kv(poolBlocks)+state, nans(t, k.Engine.PID); got != want {
		t.Errorf("the destination holds %d NaN before the copy, want all of its %d elements", got, want)
	}
	if info, err := w.decode.Leader.Get(ctx, man.ID); err != nil || info.Phase != control.Pulling {
		t.Errorf("the import is %v (%v), want pulling", info.Phase, err)
	}
	mover.signal(t, unix.SIGCONT)
	r := <-done
	if r.err != nil {
		t.Fatal(r.err)
	}
	w.equal("a", p, r.tokens)
	if most, got := kv(poolBlocks-4)+state-int(bytesOf(w.model, 0))/4, nans(t, k.Engine.PID); got > most {
		t.Errorf("the destination holds %d NaN after the copy, want at most %d", got, most)
	}
}

// TestMoverKilled: a mover that is killed while it copies fails its own tickets, and
// nobody else's; another comes, and the same manifest can be imported again.
func TestMoverKilled(t *testing.T) {
	w := up(t, "tp=2,role=prefill+tp=2,dp=2,role=decode", "hybrid")
	ctx, p := bounded(t), prompt(1, 4*block)
	other := w.Groups[2]
	w.handoff("first", prompt(9, 5))
	w.between(w.prefill, other, "first other", prompt(8, 5))
	man, err := w.export(ctx, w.prefill, "a", p)
	if err != nil {
		t.Fatal(err)
	}
	ch := w.events(w.decode)
	k := w.decode.Ranks[1]
	mover := watch(t, k.Sidecar.MoverPID)
	mover.halt(t)
	failed := make(chan error, 1)
	go func() {
		_, err := w.decode.Leader.Import(ctx, handoff.Import{Label: "a", Manifest: man, Tokens: p, Deadline: patience})
		failed <- err
	}()
	for w.next(ch, events.Moving, "a").Rank != 1 {
	}
	w.between(w.prefill, other, "beside it", prompt(3, 40))
	mover.signal(t, unix.SIGKILL)
	mover.gone(t, "mover")
	if err := <-failed; !errors.Is(err, handoff.ErrTransfer) {
		t.Errorf("the import that it copied for ended with %v, want %v", err, handoff.ErrTransfer)
	}
	info, err := w.decode.Leader.Get(ctx, man.ID)
	if err != nil || !info.SourceSafe {
		t.Errorf("the source is not said to be safe: %+v, %v", info, err)
	}
	rank1 := w.dial(k.Sidecar.Addr, "control")
	var st control.Status
	eventually(t, "another mover runs", func() bool {
		st, err = rank1.Status(ctx)
		return err == nil && st.MoverPID != 0 && int(st.MoverPID) != mover.pid
	})
	m, err := w.bring(ctx, w.decode, man, "again", p)
	if err != nil {
		t.Fatalf("the same manifest, again: %v", err)
	}
	w.equal("again", p, m.tokens)
	w.handoff("later", prompt(4, 50))
	want := append(w.sources(w.prefill, w.decode, 1), w.decode.Name+"-1")
	for name := range mapped(t, int(st.MoverPID)) {
		if !slices.Contains(want, name) {
			t.Errorf("the new mover maps %s", name)
		}
	}
	w.nothingHeld()
	select {
	case err := <-w.Died():
		t.Error(err)
	default:
	}
}
