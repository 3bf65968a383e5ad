package planview

import (
	"fmt"
	"slices"
	"strings"

	"github.com/batonkv/baton/transfer/layout"
)

// Bounds of a picture, whatever the plan: ranks beyond maxRows a side are drawn in bands
// of neighbours, and a band's ribbons in one.
const (
	maxRows     = 32
	maxShades   = 5  // families of states that are told apart
	maxLegend   = 8  // states in the legend
	maxPicNotes = 6  // notes, and reasons of a refusal
	maxText     = 64 // runes of one text
	maxTip      = 400
)

// Measures of a picture, in px.
const (
	picWidth = 1120
	margin   = 32
	headH    = 116 // above the rows
	rankW    = 104 // beside a bar
	barW     = 9
	flowX    = margin + rankW + barW // where ribbons begin
	flowNear = 600                   // where they end, lines beside them
	flowFar  = picWidth - margin - rankW - barW
	textX    = flowNear + barW + rankW
	lineH    = 17
	gapH     = 11 // between rows
)

// row is one rank, or a band of neighbours, on one side.
type row struct {
	lo, hi layout.Rank
	bytes  int64
	peers  int     // ribbons
	y, h   float64 // of its bar
}

func (r *row) name() string {
	if r.lo == r.hi {
		return fmt.Sprintf("rank %d", r.lo)
	}
	return fmt.Sprintf("%d-%d", r.lo, r.hi)
}

// ribbon is what one row sends to another. Its height is true to its bytes, but for a
// least one; its slot at the destination has room for its lines too.
type ribbon struct {
	src, dst       int // rows
	bytes          int64
	strands        []strand
	lines          []Box // what of it is told beside it, one a line
	more           int   // boxes that no line tells
	refused        string
	boxes          []Box
	thick, slot    float64
	srcTop, dstTop float64 // of the ribbon
	slotTop        float64
}

// strand is the part of a ribbon that is of one family of states.
type strand struct {
	shade int
	bytes int64
	thick float64
}

// picture is a View laid out.
type picture struct {
	v        *View
	src, dst []row
	ribbons  []ribbon // by destination and source
	shade    map[string]int
	families []string // by shade
	end      float64  // of the ribbons
	bottom   float64  // of the rows
}

// lay places everything.
func (v *View) lay() *picture {
	p := &picture{v: v, src: bands(v.Sources), dst: bands(v.Destinations), shade: map[string]int{}}
	for _, s := range v.States {
		f := familyOf(s.Name)
		if _, ok := p.shade[f]; ok {
			continue
		}
		p.shade[f] = min(len(p.families), maxShades-1)
		if len(p.families) < maxShades {
			p.families = append(p.families, f)
		}
	}
	p.join()
	p.measure()
	p.place()
	return p
}

// familyOf is the name before its last dot: states that differ after it are moved alike.
func familyOf(name string) string {
	if i := strings.LastIndexByte(name, '.'); i > 0 {
		return name[:i]
	}
	return name
}

// bands cuts ranks, which ascend, into rows.
func bands(ranks []layout.Rank) []row {
	each := (len(ranks) + maxRows - 1) / maxRows
	var out []row
	for part := range slices.Chunk(ranks, max(each, 1)) {
		out = append(out, row{lo: part[0], hi: part[len(part)-1]})
	}
	return out
}

func rowOf(rows []row, r layout.Rank) int {
	i, _ := slices.BinarySearchFunc(rows, r, func(a row, r layout.Rank) int { return int(a.hi) - int(r) })
	return i
}

