package machine

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/batonkv/baton/discovery"
	"github.com/batonkv/baton/sidecar/handoff"
	"github.com/batonkv/baton/transfer/layout"
)

// chaos runs three groups (p: TP2, d: TP2, e: TP1) over sessions that keep order within
// themselves and none between each other, break, and are made again; over movers that
// fail, hang and die; and over engines with small pools that leave. Every choice comes
// from one seed. What must never happen is checked where it would do harm: when a copy
// writes, when a source says that a pin is held, when an engine admits.
type chaos struct {
	seed   uint64
	r      *rand.Rand
	now    Now
	nodes  []*cnode
	groups []*cgroup
	by     map[handoff.Member]*cnode
	pipes  [][]pipe // from, to
	can    []choice // reused
	acts   []func() // under way elsewhere: they end in any order
	calm   bool     // no faults any more
	lines  []string // the trace, kept for the schedule that failed
	keep   bool

	calls    Call
	open     map[Call]bool
	ok       int // imports that were admitted
	mans     []handoff.Manifest
	tags     map[string]uint64 // content by label
	tokens   map[string]int32
	copies   map[string]int32
	consumed map[string]bool // id, attempt, importer
	read     map[string]bool // id, attempt, reader, source: a good copy has ended
	proved   map[string]bool // and after that the source said that its pin is held
	spent    map[handoff.ID]int32
	admits   map[handoff.ID]map[string]bool
	engines  map[Session]*ceng
	bad      string
}

type pipe struct {
	q  []any // handoff.PeerMessage, markUp or markDown
	up bool
}

type (
	markUp   struct{}
	markDown struct{}
)

type cgroup struct {
	name        string
	nodes       []*cnode
	inst        handoff.Instance
	through     uint64
	relaunching bool
	labels      int
}

type cnode struct {
	c          *chaos
	i          int
	self       handoff.Member
	m          *Machine
	g          *cgroup
	eng        *ceng
	toEng      []ToEngine
	fromEng    []Event
	links      map[handoff.Member]*clink
	tickets    []*ctick
	life       int // of the mover
	restarting int // ends of the mover that were seen, LinksLost not yet
	pins       map[handoff.PinID]cpin
}

type clink struct {
	eng  *ceng // whose memory it maps
	dead bool
	open int
}

type cpin struct {
	eng    *ceng
	blocks []int32
	label  string
}

type ctick struct {
	p     Pull
	link  *clink
	into  *ceng
	owner uint64
	stuck bool
}

func newChaos(seed uint64) *chaos {
	c := &chaos{seed: seed, r: rand.New(rand.NewPCG(seed, 7)), by: map[handoff.Member]*cnode{}, open: map[Call]bool{},
		tags: map[string]uint64{}, tokens: map[string]int32{}, copies: map[string]int32{}, consumed: map[string]bool{}, read: map[string]bool{}, proved: map[string]bool{},
		spent: map[handoff.ID]int32{}, admits: map[handoff.ID]map[string]bool{}, engines: map[Session]*ceng{}}
	var recs []discovery.Record
	for _, g := range []struct {
		name string
		tp   int32
	}{{"p", 2}, {"d", 2}, {"e", 1}} {
		cg := &cgroup{name: g.name}
		for r := range g.tp {
			self := handoff.Member{Group: g.name, Rank: layout.Rank(r), Incarnation: handoff.Incarnation(len(c.nodes) + 1)}
			n := &cnode{c: c, i: len(c.nodes), self: self, g: cg, links: map[handoff.Member]*clink{}, pins: map[handoff.PinID]cpin{},
				m: New(Config{Self: self, Mint: c.r.Uint64, Lease: 20 * time.Second, Deadline: 15 * time.Second, MaxHold: 40 * time.Second})}
			c.nodes, cg.nodes, c.by[self] = append(c.nodes, n), append(cg.nodes, n), n
			recs = append(recs, discovery.Record{Group: g.name, Rank: r, Incarnation: uint64(self.Incarnation), Addr: "a"})
		}
		c.groups = append(c.groups, cg)
	}
	c.pipes = make([][]pipe, len(c.nodes))
	for i, n := range c.nodes {
		c.pipes[i] = make([]pipe, len(c.nodes))
		n.step(Found{recs})
	}
	for _, g := range c.groups {
		g.launch()
	}
	return c
}

func (c *chaos) chance(percent int) bool { return !c.calm && c.r.IntN(100) < percent }

func (c *chaos) fail(format string, a ...any) {
	if c.bad == "" {
		c.bad = fmt.Sprintf(format, a...)
	}
}

func (c *chaos) trace(format string, a ...any) {
	if c.keep {
		c.lines = append(c.lines, fmt.Sprintf("%8v ", c.now)+fmt.Sprintf(format, a...))
	}
}

// later does f at some time.
func (c *chaos) later(f func()) { c.acts = append(c.acts, f) }

func (n *cnode) step(e Event) {
	if n.c.keep {
		n.c.trace("%v <- %T %+.300v", n.self, e, fmt.Sprintf("%+v", e))
	}
	for _, f := range n.m.Step(n.c.now, e) {
		n.carry(f)
	}
	n.c.self(n.i)
}

