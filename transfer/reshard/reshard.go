// Package reshard plans which rank sends which box to which rank.
//
// New is a pure function of (model, src, dst). Both sides of a hand-off run it on
// the same whole-group inputs and compare digests before the first byte moves; no
// rank plans from a partial list. Every destination cell gets exactly one source.
// How bytes lie in memory is for package lower.
package reshard

import (
	"cmp"
	"errors"
	"fmt"
	"iter"
	"slices"
	"sort"
	"strings"

	"github.com/batonkv/baton/transfer/layout"
)

// ErrUncovered reports destination cells that no source holds.
var ErrUncovered = errors.New("reshard: destination not covered")

// ErrMismatch reports a source shard whose rows cannot become the destination's.
var ErrMismatch = errors.New("reshard: shards do not fit each other")

// UncoveredError names the cells that no source holds. It is an ErrUncovered.
type UncoveredError struct {
	State   string
	Rank    layout.Rank // destination
	Box     layout.Box
	Sources []layout.Rank // those that hold any of the state, ascending, at most 8
}

func (e *UncoveredError) Error() string {
	s := fmt.Sprintf("%v: state %s, %v of destination rank %d: ", ErrUncovered, e.State, e.Box, e.Rank)
	if len(e.Sources) == 0 {
		return s + "no source rank holds any of the state: state the shards of every source rank"
	}
	return s + fmt.Sprintf("no source rank holds it, of those that hold other parts %v: state the shards of every source rank", e.Sources)
}

func (e *UncoveredError) Unwrap() error { return ErrUncovered }

// Move copies one box of one state from rank Src to rank Dst.
type Move struct {
	State    int32
	Src, Dst layout.Rank
	Box      layout.Box
}

// Pair is one (source rank, destination rank) that exchanges bytes.
type Pair struct{ Src, Dst layout.Rank }

// Part is a Move with the two shards that it copies between.
type Part struct {
	Move
	From, To *layout.Shard // of the plan: read only
}

// Plan is immutable and safe for concurrent use.
type Plan struct {
	model    layout.Model
	src, dst []layout.Shard // sorted by layout.CompareShards
	moves    []planned
	pairs    []Pair  // sorted by (Dst, Src)
	first    []int32 // first move of each pair, and the end
	digest   [32]byte
}

// planned is a move with its shards, as indices into Plan.src and Plan.dst.
type planned struct {
	Move
	src, dst int32
}

// New plans src -> dst. It copies what it keeps. The order of src and dst does
// not matter. Where several sources hold a cell, the one with the fewest bytes
// planned so far is taken, ties to the lowest rank; states of one family
// ("attn.k" and "attn.v") that a destination rank takes count together, so they
// come from one source when they can.
//
// Errors: layout.ErrGeometry and what wraps it, ErrUncovered, ErrMismatch.
func New(m layout.Model, src, dst []layout.Shard) (*Plan, error) {
	p := &Plan{model: layout.Model{States: slices.Clone(m.States)}, src: sorted(src), dst: sorted(dst)}
	if err := m.Check(p.src); err != nil {
		return nil, fmt.Errorf("source: %w", err)
	}
	if err := m.Check(p.dst); err != nil {
		return nil, fmt.Errorf("destination: %w", err)
	}
	c := newCover(p)
	p.moves = make([]planned, 0, 4*len(p.dst))
	var o order
	for i := 0; i < len(p.dst); {
		from := len(p.moves)
		rank := p.dst[i].Rank
		for ; i < len(p.dst) && p.dst[i].Rank == rank; i++ {
			if err := c.take(int32(i)); err != nil {
				return nil, err
			}
		}
		o.sort(p.moves[from:])
	}
	p.index()
	p.digest = p.sum()
	return p, nil
}

func sorted(s []layout.Shard) []layout.Shard {
	s = slices.Clone(s)
	if !slices.IsSortedFunc(s, layout.CompareShards) {
		slices.SortFunc(s, layout.CompareShards)
	}
	return s
}

// order sorts the moves into one destination rank by (Src, State, Box). Numbers
// sort faster than moves do: each is source, state and place in 20, 12 and 32 bits.
type order struct {
	keys []uint64
	tmp  []planned
}

