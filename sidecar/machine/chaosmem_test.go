package machine

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/batonkv/baton/sidecar/handoff"
	"github.com/batonkv/baton/transfer/layout"
)

const poolBlocks = 9

// ceng is one engine rank: a mirrored allocator, and what its blocks contain.
type ceng struct {
	session Session
	n       *cnode
	alive   bool
	ready   bool // MoverStarted came
	held    []handoff.Decision
	last    uint64
	applied uint64
	own     [poolBlocks]uint64    // 0: free; a Reserve's number; or an export
	label   [poolBlocks]string    // of an export
	content [poolBlocks][2]uint64 // by source rank; exported content is the same for both
	live    map[uint64]bool       // admitted, by Reserve
	letGo   map[string]bool
	dropped map[uint64]bool
}

const exportBit = 1 << 40

func (e *ceng) holds(label string, blocks []int32) bool {
	return e != nil && !slices.ContainsFunc(blocks, func(b int32) bool { return e.label[b] != label })
}

// take takes n blocks, all or nothing.
func (e *ceng) take(n int, owner uint64, label string) (bs []int32) {
	for b := range e.own {
		if e.own[b] == 0 && len(bs) < n {
			bs = append(bs, int32(b))
		}
	}
	if len(bs) < n {
		return nil
	}
	for _, b := range bs {
		e.own[b], e.label[b], e.content[b] = owner, label, [2]uint64{}
	}
	return bs
}

func (e *ceng) give(match func(b int) bool) (n int32) {
	for b := range e.own {
		if e.own[b] != 0 && match(b) {
			e.own[b], e.label[b] = 0, ""
			n++
		}
	}
	return n
}

func (e *ceng) say(m handoff.FromEngine) {
	if e.alive {
		e.n.fromEng = append(e.n.fromEng, FromEngine{e.session, m})
	}
}

// launch attaches a new engine on every rank, in any order.
func (g *cgroup) launch() {
	c := g.nodes[0].c
	g.inst, g.through, g.relaunching = handoff.Instance(c.r.Uint64()|1), 0, false
	for i, n := range g.nodes {
		e := &ceng{session: Session(len(c.engines) + 1), n: n, alive: true, live: map[uint64]bool{}, letGo: map[string]bool{}, dropped: map[uint64]bool{}}
		n.eng, c.engines[e.session], n.toEng = e, e, nil
		a := handoff.Attach{Group: g.name, Instance: g.inst, Rank: layout.Rank(i), Ranks: int32(len(g.nodes)),
			Model: handoff.ModelIdentity{Name: "test", Layout: testModel}, Shards: shards(layout.Rank(i), int32(len(g.nodes))),
			Buffers:  []handoff.BufferDecl{{ID: 0, Len: 1 << 20}, {ID: 1, Len: 1 << 20}},
			Capacity: handoff.Capacity{Blocks: poolBlocks, Slots: 8, BlockTokens: 16}, Scheduler: handoff.SchedulerRank}
		c.later(func() { e.say(a); e.say(handoff.BuffersReady{}) })
	}
}

// relaunch follows the end of one rank's session: the launcher ends the others too.
func (g *cgroup) relaunch(n *cnode, s Session) {
	c := n.c
	if e := n.eng; e == nil || e.session != s || !e.alive {
		return // a session that is over
	}
	for _, o := range g.nodes {
		if e := o.eng; e.alive {
			e.alive = false
			c.later(func() { o.fromEng = append(o.fromEng, EngineDown{e.session}) })
		}
	}
	if !g.relaunching {
		g.relaunching = true
		c.later(func() { g.whenDown() })
	}
}

// whenDown launches once every rank's sidecar has seen the end of the last launch.
func (g *cgroup) whenDown() {
	for _, n := range g.nodes {
		if n.m.engine != nil || len(n.tickets) > 0 && g.nodes[0].c.r.IntN(4) > 0 {
			g.nodes[0].c.later(g.whenDown)
			return
		}
	}
	g.launch()
}

// hear takes the next message of the sidecar.
func (n *cnode) hear() {
	f := n.toEng[0]
	n.toEng = n.toEng[1:]
	e := n.eng
	if e.session != f.Session || !e.alive {
		return
	}
	switch m := f.Msg.(type) {
	case handoff.Decision:
		switch {
		case m.N > e.last+1:
			n.c.fail("%v: decision %d after %d", n.self, m.N, e.last)
		case m.N == e.last+1:
			e.last = m.N
			e.held = append(e.held, m)
		}
		e.say(handoff.Held{N: e.last})
	case handoff.Through:
		n.g.through = max(n.g.through, m.N)
	case handoff.MoverStarted:
		e.ready = true
	case handoff.Exported:
		n.c.mans = append(n.c.mans, m.Manifest)
	case handoff.UnpinExport:
		e.letGo[m.Label] = true
	case handoff.Failed:
		e.letGo[m.Label] = true
	}
}

