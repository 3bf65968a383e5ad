package joint

import (
	"github.com/batonkv/baton/sidecar/machine"
)

// Two sidecars of one rank. Where a world has twins each node has a second place, in which
// another process of the same rank starts: its sessions are its own, so that peers hear
// both in any order. Two things bring one about.
//
// The process dies, and what it said last is under way when its successor talks already.
// Its mover lives until its exit is seen, and the engine comes to the successor then.
//
// A host hangs, and the group is launched anew with another process in its place. It comes
// back with its engine, acts on what it heard and held, and ends when it sees that its
// key is another's. One engine never has two live sidecars: a run directory is one's.

// twin is the other place of node i.
func (m *model) twin(i int) int { return (i + m.base) % len(m.members) }

// seat is where the engine of the rank is that began at node i: of the newest launch.
func (w *world) seat(i int) int {
	if k := w.twin(i); w.node(k).eng.own != nil {
		return k
	}
	return i
}

// crews are whose engines step together: each group's, and what a host that hung brought
// back, which is a group of its own if it needs no other rank.
func (w *world) crews() int {
	if w.set.twins {
		return len(w.first) + w.base
	}
	return len(w.first)
}

// head is rank 0's node of a crew; -1: there is no such crew.
func (w *world) head(crew int) int {
	if crew < len(w.first) {
		return w.seat(w.first[crew])
	}
	i := crew - len(w.first)
	if w.size[w.group[i]] > 1 || !w.node(i).old || w.node(i).hung || w.seat(i) == i || !w.node(i).eng.alive {
		return -1
	}
	return i
}

// ranks are the nodes of a crew.
func (w *world) ranks(crew int) func(func(int) bool) {
	return func(yield func(int) bool) {
		if crew >= len(w.first) {
			yield(w.head(crew))
			return
		}
		for i := range int(w.size[crew]) {
			if !yield(w.seat(w.first[crew] + i)) {
				return
			}
		}
	}
}

// leaders are the nodes of rank 0 of a group, of any launch.
func (w *world) leaders(g int) []int {
	if w.set.twins {
		return []int{w.first[g], w.twin(w.first[g])}
	}
	return []int{w.first[g]}
}

// line is where the calls to a leader are counted.
func (w *world) line(i int) int { return w.group[i] - 1 + i/w.base*len(w.set.dst) }

// twins emits how a second process comes, and how a first one goes.
func (e *emitter) twins(i int) {
	w, n := e.w, e.w.node(i)
	k := w.twin(i)
	switch {
	case i < w.base:
		if w.node(k).unborn() && (n.old || n.dead() && w.may(comeBack)) {
			e.do("sidecar %d starts in the place of %d", k, i, func(x *world) { x.succeed(i) })
		}
		if n.hung && w.renewed(n.g) {
			e.one("host %d goes on", i, act{kind: ages})
		}
		if n.old && !n.hung && !n.dead() && !w.node(k).unborn() {
			e.do("sidecar %d sees another in its place, and exits", i, 0, func(x *world) { x.crash(i, 1<<30) })
			e.do("sidecar %d sees another in its place, and exits, with what it said last", i, 0, func(x *world) { x.crash(i, 0) })
		}
	case !n.dead() && n.eng.own == nil && !n.anew && w.node(k).idle() && w.node(k).eng.alive:
		e.do("the engine of %d attaches to %d", k, i, func(x *world) { x.inherit(k, i) })
	}
}

// renewed reports whether group g stands with another launch.
func (w *world) renewed(g int) bool {
	for i := range w.ranks(g) {
		if n := w.node(i); n.eng.launch == 0 || n.dead() || !n.m.Status().Ready {
			return false
		}
	}
	return true
}

// unborn: its process has not started yet.
func (n *node) unborn() bool { return n.life == 1 && n.eng.own == nil && n.eng.session == 0 }

// idle: no mover of it touches its engine's memory.
func (n *node) idle() bool { return len(n.tickets)+len(n.packs) == 0 }

// succeed starts a second process of the rank of node i.
func (w *world) succeed(i int) {
	k := w.twin(i)
	v := w.lives() + 1<<(4*k)
	w.step(k, act{kind: restarts, c: uint64(v)})
	if w.node(i).old {
		w.step(k, act{kind: renews})
	}
}

// inherit brings the engine of node i to node k.
func (w *world) inherit(i, k int) {
	w.step(k, act{kind: inherits, a: int(w.nodes[i])})
	w.step(i, act{kind: loses})
	w.step(k, act{kind: joins})
}

// supersede launches the group of node i anew, which hangs, and knows nothing of it.
func (w *world) supersede(i int) {
	hung := 0
	if w.set.frozen {
		hung = 1
	}
	w.step(i, act{kind: ages, b: hung})
	for j := range w.ranks(w.group[i]) {
		if j != i {
			w.endEngine(j)
			w.step(j, act{kind: renews})
		}
	}
}

// twinned is what happens to nodes that have or are a second one.
func (r *runner) twinned(a act) {
	n := r.node
	switch a.kind {
	case ages:
		n.old, n.hung = true, a.b == 1
	case renews:
		n.anew = true
	case launches:
		e := newEngine(max(n.eng.session, machine.Session(n.i+1)), r.blocks(n.g))
		e.launch = 1
		n.eng, n.anew = e, false
		r.join()
	case inherits:
		n.eng = r.cloneOf(uint32(a.a)).eng
	case loses:
		n.eng = engine{}
	}
}
