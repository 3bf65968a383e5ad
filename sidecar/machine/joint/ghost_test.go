package joint

import (
	"github.com/batonkv/baton/sidecar/handoff"
)

// ghost is what an observer who sees everything remembers. It is part of the state:
// what may happen does not depend on it, what must not happen does.
type ghost struct {
	answered map[claim]handoff.Status // to Done
	read     map[proof]bool           // a good copy has ended
	proved   map[proof]bool           // and after it the source said that it holds the pin
	told     []uint8                  // by hand-off: the ranks of p that heard of the lease
	aborted  map[claim]bool           // and that was answered yes
}

// claim is an import: by group g.
type claim struct {
	id handoff.ID
	g  int
	a  handoff.Attempt
}

// proof is a read by node dst from source rank src, for a claim.
type proof struct {
	claim
	dst, src int
}

func newGhost(labels int) *ghost {
	return &ghost{map[claim]handoff.Status{}, map[proof]bool{}, map[proof]bool{}, make([]uint8, labels), map[claim]bool{}}
}

// remark is one thing to remember.
type remark struct {
	what  remarkKind
	proof proof
	h     int
	said  handoff.Status
}

type remarkKind uint8

const (
	wasAnswered remarkKind = iota
	wasRead
	wasProved
	wasTold
	wasAborted
)

func (g *ghost) note(x remark) {
	switch x.what {
	case wasAnswered:
		g.answered[x.proof.claim] = x.said
	case wasRead:
		g.read[x.proof] = true
	case wasProved:
		g.proved[x.proof] = true
	case wasAborted:
		g.aborted[x.proof.claim] = true
	case wasTold:
		g.told[x.h] |= 1 << x.proof.dst
	}
}

func (g *ghost) spent(id handoff.ID) (n int32) {
	for c, s := range g.answered {
		if c.id == id && s == handoff.OK {
			n++
		}
	}
	return n
}