// join makes one ribbon of all pairs between two rows.
func (p *picture) join() {
	at := map[[2]int]int{}
	for i := range p.v.Pairs {
		pair := &p.v.Pairs[i]
		key := [2]int{rowOf(p.dst, pair.Dst), rowOf(p.src, pair.Src)}
		n, ok := at[key]
		if !ok {
			n = len(p.ribbons)
			at[key] = n
			p.ribbons = append(p.ribbons, ribbon{src: key[1], dst: key[0]})
			p.src[key[1]].peers++
			p.dst[key[0]].peers++
		}
		r := &p.ribbons[n]
		r.bytes += pair.Bytes
		r.boxes = append(r.boxes, pair.Boxes...)
		if pair.Refused != "" {
			r.refused = pair.Refused
		}
		p.src[r.src].bytes += pair.Bytes
		p.dst[r.dst].bytes += pair.Bytes
	}
	slices.SortFunc(p.ribbons, func(a, b ribbon) int {
		if a.dst != b.dst {
			return a.dst - b.dst
		}
		return a.src - b.src
	})
}

// told is how many lines a ribbon may have: the more ribbons the fewer.
func (p *picture) told() int {
	switch n := len(p.ribbons); {
	case len(p.src) < len(p.v.Sources) || len(p.dst) < len(p.v.Destinations) || n > 64:
		return 0
	case n > 16:
		return 1
	case n > 8:
		return 2
	}
	return 4
}

// measure gives ribbons their heights.
func (p *picture) measure() {
	told := p.told()
	if p.end = flowNear; told == 0 {
		p.end = flowFar
	}
	high := float64(min(max(44*max(len(p.src), len(p.dst)), 150), 520)) // of all ribbons together
	for i := range p.ribbons {
		r := &p.ribbons[i]
		if r.bytes > 0 {
			r.boxes = slices.DeleteFunc(r.boxes, func(b Box) bool { return b.Bytes == 0 })
		}
		boxes := together(r.boxes)
		r.lines = boxes[:min(told, len(boxes))]
		if told > 0 {
			r.more = len(boxes) - len(r.lines)
		}
		by := make([]int64, len(p.families))
		for _, b := range r.boxes {
			by[p.shade[familyOf(b.State)]] += b.Bytes
		}
		for shade, bytes := range by {
			if bytes == 0 {
				continue
			}
			thick := max(high*float64(bytes)/float64(p.v.Bytes), 0.8)
			r.strands = append(r.strands, strand{shade, bytes, thick})
			r.thick += thick
		}
		if len(r.strands) == 0 { // nothing moves: a line says who would have sent
			r.strands, r.thick = []strand{{0, 0, 0.8}}, 0.8
		}
		r.slot = max(r.thick+2, float64(len(r.lines)*lineH))
		if len(r.lines) > 1 {
			r.slot = max(r.thick+2, float64(len(r.lines)*lineH+6))
		}
	}
}

// place stacks slots and ribbons into rows, and rows into columns of one height.
func (p *picture) place() {
	for i := range p.ribbons {
		p.src[p.ribbons[i].src].h += p.ribbons[i].thick + 2
		p.dst[p.ribbons[i].dst].h += p.ribbons[i].slot
	}
	high := max(least(p.src), least(p.dst))
	spread(p.src, high)
	spread(p.dst, high)
	p.bottom = headH + high
	at, into := make([]float64, len(p.src)), make([]float64, len(p.dst))
	for i := range p.ribbons {
		r := &p.ribbons[i]
		r.srcTop = p.src[r.src].y + at[r.src] + 1
		at[r.src] += r.thick + 2
		r.slotTop = p.dst[r.dst].y + into[r.dst]
		r.dstTop = r.slotTop + (r.slot-r.thick)/2
		into[r.dst] += r.slot
	}
}

// least is the height of a column whose rows are as near as they may be.
func least(rows []row) float64 {
	h := float64(gapH * max(len(rows)-1, 0))
	for i := range rows {
		rows[i].h = max(rows[i].h, lineH)
		if rows[i].lo != rows[i].hi {
			rows[i].h = max(rows[i].h, 2*lineH) // its name is long: its bytes stand below
		}
		h += rows[i].h
	}
	return h
}

// spread puts rows into a column of a height that is enough, in equal distances.
func spread(rows []row, high float64) {
	gap := (high-least(rows))/float64(max(len(rows), 1)) + gapH
	y := headH + (gap-gapH)/2
	for i := range rows {
		rows[i].y = y
		y += rows[i].h + gap
	}
}
