// Package sim runs whole clusters of sidecar machines, the very ones that package loop
// drives, in virtual time: groups of both sides with their engines, movers, discovery,
// network and clocks, all of which fail. One seed is one schedule, and replays exactly.
// What must never happen is checked where it would do harm: when a copy writes, when a
// source says that a pin is held, when an engine admits, frees or unpins; and at the
// end, when faults have stopped and time has run on, nothing may be left.
//
// world.go is time and chance, side.go a sidecar's process with its effects, net.go and
// wire.go what lies between sidecars, engine.go, steps.go, mover.go and stage.go what lies
// below them, users.go who exports and imports, faults.go what breaks at random and
// pinch.go what breaks on purpose, checks.go and rules.go what must hold, words.go the
// trace, run.go many schedules at a time.
package sim

import (
	"fmt"
	"io"
	"math/rand/v2"
	"time"

	"github.com/batonkv/baton/discovery"
	"github.com/batonkv/baton/sidecar/handoff"
	"github.com/batonkv/baton/sidecar/machine"
	"github.com/batonkv/baton/transfer/staged"
	"github.com/batonkv/baton/transfer/sums"
)

// world is one cluster.
type world struct {
	seed    uint64
	r       *rand.Rand
	now     time.Duration
	heap    moments
	seq     uint32
	calm    bool // faults have stopped
	seats   []*seat
	groups  []*group
	sources []*group   // those that export
	net     []*session // that are not cut
	lives   []*sidecar // by incarnation, from 1
	temper  temper

	engines  map[machine.Session]*engine // by the session that attached them
	last     machine.Session
	calls    map[machine.Call]*call
	lastC    machine.Call
	lastInc  uint64
	loads    map[staged.Job]*load // that are staged
	lastWire staged.Incarnation

	prompts  []prompt // by tag
	shown    []manifest
	book     book
	count    *Coverage
	print    io.Writer // the trace; nil: none
	seen     *sketch   // of states; nil: not counted
	launched bool      // the groups have had time to form
	dirt     uint32
	corrupt  bool // a copy brought a wrong bit
	bad      string
	history  uint64 // hash of every answer
	state    uint64 // of the sidecars' shapes
	ok       int    // imports that were admitted and told
}

// temper is how rough a world is.
type temper struct {
	slow                      int           // percent of messages that take long
	long                      time.Duration // how long at most
	dup                       int           // percent of messages that come twice
	replay                    int           // percent of messages between groups that come again, much later
	lease, hold, margin, keep time.Duration // of sidecars
	strike                    int           // of a thousand messages that matter, after how many something breaks
	links                     int           // percent of links that fail
	rivals                    int           // more importers than copies, at most
	early                     int           // percent of hand-offs that are announced
	burst                     int           // more requests than usual
	failing                   int           // percent of copies, links and mappings that fail
	fenced                    int           // percent of memory that a step still writes when it is handed out
	bereaved                  int           // of a thousand decisions, after how many their leader dies
	stale                     int           // percent of questions that an answer to an earlier one comes after
	staged                    bool          // no two groups share a host
	plain                     bool          // the model has no state per request
	policy                    handoff.WeightsPolicy
	parts                     int           // percent of exports that leave in parts
	hang                      int           // percent of copies that hang
	copies                    int           // percent of copies that are slow
	packs                     int           // percent of packs that are
	pack                      time.Duration // how slow at most
	pinch                     int           // percent of the instants of pinch.go at which something happens
	step                      time.Duration // of engines
	verify                    sums.Mode     // of sidecars
	corrupt                   int           // percent of copies that bring a wrong bit; of worlds that verify all
}

func (w *world) chance(percent int) bool { return !w.calm && percent > 0 && w.r.IntN(100) < percent }

// between is a random time in [lo, hi).
func (w *world) between(lo, hi time.Duration) time.Duration {
	if hi <= lo {
		return lo
	}
	return lo + time.Duration(w.r.Int64N(int64(hi-lo)))
}

// after does f in d, unless the sidecar that it reaches has died by then. What reaches
// a sidecar that is paused waits.
func (w *world) after(d time.Duration, to *sidecar, f func()) { w.when(w.now+d, to, f) }