func (n *cnode) carry(f Effect) {
	c := n.c
	switch f := f.(type) {
	case ToEngine:
		if e := n.eng; e != nil && e.session == f.Session && e.alive {
			n.toEng = append(n.toEng, f)
		}
	case CloseEngine:
		c.trace("%v closes engine %v: %v", n.self, f.Session, f.Err)
		if n.eng.session == f.Session && n.eng.alive && errors.Is(f.Err, handoff.ErrEngine) {
			c.fail("%v blames an engine that did nothing wrong: %v", n.self, f.Err)
		}
		n.g.relaunch(n, f.Session)
	case MapBuffers:
		if len(n.tickets) > 0 {
			c.fail("%v maps new buffers under %d tickets", n.self, len(n.tickets))
		}
		c.later(func() {
			var err error
			if c.chance(2) {
				err = fmt.Errorf("no mapping")
			}
			n.step(Mapped{Session: f.Session, PID: 1, Err: err})
		})
	case UnmapBuffers:
		n.unmapped(f.Session)
	case ToPeer:
		n.send(f)
	case Dial:
		c.later(func() { c.dial(n, c.by[f.Peer]) })
	case ClosePeer:
		c.cut(n, c.by[f.Peer])
	case ShareBuffers:
		n.send(ToPeer{f.Peer, handoff.Buffers{Cards: []handoff.BufferCard{{Key: uint64(f.Session)}}}})
	case OpenLink:
		life := n.life
		c.later(func() { n.opened(f, life) })
	case CloseLink:
		if l := n.links[f.Peer]; l != nil && l.open > 0 {
			c.fail("%v closes the link to %v under %d tickets", n.self, f.Peer, l.open)
		}
		delete(n.links, f.Peer)
	case Pull:
		n.pull(f)
	case Reply:
		if !c.open[f.Call] {
			c.fail("call %d was answered twice", f.Call)
		}
		delete(c.open, f.Call)
		if f.Err == nil && f.Imported.Label != "" {
			c.ok++
		}
	case Notify:
		if f.Notice.Kind == NoticeAnnounced {
			c.mans = append(c.mans, *f.Notice.Manifest)
		}
	}
}

func (n *cnode) unmapped(s Session) {
	for _, t := range n.tickets {
		if t.into.session == s {
			n.c.fail("%v unmaps memory that ticket %d writes", n.self, t.p.Ticket)
		}
	}
}

// send puts a message on its session; to itself, it comes at once.
func (n *cnode) send(f ToPeer) {
	c := n.c
	switch m := f.Msg.(type) {
	case handoff.DoneAck:
		if m.Status == handoff.OK && !c.consumed[fmt.Sprint(m.ID, m.Attempt, f.Peer)] {
			c.consumed[fmt.Sprint(m.ID, m.Attempt, f.Peer)] = true
			c.spent[m.ID]++
		}
	case handoff.Checked:
		if p := n.pins[m.Check.Pin]; m.Held && !p.eng.holds(p.label, p.blocks) {
			c.fail("%v says that pin %d of %q is held, and its memory is not", n.self, m.Check.Pin, p.label)
		}
		key := fmt.Sprint(m.Check.ID, m.Check.Attempt, f.Peer, n.self)
		c.proved[key] = c.proved[key] || m.Held && c.read[key]
	case handoff.Pinned:
		n.pins[m.Pin.Pin] = cpin{n.eng, m.Pin.Blocks, m.Label}
	}
	o := c.by[f.Peer]
	if o == n {
		c.pipes[n.i][n.i].q = append(c.pipes[n.i][n.i].q, f.Msg)
		return
	}
	if p := &c.pipes[n.i][o.i]; p.up {
		p.q = append(p.q, f.Msg)
		if c.chance(1) {
			p.q = append(p.q, f.Msg)
		}
	}
}

func (c *chaos) dial(a, b *cnode) {
	if c.pipes[a.i][b.i].up {
		return // the other's dial was faster, and its word is on the way
	}
	if c.chance(10) {
		a.step(PeerDown{b.self, fmt.Errorf("refused")})
		return
	}
	for _, p := range []*pipe{&c.pipes[a.i][b.i], &c.pipes[b.i][a.i]} {
		p.q, p.up = append(p.q, markUp{}), true
	}
}

// cut ends a session. Each side hears it after what still reaches it.
func (c *chaos) cut(a, b *cnode) {
	if !c.pipes[a.i][b.i].up {
		return
	}
	for _, p := range []*pipe{&c.pipes[a.i][b.i], &c.pipes[b.i][a.i]} {
		lost := 0
		for i := len(p.q) - 1; i >= 0 && p.q[i] != (markUp{}) && p.q[i] != (markDown{}); i-- {
			lost++
		}
		p.q = append(p.q[:len(p.q)-c.r.IntN(lost+1)], markDown{})
		p.up = false
	}
}

func (c *chaos) deliver(from, to int) {
	p := &c.pipes[from][to]
	x := p.q[0]
	p.q = p.q[1:]
	switch x := x.(type) {
	case markUp:
		c.nodes[to].step(PeerUp{c.nodes[from].self})
	case markDown:
		c.nodes[to].step(PeerDown{c.nodes[from].self, fmt.Errorf("cut")})
	case handoff.PeerMessage:
		c.nodes[to].step(FromPeer{c.nodes[from].self, x})
		c.self(to)
	}
}

// self delivers what a sidecar says to itself, before anything else reaches it.
func (c *chaos) self(i int) {
	for p := &c.pipes[i][i]; len(p.q) > 0; {
		c.deliver(i, i)
	}
}
