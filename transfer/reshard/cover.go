package reshard

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"
	"sort"

	"github.com/batonkv/baton/transfer/layout"
)

// nominalTokens weighs paged states against per-request states when load is
// compared: what matters is only that both sides use the same number.
const nominalTokens = 4096

// cover finds sources. Per state it keeps bands, the distinct layer spans, and in
// each the distinct unit spans with the shards that hold them.
type cover struct {
	p      *Plan
	states [][]band
	load   []int64 // bytes planned so far, by source rank's number
	number []int32 // source rank's number of each source shard
	left   []layout.Box

	families []int32     // of each state: the first state of its family
	rank     layout.Rank // whose family is being taken
	family   int32
	pending  []charge // of that family, not in load yet
}

type charge struct {
	rank  int32
	bytes int64
}

type band struct {
	layers layout.Span
	maxHi  int32 // greatest layers.Hi of this band and those before it
	cells  []cell
}

type cell struct {
	units   layout.Span
	maxHi   int32   // greatest units.Hi of this cell and those before it
	holders []int32 // source shards, by rank
}

func newCover(p *Plan) *cover {
	c := &cover{p: p, states: make([][]band, len(p.model.States)), number: make([]int32, len(p.src)), rank: -1}
	c.families = make([]int32, len(p.model.States))
	for i := range c.families {
		c.families[i] = int32(i)
		if i > 0 && family(p.model.States[i].Name) == family(p.model.States[i-1].Name) {
			c.families[i] = c.families[i-1]
		}
	}
	order := make([]int32, len(p.src))
	for i := range p.src {
		order[i] = int32(i)
		if i > 0 && p.src[i].Rank != p.src[i-1].Rank {
			c.load = append(c.load, 0)
		}
		c.number[i] = int32(len(c.load))
	}
	c.load = append(c.load, 0)
	slices.SortFunc(order, func(a, b int32) int { return byState(&p.src[a], &p.src[b], a, b) })

	// Sorted like this, a state's bands are neighbours, so are a band's cells and a
	// cell's holders: each is a window of one array.
	bands, cells := make([]band, 0, len(order)), make([]cell, 0, len(order))
	firstBand, firstCell, firstHolder := 0, 0, 0
	for k, i := range order {
		s := &p.src[i]
		var last *layout.Shard
		if k > 0 {
			last = &p.src[order[k-1]]
		}
		newState := last == nil || last.State != s.State
		newBand := newState || last.Box.Layers != s.Box.Layers
		newCell := newBand || last.Box.Units != s.Box.Units
		if newState {
			firstBand = len(bands)
		}
		if newBand {
			bands = append(bands, band{layers: s.Box.Layers, maxHi: s.Box.Layers.Hi})
			firstCell = len(cells)
			if n := len(bands); !newState {
				bands[n-1].maxHi = max(bands[n-1].maxHi, bands[n-2].maxHi)
			}
		}
		if newCell {
			cells = append(cells, cell{units: s.Box.Units, maxHi: s.Box.Units.Hi})
			firstHolder = k
			if n := len(cells); !newBand {
				cells[n-1].maxHi = max(cells[n-1].maxHi, cells[n-2].maxHi)
			}
		}
		cells[len(cells)-1].holders = order[firstHolder : k+1]
		bands[len(bands)-1].cells = cells[firstCell:]
		c.states[s.State] = bands[firstBand:]
	}
	return c
}

func byState(a, b *layout.Shard, i, j int32) int {
	x, y := &a.Box, &b.Box
	switch {
	case a.State != b.State:
		return int(a.State) - int(b.State)
	case x.Layers.Lo != y.Layers.Lo:
		return int(x.Layers.Lo) - int(y.Layers.Lo)
	case x.Layers.Hi != y.Layers.Hi:
		return int(x.Layers.Hi) - int(y.Layers.Hi)
	case x.Units.Lo != y.Units.Lo:
		return int(x.Units.Lo) - int(y.Units.Lo)
	case x.Units.Hi != y.Units.Hi:
		return int(x.Units.Hi) - int(y.Units.Hi)
	}
	return int(i) - int(j) // the plan's order is by rank
}

