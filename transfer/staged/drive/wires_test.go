package drive_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"

	"github.com/batonkv/baton/internal/need"
	"github.com/batonkv/baton/lifeline"
	"github.com/batonkv/baton/transfer"
	"github.com/batonkv/baton/transfer/mover"
	"github.com/batonkv/baton/transfer/staged"
	"github.com/batonkv/baton/transfer/staged/drive"
	"github.com/batonkv/baton/transfer/staged/nixl"
	"github.com/batonkv/baton/transfer/staged/tcp"
)

const envChild = "DRIVE_TEST_ROLE"

var roles = map[string]func() error{
	"local": func() error { return mover.Serve(context.Background(), lifeline.FirstExtra) },
}

// TestMain makes the test binary a wire mover of the tests, for NIXL, and what tests of GPU
// memory start.
func TestMain(m *testing.M) {
	var err error
	switch role := os.Getenv(envChild); role {
	case "":
		os.Exit(m.Run())
	case "wire":
		err = mover.ServeWire(context.Background(), lifeline.FirstExtra, open)
	default:
		err = roles[role]()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

func open(s mover.Setup, b []byte) (staged.Wire, error) {
	if s.Transport == "tcp" {
		return tcp.New(tcp.Config{Wire: s.Wire, Arena: b, Chunk: s.Chunk, Listen: s.Listen})
	}
	o := nixl.DefaultOptions()
	o.Library = s.Transport
	return nixl.New(nixl.Config{Wire: s.Wire, Arena: b, Chunk: s.Chunk, Listen: s.Listen, Options: o})
}

// overEach runs f over each kind of wire, by its name for over.
func overEach(t *testing.T, f func(t *testing.T, over string)) {
	for _, over := range []string{"tcp", "nixl"} {
		t.Run(over, func(t *testing.T) { f(t, over) })
	}
}

// TestUnstarted: a pull says why no wire mover started, at this end, and at the other that it
// was a mover; nobody has canceled anything.
func TestUnstarted(t *testing.T) {
	full := errors.New("no space left")
	for name, at := range map[string]func(*pair) *node{"here": func(p *pair) *node { return p.dst }, "there": func(p *pair) *node { return p.src }} {
		t.Run(name, func(t *testing.T) {
			p := newPair(t, 2)
			at(p).sync(func() { at(p).broken = full })
			p.pull(1)
			r := p.wait(t)
			if !errors.Is(r.err, transfer.ErrMover) || errors.Is(r.err, transfer.ErrCanceled) {
				t.Errorf("%v, want that of a mover", r.err)
			}
			if name == "here" && !errors.Is(r.err, full) {
				t.Errorf("%v: names no cause", r.err)
			}
			p.quiet(t)
		})
	}
}

// over has the wire movers that p starts be of a kind.
func (p *pair) over(t testing.TB, over string) *pair {
	if over == "nixl" {
		lib := need.NIXL(t)
		for _, n := range []*node{p.src, p.dst} {
			n.sync(func() { n.library = lib })
		}
	}
	return p
}

// start runs a wire mover within this process, and one of a library as a child.
func (n *node) start(ctx context.Context, r drive.Route, id staged.Incarnation, arena transfer.Memory, chunk int64) (drive.Mover, error) {
	if n.fails { // as the stage is closed, with a nil that is not the interface's
		close(n.failing)
		<-ctx.Done()
		var none *mover.Wire
		return none, ctx.Err()
	}
	if n.broken != nil {
		return nil, n.broken
	}
	c := mover.WireConfig{Arena: arena, Setup: mover.Setup{Transport: r.Transport, Wire: id, Group: r.Group,
		Bytes: arena.Len, Chunk: chunk, Listen: "127.0.0.1:0"}}
	var w *mover.Wire
	var err error
	if n.library == "" {
		w, err = mover.WireInProcess(ctx, c, func(s mover.Setup, b []byte) (staged.Wire, error) {
			w, err := open(s, b)
			if err == nil && n.fetch != nil {
				return odd{w, b, chunk, n.fetch}, nil
			}
			return &standing{w, n.stands}, err
		})
	} else {
		c.Command, c.Env, c.Setup.Transport = []string{os.Args[0]}, append(os.Environ(), envChild+"=wire", "GORACE=atexit_sleep_ms=0"), n.library
		w, err = mover.StartWire(ctx, c)
	}
	if err != nil {
		return nil, err
	}
	n.pid <- w
	if n.mute {
		return mute{w}, nil
	}
	return w, nil
}

// mute takes offers and says nothing.
type mute struct{ drive.Mover }

// Expose implements drive.Mover.
func (mute) Expose(staged.Exposed, func(error)) {}

func (n *node) kill(t testing.TB) {
	t.Helper()
	select {
	case m := <-n.pid:
		m.Kill(errors.New("by the test"))
	case <-t.Context().Done():
		t.Fatal("no wire mover was started")
	}
}
