package sim

import (
	"time"

	"github.com/batonkv/baton/sidecar/handoff"
	"github.com/batonkv/baton/transfer/staged"
)

// Some states last for an instant, and some inputs come once in a hand-off: that they meet
// by chance takes millions of schedules. A pinch is a fault where such a state begins.

// pinches reports whether the world is one of many pinches.
func (t temper) pinches() bool { return t.pinch > 20 }

// stall lets a session bring an end nothing more for d.
func (w *world) stall(ss *session, end int, d time.Duration) {
	ss.last[end] = max(ss.last[end], w.now) + d
}

// repeat brings a message once more, d later, and holds back what follows it.
func (w *world) repeat(ss *session, to int, msg handoff.PeerMessage, d time.Duration) {
	w.after(0, nil, func() { // after what its sender says in the same step
		if !ss.cut {
			w.hit(Duplicate)
			w.stall(ss, to, d)
			w.carry(ss, to, msg)
		}
	})
}

// pinch looks at a message that is sent.
func (n *sidecar) pinch(ss *session, to int, msg handoff.PeerMessage) {
	w := n.w
	switch msg.(type) {
	case handoff.Leased, handoff.Pinned, handoff.Unpin, handoff.RankReserved, handoff.Done, handoff.Check:
	default:
		return
	}
	often := w.temper.pinch
	if _, ok := msg.(handoff.Check); ok {
		often = 20 // what it needs is rare enough
	}
	if !w.chance(often) {
		return
	}
	switch m := msg.(type) {
	case handoff.Leased:
		if w.r.IntN(2) == 0 { // importers ask for a pin that its rank does not know as leased
			w.stall(ss, to, w.between(5*time.Millisecond, 2*time.Second))
			return
		}
		w.repeat(ss, to, m, w.between(2500*time.Millisecond, 7*time.Second)) // it outlives the rank's own deadline
	case handoff.Pinned: // it comes again when the group is broken
		late := w.between(50*time.Millisecond, 2*time.Second)
		lead := ss.ends[to]
		w.repeat(ss, to, m, late)
		w.after(w.between(0, late), nil, func() { lead.forsake(n) })
	case handoff.Unpin:
		w.repeat(ss, to, m, w.between(0, 50*time.Millisecond))
	case handoff.RankReserved: // it comes again when the import is over
		if r := m.Reserved; r.Full && int(r.N) <= len(n.g.decided) {
			late := w.between(20*time.Millisecond, time.Second)
			id := n.g.decided[r.N-1].ID
			w.repeat(ss, to, m, late)
			w.after(w.between(0, late), nil, func() { w.abort(n.g, manifest{Manifest: handoff.Manifest{ID: id}}) })
		}
	case handoff.Check: // it is answered when the import has failed, and before a remote leader ends that
		for _, t := range n.tickets {
			if r := t.into.reserves[t.own]; n.rank > 0 && r != nil && r.d.ID == m.ID && t.job == (staged.Job{}) {
				w.hit(CopyFails)
				w.after(w.between(0, time.Millisecond), nil, func() { n.settle(t, errCopy) })
			}
		}
	case handoff.Done: // it is asked for what may be over
		if q, ok := w.book.asked[try{m.ID, m.Attempt, n.g}]; ok {
			w.hit(Duplicate)
			w.carry(ss, to, q.open)
		}
	}
}

// pinchLanded looks at a rank that has read what it was to, or failed to, of an import that
// is decided late: its links are opened anew for the next one, or what it packs for others
// ends, and the import too.
func (n *sidecar) pinchLanded(m handoff.Landed) {
	w, lead := n.w, n.g.seats[0].side
	often := w.temper.pinch
	if n.stage == nil {
		often *= 2
	}
	if lead == nil || !w.chance(often) {
		return
	}
	for _, ss := range lead.all() {
		switch o := ss.ends[1-ss.end(lead)]; {
		case m.OK && o.g.name == m.ID.Group && n.stage != nil:
			w.stall(ss, 1-ss.end(lead), w.between(20*time.Millisecond, 300*time.Millisecond))
		case m.OK && o.g.name == m.ID.Group && n.g.tp() == 1: // else other ranks take their time
			w.stall(ss, ss.end(lead), w.between(20*time.Millisecond, time.Second))
		case !m.OK && o == n:
			w.stall(ss, ss.end(lead), w.between(20*time.Millisecond, 300*time.Millisecond))
		}
	}
	if n.stage == nil {
		w.hit(MoverDies)
		w.after(w.between(0, 5*time.Millisecond), n, n.restartMover)
		w.importAnother(n.g, m.ID)
		return
	}
	n.landed = m
	for _, p := range n.stage.packs {
		if l := w.loads[p.stamp.Job]; l != nil && n.landed.OK {
			n.endBoth(n.pins[l.t.p.Of.Pin].label)
		}
	}
}

