package peer_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	peerv1 "github.com/batonkv/baton/proto/peer/v1"
	"github.com/batonkv/baton/proto/pump"
	"github.com/batonkv/baton/sidecar/handoff"
	"github.com/batonkv/baton/sidecar/internal/certtest"
	"github.com/batonkv/baton/sidecar/peer"
	"github.com/batonkv/baton/transfer/choice"
)

type event struct {
	kind string // "up", "message", "down"
	s    *peer.Session
	m    handoff.PeerMessage
	err  error
}

type handler chan event

func (h handler) Up(s *peer.Session) { h <- event{kind: "up", s: s} }
func (h handler) Message(s *peer.Session, m handoff.PeerMessage) {
	h <- event{kind: "message", s: s, m: m}
}
func (h handler) Down(s *peer.Session, err error) { h <- event{kind: "down", s: s, err: err} }

func (h handler) next(t *testing.T, kind string) event {
	t.Helper()
	e := <-h
	if e.kind != kind {
		t.Fatalf("got %+v, want %s", e, kind)
	}
	return e
}

// node is one sidecar with the identity baton/t/<group>.
type node struct {
	*peer.Server
	handler
	self handoff.Member
}

func start(t *testing.T, ca *certtest.CA, group string, limits peer.Limits) node {
	t.Helper()
	server, client := ca.Configs(t, "baton://c/t/"+group+"/0")
	n := node{handler: make(handler, 4096), self: handoff.Member{Group: group, Incarnation: handoff.Incarnation(len(group) + 40)}}
	s, err := peer.Listen(peer.Config{Self: n.self, Host: "host-" + group, End: choice.End{Offers: []choice.Offer{{Name: "tcp", Missing: "of " + group}}}, Listen: "127.0.0.1:0",
		Server: server, Client: client, Limits: limits}, n.handler)
	if err != nil {
		t.Fatal(err)
	}
	n.Server = s
	t.Cleanup(func() { shut(t, s) })
	return n
}

func shut(t *testing.T, s *peer.Server) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	_ = s.Close(ctx)
	if ctx.Err() != nil {
		t.Error("the server did not close in order")
	}
}

// connect dials from a to b and returns both ends.
func connect(t *testing.T, a, b node) (*peer.Session, *peer.Session) {
	t.Helper()
	a.Dial(b.Addr(), b.self)
	return a.next(t, "up").s, b.next(t, "up").s
}

func TestSession(t *testing.T) {
	ca := certtest.New(t)
	a, b := start(t, ca, "prefill", peer.Limits{}), start(t, ca, "decode", peer.Limits{})
	sa, sb := connect(t, a, b)
	if sa.Peer() != b.self || sb.Peer() != a.self || !sa.Dialed() || sb.Dialed() {
		t.Fatalf("%v %v, %v %v", sa.Peer(), sa.Dialed(), sb.Peer(), sb.Dialed())
	}
	if sa.Identity() != "baton://c/t/decode/0" || sb.Identity() != "baton://c/t/prefill/0" {
		t.Fatalf("identities %q, %q", sa.Identity(), sb.Identity())
	}
	if e := sa.End(); e.Host != "host-decode" || e.Name != "decode/0" || len(e.Offers) != 1 || e.Offers[0].Missing != "of decode" || sb.End().Host != "host-prefill" {
		t.Fatalf("ends %+v, %+v", e, sb.End())
	}
	open := handoff.Open{ID: handoff.ID{Group: "decode", N: 3}, Key: handoff.Key{9}, Attempt: 1}
	opened := handoff.Opened{ID: open.ID, Attempt: 1, Status: handoff.OK, Pins: []handoff.PinInfo{{Blocks: []int32{1, 2}, Slot: -1}}}
	for range 3 {
		if err := errors.Join(sa.Send(open), sb.Send(opened)); err != nil {
			t.Fatal(err)
		}
	}
	for range 3 {
		if e := b.next(t, "message"); e.s != sb || !reflect.DeepEqual(e.m, open) {
			t.Fatalf("got %+v", e)
		}
		if e := a.next(t, "message"); e.s != sa || !reflect.DeepEqual(e.m, opened) {
			t.Fatalf("got %+v", e)
		}
	}
	want := map[string]uint64{"sent.Open": 3, "received.Opened": 3}
	if got := a.Counts(); !reflect.DeepEqual(got, want) {
		t.Errorf("counts %v, want %v", got, want)
	}
	if err := sa.Send(handoff.Open{ID: handoff.ID{Group: strings.Repeat("x", 300)}}); !errors.Is(err, handoff.ErrBound) {
		t.Errorf("oversized: %v", err)
	}
	if err := sa.Send(open); err != nil {
		t.Fatal(err)
	}
	sa.Close(nil)
	if e := b.next(t, "message"); !reflect.DeepEqual(e.m, open) {
		t.Fatalf("Close lost what was queued: %+v", e)
	}
	if e := b.next(t, "down"); e.err != nil {
		t.Fatalf("an ordinary end became %v", e.err)
	}
	if e := a.next(t, "down"); e.err != nil || e.s != sa {
		t.Fatalf("an ordinary end became %v", e.err)
	}
	if err := sa.Send(open); !errors.Is(err, pump.ErrClosed) {
		t.Fatalf("send after the end: %v", err)
	}
}

