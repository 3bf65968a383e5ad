package plane

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/netip"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/batonkv/baton/plugins/adapter/dynamo/wire"
	"github.com/batonkv/baton/sidecar/handoff"
)

// TestBytesAreBounded: requests for whose bytes there is no room are refused and read past, in
// order, and those bytes come back when a call ends.
func TestBytesAreBounded(t *testing.T) {
	s, c, ctx := serve(t, Config{Bytes: 1 << 20}), client(t), ctxOf(t)
	in, out := make(chan struct{}), make(chan struct{})
	handle(t, s, "e", func(context.Context, Call, *Stream) error {
		in <- struct{}{}
		<-out
		return nil
	})
	large := ask{Mode: strings.Repeat("x", 700<<10)}
	for range 3 {
		done := make(chan error)
		go func() {
			_, err := all(ctx, c, target(s, "e", wire.JSON), large)
			done <- err
		}()
		select {
		case <-in:
		case err := <-done:
			t.Fatal(err)
		}
		if _, err := c.Call(ctx, target(s, "e", wire.JSON), large); !errors.Is(err, handoff.ErrCapacity) || !strings.Contains(err.Error(), "1048576 bytes together") {
			t.Errorf("a second large request: %v", err)
		}
		out <- struct{}{}
		if err := <-done; err != nil {
			t.Error(err)
		}
		for s.bytes.left.Load() != 1<<20 { // soon after the answer
			if runtime.Gosched(); ctx.Err() != nil {
				t.Fatalf("%d bytes are left", s.bytes.left.Load())
			}
		}
	}
	broken, err := wire.AppendFrame(nil, wire.Frame{Path: "x", Control: []byte("{"), Body: make([]byte, 700<<10)})
	if err != nil {
		t.Fatal(err)
	}
	conn := dialTest(t, s.Addr().String())
	for range 2 { // what is refused for another reason holds nothing either
		if _, err := conn.Write(broken); err != nil {
			t.Fatal(err)
		}
		if got, err := wire.ReadAck(conn); err != nil || !strings.HasPrefix(got, Unavailable) {
			t.Errorf("%q, %v", got, err)
		}
	}
	if _, err := conn.Write(broken[:len(broken)-1]); err != nil {
		t.Fatal(err)
	}
	conn.Close()
	for s.bytes.left.Load() != 1<<20 {
		if runtime.Gosched(); ctx.Err() != nil {
			t.Fatalf("%d bytes are left after a request that did not end", s.bytes.left.Load())
		}
	}
}

