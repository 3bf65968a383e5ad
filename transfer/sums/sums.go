// Package sums says what is added up of a hand-off's state so that a destination can tell
// whether it has the source's bytes, whatever the two layouts are. A sum belongs to one
// state, layer, unit and range of tokens; it is the sum modulo 2^64 of one number for each
// row, and that number depends on the row's bytes and on its place in the model, never on
// memory. It finds accidents: who can write either memory can make sums agree.
//
// The package is pure: it chooses what to sum, cuts a source's sums to what a rank pair
// moved, and compares. kernels/rows reads the memory.
package sums

import (
	"errors"
	"fmt"
	"slices"

	"github.com/batonkv/baton/transfer/layout"
)

// Mode is how much is summed.
type Mode uint8

const (
	Off    Mode = iota // nothing
	Sample             // a quarter of the layers in a quarter of the ranges, chosen anew for each export
	All                // every byte
)

var modeNames = [...]string{Off: "off", Sample: "sample", All: "all"}

func (m Mode) String() string {
	if int(m) < len(modeNames) {
		return modeNames[m]
	}
	return "mode(?)"
}

// ParseMode is the inverse of String.
func ParseMode(s string) (Mode, error) {
	if i := slices.Index(modeNames[:], s); i >= 0 {
		return Mode(i), nil
	}
	return Off, fmt.Errorf("%q: want off, sample or all", s)
}

// ErrMany says that a rank's share has more sums than a message may carry.
var ErrMany = errors.New("sums: too many")

// Bounds of what one rank may state.
const (
	MaxSums  = 1 << 15 // of a whole group: 256 KiB on the wire
	MaxParts = 1 << 12
)

// MinRange is the fewest tokens that one sum is of.
const MinRange = 16

// Part is the sums of one box of a state, or where they are to be made.
type Part struct {
	State  int32
	Box    layout.Box
	Tokens layout.Span // of a paged state; Lo is a multiple of Range, Hi too or the hand-off's end
	Rows   int32       // per-request state: columns that are summed, the newest ones; paged: 0
	DType  layout.DType
	Sums   []uint64 // [layer][unit][range]
}

// Paged reports whether p is of a paged state.
func (p *Part) Paged() bool { return p.Rows == 0 }

// ranges is how many sums a cell of p has.
func (p *Part) ranges(size int32) int64 {
	if !p.Paged() {
		return 1
	}
	return (int64(p.Tokens.Len()) + int64(size) - 1) / int64(size)
}

// Count is how many sums p has, with ranges of so many tokens.
func (p *Part) Count(size int32) int64 { return p.Box.Area() * p.ranges(size) }

// Sums is what one rank made of its share at Export.
type Sums struct {
	Mode  Mode
	Range int32 // tokens of one sum, a power of two
	Parts []Part
}

// Check reports what cannot be the sums of a hand-off of so many tokens, whoever sent them.
func (s *Sums) Check(m layout.Model, tokens int32) error {
	if s.Mode == Off {
		if len(s.Parts) > 0 {
			return errors.New("sums without a mode")
		}
		return nil
	}
	if s.Mode > All || s.Range < MinRange || s.Range&(s.Range-1) != 0 || len(s.Parts) > MaxParts {
		return fmt.Errorf("mode %d, ranges of %d tokens, %d parts", s.Mode, s.Range, len(s.Parts))
	}
	var total int64
	for i := range s.Parts {
		p := &s.Parts[i]
		if err := p.check(m, s.Range, tokens); err != nil {
			return fmt.Errorf("part %d: %w", i, err)
		}
		total += int64(len(p.Sums))
	}
	if total > MaxSums {
		return fmt.Errorf("%w: %d, at most %d", ErrMany, total, MaxSums)
	}
	return nil
}

