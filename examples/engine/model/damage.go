package model

// The functions here damage a request's state on purpose: a check of tokens that does
// not notice them checks nothing.

// ScrambleRows replaces the rows of the first tokens of a table, K and V of all local
// heads or the latent, by noise of the same size.
func (m *Memory) ScrambleRows(blocks []int32, tokens int32) {
	seed := uint32(1)
	for _, p := range []*paged{&m.kv, &m.latent} {
		row := make([]float32, p.units*p.dim)
		p.rows(blocks, tokens, func(at int) {
			for i := range row {
				seed = seed*1664525 + 1013904223
				row[i] = float32(int32(seed)) / (1 << 30)
			}
			p.store(at, row)
		})
	}
}

// SwapHeads exchanges the first two local KV heads; it reports whether there are two.
func (m *Memory) SwapHeads(blocks []int32, tokens int32) bool {
	p := &m.kv
	if p.layers == 0 || p.units < 2 {
		return false
	}
	a, b := make([]float32, p.dim), make([]float32, p.dim)
	p.rows(blocks, tokens, func(at int) {
		p.load(at, a)
		p.load(at+p.dim, b)
		p.store(at, b)
		p.store(at+p.dim, a)
	})
	return true
}

// ScrambleSlot turns the recurrent state of a slot around: the sign of every other
// element changes, and the convolution windows become zero.
func (m *Memory) ScrambleSlot(slot int32) {
	v := make([]float32, m.ssm.n)
	for l := range m.ssm.layers {
		m.ssm.load(m.ssm.slot(l, slot), v)
		for i := 0; i < len(v); i += 2 {
			v[i] = -v[i]
		}
		m.ssm.store(m.ssm.slot(l, slot), v)
		m.conv.fill(m.conv.slot(l, slot), m.conv.n, 0)
	}
}

// rows calls do with the first element of each plane, layer and token.
func (p *paged) rows(blocks []int32, tokens int32, do func(at int)) {
	n := min(int64(tokens), int64(len(blocks))*int64(p.tokens))
	for plane := range p.planes {
		for l := range p.layers {
			for pos := range int(n) {
				do(p.row(plane, l, 0, blocks, pos))
			}
		}
	}
}
