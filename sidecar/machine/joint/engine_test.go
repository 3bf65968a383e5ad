package joint

import (
	"slices"

	"github.com/batonkv/baton/sidecar/handoff"
	"github.com/batonkv/baton/sidecar/machine"
)

// engine is one engine rank: a mirrored allocator, what its blocks contain, and the
// decisions that it holds and has not applied. Memory that is given back is written over
// at once: the worst that can be done with it.
type engine struct {
	session machine.Session
	alive   bool
	linked  bool               // its session stands
	ready   bool               // and the mover maps its memory
	launch  uint64             // counts the launches of its group, from 0
	epoch   uint64             // of the weights, as of what it applied
	kept    []handoff.Decision // what it states when it attaches again
	settled uint64
	own     []uint64        // by block: 0 free, a Reserve's number, or exportBit and a hand-off
	content [][maxSrc]uint8 // by block and source rank; a source's own content is in [0]
	held    []handoff.Decision
	last    uint64
	applied uint64
	through uint64                          // rank 0: what it heard
	taken   map[uint64]claim                // by Reserve: for what
	names   map[uint64]string               // by Reserve: the label
	verdict map[uint64]handoff.DecisionKind // by Reserve: Admit or Drop
	letGo   map[int]bool                    // hand-offs that this rank's sidecar unpinned alone
	said    uint32                          // parts of hand-off 0 that it exported; 0: none, or all
}

const (
	exportBit = 1 << 40
	maxSrc    = 3
	garbage   = 1
	goodByte  = 100 // and the hand-off
)

func newEngine(s machine.Session, blocks int) engine {
	return engine{session: s, alive: true, own: make([]uint64, blocks), content: make([][maxSrc]uint8, blocks),
		taken: map[uint64]claim{}, names: map[uint64]string{}, verdict: map[uint64]handoff.DecisionKind{}, letGo: map[int]bool{}}
}

// take takes n blocks, all or nothing.
func (e *engine) take(n int, owner uint64) (bs []int32) {
	for b := range e.own {
		if e.own[b] == 0 && len(bs) < n {
			bs = append(bs, int32(b))
		}
	}
	if len(bs) < n {
		return nil
	}
	for _, b := range bs {
		e.own[b] = owner
	}
	return bs
}

func (e *engine) give(owner uint64) (n int32) {
	for b := range e.own {
		if e.own[b] == owner {
			e.own[b], e.content[b] = 0, [maxSrc]uint8{garbage, garbage, garbage}
			n++
		}
	}
	return n
}

func (e *engine) blocksOf(owner uint64) (bs []int32) {
	for b, o := range e.own {
		if o == owner {
			bs = append(bs, int32(b))
		}
	}
	return bs
}

// holds reports whether hand-off h is still in this engine's memory.
func (e *engine) holds(h int) bool { return slices.Contains(e.own, exportBit|uint64(h)) }

// export puts a finished prompt into the memory of this rank, which says so at its own
// pace.
func (r *runner) export(h int) {
	e := &r.node.eng
	bs := e.take(int(r.set.tokens/blockTokens), exportBit|uint64(h))
	if bs == nil {
		r.fail("no room for export %d", h)
	}
	if r.set.parts != nil {
		r.grow()
		return
	}
	for _, b := range bs {
		e.content[b] = [maxSrc]uint8{goodByte + uint8(h)}
	}
	r.say(handoff.Export{Label: labelOf(h), Blocks: bs, Slot: -1, Tokens: r.set.tokens, Position: r.set.tokens, Copies: r.set.copies, MaxHold: r.set.hold})
}

// join opens a session: the engine states what it keeps of this launch.
func (r *runner) join() {
	n, e := r.node, &r.node.eng
	e.linked, e.ready, e.said = true, false, 0 // what was not exported whole stays so: no session goes on for another
	e.session += 100
	a := r.attach(n.i, e.launch)
	a.Held, a.Applied, a.Model.WeightsEpoch, a.Decisions = e.last, e.applied, e.epoch, slices.Clone(e.kept)
	for h := range max(r.set.labels, 1) {
		if e.holds(h) && !e.letGo[h] {
			a.Pins = append(a.Pins, labelOf(h))
		}
	}
	n.say(a)
	n.say(handoff.BuffersReady{})
}

