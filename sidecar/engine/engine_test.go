package engine_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/batonkv/baton/proto/pump"
	"github.com/batonkv/baton/sidecar/engine"
	"github.com/batonkv/baton/sidecar/engine/client"
	"github.com/batonkv/baton/sidecar/handoff"
	"github.com/batonkv/baton/sidecar/sockfd"
)

const fdKey = 0xfeed

// event is one call of the handler.
type event struct {
	s      *engine.Session
	attach *handoff.Attach
	m      handoff.FromEngine
	closed bool
	err    error
}

// handler tells its calls over a channel and answers Attach with refuse, or Attached.
type handler struct {
	srv    chan *engine.Server
	events chan event
	refuse error
}

func (h *handler) Attach(s *engine.Session, a handoff.Attach) error {
	if h.refuse != nil {
		return h.refuse
	}
	srv := <-h.srv
	h.srv <- srv
	srv.ExpectFDs(fdKey, a.Buffers)
	h.events <- event{s: s, attach: &a}
	return s.Send(handoff.Attached{Incarnation: 7, FDKey: fdKey})
}
func (h *handler) Message(s *engine.Session, m handoff.FromEngine) { h.events <- event{s: s, m: m} }
func (h *handler) Closed(s *engine.Session, err error) {
	h.events <- event{s: s, closed: true, err: err}
}

func (h *handler) message(t *testing.T) handoff.FromEngine {
	t.Helper()
	e := <-h.events
	if e.m == nil {
		t.Fatalf("got %+v, want a message", e)
	}
	return e.m
}

func (h *handler) closed(t *testing.T) error {
	t.Helper()
	e := <-h.events
	if !e.closed {
		t.Fatalf("got %+v, want the end", e)
	}
	return e.err
}

func start(t *testing.T, opt engine.Options) (string, *engine.Server, *handler) {
	t.Helper()
	dir := t.TempDir()
	h := &handler{srv: make(chan *engine.Server, 1), events: make(chan event, 1024)}
	srv, err := engine.Listen(dir, h, opt)
	if err != nil {
		t.Fatal(err)
	}
	h.srv <- srv
	t.Cleanup(func() { shut(t, srv) })
	return dir, srv, h
}

func shut(t *testing.T, srv *engine.Server) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	_ = srv.Close(ctx)
	if ctx.Err() != nil {
		t.Error("the server did not close in order")
	}
}

