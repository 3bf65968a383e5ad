package machine

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/batonkv/baton/discovery"
	"github.com/batonkv/baton/sidecar/events"
	"github.com/batonkv/baton/sidecar/handoff"
	"github.com/batonkv/baton/transfer/layout"
	"github.com/batonkv/baton/transfer/sums"
)

// world runs the machines of whole groups over a perfect network, with engines and
// movers that answer at once. Messages are delivered one by one in the order they
// were sent; a test takes part by hooks.
type world struct {
	t       *testing.T
	now     Now
	nodes   map[handoff.Member]*node
	order   []handoff.Member
	queue   []func()
	calls   map[Call]Reply
	lastC   Call
	mans    map[string]handoff.Manifest // of labels that bring exported
	records []discovery.Record
	sent    map[string]int // peer messages that crossed processes, by type
	seed    uint64
	later   []func()              // tried again with every tick
	weights handoff.WeightsPolicy // of groups that are added
	verify  sums.Mode             // of sidecars that are added
	old     bool                  // engines of groups that are added read no parts
	kvOnly  bool                  // groups that are added have no per-request state

	onPull func(n *node, p Pull) error // result of a copy; nil: good
	onSum  func(n *node, s *Summed)    // changes what a mover answers
	hold   func(n *node) bool          // its sums are made when a test says so
	change func(*handoff.Export)       // before it is sent
	drop   func(from, to handoff.Member, msg handoff.PeerMessage) bool
}

// node is one sidecar with its engine.
type node struct {
	w         *world
	m         *Machine
	self      handoff.Member
	eng       *fakeEngine
	notices   []Notice
	up        map[handoff.Member]bool
	refused   []Refuse
	closed    []error
	open      map[uint64]bool // tickets
	dead      bool            // its process has ended
	killed    int             // times that a mover was
	sums      []Sum           // that are held
	said      []Compared      // not of equal sums alone
	equal     int64           // sums
	published []events.Event
	unmaps    int
	packs     []Effect // what who packs hears, and movers that were killed
}

func newWorld(t *testing.T) *world {
	return &world{t: t, nodes: map[handoff.Member]*node{}, calls: map[Call]Reply{}, sent: map[string]int{}, mans: map[string]handoff.Manifest{}, seed: 1}
}

func (w *world) mint() uint64 {
	w.seed = w.seed*6364136223846793005 + 1442695040888963407
	return w.seed | 1
}

var testModel = layout.Model{States: []layout.State{
	{Name: "attn.k", Paging: layout.PerBlock, Layers: 2, Units: 4, Elems: 8},
	{Name: "ssm", Paging: layout.PerRequest, Layers: 2, Units: 4, Elems: 16},
}}

// shards cuts testModel over tp ranks.
func shards(rank layout.Rank, tp int32) []layout.Shard {
	n := 4 / tp
	box := layout.Box{Layers: layout.Span{Lo: 0, Hi: 2}, Units: layout.Span{Lo: int32(rank) * n, Hi: (int32(rank) + 1) * n}}
	row, items := int64(n)*8*2, int32(64)
	kv := layout.Shard{State: 0, Rank: rank, Box: box, Rows: 16, Items: items, DType: layout.BF16,
		View: layout.View{Layer: 64 * 16 * row, Item: 16 * row, Row: row, Unit: 16, Elem: 2}}
	ssmRow := int64(n) * 16 * 4
	ssm := layout.Shard{State: 1, Rank: rank, Box: box, Rows: 1, Items: 8, DType: layout.F32,
		View: layout.View{Buffer: 1, Layer: 8 * ssmRow, Item: ssmRow, Row: ssmRow, Unit: 64, Elem: 4}}
	return []layout.Shard{kv, ssm}
}

