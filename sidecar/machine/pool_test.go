package machine

import (
	"fmt"
	"maps"
	"slices"

	"github.com/batonkv/baton/sidecar/handoff"
)

// prefixPool is a decode engine's cache of few blocks: a block whose hash is registered is
// shared, stays when nobody uses it, and is evicted for room.
type prefixPool struct {
	blocks int
	cached map[uint64]int // uses of each registered block
	holds  map[uint64]*poolHold
	twice  string // a block that two imports brought
}

type poolHold struct {
	label    string
	shared   []uint64 // registered blocks that it uses
	fresh    []uint64 // hashes of the complete blocks that it brings
	private  int      // blocks that are not registered
	admitted bool
}

func newPool(blocks int) *prefixPool {
	return &prefixPool{blocks: blocks, cached: map[uint64]int{}, holds: map[uint64]*poolHold{}}
}

// used are the blocks that cannot be evicted.
func (p *prefixPool) used() (n int) {
	for _, h := range p.holds {
		n += h.private
	}
	for _, uses := range p.cached {
		if uses > 0 {
			n++
		}
	}
	return n
}

func (p *prefixPool) reserve(d handoff.Decision, r *handoff.Reserved) {
	h := &poolHold{label: d.Label}
	for _, x := range d.Hashes {
		if _, ok := p.cached[x]; !ok {
			break
		}
		h.shared = append(h.shared, x)
	}
	h.fresh = d.Hashes[len(h.shared):]
	h.private = int(d.Tokens+15)/16 - len(h.shared)
	idle := 0
	for _, x := range h.shared {
		if p.cached[x] == 0 {
			idle++
		}
	}
	if r.Full = p.used()+idle+h.private > p.blocks; r.Full {
		return
	}
	for _, x := range h.shared {
		p.cached[x]++
	}
	for _, x := range h.fresh { // behind one that was evicted
		if uses, ok := p.cached[x]; ok && uses == 0 {
			delete(p.cached, x)
		}
	}
	for _, x := range slices.Sorted(maps.Keys(p.cached)) {
		if p.cached[x] == 0 && p.used()+h.private+p.idle() > p.blocks {
			delete(p.cached, x)
		}
	}
	for _, o := range p.holds {
		for _, x := range h.fresh {
			if !o.admitted && slices.Contains(o.fresh, x) {
				p.twice = fmt.Sprintf("%s and %s bring block %d", o.label, h.label, x)
			}
		}
	}
	r.Cached = int32(16 * len(h.shared))
	p.holds[d.N] = h
}

func (p *prefixPool) idle() (n int) {
	for _, uses := range p.cached {
		if uses == 0 {
			n++
		}
	}
	return n
}

// admit registers what came.
func (p *prefixPool) admit(n uint64) {
	h := p.holds[n]
	h.admitted = true
	for _, x := range h.fresh {
		if _, ok := p.cached[x]; ok {
			p.twice = fmt.Sprintf("%s registers block %d, which is there", h.label, x)
			continue
		}
		p.cached[x] = 1
		h.shared = append(h.shared, x)
		h.private--
	}
}

// end gives back what a hold has, and says so.
func (p *prefixPool) end(n *node, of uint64) {
	h := p.holds[of]
	if h == nil {
		return
	}
	delete(p.holds, of)
	for _, x := range h.shared {
		p.cached[x]--
	}
	n.w.post(func() { n.step(FromEngine{n.eng.session, handoff.Freed{Blocks: 1}}) })
}

// decoding are the admitted holds, by number.
func (p *prefixPool) decoding() (ns []uint64) {
	for n, h := range p.holds {
		if h.admitted {
			ns = append(ns, n)
		}
	}
	slices.Sort(ns)
	return ns
}