// take finds a source for every cell of destination shard i and appends the moves.
func (c *cover) take(i int32) error {
	d := &c.p.dst[i]
	st := &c.p.model.States[d.State]
	if f := c.families[d.State]; d.Rank != c.rank || f != c.family {
		for _, x := range c.pending {
			c.load[x.rank] += x.bytes
		}
		c.pending, c.rank, c.family = c.pending[:0], d.Rank, f
	}
	c.left = append(c.left[:0], d.Box)
	for len(c.left) > 0 {
		want := c.left[len(c.left)-1]
		best, box := c.best(d.State, want)
		if best < 0 {
			return c.uncovered(d, want)
		}
		s := &c.p.src[best]
		if err := fits(st, s, d); err != nil {
			return err
		}
		rows := int64(nominalTokens)
		if st.Paging == layout.PerRequest {
			rows = int64(s.Rows)
		}
		c.pending = append(c.pending, charge{c.number[best], box.Area() * int64(st.Elems) * s.DType.Size() * rows})
		c.p.moves = append(c.p.moves, planned{Move{d.State, s.Rank, d.Rank, box}, best, i})
		c.left = want.Subtract(c.left[:len(c.left)-1], box)
	}
	return nil
}

// best is the source shard with the least load of those that hold a part of
// want, and that part; ties go to the larger part, then to the lower rank.
func (c *cover) best(state int32, want layout.Box) (int32, layout.Box) {
	best, bestBox := int32(-1), layout.Box{}
	var bestLoad, bestArea int64
	bands := c.states[state]
	for i := sort.Search(len(bands), func(i int) bool { return bands[i].maxHi > want.Layers.Lo }); i < len(bands); i++ {
		b := &bands[i]
		if b.layers.Lo >= want.Layers.Hi {
			break
		}
		if b.layers.Hi <= want.Layers.Lo {
			continue
		}
		for j := sort.Search(len(b.cells), func(j int) bool { return b.cells[j].maxHi > want.Units.Lo }); j < len(b.cells); j++ {
			x := &b.cells[j]
			if x.units.Lo >= want.Units.Hi {
				break
			}
			box := layout.Box{Layers: b.layers, Units: x.units}.Intersect(want)
			if box.Empty() {
				continue
			}
			area := box.Area()
			for _, h := range x.holders {
				load := c.load[c.number[h]]
				if best < 0 || load < bestLoad || load == bestLoad && (area > bestArea || area == bestArea && c.number[h] < c.number[best]) {
					best, bestBox, bestLoad, bestArea = h, box, load, area
				}
			}
		}
	}
	return best, bestBox
}

func (c *cover) uncovered(d *layout.Shard, box layout.Box) error {
	e := &UncoveredError{State: c.p.model.States[d.State].Name, Rank: d.Rank, Box: box}
	for i := range c.p.src {
		s := &c.p.src[i]
		if n := len(e.Sources); s.State == d.State && n < 8 && (n == 0 || e.Sources[n-1] != s.Rank) {
			e.Sources = append(e.Sources, s.Rank)
		}
	}
	return e
}

// fits refuses windows that lack more than the oldest column: a convolution of
// width k reads k-1 columns, so k and k-1 hold the same state, and nothing else does.
func fits(st *layout.State, s, d *layout.Shard) error {
	if st.Paging == layout.PerRequest && s.Rows != d.Rows && s.Rows != d.Rows-1 && s.Rows != d.Rows+1 {
		return fmt.Errorf("%w: state %s, %v: source rank %d keeps %d columns and destination rank %d %d: they may differ by one",
			ErrMismatch, st.Name, d.Box, s.Rank, s.Rows, d.Rank, d.Rows)
	}
	return nil
}

// sum hashes what New was given and what it decided.
func (p *Plan) sum() [32]byte {
	a, b := layout.GeometryDigest(p.model, p.src), layout.GeometryDigest(p.model, p.dst)
	buf := make([]byte, 0, 80+28*len(p.moves))
	buf = append(buf, "baton/plan/1"...)
	buf = append(buf, a[:]...)
	buf = append(buf, b[:]...)
	for i := range p.moves {
		m := &p.moves[i]
		for _, v := range [...]int32{m.State, int32(m.Src), int32(m.Dst), m.Box.Layers.Lo, m.Box.Layers.Hi, m.Box.Units.Lo, m.Box.Units.Hi} {
			buf = binary.BigEndian.AppendUint32(buf, uint32(v))
		}
	}
	return sha256.Sum256(buf)
}
