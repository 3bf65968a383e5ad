package sim

import (
	"errors"
	"slices"
	"time"

	"github.com/batonkv/baton/discovery"
	"github.com/batonkv/baton/sidecar/handoff"
	"github.com/batonkv/baton/sidecar/machine"
)

// session is a session of two sidecars. Each direction keeps its order; nothing else
// does.
type session struct {
	ends    [2]*sidecar      // who dialled, who was
	last    [2]time.Duration // what was sent to an end arrives no earlier
	cut     bool
	crossed bool             // who was dialled has dialled too
	late    bool             // its end is heard late
	keeps   [2]time.Duration // cut: what arrives later is lost
	heard   [2]bool          // cut: the end knows
}

func (ss *session) end(n *sidecar) int {
	if ss.ends[0] == n {
		return 0
	}
	return 1
}

// session is the one that stands to a peer, in n's opinion.
func (n *sidecar) session(peer handoff.Incarnation) *session {
	for _, ss := range n.sessions {
		if ss.ends[1-ss.end(n)].self.Incarnation == peer {
			return ss
		}
	}
	return nil
}

// all are the sessions that n's end is an end of, and that are not cut.
func (n *sidecar) all() []*session {
	var out []*session
	for _, ss := range n.w.net {
		if !ss.cut && (ss.ends[0] == n || ss.ends[1] == n) {
			out = append(out, ss)
		}
	}
	return out
}

// send puts a message on its session; to itself, it comes at once.
func (n *sidecar) send(f machine.ToPeer) {
	if m, ok := f.Msg.(handoff.Landed); ok {
		n.pinchLanded(m)
	}
	if f.Peer == n.self {
		n.local = append(n.local, f.Msg)
		return
	}
	ss := n.session(f.Peer.Incarnation)
	if ss == nil || ss.cut {
		return
	}
	if n.w.bereave(n, ss.ends[1-ss.end(n)], ss, f.Msg) {
		return
	}
	n.pinch(ss, 1-ss.end(n), f.Msg)
	n.w.carry(ss, 1-ss.end(n), f.Msg)
	if n.w.chance(n.w.temper.dup) {
		n.w.hit(Duplicate)
		n.w.carry(ss, 1-ss.end(n), f.Msg)
	}
	to := ss.ends[1-ss.end(n)]
	n.forge(ss, f.Msg)
	if to.g != n.g && n.w.chance(n.w.temper.replay) {
		n.w.again(to, n.self, f.Msg, Replayed)
	}
	n.w.strike(n, to, ss, f.Msg)
}

// carry brings a message to an end of a session, after what was sent to it before.
func (w *world) carry(ss *session, to int, msg handoff.PeerMessage) {
	at := max(ss.last[to], w.now+w.transit())
	ss.last[to] = at
	n, from := ss.ends[to], ss.ends[1-to].self
	w.when(at, n, func() {
		switch {
		case ss.cut && at > ss.keeps[to]:
			w.lost(n, from, msg)
		case slices.Contains(n.sessions, ss):
			n.step(machine.FromPeer{Peer: from, Msg: msg})
		}
	})
}

// forge puts what is not so beside a message between leaders: a claim that never opened, or
// has withdrawn, asks for a copy; an answer to an earlier question comes after a new one.
func (n *sidecar) forge(ss *session, msg handoff.PeerMessage) {
	w, to := n.w, 1-ss.end(n)
	var id handoff.ID
	switch m := msg.(type) {
	case handoff.Open:
		id = m.ID
		if w.chance(3) {
			w.hit(Forged)
			w.carry(ss, to, handoff.Done{ID: id, Importer: m.Importer, Attempt: m.Attempt + 1<<31})
		}
	case handoff.Withdraw:
		if w.chance(10) {
			w.hit(Forged)
			w.carry(ss, to, handoff.Done{ID: m.ID, Importer: m.Importer, Attempt: m.Attempt})
		}
		return
	case handoff.Done:
		id = m.ID
	case handoff.Check:
		id = m.ID
	default:
		return
	}
	old := n.answers[id]
	if len(old) == 0 || !w.chance(w.temper.stale) {
		return
	}
	a := old[w.r.IntN(len(old))]
	w.after(w.between(100*time.Microsecond, 3*time.Millisecond), n, func() {
		if n.session(a.from.Incarnation) != nil {
			w.hit(Stale)
			n.step(machine.FromPeer{Peer: a.from, Msg: a.msg})
		}
	})
}

// answer is one that a sidecar heard.
type answer struct {
	from handoff.Member
	msg  handoff.PeerMessage
}

// note remembers a few answers of a hand-off.
func (n *sidecar) note(id handoff.ID, from handoff.Member, msg handoff.PeerMessage) {
	if n.answers == nil {
		n.answers = map[handoff.ID][]answer{}
	}
	if as := n.answers[id]; len(as) < 8 {
		n.answers[id] = append(as, answer{from, msg})
	}
}

// lost is a message that its session took with it. One between groups may come much
// later all the same, over the next one. One within a group may not: the order of decisions rests on the
// order of a session, and a sidecar takes nothing from one that has ended.
func (w *world) lost(n *sidecar, from handoff.Member, msg handoff.PeerMessage) {
	w.hit(LostMessage)
	if from.Group != n.g.name && w.chance(30) {
		w.again(n, from, msg, Outlives)
	}
}

