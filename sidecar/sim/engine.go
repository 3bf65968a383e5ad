package sim

import (
	"encoding/binary"
	"errors"
	"slices"
	"time"

	"github.com/batonkv/baton/sidecar/handoff"
	"github.com/batonkv/baton/sidecar/machine"
	"github.com/batonkv/baton/transfer/layout"
)

const (
	units       = 4 // heads of the model: every rank holds some of them
	blockTokens = 16
	exported    = 1 << 40 // added to a tag: the owner of exported memory
)

// cell is a block or a slot: who owns it, and what version its heads hold.
type cell struct {
	own   uint64 // 0: free; a Reserve's number; or an exported tag
	label string // of an export
	holds [units]uint32
}

// engine is one engine rank's process, with a mirrored allocator.
type engine struct {
	*seat
	session  machine.Session // of its first attach: names its memory
	instance handoff.Instance
	dead     bool
	ghost    bool  // its group was launched anew without it
	gone     bool  // dead, and its own mover maps its memory no more
	conn     *conn // nil: it looks for its sidecar

	cells     []cell // blocks, then slots
	blocks    int
	last      uint64             // decisions 1 to last are held
	applied   uint64             // and 1 to applied were applied
	held      []handoff.Decision // not applied yet
	kept      []handoff.Decision // what a re-attach states
	settled   uint64
	reserves  map[uint64]*reserve // that hold memory
	live      []uint64            // admitted, by Reserve, in order
	letGo     []string            // labels that its sidecar returned outside the group's order
	imports   []string            // of rank 0: asked and not answered
	tries     int
	draining  bool
	epoch     uint64        // of the weights, as of the decisions it applied
	fences    uint64        // handed out
	fenced    uint64        // and over
	fenceEnds time.Duration // the newest one
}

type reserve struct {
	d       handoff.Decision
	r       handoff.Reserved
	dropped bool
}

// conn is one session of an engine with a sidecar.
type conn struct {
	e        *engine
	to       *sidecar
	session  machine.Session
	closed   bool // neither side speaks any more
	mapped   bool // the mover reaches the memory
	ready    bool // and the engine knows
	up, down time.Duration
}

// launch starts an engine on every seat.
func (g *group) launch() {
	w := g.w
	g.instance, g.ending, g.through, g.decided, g.decoding, g.ends, g.freed, g.grows = handoff.Instance(w.r.Uint64()|1), false, 0, nil, nil, nil, map[string]uint64{}, nil
	g.launched++
	w.tell("group %s is LAUNCHED", g.name)
	for _, s := range g.seats {
		e := &engine{seat: s, instance: g.instance, epoch: g.epoch, blocks: g.blocks, cells: make([]cell, g.blocks+g.slots), reserves: map[uint64]*reserve{}}
		s.eng = e
		d := w.between(0, 2*time.Millisecond)
		if g.launched > 1 {
			d = w.between(0, 100*time.Millisecond)
		}
		w.after(d, nil, e.attach)
	}
}

// relaunch follows the end of one rank, or a refusal: the launcher ends them all.
func (g *group) relaunch(why string) {
	if g.ending {
		return
	}
	g.ending = true
	w := g.w
	w.tell("group %s is RELAUNCHED: %s", g.name, why)
	w.after(w.between(time.Millisecond, 300*time.Millisecond), nil, func() {
		for _, s := range g.seats {
			if s.eng != nil {
				s.eng.die()
			}
		}
		w.after(w.between(time.Millisecond, 500*time.Millisecond), nil, g.launch)
	})
}

// die ends an engine's process. Its memory stays where a mover maps it.
func (e *engine) die() {
	if e.dead {
		return
	}
	e.dead = true
	e.w.tell("engine of %s/%d ends", e.g.name, e.rank)
	if e.conn != nil {
		e.conn.end(nil)
	}
}

