package lower

import (
	"errors"
	"fmt"
	"math"
	"math/bits"

	"github.com/batonkv/baton/transfer/layout"
	"github.com/batonkv/baton/transfer/reshard"
)

// Sentinels of this package.
var (
	// ErrJob reports a job that its template cannot serve: a block or slot outside
	// its pool, a table too short, tokens out of range, another pair.
	ErrJob = errors.New("lower: bad job")
	// ErrPair reports a pair that the plan lacks.
	ErrPair = errors.New("lower: no such pair")
	// ErrTemplate reports bytes that are no template, or a box too large to lower.
	ErrTemplate = errors.New("lower: bad template")
	// ErrSplit reports a nest that is no plain copy.
	ErrSplit = errors.New("lower: cannot split")
)

// Template is one rank pair of a plan, lowered without block ids. It is immutable:
// safe for concurrent use, and worth caching for as long as the plan lives.
type Template struct {
	pair     uint32
	ranks    reshard.Pair
	bodies   []body
	perToken int64 // destination bytes of paged bodies
	perSlot  int64 // destination bytes of the others
	paged    bool  // some body is paged
	slots    bool  // some body is per request
}

// New lowers the pair-th pair of p.
func New(p *reshard.Plan, pair uint32) (*Template, error) {
	t := &Template{pair: pair}
	m := p.Model()
	for part := range p.Parts(pair) {
		t.ranks = reshard.Pair{Src: part.Src, Dst: part.Dst}
		t.bodies = bodiesOf(m, part, t.bodies)
	}
	if len(t.bodies) == 0 {
		return nil, fmt.Errorf("%w: %d: the plan has %d", ErrPair, pair, len(p.Pairs()))
	}
	return t.done()
}

// Paged lowers what the pair-th pair of p moves of these layers of its paged states, counted
// within each state. That may be nothing: then Bytes of every job is 0.
func Paged(p *reshard.Plan, pair uint32, layers layout.Span) (*Template, error) {
	if int(pair) >= len(p.Pairs()) {
		return nil, fmt.Errorf("%w: %d: the plan has %d", ErrPair, pair, len(p.Pairs()))
	}
	t := &Template{pair: pair, ranks: p.Pairs()[pair]}
	m := p.Model()
	for part := range p.Parts(pair) {
		part.Box.Layers = part.Box.Layers.Intersect(layers)
		if m.States[part.State].Paging == layout.PerBlock && !part.Box.Empty() {
			t.bodies = bodiesOf(m, part, t.bodies)
		}
	}
	return t.done()
}

// done checks the bodies of a new template and joins them.
func (t *Template) done() (*Template, error) {
	for i := range t.bodies { // before merging, so that merging cannot overflow
		if err := t.bodies[i].check(); err != nil {
			return nil, fmt.Errorf("%w: pair %+v: %w", ErrTemplate, t.ranks, err)
		}
	}
	t.bodies = merge(t.bodies)
	if err := t.finish(); err != nil {
		return nil, fmt.Errorf("%w: pair %+v: %w", ErrTemplate, t.ranks, err)
	}
	return t, nil
}

// finish checks the bodies and adds them up.
func (t *Template) finish() error {
	for i := range t.bodies {
		b := &t.bodies[i]
		if err := b.check(); err != nil {
			return fmt.Errorf("body %d: %w", i, err)
		}
		from, to := sizes(b.nest.From, b.nest.To)
		n := b.nest.Run / from * to
		for _, d := range b.nest.Dims[:b.nest.Rank] {
			n *= int64(d.N)
		}
		if b.paged {
			t.perToken += n
			t.paged = true
		} else {
			t.perSlot += n
			t.slots = true
		}
		if t.perToken > maxReach || t.perSlot > maxReach {
			return fmt.Errorf("over 2^60 bytes")
		}
	}
	return nil
}

// Pair is the index that New was given; a Job must name the same.
func (t *Template) Pair() uint32 { return t.pair }

// Ranks are the source and the destination.
func (t *Template) Ranks() reshard.Pair { return t.ranks }

// Paged reports whether t moves paged states, so that a Job needs block tables.
func (t *Template) Paged() bool { return t.paged }

