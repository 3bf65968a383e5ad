package model

import "math"

// mamba is a Mamba2 mixer: in-projection, a causal convolution over x|B|C, the recurrence
// of the heads, a gated norm over each unit's or over all. Heads of one group read one B and one C.
// Ranks that share a group each compute them, and keep their windows.
type mamba struct {
	index  int // among the layers that keep a recurrent state
	groups []ssmGroup
}

// ssmGroup is one B and one C with those of the heads that read them that the rank has.
type ssmGroup struct {
	b, c         []float32 // [ds][hidden]
	convB, convC []float32 // [ds][window]
	biasB, biasC []float32 // [ds], nil: none
	shares       []ssmUnit
}

// ssmUnit is some heads of one group.
type ssmUnit struct {
	z, x, dt   []float32 // in-projection, [out][hidden]
	convX      []float32 // [channel][window]
	biasX      []float32 // [channel], nil: none
	a, d, bias []float32 // per head: -exp(A_log), skip, dt bias
	norm       []float32 // [channel], nil: ones
	out        []float32 // [hidden][heads*headdim]
}

func (m *Model) makeMamba(layer, index int) *mamba {
	b := &mamba{index: index}
	for g := m.part.Groups.Lo; g < m.part.Groups.Hi; g++ {
		b.groups = append(b.groups, m.makeGroup(layer, g))
	}
	return b
}

// makeGroup reads a group with the rank's heads, or draws it with all of them and keeps
// the rank's.
func (m *Model) makeGroup(layer int, group int32) ssmGroup {
	c := m.cfg
	own := pieces(sharesOf(group, m.part.Heads, c.SSMUnits/c.Groups), c.SSMHeads/c.SSMUnits)
	if m.saved != nil {
		return m.saved.group(layer, int(group), own)
	}
	r := m.source(kindSSM, layer, int(group))
	heads := c.SSMHeads / c.Groups
	inner := heads * c.SSMHeadDim
	in, conv := 1/root(c.Hidden), 1/root(c.Window)
	all := ssmUnit{z: gauss(r, inner*c.Hidden, in), x: gauss(r, inner*c.Hidden, 2*in)}
	g := ssmGroup{b: gauss(r, c.StateDim*c.Hidden, 2*in), c: gauss(r, c.StateDim*c.Hidden, 2*in)}
	all.dt = gauss(r, heads*c.Hidden, 0.5*in)
	all.convX = gauss(r, inner*c.Window, conv)
	g.convB, g.convC = gauss(r, c.StateDim*c.Window, conv), gauss(r, c.StateDim*c.Window, conv)
	all.out = gauss(r, c.Hidden*inner, gainMixer/root(c.SSMHeads*c.SSMHeadDim))
	for range heads {
		all.a = append(all.a, float32(-math.Exp(-2.5+2*r.Float64())))
		all.d = append(all.d, float32(0.1+0.2*r.Float64()))
		all.bias = append(all.bias, float32(-1+r.Float64()))
	}
	for _, s := range own {
		g.shares = append(g.shares, all.heads(s[0], s[1], c))
	}
	return g
}

// heads takes heads lo to hi of a whole group.
func (u ssmUnit) heads(lo, hi int, c Config) ssmUnit {
	at, to := lo*c.SSMHeadDim, hi*c.SSMHeadDim
	return ssmUnit{z: u.z[at*c.Hidden : to*c.Hidden], x: u.x[at*c.Hidden : to*c.Hidden], dt: u.dt[lo*c.Hidden : hi*c.Hidden],
		convX: u.convX[at*c.Window : to*c.Window], a: u.a[lo:hi], d: u.d[lo:hi], bias: u.bias[lo:hi],
		out: columns(u.out, len(u.a)*c.SSMHeadDim, at, to)}
}

func (b *mamba) units() (n int) {
	for i := range b.groups {
		n += len(b.groups[i].shares)
	}
	return n
}

