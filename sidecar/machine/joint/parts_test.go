package joint

import (
	"slices"

	"github.com/batonkv/baton/sidecar/handoff"
)

// Hand-off 0 may leave in parts: p's engines compute on in one step, at any time, and each
// says so at its own pace. Memory that no step has filled yet holds what was there before.
// What is bounded: one such hand-off, of two blocks and one layer, which is not computed
// again after it was preempted; the simulation does that, and goes layer by layer.

// inParts: the export reaches so many tokens, part by part, of two blocks.
func inParts(reach ...int32) func(*setup) {
	return func(s *setup) { s.parts, s.tokens = reach, 2*blockTokens }
}

// grow fills what comes next, and exports that much.
func (r *runner) grow() {
	e, x := &r.node.eng, r.set.tokens
	bs := e.blocksOf(exportBit)
	named, parts := int32(0), r.set.parts
	if e.said > 0 {
		named = parts[e.said-1]
	}
	last := int(e.said) == len(parts)
	if !last {
		x = parts[e.said]
	}
	for _, b := range bs[named/blockTokens : x/blockTokens] {
		e.content[b] = [maxSrc]uint8{goodByte}
	}
	if last {
		r.say(handoff.Export{Label: labelOf(0), Blocks: bs, Slot: -1, Tokens: x, Position: x, Copies: r.set.copies, MaxHold: r.set.hold, Parts: e.said})
		e.said = 0
		return
	}
	e.said++
	r.say(handoff.ExportPart{Label: labelOf(0), Part: e.said, Blocks: bs[named/blockTokens : x/blockTokens], Tokens: r.set.tokens,
		Position: r.set.tokens, Reach: handoff.All(x)})
}

// preempt wants the memory of what is not computed whole, which comes back by Free.
func (r *runner) preempt() {
	if r.node.eng.said = 0; r.node.self.Rank == 0 {
		r.say(handoff.ReleaseExport{Label: labelOf(0)})
	}
}

// computes reports whether p's engines have something of hand-off 0 left to compute.
func (w *world) computes() bool {
	for i := range w.ranks(0) {
		if e := &w.node(i).eng; !e.alive || e.said == 0 {
			return false
		}
	}
	return w.set.parts != nil
}

// all is one step of p's engines.
func (w *world) all(k actKind) {
	for i := range w.ranks(0) {
		w.step(i, act{kind: k})
	}
}

// unheard looks, where nothing but time is left, for an import that waits for a part of what
// is over: whoever reads hears the end, and not by its own deadline.
func (w *world) unheard() {
	if w.set.parts == nil || w.mans[0] == 0 {
		return
	}
	id := w.table.mans[w.mans[0]].ID
	for _, s := range w.leaders(0) {
		o, ok := w.node(s).m.Get(id)
		if over := ok && o.Source == handoff.Over && w.node(s).acts(); !over {
			continue
		}
		for g := range w.set.dst {
			for _, i := range w.leaders(g + 1) {
				n := w.node(i)
				o, ok := n.m.Get(id)
				reads := ok && slices.Contains([]handoff.LeaderState{handoff.Waiting, handoff.Granting, handoff.Pulling}, o.State)
				if n.acts() && reads && w.pipe(s, i).up {
					w.fail("%v waits for a part of %v, which is over", n.self, id)
				}
			}
		}
	}
}