func ctxOf(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// memfd makes a file that holds text.
func memfd(t *testing.T, text string) int {
	t.Helper()
	fd, err := unix.MemfdCreate("kv", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := unix.Write(fd, []byte(text)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	return fd
}

// attach dials while it plays the sidecar up to MoverStarted.
func attach(t *testing.T, dir string, h *handler, cfg client.Config) (*client.Client, *engine.Session) {
	t.Helper()
	cfg.Dir = dir
	type dialed struct {
		c   *client.Client
		err error
	}
	done := make(chan dialed, 1)
	go func() {
		c, err := client.Dial(ctxOf(t), cfg)
		done <- dialed{c, err}
	}()
	e := <-h.events
	if e.attach == nil || !reflect.DeepEqual(*e.attach, cfg.Attach) {
		t.Fatalf("got %+v, want attach %+v", e, cfg.Attach)
	}
	if m := h.message(t); m != (handoff.BuffersReady{}) {
		t.Fatalf("got %+v, want BuffersReady", m)
	}
	if err := e.s.Send(handoff.MoverStarted{PID: int32(os.Getpid())}); err != nil {
		t.Fatal(err)
	}
	d := <-done
	if d.err != nil {
		t.Fatal(d.err)
	}
	t.Cleanup(func() { d.c.Close() })
	return d.c, e.s
}

// poll waits until n messages came.
func poll(t *testing.T, c *client.Client, n int) (got []handoff.ToEngine) {
	t.Helper()
	for {
		if got = c.Poll(got); len(got) >= n {
			return got
		}
		if err := c.Err(); err != nil {
			t.Fatalf("session ended: %v, got %+v", err, got)
		}
		<-c.Wake()
	}
}

// away waits until the session is lost.
func away(c *client.Client) error {
	for c.Away() == nil {
		<-c.Wake()
	}
	return c.Away()
}

func TestSession(t *testing.T) {
	dir, srv, h := start(t, engine.Options{})
	cfg := client.Config{Attach: handoff.Attach{Group: "p", Ranks: 1,
		Buffers: []handoff.BufferDecl{{ID: 3, Len: 5}, {ID: 4, Len: 1, GPU: &handoff.GPUMemory{UUID: [16]byte{1}}}, {ID: 9, Len: 6},
			{ID: 11, Len: 2, GPU: &handoff.GPUMemory{UUID: [16]byte{1}, Chunks: []int64{1, 1}}}}},
		Files: []int{memfd(t, "hello"), memfd(t, "world!"), memfd(t, "a"), memfd(t, "b")}}
	c, s := attach(t, dir, h, cfg)

	fds := srv.TakeFDs(fdKey)
	for id, wants := range map[uint32][]string{3: {"hello"}, 4: nil, 9: {"world!"}, 11: {"a", "b"}} {
		if len(fds[id]) != len(wants) {
			t.Fatalf("buffer %d has %d descriptors, want %d", id, len(fds[id]), len(wants))
		}
		for i, want := range wants {
			got := make([]byte, len(want))
			if _, err := unix.Pread(fds[id][i], got, 0); err != nil || string(got) != want {
				t.Errorf("buffer %d, descriptor %d: %q, %v", id, i, got, err)
			}
			unix.Close(fds[id][i])
		}
	}
	if again := srv.TakeFDs(fdKey); len(again) != 0 {
		t.Errorf("descriptors came twice: %v", again)
	}

	export := handoff.Export{Label: "r1", Blocks: []int32{4, 2}, Slot: -1, Tokens: 20, MaxHold: time.Minute}
	if err := c.Send(export); err != nil {
		t.Fatal(err)
	}
	if m := h.message(t); !reflect.DeepEqual(m, export) {
		t.Fatalf("got %+v, want %+v", m, export)
	}
	exported := handoff.Exported{Label: "r1", Manifest: handoff.Manifest{ID: handoff.ID{Group: "p", N: 1}, Key: handoff.Key{1}}}
	if err := c.Send(handoff.Announce{Label: "r2"}); err != nil {
		t.Fatal(err)
	}
	if m := h.message(t); m != (handoff.Announce{Label: "r2"}) {
		t.Fatalf("got %+v", m)
	}
	failed := handoff.Failed{Label: "r2", Err: fmt.Errorf("rank 1: %w", handoff.ErrGone)}
	if err := errors.Join(s.Send(exported), s.Send(failed)); err != nil {
		t.Fatal(err)
	}
	got := poll(t, c, 3)
	if got[0] != (handoff.MoverStarted{PID: int32(os.Getpid())}) || !reflect.DeepEqual(got[1], exported) {
		t.Fatalf("got %+v", got)
	}
	if f := got[2].(handoff.Failed); !errors.Is(f.Err, handoff.ErrGone) || f.Err.Error() != failed.Err.Error() {
		t.Fatalf("got %+v", f)
	}
	closes(t, c, s, h)
}

// closes: Close loses nothing that is queued.
func closes(t *testing.T, c *client.Client, s *engine.Session, h *handler) {
	t.Helper()
	if err := c.Send(handoff.AbortImport{Label: "last"}); err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil || !errors.Is(c.Err(), pump.ErrClosed) {
		t.Fatalf("close: %v, %v", err, c.Err())
	}
	if m := h.message(t); m != (handoff.AbortImport{Label: "last"}) {
		t.Fatalf("Close lost what was queued: %+v", m)
	}
	if err := h.closed(t); err != nil {
		t.Fatalf("an ordinary end became %v", err)
	}
	if err := s.Send(handoff.Through{}); !errors.Is(err, pump.ErrClosed) {
		t.Fatalf("send after the end: %v", err)
	}
}

func TestDecisionsAreHeldInOrder(t *testing.T) {
	dir, _, h := start(t, engine.Options{})
	c, s := attach(t, dir, h, client.Config{Attach: handoff.Attach{Group: "p", Applied: 2, Held: 4}})
	for _, n := range []uint64{4, 5, 6, 5, 7} { // 4 and the second 5 are repeats
		if err := s.Send(handoff.Decision{N: n, Kind: handoff.Free}); err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range []uint64{4, 5, 6, 6, 7} {
		if m := h.message(t); m != (handoff.Held{N: want}) {
			t.Fatalf("got %+v, want Held %d", m, want)
		}
	}
	numbers := func(ds []handoff.Decision) (ns []uint64) {
		for _, d := range ds {
			ns = append(ns, d.N)
		}
		return ns
	}
	if got := numbers(c.Decisions(4)); got != nil {
		t.Errorf("through 4: %v", got)
	}
	if got := numbers(c.Decisions(6)); !reflect.DeepEqual(got, []uint64{5, 6}) {
		t.Errorf("through 6: %v", got)
	}
	if got := numbers(c.Decisions(100)); !reflect.DeepEqual(got, []uint64{7}) {
		t.Errorf("through 100: %v", got)
	}
	if err := s.Send(handoff.Decision{N: 9, Kind: handoff.Free}); err != nil {
		t.Fatal(err)
	}
	if err := away(c); !errors.Is(err, handoff.ErrEngine) || c.Err() != nil {
		t.Fatalf("a gap became %v", err)
	}
	if err := h.closed(t); !errors.Is(err, handoff.ErrPeer) {
		t.Fatalf("the sidecar heard %v", err)
	}
}

func TestRefusals(t *testing.T) {
	dir, _, h := start(t, engine.Options{})
	h.refuse = fmt.Errorf("%w: rank 0 of p by process 12", handoff.ErrAttached)
	_, err := client.Dial(ctxOf(t), client.Config{Dir: dir})
	if !errors.Is(err, handoff.ErrAttached) || !strings.Contains(err.Error(), "process 12") {
		t.Errorf("refused attach: %v", err)
	}
	if _, err := client.Dial(ctxOf(t), client.Config{Dir: dir, Files: []int{1}}); !errors.Is(err, handoff.ErrAttach) {
		t.Errorf("file without a buffer: %v", err)
	}
	if _, err := client.Dial(ctxOf(t), client.Config{Dir: t.TempDir()}); !errors.Is(err, handoff.ErrPeer) {
		t.Errorf("no sidecar: %v", err)
	}
	if _, err := client.Dial(ctxOf(t), client.Config{Dir: "/" + strings.Repeat("x", 200)}); !errors.Is(err, sockfd.ErrSocket) {
		t.Errorf("long path: %v", err)
	}
	ctx, cancel := context.WithCancel(ctxOf(t))
	cancel()
	if _, err := client.Dial(ctx, client.Config{Dir: dir}); !errors.Is(err, context.Canceled) {
		t.Errorf("ended context: %v", err)
	}
}

func TestFailedWhileAttaching(t *testing.T) {
	for name, finish := range map[string]func(*engine.Session){
		"failed": func(s *engine.Session) {
			_ = s.Send(handoff.Failed{Err: fmt.Errorf("%w: other digest", handoff.ErrModel)})
		},
		"closed": func(s *engine.Session) { _ = s.Close(fmt.Errorf("%w: other digest", handoff.ErrModel)) },
	} {
		t.Run(name, func(t *testing.T) {
			dir, _, h := start(t, engine.Options{})
			go func() {
				e := <-h.events
				finish(e.s)
			}()
			if _, err := client.Dial(ctxOf(t), client.Config{Dir: dir}); !errors.Is(err, handoff.ErrModel) {
				t.Fatalf("got %v", err)
			}
		})
	}
}

func TestSidecarStops(t *testing.T) {
	dir, srv, h := start(t, engine.Options{})
	c, s := attach(t, dir, h, client.Config{})
	if err := s.Send(handoff.Through{N: 1}); err != nil {
		t.Fatal(err)
	}
	shut(t, srv)
	if err := away(c); !errors.Is(err, handoff.ErrNotReady) || c.Err() != nil {
		t.Fatalf("got %v", err)
	}
	if got := c.Poll(nil); len(got) != 2 {
		t.Errorf("what came before the end is lost: %+v", got)
	}
	if err := h.closed(t); !errors.Is(err, handoff.ErrNotReady) {
		t.Errorf("handler heard %v", err)
	}
	if _, err := os.Lstat(filepath.Join(dir, engine.Socket)); !os.IsNotExist(err) {
		t.Errorf("the socket stayed: %v", err)
	}
}
