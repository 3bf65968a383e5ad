package sim

import (
	"slices"
	"time"

	"github.com/batonkv/baton/sidecar/handoff"
)

// kick makes the engines of a group step soon.
func (g *group) kick() {
	if g.stepping {
		return
	}
	g.stepping = true
	g.w.after(g.w.between(100*time.Microsecond, g.w.temper.step), nil, g.step)
}

// whole reports whether every rank of the present launch lives: else its collectives hang.
func (g *group) whole() bool {
	return !slices.ContainsFunc(g.seats, func(s *seat) bool { return s.eng == nil || s.eng.dead })
}

// step is one step of a group's engines: every rank does the same, in the same order.
func (g *group) step() {
	g.stepping = false
	if !g.whole() {
		return
	}
	ends := g.ends
	g.ends = nil
	freed := int32(0)
	for _, s := range g.seats {
		freed = s.eng.apply(g.through)
	}
	freed += g.giveLetGo()
	for _, s := range g.seats {
		e, n := s.eng, int32(0)
		for _, id := range ends {
			n += e.give(func(c *cell) bool { return c.own == id })
			e.live = slices.DeleteFunc(e.live, func(o uint64) bool { return o == id })
			delete(e.reserves, id)
		}
		if s.rank == 0 {
			freed += n
		}
	}
	if freed > 0 {
		g.seats[0].eng.conn.say(handoff.Freed{Blocks: freed})
	}
	g.export()
	g.grow()
}

// giveLetGo frees what every rank that has it was told to let go.
func (g *group) giveLetGo() (freed int32) {
	var labels []string
	for _, s := range g.seats {
		s.eng.letGo = slices.DeleteFunc(s.eng.letGo, func(l string) bool { return !s.eng.has(l) })
		for _, l := range s.eng.letGo {
			if !slices.Contains(labels, l) {
				labels = append(labels, l)
			}
		}
	}
	for _, l := range labels {
		if slices.ContainsFunc(g.seats, func(s *seat) bool { return s.eng.has(l) && !slices.Contains(s.eng.letGo, l) }) {
			continue
		}
		for _, s := range g.seats {
			if n := s.eng.give(func(c *cell) bool { return c.label == l }); s.rank == 0 {
				freed += n
			}
			s.eng.letGo = slices.DeleteFunc(s.eng.letGo, func(o string) bool { return o == l })
		}
	}
	return freed
}

func (e *engine) has(label string) bool {
	return slices.ContainsFunc(e.cells, func(c cell) bool { return c.label == label })
}

// apply applies what every rank holds.
func (e *engine) apply(through uint64) (freed int32) {
	w := e.w
	if e.last < through {
		w.fail("engine of %s/%d applies through %d and holds %d", e.g.name, e.rank, through, e.last)
		return 0
	}
	was := e.applied
	for len(e.held) > 0 && e.held[0].N <= through {
		d := e.held[0]
		e.held = e.held[1:]
		e.applied = d.N
		w.checkDecided(e, d)
		switch d.Kind {
		case handoff.Reserve:
			e.reserve(d)
		case handoff.Admit:
			e.admit(d)
		case handoff.Drop:
			if r := e.reserves[d.Of]; r != nil {
				r.dropped = true
			}
		case handoff.ReleaseQuarantine:
			if r := e.reserves[d.Of]; r != nil && !r.dropped {
				w.fail("engine of %s/%d releases %d, which was not dropped", e.g.name, e.rank, d.Of)
			}
			w.checkQuiet(e, d.Of)
			delete(e.reserves, d.Of)
			freed += e.give(func(c *cell) bool { return c.own == d.Of })
		case handoff.Lifecycle:
			e.act(d)
		case handoff.SetWeightsEpoch:
			e.epoch = d.WeightsEpoch
			e.g.epoch = max(e.g.epoch, d.WeightsEpoch)
		case handoff.Free:
			w.checkFree(e, d.Label)
			freed += e.give(func(c *cell) bool { return c.label == d.Label })
		}
	}
	if e.applied != was {
		e.conn.say(handoff.Applied{N: e.applied})
	}
	return freed
}

// reserve takes memory for an import, and answers.
func (e *engine) reserve(d handoff.Decision) {
	r := handoff.Reserved{N: d.N}
	r.Blocks, r.Slot = e.take(int(d.Tokens+blockTokens-1)/blockTokens, d.N, "")
	if r.Full = r.Blocks == nil; !r.Full {
		e.reserves[d.N] = &reserve{d: d}
		r.Cached = e.cached(d, r.Blocks)
		r.Digest = digest(r)
		r.Fence = e.fence(r.Blocks[r.Cached/blockTokens:], r.Slot, func(c *cell) bool { return c.own == d.N }, dirt)
		e.reserves[d.N].r = r
		e.w.checkBrings(e, e.reserves[d.N])
	}
	e.conn.say(r)
}

// fence may hand out memory that a step of before still writes: what it holds is the
// step's until the fence is over.
func (e *engine) fence(blocks []int32, slot int32, still func(*cell) bool, holds uint32) uint64 {
	w := e.w
	if !w.chance(w.temper.fenced) {
		return 0
	}
	w.hit(FencedMemory)
	e.fences++
	n := e.fences
	cells := slices.Clone(blocks)
	if slot >= 0 {
		cells = append(cells, slot+int32(e.blocks))
	}
	e.fenceEnds = max(e.fenceEnds, w.now+w.between(0, 30*time.Millisecond)) // steps end in order
	w.when(e.fenceEnds, nil, func() {
		for _, i := range cells {
			if c := &e.cells[i]; still(c) {
				for u := range c.holds {
					c.holds[u] = holds
				}
			}
		}
		e.fenced = n
		if e.conn != nil && !e.dead {
			e.conn.say(handoff.Fenced{N: e.fenced})
		}
	})
	return n
}

// cached copies what a request that decodes here has of the same prompt, and says how
// many tokens need no pull.
func (e *engine) cached(d handoff.Decision, into []int32) int32 {
	for _, id := range e.live {
		r, n := e.reserves[id], 0
		for n < min(len(d.Hashes), len(r.d.Hashes)) && d.Hashes[n] == r.d.Hashes[n] {
			n++
		}
		if n == 0 {
			continue
		}
		for i := range n {
			e.cells[into[i]].holds = e.cells[r.r.Blocks[i]].holds
		}
		return int32(n * blockTokens)
	}
	return 0
}

// tagOf is the export that a Reserve is of: its resume packet says so, which is what
// the source's own word brought.
func tagOf(d handoff.Decision) int {
	if len(d.Resume.Tokens) == 0 {
		return 0
	}
	return int(d.Resume.Tokens[0])
}

// admit takes an import as a request that decodes, for a while.
func (e *engine) admit(d handoff.Decision) {
	r := e.reserves[d.Of]
	if r == nil || r.dropped {
		e.w.fail("engine of %s/%d admits %d, which holds nothing", e.g.name, e.rank, d.Of)
		return
	}
	e.w.checkAdmit(e, d, r)
	e.live = append(e.live, d.Of)
	if e.rank > 0 {
		return
	}
	w, g := e.w, e.g
	g.decoding = append(g.decoding, d.Of)
	inst := g.instance
	w.after(w.between(time.Millisecond, 4*time.Second), nil, func() {
		if g.instance == inst {
			g.ends = append(g.ends, d.Of)
			g.kick()
		}
	})
}
