package loop

import (
	"cmp"
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
func (h Engines) Attach(es *engine.Session, a handoff.Attach) error { return h.s.attach(es, a) }

// Message passes one on.
func (h Engines) Message(es *engine.Session, msg handoff.FromEngine) { h.s.fromEngine(es, msg) }

// Closed forgets the session.
func (h Engines) Closed(es *engine.Session, err error) { h.s.engineClosed(es, err) }

func (s *Sidecar) attach(es engineSession, a handoff.Attach) error {
	ok := s.post(func() {
		s.last++
		s.sessions[s.last], s.numbers[es], s.attached[es] = es, s.last, a
		s.cfg.Metrics.Sessions(metrics.EngineSession, len(s.sessions))
		s.step(machine.FromEngine{Session: s.last, Msg: a})
	})
	if !ok {
		return fmt.Errorf("%w: the sidecar stops", handoff.ErrNotReady)
	}
	return nil
}

func (s *Sidecar) fromEngine(es engineSession, msg handoff.FromEngine) {
	if m, ok := msg.(handoff.BlockEvents); ok {
		s.cached.hear(es, m)
		return
	}
	s.post(func() {
		if n, ok := s.numbers[es]; ok {
			s.step(machine.FromEngine{Session: n, Msg: msg})
		}
	})
}

func (s *Sidecar) engineClosed(es engineSession, err error) {
	s.post(func() {
		n, ok := s.numbers[es]
		if !ok {
			return
		}
		s.log.Info("engine session ended", "err", err)
		s.cached.detached(es)
		delete(s.numbers, es)
		delete(s.attached, es)
		delete(s.sessions, n)
		s.cfg.Metrics.Sessions(metrics.EngineSession, len(s.sessions))
		s.step(machine.EngineDown{Session: n})
	})
}

// Peers is the handler of the peer server.
type Peers struct{ s *Sidecar }

// Peers returns the handler to give to peer.Listen.
func (s *Sidecar) Peers() Peers { return Peers{s} }

// Up takes a session whose Hellos agree.
func (h Peers) Up(ps *peer.Session) { h.s.peerUp(ps) }

// Message passes one on, under the name that the session's Hello fixed.
func (h Peers) Message(ps *peer.Session, msg handoff.PeerMessage) { h.s.fromPeer(ps, msg) }

// Down ends a session, also one that never came up.
func (h Peers) Down(ps *peer.Session, err error) { h.s.peerDown(ps, err) }

// peerUp: two sidecars that dial each other have two sessions, and send on the first. A
// peer that dials again has given up its last one, which may hang here until its keepalive
// ends: the new one takes its place.
func (s *Sidecar) peerUp(ps peerSession) {
	p := ps.Peer()
	if err := s.identified(p, ps.Identity()); err != nil {
		s.log.Warn("peer refused", "peer", p, "err", err)
		s.post(func() {
			s.refused["Session"]++
			s.cfg.Metrics.Dropped(metrics.Forbidden)
		})
		ps.Close(err)
		return
	}
	s.post(func() {
		if slices.ContainsFunc(s.up[p], func(o peerSession) bool { return o.Dialed() == ps.Dialed() }) {
			s.lose(p, errReplaced)
		}
		s.up[p] = append(s.up[p], ps)
		s.cfg.Metrics.Sessions(metrics.PeerSession, len(s.up))
		if len(s.up[p]) == 1 {
			s.meet(p, ps.End())
			s.staging.peerUp(p)
			s.met(p, nil)
			s.step(machine.PeerUp{Peer: p})
		}
	})
}

var errReplaced = fmt.Errorf("%w: the peer opened another session", handoff.ErrPeer)

func (s *Sidecar) fromPeer(ps peerSession, msg handoff.PeerMessage) {
	s.post(func() {
		if slices.Contains(s.up[ps.Peer()], ps) && !s.staging.hears(s, ps.Peer(), msg) && !s.hearsOf(ps.Peer(), msg) {
			s.step(machine.FromPeer{Peer: ps.Peer(), Msg: msg})
		}
	})
}

func (s *Sidecar) peerDown(ps peerSession, err error) {
	p := ps.Peer()
	s.post(func() {
		switch ss := s.up[p]; {
		case slices.Contains(ss, ps):
			s.lose(p, err)
		case len(ss) == 0 && ps.Dialed():
			s.met(p, cmp.Or(err, errNoSession))
			s.step(machine.PeerDown{Peer: p, Err: err})
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
	s.staging.peerDown(p)
	delete(s.pairs, p)
	s.showLinks()
	s.step(machine.PeerDown{Peer: p, Err: err})
}

// identified compares what a peer says of itself with its certificate, and refuses a name
// without one, whatever Identify says.
func (s *Sidecar) identified(p handoff.Member, id string) error {
	if want := s.cfg.Identify(p.Group, int32(p.Rank)); id == "" || id != want {
		return fmt.Errorf("%w: %v shows the certificate of %s, want %s", handoff.ErrPeer, p, id, want)
	}
	return nil
}
