package model

// mlp is the rank's groups of columns of one MLP.
type mlp []mlpUnit

type mlpUnit struct{ gate, up, down []float32 } // gate is nil where the MLP has none

func (m *Model) makeMLP(layer int) mlp {
	var out mlp
	c := m.cfg
	for u := m.part.MLP.Lo; u < m.part.MLP.Hi; u++ {
		if m.saved != nil {
			out = append(out, m.saved.mlp(layer, int(u)))
			continue
		}
		r := m.source(kindMLP, layer, int(u))
		out = append(out, mlpUnit{
			up:   gauss(r, c.MLPColumns*c.Hidden, 1/root(c.Hidden)),
			down: gauss(r, c.Hidden*c.MLPColumns, gainMLP/root(c.MLPGroups*c.MLPColumns)),
		})
	}
	return out
}

func (m mlp) units() int { return len(m) }

func (m mlp) run(r *Run, c chunk) {
	for u, w := range m {
		for t := range c.n {
			w.run(r, r.normOf(t), r.out(u, t))
		}
	}
}

// run is the partial sum of the unit's columns.
func (u mlpUnit) run(r *Run, x, out []float32) {
	n := len(u.up) / len(x)
	r.unit = size(r.unit, 2*n)
	y, gate := r.unit[:n], r.unit[n:]
	matVec(y, u.up, x)
	if u.gate == nil {
		for i, v := range y {
			y[i] = silu(v)
		}
	} else {
		matVec(gate, u.gate, x)
		for i, v := range gate {
			y[i] *= silu(v)
		}
	}
	matVec(out, u.down, y)
}
