package joint

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/batonkv/baton/sidecar/handoff"
	"github.com/batonkv/baton/sidecar/machine"
)

// world is one state. Its parts (nodes, letters, what the ghost remembers, manifests)
// stand in the model's tables once each; a world is their numbers.
type world struct {
	*model
	nodes  []uint32
	pipes  []pipe   // from*len(nodes) + to
	late   []uint32 // letters that outlived their sessions, or came twice: they arrive at any time
	now    machine.Now
	budget int8
	gone   uint32 // ghost
	calls  []int8 // by importing group: calls made
	failed []int8 // of them, those that failed
	open   []int8 // calls without an answer, by importing leader
	mans   []uint32
	bad    string

	from    *world // that this one is a change of
	stepped uint64 // nodes that the change stepped, as a set
}

// pipe is one direction between two sidecars: the words of a session in order, then its
// end, then the next session's. A sidecar learns of an end when it comes to it, which
// may be long after the other side did.
type pipe struct {
	q  []uint32 // letters; never changed in place
	up bool     // what is sent is queued
}

func (w *world) node(i int) *node        { return w.table.nodes[w.nodes[i]] }
func (w *world) letter(k uint32) *letter { return &w.table.letters[k] }
func (w *world) ghost() *ghost           { return w.table.ghosts[w.gone] }

// change is the world after a step that begins here; it is valid until the next change.
func (w *world) change() *world {
	x := w.next
	x.nodes, x.pipes, x.late = append(x.nodes[:0], w.nodes...), append(x.pipes[:0], w.pipes...), append(x.late[:0], w.late...)
	x.calls, x.failed, x.open = append(x.calls[:0], w.calls...), append(x.failed[:0], w.failed...), append(x.open[:0], w.open...)
	x.mans = append(x.mans[:0], w.mans...)
	x.model, x.now, x.budget, x.gone, x.bad = w.model, w.now, w.budget, w.gone, w.bad
	x.from, x.stepped = w, 0
	return x
}

// pack is w as bytes: state and key in one, since the tables name each part once.
func (w *world) pack() string {
	b := append(binary.AppendUvarint(w.buf[:0], uint64(len(w.bad))), w.bad...)
	for _, n := range w.nodes {
		b = binary.AppendUvarint(b, uint64(n))
	}
	for i := range w.pipes {
		p := &w.pipes[i]
		n := uint64(len(p.q)) << 1
		if p.up {
			n |= 1
		}
		b = appendAll(binary.AppendUvarint(b, n), p.q)
	}
	b = appendAll(append(b, byte(len(w.late))), w.late)
	b = binary.AppendVarint(b, int64(w.now-dawn))
	b = binary.AppendUvarint(append(b, byte(w.budget)), uint64(w.gone))
	for g := range w.calls {
		b = append(b, byte(w.calls[g]), byte(w.failed[g]))
	}
	for _, n := range w.open {
		b = append(b, byte(n))
	}
	w.buf = appendAll(b, w.mans)
	return string(w.buf)
}

func appendAll(b []byte, ns []uint32) []byte {
	for _, n := range ns {
		b = binary.AppendUvarint(b, uint64(n))
	}
	return b
}

// reader takes numbers from a packed world.
type reader struct{ s string }

func (r *reader) num() uint64 {
	n, k := binary.Uvarint([]byte(r.s[:min(len(r.s), 10)]))
	r.s = r.s[k:]
	return n
}

func (r *reader) byte() byte {
	c := r.s[0]
	r.s = r.s[1:]
	return c
}

func (r *reader) text(n int) string {
	t := r.s[:n]
	r.s = r.s[n:]
	return t
}

func (r *reader) all(to []uint32, n int) []uint32 {
	for range n {
		to = append(to, uint32(r.num()))
	}
	return to
}

// unpack is valid until the next unpack.
func (m *model) unpack(s string) *world {
	w, r := m.read, &reader{s}
	w.model, w.bad = m, r.text(int(r.num()))
	w.nodes = r.all(w.nodes[:0], len(m.members))
	w.pipes = w.pipes[:0]
	for range len(m.members) * len(m.members) {
		n := r.num()
		var q []uint32
		if n > 1 {
			q = r.all(make([]uint32, 0, n>>1), int(n>>1))
		}
		w.pipes = append(w.pipes, pipe{q, n&1 == 1})
	}
	w.late = r.all(w.late[:0], int(r.byte()))
	v, k := binary.Varint([]byte(r.s[:min(len(r.s), 10)]))
	r.s = r.s[k:]
	w.now, w.budget, w.gone = dawn+machine.Now(v), int8(r.byte()), uint32(r.num())
	w.calls, w.failed, w.open = w.calls[:0], w.failed[:0], w.open[:0]
	for range m.set.dst {
		w.calls, w.failed = append(w.calls, int8(r.byte())), append(w.failed, int8(r.byte()))
	}
	for range len(m.set.dst) * (len(m.members) / m.base) {
		w.open = append(w.open, int8(r.byte()))
	}
	w.mans = r.all(w.mans[:0], m.set.labels)
	return w
}

func (m *model) Init() string { return m.start }

func (m *model) Key(s string, b []byte) []byte { return append(b, s...) }

func (m *model) Bad(s string) string {
	r := &reader{s}
	return r.text(int(r.num()))
}