func (b *mamba) run(r *Run, c chunk) {
	ds := r.m.cfg.StateDim
	unit := 0
	for g := range b.groups {
		w := &b.groups[g]
		for t := range c.n {
			r.bc = size(r.bc, 2*ds)
			in, out := r.bc[:ds], r.bc[ds:]
			matVec(in, w.b, r.normOf(t))
			matVec(out, w.c, r.normOf(t))
			bands := r.mem.headRows // the channels of x come first
			r.conv(b.index, c.seq.Slot, bands+g*ds, in, w.convB, w.biasB)
			r.conv(b.index, c.seq.Slot, bands+(len(b.groups)+g)*ds, out, w.convC, w.biasC)
			for i := range w.shares {
				w.shares[i].run(r, b.index, c.seq.Slot, unit+i, t, in, out)
			}
		}
		unit += len(w.shares)
	}
}

// run is the heads of unit for the chunk's token t; in and out are B and C.
func (u *ssmUnit) run(r *Run, layer int, slot int32, unit, t int, in, out []float32) {
	hd, ds, heads := r.m.cfg.SSMHeadDim, r.m.cfg.StateDim, len(u.a)
	inner := heads * hd
	r.unit = size(r.unit, 2*inner+heads+ds)
	z, x, rest := r.unit[:inner], r.unit[inner:2*inner], r.unit[2*inner:]
	dt, s := rest[:heads], rest[heads:]
	matVec(z, u.z, r.normOf(t))
	matVec(x, u.x, r.normOf(t))
	matVec(dt, u.dt, r.normOf(t))
	r.conv(layer, slot, unit*inner, x, u.convX, u.biasX)
	state := &r.mem.ssm
	at := state.slot(layer, slot) + unit*inner*ds
	for h := range heads {
		step := softplus(dt[h] + u.bias[h])
		keep := float32(math.Exp(float64(u.a[h] * step)))
		for i := h * hd; i < (h+1)*hd; i++ {
			xi := x[i]
			add := step * xi
			state.load(at+i*ds, s)
			for j := range s {
				s[j] = s[j]*keep + add*in[j]
			}
			state.store(at+i*ds, s)
			var y float32
			for j := range s {
				y += s[j] * out[j]
			}
			x[i] = (y + u.d[h]*xi) * silu(z[i])
		}
	}
	if r.m.cfg.WholeNorm {
		u.gain(r.tail(unit, t), x)
	} else {
		rmsNorm(x, x, u.norm, r.m.cfg.Eps)
	}
	matVec(r.out(unit, t), u.out, x)
}

// A norm over all heads divides by a number of which each unit knows a part: the sum of
// its squares. The out-projection is linear, so the division is done behind the sum of
// all units, which adds up these parts too: they are the tail of a partial sum.

func (b *mamba) tail(c *Config) int {
	if c.WholeNorm {
		return 1
	}
	return 0
}

// gain is the norm of x but for the division; tail takes the sum of squares.
func (u *ssmUnit) gain(tail, x []float32) {
	tail[0] = dot(x, x)
	for i, w := range u.norm {
		x[i] *= w
	}
}

// finish divides what all units of a token gave.
func (b *mamba) finish(c *Config, x, tail []float32) {
	f := float32(1 / math.Sqrt(float64(tail[0])/float64(c.SSMHeads*c.SSMHeadDim)+c.Eps))
	for i := range x {
		x[i] *= f
	}
}

// conv pushes v into the windows from channel first on and replaces it by the outcome.
func (r *Run) conv(layer int, slot int32, first int, v, w, bias []float32) {
	k := r.m.cfg.Window
	r.window = size(r.window, k)
	win := &r.mem.conv
	at := win.slot(layer, slot) + first*k
	for i := range v {
		win.load(at+i*k+1, r.window[:k-1])
		r.window[k-1] = v[i]
		win.store(at+i*k, r.window)
		v[i] = dot(r.window, w[i*k:(i+1)*k])
		if bias != nil {
			v[i] += bias[i]
		}
		v[i] = silu(v[i])
	}
}
