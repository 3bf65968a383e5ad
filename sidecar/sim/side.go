package sim

import (
	"errors"
	"fmt"
	"time"

	"github.com/batonkv/baton/sidecar/handoff"
	"github.com/batonkv/baton/sidecar/machine"
	"github.com/batonkv/baton/transfer/layout"
	"github.com/batonkv/baton/transfer/staged"
)

// sidecar is one life of one rank's sidecar process.
type sidecar struct {
	*seat
	self   handoff.Member
	m      *machine.Machine
	dead   bool
	paused time.Duration // it does nothing until then
	misled bool          // its view of discovery is wrong
	base   time.Duration // its clock at its birth
	born   time.Duration
	ppm    int64         // how much faster its clock runs
	wake   time.Duration // when it looks at its clock; 0: it does not
	local  []handoff.PeerMessage
	met    []machine.Pair
	shape  uint64

	sessions []*session      // that stand, in its opinion
	conn     *conn           // to its engine; nil: none
	memory   *engine         // whose memory its mover maps, dead or not,
	maps     machine.Session // since it attached so
	links    map[handoff.Incarnation]*link
	tickets  []*ticket
	life     int // of its mover
	reaping  int // movers that died and whose end it has not been told
	pins     map[handoff.PinID]pin
	joins    map[handoff.Member]handoff.Join // what its ranks stated since the group stood last
	roster   []handoff.Member                // of its group, as it said
	answers  map[handoff.ID][]answer         // that it heard
	adding   map[*engine]int                 // sums of its memory
	held     map[claim]bool                  // landed: true; a pin was not held before that: false
	stage    *stage                          // nil: it has staged nothing
	late     *lateWords                      // of a leader that died
	landed   handoff.Landed                  // that was pinched last
	ghost    *engine                         // that it serves while others have both their places
}

// drift bounds how much faster or slower a clock runs, in ppm: over the longest hold, two
// clocks differ by less than the margin.
const drift = 20_000

// start begins a new life of a seat's sidecar.
func (s *seat) start() {
	w := s.w
	w.lastInc++
	self := handoff.Member{Group: s.g.name, Rank: layout.Rank(s.rank), Incarnation: handoff.Incarnation(w.lastInc)}
	n := &sidecar{seat: s, self: self, born: w.now, base: w.between(time.Second, time.Hour), ppm: w.r.Int64N(2*drift) - drift,
		links: map[handoff.Incarnation]*link{}, pins: map[handoff.PinID]pin{},
		m: machine.New(machine.Config{Self: self, Role: s.g.role, Mint: w.r.Uint64, Lease: w.temper.lease, Margin: w.temper.margin, MaxHold: w.temper.hold,
			Deadline: 9 * time.Second, Patience: 6 * time.Second, KillAfter: 7 * time.Second, KeepSources: w.temper.keep, Verify: w.temper.verify})}
	w.lives = append(w.lives, n)
	s.side = n
	w.register(s, self.Incarnation)
}

// life returns the process of an incarnation.
func (w *world) life(i handoff.Incarnation) *sidecar { return w.lives[i-1] }

// clock is what n's own clock shows.
func (n *sidecar) clock() machine.Now {
	d := n.w.now - n.born
	return n.base + d + d*time.Duration(n.ppm)/1e6
}

// arm makes n look at its clock when its machine wants to.
func (n *sidecar) arm() {
	at, ok := n.m.Next()
	if !ok {
		return
	}
	when := max(n.born+(at-n.base)*1e6/time.Duration(1e6+n.ppm)+1, n.w.now)
	if n.wake != 0 && n.wake <= when {
		return
	}
	n.wake = when
	late := time.Duration(0)
	if n.w.chance(4) {
		n.w.hit(LateTick)
		late = n.w.between(0, time.Second)
	}
	n.w.when(when+late, n, func() {
		if n.wake != when {
			return // an earlier look has been at it
		}
		n.wake = 0
		if at, ok := n.m.Next(); ok && at <= n.clock() {
			n.step(machine.Tick{})
			return
		}
		n.arm()
	})
}

// step gives the machine an event, and carries out what it answers.
func (n *sidecar) step(e machine.Event) {
	if n.dead || n.w.bad != "" {
		return
	}
	n.one(e)
	for len(n.local) > 0 && n.w.bad == "" { // before anything else reaches it
		m := n.local[0]
		n.local = n.local[1:]
		n.one(machine.FromPeer{Peer: n.self, Msg: m})
	}
	n.local = nil
	n.arm()
}

