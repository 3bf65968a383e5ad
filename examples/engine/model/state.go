package model

import (
	"fmt"
	"math"

	"github.com/batonkv/baton/transfer/layout"
)

// Sizes is how many items a rank's memory has.
type Sizes struct {
	Blocks, Slots, BlockTokens int32
	ConvBF16                   bool // conv windows stored as bf16 instead of fp32
}

// Memory is a rank's state memory, as views of bytes that others may map. A layer
// index counts within its kind.
//
//	KV    [2, L, B, T, H, d] bf16: K|V, layer, block, token, local KV head, dim
//	Conv  [Lm, S, C, k] fp32 or bf16: layer, slot, local channels x|B|C, window column, newest last
//	SSM   [Lm, S, h, hd, ds] fp32: layer, slot, local head, head dim, state dim
type Memory struct {
	sizes  Sizes
	kv     []uint16
	conv32 []float32
	conv16 []uint16
	ssm    []float32

	heads, headDim, layersKV     int
	channels, window, layersSSM  int
	ssmHeads, ssmHeadDim, stateD int
	groups                       int
}

// shape fills in the dimensions.
func shape(c Config, p Part, s Sizes) Memory {
	groups := int(p.Groups.Len())
	ssmHeads := groups * c.headsPerGroup()
	return Memory{sizes: s, heads: int(p.KV.Len()), headDim: c.HeadDim, layersKV: c.AttentionLayers(),
		channels: ssmHeads*c.SSMHeadDim + 2*groups*c.StateDim, window: c.Window, layersSSM: c.SSMLayers(),
		ssmHeads: ssmHeads, ssmHeadDim: c.SSMHeadDim, stateD: c.StateDim, groups: groups}
}

// Bytes is the size of each part of a rank's memory.
func (c Config) Bytes(p Part, s Sizes) (kv, conv, ssm int64) {
	m := shape(c, p, s)
	kv = 2 * 2 * int64(m.layersKV) * int64(s.Blocks) * int64(s.BlockTokens) * int64(m.heads) * int64(m.headDim)
	conv = int64(m.layersSSM) * int64(s.Slots) * int64(m.channels) * int64(m.window) * m.convDType().Size()
	ssm = 4 * int64(m.layersSSM) * int64(s.Slots) * int64(m.ssmHeads) * int64(m.ssmHeadDim) * int64(m.stateD)
	return kv, conv, ssm
}

func (m *Memory) convDType() layout.DType {
	if m.sizes.ConvBF16 {
		return layout.BF16
	}
	return layout.F32
}

// NewMemory lays a rank's state over kv, conv and ssm, which have the sizes of Bytes
// and are aligned to 4 bytes, and fills all of it with NaN.
func NewMemory(c Config, p Part, s Sizes, kv, conv, ssm []byte) (*Memory, error) {
	wantKV, wantConv, wantSSM := c.Bytes(p, s)
	if int64(len(kv)) != wantKV || int64(len(conv)) != wantConv || int64(len(ssm)) != wantSSM {
		return nil, fmt.Errorf("%w: memory of %d, %d, %d bytes: want %d, %d, %d",
			ErrConfig, len(kv), len(conv), len(ssm), wantKV, wantConv, wantSSM)
	}
	m := shape(c, p, s)
	m.kv = words[uint16](kv)
	if s.ConvBF16 {
		m.conv16 = words[uint16](conv)
	} else {
		m.conv32 = words[float32](conv)
	}
	m.ssm = words[float32](ssm)
	fill(m.kv, nan16)
	fill(m.conv16, nan16)
	fill(m.conv32, float32(math.NaN()))
	fill(m.ssm, float32(math.NaN()))
	return &m, nil
}

// PoisonBlock fills a block of every layer with NaN.
func (m *Memory) PoisonBlock(b int32) {
	for plane := range 2 {
		for l := range m.layersKV {
			fill(m.block(plane, l, b), nan16)
		}
	}
}

// PoisonSlot fills a slot of every layer with NaN; ClearSlot starts a request there.
func (m *Memory) PoisonSlot(s int32) { m.setSlot(s, nan16, float32(math.NaN())) }

// ClearSlot zeroes a slot: the state before the first token.
func (m *Memory) ClearSlot(s int32) { m.setSlot(s, 0, 0) }

func (m *Memory) setSlot(s int32, h uint16, f float32) {
	for l := range m.layersSSM {
		if m.sizes.ConvBF16 {
			fill(cut(m.conv16, m.slot(l, s), m.channels*m.window), h)
		} else {
			fill(cut(m.conv32, m.slot(l, s), m.channels*m.window), f)
		}
		fill(m.recurrent(l, s), f)
	}
}

func (m *Memory) slot(layer int, s int32) int { return layer*int(m.sizes.Slots) + int(s) }

// block is one block of one plane and layer, [T, H, d].
func (m *Memory) block(plane, layer int, b int32) []uint16 {
	i := (plane*m.layersKV+layer)*int(m.sizes.Blocks) + int(b)
	return cut(m.kv, i, int(m.sizes.BlockTokens)*m.heads*m.headDim)
}

// row is one head of one token of a table, [d].
func (m *Memory) row(plane, layer int, blocks []int32, pos, head int) []uint16 {
	t := int(m.sizes.BlockTokens)
	return cut(m.block(plane, layer, blocks[pos/t]), pos%t*m.heads+head, m.headDim)
}

// recurrent is the SSM state of one slot, [h, hd, ds].
func (m *Memory) recurrent(layer int, s int32) []float32 {
	return cut(m.ssm, m.slot(layer, s), m.ssmHeads*m.ssmHeadDim*m.stateD)
}

// push shifts v into the window of a channel and returns the window, oldest first, in out.
func (m *Memory) push(layer int, s int32, channel int, v float32, out []float32) {
	k := m.window
	i := m.slot(layer, s)*m.channels + channel
	if !m.sizes.ConvBF16 {
		w := cut(m.conv32, i, k)
		copy(w, w[1:])
		w[k-1] = v
		copy(out, w)
		return
	}
	w := cut(m.conv16, i, k)
	copy(w, w[1:])
	w[k-1] = toBF16(v)
	for j, h := range w {
		out[j] = fromBF16(h)
	}
}

func cut[T any](a []T, i, n int) []T { return a[i*n : (i+1)*n : (i+1)*n] }

func fill[T any](a []T, v T) {
	for i := range a {
		a[i] = v
	}
}
