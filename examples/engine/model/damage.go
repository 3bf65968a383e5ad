package model

import "math"

// The functions here damage a request's state on purpose: a check of tokens that does
// not notice them checks nothing.

// ScrambleRows replaces K and V of the first tokens of a table, all local heads, by
// noise of the same size.
func (m *Memory) ScrambleRows(blocks []int32, tokens int32) {
	seed := uint32(1)
	m.rows(blocks, tokens, func(plane, layer, pos int) {
		for h := range m.heads {
			for i := range m.row(plane, layer, blocks, pos, h) {
				seed = seed*1664525 + 1013904223
				v := float32(int32(seed)) / (1 << 30)
				m.row(plane, layer, blocks, pos, h)[i] = toBF16(v)
			}
		}
	})
}

// SwapHeads exchanges the first two local KV heads; it reports whether there are two.
func (m *Memory) SwapHeads(blocks []int32, tokens int32) bool {
	if m.heads < 2 {
		return false
	}
	m.rows(blocks, tokens, func(plane, layer, pos int) {
		a, b := m.row(plane, layer, blocks, pos, 0), m.row(plane, layer, blocks, pos, 1)
		for i := range a {
			a[i], b[i] = b[i], a[i]
		}
	})
	return true
}

// ScrambleSlot turns the recurrent state of a slot around: the sign of every other
// element changes, and the convolution windows become zero.
func (m *Memory) ScrambleSlot(s int32) {
	keep := make([][]float32, m.layersSSM)
	for l := range keep {
		state := m.recurrent(l, s)
		for i := range state {
			if i%2 == 0 {
				state[i] = -state[i]
			}
		}
		keep[l] = append([]float32(nil), state...)
	}
	m.ClearSlot(s)
	for l, k := range keep {
		copy(m.recurrent(l, s), k)
	}
}

func (m *Memory) rows(blocks []int32, tokens int32, do func(plane, layer, pos int)) {
	n := min(int64(tokens), int64(len(blocks))*int64(m.sizes.BlockTokens), math.MaxInt32)
	for plane := range 2 {
		for l := range m.layersKV {
			for pos := range int(n) {
				do(plane, l, pos)
			}
		}
	}
}
