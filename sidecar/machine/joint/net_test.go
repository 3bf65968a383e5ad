package joint

import (
	"fmt"

	"github.com/batonkv/baton/sidecar/handoff"
	"github.com/batonkv/baton/sidecar/machine"
	"github.com/batonkv/baton/transfer/staged"
)

// letter is one word of one sidecar to another.
type letter struct {
	from, to handoff.Member
	what     word
	msg      handoff.PeerMessage
	wire     staged.Message // of the halves of a staged pull; nil: msg is a sidecar's
	sent     string         // how a trace names its arrival
}

type word uint8

const (
	message word = iota
	isUp
	isDown
)

func (l *letter) name() string {
	if l.wire != nil {
		return fmt.Sprintf("%T", l.wire)
	}
	return [...]string{fmt.Sprintf("%T", l.msg), "up", "down"}[l.what]
}

func (w *world) pipe(from, to int) *pipe { return &w.pipes[from*len(w.nodes)+to] }

// put appends without touching what other states see.
func (p *pipe) put(l uint32) { p.q = append(p.q[:len(p.q):len(p.q)], l) }

// arrive takes a letter.
func (r *runner) arrive(l *letter) {
	switch {
	case l.wire != nil:
		r.wired(l)
	case l.what == isUp:
		r.wireUp(l.from)
		r.event(machine.PeerUp{Peer: l.from})
	case l.what == isDown:
		r.wireDown(l.from)
		r.event(machine.PeerDown{Peer: l.from, Err: errMade})
	default:
		r.event(machine.FromPeer{Peer: l.from, Msg: l.msg})
	}
}

// apply does what a step of node i did outside it.
func (w *world) apply(i int, o out) {
	n := w.node(i)
	switch o.kind {
	case sends:
		if o.to < 0 {
			w.toStranger(n, w.letter(o.msg))
			return
		}
		w.observe(n, w.letter(o.msg))
		if p := w.pipe(i, o.to); p.up && w.node(o.to).self == w.letter(o.msg).to {
			p.put(o.msg)
		}
	case parts:
		if o.to < 0 {
			return
		}
		w.cut(i, o.to, 1<<30, 1<<30)
	case endsEngine:
		w.endEngine(i)
	case remarks:
		w.remember(o.at)
	case replies:
		l := w.line(i)
		if w.open[l]--; w.open[l] < 0 {
			w.fail("a call is answered twice")
		}
		w.failed[n.g-1] += int8(o.to)
	case shows:
		w.mans[o.to] = o.msg
	case admits:
		w.admit(n, o.at.proof.claim)
	case frees:
		w.step(i, act{kind: freed, a: o.to})
	case breaks_:
		w.fail("%s", o.text)
	}
}

// toStranger: who has no key, or names another, learns nothing and consumes nothing.
func (w *world) toStranger(n *node, l *letter) {
	switch msg := l.msg.(type) {
	case handoff.Opened:
		if msg.Status == handoff.OK || len(msg.Pins) > 0 {
			w.fail("%v opens for a stranger", n.self)
		}
	case handoff.DoneAck:
		if msg.Status == handoff.OK {
			w.fail("%v gives a copy to a stranger", n.self)
		}
	}
}

// observe notes what answers promise, where they are given.
func (w *world) observe(n *node, l *letter) {
	switch msg := l.msg.(type) {
	case handoff.DoneAck:
		w.answered(n, claim{msg.ID, w.group[w.index(l.to)], msg.Attempt}, msg.Status)
	case handoff.Checked:
		if !msg.Held {
			return
		}
		for h, k := range w.mans {
			if k > 0 && w.table.mans[k].ID == msg.Check.ID && !n.eng.holds(h) {
				w.fail("%v says that hand-off %d is held, and its memory was given back", n.self, h)
			}
		}
		dst := w.index(l.to)
		p := proof{claim{msg.Check.ID, w.group[dst], msg.Check.Attempt}, dst % w.base, int(n.self.Rank)}
		if x := w.ghost(); x.read[p] && !x.proved[p] && n.eng.said == 0 {
			w.remember(remark{what: wasProved, proof: p})
		}
	}
}

