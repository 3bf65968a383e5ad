package joint

import (
	"slices"
	"time"

	"github.com/batonkv/baton/discovery"
	"github.com/batonkv/baton/internal/walk"
	"github.com/batonkv/baton/sidecar/machine"
	"github.com/batonkv/baton/transfer/staged"
)

// emitter counts what can happen without anybody's fault.
type emitter struct {
	emit func(walk.Step, string)
	s    string
	w    *world // is s
	live int
}

// do emits the state after f. A step that changes nothing is none: what it leaves to do
// shows at the end.
func (e *emitter) do(name string, a, b int, f func(*world)) {
	if s := e.after(0, f); s != e.s {
		e.live++
		e.emit(walk.Step{Name: name, Args: [3]int{a, b, 0}}, s)
	}
}

// fault is do that costs some of the budget.
func (e *emitter) fault(name string, a, b int, f func(*world)) {
	e.emit(walk.Step{Name: name, Args: [3]int{a, b, 0}, Fault: true}, e.after(1, f))
}

func (e *emitter) after(cost int8, f func(*world)) string {
	x := e.w.change()
	x.budget -= cost
	f(x)
	x.check()
	return x.pack()
}

const timePasses = "time passes to the next deadline"

// Next emits every step of s. Time passes by itself only where nothing else can happen:
// elsewhere a delay that reaches a deadline is a fault like another.
func (m *model) Next(s string, emit func(walk.Step, string)) {
	w := m.unpack(s)
	if w.bad != "" {
		return
	}
	e := &emitter{emit: emit, s: s, w: w}
	e.words()
	for i := range w.nodes {
		e.node(i)
	}
	for g := range w.crews() {
		if w.steps(g) {
			e.do("engines of group %d step", g, 0, func(x *world) { x.engines(g) })
		}
	}
	for g := range w.crews() {
		if m.set.room > 0 && w.decodes(g) {
			e.do("requests of group %d end", g, 0, func(x *world) {
				for i := range x.ranks(g) {
					x.step(i, act{kind: finishes})
				}
			})
		}
	}
	e.imports()
	if w.computes() {
		e.do("group %d computes on", 0, 0, func(x *world) { x.all(grows) })
	}
	at := w.instants()
	switch {
	case e.live > 0:
	case len(at) > 0:
		e.do(timePasses, 0, 0, func(x *world) {
			x.unheard()
			x.now = at[0]
		})
	default:
		e.launcher()
	}
	if w.budget > 0 {
		e.faults(at)
	}
}

// words are delivered in the order of their session.
func (e *emitter) words() {
	w := e.w
	for from := range w.nodes {
		for to := range w.nodes {
			if p := w.pipe(from, to); len(p.q) > 0 && w.node(to).acts() {
				e.do(w.letter(p.q[0]).sent, from, to, func(x *world) { x.deliver(from, to) })
			}
		}
	}
	for k, id := range w.late {
		l := w.letter(id)
		e.do("late "+l.sent, w.index(l.from), w.index(l.to), func(x *world) {
			x.late = slices.Delete(x.late, k, k+1)
			if to := x.index(l.to); x.node(to).self == l.to && !x.node(to).dead() {
				x.step(to, act{kind: arrives, a: int(id)})
			}
		})
	}
}

// one emits an act of node i.
func (e *emitter) one(name string, i int, a act) {
	e.do(name, i, a.a, func(x *world) { x.step(i, a) })
}

// node is what sidecar i, its mover and its engine do.
func (e *emitter) node(i int) {
	w, n := e.w, e.w.node(i)
	if w.set.twins {
		e.twins(i)
	}
	if n.hung {
		return
	}
	for k, t := range n.tickets {
		if t.job != (staged.Job{}) && !n.dead() {
			continue // its halves say when it ends
		}
		if !n.dead() && !t.dead {
			e.one("node %d: ticket %d ends good", i, act{kind: settles, a: k, c: w.bytes(t)})
		}
		if n.dead() || t.dead || t.canceled {
			e.one("node %d: ticket %d ends", i, act{kind: settles, a: k, b: 1})
		}
	}
	e.stage(i)
	if n.dead() {
		if n.idle() && w.may(comeBack) && !w.set.twins { // its mover was seen to have ended
			e.do("sidecar %d restarts", i, 0, func(x *world) { x.restart(i) })
		}
		return
	}
	if n.idle() && len(n.fromEng) == 0 && !n.eng.linked {
		switch {
		case n.eng.alive:
			e.one("node %d: its engine attaches", i, act{kind: joins})
		case n.anew:
			e.one("node %d: a new engine attaches", i, act{kind: launches})
		}
	}
	if len(n.fromEng) > 0 {
		e.one("node %d hears its engine", i, act{kind: says})
	}
	e.dials(i)
	for k := range n.opens {
		e.one("node %d: link %d opens", i, act{kind: linkOpens, a: k})
	}
	if n.lost {
		e.one("node %d: links are lost", i, act{kind: losesLinks})
	}
	if v := w.lives(); n.view != v && (w.may(views) || w.newborn(n.view, v)) {
		e.do("node %d sees discovery", i, 0, func(x *world) { x.step(i, act{kind: looks, c: uint64(v)}) })
	}
	if n.next > 0 && n.next <= w.now {
		e.one("node %d ticks", i, act{kind: ticks})
	}
}

