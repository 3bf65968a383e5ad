package model

// latent is multi-head latent attention (MLA). A token keeps one vector for all heads:
// the latent, normed, and behind it a key of its own that carries the position. It is
// one unit of state: every rank computes and keeps it whole, and has its own query heads.
// Queries are taken into the latent's space, so no head's K or V is ever made.
type latent struct {
	index  int // among the layers that keep a latent
	freq   []float64
	down   []float32 // [latent+rotary][hidden]
	shares []latentUnit
}

// latentUnit is some query heads.
type latentUnit struct {
	heads []latentHead
	o     []float32 // [hidden][heads*d]
}

type latentHead struct {
	q  []float32 // [d+rotary][hidden]
	up []float32 // [latent][d]: a query without position, into the latent's space
	v  []float32 // [d][latent]
}

func (m *Model) makeLatent(layer, index int) *latent {
	c := m.cfg
	shared := m.source(kindLatent, layer, 0)
	l := &latent{index: index, freq: frequencies(c.Theta, c.RotaryDim),
		down: append(gauss(shared, c.LatentDim*c.Hidden, 1/root(c.Hidden)), gauss(shared, c.RotaryDim*c.Hidden, gainQK/root(c.Hidden))...)}
	heads := c.QueryHeads / c.QueryUnits
	for u := int(m.part.Queries.Lo); u < int(m.part.Queries.Hi); u++ {
		var w latentUnit
		for h := u * heads; h < (u+1)*heads; h++ {
			r := m.source(kindLatentHead, layer, h)
			w.heads = append(w.heads, latentHead{
				q:  gauss(r, (c.HeadDim+c.RotaryDim)*c.Hidden, gainQK/root(c.Hidden)),
				up: gauss(r, c.LatentDim*c.HeadDim, gainQK/root(c.LatentDim)),
				v:  gauss(r, c.HeadDim*c.LatentDim, 1/root(c.LatentDim)),
			})
		}
		w.o = gauss(m.source(kindLatent, layer, 1+u), c.Hidden*heads*c.HeadDim, gainMixer/root(c.QueryHeads*c.HeadDim))
		l.shares = append(l.shares, w)
	}
	return l
}

func (l *latent) units() int { return len(l.shares) }

func (l *latent) run(r *Run, c chunk) {
	cfg, cache := &r.m.cfg, &r.mem.latent
	rot := r.rotations(l.freq, c)
	n := cfg.latentRow()
	r.keys = size(r.keys, (c.pos+c.n)*n)
	cache.gather(0, l.index, 0, c.seq.Blocks, 0, c.pos, r.keys)
	for t := range c.n {
		pos := c.pos + t
		row := r.keys[pos*n : (pos+1)*n]
		matVec(row, l.down, r.normOf(t))
		rmsNorm(row[:cfg.LatentDim], row[:cfg.LatentDim], nil, cfg.Eps)
		rotate(row[cfg.LatentDim:], rot, t)
		cache.store(cache.row(0, l.index, 0, c.seq.Blocks, pos), row)
		for u := range l.shares {
			l.shares[u].run(r, rot, t, r.keys[:(pos+1)*n], r.out(u, t))
		}
	}
}

// run is the unit's query heads for the chunk's token t over rows, whose first elements,
// the latent, are values too.
func (u *latentUnit) run(r *Run, rot []float32, t int, rows, out []float32) {
	c := &r.m.cfg
	d, n := c.HeadDim, c.latentRow()
	r.unit = size(r.unit, d+c.RotaryDim+n+c.LatentDim+len(u.heads)*d)
	q, rest := r.unit[:d+c.RotaryDim], r.unit[d+c.RotaryDim:]
	query, mix, y := rest[:n], rest[n:n+c.LatentDim], rest[n+c.LatentDim:]
	for h := range u.heads {
		w := &u.heads[h]
		matVec(q, w.q, r.normOf(t))
		rotate(q[d:], rot, t)
		matVec(query[:c.LatentDim], w.up, q[:d])
		copy(query[c.LatentDim:], q[d:])
		r.attend(query, rows, rows, n, float32(1/root(d+c.RotaryDim)), mix)
		matVec(y[h*d:(h+1)*d], w.v, mix)
	}
	matVec(out, u.o, y)
}
