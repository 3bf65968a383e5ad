package joint

import (
	"fmt"
	"time"

	"github.com/batonkv/baton/internal/walk"
	"github.com/batonkv/baton/sidecar/machine"
)

// prelude forms the groups, and unless the walk is cold, has them meet: one hand-off
// that nothing disturbs, and time until nobody remembers it.
func (m *model) prelude() string {
	set := m.set
	m.set.parts = nil
	m.set.calls, m.set.budget, m.set.copies, m.set.labels, m.set.retry, m.set.hangs = nil, 0, int32(len(set.dst)), 1, 0, false
	w := m.fresh(1)
	for i, p := range m.members {
		n := &node{m: machine.New(m.config(p)), self: p, i: i, g: m.group[i], view: unseen}
		if i < m.base {
			n.eng = newEngine(machine.Session(i+1), m.blocks(n.g))
			n.stage.begins(m, n.g)
		} else {
			n.life = 1
		}
		w.nodes = append(w.nodes, m.enterNode(n))
	}
	for i := range m.base {
		w.step(i, act{kind: looks, c: uint64(w.lives())})
		w.step(i, act{kind: joins})
	}
	w = m.settled(w)
	if !m.set.cold {
		for i := range w.ranks(0) {
			w.step(i, act{kind: exports})
		}
		w = m.settled(w)
		for range set.dst {
			m.set.calls = append(m.set.calls, []int{0})
		}
		w = m.settled(w)
		for i := range m.base {
			w.step(i, act{kind: finishes})
		}
		w = m.settled(w)
		for i := range m.base {
			w.step(i, act{kind: forgets})
		}
	}
	m.set = set
	w.now += time.Hour
	for i := range m.base {
		w.step(i, act{kind: ticks})
	}
	x := m.fresh(set.labels)
	x.now, x.nodes, x.pipes = w.now, w.nodes, w.pipes
	for h := range set.labels {
		if set.early {
			x.step(0, act{kind: announces, a: h})
		}
		for i := range x.ranks(0) {
			if !set.unlike || i == h {
				x.step(i, act{kind: exports, a: h})
			}
		}
	}
	if set.gives {
		x.step(0, act{kind: givesUp, a: set.labels - 1})
	}
	return x.pack()
}

// fresh is a world in which nothing was done, without its nodes.
func (m *model) fresh(labels int) *world {
	groups, lines := len(m.set.dst), len(m.set.dst)*(len(m.members)/m.base)
	return &world{model: m, now: dawn, budget: m.set.budget, gone: m.enterGhost(newGhost(labels)), calls: make([]int8, groups),
		failed: make([]int8, groups), open: make([]int8, lines), mans: make([]uint32, labels), pipes: make([]pipe, len(m.members)*len(m.members))}
}

// settled takes the first step that can be taken, again and again.
func (m *model) settled(w *world) *world {
	s := w.pack()
	for range 10000 {
		next := ""
		m.Next(s, func(l walk.Step, x string) {
			if next == "" && l.Name != timePasses {
				next = x
			}
		})
		if next == "" {
			break
		}
		s = next
	}
	x := *m.unpack(s)
	if x.bad != "" {
		panic(fmt.Sprintf("prelude: %s", x.bad))
	}
	m.read = &world{}
	return &x
}