// end closes a session from either side.
func (c *conn) end(why error) {
	if c.closed {
		return
	}
	c.closed = true
	w := c.e.w
	w.when(max(w.now, c.up)+w.between(0, 20*time.Millisecond), c.to, func() {
		if c.to.conn == c {
			c.to.conn = nil
		}
		c.to.step(machine.EngineDown{Session: c.session})
	})
	if !c.e.dead {
		w.when(max(w.now, c.down), nil, func() { c.e.lost(c, why) })
	}
}

// able reports whether an engine's session has come as far as its mover.
func (e *engine) able() bool {
	return e != nil && !e.dead && e.conn != nil && e.conn.ready && !e.conn.closed
}

// lost is the end of its session as an engine sees it. It looks for its sidecar again,
// unless that said why it may not.
func (e *engine) lost(c *conn, why error) {
	if e.dead || e.conn != c {
		return
	}
	e.conn = nil
	if e.ghost {
		return
	}
	if why == nil {
		e.w.after(e.w.between(time.Millisecond, 100*time.Millisecond), nil, e.attach)
		return
	}
	if e.tries++; e.tries < 8 && !c.ready { // refused: memory may not be quiet, or an earlier session not seen to end
		e.w.after(time.Duration(e.tries)*100*time.Millisecond, nil, e.attach)
		return
	}
	e.g.relaunch(why.Error())
}

// attach opens a session and states what the engine keeps of this launch.
func (e *engine) attach() {
	if e.dead || e.conn != nil {
		return
	}
	w, n := e.w, e.side
	if n == nil || n.conn != nil && !n.conn.e.dead && n.conn.e != e {
		w.after(w.between(10*time.Millisecond, 200*time.Millisecond), nil, e.attach)
		return
	}
	w.last++
	if e.session == 0 {
		e.session = w.last
	}
	w.engines[w.last] = e
	c := &conn{e: e, to: n, session: w.last}
	e.conn = c
	g := e.g
	a := handoff.Attach{Group: g.name, Instance: e.instance, Rank: layout.Rank(e.rank), Ranks: int32(g.tp()),
		Model: handoff.ModelIdentity{Name: "test", Layout: w.model(), WeightsEpoch: e.epoch}, Weights: w.temper.policy, Shards: shardsOf(e.rank, g.tp())[:len(w.model().States)],
		Buffers:  []handoff.BufferDecl{{ID: 0, Len: 1 << 20}, {ID: 1, Len: 1 << 20}},
		Capacity: handoff.Capacity{Blocks: int32(g.blocks), Slots: int32(g.slots), BlockTokens: blockTokens}, Scheduler: handoff.SchedulerRank,
		Draining: e.draining, Parts: !g.old, Pins: e.labels(), Imports: slices.Clone(e.imports), Held: e.last, Applied: e.applied, Decisions: slices.Clone(e.kept)}
	c.say(a)
}

// labels are those of the exports whose memory the engine keeps.
func (e *engine) labels() (out []string) {
	for i := range e.cells {
		if l := e.cells[i].label; l != "" && !slices.Contains(out, l) && !slices.Contains(e.letGo, l) {
			out = append(out, l)
		}
	}
	return out
}

// say sends to the sidecar, in order. The sidecar's accept is its first sight of c.
func (c *conn) say(m handoff.FromEngine) {
	if c == nil || c.closed {
		return
	}
	w := c.e.w
	c.up = max(c.up, w.now+w.transit()/4)
	w.when(c.up, c.to, func() {
		if _, ok := m.(handoff.Attach); ok {
			if old := c.to.conn; old == nil || old.closed {
				c.to.conn = c
			} else { // the sidecar has not seen the last one end
				c.closed = true
				w.after(w.transit(), nil, func() { c.e.lost(c, nil) })
				return
			}
		}
		if !c.closed {
			c.to.step(machine.FromEngine{Session: c.session, Msg: m})
		}
	})
}

func (c *conn) toEngine(m handoff.ToEngine) {
	if c.closed {
		return
	}
	w := c.e.w
	c.down = max(c.down, w.now+w.transit()/4)
	w.when(c.down, nil, func() {
		if !c.closed && !c.e.dead {
			c.e.hear(c, m)
		}
	})
}

