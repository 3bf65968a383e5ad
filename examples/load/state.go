package load

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math"

	"github.com/batonkv/baton/transfer/layout"
	"github.com/batonkv/baton/transfer/layout/parallel"
)

// state is a rank's shards over shared memory, filled with a pattern: each element of a
// request's state is a function of (tokens so far, state, layer, unit, row, element). It
// goes by the views alone, so that any layout that can be stated can be filled.
type state struct {
	model  layout.Model
	shards []layout.Shard
	bufs   []buffer
	free   func()
	err    error // of the GPU: nothing is known of the memory from then on
}

func newState(cfg Config) (*state, error) {
	d := cfg.Model.desc()
	places, err := d.Rank(parallel.Cut{TP: int32(cfg.TP)}, cfg.memory(), layout.Rank(cfg.Rank))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	s := &state{model: d.Model(), shards: places.Shards}
	if s.bufs, s.free, err = newBuffers(cfg, places.Buffers); err != nil {
		return nil, fmt.Errorf("load: memory: %w", err)
	}
	for i := range s.bufs {
		b := &s.bufs[i]
		fill(b.mem, poison)
		b.touch(span{hi: int64(len(b.mem))})
		if err := b.store(); err != nil {
			s.close()
			return nil, fmt.Errorf("load: %w", err)
		}
	}
	return s, nil
}

func (s *state) close() {
	if s.free != nil {
		s.free()
	}
	s.bufs, s.free = nil, nil
}

// poison is what memory holds that was handed out and not written.
const poison = 0xa5

func fill(b []byte, v byte) {
	for i := range b {
		b[i] = v
	}
}

// items is where a request's state lies: rows of the paged states by block, the
// per-request states in one slot.
type items struct {
	blocks []int32
	slot   int32 // -1: none
}

// visit is what is done with one element: sh's, in b, whose pattern is want; false ends it.
type visit struct {
	do     func(sh *layout.Shard, b []byte, want uint64) bool
	writes bool
}

// each visits every element of rows in these layers and, when slot is wanted, of the
// per-request state at position chain's end. want is the element's pattern in size bytes.
func (s *state) each(at items, chain []uint64, rows, layers layout.Span, slot bool, f visit) bool {
	for i := range s.shards {
		sh := &s.shards[i]
		if s.model.States[sh.State].Paging == layout.PerBlock {
			for t := rows.Lo; t < rows.Hi; t++ {
				if !s.row(sh, at.blocks[t/sh.Rows], t%sh.Rows, chain[t+1], layers, f) {
					return false
				}
			}
			continue
		}
		for r := int32(0); slot && r < sh.Rows; r++ {
			if !s.row(sh, at.slot, r, mix(chain[len(chain)-1]+uint64(r)), allLayers, f) {
				return false
			}
		}
	}
	return true
}

// allLayers is a span that no state is longer than.
var allLayers = layout.Span{Hi: math.MaxInt32}

// row is one row of one item, over those of layers that the shard has and its units.
func (s *state) row(sh *layout.Shard, item, row int32, c uint64, layers layout.Span, f visit) bool {
	v := &sh.View
	for l := max(sh.Box.Layers.Lo, layers.Lo); l < min(sh.Box.Layers.Hi, layers.Hi); l++ {
		for u := sh.Box.Units.Lo; u < sh.Box.Units.Hi; u++ {
			off := v.Off + int64(l-sh.Box.Layers.Lo)*v.Layer + int64(item)*v.Item + int64(row)*v.Row + int64(u-sh.Box.Units.Lo)*v.Unit
			if !s.unit(sh, off, mix(c^uint64(sh.State)<<56^uint64(l)<<32^uint64(u)), f) {
				return false
			}
		}
	}
	return true
}

