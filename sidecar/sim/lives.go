package sim

import (
	"time"

	"github.com/batonkv/baton/sidecar/handoff"
	"github.com/batonkv/baton/sidecar/machine"
)

// crash ends a sidecar's process, and with it its mover; another starts later.
func (n *sidecar) crash() {
	down := n.w.between(time.Millisecond, 200*time.Millisecond)
	if n.w.chance(30) {
		down = n.w.between(time.Millisecond, 12*time.Second)
	}
	n.crashFor(down)
}

func (n *sidecar) crashFor(down time.Duration) {
	w, s := n.w, n.seat
	w.tell("%v  CRASHES", n.self)
	n.exit()
	if n.ghost != nil {
		return // its host is given up
	}
	s.side = nil
	if e := s.eng; e != nil && e.conn != nil && e.conn.to == n {
		c := e.conn
		c.closed = true
		w.after(w.between(0, min(down, 50*time.Millisecond)), nil, func() { e.lost(c, nil) })
	}
	reaped := w.between(0, 20*time.Millisecond)
	if w.chance(20) {
		reaped = w.between(20*time.Millisecond, time.Second)
	}
	w.after(reaped, nil, n.reap) // the mover ends with the process, mostly soon
	w.after(reaped+down, nil, s.start)
}

// exit ends the process alone, and the engine that only it serves.
func (n *sidecar) exit() {
	w := n.w
	n.dead = true
	for _, ss := range n.all() {
		w.cut(ss, n)
	}
	for id, c := range w.calls {
		if c.at == n {
			delete(w.calls, id) // its caller sees a broken call
		}
	}
	if n.ghost != nil {
		n.ghost.die()
		n.reap()
	}
}

// reap ends the copies of a process that is gone.
func (n *sidecar) reap() {
	for _, t := range n.tickets {
		t.over = true
	}
	n.tickets = nil
	if n.stage != nil {
		n.stage.end()
	}
}

// supersede makes a host hang for so long that its rank is started anew elsewhere, with the
// whole group. Sidecar and engine come back all the same, act on what they heard and held,
// and end when the sidecar sees that its key is another's. One engine never has two live
// sidecars: a run directory is one's.
func (n *sidecar) supersede() {
	w, s, e := n.w, n.seat, n.eng
	if n.conn == nil || n.conn.e != e || e.dead || s.g.ending {
		return
	}
	w.hit(Superseded)
	w.tell("%v  HANGS, and another process takes its place", n.self)
	n.paused = max(n.paused, w.now+w.between(60*time.Millisecond, 4*time.Second))
	n.ghost, e.ghost = e, true
	s.side, s.eng = nil, nil
	s.g.relaunch("a host hangs")
	w.after(w.between(10*time.Millisecond, 400*time.Millisecond), nil, s.start)
	w.when(n.paused+w.between(0, 3*time.Second), nil, func() {
		if !n.dead {
			w.tell("%v  sees another process in its place, and EXITS", n.self)
			n.exit()
		}
	})
}

// lateWords are those of a leader that died with them under way.
type lateWords struct {
	from *sidecar
	ss   *session
	msgs []handoff.PeerMessage
}

// bereave kills a leader with a decision under way to n, which hears it when it has joined
// the successor, if it has not seen the session end by then.
func (w *world) bereave(lead, n *sidecar, ss *session, msg handoff.PeerMessage) bool {
	if n.late != nil && n.late.ss == ss {
		n.late.msgs = append(n.late.msgs, msg)
		return true
	}
	if _, ok := msg.(handoff.Decision); !ok || lead.ghost != nil || n.late != nil || w.calm || w.r.IntN(1000) >= w.temper.bereaved {
		return false
	}
	n.late = &lateWords{lead, ss, []handoff.PeerMessage{msg}}
	ss.late = true
	w.after(0, nil, func() {
		if !lead.dead && lead.ghost == nil {
			lead.crashFor(w.between(time.Millisecond, 30*time.Millisecond))
		}
	})
	return true
}

// joined lets n hear what its former leader said last.
func (n *sidecar) joined(by handoff.Member) {
	l := n.late
	if l == nil || by == l.from.self {
		return
	}
	n.late = nil
	n.w.after(n.w.between(0, 20*time.Millisecond), n, func() {
		for _, msg := range l.msgs {
			if n.session(l.from.self.Incarnation) == l.ss {
				n.w.hit(Bereaved)
				n.step(machine.FromPeer{Peer: l.from.self, Msg: msg})
			}
		}
	})
}