func (p *Part) check(m layout.Model, size, tokens int32) error {
	if p.State < 0 || int(p.State) >= len(m.States) {
		return fmt.Errorf("state %d: the model has %d", p.State, len(m.States))
	}
	st := &m.States[p.State]
	whole := layout.Box{Layers: layout.Span{Hi: st.Layers}, Units: layout.Span{Hi: st.Units}}
	if p.Box.Empty() || p.Box.Intersect(whole) != p.Box {
		return fmt.Errorf("%v is not of state %s", p.Box, st.Name)
	}
	paged := st.Paging == layout.PerBlock
	if p.Rows < 0 || paged != p.Paged() {
		return fmt.Errorf("%d rows of state %s", p.Rows, st.Name)
	}
	if paged && (p.Tokens.Lo < 0 || p.Tokens.Empty() || p.Tokens.Lo%size != 0 || p.Tokens.Hi > tokens ||
		p.Tokens.Hi%size != 0 && p.Tokens.Hi != tokens) {
		return fmt.Errorf("tokens %v in ranges of %d, of %d", p.Tokens, size, tokens)
	}
	if n := p.Count(size); n != int64(len(p.Sums)) {
		return fmt.Errorf("%d sums, want %d", len(p.Sums), n)
	}
	return nil
}

// Choose says what a rank sums of its shards: parts without Sums, at most MaxSums over the
// ranks of its group. seed chooses a sample.
func Choose(m layout.Model, shards []layout.Shard, tokens, ranks int32, mode Mode, seed uint64) (Sums, error) {
	s := Sums{Mode: mode, Range: MinRange}
	if mode == Off || tokens < 1 {
		return Sums{}, nil
	}
	budget := int64(MaxSums / max(ranks, 1))
	var all []Part
	for _, sh := range shards {
		p := Part{State: sh.State, Box: sh.Box, DType: sh.DType, Tokens: layout.Span{Hi: tokens}}
		if m.States[sh.State].Paging == layout.PerRequest {
			p.Tokens, p.Rows = layout.Span{}, sh.Rows
		}
		all = append(all, p)
	}
	for count(all, s.Range) > budget {
		if s.Range >= tokens {
			return Sums{}, fmt.Errorf("%w: one for each layer and unit of %d shards is more than %d", ErrMany, len(shards), budget)
		}
		s.Range *= 2
	}
	s.Parts = all
	if mode == Sample {
		s.Parts = sample(all, s.Range, seed)
	}
	if len(s.Parts) > MaxParts {
		return Sums{}, fmt.Errorf("%w: %d parts, at most %d", ErrMany, len(s.Parts), MaxParts)
	}
	return s, nil
}

func count(ps []Part, size int32) (n int64) {
	for i := range ps {
		n += ps[i].Count(size)
	}
	return n
}

// sampled is the share of layers, and of ranges, that a sample takes: one of so many.
const sampled = 4

// sample keeps some layers of each part, and in each of them some ranges.
func sample(all []Part, size int32, seed uint64) (out []Part) {
	for _, p := range all {
		for _, l := range choose(p.Box.Layers.Len(), &seed) {
			q := p
			lo := p.Box.Layers.Lo + l
			q.Box.Layers = layout.Span{Lo: lo, Hi: lo + 1}
			if !p.Paged() {
				out = append(out, q)
				continue
			}
			for _, at := range choose(int32(p.ranges(size)), &seed) {
				q.Tokens = layout.Span{Lo: at * size, Hi: min((at+1)*size, p.Tokens.Hi)}
				out = append(out, q)
			}
		}
		if len(out) > MaxParts {
			return out // refused
		}
	}
	return out
}

// choose draws one of so many of 0 to n-1, at least one, in order.
func choose(n int32, seed *uint64) (out []int32) {
	for left := (n + sampled - 1) / sampled; n > 0; n-- {
		*seed += 0x9e3779b97f4a7c15
		x := (*seed ^ *seed>>30) * 0xbf58476d1ce4e5b9
		x ^= x >> 31
		if x%uint64(n) < uint64(left) { // of the n that are left to look at, so many are to be drawn
			out = append(out, n-1)
			left--
		}
	}
	slices.Reverse(out)
	return out
}

// Fill puts made, in the order of the parts, into s.
func (s *Sums) Fill(made []uint64) error {
	if int64(len(made)) != count(s.Parts, s.Range) {
		return fmt.Errorf("sums: %d were made, want %d", len(made), count(s.Parts, s.Range))
	}
	for i := range s.Parts {
		n := s.Parts[i].Count(s.Range)
		s.Parts[i].Sums, made = made[:n:n], made[n:]
	}
	return nil
}
