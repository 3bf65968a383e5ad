package loop

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/batonkv/baton/discovery"
	"github.com/batonkv/baton/discovery/mem"
	"github.com/batonkv/baton/sidecar/control"
	"github.com/batonkv/baton/sidecar/events"
	"github.com/batonkv/baton/sidecar/handoff"
	"github.com/batonkv/baton/transfer"
	"github.com/batonkv/baton/transfer/fault"
	"github.com/batonkv/baton/transfer/lower"
)

// cluster is p with two ranks and d with one, whose pulls have the script's fate.
func cluster(t *testing.T, script fault.Script) *rig {
	r := newRig(t)
	r.side("p", 0, nil, nil)
	r.side("p", 1, nil, nil)
	r.side("d", 0, script, nil)
	r.group("p", 2)
	r.group("d", 1)
	return r
}

func (r *rig) handoff(label string, tokens int32) {
	r.t.Helper()
	man := r.export("p", label, tokens)
	got, err := r.importNow(r.t.Context(), "d", man)
	if want := int64(tokens) * layers * units * unitBytes; err != nil || got.Bytes != want {
		r.t.Fatalf("%s: moved %d bytes, want %d: %v", label, got.Bytes, want, err)
	}
	if !r.same("d", label, tokens) {
		r.t.Fatalf("%s: other bytes arrived", label)
	}
	r.notice("p", 0, control.Over, label)
}

func TestHandoff(t *testing.T) {
	r := cluster(t, nil)
	r.handoff("r1", 40)
	r.handoff("r2", 1)
	d := r.sides["d/0"].Service()
	n := r.notice("d", 0, control.Imported, "r1")
	info, err := d.Get(t.Context(), n.ID)
	if err != nil || info.Phase != control.Admitted || info.Role != control.Destination {
		t.Fatalf("%+v, %v", info, err)
	}
	if _, err := d.Get(t.Context(), handoff.ID{Group: "p", N: 99}); !errors.Is(err, handoff.ErrUnknown) {
		t.Fatal(err)
	}
	st, err := r.sides["p/0"].Service().Status(t.Context())
	if err != nil || !st.Ready || len(st.Members) != 2 || !st.Members[1].Attached || st.Members[1].Addr == "" {
		t.Fatalf("%+v, %v", st, err)
	}
	r.sides["d/0"].becomes("")
}

func TestMoverRestarts(t *testing.T) {
	r := cluster(t, nil)
	r.handoff("r1", 20)
	d := r.sides["d/0"]
	d.pid.Store(0) // between two movers; the new one takes work after it was told of
	d.MoverRestarted(22)
	r.sides["p/1"].MoverRestarted(33)
	r.handoff("r2", 20)
	for _, want := range []int32{1, 22} {
		for {
			if m, ok := (<-d.engine.told).(handoff.MoverStarted); ok {
				if m.PID != want {
					t.Errorf("the engine was told of mover %d, want %d", m.PID, want)
				}
				break
			}
		}
	}
}

// An announced hand-off can be imported at once: the import waits for the export.
func TestAnnounce(t *testing.T) {
	r := cluster(t, nil)
	check(t, r.sides["p/0"].engine.Send(handoff.Announce{Label: "r1"}))
	n := r.notice("p", 0, control.Announced, "r1")
	if n.Manifest == nil || n.Manifest.ID != n.ID || n.ID.Group != "p" || n.Manifest.Key == (handoff.Key{}) {
		t.Fatalf("%+v", n)
	}
	ended := make(chan error, 1)
	go func() {
		_, err := r.sides["d/0"].Service().Import(t.Context(), handoff.Import{Manifest: *n.Manifest, Tokens: make([]int32, 20)})
		ended <- err
	}()
	for { // the import waits at the source
		if info, err := r.sides["d/0"].Service().Get(t.Context(), n.ID); err == nil && info.Phase == control.Opening {
			break
		}
		runtime.Gosched()
	}
	select {
	case err := <-ended:
		t.Fatalf("ended before the export: %v", err)
	default:
	}
	if man := r.export("p", "r1", 20); man.ID != n.ID || man.Key != n.Manifest.Key {
		t.Errorf("announced %v, exported %v", n.ID, man.ID)
	}
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if !r.same("d", "r1", 20) {
		t.Error("other bytes arrived")
	}
}

func TestBothDial(t *testing.T) {
	r := cluster(t, nil)
	d, p := r.sides["d/0"], r.sides["p/0"]
	for range 3 { // a new session of either direction takes the last one's place
		d.peers.Dial(p.peers.Addr(), p.self)
		p.peers.Dial(d.peers.Addr(), d.self)
	}
	for n, done := 1, 0; done < 2; n++ {
		label := fmt.Sprint("r", n)
		man := r.export("p", label, 20)
		_, err := r.importNow(t.Context(), "d", man)
		replaced := false // a session that was replaced may fail a try, which may have taken the copy
		for errors.Is(err, handoff.ErrPeer) || errors.Is(err, handoff.ErrTransfer) {
			replaced = true
			_, err = r.importNow(t.Context(), "d", man)
		}
		switch {
		case err == nil:
			done++
			if !r.same("d", label, 20) {
				t.Fatalf("%s: other bytes arrived", label)
			}
		case !replaced || !errors.Is(err, handoff.ErrGone):
			t.Fatal(err)
		}
	}
}