func (g *cgroup) alive() bool {
	return !slices.ContainsFunc(g.nodes, func(n *cnode) bool { return !n.eng.alive })
}

// tick is one step of the engine group: what is decided, what all ranks let go, and
// maybe the end of a request that decodes.
func (g *cgroup) tick(finish bool) {
	var freed int32
	if !g.alive() {
		return
	}
	var ends []uint64
	for id := range g.nodes[0].eng.live {
		ends = append(ends, id)
	}
	slices.Sort(ends)
	for _, n := range g.nodes {
		e := n.eng
		freed = e.apply(g.through)
		for _, l := range slices.Sorted(mapsKeys(e.letGo)) {
			if !slices.ContainsFunc(g.nodes, func(o *cnode) bool { return !o.eng.letGo[l] && o.eng.hasLabel(l) }) {
				freed += e.give(func(b int) bool { return e.label[b] == l })
			}
		}
		if finish && len(ends) > 0 {
			delete(e.live, ends[0])
			freed += e.give(func(b int) bool { return e.own[b] == ends[0] })
		}
	}
	if freed > 0 {
		g.nodes[0].eng.say(handoff.Freed{Blocks: freed})
	}
}

func mapsKeys(m map[string]bool) func(func(string) bool) {
	return func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

func (e *ceng) hasLabel(l string) bool { return slices.Contains(e.label[:], l) }

func (e *ceng) apply(through uint64) (freed int32) {
	c := e.n.c
	if e.last < through {
		c.fail("%v applies through %d and holds %d", e.n.self, through, e.last)
	}
	was := e.applied
	for len(e.held) > 0 && e.held[0].N <= through {
		d := e.held[0]
		e.held = e.held[1:]
		e.applied = d.N
		switch d.Kind {
		case handoff.Reserve:
			r := handoff.Reserved{N: d.N, Slot: 1, Blocks: e.take(int(d.Tokens+15)/16, d.N, "")}
			r.Full = r.Blocks == nil
			for i, b := range r.Blocks {
				binary.LittleEndian.PutUint16(r.Digest[2*i:], uint16(b)+1)
			}
			e.say(r)
		case handoff.Admit:
			e.admit(d)
		case handoff.Drop:
			e.dropped[d.Of] = true
		case handoff.ReleaseQuarantine:
			if !e.dropped[d.Of] {
				c.fail("%v releases %d, which was not dropped", e.n.self, d.Of)
			}
			freed += e.give(func(b int) bool { return e.own[b] == d.Of })
		case handoff.Free:
			freed += e.give(func(b int) bool { return e.label[b] == d.Label })
		}
	}
	if e.applied != was {
		e.say(handoff.Applied{N: e.applied})
	}
	return freed
}

// admit checks that what is admitted is what was exported, and was consumed.
func (e *ceng) admit(d handoff.Decision) {
	c, n := e.n.c, e.n
	lead := n.g.nodes[0].self
	if !c.consumed[fmt.Sprint(d.ID, d.Attempt, lead)] {
		c.fail("%v admits %v, attempt %d, without a copy", n.self, d.ID, d.Attempt)
	}
	if c.admits[d.ID] == nil {
		c.admits[d.ID] = map[string]bool{}
	}
	c.admits[d.ID][fmt.Sprint(lead, d.Attempt)] = true
	label := c.labelOf(d.ID)
	if int32(len(c.admits[d.ID])) > c.copies[label] || c.spent[d.ID] > c.copies[label] {
		c.fail("%q: %d admits, %d consumed, %d copies", label, len(c.admits[d.ID]), c.spent[d.ID], c.copies[label])
	}
	srcs := []int{int(n.self.Rank)}
	if len(n.g.nodes) == 1 {
		srcs = []int{0, 1}
	}
	for _, src := range srcs {
		if key := fmt.Sprint(d.ID, d.Attempt, n.self, c.nodes[src].self); !c.proved[key] {
			c.fail("%v admits %q, which source rank %d has not proved", n.self, label, src)
		}
	}
	found := 0
	for b := range e.own {
		if e.own[b] != d.Of {
			continue
		}
		found++
		for _, s := range srcs {
			if e.content[b][s] != c.tags[label] {
				c.fail("%v admits %q with block %d of source rank %d holding %d, want %d", n.self, label, b, s, e.content[b][s], c.tags[label])
			}
		}
	}
	if found != int(c.tokens[label]+15)/16 {
		c.fail("%v admits %q with %d blocks", n.self, label, found)
	}
	for _, t := range n.tickets {
		if t.into == e && t.owner == d.Of {
			c.fail("%v admits %q under an open ticket", n.self, label)
		}
	}
	e.live[d.Of] = true
}

func (c *chaos) labelOf(id handoff.ID) string {
	for _, m := range c.mans {
		if m.ID == id {
			return m.Label
		}
	}
	return ""
}

// opened ends an OpenLink. A mover that died meanwhile leaves an error, or a link that
// is dead.
func (n *cnode) opened(f OpenLink, life int) {
	c := n.c
	if n.restarting > 0 && life == n.life {
		c.later(func() { n.opened(f, life) }) // it waits for the next mover
		return
	}
	if c.chance(5) || life != n.life && c.chance(50) {
		n.step(Linked{f.Peer, errors.New("cannot map")})
		return
	}
	if n.links[f.Peer] != nil {
		c.fail("%v opens a second link to %v", n.self, f.Peer)
	}
	n.links[f.Peer] = &clink{eng: c.engines[Session(f.Buffers.Cards[0].Key)], dead: life != n.life}
	n.step(Linked{Peer: f.Peer})
}

func (n *cnode) pull(f Pull) {
	c := n.c
	l := n.links[f.Peer]
	if l == nil || l.dead {
		c.later(func() { n.step(PullDone{Ticket: f.Ticket, Err: errors.New("no link")}) })
		return
	}
	l.open++
	e := c.engines[n.m.engine.session]
	n.tickets = append(n.tickets, &ctick{p: f, link: l, into: e, owner: e.own[f.Job.DstBlocks[0]], stuck: c.chance(6)})
}

// settle ends a ticket: its bytes are what the source's memory holds at this instant.
func (n *cnode) settle(t *ctick, err error) {
	c := n.c
	n.tickets = slices.DeleteFunc(n.tickets, func(o *ctick) bool { return o == t })
	t.link.open--
	for i, b := range t.p.Job.DstBlocks {
		if t.owner == 0 || t.owner >= exportBit || t.into.own[b] != t.owner {
			c.fail("%v: ticket %d writes block %d, which is not its own any more", n.self, t.p.Ticket, b)
			return
		}
		t.into.content[b][t.p.Peer.Rank] = 1 // garbage
		if err == nil {
			t.into.content[b][t.p.Peer.Rank] = t.link.eng.content[t.p.Job.SrcBlocks[i]][0]
		}
	}
	if d := n.m.dests[n.m.tickets[t.p.Ticket].reserve]; d != nil && err == nil {
		c.read[fmt.Sprint(d.D.ID, d.D.Attempt, n.self, t.p.Peer)] = true
	}
	n.step(PullDone{Ticket: t.p.Ticket, Bytes: 1, Err: err})
}

// restartMover ends every ticket and link of a node.
func (n *cnode) restartMover() {
	n.life++
	n.restarting++
	for _, l := range n.links {
		l.dead = true
	}
	n.c.later(func() {
		clear(n.links)
		n.restarting--
		n.step(LinksLost{})
	})
	for _, t := range slices.Clone(n.tickets) {
		t.stuck = false
		n.c.later(func() {
			if slices.Contains(n.tickets, t) {
				n.settle(t, errors.New("mover died"))
			}
		})
	}
}

// export pins a new label on every rank of p.
func (c *chaos) export(label string) {
	g := c.groups[0]
	tokens := int32(16 + c.r.IntN(40))
	n := int(tokens+15) / 16
	for _, nd := range g.nodes {
		if !nd.eng.alive || !nd.eng.ready || nd.eng.applied != g.nodes[0].eng.applied {
			return
		}
	}
	e := handoff.Export{Label: label, Tokens: tokens, Position: tokens, Copies: int32(1 + c.r.IntN(2))}
	if c.chance(20) {
		e.MaxHold = []time.Duration{5 * time.Second, 35 * time.Second}[c.r.IntN(2)]
	}
	tag := uint64(len(c.tags) + 100)
	for _, nd := range g.nodes {
		if e.Blocks = nd.eng.take(n, exportBit+tag, label); e.Blocks == nil {
			return
		}
		for _, b := range e.Blocks {
			nd.eng.content[b] = [2]uint64{tag, tag}
		}
		nd.eng.say(e)
	}
	c.tags[label], c.tokens[label], c.copies[label] = tag, tokens, e.Copies
}
