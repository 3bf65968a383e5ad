package joint

import (
	"hash/maphash"

	"github.com/batonkv/baton/internal/deep"
	"github.com/batonkv/baton/sidecar/handoff"
	"github.com/batonkv/baton/sidecar/machine"
)

// table holds each part of a state once. A part is known by 128 bits of a hash.
type table struct {
	nodes    []*node
	letters  []letter
	ghosts   []*ghost
	mans     []handoff.Manifest
	nodeOf   map[[16]byte]uint32
	letterOf map[[16]byte]uint32
	ghostOf  map[[16]byte]uint32

	// What a step of one node does depends on that node, the instant and the step: worlds
	// have far fewer of these than states, so that each is done once.
	done  map[task]result
	noted map[note]uint32
	buf   []byte
	seeds [2]maphash.Seed
}

type task struct {
	node uint32
	now  machine.Now
	act
}

type result struct {
	node uint32
	outs []out
}

type note struct {
	ghost uint32
	what  remark
}

func newTable() *table {
	return &table{nodeOf: map[[16]byte]uint32{}, letterOf: map[[16]byte]uint32{}, ghostOf: map[[16]byte]uint32{},
		mans: make([]handoff.Manifest, 1), // 0 is none
		done: map[task]result{}, noted: map[note]uint32{}, seeds: [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()}}
}

func hashOf[T any](m *model, v *T) (h [16]byte) {
	t := m.table
	t.buf = deep.Key(m.codec, v, t.buf[:0])
	for i, s := range t.seeds {
		x := maphash.Bytes(s, t.buf)
		for k := range 8 {
			h[8*i+k] = byte(x >> (8 * k))
		}
	}
	return h
}

func enter[T any](m *model, of map[[16]byte]uint32, all *[]T, key [16]byte, v T) uint32 {
	if k, ok := of[key]; ok {
		return k
	}
	k := uint32(len(*all))
	*all = append(*all, v)
	of[key] = k
	return k
}

func (m *model) enterNode(n *node) uint32 {
	n.next, n.harm = 0, n.overwrites(&n.eng)
	if at, ok := n.m.Next(); ok && !n.dead() {
		n.next = at
	}
	return enter(m, m.table.nodeOf, &m.table.nodes, hashOf(m, n), n)
}

func (m *model) enterLetter(l letter) uint32 {
	l.sent = l.name() + " from %d to %d"
	return enter(m, m.table.letterOf, &m.table.letters, hashOf(m, &l), l)
}

func (m *model) enterGhost(g *ghost) uint32 {
	return enter(m, m.table.ghostOf, &m.table.ghosts, hashOf(m, g), g)
}

// enterMan: an id is minted once in a history; two histories may mint it with two keys.
func (m *model) enterMan(man handoff.Manifest) uint32 {
	for k := range m.table.mans {
		if o := &m.table.mans[k]; k > 0 && o.ID == man.ID && o.Key == man.Key && o.Label == man.Label && o.Tokens == man.Tokens {
			return uint32(k)
		}
	}
	m.table.mans = append(m.table.mans, man)
	return uint32(len(m.table.mans) - 1)
}

// step gives one act to node i of w.
func (w *world) step(i int, a act) {
	t := task{w.nodes[i], w.now, a}
	r, ok := w.table.done[t]
	if !ok {
		r = w.run(t)
		w.table.done[t] = r
	}
	w.nodes[i] = r.node
	w.stepped |= 1 << i
	for _, o := range r.outs {
		w.apply(i, o)
	}
}

// cloneOf is a copy of a node that the table has.
func (m *model) cloneOf(k uint32) *node { return deep.Clone(m.codec, m.table.nodes[k]) }

// run does a task for the first time.
func (m *model) run(t task) result {
	r := &runner{model: m, node: m.cloneOf(t.node), now: t.now}
	r.act(t.act)
	return result{m.enterNode(r.node), r.outs}
}

// remember changes what the ghost knows.
func (w *world) remember(x remark) {
	n := note{w.gone, x}
	to, ok := w.table.noted[n]
	if !ok {
		g := deep.Clone(w.codec, w.ghost())
		g.note(x)
		to = w.enterGhost(g)
		w.table.noted[n] = to
	}
	w.gone = to
}
