package e2e

import (
	"context"
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/batonkv/baton/cmd/dev"
	"github.com/batonkv/baton/discovery"
	"github.com/batonkv/baton/examples/engine"
	"github.com/batonkv/baton/sidecar/certs"
	"github.com/batonkv/baton/sidecar/handoff"
	"github.com/batonkv/baton/sidecar/peer"
)

// stranger is a process of the test that speaks the peer protocol with a certificate of
// its own. Its sessions are told of on one channel, in order.
type stranger struct {
	*peer.Server
	t        *testing.T
	self     handoff.Member
	geometry handoff.Geometry
	heard    chan heard
}

// heard is a session that came up (no message, no error), a message, or an end.
type heard struct {
	s   *peer.Session
	msg handoff.PeerMessage
	err error
	end bool
}

func (x *stranger) Up(s *peer.Session) { x.heard <- heard{s: s} }
func (x *stranger) Message(s *peer.Session, m handoff.PeerMessage) {
	x.heard <- heard{s: s, msg: m}
}
func (x *stranger) Down(s *peer.Session, err error) { x.heard <- heard{s: s, err: err, end: true} }

// stranger starts one that calls itself self and shows the certificate of id, by the
// cluster's CA or by ca.
func (w *world) stranger(self handoff.Member, id certs.Identity, ca *certs.CA) *stranger {
	w.t.Helper()
	if ca == nil {
		var err error
		if ca, err = certs.ReadCA(filepath.Join(w.Dir, "certs")); err != nil {
			w.t.Fatal(err)
		}
	}
	pair, err := ca.Leaf(certs.LeafConfig{Identity: id, IPs: []net.IP{net.IPv4(127, 0, 0, 1)}, At: time.Now()})
	if err != nil {
		w.t.Fatal(err)
	}
	own, err := pair.Identified(ca.Cert, time.Now())
	if err != nil {
		w.t.Fatal(err)
	}
	x := &stranger{t: w.t, self: self, heard: make(chan heard, 4096)}
	trusting := own.Client(nil)
	trusting.VerifyConnection = nil // it talks to whoever answers
	if x.Server, err = peer.Listen(peer.Config{Self: self, Host: "elsewhere", Listen: "127.0.0.1:0", Server: own.Server(nil), Client: trusting}, x); err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		_ = x.Close(ctx)
	})
	g := &dev.Running{Group: dev.Group{Name: self.Group, Role: discovery.Decode, TP: 1}, Instance: 5}
	r, err := engine.New(engineConfig(g, 0, w.model))
	if err != nil {
		w.t.Fatal(err)
	}
	defer r.Close()
	a := r.Attach()
	x.geometry = handoff.Geometry{Group: self.Group, Instance: a.Instance, Model: a.Model.Layout, Shards: a.Shards, Members: []handoff.Member{self}}
	return x
}

// next waits for what comes.
func (x *stranger) next() heard {
	x.t.Helper()
	select {
	case h := <-x.heard:
		return h
	case <-bounded(x.t).Done():
		x.t.Fatal("the sidecar says nothing")
		return heard{}
	}
}

// enter dials a sidecar and returns the session, or why there is none.
func (x *stranger) enter(addr string, want handoff.Member) (*peer.Session, error) {
	x.t.Helper()
	x.Dial(addr, want)
	h := x.next()
	if h.end {
		return nil, h.err
	}
	return h.s, nil
}

// say sends words and returns all that is answered before the answer to a last one, that
// asks for buffers without a pin. Questions for the stranger's geometry are answered.
func (x *stranger) say(s *peer.Session, msgs ...handoff.PeerMessage) (out []handoff.PeerMessage) {
	x.t.Helper()
	ends := 0
	for _, m := range append(msgs, handoff.WantBuffers{}) {
		if _, ok := m.(handoff.WantBuffers); ok {
			ends++
		}
		if err := s.Send(m); err != nil {
			x.t.Fatal(err)
		}
	}
	for ends > 0 {
		h := x.next()
		if h.end {
			x.t.Fatalf("%T ended the session: %v", msgs, h.err)
		}
		switch m := h.msg.(type) {
		case handoff.WantGeometry:
			_ = s.Send(x.geometry)
			_ = s.Send(handoff.WantBuffers{}) // what waited for it is answered before this
			ends++
		case handoff.Buffers:
			if len(m.Cards) > 0 {
				x.t.Errorf("buffers for the asking: %+v", m)
			}
			ends--
		default:
			out = append(out, m)
		}
	}
	return out
}
