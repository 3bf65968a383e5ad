package parallel

import (
	"fmt"

	"github.com/batonkv/baton/transfer/layout"
)

// Order is how an engine nests the paged cache. K and V are planes of one tensor
// in each of them; a latent has one plane. T, H are swapped by Memory.HeadsFirst.
type Order uint8

const (
	// Planes is [2, L, B, T, H, d], one buffer (Megatron).
	Planes Order = iota
	// LayerPlanes is [2, B, T, H, d], one buffer a layer (vLLM, flash attention).
	LayerPlanes
	// LayerBlocks is [B, 2, T, H, d], one buffer a layer (vLLM, FlashInfer).
	LayerBlocks
	// BlockMajor is [B, L, 2, T, H, d], one buffer: a block is contiguous over layers.
	BlockMajor
)

// Memory is how one rank's engine keeps state.
type Memory struct {
	Order       Order
	HeadsFirst  bool  // [.., H, T, d], "HND", instead of [.., T, H, d], "NHD"
	Blocks      int32 // blocks of the paged cache
	BlockTokens int32
	KV          layout.DType

	Slots        int32 // live per-request states
	Columns      int32 // of the convolution's window; 0 is its width k, engines also keep k-1
	ColumnsFirst bool  // conv [Lm, S, k, C] instead of [Lm, S, C, k]
	LayerStates  bool  // conv and recurrent state: one buffer a layer
	Conv, SSM    layout.DType
}

// RankMemory is what one rank holds: its shards, and the bytes of its buffers.
type RankMemory struct {
	Shards  []layout.Shard
	Buffers []int64
}

// Shards builds the shards of all ranks of a group, in rank order, checked.
func (d Desc) Shards(c Cut, m Memory) ([]layout.Shard, error) {
	if err := c.Check(); err != nil {
		return nil, err
	}
	var out []layout.Shard
	for r := range c.Ranks() {
		one, err := d.Rank(c, m, layout.Rank(r))
		if err != nil {
			return nil, err
		}
		if len(out)+len(one.Shards) > layout.MaxShards {
			return nil, fmt.Errorf("%w: over %d shards", layout.ErrGeometry, layout.MaxShards)
		}
		out = append(out, one.Shards...)
	}
	return out, nil
}

// Rank builds what one rank holds. Buffers are numbered in the order paged cache,
// latent cache, convolution, recurrent state; a rank without one has no buffer
// for it.
func (d Desc) Rank(c Cut, m Memory, r layout.Rank) (RankMemory, error) {
	var b builder
	if err := d.Check(); err != nil {
		return b.out, err
	}
	if err := c.Check(); err != nil {
		return b.out, err
	}
	if r < 0 || int32(r) >= c.Ranks() {
		return b.out, fmt.Errorf("%w: rank %d: the cut has %d", layout.ErrGeometry, r, c.Ranks())
	}
	b.rank, b.mem, b.at = r, m, c.Place(r)
	c = c.ones()
	if a := d.Attention; a != nil {
		b.paged(2, stage(c.AttentionStages, a.Layers, c.PP, b.at.PP), heads(a.Heads, c.TP, b.at.TP), a.Dim)
	}
	if l := d.Latent; l != nil {
		b.paged(1, stage(c.LatentStages, l.Layers, c.PP, b.at.PP), layout.Span{Hi: 1}, l.Dim)
	}
	if s := d.Mamba; s != nil {
		layers, hs := stage(c.MambaStages, s.Layers, c.PP, b.at.PP), heads(s.Heads, c.TP, b.at.TP)
		b.conv(s, layers, hs, s.groups(hs))
		b.ssm(s, layers, hs)
	}
	if err := layout.CheckMemory(d.Model(), b.out.Shards, b.out.Buffers); err != nil {
		return RankMemory{}, err
	}
	return b.out, nil
}

type builder struct {
	out   RankMemory
	mem   Memory
	rank  layout.Rank
	at    Place
	state int32 // next index into the model's states
}

// size multiplies and stops at 2^61, which Check refuses.
func size(ns ...int64) int64 {
	p := int64(1)
	for _, n := range ns {
		if n <= 0 {
			return 0
		}
		if p > (1<<61)/n {
			return 1 << 61
		}
		p *= n
	}
	return p
}

