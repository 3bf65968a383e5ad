package plain

import (
	"encoding/binary"
	"fmt"

	"github.com/batonkv/baton/transfer"
	"github.com/batonkv/baton/transfer/sums"
)

// SumOp is one layer of a sums.Place with an address, its bounds checked. Rows at lo to hi
// are summed in ranges; a per-request state is one block, its slot, and one range. Memory
// layout equals struct rows_sum of kernels/rows/shim.h.
type SumOp struct {
	At                    uint64 // of item 0, row 0, the first unit
	Item, Row, Unit, Elem int64  // bytes between neighbours
	Elems                 int64
	Key                   uint64 // of state, layer and first unit
	Bias                  int64  // added to a row's number in its key
	Lo, Hi                int64  // rows
	Range                 int64
	Units, Depth, Size    int32 // rows of an item; bytes of an element
	Slot                  int32 // what stands for the block table; -1: the table does
	Out                   int64 // index of the first sum, [unit][range]
}

// The numbers of a row's place and of a word's place in its row. They are odd, and apart
// from each other in most bits, so that neighbours have keys that share nothing.
const (
	keyState uint64 = 0xd6e8feb86659fd93
	keyLayer uint64 = 0xa0761d6478bd642f
	keyUnit  uint64 = 0xe7037ed1a0b428db
	keyRow   uint64 = 0x8ebc6af09c88c6e3
	keyWord  uint64 = 0x9e3779b97f4a7c15
	mixA     uint64 = 0xd1b54a32d192ed03
	mixB     uint64 = 0xaef17502108ef2d9
)

// ResolveSums checks every byte that j names against in and returns its ops, and how many
// sums they make. It fails with ErrBounds, and then nothing may be read.
func ResolveSums(ops []SumOp, j *sums.Job, in transfer.Buffers) ([]SumOp, int64, error) {
	var total int64
	for i := range j.Places {
		p := &j.Places[i]
		if err := checkPlace(j, p); err != nil {
			return nil, 0, fmt.Errorf("place %d of %d: %w: %w", i, len(j.Places), transfer.ErrBounds, err)
		}
		n := p.Ranges(j.Range) // at most MaxSums, as the whole is
		per := n * int64(p.Box.Units.Len())
		if total += per * int64(p.Box.Layers.Len()); total > sums.MaxSums {
			return nil, 0, fmt.Errorf("%w: more than %d sums", transfer.ErrBounds, sums.MaxSums)
		}
		o, err := resolvePlace(j, p, in)
		if err != nil {
			return nil, 0, fmt.Errorf("place %d of %d: %w", i, len(j.Places), err)
		}
		o.Out = total - per*int64(p.Box.Layers.Len())
		for l := p.Box.Layers.Lo; l < p.Box.Layers.Hi; l++ {
			ops = append(ops, o)
			o.At += uint64(p.View.Layer)
			o.Key += keyLayer
			o.Out += per
		}
	}
	return ops, total, nil
}

// checkPlace refuses numbers that cannot be, so that none of their sums wraps.
func checkPlace(j *sums.Job, p *sums.Place) error {
	switch {
	case p.Box.Empty() || p.Box.Layers.Lo < 0 || p.Box.Units.Lo < 0 || p.Elems < 1 || p.Items < 1 || p.Depth < 1 || p.State < 0:
		return fmt.Errorf("%v of state %d with %d elements, %d items of %d rows", p.Box, p.State, p.Elems, p.Items, p.Depth)
	case p.Size != 1 && p.Size != 2 && p.Size != 4:
		return fmt.Errorf("elements of %d bytes", p.Size)
	case min(p.View.Layer, p.View.Item, p.View.Row, p.View.Unit, p.View.Elem) < 0:
		return fmt.Errorf("a negative stride")
	case p.Rows < 0 || p.Rows > p.Depth:
		return fmt.Errorf("%d of %d rows", p.Rows, p.Depth)
	case !p.Paged() && (j.Slot < 0 || j.Slot >= p.Items):
		return fmt.Errorf("slot %d of %d", j.Slot, p.Items)
	case p.Paged() && (j.Range < sums.MinRange || p.Tokens.Lo < 0 || p.Tokens.Empty() || p.Tokens.Lo%j.Range != 0):
		return fmt.Errorf("tokens %v in ranges of %d", p.Tokens, j.Range)
	case p.Paged() && int64(len(j.Blocks))*int64(p.Depth) < int64(p.Tokens.Hi):
		return fmt.Errorf("tokens %v of %d blocks of %d", p.Tokens, len(j.Blocks), p.Depth)
	case p.Box.Area() > sums.MaxSums || p.Ranges(j.Range) > sums.MaxSums:
		return fmt.Errorf("more than %d sums", sums.MaxSums)
	}
	if p.Paged() {
		for _, b := range j.Blocks[p.Tokens.Lo/p.Depth : (p.Tokens.Hi-1)/p.Depth+1] {
			if b < 0 || b >= p.Items {
				return fmt.Errorf("block %d of %d", b, p.Items)
			}
		}
	}
	return nil
}