func (o *order) sort(ms []planned) {
	o.keys, o.tmp = o.keys[:0], append(o.tmp[:0], ms...)
	for i := range ms {
		o.keys = append(o.keys, uint64(ms[i].Src)<<44|uint64(ms[i].State)<<32|uint64(i))
	}
	slices.Sort(o.keys)
	first := 0
	for i, k := range o.keys {
		ms[i] = o.tmp[uint32(k)]
		if i+1 == len(o.keys) || o.keys[i+1]>>32 != k>>32 {
			if i > first {
				slices.SortFunc(ms[first:i+1], func(a, b planned) int { return layout.CompareBoxes(a.Box, b.Box) })
			}
			first = i + 1
		}
	}
}

func (p *Plan) index() {
	for i := range p.moves {
		pair := Pair{p.moves[i].Src, p.moves[i].Dst}
		if n := len(p.pairs); n == 0 || p.pairs[n-1] != pair {
			p.pairs = append(p.pairs, pair)
			p.first = append(p.first, int32(i))
		}
	}
	p.first = append(p.first, int32(len(p.moves)))
}

// Model is what both sides agreed on; its slice is the plan's, read only.
func (p *Plan) Model() layout.Model { return p.model }

// Moves yields every move, sorted by (Dst, Src, State, Box).
func (p *Plan) Moves() iter.Seq[Move] { return each(p.moves) }

// Into yields the moves that rank dst receives, in plan order.
func (p *Plan) Into(dst layout.Rank) iter.Seq[Move] {
	lo := sort.Search(len(p.moves), func(i int) bool { return p.moves[i].Dst >= dst })
	hi := sort.Search(len(p.moves), func(i int) bool { return p.moves[i].Dst > dst })
	return each(p.moves[lo:hi])
}

// From yields the moves that rank src sends, in plan order.
func (p *Plan) From(src layout.Rank) iter.Seq[Move] {
	return func(yield func(Move) bool) {
		for i := range p.moves {
			if m := &p.moves[i]; m.Src == src && !yield(m.Move) {
				return
			}
		}
	}
}

func each(ms []planned) iter.Seq[Move] {
	return func(yield func(Move) bool) {
		for i := range ms {
			if !yield(ms[i].Move) {
				return
			}
		}
	}
}

// Pairs are the rank pairs that exchange bytes, sorted by (Dst, Src); a Job's
// Pair indexes it. The slice is the caller's.
func (p *Plan) Pairs() []Pair { return slices.Clone(p.pairs) }

// PairOf is the index of (src, dst) in Pairs.
func (p *Plan) PairOf(src, dst layout.Rank) (uint32, bool) {
	i, ok := slices.BinarySearchFunc(p.pairs, Pair{src, dst}, func(a, b Pair) int {
		return cmp.Or(cmp.Compare(a.Dst, b.Dst), cmp.Compare(a.Src, b.Src))
	})
	return uint32(i), ok
}

// Parts yields the moves of one pair with their shards; none for an index that
// Pairs lacks.
func (p *Plan) Parts(pair uint32) iter.Seq[Part] {
	return func(yield func(Part) bool) {
		if int64(pair) >= int64(len(p.pairs)) {
			return
		}
		for i := p.first[pair]; i < p.first[pair+1]; i++ {
			m := &p.moves[i]
			if !yield(Part{m.Move, &p.src[m.src], &p.dst[m.dst]}) {
				return
			}
		}
	}
}

// Digest identifies the plan: equal plans have equal digests. It covers the
// model, both geometries and every move, so either side's disagreement shows.
func (p *Plan) Digest() [32]byte { return p.digest }

// Bytes is what a hand-off of that many tokens writes over pair, as the
// destination stores it: paged states per token, per-request states once.
func (p *Plan) Bytes(pair uint32, tokens int32) int64 {
	var n int64
	for part := range p.Parts(pair) {
		st := &p.model.States[part.State]
		rows := int64(tokens)
		if st.Paging == layout.PerRequest {
			rows = int64(part.To.Rows)
		}
		n += part.Box.Area() * int64(st.Elems) * part.To.DType.Size() * rows
	}
	return n
}

// Total is Bytes of every pair.
func (p *Plan) Total(tokens int32) int64 {
	var n int64
	for i := range p.pairs {
		n += p.Bytes(uint32(i), tokens)
	}
	return n
}

// family is the name before its last dot: "attn" of "attn.k".
func family(name string) string {
	if i := strings.LastIndexByte(name, '.'); i >= 0 {
		return name[:i]
	}
	return name
}