// group adds a group of tp sidecars with attached engines.
func (w *world) group(name string, tp int32) {
	inst := handoff.Instance(w.mint())
	var members []handoff.Member
	for r := range tp {
		self := handoff.Member{Group: name, Rank: layout.Rank(r), Incarnation: handoff.Incarnation(w.mint())}
		members = append(members, self)
		n := &node{w: w, self: self, up: map[handoff.Member]bool{}, open: map[uint64]bool{},
			m: New(Config{Self: self, Mint: w.mint, Verify: w.verify})}
		w.nodes[self] = n
		w.order = append(w.order, self)
		w.records = append(w.records, discovery.Record{Group: name, Rank: r, Incarnation: uint64(self.Incarnation), Addr: self.String()})
	}
	for _, self := range w.order {
		w.nodes[self].step(Found{slices.Clone(w.records)})
	}
	for i, self := range members {
		a := handoff.Attach{Group: name, Instance: inst, Rank: layout.Rank(i), Ranks: tp,
			Model: handoff.ModelIdentity{Name: "test", Layout: testModel}, Shards: shards(layout.Rank(i), tp),
			Buffers:  []handoff.BufferDecl{{ID: 0, Len: 1 << 20}, {ID: 1, Len: 1 << 20}},
			Capacity: handoff.Capacity{Blocks: 64, Slots: 8, BlockTokens: 16}, Scheduler: handoff.SchedulerRank, Weights: w.weights, Parts: !w.old}
		if w.kvOnly {
			a.Model.Layout.States, a.Shards, a.Capacity.Slots = testModel.States[:1], a.Shards[:1], 0
		}
		w.nodes[self].attach(a)
	}
	w.run()
}

func (n *node) attach(a handoff.Attach) {
	n.eng = &fakeEngine{session: Session(n.w.mint()), attach: a, has: map[uint64]bool{}, pins: map[string]bool{}, imports: map[string]bool{}, ends: map[string]string{}}
	n.step(FromEngine{n.eng.session, a})
	n.step(FromEngine{n.eng.session, handoff.BuffersReady{}})
}

func (w *world) at(group string, rank int) *node {
	for _, m := range w.order {
		if m.Group == group && int(m.Rank) == rank {
			return w.nodes[m]
		}
	}
	w.t.Fatalf("no %s/%d", group, rank)
	return nil
}

func (w *world) post(f func()) { w.queue = append(w.queue, f) }

func (w *world) run() {
	for len(w.queue) > 0 {
		f := w.queue[0]
		w.queue = w.queue[1:]
		f()
	}
}

// advance moves the clock and ticks whoever is due.
func (w *world) advance(d time.Duration) {
	w.tick(d)
	w.run()
}

func (w *world) tick(d time.Duration) {
	w.now += d
	again := w.later
	w.later = nil
	for _, f := range again {
		f()
	}
	for _, m := range w.order {
		if at, ok := w.nodes[m].m.Next(); ok && at <= w.now {
			w.nodes[m].step(Tick{})
		}
	}
}

func (n *node) step(e Event) {
	if n.dead {
		return
	}
	fs := n.m.Step(n.w.now, e)
	if err := n.agendas(); err != nil {
		n.w.t.Fatalf("after %T: %v", e, err)
	}
	for _, f := range fs {
		n.carry(f)
	}
}

