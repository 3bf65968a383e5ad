package sim

import (
	"fmt"
	"time"

	"github.com/batonkv/baton/sidecar/handoff"
)

// Fault is one kind of thing that goes wrong, or that users do at a bad moment.
type Fault uint8

// Network.
const (
	SlowMessage Fault = iota
	Duplicate         // a message comes twice
	BrokenSession
	Struck      // something breaks just after a message that matters
	LostMessage // its session took it along
	Outlives    // a message between groups comes after its session ended
	Replayed    // it comes again, much later
	Forged      // a claim that never opened, or withdrew, asks for a copy
	Stale       // an answer to an earlier question comes after a new one
	LateDown    // an end of a session is heard long after
	BlackHole   // a session carries nothing for a while
	DialFails
	// Discovery.
	StaleRecord
	MissingRecord
	// Sidecars and their clocks.
	RankCrashes
	LeaderCrashes
	Bereaved   // a rank hears its former leader's last word under the next one
	Superseded // it hangs, another takes its place, and it comes back
	Paused
	LateTick
	// Movers.
	MoverDies
	WireDies
	WireCrashes // by itself
	SlowPack
	Revoked // a lease ends under a pack
	CopyFails
	CopyHangs
	CopyCorrupts // it brings a bit that is not the source's
	SumFails
	SlowCopy
	MapFails
	LinkFails
	// Engines.
	EngineDies // one rank alone
	SessionEnds
	FencedMemory
	MoverKilled // by its sidecar
	GroupEnds
	// Users.
	Aborted
	EngineAborts
	Released
	Rerouted
	AskedTwice
	WrongKey
	NeverExported
	NeverImported
	SameLabel
	NewWeights
	Reset
	InParts
	Preempted // with parts of it exported
	numFaults
)

var faultNames = [numFaults]string{"slow message", "duplicate", "broken session", "strike after a message", "lost message", "message outlives its session", "message replayed", "forged claim", "stale answer", "late PeerDown",
	"black hole", "dial fails", "stale record", "missing record", "rank's sidecar crashes", "leader's sidecar crashes", "word of a dead leader", "sidecar superseded", "sidecar pauses", "late tick",
	"mover dies", "wire mover dies", "wire mover crashes", "slow pack", "grant revoked", "copy fails", "copy hangs", "copy corrupts", "sum fails", "slow copy", "mapping fails", "link fails", "engine rank dies", "engine's session ends", "fenced memory", "mover killed by its sidecar", "engine group ends",
	"abort", "abort by the engine", "release", "re-route", "asked twice", "wrong key", "never exported", "never imported", "label used again", "new weights", "reset", "export in parts", "preemption of parts"}

func (f Fault) String() string {
	if f < numFaults {
		return faultNames[f]
	}
	return fmt.Sprintf("Fault(%d)", uint8(f))
}

// strike breaks something just after a message that matters was sent.
func (w *world) strike(n, to *sidecar, ss *session, msg handoff.PeerMessage) {
	often := 1
	switch m := msg.(type) {
	case handoff.Done:
		often = 35
	case handoff.Landed:
		if !m.OK {
			often = 10
		}
	case handoff.DoneAck, handoff.Checked, handoff.Opened, handoff.RankReserved, handoff.Extend, handoff.Pinned:
	case handoff.Decision:
		if m.Kind != handoff.Admit {
			return
		}
		often = 5
	default:
		return
	}
	if w.calm || w.r.IntN(1000) >= w.temper.strike*often {
		return
	}
	w.hit(Struck)
	k := w.r.IntN(10)
	if _, ok := msg.(handoff.Decision); ok {
		k += 4
	}
	w.after(w.between(0, 2*time.Millisecond), nil, func() { w.blow(k, n, to, ss) })
}

// blow is what a strike does.
func (w *world) blow(k int, n, to *sidecar, ss *session) {
	switch {
	case k == 0 && n.rank == 0:
		w.reset(n.g)
	case k == 1 && n.conn != nil:
		n.conn.end(nil)
	case k < 4: // within the sender's group
		for _, o := range n.all() {
			if o.ends[0].g == o.ends[1].g {
				w.cut(o, nil)
				return
			}
		}
		if c := n.conn; c != nil {
			c.end(nil)
		}
	case k < 6:
		w.cut(ss, nil)
	case k < 7:
		w.stall(ss, 0, 3*time.Second)
		w.stall(ss, 1, 3*time.Second)
	case k < 8 && !n.dead:
		n.crash()
	case k < 9 && !to.dead:
		to.restartMover()
	case k < 11 && to.conn != nil:
		to.conn.end(nil)
	case !to.dead:
		to.crash()
	}
}

// fault makes one thing go wrong, somewhere.
func (w *world) fault() {
	s := w.seats[w.r.IntN(len(w.seats))]
	n := s.side
	switch k := w.r.IntN(100); {
	case k < 25 && len(w.net) > 0:
		w.hit(BrokenSession)
		ss := w.net[w.r.IntN(len(w.net))]
		w.tell("session of %v and %v BREAKS", ss.ends[0].self, ss.ends[1].self)
		w.cut(ss, nil)
	case k < 38 && len(w.net) > 0:
		w.hit(BlackHole)
		ss := w.net[w.r.IntN(len(w.net))]
		d := w.between(10*time.Millisecond, 10*time.Second)
		w.tell("session of %v and %v carries nothing for %v", ss.ends[0].self, ss.ends[1].self, d)
		ss.last[0], ss.last[1] = max(ss.last[0], w.now+d), max(ss.last[1], w.now+d)
	case k < 53 && n != nil:
		w.hit(Paused)
		n.paused = max(n.paused, w.now+w.between(time.Millisecond, 6*time.Second))
		w.tell("%v is PAUSED until %v", n.self, n.paused)
	case k < 66 && n != nil:
		w.hit(MoverDies)
		n.restartMover()
	case k < 69 && n != nil:
		n.supersede()
	case k < 80 && n != nil:
		if s.rank == 0 {
			w.hit(LeaderCrashes)
		} else {
			w.hit(RankCrashes)
		}
		n.crash()
	case k < 86 && s.eng != nil && s.eng.conn != nil:
		w.hit(SessionEnds)
		w.tell("session of engine %s/%d BREAKS", s.g.name, s.rank)
		s.eng.conn.end(nil)
	case k < 92 && s.eng != nil && !s.eng.dead:
		w.hit(EngineDies)
		s.eng.die()
		w.after(w.between(time.Millisecond, 3*time.Second), nil, func() { s.g.relaunch("a rank died") })
	case k < 94 && s.g.whole():
		w.hit(GroupEnds)
		s.g.relaunch("asked for")
	case k < 97:
		w.hit(NewWeights)
		for _, g := range w.groups { // as a trainer does, group by group
			at := w.between(0, 500*time.Millisecond)
			w.after(at, nil, func() { w.newWeights(g, s.g.epoch+1) })
		}
	case k < 99:
		w.reset(s.g)
	default:
		if n != nil {
			w.after(0, n, n.look)
		}
	}
}