// importAnother brings another hand-off of the same source group in.
func (w *world) importAnother(g *group, not handoff.ID) {
	for i := len(w.shown) - 1; i >= 0; i-- {
		if m := w.shown[i]; m.ID.Group == not.Group && m.ID != not {
			w.importInto(g, m, 9)
			return
		}
	}
}

// endBoth ends an export from which n packs, and the source of the import that landed
// last: what is decided of that waits for the pack.
func (n *sidecar) endBoth(label string) {
	w, id := n.w, n.landed.ID
	n.landed = handoff.Landed{}
	w.releaseLabel(n.g, label)
	for _, m := range w.shown {
		if m.ID == id {
			w.release(m, w.prompts[m.tag].g)
		}
	}
}

// releaseLabel gives an export up by its engine.
func (w *world) releaseLabel(g *group, label string) {
	if e := g.seats[0].eng; e.able() {
		w.hit(Released)
		e.conn.say(handoff.ReleaseExport{Label: label})
	}
}

// forsake cuts a leader's session with a rank of its group other than but.
func (n *sidecar) forsake(but *sidecar) {
	for _, ss := range n.all() {
		if o := ss.ends[1-ss.end(n)]; o.g == n.g && o != but {
			n.w.hit(BrokenSession)
			n.w.cut(ss, nil)
			return
		}
	}
}

// pinchGrant looks at leave to pack: its pin may end while the pack goes on.
func (n *sidecar) pinchGrant(id handoff.PinID) {
	w := n.w
	if n.landed.OK && !w.calm {
		n.stage.slow = true
		n.endBoth(n.pins[id].label)
		return
	}
	if !w.chance(w.temper.pinch) {
		return
	}
	switch k := w.r.IntN(10); {
	case k < 5 && n.rank > 0: // its leader is not heard
		if lead := n.g.seats[0].side; lead != nil && n.session(lead.self.Incarnation) != nil {
			w.hit(BlackHole)
			ss := n.session(lead.self.Incarnation)
			w.stall(ss, ss.end(n), w.between(2500*time.Millisecond, 7*time.Second))
		}
	case k < 7:
		w.hit(MoverDies)
		w.after(w.between(0, 20*time.Millisecond), n, n.restartMover)
	case k < 8:
		c := n.conn
		w.after(w.between(0, time.Second), n, func() {
			if c != nil && c == n.conn {
				w.hit(SessionEnds)
				c.end(nil)
			}
		})
	case k < 9:
		w.after(w.between(0, time.Second), nil, func() { w.reset(n.g) })
	default:
		p := n.pins[id]
		w.after(w.between(0, time.Second), nil, func() { w.releaseLabel(n.g, p.label) })
	}
}

// pinch looks at an offer: the wire mover that serves it may end, and its word of that, or
// the offer, come late.
func (s *stage) pinch(to *sidecar, ss *session, end int) {
	w := s.n.w
	if !w.chance(w.temper.pinch) {
		return
	}
	if w.r.IntN(2) == 0 {
		w.stall(ss, end, w.between(0, 200*time.Millisecond))
	}
	if w.r.IntN(2) == 0 {
		w.after(0, nil, func() { w.stall(ss, end, w.between(0, 500*time.Millisecond)) })
	}
	w.after(w.between(0, 20*time.Millisecond), s.n, func() {
		if p := s.peers[to]; p.now != 0 && !p.dies {
			w.hit(WireCrashes)
			s.endWire(to, p)
		}
	})
}