// PerRequest reports whether t moves per-request states, so that a Job needs slots.
func (t *Template) PerRequest() bool { return t.slots }

// Bytes is what j writes, as the destination stores it. It checks j but for the
// block ids.
func (t *Template) Bytes(j Job) (int64, error) {
	if err := t.check(&j); err != nil {
		return 0, err
	}
	hi, lo := bits.Mul64(uint64(t.perToken), uint64(j.Tokens.Hi-j.Tokens.Lo))
	if hi != 0 || lo > math.MaxInt64-uint64(t.perSlot) {
		return 0, fmt.Errorf("%w: tokens %v of %d bytes each are over 2^63 bytes", ErrJob, j.Tokens, t.perToken)
	}
	return int64(lo) + t.perSlot, nil
}

// check refuses what is wrong with j as a whole; block ids are checked as they
// are used.
func (t *Template) check(j *Job) error {
	if j.Pair != t.pair {
		return fmt.Errorf("%w: it is for pair %d and the template for %d", ErrJob, j.Pair, t.pair)
	}
	if j.Tokens.Lo < 0 || j.Tokens.Hi < j.Tokens.Lo {
		return fmt.Errorf("%w: tokens %v: want 0 <= first <= last", ErrJob, j.Tokens)
	}
	if min(j.SrcFirst, j.DstFirst) < 0 || max(j.SrcFirst, j.DstFirst) > j.Tokens.Lo {
		return fmt.Errorf("%w: tokens %v of tables that start at %d and %d", ErrJob, j.Tokens, j.SrcFirst, j.DstFirst)
	}
	for i := range t.bodies {
		b := &t.bodies[i]
		if !b.paged {
			if b.nest.From != 0 && (j.SrcSlot < 0 || j.SrcSlot >= b.srcItems) {
				return fmt.Errorf("%w: source slot %d: rank %d has %d", ErrJob, j.SrcSlot, t.ranks.Src, b.srcItems)
			}
			if j.DstSlot < 0 || j.DstSlot >= b.dstItems {
				return fmt.Errorf("%w: destination slot %d: rank %d has %d", ErrJob, j.DstSlot, t.ranks.Dst, b.dstItems)
			}
			continue
		}
		if j.Tokens.Lo == j.Tokens.Hi {
			continue
		}
		if int64(len(j.SrcBlocks))*int64(b.srcRows) < int64(j.Tokens.Hi-j.SrcFirst) {
			return fmt.Errorf("%w: tokens %v: the source table has %d blocks of %d", ErrJob, j.Tokens, len(j.SrcBlocks), b.srcRows)
		}
		if int64(len(j.DstBlocks))*int64(b.dstRows) < int64(j.Tokens.Hi-j.DstFirst) {
			return fmt.Errorf("%w: tokens %v: the destination table has %d blocks of %d", ErrJob, j.Tokens, len(j.DstBlocks), b.dstRows)
		}
	}
	return nil
}

// Nests appends the nests of j to dst and returns it; it allocates only when dst
// lacks room. Every byte of j is written once if no destination block is named
// twice. When it fails it returns dst as it was.
func (t *Template) Nests(dst []Nest, j Job) ([]Nest, error) {
	if err := t.check(&j); err != nil {
		return dst, err
	}
	w := walk{ns: dst}
	for i := range t.bodies {
		b := &t.bodies[i]
		if !b.paged {
			n := w.put(&b.nest)
			n.DstOff += int64(j.DstSlot) * b.dstItem
			if n.From != 0 {
				n.SrcOff += int64(j.SrcSlot) * b.srcItem
			}
			continue
		}
		if err := w.blocks(b, &j); err != nil {
			return dst, fmt.Errorf("%w (rank %d to %d)", err, t.ranks.Src, t.ranks.Dst)
		}
	}
	return w.ns, nil
}

// Sample appends one nest per kind of copy that t can ask for, those of one
// token or slot: what a copier is asked about once per template.
func (t *Template) Sample(dst []Nest) []Nest {
	for i := range t.bodies {
		if i == 0 || compareKind(&t.bodies[i-1], &t.bodies[i], true) != 0 {
			dst = append(dst, t.bodies[i].nest)
		}
	}
	return dst
}
