package joint

import (
	"slices"

	"github.com/batonkv/baton/sidecar/machine"
	"github.com/batonkv/baton/transfer/staged"
)

// stage emits how what touches chunks ends. A fetch brings what the source's chunk holds at
// that instant, if the process that offered it still lives.
func (e *emitter) stage(i int) {
	w, n := e.w, e.w.node(i)
	for k, p := range n.packs {
		if p.dead {
			e.one("node %d: pack %d ends with its mover", i, act{kind: packs, a: k, b: 1})
		} else if !w.set.hangs {
			e.one("node %d: pack %d ends good", i, act{kind: packs, a: k})
		}
	}
	for k, f := range n.fetch {
		src := w.node(f.src)
		there := src.self == f.peer && !src.dead() && src.wires[i] != nil && src.wires[i].now == f.of
		if there {
			e.one("node %d: fetch %d ends good", i, act{kind: fetches, a: k, b: int(src.chunk.code), c: src.chunk.bytes})
		}
		if !there || f.canceled || src.wires[i].dying {
			e.one("node %d: fetch %d ends", i, act{kind: fetches, a: k})
		}
	}
	for k, u := range n.unpak {
		if !u.dead {
			e.one("node %d: unpack %d ends good", i, act{kind: unpacks, a: k})
		}
		if u.dead || u.canceled {
			e.one("node %d: unpack %d ends", i, act{kind: unpacks, a: k, b: 1})
		}
	}
	for j := range w.nodes {
		if x := n.wires[j]; x != nil && x.dying {
			e.one("node %d: the exit of its wire mover for node %d is seen", i, act{kind: wireExits, a: j})
		}
	}
}

func (e *emitter) stageTroubles(i int) {
	w, n := e.w, e.w.node(i)
	if w.may(badCopies) {
		for k, p := range n.packs {
			if !p.dead {
				e.trouble("node %d: pack %d ends badly", i, act{kind: packs, a: k, b: 1})
			}
		}
		for k := range n.fetch {
			e.trouble("node %d: fetch %d ends badly", i, act{kind: fetches, a: k})
		}
		for k, u := range n.unpak {
			if !u.dead && !u.canceled {
				e.trouble("node %d: unpack %d ends badly", i, act{kind: unpacks, a: k, b: 1})
			}
		}
	}
	if w.may(wires) {
		for j := range w.nodes {
			if x := n.wires[j]; x != nil && !x.dying {
				e.trouble("node %d: its wire mover for node %d dies", i, act{kind: wireDies, a: j})
			}
		}
	}
}

// move is what movers of chunks do.
func (r *runner) move(a act) {
	n := r.node
	switch a.kind {
	case packs:
		r.packed(a.a, a.b == 1)
	case fetches:
		f := n.fetch[a.a]
		n.fetch = slices.Delete(n.fetch, a.a, a.a+1)
		n.chunk.code, n.chunk.bytes = uint64(a.b), a.c
		why := staged.Transfer
		if a.b != 0 {
			why = 0
		}
		r.dest(staged.FetchDone{Ticket: f.ticket, Why: why})
	case unpacks:
		r.unpacked(a.a, a.b == 1)
	case wireExits:
		r.wireExited(a.a)
	}
}

// packed ends pack k: its bytes are what the engine's memory holds at this instant.
func (r *runner) packed(k int, bad bool) {
	n := r.node
	p := n.packs[k]
	n.packs = slices.Delete(n.packs, k, k+1)
	if n.dead() {
		return
	}
	n.chunk.code, n.chunk.bytes = 0, 0
	why := staged.Transfer
	if !bad {
		why, n.chunk.code = 0, p.code
		for j, b := range p.blocks {
			n.chunk.bytes |= uint64(n.eng.content[b][0]) << (8 * j)
		}
	}
	r.source(staged.PackDone{Ticket: p.ticket, Why: why})
}

// unpacked ends unpack k: of a chunk with other stamps nothing is written.
func (r *runner) unpacked(k int, bad bool) {
	n := r.node
	u := n.unpak[k]
	n.unpak = slices.Delete(n.unpak, k, k+1)
	t := n.tickets[slices.IndexFunc(n.tickets, func(t tick) bool { return t.job == u.job })]
	why := staged.Reason(0)
	switch {
	case bad:
		why = staged.Transfer
	case n.chunk.code != u.code:
		why = staged.BadStamp
	}
	for j, b := range t.to {
		switch {
		case bad:
			n.eng.content[b][r.members[t.src].Rank] = garbage
		case why == 0:
			n.eng.content[b][r.members[t.src].Rank] = uint8(n.chunk.bytes >> (8 * (t.lo + j))) // a pack here is of all that its pin has
		}
	}
	r.dest(staged.UnpackDone{Ticket: u.ticket, Why: why})
}

// wireExited: the exit of the wire mover for node j is seen, and another one starts.
func (r *runner) wireExited(j int) {
	n := r.node
	w := n.wires[j]
	gone := w.now
	var mine []packing
	n.packs = slices.DeleteFunc(n.packs, func(p packing) bool {
		of := p.by == staged.Packer{Group: r.members[j].Group, Wire: gone}
		if of {
			mine = append(mine, p)
		}
		return of
	})
	for _, p := range mine {
		r.source(staged.PackDone{Ticket: p.ticket, Why: staged.Mover})
	}
	n.fetch = slices.DeleteFunc(n.fetch, func(f fetching) bool { return f.src == j && f.wire == gone })
	for _, id := range w.peers {
		r.half(staged.WireExit{Peer: id, Wire: gone})
	}
	if by := (staged.Packer{Group: r.members[j].Group, Wire: gone}); n.src != nil {
		for k := range n.lent {
			n.lent[k].exited = n.lent[k].exited || n.lent[k].by == by
		}
		r.event(machine.PackerExited{Packer: by})
	}
	w.now, w.dying = w.now+1, false
	for _, id := range w.peers {
		r.half(staged.WireUp{Peer: id, Wire: w.now})
	}
}

// moverDies: of what the local mover did, the ends are heard later.
func (r *runner) moverDies() {
	n := r.node
	n.lost = true
	for k := range n.tickets {
		n.tickets[k].dead = n.tickets[k].job == staged.Job{}
	}
	n.stage.moverDies(r.set.owned)
}

// kill kills a mover of this node.
func (r *runner) kill(p staged.Packer) {
	if p == (staged.Packer{}) {
		r.moverDies()
	}
	for j, w := range r.node.wires {
		w.dying = w.dying || p == staged.Packer{Group: r.members[j].Group, Wire: w.now}
	}
}

// cancel asks a ticket to stop.
func (r *runner) cancel(ticket uint64) {
	n := r.node
	k := slices.IndexFunc(n.tickets, func(t tick) bool { return t.n == ticket })
	if k < 0 {
		return
	}
	n.tickets[k].canceled = true
	if j := n.tickets[k].job; j != (staged.Job{}) {
		r.dest(staged.Cancel{Job: j})
	}
}