func (n *node) say(m handoff.FromEngine) {
	if n.eng.alive && n.eng.linked {
		n.fromEng = append(n.fromEng, machine.FromEngine{Session: n.eng.session, Msg: m})
	}
}

// hear is the engine's client: it holds what comes at once. That a sidecar hears of it
// in the same step loses nothing, since what the sidecar then says travels by itself.
func (r *runner) hear(f machine.ToEngine) {
	e := &r.node.eng
	if e.session != f.Session || !e.alive || !e.linked {
		return
	}
	switch m := f.Msg.(type) {
	case handoff.Decision:
		switch {
		case m.N > e.last+1:
			r.fail("%v: decision %d after %d", r.node.self, m.N, e.last)
		case m.N == e.last+1:
			e.last = m.N
			e.held, e.kept = append(e.held, m), append(e.kept, m)
		}
		e.settled = max(e.settled, m.Settled)
		e.kept = slices.DeleteFunc(e.kept, func(o handoff.Decision) bool { return o.N <= min(e.settled, e.applied) })
		r.local = append(r.local, machine.FromEngine{Session: e.session, Msg: handoff.Held{N: e.last}})
	case handoff.Through:
		e.through = max(e.through, m.N)
	case handoff.MoverStarted:
		e.ready = true
	case handoff.UnpinExport:
		e.letGo[handOf(m.Label)] = true
	case handoff.Failed:
		e.letGo[handOf(m.Label)] = true
	case handoff.Exported:
		r.put(out{kind: shows, to: handOf(m.Label), msg: r.enterMan(m.Manifest)})
	}
}

// misses takes back the decisions that rank 0's engine did not read when its sidecar died.
// It read all that came before a Through.
func (e *engine) misses() {
	e.last = max(e.through, e.applied)
	unread := func(d handoff.Decision) bool { return d.N > e.last }
	e.held, e.kept = slices.DeleteFunc(e.held, unread), slices.DeleteFunc(e.kept, unread)
}

// mayMiss reports whether there are such decisions, and the one before was not forgotten
// for what they say is settled.
func (e *engine) mayMiss() bool {
	read := max(e.through, e.applied)
	return e.last > read && (read == 0 || slices.ContainsFunc(e.kept, func(d handoff.Decision) bool { return d.N == read }))
}

// finish ends the requests that this engine decodes.
func (r *runner) finish() {
	var free int32
	for of, k := range r.eng.verdict {
		if k == handoff.Admit {
			free += r.eng.give(of)
		}
	}
	if free > 0 && r.node.self.Rank == 0 {
		r.put(out{kind: frees, to: int(free)})
	}
}

// decodes reports whether every rank of crew g holds an admitted request.
func (w *world) decodes(g int) bool {
	if w.head(g) < 0 {
		return false
	}
	for i := range w.ranks(g) {
		e := &w.node(i).eng
		if !slices.ContainsFunc(e.own, func(o uint64) bool { return e.verdict[o] == handoff.Admit }) {
			return false
		}
	}
	return true
}

// toFree reports whether this engine holds decision Free of hand-off h.
func (e *engine) toFree(h int) bool {
	return slices.ContainsFunc(e.held, func(d handoff.Decision) bool { return d.Kind == handoff.Free && d.Label == labelOf(h) })
}

// letGo are the hand-offs that every rank of crew g was told to unpin outside the order, as a
// set: a mirrored allocator takes them back when all have.
func (w *world) letGo(g int) (out int) {
	for h := range w.set.labels {
		all, any := true, false
		for i := range w.ranks(g) {
			e := &w.node(i).eng
			all = all && (e.letGo[h] || !e.holds(h))
			any = any || e.holds(h)
		}
		if all && any {
			out |= 1 << h
		}
	}
	return out
}

// steps reports whether a step of crew g's engines would do something.
func (w *world) steps(g int) bool {
	head := w.head(g)
	if head < 0 {
		return false
	}
	first := &w.node(head).eng
	for i := range w.ranks(g) {
		if e := &w.node(i).eng; !e.alive || e.launch != first.launch {
			return false
		}
	}
	return first.applied < first.through || w.letGo(g) != 0
}