// dials end at any time.
func (e *emitter) dials(i int) {
	w, n := e.w, e.w.node(i)
	for k, p := range n.dials {
		if o := w.node(w.index(p)); o.self != p || o.dead() {
			if n.view == w.lives() || !w.may(views) { // discovery tells first: a dial that fails before is dialled again
				e.do("node %d: dial fails", i, 0, func(x *world) { x.dialled(i, k) })
			}
		} else if !o.hung {
			e.do("node %d reaches %d", i, w.index(p), func(x *world) { x.dialled(i, k) })
		}
	}
}

// launcher ends the engines of a launch of which one is gone: a launch is whole or over.
// It comes last, when sources have been let go by time: that it comes at once is a fault
// of its own.
func (e *emitter) launcher() {
	for g := range e.w.first {
		if e.w.halved(g) {
			e.w.pinned(g)
			e.do("launcher ends group %d", g, 0, func(x *world) { x.endEngines(g) })
		}
	}
}

// pinned looks for an export of group g that a live rank has neither let go nor is to
// free with its group.
func (w *world) pinned(g int) {
	for i := range w.ranks(g) {
		for h := range w.set.labels {
			if n := w.node(i); n.eng.alive && !n.dead() && n.eng.holds(h) && !n.eng.letGo[h] && !n.eng.toFree(h) {
				w.fail("%v never lets go of hand-off %d", n.self, h)
			}
		}
	}
}

// halved reports whether some engines of group g are gone, and some are not.
func (w *world) halved(g int) bool {
	all, any := true, false
	for i := range w.ranks(g) {
		all = all && w.node(i).eng.alive
		any = any || w.node(i).eng.alive
	}
	return any && !all
}

// bytes are what ticket t would copy, a byte for each block.
func (w *world) bytes(t tick) (out uint64) {
	src := t.src
	if w.node(src).eng.own == nil { // its engine went to another process, and keeps its memory
		src = w.twin(src)
	}
	for j, b := range t.from {
		out |= uint64(w.node(src).eng.content[b][0]) << (8 * j)
	}
	return out
}

// lives is what discovery has to show.
func (w *world) lives() (out lives) {
	for i := range w.nodes {
		out |= lives(w.node(i).life) << (4 * i)
	}
	return out
}

// newborn reports whether v shows a process that was does not. A death comes with the
// end of the session, unless views may differ.
func (w *world) newborn(was, v lives) bool {
	for i := range w.nodes {
		if l := v.of(i); l != was.of(i) && l&1 == 0 {
			return true
		}
	}
	return false
}

// restart begins a sidecar's next life.
func (w *world) restart(i int) {
	v := w.lives() + 1<<(4*i)
	w.step(i, act{kind: restarts, c: uint64(v)})
}

func (m *model) records(v lives) (out []discovery.Record) {
	for i, p := range m.members {
		next := i < m.base && m.set.twins && v.of(m.twin(i))&1 == 0
		if l := v.of(i); l&1 == 0 && !next {
			out = append(out, discovery.Record{Group: p.Group, Rank: int32(p.Rank), Incarnation: uint64(p.Incarnation) + uint64(lifeSpan*l), Addr: "a"})
		}
	}
	return out
}

// imports are the calls that control planes make.
func (e *emitter) imports() {
	w := e.w
	for g, hs := range w.set.calls {
		made := int(w.calls[g])
		if made >= len(hs)+min(w.set.retry, int(w.failed[g])) {
			continue
		}
		h := hs[min(made, len(hs)-1)]
		man := w.mans[h]
		if man == 0 {
			continue
		}
		for _, i := range w.leaders(g + 1) {
			if w.node(i).dead() {
				continue
			}
			e.do("group %d is asked to import %d", g+1, h, func(x *world) {
				x.calls[g]++
				x.open[x.line(i)]++
				x.step(i, act{kind: imports, a: int(man)})
			})
		}
	}
}

// instants are the deadlines ahead, in order.
func (w *world) instants() (at []machine.Now) {
	for i := range w.nodes {
		if n := w.node(i); n.next > w.now && !slices.Contains(at, n.next) {
			at = append(at, n.next)
		}
	}
	slices.Sort(at)
	return at
}

const dawn = machine.Now(time.Hour) // machines take the instant 0 for none
