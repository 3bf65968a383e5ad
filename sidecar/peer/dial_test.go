package peer_test

import (
	"errors"
	"net"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/batonkv/baton/proto/codec"
	peerv1 "github.com/batonkv/baton/proto/peer/v1"
	"github.com/batonkv/baton/sidecar/handoff"
	"github.com/batonkv/baton/sidecar/internal/certtest"
	"github.com/batonkv/baton/sidecar/peer"
)

// impostor answers every Hello with its own name, whomever the dialer wants.
type impostor struct {
	peerv1.UnimplementedPeerServer
	self handoff.Member
}

func (s impostor) Session(stream peerv1.Peer_SessionServer) error {
	if _, err := stream.Recv(); err != nil {
		return err
	}
	p, err := codec.EncodeHello(codec.Hello{Self: s.self})
	if err == nil {
		err = stream.Send(p)
	}
	<-stream.Context().Done()
	return err
}

// TestDialerChecksWhoAnswers: the dialed side may be wrong about whom it was asked for.
func TestDialerChecksWhoAnswers(t *testing.T) {
	ca := certtest.New(t)
	a := start(t, ca, "prefill", peer.Limits{})
	want := handoff.Member{Group: "decode", Rank: 1, Incarnation: 5}
	other := want
	other.Incarnation++
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	config, _ := ca.Configs(t, "baton://c/t/decode/1")
	s := grpc.NewServer(grpc.Creds(credentials.NewTLS(config)))
	peerv1.RegisterPeerServer(s, impostor{self: other})
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Serve(l)
	}()
	defer func() {
		s.Stop()
		<-done
	}()
	a.Dial(l.Addr().String(), want)
	e := a.next(t, "down")
	if !errors.Is(e.err, handoff.ErrPeer) || !strings.Contains(e.err.Error(), other.String()+" answers") {
		t.Fatalf("got %v", e.err)
	}
}
