package model

import "math"

// attention is grouped-query attention: a KV head is read by several query heads. Ranks
// that share a KV head each compute and store its K and V, and their own query heads.
type attention struct {
	index  int // among the layers that keep K and V
	window int // rows that a token attends to, its own included; 0: all
	freq   []float64
	heads  []kvHead
}

// kvHead is one KV head with those of its query heads that the rank has.
type kvHead struct {
	k, v   []float32 // [d][hidden]
	shares []queryUnit
}

// queryUnit is some query heads of one KV head.
type queryUnit struct {
	q []float32 // [heads*d][hidden]
	o []float32 // [hidden][heads*d]
}

func (m *Model) makeAttention(layer, index, window int) *attention {
	a := &attention{index: index, window: window, freq: frequencies(m.cfg.Theta, m.cfg.Rotary)}
	for h := m.part.KV.Lo; h < m.part.KV.Hi; h++ {
		a.heads = append(a.heads, m.makeKVHead(layer, h))
	}
	return a
}

// makeKVHead reads a KV head with the rank's query heads, or draws it with all of them
// and keeps the rank's.
func (m *Model) makeKVHead(layer int, head int32) kvHead {
	c := m.cfg
	per := c.QueryUnits / c.KVHeads
	own := pieces(sharesOf(head, m.part.Queries, per), c.QueryHeads/c.QueryUnits*c.HeadDim)
	if m.saved != nil {
		return m.saved.kvHead(layer, int(head), own)
	}
	r := m.source(kindAttention, layer, int(head))
	wide := c.QueryHeads / c.KVHeads * c.HeadDim // of all its query heads
	q := gauss(r, wide*c.Hidden, gainQK/root(c.Hidden))
	w := kvHead{
		k: gauss(r, c.HeadDim*c.Hidden, gainQK/root(c.Hidden)),
		v: gauss(r, c.HeadDim*c.Hidden, 1/root(c.Hidden)),
	}
	o := gauss(r, c.Hidden*wide, gainMixer/root(c.QueryHeads*c.HeadDim))
	for _, s := range own {
		w.shares = append(w.shares, queryUnit{q: q[s[0]*c.Hidden : s[1]*c.Hidden], o: columns(o, wide, s[0], s[1])})
	}
	return w
}

func (a *attention) units() (n int) {
	for i := range a.heads {
		n += len(a.heads[i].shares)
	}
	return n
}

// first is the first row that the token at pos attends to.
func (a *attention) first(pos int) int {
	if a.window == 0 {
		return 0
	}
	return max(pos-a.window+1, 0)
}

func (a *attention) run(r *Run, c chunk) {
	rot := r.rotations(a.freq, c)
	unit := 0
	for h := range a.heads {
		a.head(r, c, rot, h, unit)
		unit += len(a.heads[h].shares)
	}
}

// head reads the rows of one KV head that the chunk attends to, adds those of the chunk,
// and lets each query head attend. A row is stored before it is attended, so that all of
// them are rounded alike.
func (a *attention) head(r *Run, c chunk, rot []float32, h, unit int) {
	w, d, kv := &a.heads[h], r.m.cfg.HeadDim, &r.mem.kv
	first := a.first(c.pos)
	rows := (c.pos + c.n - first) * d
	r.keys, r.values = size(r.keys, rows), size(r.values, rows)
	kv.gather(0, a.index, h, c.seq.Blocks, first, c.pos, r.keys)
	kv.gather(1, a.index, h, c.seq.Blocks, first, c.pos, r.values)
	for t := range c.n {
		pos := c.pos + t
		end := (pos + 1 - first) * d
		k, v := r.keys[end-d:end], r.values[end-d:end]
		matVec(k, w.k, r.normOf(t))
		matVec(v, w.v, r.normOf(t))
		rotate(k[:r.m.cfg.Rotary], rot, t)
		kv.store(kv.row(0, a.index, h, c.seq.Blocks, pos), k)
		kv.store(kv.row(1, a.index, h, c.seq.Blocks, pos), v)
		from := (a.first(pos) - first) * d
		for i := range w.shares {
			w.shares[i].run(r, rot, t, r.keys[from:end], r.values[from:end], r.out(unit+i, t))
		}
	}
}

// run is the unit's query heads for the chunk's token t over rows of keys and values.
func (u *queryUnit) run(r *Run, rot []float32, t int, keys, values, out []float32) {
	d, wide := r.m.cfg.HeadDim, len(u.q)/r.m.cfg.Hidden
	r.unit = size(r.unit, 2*wide)
	q, y := r.unit[:wide], r.unit[wide:]
	matVec(q, u.q, r.normOf(t))
	for at := 0; at < wide; at += d {
		rotate(q[at:at+r.m.cfg.Rotary], rot, t)
		r.attend(q[at:at+d], keys, values, d, float32(1/root(d)), y[at:at+d])
	}
	matVec(out, u.o, y)
}

// attend is softmax(scale·q·K)·V. Rows lie stride apart: the first len(q) elements of one
// of keys are its key, the first len(y) of one of values its value.
//
//go:norace
func (r *Run) attend(q, keys, values []float32, stride int, scale float32, y []float32) {
	n := len(keys) / stride
	r.scores = size(r.scores, n)
	top := float32(math.Inf(-1))
	for p := range n {
		var s float32
		for i, k := range keys[p*stride:][:len(q)] {
			s += q[i] * k
		}
		s *= scale
		r.scores[p] = s
		if s > top || s != s {
			top = s
		}
	}
	var total float32
	clear(y)
	for p := range n {
		e := float32(math.Exp(float64(r.scores[p] - top)))
		total += e
		for i, v := range values[p*stride:][:len(y)] {
			y[i] += e * v
		}
	}
	for i := range y {
		y[i] /= total
	}
}

// frequencies are those of dim rotary elements.
func frequencies(theta float64, dim int) (freq []float64) {
	for i := range dim / 2 {
		freq = append(freq, math.Pow(theta, -2*float64(i)/float64(dim)))
	}
	return freq
}

// rotations are cos and sin of each frequency at each position of the chunk.
func (r *Run) rotations(freq []float64, c chunk) []float32 {
	r.rot = r.rot[:0]
	for t := range c.n {
		for _, f := range freq {
			sin, cos := math.Sincos(float64(c.pos+t) * f)
			r.rot = append(r.rot, float32(cos), float32(sin))
		}
	}
	return r.rot
}

// rotate turns v, the rotary elements of one head, by the position of the chunk's token t.
func rotate(v, rot []float32, t int) {
	half := len(v) / 2
	rot = rot[t*2*half:]
	for i := range half {
		cos, sin := rot[2*i], rot[2*i+1]
		a, b := v[i], v[i+half]
		v[i], v[i+half] = a*cos-b*sin, a*sin+b*cos
	}
}
