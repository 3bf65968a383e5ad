package joint

import (
	"slices"

	"github.com/batonkv/baton/sidecar/machine"
	"github.com/batonkv/baton/transfer/staged"
)

// faultKind is a set of faults.
type faultKind uint32

const (
	breaks     faultKind = 1 << iota // a session ends; any number of its last words are lost
	lates                            // a session ends, and one of its words arrives at any later time
	twice                            // a word arrives, and again at any later time
	delays                           // time passes to a deadline while something else could happen
	badCopies                        // a copy fails
	badLinks                         // a link cannot be opened
	movers                           // a mover dies: its copies end badly, its links are gone
	sidecars                         // a sidecar dies, and its mover with it
	enginesDie                       // one engine rank dies alone
	aborts                           // a control plane aborts an import
	releases                         // a control plane releases a hand-off
	weights                          // a trainer changes a group's weights
	forgers                          // a word is said by somebody else, or wrongly
	sessions                         // an engine's session ends, and both sides live
	comeBack                         // dead sidecars restart, with their engines; else the launch is over
	views                            // discovery tells of a death at any time; else with the session's end
	wires                            // a wire mover dies
	hosts                            // a host hangs, its group is launched anew elsewhere, and it comes back
	preempts                         // p's engine takes the memory of a prompt that leaves in parts

	network   = breaks | lates | twice
	processes = movers | sidecars | enginesDie
	users     = aborts | releases
	every     = network | processes | wires | users | delays | badCopies | badLinks // views is about when, not what
)

func (w *world) may(f faultKind) bool { return w.set.faults&f != 0 }

func (e *emitter) faults(at []machine.Now) {
	w := e.w
	if w.may(delays) {
		for k, t := range at {
			e.fault("a delay to deadline %d ahead", k, 0, func(x *world) { x.now = t })
		}
	}
	e.network()
	for i := range w.nodes {
		if !w.node(i).dead() {
			e.troubles(i)
		}
	}
	e.users()
	if w.may(preempts) && w.computes() {
		e.fault("hand-off %d is preempted", 0, 0, func(x *world) { x.all(preempts_) })
	}
}

func (e *emitter) network() {
	w := e.w
	for a := range w.nodes {
		for b := range w.nodes {
			p := w.pipe(a, b)
			if w.may(forgers) && len(p.q) > 0 && !w.node(b).dead() {
				e.forgeries(b, p.q[0])
			}
			if w.may(twice) && len(p.q) > 0 && w.letter(p.q[0]).what == message && len(w.late) == 0 && !w.node(b).dead() {
				e.fault(w.letter(p.q[0]).sent+", and once more later", a, b, func(x *world) {
					x.late = append(x.late, p.q[0])
					x.deliver(a, b)
				})
			}
			if a < b && p.up {
				e.breaks(a, b)
			}
		}
	}
}

// breaks ends the session of a and b in every way.
func (e *emitter) breaks(a, b int) {
	w := e.w
	p, q := w.pipe(a, b), w.pipe(b, a)
	p0, q0 := w.session(p), w.session(q)
	if w.may(breaks) {
		for keepA := range len(p.q) - p0 + 1 {
			for keepB := range len(q.q) - q0 + 1 {
				e.fault("%d and %d part", a, b, func(x *world) { x.cut(a, b, keepA, keepB) })
			}
		}
	}
	if !w.may(lates) || len(w.late) > 0 {
		return
	}
	for _, l := range append(slices.Clone(p.q[p0:]), q.q[q0:]...) {
		e.fault("they part, and late is "+w.letter(l).sent, w.index(w.letter(l).from), w.index(w.letter(l).to), func(x *world) {
			x.cut(a, b, 0, 0)
			x.late = append(x.late, l)
		})
	}
}

// troubles are the faults of one node.
func (e *emitter) troubles(i int) {
	w, n := e.w, e.w.node(i)
	if w.may(badCopies) {
		for k, t := range n.tickets {
			if !t.canceled && !t.dead && t.job == (staged.Job{}) {
				e.trouble("node %d: ticket %d ends badly", i, act{kind: settles, a: k, b: 1})
			}
		}
	}
	if w.may(badLinks) {
		for k := range n.opens {
			e.trouble("node %d: link %d does not open", i, act{kind: linkOpens, a: k, b: 1})
		}
	}
	e.stageTroubles(i)
	if w.may(movers) && !n.lost {
		e.trouble("node %d: its mover dies", i, act{kind: moverDies})
	}
	if w.may(enginesDie) && n.eng.alive {
		e.fault("node %d: its engine dies", i, 0, func(x *world) { x.endEngine(i) })
		if w.halved(n.g) {
			e.fault("node %d: the launcher ends group %d", i, n.g, func(x *world) { x.endEngines(n.g) })
		}
	}
	if w.may(sessions) && n.eng.alive && n.eng.linked {
		e.trouble("node %d: the session of its engine ends", i, act{kind: parts_})
	}
	if w.may(weights) && n.self.Rank == 0 && n.eng.epoch == 0 {
		e.trouble("node %d is given new weights", i, act{kind: newWeights})
	}
	if w.may(hosts) && i < w.base && !n.old && n.eng.alive && n.eng.linked && w.node(w.twin(i)).unborn() {
		e.fault("host %d hangs, and its group is launched anew", i, 0, func(x *world) { x.supersede(i) })
	}
	if w.may(sidecars) && n.life < 2 {
		e.fault("sidecar %d dies", i, 0, func(x *world) { x.crash(i, 1<<30) })
		e.fault("sidecar %d dies, and what it said last", i, 0, func(x *world) { x.crash(i, 0) })
		if w.set.twins && n.self.Rank == 0 && n.eng.mayMiss() {
			e.fault("sidecar %d dies, and what it said last to its engine", i, 0, func(x *world) {
				x.step(i, act{kind: dies, b: 1})
				x.ended(i, 1<<30)
			})
		}
	}
}

func (e *emitter) trouble(name string, i int, a act) {
	e.fault(name, i, a.a, func(x *world) { x.step(i, a) })
}

// crash ends a sidecar and its mover. Of what it said, keep words a session arrive.
func (w *world) crash(i, keep int) {
	w.step(i, act{kind: dies})
	w.ended(i, keep)
}

// ended is what follows for others when the process of node i has.
func (w *world) ended(i, keep int) {
	for j := range w.nodes {
		if j != i {
			w.cut(i, j, keep, 0)
			w.pipe(j, i).q = nil
		}
	}
	n := w.node(i)
	if !w.may(comeBack) || n.old {
		w.endEngine(i)
	}
	if n.g > 0 && n.self.Rank == 0 { // its callers hear of the broken connection
		l := w.line(i)
		w.failed[n.g-1] += w.open[l]
		w.open[l] = 0
	}
}

func (e *emitter) users() {
	w := e.w
	for h, man := range w.mans {
		if man == 0 {
			continue
		}
		for g := range w.set.dst {
			for _, i := range w.leaders(g + 1) {
				if n := w.node(i); w.may(aborts) && !n.dead() && n.m.Imports() > 0 {
					e.fault("group %d: import %d is aborted", g+1, h, func(x *world) { x.step(i, act{kind: isAborted, a: int(man)}) })
				}
			}
		}
		if w.may(releases) && !w.node(0).dead() {
			e.fault("hand-off %d is released", h, 0, func(x *world) { x.step(0, act{kind: isReleased, a: int(man)}) })
		}
	}
}
