package model

import (
	"fmt"
	"math"
)

// Sizes is how many items a rank's memory has, and of which types.
type Sizes struct {
	Blocks, Slots, BlockTokens int32
	Types
}

// The buffers of a rank's memory, in their order.
const (
	BufferKV = iota
	BufferLatent
	BufferConv
	BufferSSM
	buffers
)

// BufferNames name them.
var BufferNames = [buffers]string{"kv", "latent", "conv", "ssm"}

// Memory is a rank's state memory, as views of bytes that others may map. A layer
// index counts within its kind and the rank's stage; units are the rank's own.
//
//	kv      [2, L, B, T, H, d]: K|V, layer, block, token, KV head, dim
//	latent  [L, B, T, r]: layer, block, token, latent and rotary key
//	conv    [L, S, C, k]: layer, slot, channels x|B|C, window column, newest last
//	ssm     [L, S, h, hd, ds]: layer, slot, head, head dim, state dim
type Memory struct {
	sizes      Sizes
	kv, latent paged
	conv, ssm  slots
	headRows   int // rows of a recurrent state: heads times head dim
}

// paged are rows of tokens in blocks.
type paged struct {
	elems
	planes, layers, blocks, tokens, units, dim int
}

func (p *paged) len() int { return p.planes * p.layers * p.blocks * p.tokens * p.units * p.dim }

// block is the first element of a block.
func (p *paged) block(plane, layer int, b int32) int {
	return ((plane*p.layers+layer)*p.blocks + int(b)) * p.tokens * p.units * p.dim
}

// row is the first element of one unit of one token of a table.
func (p *paged) row(plane, layer, unit int, table []int32, pos int) int {
	return p.block(plane, layer, table[pos/p.tokens]) + (pos%p.tokens*p.units+unit)*p.dim
}

// gather reads the rows of tokens lo to hi of one unit, one after the other.
func (p *paged) gather(plane, layer, unit int, table []int32, lo, hi int, out []float32) {
	for pos := lo; pos < hi; pos++ {
		p.load(p.row(plane, layer, unit, table, pos), out[(pos-lo)*p.dim:][:p.dim])
	}
}

// slots are n elements a request and layer.
type slots struct {
	elems
	layers, slots, n int
}

func (s *slots) len() int { return s.layers * s.slots * s.n }

// slot is the first element of a slot.
func (s *slots) slot(layer int, slot int32) int { return (layer*s.slots + int(slot)) * s.n }

// shape fills in the dimensions.
func shape(c Config, p Part, s Sizes) Memory {
	s.Types = s.Types.WithDefaults()
	blocks, tokens := int(s.Blocks), int(s.BlockTokens)
	heads := int(p.Heads.Len()) * c.SSMHeads / c.SSMUnits
	return Memory{sizes: s, headRows: heads * c.SSMHeadDim,
		kv: paged{elems{dtype: s.KV}, 2, int(p.Attention.Len()), blocks, tokens, int(p.KV.Len()), c.HeadDim},
		// A latent is one unit, whole on every rank.
		latent: paged{elems{dtype: s.KV}, 1, int(p.Latent.Len()), blocks, tokens, 1, c.latentRow()},
		conv:   slots{elems{dtype: s.Conv}, int(p.SSM.Len()), int(s.Slots), c.channels(heads, int(p.Groups.Len())) * c.Window},
		ssm:    slots{elems{dtype: s.SSM}, int(p.SSM.Len()), int(s.Slots), heads * c.SSMHeadDim * c.StateDim}}
}

// Bytes is the size of each buffer of a rank's memory; 0: it has none of that.
func (c Config) Bytes(p Part, s Sizes) [buffers]int64 {
	m := shape(c, p, s)
	return [buffers]int64{int64(m.kv.len()) * m.kv.dtype.Size(), int64(m.latent.len()) * m.latent.dtype.Size(),
		int64(m.conv.len()) * m.conv.dtype.Size(), int64(m.ssm.len()) * m.ssm.dtype.Size()}
}

// NewMemory lays a rank's state over bufs, which have the sizes of Bytes and are aligned
// to 4 bytes, and fills all of it with NaN.
func NewMemory(c Config, p Part, s Sizes, bufs [buffers][]byte) (*Memory, error) {
	if err := s.Types.Check(); err != nil {
		return nil, err
	}
	for i, want := range c.Bytes(p, s) {
		if int64(len(bufs[i])) != want {
			return nil, fmt.Errorf("%w: buffer %s of %d bytes: want %d", ErrConfig, BufferNames[i], len(bufs[i]), want)
		}
	}
	m := shape(c, p, s)
	for i, e := range []*elems{&m.kv.elems, &m.latent.elems, &m.conv.elems, &m.ssm.elems} {
		*e = elemsOf(e.dtype, bufs[i])
		e.fill(0, len(e.h)+len(e.f), nan)
	}
	return &m, nil
}

var nan = float32(math.NaN())

// PoisonBlock fills a block of every layer with NaN.
func (m *Memory) PoisonBlock(b int32) {
	for _, p := range []*paged{&m.kv, &m.latent} {
		for plane := range p.planes {
			for l := range p.layers {
				p.fill(p.block(plane, l, b), p.tokens*p.units*p.dim, nan)
			}
		}
	}
}

// PoisonSlot fills a slot of every layer with NaN; ClearSlot starts a request there.
func (m *Memory) PoisonSlot(s int32) { m.setSlot(s, nan) }

// ClearSlot zeroes a slot: the state before the first token.
func (m *Memory) ClearSlot(s int32) { m.setSlot(s, 0) }

func (m *Memory) setSlot(s int32, v float32) {
	for _, k := range []*slots{&m.conv, &m.ssm} {
		for l := range k.layers {
			k.fill(k.slot(l, s), k.n, v)
		}
	}
}

// Convert copies all of m into to, which has the same sizes and other types: what a
// hand-off between engines of unequal types does to each element.
func (m *Memory) Convert(to *Memory) {
	for _, c := range [][2]*elems{{&m.kv.elems, &to.kv.elems}, {&m.latent.elems, &to.latent.elems}, {&m.conv.elems, &to.conv.elems}, {&m.ssm.elems, &to.ssm.elems}} {
		for i := range len(c[0].h) + len(c[0].f) {
			var one [1]float32
			c[0].load(i, one[:])
			c[1].store(i, one[:])
		}
	}
}