// again brings a message between groups at any later time, if a session stands then.
func (w *world) again(n *sidecar, from handoff.Member, msg handoff.PeerMessage, f Fault) {
	late := w.between(time.Millisecond, 60*time.Millisecond)
	if w.r.IntN(2) == 0 {
		late = w.between(time.Millisecond, 8*time.Second)
	}
	switch msg.(type) {
	case handoff.Open, handoff.Opened, handoff.Check, handoff.Checked, handoff.Done, handoff.DoneAck, handoff.Withdraw:
		w.after(late, n, func() {
			if n.session(from.Incarnation) != nil {
				w.hit(f)
				n.step(machine.FromPeer{Peer: from, Msg: msg})
			}
		})
	}
}

var errRefused, errCut = errors.New("refused"), errors.New("cut")

// dial makes a session, or tells the dialler that there is none.
func (w *world) dial(n *sidecar, p handoff.Member) {
	to := w.life(p.Incarnation)
	w.after(w.transit(), nil, func() { w.reach(n, to) })
}

// reach is a dial that has come to the other side.
func (w *world) reach(n, to *sidecar) {
	p := to.self
	switch {
	case to.paused > w.now && !to.dead:
		w.when(to.paused, nil, func() { w.reach(n, to) })
		return
	case to.dead || n.dead, w.chance(w.temper.failing):
		wait := w.transit()
		if w.chance(20) { // nobody says no
			wait = 3 * time.Second
		}
		w.hit(DialFails)
		w.after(wait, n, func() {
			if n.session(p.Incarnation) == nil { // else the other's dial was better
				n.step(machine.PeerDown{Peer: p, Err: errRefused})
			}
		})
		return
	}
	if old := to.session(n.self.Incarnation); old != nil {
		if !old.cut && old.ends[0] == to {
			old.crossed = true
			return // the other's dial was faster, and its word is on the way
		}
		w.cut(old, to)
		to.down(old)
	}
	ss := &session{ends: [2]*sidecar{n, to}}
	w.net = append(w.net, ss)
	up := w.now + w.transit()
	ss.last[0] = up
	w.when(up, n, func() {
		if !ss.cut || up <= ss.keeps[0] {
			n.upped(ss, p)
		}
	})
	to.upped(ss, n.self)
}

func (n *sidecar) upped(ss *session, p handoff.Member) {
	first := n.session(p.Incarnation) == nil // two that dial each other have two sessions, and send on the first
	n.sessions = append(n.sessions, ss)
	if first {
		n.step(machine.PeerUp{Peer: p})
	}
}

// cut ends a session. Each end hears it after what still reaches it, and maybe much
// later: until then it sends into nothing.
func (w *world) cut(ss *session, by *sidecar) {
	if ss.cut {
		return
	}
	ss.cut = true
	w.net = slices.DeleteFunc(w.net, func(o *session) bool { return o == ss })
	for i, n := range ss.ends {
		ss.keeps[i] = w.between(w.now, ss.last[i])
		late := w.between(0, 5*time.Millisecond)
		if n != by && (ss.late || w.chance(40)) {
			w.hit(LateDown)
			late = w.between(0, 8*time.Second)
		}
		w.when(max(w.now, ss.keeps[i])+late, n, func() { n.down(ss) })
	}
}

// down tells an end that its session is over; who dialled hears it also of one that
// never came up.
func (n *sidecar) down(ss *session) {
	i := ss.end(n)
	if ss.heard[i] {
		return
	}
	ss.heard[i] = true
	had := slices.Contains(n.sessions, ss)
	if had && n.stage != nil {
		defer n.stage.peerDown(ss.ends[1-i])
	}
	n.sessions = slices.DeleteFunc(n.sessions, func(o *session) bool { return o == ss })
	for o := n.session(ss.ends[1-i].self.Incarnation); had && o != nil; o = n.session(ss.ends[1-i].self.Incarnation) {
		n.w.cut(o, n) // with one of two, both are over
		o.heard[o.end(n)] = true
		n.sessions = slices.DeleteFunc(n.sessions, func(x *session) bool { return x == o })
	}
	if p := ss.ends[1-i].self; had || (i == 0 || ss.crossed) && n.session(p.Incarnation) == nil {
		n.step(machine.PeerDown{Peer: p, Err: errCut})
	}
}

// register shows a new life of a sidecar to everybody, in their time.
func (w *world) register(s *seat, i handoff.Incarnation) {
	if !w.launched { // everybody looks for the first time when everybody is there
		s.listed = i
		w.after(w.between(0, 2*time.Millisecond), s.side, s.side.look)
		return
	}
	w.after(w.between(0, 5*time.Millisecond), nil, func() {
		if s.side == nil || s.side.self.Incarnation != i {
			return
		}
		s.before, s.listed = s.listed, i
		for _, o := range w.seats {
			if n := o.side; n != nil {
				w.after(w.transit(), n, n.look)
			}
		}
	})
}

// look gives a sidecar its view of discovery, which may be wrong for a while.
func (n *sidecar) look() {
	w := n.w
	wrong := -1
	stale := w.chance(50)
	if w.launched && w.chance(8) {
		wrong = w.r.IntN(len(w.seats))
	}
	n.misled = wrong >= 0
	rs := make([]discovery.Record, 0, len(w.seats))
	for i, s := range w.seats {
		inc := s.listed
		if i == wrong {
			if inc = 0; stale {
				inc = s.before
				w.hit(StaleRecord)
			} else {
				w.hit(MissingRecord)
			}
			w.after(w.between(time.Millisecond, 6*time.Second), n, n.look)
		}
		if inc != 0 {
			rs = append(rs, discovery.Record{Group: s.g.name, Rank: int32(s.rank), Incarnation: uint64(inc), Addr: "a"})
		}
	}
	n.step(machine.Found{Records: rs})
}