func TestCloseTellsTheReason(t *testing.T) {
	ca := certtest.New(t)
	a, b := start(t, ca, "prefill", peer.Limits{}), start(t, ca, "decode", peer.Limits{})
	_, sb := connect(t, a, b)
	sb.Close(fmt.Errorf("%w: another model", handoff.ErrModel))
	if e := a.next(t, "down"); !errors.Is(e.err, handoff.ErrModel) || !errors.Is(e.err, handoff.ErrPeer) {
		t.Errorf("got %v", e.err)
	}
	if e := b.next(t, "down"); !errors.Is(e.err, handoff.ErrModel) {
		t.Errorf("got %v", e.err)
	}
	sa, sb := connect(t, a, b)
	_ = sa
	shut(t, b.Server)
	if e := a.next(t, "down"); !errors.Is(e.err, handoff.ErrPeer) {
		t.Errorf("peer stopped: %v", e.err)
	}
	if e := b.next(t, "down"); e.s != sb {
		t.Errorf("got %+v", e)
	}
}

func TestDialFails(t *testing.T) {
	ca := certtest.New(t)
	a, b := start(t, ca, "prefill", peer.Limits{}), start(t, ca, "decode", peer.Limits{})
	stranger := start(t, certtest.New(t), "decode", peer.Limits{})
	restarted := b.self
	restarted.Incarnation++
	for name, c := range map[string]struct {
		addr string
		want handoff.Member
		text string
	}{
		"other incarnation": {b.Addr(), restarted, "is wanted"},
		"other CA":          {stranger.Addr(), stranger.self, "certificate"},
		"nobody":            {"127.0.0.1:1", b.self, "127.0.0.1:1"},
		"no address":        {"nonsense", b.self, "nonsense"},
	} {
		t.Run(name, func(t *testing.T) {
			a.Dial(c.addr, c.want)
			e := a.next(t, "down")
			if !errors.Is(e.err, handoff.ErrPeer) || !strings.Contains(e.err.Error(), c.text) || e.s.Peer() != c.want {
				t.Fatalf("got %v for %v", e.err, e.s.Peer())
			}
		})
	}
	if len(b.handler)+len(stranger.handler) != 0 {
		t.Error("a refused session reached the handler")
	}
}

// said takes a log's lines.
type said chan string

func (s said) Write(b []byte) (int, error) {
	s <- string(b)
	return len(b), nil
}

// TestRefusedIsNamed: the log of a sidecar that another takes for its predecessor says who that is.
func TestRefusedIsNamed(t *testing.T) {
	ca, log := certtest.New(t), make(said, 16)
	a := start(t, ca, "prefill", peer.Limits{})
	server, client := ca.Configs(t, "baton://c/t/decode/0")
	self := handoff.Member{Group: "decode", Incarnation: 2}
	b, err := peer.Listen(peer.Config{Self: self, Host: "h", Listen: "127.0.0.1:0", Server: server, Client: client,
		Log: slog.New(slog.NewTextHandler(log, nil))}, make(handler, 16))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { shut(t, b) })
	a.Dial(b.Addr(), handoff.Member{Group: "decode", Incarnation: 1})
	a.next(t, "down")
	if line := <-log; !strings.Contains(line, "refused") || !strings.Contains(line, "peer="+a.self.String()) || !strings.Contains(line, "decode/0@1 is wanted") {
		t.Error(line)
	}
}