// add states one shard per buffer of box; each is placed by v, whose Off is
// within its buffer.
func (b *builder) add(state int32, box layout.Box, rows, items int32, dt layout.DType, buffer uint32, v layout.View) {
	v.Buffer = buffer
	b.out.Shards = append(b.out.Shards, layout.Shard{State: state, Rank: b.rank, Box: box, Rows: rows, Items: items, DType: dt, View: v})
}

// split calls f for each buffer: one for all layers, or one a layer.
func (b *builder) split(layers layout.Span, each bool, bytes func(layers int64) int64, f func(layout.Span, uint32)) {
	for lo := layers.Lo; lo < layers.Hi; {
		hi := layers.Hi
		if each {
			hi = lo + 1
		}
		f(layout.Span{Lo: lo, Hi: hi}, uint32(len(b.out.Buffers)))
		b.out.Buffers = append(b.out.Buffers, bytes(int64(hi-lo)))
		lo = hi
	}
}

func (b *builder) paged(planes int32, layers, units layout.Span, dim int32) {
	first := b.state
	b.state += planes
	m := &b.mem
	es, t, h, n := m.KV.Size(), int64(m.BlockTokens), int64(units.Len()), int64(m.Blocks)
	row := size(h, int64(dim), es)
	v := layout.View{Elem: es, Unit: size(int64(dim), es), Row: row}
	if m.HeadsFirst {
		v.Row, v.Unit = size(int64(dim), es), size(t, int64(dim), es)
	}
	block := size(t, row)
	perLayer := m.Order == LayerPlanes || m.Order == LayerBlocks
	total := func(layers int64) int64 { return size(layers, int64(planes), n, block) }
	b.split(layers, perLayer, total, func(s layout.Span, buf uint32) {
		l := int64(s.Len())
		var plane int64
		switch m.Order {
		case Planes, LayerPlanes:
			v.Item, v.Layer, plane = block, size(n, block), size(l, n, block)
		case LayerBlocks:
			v.Item, v.Layer, plane = size(int64(planes), block), size(n, int64(planes), block), block
		case BlockMajor:
			v.Item, v.Layer, plane = size(l, int64(planes), block), size(int64(planes), block), block
		}
		for p := range planes {
			v.Off = size(int64(p), plane)
			b.add(first+p, layout.Box{Layers: s, Units: units}, m.BlockTokens, m.Blocks, m.KV, buf, v)
		}
	})
}

func (b *builder) conv(s *Mamba, layers, hs, gs layout.Span) {
	first := b.state
	b.state += 3
	m := &b.mem
	k := m.Columns
	if k == 0 {
		k = s.Window
	}
	es := m.Conv.Size()
	band := [3]struct {
		units layout.Span
		width int64
	}{{hs, int64(s.HeadDim)}, {gs, int64(s.StateDim)}, {gs, int64(s.StateDim)}}
	var channels int64
	for _, x := range band {
		channels += int64(x.units.Len()) * x.width
	}
	slot := size(channels, int64(k), es)
	total := func(l int64) int64 { return size(l, int64(m.Slots), slot) }
	b.split(layers, m.LayerStates, total, func(l layout.Span, buf uint32) {
		at := int64(0)
		for i, x := range band {
			v := layout.View{Layer: size(int64(m.Slots), slot), Item: slot, Row: es, Elem: size(int64(k), es)}
			if m.ColumnsFirst {
				v.Row, v.Elem = size(channels, es), es
			}
			v.Unit, v.Off = size(x.width, v.Elem), size(at, v.Elem)
			at += int64(x.units.Len()) * x.width
			b.add(first+int32(i), layout.Box{Layers: l, Units: x.units}, k, m.Slots, m.Conv, buf, v)
		}
	})
}

func (b *builder) ssm(s *Mamba, layers, hs layout.Span) {
	m := &b.mem
	es := m.SSM.Size()
	unit := size(int64(s.HeadDim), int64(s.StateDim), es)
	slot := size(int64(hs.Len()), unit)
	v := layout.View{Layer: size(int64(m.Slots), slot), Item: slot, Row: slot, Unit: unit, Elem: es}
	total := func(l int64) int64 { return size(l, int64(m.Slots), slot) }
	b.split(layers, m.LayerStates, total, func(l layout.Span, buf uint32) {
		b.add(b.state, layout.Box{Layers: l, Units: hs}, 1, m.Slots, m.SSM, buf, v)
	})
	b.state++
}