func (n *sidecar) one(e machine.Event) {
	w := n.w
	n.met = n.m.Meets(n.clock(), e, n.met[:0])
	w.count.meet(n.met)
	if w.print != nil {
		w.tell("%v  %s", n.self, words(e))
	}
	if f, ok := e.(machine.FromPeer); ok {
		n.heard(f)
	}
	fs := n.m.Step(n.clock(), e)
	w.answered(n, e, fs)
	for _, f := range fs {
		if w.print != nil {
			w.say(f)
		}
		n.carry(f)
	}
}

func (n *sidecar) carry(f machine.Effect) {
	w := n.w
	switch f := f.(type) {
	case machine.ToEngine:
		if c := n.conn; c != nil && c.session == f.Session {
			c.toEngine(f.Msg)
		}
	case machine.CloseEngine:
		n.closeEngine(f)
	case machine.MapBuffers:
		n.mapBuffers(f)
	case machine.UnmapBuffers:
		n.unmapped(f.Session)
	case machine.ToPeer:
		n.checkSent(f)
		n.send(f)
	case machine.Dial:
		w.dial(n, f.Peer)
	case machine.ClosePeer:
		if ss := n.session(f.Peer.Incarnation); ss != nil {
			w.cut(ss, n)
		}
	case machine.ShareBuffers:
		n.send(machine.ToPeer{Peer: f.Peer, Msg: handoff.Buffers{Cards: []handoff.BufferCard{{Key: uint64(f.Session)}}}})
	case machine.OpenLink:
		life := n.life
		w.after(w.between(100*time.Microsecond, 3*time.Millisecond), n, func() { n.opened(f, life) })
	case machine.CloseLink:
		if l := n.links[f.Peer.Incarnation]; l != nil && l.open > 0 {
			w.fail("%v closes the link to %v under %d copies", n.self, f.Peer, l.open)
		}
		delete(n.links, f.Peer.Incarnation)
	case machine.Pull:
		n.pull(f)
	case machine.Sum:
		n.sum(f)
	case machine.CancelPull:
		n.cancel(f.Ticket)
	case machine.KillMover:
		w.hit(MoverKilled)
		w.after(0, n, n.restartMover)
	case machine.Granted:
		n.checkGrant(f)
		n.pinchGrant(f.Pin.Pin)
		w.after(0, n, func() { n.stage.source(staged.Granted{Grant: f.Grant}) })
	case machine.GrantRefused:
		w.after(0, n, func() { n.stage.source(staged.Refused{Grant: f.Grant}) })
	case machine.Revoked:
		w.hit(Revoked)
		n.stage.source(staged.Revoked{Grant: f.Grant})
	case machine.Reply:
		w.replied(f)
	case machine.Notify:
		w.noticed(n, f.Notice)
	}
}

// closeEngine ends the session with the engine: both sides hear of it, in their time.
func (n *sidecar) closeEngine(f machine.CloseEngine) {
	w := n.w
	if errors.Is(f.Err, handoff.ErrEngine) {
		w.fail("%v blames an engine that did nothing wrong: %v", n.self, f.Err)
	}
	if c := n.conn; c != nil && c.session == f.Session {
		c.end(f.Err)
	}
}

// mapBuffers answers once the mover maps the engine's memory.
func (n *sidecar) mapBuffers(f machine.MapBuffers) {
	if len(n.tickets) > 0 {
		n.w.fail("%v maps new memory under %d copies", n.self, len(n.tickets))
	}
	n.w.after(n.w.between(100*time.Microsecond, 3*time.Millisecond), n, func() { n.mapped(f) })
}

func (n *sidecar) mapped(f machine.MapBuffers) {
	w := n.w
	var err error
	if n.reaping > 0 {
		w.after(5*time.Millisecond, n, func() { n.mapped(f) }) // the next mover does it
		return
	}
	if w.chance(w.temper.failing / 2) {
		w.hit(MapFails)
		err = fmt.Errorf("no mapping")
	}
	if c := n.conn; c != nil && c.session == f.Session && err == nil {
		c.mapped = true
	}
	if err == nil && f.Session >= n.maps { // an older one is let go at once
		n.maps, n.memory = f.Session, w.engines[f.Session]
	}
	n.step(machine.Mapped{Session: f.Session, PID: int32(n.life + 1), Err: err})
}

func (n *sidecar) unmapped(s machine.Session) {
	for _, t := range n.tickets {
		if t.into.session == s {
			n.w.fail("%v unmaps memory that copy %d writes", n.self, t.p.Ticket)
		}
	}
	e := n.w.engines[s]
	if n.adding[e] > 0 {
		n.w.fail("%v unmaps memory under %d sums", n.self, n.adding[e])
	}
	if e.dead {
		e.gone = true
	}
}