func (w *world) when(at time.Duration, to *sidecar, f func()) {
	w.seq++
	w.heap.push(moment{at: max(at, w.now), seq: w.seq, to: to, f: f})
}

// transit is how long a message takes.
func (w *world) transit() time.Duration {
	if w.chance(w.temper.slow) {
		w.hit(SlowMessage)
		return w.between(20*time.Millisecond, w.temper.long)
	}
	return w.between(100*time.Microsecond, 4*time.Millisecond)
}

// run lets everything happen that is due until limit, or until nothing is under way.
func (w *world) run(limit time.Duration, steps int) {
	for len(w.heap) > 0 && w.heap[0].at <= limit && w.bad == "" {
		m := w.heap.pop()
		switch {
		case m.to != nil && m.to.dead:
			continue
		case m.to != nil && m.to.paused > m.at:
			m.at = m.to.paused // seq stays: what came first is heard first
			w.heap.push(m)
			continue
		}
		w.now = m.at
		m.f()
		if steps--; steps == 0 {
			w.fail("no rest: %d moments are still to come", len(w.heap))
		}
	}
}

func (w *world) fail(format string, a ...any) {
	if w.bad == "" {
		w.bad = fmt.Sprintf(format, a...)
		w.tell("VIOLATION: %s", w.bad)
	}
}

func (w *world) tell(format string, a ...any) {
	if w.print != nil {
		fmt.Fprintf(w.print, "%12.6f  %s\n", w.now.Seconds(), fmt.Sprintf(format, a...))
	}
}

func (w *world) hit(f Fault) { w.count.Faults[f]++ }

// seat is one rank of a group: the sidecar process that serves it, and its engine.
type seat struct {
	w              *world
	g              *group
	i              int // in world.seats
	rank           int
	side           *sidecar            // nil while none runs
	eng            *engine             // of the present launch
	listed, before handoff.Incarnation // what discovery shows, and what it showed
}

// group is one engine group.
type group struct {
	w             *world
	name          string
	role          discovery.Role
	seats         []*seat
	instance      handoff.Instance
	launched      int // launches so far
	blocks, slots int // of each engine
	ending        bool
	old           bool // its engines read no parts

	through  uint64 // what rank 0's engine broadcasts in its next step
	stepping bool   // a step is due
	decided  []handoff.Decision
	freed    map[string]uint64 // the newest Free of a label
	epoch    uint64            // of the weights that its engines were launched with
	decoding []uint64          // admitted and not ended, by Reserve
	ends     []uint64          // end in the next step
	grows    []*growing
	wanted   []int // tags of prompts that wait to be exported
	labels   int
}

func (g *group) tp() int { return len(g.seats) }

// units are the rows of heads that a rank holds.
func (s *seat) units() (lo, hi int) {
	n := units / s.g.tp()
	return s.rank * n, (s.rank + 1) * n
}

// answered folds a step into the schedule's history, and the cluster's state into what
// was seen. Types are enough: what else an answer says follows from what was asked.
func (w *world) answered(n *sidecar, e machine.Event, fs []machine.Effect) {
	h := w.history*31 + uint64(n.i)
	for _, f := range fs {
		h = h*1099511628211 ^ uint64(kindOf(f))
	}
	w.history = mix(h)
	if w.seen == nil {
		return
	}
	shape := n.m.Shape()
	w.state += mix(shape+uint64(n.i)) - mix(n.shape+uint64(n.i))
	n.shape = shape
	w.seen.mark(w.state)
}

// kindOf numbers the kinds of effects, and of what they carry between processes.
func kindOf(f machine.Effect) (k int) {
	switch f := f.(type) {
	case machine.ToPeer:
		switch f.Msg.(type) {
		case handoff.Opened:
			return 1
		case handoff.DoneAck:
			return 2
		case handoff.Checked:
			return 3
		case handoff.Landed:
			return 4
		case handoff.Decision:
			return 5
		}
		return 6
	case machine.ToEngine:
		return 7
	case machine.Pull:
		return 8
	case machine.Reply:
		return 9
	case machine.ClosePeer, machine.CloseEngine:
		return 10
	}
	return 11
}