// TestOneAckEach sends requests at once, good and bad ones: each has its answer, in order.
func TestOneAckEach(t *testing.T) {
	s, home := serve(t, Config{}), listenTest(t)
	handle(t, s, "e", modes)
	request := func(path, address string) []byte {
		ctl, err := wire.NewControl("id", wire.JSON, address, "subject")
		if err != nil {
			t.Fatal(err)
		}
		text, err := wire.JSON.Encode(ctl)
		if err != nil {
			t.Fatal(err)
		}
		f, err := wire.AppendFrame(nil, wire.Frame{Path: path, Control: text, Body: []byte(`{"mode":"ok"}`)})
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	broken, err := wire.AppendFrame(nil, wire.Frame{Path: "e", Control: []byte("{"), Body: []byte("{}")})
	if err != nil {
		t.Fatal(err)
	}
	here := home.Addr().String()
	c := dialTest(t, s.Addr().String())
	if _, err := c.Write(bytes.Join([][]byte{request("e", here), request("x", here), broken, request("e", "192.0.2.77:9"), request("e", here)}, nil)); err != nil {
		t.Fatal(err)
	}
	for n, want := range []string{"", Unavailable + `unknown endpoint "x"`, Unavailable + "control: ", Unavailable + "calls from 127.0.0.1 may be answered", ""} {
		got, err := wire.ReadAck(c)
		if err != nil || !strings.HasPrefix(got, want) || (got == "") != (want == "") {
			t.Errorf("answer %d: %q, %v, want %q", n, got, err, want)
		}
	}
	for range 2 {
		in, err := home.Accept()
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(in)
		if !bytes.HasSuffix(b, wire.AppendFinal(nil, wire.JSON)) {
			t.Errorf("%q, %v", b, err)
		}
		in.Close()
	}
}

// TestFloodIsBounded: connections over the bound are closed, and a frame over its bound
// ends its connection.
func TestFloodIsBounded(t *testing.T) {
	s := serve(t, Config{Connections: 1})
	first := dialTest(t, s.Addr().String())
	if _, err := first.Write([]byte{0xff}); err != nil { // it has been taken when the second is
		t.Fatal(err)
	}
	more := dialTest(t, s.Addr().String())
	if _, err := more.Read(make([]byte, 1)); err == nil {
		t.Error("the second connection is served")
	}
	if _, err := first.Write([]byte{0xff}); err != nil {
		t.Fatal(err)
	}
	if n, err := io.Copy(io.Discard, first); n != 0 {
		t.Errorf("%d bytes, %v", n, err)
	}
}

func TestHomes(t *testing.T) {
	s := serve(t, Config{Homes: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")}})
	for _, c := range []struct {
		to, from string
		want     bool
	}{{"127.0.0.1", "127.0.0.1", true}, {"9.9.9.9", "9.9.9.9", true}, {"10.1.2.3", "9.9.9.9", true}, {"10.2.0.1", "9.9.9.9", false},
		{"127.0.0.1", "9.9.9.9", false}, {"169.254.169.254", "127.0.0.1", false}} {
		if got := s.callsHome(netip.MustParseAddr(c.to), netip.MustParseAddr(c.from)); got != c.want {
			t.Errorf("%s for %s: %v", c.to, c.from, got)
		}
	}
	for to, want := range map[string]bool{"127.0.0.1": true, "10.1.2.3": true, "9.9.9.9": false, "169.254.169.254": false} {
		if got := s.callsHome(netip.MustParseAddr(to), netip.Addr{}); got != want {
			t.Errorf("%s for a caller over NATS: %v", to, got)
		}
	}
	for _, own := range s.own {
		if !s.callsHome(own, netip.MustParseAddr("127.0.0.1")) {
			t.Errorf("own address %v is refused to a caller of this host", own)
		}
	}
}

func TestOverloaded(t *testing.T) {
	n := startNATS(t)
	for name, cfg := range map[string]Config{"tcp": {Calls: 1}, "nats": {Calls: 1, NATS: n()}} {
		t.Run(name, func(t *testing.T) { overloaded(t, serve(t, cfg), client(t, OverNATS(n(), netip.Addr{}))) })
	}
}

func overloaded(t *testing.T, s *Server, c *Client) {
	ctx := ctxOf(t)
	in, out := make(chan struct{}), make(chan struct{})
	handle(t, s, "e", func(context.Context, Call, *Stream) error {
		close(in)
		<-out
		return nil
	})
	done := make(chan error)
	go func() {
		_, err := all(ctx, c, target(s, "e", wire.JSON), ask{})
		done <- err
	}()
	<-in
	if _, err := c.Call(ctx, target(s, "e", wire.JSON), ask{}); !errors.Is(err, handoff.ErrCapacity) {
		t.Error(err)
	}
	close(out)
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestNoCallLasts: a handler that waits for ever is told to end, and its caller hears why.
func TestNoCallLasts(t *testing.T) {
	s, c, ctx := serve(t, Config{Longest: time.Millisecond}), client(t), ctxOf(t)
	handle(t, s, "e", func(ctx context.Context, _ Call, _ *Stream) error {
		<-ctx.Done()
		return context.Cause(ctx)
	})
	_, err := all(ctx, c, target(s, "e", wire.JSON), ask{})
	if f, ok := errors.AsType[*wire.Fault](err); !ok || !strings.Contains(f.Message, "longer than 1ms") {
		t.Error(err)
	}
}
