//go:build cgo

package dma

import (
	"github.com/batonkv/baton/kernels/cuda"
	"github.com/batonkv/baton/kernels/rows/plain"
	"github.com/batonkv/baton/transfer/lower"
)

// maxPitch is the largest distance of rows that a copy engine takes, in bytes.
const maxPitch = 1<<31 - 1

// cut appends the copies that o becomes under the rules of a copy engine: rows of one pitch
// of at least their width on each side, planes a whole number of pitches apart and not into
// each other. The two loops that leave the fewest calls become rows and planes.
func cut(out []cuda.Op, o *plain.Op, kind cuda.Kind) []cuda.Op {
	s := shape{op: *o, kind: kind}
	s.forward()
	s.choose()
	c := s.first()
	rest := s.rest()
	var at [lower.MaxDims]int64
	for {
		out = put(out, c)
		i := len(rest) - 1
		for ; i >= 0; i-- {
			d := rest[i]
			c.Src += uint64(d.Src)
			c.Dst += uint64(d.Dst)
			if at[i]++; at[i] < d.N {
				break
			}
			at[i] = 0
			c.Src -= uint64(d.N * d.Src)
			c.Dst -= uint64(d.N * d.Dst)
		}
		if i < 0 {
			return out
		}
	}
}

// put appends c, or makes it part of the flat copy before it, which it continues.
func put(out []cuda.Op, c cuda.Op) []cuda.Op {
	if n := len(out); n > 0 && line(&c) {
		if p := &out[n-1]; line(p) && p.Kind == c.Kind && p.Src+p.Width == c.Src && p.Dst+p.Width == c.Dst {
			p.Width += c.Width
			return out
		}
	}
	return append(out, c)
}

// line reports whether o copies one run of bytes.
func line(o *cuda.Op) bool { return o.Kind != cuda.Zero && o.Height == 1 && o.Depth == 1 }

// shape is an op whose loops are being dealt out.
type shape struct {
	op         plain.Op
	kind       cuda.Kind
	row, plane int // loops of op, -1: none
	left       [lower.MaxDims]plain.Dim
}

// forward turns loops that run backwards on both sides around.
func (s *shape) forward() {
	for i := range s.op.Dims[:s.op.Rank] {
		d := &s.op.Dims[i]
		if s.kind == cuda.Zero {
			d.Src = d.Dst
		}
		if d.Dst < 0 && d.Src < 0 {
			s.op.Dst += uint64((d.N - 1) * d.Dst)
			s.op.Src += uint64((d.N - 1) * d.Src)
			d.Dst, d.Src = -d.Dst, -d.Src
		}
	}
}

// choose picks the loops that become rows and planes.
func (s *shape) choose() {
	s.row, s.plane = -1, -1
	best := int64(1)
	dims := s.op.Dims[:s.op.Rank]
	for i, r := range dims {
		if min(r.Dst, r.Src) < s.op.Run || max(r.Dst, r.Src) > maxPitch {
			continue
		}
		if r.N > best {
			best, s.row, s.plane = r.N, i, -1
		}
		for k, p := range dims {
			if k != i && p.Dst%r.Dst == 0 && p.Src%r.Src == 0 && p.Dst/r.Dst >= r.N && p.Src/r.Src >= r.N && r.N*p.N > best {
				best, s.row, s.plane = r.N*p.N, i, k
			}
		}
	}
}

// first is the copy at the start of all other loops.
func (s *shape) first() cuda.Op {
	run := uint64(s.op.Run)
	c := cuda.Op{Dst: s.op.Dst, Src: s.op.Src, Width: run, Height: 1, Depth: 1, DstPitch: run, SrcPitch: run, DstRows: 1, SrcRows: 1, Kind: s.kind}
	if s.kind == cuda.Zero {
		c.Src = 0
	}
	if s.row < 0 {
		return c
	}
	r := s.op.Dims[s.row]
	c.Height, c.DstPitch, c.SrcPitch = uint64(r.N), uint64(r.Dst), uint64(r.Src)
	c.DstRows, c.SrcRows = c.Height, c.Height
	if s.plane >= 0 {
		p := s.op.Dims[s.plane]
		c.Depth, c.DstRows, c.SrcRows = uint64(p.N), uint64(p.Dst/r.Dst), uint64(p.Src/r.Src)
	}
	return c
}

// rest are the loops that calls run through.
func (s *shape) rest() []plain.Dim {
	n := 0
	for i, d := range s.op.Dims[:s.op.Rank] {
		if i == s.row || i == s.plane {
			continue
		}
		if s.kind == cuda.Zero {
			d.Src = 0
		}
		s.left[n] = d
		n++
	}
	return s.left[:n]
}
