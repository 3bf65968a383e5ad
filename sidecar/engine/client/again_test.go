package client_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/batonkv/baton/proto/pump"
	"github.com/batonkv/baton/sidecar/engine"
	"github.com/batonkv/baton/sidecar/engine/client"
	"github.com/batonkv/baton/sidecar/handoff"
)

// fake is a sidecar process's side of engine.sock, played by a test.
type fake struct {
	t           *testing.T
	srv         *engine.Server
	incarnation handoff.Incarnation
	mover       int
	refuse      atomic.Pointer[error]
	attached    chan handoff.Attach // Attach, before it is answered
	ready       chan struct{}       // BuffersReady came
	got         chan handoff.FromEngine
	session     chan *engine.Session
}

func serve(t *testing.T, dir string, inc handoff.Incarnation, mover int) *fake {
	t.Helper()
	f := &fake{t: t, incarnation: inc, mover: mover, attached: make(chan handoff.Attach, 64), ready: make(chan struct{}, 64),
		got: make(chan handoff.FromEngine, 1024), session: make(chan *engine.Session, 64)}
	var err error
	if f.srv, err = engine.Listen(dir, f, engine.Options{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.stop)
	return f
}

func (f *fake) stop() {
	ctx, cancel := context.WithCancel(context.Background())
	cancel() // as a process ends: nobody is waited for
	_ = f.srv.Close(ctx)
}

func (f *fake) Attach(s *engine.Session, a handoff.Attach) error {
	select {
	case f.attached <- a:
	default: // one of many tries that are refused
	}
	if err := f.refuse.Load(); err != nil {
		return *err
	}
	f.session <- s
	return s.Send(handoff.Attached{Incarnation: f.incarnation, FDKey: 1})
}

func (f *fake) Message(s *engine.Session, m handoff.FromEngine) {
	if _, ok := m.(handoff.BuffersReady); ok {
		f.ready <- struct{}{}
		_ = s.Send(handoff.MoverStarted{PID: int32(f.mover)})
		return
	}
	f.got <- m
}

func (f *fake) Closed(*engine.Session, error) {}

// says expects the engine's next messages.
func (f *fake) says(want ...handoff.FromEngine) {
	f.t.Helper()
	for _, w := range want {
		if m := <-f.got; !reflect.DeepEqual(m, w) {
			f.t.Fatalf("the engine says %+v, want %+v", m, w)
		}
	}
}

func (f *fake) tell(s *engine.Session, ms ...handoff.ToEngine) {
	f.t.Helper()
	for _, m := range ms {
		if err := s.Send(m); err != nil {
			f.t.Fatal(err)
		}
	}
}

func dial(t *testing.T, dir string, change func(*client.Config)) *client.Client {
	t.Helper()
	cfg := client.Config{Dir: dir, RedialMin: time.Millisecond, RedialMax: 4 * time.Millisecond,
		Attach: handoff.Attach{Group: "g", Instance: 5, Ranks: 1, OnDown: handoff.OnDownFail}}
	if change != nil {
		change(&cfg)
	}
	c, err := client.Dial(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func until(t *testing.T, c *client.Client, what string, ok func() bool) {
	t.Helper()
	for !ok() {
		select {
		case <-c.Wake():
		case <-t.Context().Done():
			t.Fatalf("never: %s", what)
		}
	}
}

// poll is Poll without MoverStarted.
func poll(c *client.Client, got []handoff.ToEngine) []handoff.ToEngine {
	for _, m := range c.Poll(nil) {
		if _, ok := m.(handoff.MoverStarted); !ok {
			got = append(got, m)
		}
	}
	return got
}

func away(c *client.Client) func() bool { return func() bool { return c.Away() != nil } }
func back(c *client.Client) func() bool { return func() bool { return c.Away() == nil } }

func send(t *testing.T, c *client.Client, ms ...handoff.FromEngine) {
	t.Helper()
	for _, m := range ms {
		if err := c.Send(m); err != nil {
			t.Fatalf("%+v: %v", m, err)
		}
	}
}

func importOf(l string) handoff.Import {
	return handoff.Import{Label: l, Manifest: handoff.Manifest{ID: handoff.ID{Group: "p", N: 1}}, Tokens: []int32{1}, Deadline: time.Hour}
}

// TestReplacedSidecar: the sidecar's process is another one; the engine loses nothing
// that it holds, and what it says meanwhile is stated.
func TestReplacedSidecar(t *testing.T) {
	dir := t.TempDir()
	one := serve(t, dir, 1, os.Getpid())
	c := dial(t, dir, nil)
	if a := <-one.attached; !reflect.DeepEqual(a, handoff.Attach{Group: "g", Instance: 5, Ranks: 1, OnDown: handoff.OnDownFail}) {
		t.Fatalf("first attach %+v", a)
	}
	reserve := handoff.Decision{N: 1, Kind: handoff.Reserve, Label: "i", Tokens: 3, Hashes: []uint64{7, 8}}
	free := handoff.Decision{N: 2, Kind: handoff.Free, Label: "x"}
	one.tell(<-one.session, reserve, handoff.Through{N: 1}, free)
	one.says(handoff.Held{N: 1}, handoff.Held{N: 2})
	send(t, c, handoff.Export{Label: "x"}, importOf("i"), handoff.Fenced{N: 4})
	one.says(handoff.Export{Label: "x"}, importOf("i"), handoff.Fenced{N: 4})
	if ds := c.Decisions(1); !reflect.DeepEqual(ds, []handoff.Decision{reserve}) {
		t.Fatalf("took %+v", ds)
	}
	one.stop()
	until(t, c, "the session is lost", away(c))
	send(t, c, handoff.Reserved{N: 1, Slot: -1}, handoff.Applied{N: 1}, handoff.Export{Label: "y"}, handoff.Fenced{N: 3}, importOf("late"),
		handoff.Announce{Label: "z"}, handoff.AbortImport{Label: "i"})
	two := serve(t, dir, 2, os.Getpid())
	want := handoff.Attach{Group: "g", Instance: 5, Ranks: 1, OnDown: handoff.OnDownFail, Pins: []string{"x", "y"}, Imports: []string{"i"},
		Applied: 1, Held: 2, Decisions: []handoff.Decision{{N: 1, Kind: handoff.Reserve, Label: "i"}, free}}
	if a := <-two.attached; !reflect.DeepEqual(a, want) {
		t.Fatalf("attaches again with %+v, want %+v", a, want)
	}
	two.says(handoff.Fenced{N: 4}, handoff.Announce{Label: "z"})
	until(t, c, "the session stands", back(c))
	s := <-two.session
	two.tell(s, free, handoff.Failed{Label: "i", Err: handoff.ErrPeer, SourceSafe: true}, handoff.Failed{Label: "i", Err: handoff.ErrPeer}, handoff.Through{N: 2})
	two.says(handoff.Held{N: 2})
	var got []handoff.ToEngine
	until(t, c, "through 2", func() bool {
		got = poll(c, got)
		return len(got) > 0 && got[len(got)-1] == handoff.Through{N: 2}
	})
	if len(got) != 4 || got[0] != (handoff.Through{N: 1}) {
		t.Fatalf("polled %+v", got)
	}
	for i, label := range []string{"late", "i"} {
		if f := got[i+1].(handoff.Failed); f.Label != label || !f.SourceSafe || !errors.Is(f.Err, handoff.ErrPeer) {
			t.Errorf("polled %+v, want the end of %s", f, label)
		}
	}
	if ds := c.Decisions(2); !reflect.DeepEqual(ds, []handoff.Decision{free}) {
		t.Errorf("took %+v", ds)
	}
	send(t, c, handoff.Applied{N: 2})
	two.says(handoff.Applied{N: 2})
	if err := c.Close(); err != nil || !errors.Is(c.Err(), pump.ErrClosed) || !errors.Is(c.Send(handoff.Freed{}), pump.ErrClosed) {
		t.Errorf("closed: %v, %v", err, c.Err())
	}
}

// TestRelaunch: a sidecar that says that only a new launch helps is believed; any other
// refusal is asked again.
func TestRelaunch(t *testing.T) {
	dir := t.TempDir()
	one := serve(t, dir, 1, os.Getpid())
	c := dial(t, dir, nil)
	<-one.attached
	busy := fmt.Errorf("%w: copies are not finished: attach again", handoff.ErrAttach)
	one.refuse.Store(&busy)
	_ = (<-one.session).Close(fmt.Errorf("%w: too slow", pump.ErrFull))
	for range 3 {
		<-one.attached
	}
	if err := c.Err(); err != nil {
		t.Fatalf("a refusal that passes ended the client: %v", err)
	}
	hopeless := fmt.Errorf("%w: %w: decision 7 is lost", handoff.ErrRelaunch, handoff.ErrAttach)
	one.refuse.Store(&hopeless)
	until(t, c, "it gives up", func() bool { return c.Err() != nil })
	if err := c.Err(); !errors.Is(err, handoff.ErrAttach) || err.Error() != hopeless.Error() {
		t.Errorf("ended with %v", err)
	}
	if err := c.Send(handoff.Export{Label: "x"}); !errors.Is(err, pump.ErrClosed) || !errors.Is(err, handoff.ErrAttach) {
		t.Errorf("send: %v", err)
	}
}

// TestEngineFault: what this engine did wrong, or is, is not cured by attaching again.
func TestEngineFault(t *testing.T) {
	for _, is := range []error{handoff.ErrEngine, handoff.ErrModel} {
		dir := t.TempDir()
		one := serve(t, dir, 1, os.Getpid())
		c := dial(t, dir, nil)
		<-one.attached
		_ = (<-one.session).Close(fmt.Errorf("%w: so it is", is))
		until(t, c, "it ends", func() bool { return c.Err() != nil })
		if err := c.Err(); !errors.Is(err, is) || len(one.attached) > 0 {
			t.Errorf("ended with %v, attached again %d times", err, len(one.attached))
		}
	}
}

// TestFormerMoverHasExited: another sidecar process hears BuffersReady, without which it
// decides nothing, only once the movers of the former one have exited.
func TestFormerMoverHasExited(t *testing.T) {
	dir := t.TempDir()
	mover := exec.Command("sleep", "600")
	if err := mover.Start(); err != nil {
		t.Fatal(err)
	}
	var ended atomic.Bool
	defer mover.Wait()
	defer mover.Process.Kill()
	one := serve(t, dir, 1, mover.Process.Pid)
	c := dial(t, dir, nil)
	<-one.attached
	<-one.ready
	_ = (<-one.session).Close(nil) // the same process: its mover goes on
	<-one.attached
	<-one.ready
	until(t, c, "the session stands again", back(c))
	one.stop()
	two := serve(t, dir, 2, os.Getpid())
	<-two.attached
	go func() {
		ended.Store(true)
		_ = mover.Process.Kill()
	}()
	<-two.ready
	if !ended.Load() {
		t.Error("the former mover may still write")
	}
	until(t, c, "the session stands", back(c))
}

// TestOnDown: what becomes of an import that waits when the sidecar is lost.
func TestOnDown(t *testing.T) {
	for _, c := range []struct {
		on       handoff.OnDown
		deadline time.Duration
		want     string // of the failure; empty: it waits for the next sidecar
	}{
		{handoff.OnDownRecompute, time.Hour, "the sidecar was lost"},
		{handoff.OnDownFail, time.Millisecond, "before the deadline"},
		{handoff.OnDownFail, time.Hour, ""},
	} {
		t.Run(fmt.Sprint(c.on, c.deadline), func(t *testing.T) {
			dir := t.TempDir()
			one := serve(t, dir, 1, os.Getpid())
			cl := dial(t, dir, func(cfg *client.Config) { cfg.Attach.OnDown = c.on })
			<-one.attached
			im := importOf("i")
			im.Deadline = c.deadline
			send(t, cl, im)
			one.says(im)
			one.stop()
			until(t, cl, "the session is lost", away(cl))
			var got []handoff.ToEngine
			var stated []string
			if c.want != "" {
				until(t, cl, "it fails", func() bool { got = poll(cl, got); return len(got) > 0 })
				if f := got[0].(handoff.Failed); !errors.Is(f.Err, handoff.ErrPeer) || !strings.Contains(f.Err.Error(), c.want) || f.SourceSafe {
					t.Errorf("got %+v", f)
				}
			} else {
				stated = []string{"i"}
			}
			two := serve(t, dir, 2, os.Getpid())
			if a := <-two.attached; !reflect.DeepEqual(a.Imports, stated) {
				t.Errorf("states imports %v, want %v", a.Imports, stated)
			}
			until(t, cl, "the session stands", back(cl))
			two.tell(<-two.session, handoff.Imported{Label: "i", ID: im.Manifest.ID}, handoff.Through{N: 1})
			got = nil
			until(t, cl, "through", func() bool {
				got = poll(cl, got)
				return len(got) > 0 && got[len(got)-1] == handoff.Through{N: 1}
			})
			if (len(got) == 2) != (c.want == "") {
				t.Errorf("polled %+v", got)
			}
		})
	}
}

// TestCloseWhileAway: Close ends what tries to attach, also within a try.
func TestCloseWhileAway(t *testing.T) {
	dir := t.TempDir()
	one := serve(t, dir, 1, os.Getpid())
	c := dial(t, dir, func(cfg *client.Config) { cfg.RedialMin, cfg.RedialMax = time.Hour, time.Hour })
	one.stop()
	until(t, c, "the session is lost", away(c))
	if err := c.Close(); err != nil || !errors.Is(c.Err(), pump.ErrClosed) {
		t.Errorf("close: %v, %v", err, c.Err())
	}
}
