package sim

import (
	"slices"
	"time"

	"github.com/batonkv/baton/sidecar/handoff"
	"github.com/batonkv/baton/sidecar/machine"
)

// growing is a prompt that is computed while what is ready of it leaves. Its memory is
// taken, and holds what was there before until a step fills it.
type growing struct {
	tag    int
	export handoff.Export
	bounds []int32 // tokens that are ready after each part
	part   int
	blocks [][]int32 // by rank
	slots  []int32
	reach  handoff.Reach
}

// inParts makes a prompt leave in parts, whose memory was just taken on every rank.
func (g *group) inParts(tag int, x handoff.Export, blocks [][]int32, slots []int32) {
	w := g.w
	w.hit(InParts)
	q := &growing{tag: tag, export: x, blocks: blocks, slots: slots}
	for at := int32(0); len(q.bounds) == 0 || w.chance(60); {
		at += int32(1 + w.r.IntN(int(x.Tokens)))
		if at > x.Tokens {
			break
		}
		q.bounds = append(q.bounds, at)
	}
	if len(q.bounds) == 0 {
		q.bounds = append(q.bounds, x.Tokens/2)
	}
	g.grows = append(g.grows, q)
}

// grow computes on: the next part of each prompt that leaves in parts, in a step.
func (g *group) grow() {
	for _, q := range slices.Clone(g.grows) {
		if !g.goesOn(q) {
			g.grows = slices.DeleteFunc(g.grows, func(o *growing) bool { return o == q })
			continue
		}
		wait := g.w.between(0, 30*time.Millisecond)
		if g.w.chance(15) {
			wait = g.w.between(0, 2*time.Second)
		}
		g.w.after(wait, nil, g.kick)
	}
}

// goesOn does the next part, and reports whether another follows.
func (g *group) goesOn(q *growing) bool {
	w, own := g.w, exported|uint64(q.tag)
	for _, s := range g.seats {
		if !slices.ContainsFunc(s.eng.cells, func(c cell) bool { return c.own == own }) {
			return false // it was freed
		}
	}
	if q.part > 0 && w.chance(7) {
		g.preempt(q)
		return false
	}
	if q.part == len(q.bounds) {
		q.close(g)
		return false
	}
	before, at := q.reach, q.bounds[q.part]
	q.part++
	if q.reach = handoff.All(at); w.r.IntN(3) == 0 && at > before.Tokens {
		q.reach = handoff.Reach{Tokens: before.Tokens, Ahead: at, Layers: 1} // which are all there are
	}
	if !q.reach.Follows(before) {
		q.reach = handoff.All(at)
	}
	x := q.export
	named, ready := blocksFor(before.Ahead), at/blockTokens // what of a block is computed is not modelled: it is ready as a whole
	if at == x.Tokens {
		ready = blocksFor(at)
	}
	for _, s := range g.seats {
		bs := q.blocks[s.rank]
		p := handoff.ExportPart{Label: x.Label, Part: uint32(q.part), Blocks: bs[named:blocksFor(at)], Tokens: x.Tokens, Position: x.Position,
			Reach: q.reach, WeightsEpoch: x.WeightsEpoch, Salt: x.Salt}
		p.Fence = s.eng.ready(q.tag, bs[before.Ahead/blockTokens:ready], -1)
		s.eng.goesOn(p)
	}
	return true
}

func blocksFor(tokens int32) int32 { return (tokens + blockTokens - 1) / blockTokens }

// ready fills memory that a step has computed; the fence is of a step that still does.
func (e *engine) ready(tag int, blocks []int32, slot int32) uint64 {
	own := exported | uint64(tag)
	cells := slices.Clone(blocks)
	if slot >= 0 {
		cells = append(cells, slot+int32(e.blocks))
	}
	if f := e.fence(blocks, slot, func(c *cell) bool { return c.own == own }, uint32(tag)); f != 0 {
		return f
	}
	for _, i := range cells {
		if c := &e.cells[i]; c.own == own {
			for u := range c.holds {
				c.holds[u] = uint32(tag)
			}
		}
	}
	return 0
}

// goesOn says what a session knows the beginning of: the next one does not, and frees that.
func (e *engine) goesOn(m handoff.FromEngine) {
	if e.able() {
		e.conn.say(m)
	}
}

// close exports what its parts leave open.
func (q *growing) close(g *group) {
	for _, s := range g.seats {
		x := q.export
		x.Blocks, x.Slot, x.Parts = q.blocks[s.rank], q.slots[s.rank], uint32(q.part)
		x.Fence = s.eng.ready(q.tag, x.Blocks[q.reach.Ahead/blockTokens:], x.Slot)
		if s.rank == 0 {
			x.Resume.Tokens = []int32{int32(q.tag)}
		}
		s.eng.goesOn(x)
	}
}

// preempt takes a prompt's memory back, as soon as its sidecars let it go; it is computed
// again, under its name.
func (g *group) preempt(q *growing) {
	w := g.w
	w.hit(Preempted)
	g.seats[0].eng.goesOn(handoff.ReleaseExport{Label: q.export.Label})
	p := w.prompts[q.tag]
	p.shown, p.tries = false, 0
	w.prompts[q.tag].tries = 31
	w.prompts = append(w.prompts, p)
	g.wanted = append(g.wanted, len(w.prompts)-1)
}

// checkGrant: who is given leave may read no more than its pin holds.
func (n *sidecar) checkGrant(f machine.Granted) {
	for _, l := range n.w.loads {
		j := l.t.p.Job
		if l.t.p.Of.Pin != f.Pin.Pin || l.t.p.Peer != n.self {
			continue
		}
		if !f.Reach.Covers(j.Tokens, l.t.p.Piece.Layers) && !l.t.p.Piece.Whole {
			n.w.fail("%v lets %v be packed, and a copy of it reads %v", n.self, f.Reach, j.Tokens)
		}
		if l.t.p.Piece.Whole && j.DstSlot >= 0 && f.Pin.Slot < 0 {
			n.w.fail("%v lets its pin be packed without a slot, and a copy reads that", n.self)
		}
	}
}
