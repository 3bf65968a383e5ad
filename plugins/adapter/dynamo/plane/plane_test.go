package plane

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/batonkv/baton/plugins/adapter/dynamo/wire"
	"github.com/batonkv/baton/sidecar/handoff"
)

type ask struct {
	Mode string `json:"mode"`
	Size int    `json:"size,omitempty"`
}

type reply struct {
	N    int    `json:"n"`
	Text string `json:"text,omitempty"`
}

const limit = time.Minute // of a test's waits: a fault, not a measure

func ctxOf(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	return ctx
}

func serve(t *testing.T, cfg Config) *Server {
	cfg.Listen, cfg.Log = "127.0.0.1:0", slog.New(slog.NewTextHandler(t.Output(), nil))
	s, err := Serve(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		defer cancel()
		s.Close(ctx)
	})
	return s
}

func client(t *testing.T, o ...Option) *Client {
	c, err := NewClient("127.0.0.1:0", o...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

func target(s *Server, path string, c wire.Codec) Target {
	if s.cfg.NATS != nil {
		return Target{"", path, c}
	}
	return Target{s.Addr().String(), path, c}
}

// handle serves path.
func handle(t *testing.T, s *Server, path string, h Handler) {
	t.Helper()
	if err := s.Handle(path, h); err != nil {
		t.Fatal(err)
	}
}

// planes has a test run over TCP and over NATS.
func planes(t *testing.T, test func(*testing.T, *Server, *Client)) {
	t.Run("tcp", func(t *testing.T) { test(t, serve(t, Config{}), client(t)) })
	t.Run("nats", func(t *testing.T) {
		n := startNATS(t)
		test(t, serve(t, Config{NATS: n()}), client(t, OverNATS(n(), netip.Addr{})))
	})
}

// modes answers as it is asked to.
func modes(_ context.Context, c Call, out *Stream) error {
	var a ask
	if err := c.Decode(&a); err != nil {
		return err
	}
	switch a.Mode {
	case "big":
		return out.Send(reply{Text: strings.Repeat("x", a.Size)})
	case "fault":
		return errors.Join(out.Send(reply{}), fmt.Errorf("deep: %w", Fault(wire.Conflict, "no %d", 7)))
	case "plain":
		return errors.New("plain")
	case "last":
		return out.Last(reply{N: 1})
	case "not last":
		return errors.Join(out.Last(reply{}), out.Send(reply{N: 1}), out.Last(reply{N: 2}), Fault(wire.Conflict, "no"))
	case "panic":
		panic("boom")
	}
	for n := range 3 {
		if err := out.Send(reply{N: n}); err != nil {
			return err
		}
	}
	return nil
}

// all reads an answer to its end.
func all(ctx context.Context, c *Client, t Target, body any) (got []reply, err error) {
	a, err := c.Call(ctx, t, body)
	if err != nil {
		return nil, err
	}
	defer a.Close()
	for {
		var r reply
		if err := a.Next(ctx, &r); err != nil {
			if errors.Is(err, io.EOF) {
				err = nil
			}
			return got, err
		}
		got = append(got, r)
	}
}

func TestCalls(t *testing.T) { planes(t, calls) }

func calls(t *testing.T, s *Server, c *Client) {
	ctx := ctxOf(t)
	handle(t, s, "e", modes)
	for _, codec := range []wire.Codec{wire.JSON, wire.Msgpack} {
		to := target(s, "e", codec)
		if got, err := all(ctx, c, to, ask{Mode: "ok"}); err != nil || len(got) != 3 || got[2].N != 2 {
			t.Errorf("%v: %+v, %v", codec, got, err)
		}
		if got, err := all(ctx, c, to, ask{Mode: "big", Size: 8 << 20}); err != nil || len(got) != 1 || len(got[0].Text) != 8<<20 {
			t.Errorf("%v: %d items, %v", codec, len(got), err)
		}
		if got, err := all(ctx, c, to, ask{Mode: "last"}); err != nil || len(got) != 1 || got[0].N != 1 {
			t.Errorf("%v: %+v, %v", codec, got, err)
		}
		if got, err := all(ctx, c, to, ask{Mode: "not last"}); err == nil || len(got) != 3 || got[1].N != 1 || got[2].N != 2 {
			t.Errorf("%v: %+v, %v", codec, got, err)
		}
		for mode, want := range map[string]wire.Fault{"fault": {Type: wire.Type{Name: wire.Unknown}, Class: wire.Conflict, Message: "no 7"},
			"plain": {Type: wire.Type{Name: wire.Unknown}, Message: "plain"}, "panic": {Type: wire.Type{Name: wire.Unknown}, Message: "endpoint panics"}} {
			_, err := all(ctx, c, to, ask{Mode: mode})
			if f, ok := errors.AsType[*wire.Fault](err); !ok || f.Type != want.Type || f.Class != want.Class || f.Message != want.Message {
				t.Errorf("%v %s: %v", codec, mode, err)
			}
		}
		_, err := all(ctx, c, to, "no object")
		if f, ok := errors.AsType[*wire.Fault](err); !ok || f.Type.Name != wire.InvalidArgument {
			t.Errorf("%v: %v", codec, err)
		}
	}
	if _, err := c.Call(ctx, target(s, "none", wire.JSON), ask{}); !errors.Is(err, handoff.ErrPeer) || !strings.Contains(err.Error(), "unknown endpoint") && s.cfg.NATS == nil {
		t.Error(err)
	}
	if _, err := all(ctx, c, target(s, "e", wire.JSON), ask{Mode: "big", Size: wire.MaxMessage}); err == nil {
		t.Error("an item over the bound was sent")
	}
}

func TestManyCallsAtOnce(t *testing.T) { planes(t, manyCalls) }

func manyCalls(t *testing.T, s *Server, c *Client) {
	ctx := ctxOf(t)
	const many = 200
	var in sync.WaitGroup // until all run
	in.Add(many)
	handle(t, s, "e", func(ctx context.Context, c Call, out *Stream) error {
		in.Done()
		in.Wait()
		return modes(ctx, c, out)
	})
	var wg sync.WaitGroup
	for range many {
		wg.Go(func() {
			if got, err := all(ctx, c, target(s, "e", wire.Msgpack), ask{}); err != nil || len(got) != 3 {
				t.Errorf("%d items, %v", len(got), err)
			}
		})
	}
	wg.Wait()
}

// TestCancel: the handler hears of a stop and of a caller that goes, with the cause.
func TestCancel(t *testing.T) { planes(t, cancels) }

func cancels(t *testing.T, s *Server, c *Client) {
	ctx := ctxOf(t)
	why := make(chan error, 1)
	handle(t, s, "e", func(ctx context.Context, _ Call, out *Stream) error {
		err := out.Send(reply{})
		<-ctx.Done()
		why <- context.Cause(ctx)
		return err
	})
	for _, codec := range []wire.Codec{wire.JSON, wire.Msgpack} {
		for name, how := range map[string]struct {
			do   func(*Answer) error
			want error
		}{"stop": {(*Answer).Stop, ErrStopped}, "close": {func(a *Answer) error { a.Close(); return nil }, ErrKilled},
			"gone": {func(a *Answer) error { return a.conn.Close() }, ErrKilled}} {
			a, err := c.Call(ctx, target(s, "e", codec), ask{})
			var r reply
			if err == nil {
				err = a.Next(ctx, &r)
			}
			if err != nil {
				t.Fatal(name, err)
			}
			if err := how.do(a); err != nil {
				t.Fatal(name, err)
			}
			if err := <-why; !errors.Is(err, how.want) {
				t.Errorf("%s: %v, want %v", name, err, how.want)
			}
			if name == "stop" {
				if err := a.Next(ctx, &r); !errors.Is(err, io.EOF) {
					t.Errorf("after a stop: %v", err)
				}
			}
			a.Close()
		}
	}
}

func listenTest(t *testing.T) net.Listener {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	return ln
}

func dialTest(t *testing.T, addr string) net.Conn {
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if err := c.SetDeadline(time.Now().Add(limit)); err != nil {
		t.Fatal(err)
	}
	return c
}

// TestClose: an orderly end waits for what runs, a hard one ends it.
func TestClose(t *testing.T) {
	for _, hard := range []bool{false, true} {
		s, c, ctx := serve(t, Config{}), client(t), ctxOf(t)
		in, out := make(chan struct{}), make(chan struct{})
		handle(t, s, "e", func(ctx context.Context, _ Call, st *Stream) error {
			close(in)
			select {
			case <-out:
				return st.Send(reply{N: 1})
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		})
		got := make(chan error)
		go func() {
			r, err := all(ctx, c, target(s, "e", wire.JSON), ask{})
			if err == nil && len(r) != 1 {
				err = fmt.Errorf("%d items", len(r))
			}
			got <- err
		}()
		<-in
		end, cancel := context.WithCancel(ctx)
		if hard {
			cancel()
		}
		closed := make(chan struct{})
		go func() { s.Close(end); close(closed) }()
		if !hard {
			close(out)
		}
		err := <-got
		if f, ok := errors.AsType[*wire.Fault](err); hard && (!ok || f.Message != ErrClosed.Error()) || !hard && err != nil {
			t.Errorf("hard %v: %v", hard, err)
		}
		<-closed
		cancel()
		if _, err := c.Call(ctx, target(s, "e", wire.JSON), ask{}); !errors.Is(err, handoff.ErrPeer) {
			t.Errorf("after the end: %v", err)
		}
	}
}