// unit is one unit of a row, from the byte off on; its pattern starts from x.
func (s *state) unit(sh *layout.Shard, off int64, x uint64, f visit) (on bool) {
	b, n, elems := &s.bufs[sh.View.Buffer], sh.DType.Size(), int64(s.model.States[sh.State].Elems)
	on = true
	for e := int64(0); on && e < elems; e++ {
		x = x*0x5851f42d4c957f2d + 0x14057b7ef767814f
		at := off + e*sh.View.Elem
		on = f.do(sh, b.mem[at:at+n:at+n], x>>(64-8*n))
	}
	if f.writes {
		b.touch(span{off, off + (elems-1)*sh.View.Elem + n})
	}
	return on
}

// synced does f on what a GPU has, which then has what f wrote.
func (s *state) synced(f func()) error {
	for i := range s.bufs {
		if s.err = cmp.Or(s.err, s.bufs[i].fetch()); s.err != nil {
			return s.err
		}
	}
	f()
	for i := range s.bufs {
		s.err = cmp.Or(s.err, s.bufs[i].store())
	}
	return s.err
}

func get(b []byte) uint64 {
	if len(b) == 2 {
		return uint64(binary.LittleEndian.Uint16(b))
	}
	return uint64(binary.LittleEndian.Uint32(b))
}

func put(b []byte, v uint64) {
	if len(b) == 2 {
		binary.LittleEndian.PutUint16(b, uint16(v))
		return
	}
	binary.LittleEndian.PutUint32(b, uint32(v))
}

// write fills rows in these layers, and the slot with the state at the chain's end. An error
// is the GPU's.
func (s *state) write(at items, chain []uint64, rows, layers layout.Span) error {
	fill := visit{func(_ *layout.Shard, b []byte, want uint64) bool { put(b, want); return true }, true}
	return s.synced(func() { s.each(at, chain, rows, layers, at.slot >= 0, fill) })
}

// check compares with the pattern; what differs first is the error.
func (s *state) check(at items, chain []uint64, rows layout.Span) (err error) {
	compare := visit{do: func(sh *layout.Shard, b []byte, want uint64) bool {
		if got := get(b); got != want {
			what := "another state's"
			if clean := get([]byte{poison, poison, poison, poison}[:len(b)]); got == clean {
				what = "not written"
			}
			err = fmt.Errorf("%w: %s in blocks %v slot %d: %#x for %#x, %s", ErrWrong, s.model.States[sh.State].Name, at.blocks, at.slot, got, want, what)
		}
		return err == nil
	}}
	if lost := s.synced(func() { s.each(at, chain, rows, allLayers, at.slot >= 0, compare) }); lost != nil {
		return fmt.Errorf("%w: %w", ErrWrong, lost)
	}
	return err
}

// spoil poisons blocks and a slot that were handed out. What a GPU says of it, write and check do.
func (s *state) spoil(at items) {
	_ = s.synced(func() { s.poison(at) })
}

func (s *state) poison(at items) {
	set := visit{func(_ *layout.Shard, b []byte, _ uint64) bool { fill(b, poison); return true }, true}
	for i := range s.shards {
		sh := &s.shards[i]
		at := at.blocks
		if s.model.States[sh.State].Paging == layout.PerRequest {
			at = nil
		}
		for _, b := range at {
			for r := range sh.Rows {
				s.row(sh, b, r, 0, allLayers, set)
			}
		}
	}
	if at.slot >= 0 {
		s.each(items{slot: at.slot}, []uint64{0}, layout.Span{}, allLayers, true, set)
	}
}

// damage flips one bit of the last row, so that a check can show that it notices.
func (s *state) damage(at items, tokens int32) {
	sh := &s.shards[0]
	flip := visit{func(_ *layout.Shard, b []byte, _ uint64) bool {
		b[0] ^= 1
		return false
	}, true}
	_ = s.synced(func() { s.row(sh, at.blocks[(tokens-1)/sh.Rows], (tokens-1)%sh.Rows, 0, allLayers, flip) })
}
