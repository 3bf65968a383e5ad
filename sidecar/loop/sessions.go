package loop

import (
	"fmt"
	"slices"

	"github.com/batonkv/baton/sidecar/engine"
	"github.com/batonkv/baton/sidecar/handoff"
	"github.com/batonkv/baton/sidecar/machine"
	"github.com/batonkv/baton/sidecar/metrics"
	"github.com/batonkv/baton/sidecar/peer"
)

// Engines is the handler of the engine server.
type Engines struct{ s *Sidecar }

// Engines returns the handler to give to engine.Listen.
func (s *Sidecar) Engines() Engines { return Engines{s} }

// Attach numbers the session and lets the machine judge.
func (h Engines) Attach(es *engine.Session, a handoff.Attach) error {
	ok := h.s.post(func() {
		h.s.last++
		h.s.sessions[h.s.last], h.s.numbers[es] = es, h.s.last
		h.s.cfg.Metrics.Sessions(metrics.EngineSession, len(h.s.sessions))
		h.s.step(machine.FromEngine{Session: h.s.last, Msg: a})
	})
	if !ok {
		return fmt.Errorf("%w: the sidecar stops", handoff.ErrNotReady)
	}
	return nil
}

// Message passes one on.
func (h Engines) Message(es *engine.Session, msg handoff.FromEngine) {
	h.s.post(func() {
		if n, ok := h.s.numbers[es]; ok {
			h.s.step(machine.FromEngine{Session: n, Msg: msg})
		}
	})
}

// Closed forgets the session.
func (h Engines) Closed(es *engine.Session, err error) {
	h.s.post(func() {
		n, ok := h.s.numbers[es]
		if !ok {
			return
		}
		h.s.log.Info("engine session ended", "err", err)
		delete(h.s.numbers, es)
		delete(h.s.sessions, n)
		h.s.cfg.Metrics.Sessions(metrics.EngineSession, len(h.s.sessions))
		h.s.step(machine.EngineDown{Session: n})
	})
}

// Peers is the handler of the peer server.
type Peers struct{ s *Sidecar }

// Peers returns the handler to give to peer.Listen.
func (s *Sidecar) Peers() Peers { return Peers{s} }

// Up takes a session whose Hellos agree. Two sidecars that dial each other have two
// sessions, and send on the first. A peer that dials again has given up its last one,
// which may hang here until its keepalive ends: the new one takes its place.
func (h Peers) Up(ps *peer.Session) {
	p := ps.Peer()
	if err := h.s.check(ps); err != nil {
		h.s.log.Warn("peer refused", "peer", p, "err", err)
		h.s.post(func() {
			h.s.refused["Session"]++
			h.s.cfg.Metrics.Dropped(metrics.Forbidden)
		})
		ps.Close(err)
		return
	}
	h.s.post(func() {
		if slices.ContainsFunc(h.s.up[p], func(o *peer.Session) bool { return o.Dialed() == ps.Dialed() }) {
			h.s.lose(p, errReplaced)
		}
		h.s.up[p] = append(h.s.up[p], ps)
		h.s.cfg.Metrics.Sessions(metrics.PeerSession, len(h.s.up))
		if len(h.s.up[p]) == 1 {
			h.s.step(machine.PeerUp{Peer: p})
		}
	})
}

var errReplaced = fmt.Errorf("%w: the peer opened another session", handoff.ErrPeer)

// Message passes one on, under the name that the session's Hello fixed.
func (h Peers) Message(ps *peer.Session, msg handoff.PeerMessage) {
	h.s.post(func() {
		if slices.Contains(h.s.up[ps.Peer()], ps) {
			h.s.step(machine.FromPeer{Peer: ps.Peer(), Msg: msg})
		}
	})
}

// Down ends a session, also one that never came up.
func (h Peers) Down(ps *peer.Session, err error) {
	p := ps.Peer()
	h.s.post(func() {
		switch ss := h.s.up[p]; {
		case slices.Contains(ss, ps):
			h.s.lose(p, err)
		case len(ss) == 0 && ps.Dialed():
			h.s.step(machine.PeerDown{Peer: p, Err: err})
		} // else a dial that lost against the peer's own, or a session that was replaced or refused
	})
}

// lose ends every session with p: one of them has. A side forgets what it asked and was
// not answered; the other must hear that it did, whichever session it asked on.
func (s *Sidecar) lose(p handoff.Member, err error) {
	for _, ps := range s.up[p] {
		ps.Close(err)
	}
	delete(s.up, p)
	s.fds.Revoke(p.String())
	s.cfg.Metrics.Sessions(metrics.PeerSession, len(s.up))
	s.log.Info("peer session ended", "peer", p, "err", err)
	s.step(machine.PeerDown{Peer: p, Err: err})
}

// check compares what a peer says of itself with its certificate.
func (s *Sidecar) check(ps *peer.Session) error {
	return s.identified(ps.Peer(), ps.Identity())
}

// identified refuses a name without a certificate's, whatever Identify says.
func (s *Sidecar) identified(p handoff.Member, id string) error {
	if want := s.cfg.Identify(p.Group, int32(p.Rank)); id == "" || id != want {
		return fmt.Errorf("%w: %v shows the certificate of %s, want %s", handoff.ErrPeer, p, id, want)
	}
	return nil
}