// A call that ends before its import is in doubt; the import goes on.
func TestCallEnds(t *testing.T) {
	hold, held := make(chan struct{}), make(chan struct{}, 8)
	r := cluster(t, func(transfer.PeerID, lower.Job) fault.Fate {
		held <- struct{}{}
		return fault.Fate{Hold: hold}
	})
	man := r.export("p", "r1", 20)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() {
		_, err := r.importNow(ctx, "d", man)
		ended <- err
	}()
	<-held
	cancel()
	if err := <-ended; !errors.Is(err, handoff.ErrInDoubt) || !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	info, err := r.sides["d/0"].Service().Get(t.Context(), man.ID)
	if err != nil || info.Phase != control.Pulling {
		t.Fatalf("%+v, %v", info, err)
	}
	close(hold)
	r.notice("d", 0, control.Imported, "r1")
}

// A copy that does not end outlives Run, and Wait waits for the backend to end it.
func TestStopWithOpenTickets(t *testing.T) {
	held := make(chan struct{}, 8)
	r := cluster(t, func(transfer.PeerID, lower.Job) fault.Fate {
		held <- struct{}{}
		return fault.Fate{Late: fault.Never}
	})
	man := r.export("p", "r1", 20)
	ended := make(chan error)
	go func() {
		_, err := r.importNow(context.Background(), "d", man)
		ended <- err
	}()
	for range 2 {
		<-held
	}
	d := r.sides["d/0"]
	if err := d.stopped(); err == nil {
		t.Fatal("Run says nothing of copies that have not ended")
	}
	if err := <-ended; !errors.Is(err, handoff.ErrInDoubt) {
		t.Fatal(err)
	}
	if err := d.Service().Abort(t.Context(), man.ID, man.Key); !errors.Is(err, handoff.ErrNotReady) {
		t.Fatalf("a call after the end: %v", err)
	}
	if d.backend.OpenTickets() == 0 {
		t.Fatal("the copy ended by itself")
	}
}

func TestStopInOrder(t *testing.T) {
	r := cluster(t, nil)
	r.handoff("r1", 20)
	d := r.sides["d/0"]
	if err := d.stopped(); err != nil {
		t.Fatal(err)
	}
}

// registry hands its registrations out and fails the first watches.
type registry struct {
	discovery.Registry
	made chan discovery.Registration

	mu    sync.Mutex
	stale int
}

func (g *registry) Register(ctx context.Context, r discovery.Record) (discovery.Registration, error) {
	reg, err := g.Registry.Register(ctx, r)
	if err == nil {
		g.made <- reg
	}
	return reg, err
}

func (g *registry) Watch(ctx context.Context, s discovery.Scope) iter.Seq2[discovery.Snapshot, error] {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.stale > 0 {
		g.stale--
		return func(yield func(discovery.Snapshot, error) bool) { yield(discovery.Snapshot{}, discovery.ErrDown) }
	}
	return g.Registry.Watch(ctx, s)
}

func TestDiscoveryComesBack(t *testing.T) {
	r := newRig(t)
	var mu sync.Mutex
	now := time.Unix(1, 0)
	r.store = mem.New(func() time.Time { mu.Lock(); defer mu.Unlock(); return now }, time.Second)
	g := &registry{made: make(chan discovery.Registration, 4), stale: 1}
	r.side("p", 0, nil, func(in discovery.Registry) discovery.Registry { g.Registry = in; return g })
	r.side("d", 0, nil, nil)
	first := <-g.made
	r.store.Orphan(first)
	mu.Lock()
	now = now.Add(time.Hour)
	mu.Unlock()
	r.store.Sweep()
	<-first.Lost()
	if again := <-g.made; again == first {
		t.Fatal("the same registration")
	}
	r.group("p", 1)
	r.group("d", 1)
	man := r.export("p", "r1", 20)
	if _, err := r.importNow(t.Context(), "d", man); err != nil {
		t.Fatal(err)
	}
}

// A full inbox makes callers wait, and no longer than they want.
func TestInboxFull(t *testing.T) {
	s := New(Config{Publisher: events.Discard{}, Log: slog.New(slog.DiscardHandler)})
	for range inboxSize {
		if !s.post(func() {}) {
			t.Fatal("refused")
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Service().Import(ctx, handoff.Import{}); !errors.Is(err, context.Canceled) || errors.Is(err, handoff.ErrInDoubt) {
		t.Fatalf("import: %v", err) // nothing was begun, so nothing is in doubt
	}
	if _, err := s.Service().Get(ctx, handoff.ID{}); !errors.Is(err, context.Canceled) {
		t.Fatalf("get: %v", err)
	}
	waits := make(chan bool)
	go func() { waits <- s.post(func() {}) }()
	if err := s.Wait(); err != nil {
		t.Fatal(err)
	}
	<-waits // whichever way: it ended
	if s.post(func() {}) {
		t.Fatal("taken after the end")
	}
}
