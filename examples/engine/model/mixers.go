package model

import "math"

// rotary prepares cos and sin of the chunk's positions.
func (r *Run) rotary(n, pos int) {
	half := len(r.m.freq)
	r.rot = size(r.rot, n*2*half)
	for t := range n {
		for i, f := range r.m.freq {
			sin, cos := math.Sincos(float64(pos+t) * f)
			r.rot[(t*half+i)*2], r.rot[(t*half+i)*2+1] = float32(cos), float32(sin)
		}
	}
}

// rotate turns one head by the position of the chunk's token t.
func (r *Run) rotate(v []float32, t int) {
	half := len(v) / 2
	rot := r.rot[t*2*half:]
	for i := range half {
		cos, sin := rot[2*i], rot[2*i+1]
		a, b := v[i], v[i+half]
		v[i], v[i+half] = a*cos-b*sin, a*sin+b*cos
	}
}

// attention is one KV head with its query heads for the token at pos: it stores K and V
// and attends over the stored, rounded rows 0…pos, so that rows which came from another
// engine and rows of its own are alike.
func (r *Run) attention(l *layer, u int, seq Seq, norm, out []float32, pos, t int) {
	c := &r.m.cfg
	w, d := &l.attn[u], c.HeadDim
	heads := c.QueryHeads / c.KVHeads
	r.unit = size(r.unit, (2*heads+2)*d)
	q, y := r.unit[:heads*d], r.unit[heads*d:2*heads*d]
	k, v := r.unit[2*heads*d:(2*heads+1)*d], r.unit[(2*heads+1)*d:]
	matVec(q, w.q, norm)
	matVec(k, w.k, norm)
	matVec(v, w.v, norm)
	r.rotate(k, t)
	keys, values := r.mem.row(0, l.index, seq.Blocks, pos, u), r.mem.row(1, l.index, seq.Blocks, pos, u)
	for i := range d {
		keys[i], values[i] = toBF16(k[i]), toBF16(v[i])
	}
	r.scores = size(r.scores, pos+1)
	for h := range heads {
		r.rotate(q[h*d:(h+1)*d], t)
		r.attend(l.index, u, seq.Blocks, pos, q[h*d:(h+1)*d], y[h*d:(h+1)*d])
	}
	matVec(out, w.o, y)
}

// attend is softmax(q·K/√d)·V over rows 0…pos.
//
//go:norace
func (r *Run) attend(layer, head int, blocks []int32, pos int, q, y []float32) {
	scale := float32(1 / math.Sqrt(float64(len(q))))
	top := float32(math.Inf(-1))
	for p := range pos + 1 {
		var s float32
		for i, h := range r.mem.row(0, layer, blocks, p, head) {
			s += q[i] * fromBF16(h)
		}
		s *= scale
		r.scores[p] = s
		if s > top || s != s {
			top = s
		}
	}
	var total float32
	clear(y)
	for p := range pos + 1 {
		e := float32(math.Exp(float64(r.scores[p] - top)))
		total += e
		for i, h := range r.mem.row(1, layer, blocks, p, head) {
			y[i] += e * fromBF16(h)
		}
	}
	for i := range y {
		y[i] /= total
	}
}

// mamba is one SSM group of a Mamba2 mixer for one token: in-projection, causal
// convolution over x|B|C, the recurrence of its heads, a gated norm over the group.
func (r *Run) mamba(l *layer, u int, seq Seq, norm, out []float32) {
	c := &r.m.cfg
	w := &l.ssm[u]
	heads, hd, ds := c.headsPerGroup(), c.SSMHeadDim, c.StateDim
	inner := heads * hd
	r.unit = size(r.unit, 2*inner+2*ds+heads+c.Window)
	z, x := r.unit[:inner], r.unit[inner:2*inner]
	b, cc := r.unit[2*inner:2*inner+ds], r.unit[2*inner+ds:2*inner+2*ds]
	dt := r.unit[2*inner+2*ds : 2*inner+2*ds+heads]
	matVec(z, w.z, norm)
	matVec(x, w.x, norm)
	matVec(b, w.b, norm)
	matVec(cc, w.c, norm)
	matVec(dt, w.dt, norm)
	xs := r.mem.ssmHeads * hd // local channels of the x band
	r.conv(l.index, seq.Slot, u*inner, x, w.convX)
	r.conv(l.index, seq.Slot, xs+u*ds, b, w.convB)
	r.conv(l.index, seq.Slot, xs+r.mem.groups*ds+u*ds, cc, w.convC)
	state := r.mem.recurrent(l.index, seq.Slot)
	for h := range heads {
		step := softplus(dt[h] + w.bias[h])
		keep := float32(math.Exp(float64(w.a[h] * step)))
		for i := range hd {
			s := cut(state, (u*heads+h)*hd+i, ds)
			xi := x[h*hd+i]
			add := step * xi
			var y float32
			for j := range s {
				s[j] = s[j]*keep + add*b[j]
				y += s[j] * cc[j]
			}
			x[h*hd+i] = (y + w.d[h]*xi) * silu(z[h*hd+i])
		}
	}
	rmsNorm(x, x)
	matVec(out, w.out, x)
}

// conv pushes v into the windows from channel first on and replaces it by the outcome.
func (r *Run) conv(layer int, slot int32, first int, v, w []float32) {
	k := r.m.cfg.Window
	win := r.unit[len(r.unit)-k:]
	for i := range v {
		r.mem.push(layer, slot, first+i, v[i], win)
		v[i] = silu(dot(win, w[i*k:(i+1)*k]))
	}
}

func (r *Run) mlp(w *mlpUnit, norm, out []float32) {
	r.unit = size(r.unit, r.m.cfg.MLPColumns)
	matVec(r.unit, w.up, norm)
	for i, v := range r.unit {
		r.unit[i] = silu(v)
	}
	matVec(out, w.down, r.unit)
}