// engines is one step of crew g's engines, all ranks at once.
func (w *world) engines(g int) {
	first := &w.node(w.head(g)).eng
	a := act{kind: applies, a: w.letGo(g), c: first.through}
	for i := range w.ranks(g) {
		if d := w.node(i).eng.unlike(first); d > 0 {
			w.fail("%v applies another decision %d than rank 0", w.node(i).self, d)
		}
	}
	for i := range w.ranks(g) {
		w.step(i, a)
	}
}

// unlike is the first decision that is not what it is on rank 0, of those that come next on
// both; 0: none.
func (e *engine) unlike(first *engine) uint64 {
	for k := range min(len(e.held), len(first.held)) {
		d, o := e.held[k], first.held[k]
		if d.N > first.through {
			break
		}
		if d.N != o.N || d.Kind != o.Kind || d.Of != o.Of || d.Label != o.Label || d.Attempt != o.Attempt {
			return d.N
		}
	}
	return 0
}

func (r *runner) applyThrough(through uint64, let int) {
	e := &r.node.eng
	if e.last < through {
		r.fail("%v applies through %d and holds %d", r.node.self, through, e.last)
	}
	was, free := e.applied, int32(0)
	for len(e.held) > 0 && e.held[0].N <= through {
		d := e.held[0]
		e.held = e.held[1:]
		e.applied = d.N
		free += r.decided(d)
	}
	for h := range r.set.labels {
		if let>>h&1 == 1 {
			e.said = 0
			free += e.give(exportBit | uint64(h))
		}
	}
	if e.applied != was {
		r.say(handoff.Applied{N: e.applied})
	}
	if free > 0 && r.node.self.Rank == 0 {
		r.put(out{kind: frees, to: int(free)})
	}
}

// decided applies one decision.
func (r *runner) decided(d handoff.Decision) (free int32) {
	e := &r.node.eng
	switch d.Kind {
	case handoff.Reserve:
		x := handoff.Reserved{N: d.N, Slot: -1, Blocks: e.take(int(d.Tokens/blockTokens), d.N)}
		x.Full = x.Blocks == nil
		for i, b := range x.Blocks {
			x.Digest[i] = byte(b) + 1
		}
		e.taken[d.N] = claim{d.ID, r.node.g, d.Attempt}
		e.names[d.N] = d.Label
		r.say(x)
	case handoff.Admit:
		r.admit(d)
		e.verdict[d.Of] = d.Kind
	case handoff.Drop:
		e.verdict[d.Of] = d.Kind
	case handoff.ReleaseQuarantine:
		if e.verdict[d.Of] != handoff.Drop {
			r.fail("%v releases %d, which was not dropped", r.node.self, d.Of)
		}
		free += e.give(d.Of)
	case handoff.SetWeightsEpoch:
		e.epoch = d.WeightsEpoch
	case handoff.Free:
		e.said = 0
		free += e.give(exportBit | uint64(handOf(d.Label)))
	}
	return free
}

// admit asks what this rank alone can see; the world asks the rest.
func (r *runner) admit(d handoff.Decision) {
	n, e := r.node, &r.node.eng
	c := e.taken[d.Of]
	if c.id != d.ID || c.a != d.Attempt || e.verdict[d.Of] != 0 {
		r.fail("%v admits %v, attempt %d, of %+v, which it decided before: %v", n.self, d.ID, d.Attempt, c, e.verdict[d.Of])
	}
	bs := e.blocksOf(d.Of)
	if len(bs) != int(r.set.tokens/blockTokens) {
		r.fail("%v admits %v with %d blocks", n.self, d.ID, len(bs))
	}
	for _, s := range r.reads(n.i) {
		for _, b := range bs {
			if x := e.content[b][s]; x != goodByte+uint8(handOf(e.names[d.Of])) {
				r.fail("%v admits %v with block %d of source rank %d holding %d", n.self, d.ID, b, s, x)
			}
		}
	}
	for _, t := range n.tickets {
		if t.reserve == d.Of {
			r.fail("%v admits %v under an open ticket", n.self, d.ID)
		}
	}
	if e.epoch != 0 { // all that p exports was made by weights 0
		r.fail("%v admits %v under weights %d", n.self, d.ID, e.epoch)
	}
	r.put(out{kind: admits, at: remark{proof: proof{claim: c}}})
}
