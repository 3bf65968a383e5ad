package peer_test

import (
	"testing"

	"github.com/batonkv/baton/sidecar/handoff"
	"github.com/batonkv/baton/sidecar/internal/certtest"
	"github.com/batonkv/baton/sidecar/peer"
)

// echo answers Check with Checked, and tells of Up and Checked.
type echo struct {
	up, back chan *peer.Session
}

func (e echo) Up(s *peer.Session) { e.up <- s }
func (e echo) Message(s *peer.Session, m handoff.PeerMessage) {
	if c, ok := m.(handoff.Check); ok {
		_ = s.Send(handoff.Checked{Check: c, Held: true})
		return
	}
	e.back <- s
}
func (e echo) Down(*peer.Session, error) {}

// BenchmarkRoundTrip is Check and Checked over one session, mutual TLS on loopback.
func BenchmarkRoundTrip(b *testing.B) {
	ca := certtest.New(b)
	var ends [2]*peer.Server
	h := echo{make(chan *peer.Session, 2), make(chan *peer.Session, 1)}
	for i := range ends {
		server, client := ca.Configs(b, "baton://c/t/g/0")
		s, err := peer.Listen(peer.Config{Self: handoff.Member{Group: "g", Incarnation: handoff.Incarnation(i + 1)},
			Listen: "127.0.0.1:0", Server: server, Client: client}, h)
		if err != nil {
			b.Fatal(err)
		}
		defer s.Close(b.Context())
		ends[i] = s
	}
	ends[0].Dial(ends[1].Addr(), handoff.Member{Group: "g", Incarnation: 2})
	s := <-h.up
	if !s.Dialed() {
		s = <-h.up
	}
	for b.Loop() {
		if err := s.Send(handoff.Check{Pin: 1}); err != nil {
			b.Fatal(err)
		}
		<-h.back
	}
}
