package plane

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/batonkv/baton/cmd/dev/servers"
	"github.com/batonkv/baton/plugins/adapter/dynamo/wire"
	"github.com/batonkv/baton/sidecar/handoff"
)

// startNATS starts a server and gives what connects to it.
func startNATS(t *testing.T) func() *nats.Conn {
	n, err := servers.StartNATS(t.Context(), servers.NATSConfig{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(n.Stop)
	return func() *nats.Conn {
		nc, err := nats.Connect(n.URL())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(nc.Close)
		return nc
	}
}

// request is one over NATS that is answered at an address.
func request(t *testing.T, address string, body []byte) []byte {
	t.Helper()
	ctl, err := wire.NewControl("id", wire.JSON, address, "subject")
	if err != nil {
		t.Fatal(err)
	}
	text, err := wire.JSON.Encode(ctl)
	if err != nil {
		t.Fatal(err)
	}
	return wire.AppendTwoPart(nil, wire.TwoPart{Header: text, Body: body})
}

// TestOneAckEachOverNATS: whatever comes has one answer, refused ones hold no bytes, and what asks
// for no answer is no call.
func TestOneAckEachOverNATS(t *testing.T) {
	n := startNATS(t)
	s, home, nc, ctx := serve(t, Config{NATS: n(), Bytes: 64 << 10}), listenTest(t), n(), ctxOf(t)
	ran := make(chan string, 8)
	handle(t, s, "ns_c.e-1", func(_ context.Context, c Call, _ *Stream) error {
		ran <- string(c.Body)
		return nil
	})
	here := home.Addr().String()
	inbox := nats.NewInbox()
	acks, err := nc.SubscribeSync(inbox)
	if err != nil {
		t.Fatal(err)
	}
	good := request(t, here, []byte("{}"))
	if err := nc.Publish("ns_c.e-1", request(t, here, []byte("no reply"))); err != nil {
		t.Fatal(err)
	}
	for _, k := range []struct {
		data []byte
		want string
	}{
		{good, ""},
		{good[:len(good)-1], Unavailable},
		{append(good[:len(good):len(good)], 0), Unavailable},
		{nil, Unavailable},
		{wire.AppendTwoPart(nil, wire.TwoPart{Header: []byte("{")}), Unavailable + "control: "},
		{request(t, "192.0.2.77:9", nil), Unavailable + "calls over NATS may be answered"},
		{request(t, here, make([]byte, 64<<10)), Overloaded + "requests have 65536 bytes together"},
		{good, ""},
	} {
		if err := nc.PublishRequest("ns_c.e-1", inbox, k.data); err != nil {
			t.Fatal(err)
		}
		m, err := acks.NextMsgWithContext(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if got := string(m.Data); !strings.HasPrefix(got, k.want) || (got == "") != (k.want == "") {
			t.Errorf("%q, want %q", got, k.want)
		}
	}
	for range 2 {
		in, err := home.Accept()
		if err != nil {
			t.Fatal(err)
		}
		if got := <-ran; got != "{}" {
			t.Errorf("%q ran", got)
		}
		in.Close()
	}
	s.Close(ctx)
	if left := s.bytes.left.Load(); left != 64<<10 {
		t.Errorf("%d bytes are left", left)
	}
	if pending, _, err := acks.Pending(); err != nil || pending != 0 {
		t.Errorf("%d answers more, %v", pending, err)
	}
}

// TestDrainOverNATS: a server that drains refuses at once, until what runs has ended; a path that
// was dropped has nobody.
func TestDrainOverNATS(t *testing.T) {
	n := startNATS(t)
	s, c, ctx := serve(t, Config{NATS: n()}), client(t, OverNATS(n(), netip.Addr{})), ctxOf(t)
	handle(t, s, "gone", modes)
	handle(t, s, "gone", modes)
	s.Drop("gone")
	s.flush()
	in, out := make(chan struct{}), make(chan struct{})
	handle(t, s, "e", func(context.Context, Call, *Stream) error {
		close(in)
		<-out
		return nil
	})
	done, closed := make(chan error), make(chan struct{})
	go func() {
		_, err := all(ctx, c, target(s, "e", wire.JSON), ask{})
		done <- err
	}()
	<-in
	if _, err := c.Call(ctx, target(s, "gone", wire.JSON), ask{}); !errors.Is(err, nats.ErrNoResponders) || !errors.Is(err, handoff.ErrPeer) {
		t.Errorf("a path that was dropped: %v", err)
	}
	go func() {
		s.Close(ctx)
		close(closed)
	}()
	for s.enter() { // until it drains
		s.accept.Done()
	}
	if _, err := c.Call(ctx, target(s, "e", wire.JSON), ask{}); !errors.Is(err, handoff.ErrPeer) || !strings.Contains(err.Error(), Unavailable+"draining") {
		t.Errorf("a server that drains: %v", err)
	}
	close(out)
	if err := <-done; err != nil {
		t.Error(err)
	}
	<-closed
	if _, err := c.Call(ctx, target(s, "e", wire.JSON), ask{}); !errors.Is(err, nats.ErrNoResponders) {
		t.Errorf("a server that has ended: %v", err)
	}
	if err := s.Handle("e", modes); err == nil {
		t.Error("a server that has ended serves")
	}
}

// TestClientsOverNATS: what a client cannot send, or nobody acknowledges, ends with what it means.
func TestClientsOverNATS(t *testing.T) {
	n := startNATS(t)
	c, plain, ctx := client(t, OverNATS(n(), netip.Addr{})), client(t), ctxOf(t)
	to := Target{"", "e", wire.JSON}
	if _, err := plain.Call(ctx, to, ask{}); !errors.Is(err, handoff.ErrPeer) || !strings.Contains(err.Error(), "request-plane: nats") {
		t.Errorf("a client that has no NATS: %v", err)
	}
	if _, err := c.Call(ctx, to, ask{Mode: strings.Repeat("x", 2<<20)}); !errors.Is(err, handoff.ErrBound) {
		t.Errorf("a request over NATS's own bound: %v", err)
	}
	silent, end := context.WithCancel(ctx)
	if _, err := n().Subscribe("e", func(*nats.Msg) { end() }); err != nil {
		t.Fatal(err)
	}
	var err error
	for errors.Is(err, nats.ErrNoResponders) || err == nil { // until the subscription is there
		_, err = c.Call(silent, to, ask{})
	}
	if !errors.Is(err, handoff.ErrDeadline) || !errors.Is(err, context.Canceled) {
		t.Errorf("a worker that does not acknowledge: %v", err)
	}
}