// answered: the same claim gets the same answer, and OK only while the lease runs and a
// copy is left.
func (w *world) answered(by *node, c claim, s handoff.Status) {
	x := w.ghost()
	switch was := x.answered[c]; {
	case was == s:
		return
	case was == handoff.OK && s == handoff.Gone && by.forgot(c.id):
		return
	case was != 0:
		w.fail("the claim %+v is answered %v, and was answered %v", c, s, was)
	}
	w.remember(remark{what: wasAnswered, proof: proof{claim: c}, said: s})
	if s != handoff.OK {
		return
	}
	if n := w.ghost().spent(c.id); n > max(w.set.copies, 1) {
		w.fail("hand-off %v is consumed %d times", c.id, n)
	}
	for h, k := range w.mans {
		for i := range w.nodes {
			n := w.node(i)
			if n.g == 0 && k > 0 && w.table.mans[k].ID == c.id && n.eng.alive && n.eng.launch == by.eng.launch && (!n.eng.holds(h) || n.eng.letGo[h]) {
				w.fail("%+v consumes a copy, and %v does not hold it", c, n.self)
			}
			if n.g == 0 && n.eng.said > 0 {
				w.fail("%+v consumes a copy, and %v has not exported the last part", c, n.self)
			}
		}
	}
}

// forgot: a leader of p keeps answers for as long as imports may live.
func (n *node) forgot(id handoff.ID) bool {
	_, known := n.m.Get(id)
	return !known
}

// admit is where a wrong byte would do harm: everything that must be true is asked.
func (w *world) admit(n *node, c claim) {
	if w.ghost().answered[c] != handoff.OK {
		w.fail("%v admits %v, attempt %d, without a copy", n.self, c.id, c.a)
	}
	if w.ghost().aborted[c] {
		w.fail("%v admits %v, attempt %d, which was aborted", n.self, c.id, c.a)
	}
	for _, s := range w.reads(n.i) {
		if !w.ghost().proved[proof{c, n.i % w.base, s}] {
			w.fail("%v admits %v, which source rank %d has not proved", n.self, c.id, s)
		}
	}
}

// deliver gives node to the first letter of a pipe.
func (w *world) deliver(from, to int) {
	p := w.pipe(from, to)
	l := p.q[0]
	p.q = p.q[1:]
	w.step(to, act{kind: arrives, a: int(l)})
	if v := w.lives(); w.letter(l).what == isDown && w.node(to).view != v && !w.may(views) {
		w.step(to, act{kind: looks, c: uint64(v)})
	}
}

// dialled ends dial k of node i.
func (w *world) dialled(i, k int) {
	p := w.node(i).dials[k]
	to := w.index(p)
	if o := w.node(to); o.self != p || o.dead() {
		w.step(i, act{kind: unreached, a: k})
		return
	}
	w.step(i, act{kind: reached, a: k})
	a, b := w.pipe(i, to), w.pipe(to, i)
	if a.up {
		return // the other's dial was faster, and its word is on the way
	}
	a.put(w.mark(i, to, isUp))
	b.put(w.mark(to, i, isUp))
	a.up, b.up = true, true
}

func (w *world) mark(from, to int, what word) uint32 {
	return w.enterLetter(letter{from: w.node(from).self, to: w.node(to).self, what: what})
}

// cut ends the session of two nodes. Of what is under way, the first keepA from a and
// keepB from b still arrive.
func (w *world) cut(a, b int, keepA, keepB int) {
	if !w.pipe(a, b).up {
		return
	}
	w.end(a, b, keepA)
	w.end(b, a, keepB)
}

func (w *world) end(from, to, keep int) {
	p := w.pipe(from, to)
	p.up = false
	if w.node(to).dead() {
		p.q = nil
		return
	}
	p.q = p.q[:min(w.session(p)+keep, len(p.q))]
	p.put(w.mark(from, to, isDown))
}

// session is where the words of the present session begin in p's queue.
func (w *world) session(p *pipe) int {
	for i := len(p.q) - 1; i >= 0; i-- {
		if w.letter(p.q[i]).what != message {
			return i + 1
		}
	}
	return 0
}

// endEngine ends an engine process. Its memory stays until movers let go.
func (w *world) endEngine(i int) {
	if w.node(i).eng.alive {
		w.step(i, act{kind: engineDies})
	}
}

func (w *world) endEngines(g int) {
	for i := range w.ranks(g) {
		w.endEngine(i)
	}
}