// raw opens a stream without the package's own dialer.
func raw(t *testing.T, ca *certtest.CA, b node) peerv1.Peer_SessionClient {
	t.Helper()
	_, client := ca.Configs(t, "baton://c/t/raw/0")
	conn, err := grpc.NewClient("passthrough:///"+b.Addr(), grpc.WithTransportCredentials(credentials.NewTLS(client)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	s, err := peerv1.NewPeerClient(conn).Session(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestSilentOrRudePeer(t *testing.T) {
	ca := certtest.New(t)
	b := start(t, ca, "decode", peer.Limits{Handshake: 50 * time.Millisecond})
	if _, err := raw(t, ca, b).Recv(); err == nil || !strings.Contains(err.Error(), "no hello") {
		t.Errorf("silent: %v", err)
	}
	b = start(t, ca, "decode", peer.Limits{})
	for name, m := range map[string]*peerv1.PeerMessage{
		"empty":          {},
		"message first":  {Message: &peerv1.PeerMessage_Done{}},
		"nameless hello": {Message: &peerv1.PeerMessage_Hello{Hello: &peerv1.Hello{}}},
	} {
		s := raw(t, ca, b)
		if err := s.Send(m); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Recv(); err == nil || !strings.Contains(err.Error(), "over a limit") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if len(b.handler) != 0 {
		t.Error("a refused session reached the handler")
	}
}

func TestSlowPeerIsCutOff(t *testing.T) {
	ca := certtest.New(t)
	a, b := start(t, ca, "prefill", peer.Limits{Queue: 2}), node{handler: make(handler), self: handoff.Member{Group: "slow", Incarnation: 1}}
	server, client := ca.Configs(t, "baton://c/t/slow/0")
	var err error
	// Its handler takes one event at a time, so its reader stops and the windows fill.
	if b.Server, err = peer.Listen(peer.Config{Self: b.self, Listen: "127.0.0.1:0", Server: server, Client: client}, b.handler); err != nil {
		t.Fatal(err)
	}
	a.Dial(b.Addr(), b.self)
	sa := a.next(t, "up").s
	big := handoff.PinInfo{Blocks: make([]int32, 1<<19), Slot: -1}
	for i := 0; err == nil; i++ {
		if i > 1000 {
			t.Fatal("never full")
		}
		err = sa.Send(handoff.Pinned{Label: "r", Pin: big})
	}
	if !errors.Is(err, pump.ErrFull) {
		t.Fatalf("got %v", err)
	}
	if e := a.next(t, "down"); !errors.Is(e.err, pump.ErrFull) {
		t.Fatalf("got %v", e.err)
	}
	done := make(chan struct{})
	go func() {
		for e := range b.handler {
			if e.kind == "down" {
				close(done)
				return
			}
		}
	}()
	<-done
	shut(t, b.Server)
}

func TestConfigIsChecked(t *testing.T) {
	server, client := certtest.New(t).Configs(t, "baton://c/t/g/0")
	good := peer.Config{Self: handoff.Member{Group: "g", Incarnation: 1}, Listen: "127.0.0.1:0", Server: server, Client: client}
	if err := good.Check(); err != nil {
		t.Fatal(err)
	}
	open := server.Clone()
	open.ClientAuth = tls.RequestClientCert
	old := client.Clone()
	old.MinVersion = tls.VersionTLS12
	for name, change := range map[string]func(*peer.Config){
		"self":   func(c *peer.Config) { c.Self.Incarnation = 0 },
		"listen": func(c *peer.Config) { c.Listen = "" },
		"tls":    func(c *peer.Config) { c.Server = nil },
		"verify": func(c *peer.Config) { c.Server = open },
		"1.3":    func(c *peer.Config) { c.Client = old },
		"limits": func(c *peer.Config) { c.Limits.Queue = -1 },
	} {
		c := good
		change(&c)
		if _, err := peer.Listen(c, make(handler)); !errors.Is(err, peer.ErrConfig) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