func (n *node) carry(f Effect) {
	w := n.w
	switch f := f.(type) {
	case ToEngine:
		w.post(func() { n.eng.take(n, f) })
	case CloseEngine:
		n.closed = append(n.closed, f.Err)
		w.post(func() { n.step(EngineDown{f.Session}) })
	case MapBuffers:
		w.post(func() { n.step(Mapped{Session: f.Session, PID: 7}) })
	case ToPeer:
		w.deliver(n.self, f)
	case Dial:
		w.post(func() {
			o := w.nodes[f.Peer]
			if o == nil {
				n.step(PeerDown{f.Peer, fmt.Errorf("no such sidecar")})
				return
			}
			n.up[f.Peer], o.up[n.self] = true, true
			o.step(PeerUp{n.self})
			n.step(PeerUp{f.Peer})
		})
	case ClosePeer:
		w.post(func() { w.cut(n.self, f.Peer) })
	case ShareBuffers:
		w.deliver(n.self, ToPeer{f.Peer, handoff.Buffers{Host: "h", Socket: "/s"}})
	case OpenLink:
		w.post(func() { n.step(Linked{Peer: f.Peer}) })
	case Pull:
		n.open[f.Ticket] = true
		w.post(func() { n.pull(f) })
	case Sum:
		if w.hold != nil && w.hold(n) {
			n.sums = append(n.sums, f)
			return
		}
		w.post(func() { n.sum(f) })
	case Compared:
		if n.equal += f.Equal; f.Differ+f.Skipped > 0 {
			n.said = append(n.said, f)
		}
	case UnmapBuffers:
		n.unmaps++
	case Publish:
		n.published = append(n.published, f.Event)
	case KillMover:
		n.killed++
		n.packs = append(n.packs, f)
	case Granted, GrantRefused, Revoked:
		n.packs = append(n.packs, f)
	case Reply:
		w.calls[f.Call] = f
	case Notify:
		n.notices = append(n.notices, f.Notice)
	case Refuse:
		n.refused = append(n.refused, f)
	}
}

func (n *node) pull(f Pull) {
	if !n.open[f.Ticket] {
		return
	}
	var err error
	if n.w.onPull != nil {
		err = n.w.onPull(n, f)
	}
	if err == errStuck {
		return
	}
	delete(n.open, f.Ticket)
	b, _ := f.Template.Bytes(f.Job)
	n.step(PullDone{Ticket: f.Ticket, Bytes: b, Err: err})
}

var errStuck = fmt.Errorf("never settles")

func (w *world) deliver(from handoff.Member, f ToPeer) {
	if from != f.Peer {
		if !w.nodes[from].up[f.Peer] {
			return
		}
		w.sent[fmt.Sprintf("%T", f.Msg)[len("handoff."):]]++
	}
	w.post(func() {
		if w.drop != nil && w.drop(from, f.Peer, f.Msg) {
			return
		}
		if from == f.Peer || w.nodes[f.Peer].up[from] {
			w.nodes[f.Peer].step(FromPeer{from, f.Msg})
		}
	})
}

// cut ends the session of two sidecars.
func (w *world) cut(a, b handoff.Member) {
	for _, p := range [][2]handoff.Member{{a, b}, {b, a}} {
		if n := w.nodes[p[0]]; n.up[p[1]] {
			delete(n.up, p[1])
			n.step(PeerDown{p[1], fmt.Errorf("cut")})
		}
	}
}

// export makes every engine rank of a group export label and returns the manifest.
func (w *world) export(group, label string, tokens int32) handoff.Manifest {
	for _, p := range w.order {
		if p.Group != group {
			continue
		}
		e := handoff.Export{Label: label, Slot: 0, Tokens: tokens, Position: tokens}
		for b := range (tokens + 15) / 16 {
			e.Blocks = append(e.Blocks, b)
		}
		if p.Rank == 0 {
			e.Resume.Tokens = []int32{42}
		}
		if w.change != nil {
			w.change(&e)
		}
		n := w.nodes[p]
		n.eng.pins[label] = true
		n.step(FromEngine{n.eng.session, e})
	}
	w.run()
	for _, msg := range w.at(group, 0).eng.got {
		if x, ok := msg.(handoff.Exported); ok && x.Label == label {
			return x.Manifest
		}
	}
	w.t.Fatalf("no manifest for %q: %+v", label, w.at(group, 0).eng.got)
	return handoff.Manifest{}
}

func (w *world) importStart(group string, man handoff.Manifest) Call {
	return w.importTokens(group, man, make([]int32, man.Tokens))
}

func (w *world) importTokens(group string, man handoff.Manifest, tokens []int32) Call {
	w.lastC++
	c := w.lastC
	w.at(group, 0).step(Import{Call: c, Import: handoff.Import{Manifest: man, Tokens: tokens}})
	return c
}