func resolvePlace(j *sums.Job, p *sums.Place, in transfer.Buffers) (SumOp, error) {
	var e extent
	v := p.View
	e.step(int64(p.Box.Layers.Len()), v.Layer)
	e.step(int64(p.Items), v.Item)
	e.step(int64(p.Depth), v.Row)
	e.step(int64(p.Box.Units.Len()), v.Unit)
	e.step(int64(p.Elems), v.Elem)
	at, err := e.at("summed", v.Buffer, v.Off, int64(p.Size), in)
	if err != nil {
		return SumOp{}, err
	}
	o := SumOp{At: at, Item: v.Item, Row: v.Row, Unit: v.Unit, Elem: v.Elem, Elems: int64(p.Elems), Size: p.Size,
		Units: p.Box.Units.Len(), Depth: p.Depth, Lo: int64(p.Tokens.Lo), Hi: int64(p.Tokens.Hi), Range: int64(j.Range), Slot: -1,
		Key: uint64(p.State+1)*keyState + uint64(p.Box.Layers.Lo+1)*keyLayer + uint64(p.Box.Units.Lo+1)*keyUnit}
	if !p.Paged() {
		o.Slot, o.Lo, o.Hi, o.Range = j.Slot, int64(p.Depth-p.Rows), int64(p.Depth), int64(p.Depth)
		o.Bias = -int64(p.Depth) // columns count from the newest
	}
	return o, nil
}

// Ranges is how many sums each unit of o has.
func (o *SumOp) Ranges() int64 { return (o.Hi-1)/o.Range - o.Lo/o.Range + 1 }

// Sum adds up what ops say into out. It is the reference that the C kernel's numbers are
// compared with.
func Sum(ops []SumOp, blocks []int32, out []uint64) {
	for i := range ops {
		o := &ops[i]
		n := o.Ranges()
		for row := o.Lo; row < o.Hi; row++ {
			item := o.Slot
			if item < 0 {
				item = blocks[row/int64(o.Depth)]
			}
			at := o.At + uint64(int64(item)*o.Item+row%int64(o.Depth)*o.Row)
			for u := range int64(o.Units) {
				key := o.Key + uint64(u)*keyUnit + uint64(row+o.Bias+1)*keyRow
				out[o.Out+u*n+row/o.Range-o.Lo/o.Range] += mix(o.words(at+uint64(u*o.Unit)) + key)
			}
		}
	}
}

// words is the number of one row's bytes: of each eight, the low and the high half plus the
// halves of a key of their place, multiplied.
func (o *SumOp) words(at uint64) (sum uint64) {
	var w [8]byte
	size, n := int64(o.Size), 0
	key := keyWord
	flush := func() {
		x := binary.LittleEndian.Uint64(w[:])
		sum += uint64(uint32(x)+uint32(key)) * uint64(uint32(x>>32)+uint32(key>>32))
		key += keyWord
		w, n = [8]byte{}, 0
	}
	for e := range o.Elems {
		n += copy(w[n:], Bytes(at+uint64(e*o.Elem), size))
		if n == 8 {
			flush()
		}
	}
	if n > 0 {
		flush()
	}
	return sum
}

// mix is one to one, and makes every bit of the result depend on every bit of x.
func mix(x uint64) uint64 {
	x = (x ^ x>>32) * mixA
	x = (x ^ x>>29) * mixB
	return x ^ x>>32
}