// hear takes one message of the sidecar, as an engine's client does.
func (e *engine) hear(c *conn, msg handoff.ToEngine) {
	w, g := e.w, e.g
	if w.print != nil {
		w.tell("engine of %s/%d  hears %s", g.name, e.rank, short(msg))
	}
	if e.ghost {
		if d, ok := msg.(handoff.Decision); ok { // what it holds, no step applies
			e.hold(d)
			c.say(handoff.Held{N: e.last})
		}
		return
	}
	switch m := msg.(type) {
	case handoff.Attached:
		c.say(handoff.BuffersReady{})
		if e.fenced > 0 {
			c.say(handoff.Fenced{N: e.fenced})
		}
	case handoff.MoverStarted:
		c.ready, e.tries = true, 0
		g.kick()
	case handoff.Decision:
		e.hold(m)
		c.say(handoff.Held{N: e.last})
	case handoff.Through:
		if m.N > g.through {
			g.through = m.N
			g.kick()
		}
	case handoff.Exported:
		w.show(m.Manifest, g)
	case handoff.UnpinExport:
		if m.ID != (handoff.ID{}) { // else the leader's word has not reached the rank: the first one is not acknowledged
			w.checkFree(e, m.Label)
		}
		e.letGo = append(e.letGo, m.Label)
		g.kick()
	case handoff.Imported:
		e.answered(m.Label)
	case handoff.Failed:
		// What is SourceSafe answers an import or an announcement, and never an export, as the
		// client knows; of what is gone, Free is on its way.
		if !e.answered(m.Label) && !m.SourceSafe && !errors.Is(m.Err, handoff.ErrGone) {
			e.letGo = append(e.letGo, m.Label)
			g.kick()
		}
	}
}

// answered ends an import that this engine asked for.
func (e *engine) answered(label string) bool {
	i := slices.Index(e.imports, label)
	if i < 0 {
		return false
	}
	e.imports = slices.Delete(e.imports, i, i+1)
	return true
}

// hold keeps a decision that its client received.
func (e *engine) hold(d handoff.Decision) {
	switch {
	case d.N > e.last+1:
		e.w.fail("engine of %s/%d is sent decision %d after %d", e.g.name, e.rank, d.N, e.last)
	case d.N == e.last+1:
		e.last = d.N
		e.held = append(e.held, d)
		e.kept = append(e.kept, d)
	}
	if d.Settled > e.settled {
		e.settled = d.Settled
		e.kept = slices.DeleteFunc(e.kept, func(o handoff.Decision) bool { return o.N <= d.Settled })
	}
}

// take takes blocks and a slot, all or nothing.
func (e *engine) take(blocks int, own uint64, label string) (bs []int32, slot int32) {
	for b := 0; b < e.blocks && len(bs) < blocks; b++ {
		if e.cells[b].own == 0 {
			bs = append(bs, int32(b))
		}
	}
	at := e.blocks
	for at < len(e.cells) && e.cells[at].own != 0 {
		at++
	}
	slots := len(e.cells) > e.blocks
	if len(bs) < blocks || slots && at == len(e.cells) {
		return nil, -1
	}
	for _, b := range bs {
		e.cells[b] = cell{own: own, label: label}
	}
	if !slots {
		return bs, -1
	}
	e.cells[at] = cell{own: own, label: label}
	return bs, int32(at - e.blocks)
}

// give returns memory, which something else writes at once.
func (e *engine) give(match func(c *cell) bool) (n int32) {
	for i := range e.cells {
		c := &e.cells[i]
		if c.own == 0 || !match(c) {
			continue
		}
		e.w.dirt++
		*c = cell{}
		for u := range c.holds {
			c.holds[u] = dirt | e.w.dirt
		}
		n++
	}
	return n
}

const dirt = 1 << 31 // no tag has this bit

// digest is what mirrored allocators must agree on.
func digest(r handoff.Reserved) (d handoff.Digest) {
	for i, b := range r.Blocks {
		binary.LittleEndian.PutUint16(d[2*i:], uint16(b)+1)
	}
	d[31] = byte(r.Slot + 1)
	return d
}
