package tp

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
)

// Sum adds the partial sums of all units of ranks, of which this is one: part is
// [units][len(out)], own units only, of which a rank may have none. The first of ranks
// has some; it adds them, in ascending order of ranks and units, and tells the others.
func (g *Group) Sum(ranks []int, part []float32, units int, out []float32) error {
	n := len(out)
	if len(part) != units*n {
		return fmt.Errorf("%w: %d values for %d units of %d", ErrFrame, len(part), units, n)
	}
	root := ranks[0]
	if g.rank != root {
		g.acc = appendFloats(g.acc[:0], part)
		if err := g.send(root, framePart, g.acc); err != nil {
			return err
		}
		return g.into(root, frameSum, out)
	}
	copy(out, part[:n])
	for u := 1; u < units; u++ {
		for i, v := range part[u*n : (u+1)*n] {
			out[i] += v
		}
	}
	for _, r := range ranks[1:] {
		b, err := g.receive(r, framePart)
		if err != nil {
			return err
		}
		if len(b)%(4*n) != 0 {
			return fmt.Errorf("%w: %d bytes of partial sums of %d values", ErrFrame, len(b), n)
		}
		for ; len(b) > 0; b = b[4*n:] {
			for i := range out {
				out[i] += math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))
			}
		}
	}
	g.acc = appendFloats(g.acc[:0], out)
	for _, r := range ranks[1:] {
		if err := g.send(r, frameSum, g.acc); err != nil {
			return err
		}
	}
	return nil
}

// Exchange is the all-to-all of ranks, of which this is one: out[i] goes to ranks[i], in
// takes what ranks[i] has for this one, valid until it returns. Either may be empty: a
// rank that has nothing takes part all the same.
//
// Each pair meets by itself, its lower rank speaks first, and a rank meets the others in
// ascending order: of the pairs that have not met, the first is never kept waiting. So
// nobody needs a buffer for what another is not ready to read.
func (g *Group) Exchange(ranks []int, out [][]float32, in func(i int, v []float32) error) error {
	if len(out) != len(ranks) || !slices.IsSorted(ranks) {
		return fmt.Errorf("%w: %d parts for ranks %v", ErrFrame, len(out), ranks)
	}
	for i, r := range ranks {
		if r == g.rank {
			if err := in(i, out[i]); err != nil {
				return err
			}
			continue
		}
		if err := g.meet(r, out[i], func(v []float32) error { return in(i, v) }); err != nil {
			return err
		}
	}
	return nil
}

// meet exchanges with one rank.
func (g *Group) meet(r int, out []float32, in func(v []float32) error) error {
	give := func() error {
		g.acc = appendFloats(g.acc[:0], out)
		return g.send(r, frameExchange, g.acc)
	}
	if g.rank < r {
		if err := give(); err != nil {
			return err
		}
	}
	b, err := g.receive(r, frameExchange)
	if err != nil {
		return err
	}
	if len(b)%4 != 0 {
		return fmt.Errorf("%w: %d bytes of values", ErrFrame, len(b))
	}
	g.in = slices.Grow(g.in[:0], len(b)/4)[:len(b)/4]
	if err := readFloats(g.in, b); err != nil {
		return err
	}
	if g.rank > r { // before in, which may take long: the other waits
		if err := give(); err != nil {
			return err
		}
	}
	return in(g.in)
}

// Pass gives values to one rank, which Takes them.
func (g *Group) Pass(to int, v []float32) error {
	g.acc = appendFloats(g.acc[:0], v)
	return g.send(to, framePass, g.acc)
}

// Take fills out with what a rank Passes.
func (g *Group) Take(from int, out []float32) error { return g.into(from, framePass, out) }

func (g *Group) into(from int, kind byte, out []float32) error {
	b, err := g.receive(from, kind)
	if err != nil {
		return err
	}
	return readFloats(out, b)
}

func appendFloats(b []byte, v []float32) []byte {
	for _, f := range v {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(f))
	}
	return b
}

func readFloats(out []float32, b []byte) error {
	if len(b) != 4*len(out) {
		return fmt.Errorf("%w: %d bytes for %d values", ErrFrame, len(b), len(out))
	}
	for i := range out {
		out[i] = math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))
	}
	return nil
}