// fail notes what must not happen.
func (w *world) fail(format string, a ...any) {
	if w.bad == "" {
		w.bad = fmt.Sprintf(format, a...)
	}
}

// check looks for what no state may be. What a change left alone was looked at before.
func (w *world) check() {
	for i := range w.nodes {
		n, first := w.node(i), w.seat(w.first[w.group[i]])
		if w.touched(i) && n.harm != "" {
			w.fail("%s", n.harm)
		}
		if k := w.twin(i); n.eng.own == nil && len(n.tickets) > 0 {
			if harm := n.overwrites(&w.node(k).eng); harm != "" {
				w.fail("%s", harm)
			}
		}
		if i == first || !w.touched(i) && !w.touched(first) || n.eng.launch != w.node(first).eng.launch {
			continue
		}
		for of, k := range n.eng.verdict {
			if o := w.node(first).eng.verdict[of]; o != 0 && o != k {
				w.fail("%v decided %v for import %d, rank 0 %v", n.self, k, of, o)
			}
		}
	}
	if w.now != w.from.now || w.gone != w.from.gone || w.stepped&w.sources() != 0 {
		for _, i := range w.leaders(0) {
			w.checkLeases(w.node(i))
		}
	}
}

func (w *world) touched(i int) bool { return w.stepped>>i&1 == 1 }

// sources are the nodes of p, as a set.
func (w *world) sources() uint64 {
	s := uint64(1)<<w.size[0] - 1
	return s | s<<w.base
}

// checkLeases: while the leader's lease runs, every rank that heard of it holds its memory.
func (w *world) checkLeases(lead *node) {
	if lead.dead() {
		return
	}
	for h, told := range w.ghost().told {
		for i := range w.nodes {
			n := w.node(i)
			if n.g == 0 && n.eng.alive && n.eng.launch == lead.eng.launch && told>>i&1 == 1 && (!n.eng.holds(h) || n.eng.letGo[h]) && lead.m.Leased(labelOf(h), w.now, n.self) {
				w.fail("%v: the lease of hand-off %d runs, and its memory was let go", n.self, h)
			}
		}
	}
}

// overwrites says which open copy may write memory that is not its import's any more.
func (n *node) overwrites(e *engine) string {
	for _, t := range n.tickets {
		for _, b := range t.to {
			if e.alive && e.own[b] != t.reserve {
				return fmt.Sprintf("%v: block %d was given back, and ticket %d may still write it", n.self, b, t.n)
			}
		}
	}
	return n.stage.unpinned(n)
}

// Stuck is asked where nothing but faults can happen.
func (m *model) Stuck(s string) string {
	w := m.unpack(s)
	if slices.Max(w.open) > 0 {
		return "a call is never answered"
	}
	if s := w.sessions(); s != "" {
		return s
	}
	if s := w.wasted(); s != "" {
		return s
	}
	for i := range w.nodes {
		if s := w.node(i).stuck(); s != "" {
			return s
		}
		for _, o := range w.node(i).eng.verdict {
			if o == handoff.Admit {
				m.admitted++
			}
		}
	}
	return ""
}

// stuck says what is not as it should be with n at an end.
func (n *node) stuck() string {
	switch {
	case len(n.tickets) > 0:
		return fmt.Sprintf("%v is left with %d tickets", n.self, len(n.tickets))
	case n.dead():
		return ""
	case n.next > 0:
		return fmt.Sprintf("%v has a deadline at %v, and a tick then changes nothing", n.self, n.next)
	}
	if s := n.stage.stuck(); s != "" {
		return fmt.Sprintf("%v: %s", n.self, s)
	}
	l := n.m.Load()
	l.Dials, l.Links = 0, 0
	switch {
	case l != machine.Load{}:
		return fmt.Sprintf("%v is left with %+v", n.self, l)
	case !n.eng.alive:
		return ""
	case !n.m.Status().Ready:
		return fmt.Sprintf("%v: its group does not stand", n.self)
	}
	for b, o := range n.eng.own {
		if o != 0 && n.eng.verdict[o] != handoff.Admit {
			return fmt.Sprintf("%v: block %d is held for ever by %x", n.self, b, o)
		}
	}
	return ""
}

// sessions: whoever lives knows at an end which of its sessions stand.
func (w *world) sessions() string {
	for a := range w.nodes {
		for b := range w.nodes {
			if n, o := w.node(a), w.node(b); !n.dead() && n.m.Connected(o.self) != w.pipe(a, b).up {
				return fmt.Sprintf("%v is wrong about its session with %v", n.self, o.self)
			}
		}
	}
	return ""
}

// wasted: where nothing is lost and nobody dies, a copy that was consumed is admitted,
// whoever gives the import up meanwhile.
func (w *world) wasted() string {
	if w.set.faults&^(users|badCopies|twice|movers|wires|preempts) != 0 {
		return ""
	}
	for c, s := range w.ghost().answered {
		if s != handoff.OK {
			continue
		}
		for i := range w.ranks(c.g) {
			e := &w.node(i).eng
			admitted := false
			for of, k := range e.verdict {
				admitted = admitted || k == handoff.Admit && e.taken[of] == c
			}
			if !admitted {
				return fmt.Sprintf("%v consumed a copy of %v, attempt %d, and did not admit it", w.node(i).self, c.id, c.a)
			}
		}
	}
	return ""
}
