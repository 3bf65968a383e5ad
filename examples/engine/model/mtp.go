package model

import (
	"fmt"
	"math"
	"slices"
)

// draft is the layer of multi-token prediction, 'D' at a pattern's end: it proposes tokens
// that the model then checks, several in one Forward. It is no part of the residual.
//
// Its rows of K and V are made from pairs of tokens, the one before and the one at the
// row's position, so that a row hangs on nothing that comes later and may be cached and
// moved like any other. What asks them is the newest token and the model's last hidden
// vector; a second proposal is asked with the layer's own. A row whose first token is
// the newest answers with what followed there.
type draft struct {
	index int       // among the layers that keep K and V
	embed []float32 // [vocab][hidden]: every rank of the stage finds the nearest alike
	heads []draftHead
}

// draftHead is one KV head.
type draftHead struct {
	k, v  []float32 // [d][hidden]
	back  []float32 // [hidden][d]: v turned, over the number of shares
	units int       // shares that the rank has
}

// gainTrunk weighs the model's hidden vector beside the newest token.
const gainTrunk = 0.25

func (m *Model) makeDraft(layer, index int) *draft {
	c := m.cfg
	l := &draft{index: index, embed: m.embed}
	per := c.QueryUnits / c.KVHeads
	for h := m.part.KV.Lo; h < m.part.KV.Hi; h++ {
		r := m.source(kindDraft, layer, int(h))
		w := draftHead{k: gauss(r, c.HeadDim*c.Hidden, gainQK/root(c.Hidden)), v: gauss(r, c.HeadDim*c.Hidden, 1/root(c.Hidden)),
			back: make([]float32, c.HeadDim*c.Hidden), units: int(sharesOf(h, m.part.Queries, per).Len())}
		for i := range c.HeadDim {
			for j := range c.Hidden {
				w.back[j*c.HeadDim+i] = w.v[i*c.Hidden+j] / float32(per)
			}
		}
		l.heads = append(l.heads, w)
	}
	return l
}

// keep stores the rows of tokens at positions pos…; seq.Prev is the token before them.
func (l *draft) keep(r *Run, seq Seq, tokens []int32, pos int) {
	kv, h := &r.mem.kv, r.m.cfg.Hidden
	row := make([]float32, r.m.cfg.HeadDim)
	before, here := make([]float32, h), make([]float32, h)
	l.look(before, seq.Prev, r.m.cfg.Eps)
	for i, t := range tokens {
		l.look(here, t, r.m.cfg.Eps)
		for u := range l.heads {
			matVec(row, l.heads[u].k, before)
			kv.store(kv.row(0, l.index, u, seq.Blocks, pos+i), row)
			matVec(row, l.heads[u].v, here)
			kv.store(kv.row(1, l.index, u, seq.Blocks, pos+i), row)
		}
		before, here = here, before
	}
}

// look is the normed embedding of a token, 0 of none.
func (l *draft) look(out []float32, token int32, eps float64) {
	clear(out)
	if token >= 0 {
		rmsNorm(out, cut(l.embed, int(token), len(out)), nil, eps)
	}
}

// ask is what the rows up to pos answer to the token there and the hidden vector before.
func (l *draft) ask(r *Run, seq Seq, token int32, pos int, hidden []float32) ([]float32, error) {
	h, d, kv := r.m.cfg.Hidden, r.m.cfg.HeadDim, &r.mem.kv
	want, trunk := make([]float32, h), make([]float32, h)
	l.look(want, token, r.m.cfg.Eps)
	rmsNorm(trunk, hidden, nil, r.m.cfg.Eps)
	for i, v := range trunk {
		want[i] += gainTrunk * v
	}
	q, y := make([]float32, d), make([]float32, d)
	var part []float32
	r.keys, r.values = size(r.keys, (pos+1)*d), size(r.values, (pos+1)*d)
	for u := range l.heads {
		w := &l.heads[u]
		kv.gather(0, l.index, u, seq.Blocks, 0, pos+1, r.keys)
		kv.gather(1, l.index, u, seq.Blocks, 0, pos+1, r.values)
		matVec(q, w.k, want)
		r.attend(q, r.keys, r.values, d, float32(1/root(d)), y)
		matVec(trunk, w.back, y)
		for range w.units {
			part = append(part, trunk...)
		}
	}
	out := make([]float32, h)
	return out, r.sumUp(part, out)
}

// nearest is the token whose embedding is most like v, -1 when v is not finite.
func (l *draft) nearest(v []float32) int32 {
	scores := make([]float32, len(l.embed)/len(v))
	matVec(scores, l.embed, v)
	if slices.ContainsFunc(scores, func(s float32) bool { return s != s || math.IsInf(float64(s), 0) }) {
		return -1
	}
	return Greedy(scores)
}

// Propose drafts n tokens behind token, which is at pos and not yet computed, on rank 0;
// others get none. hidden is Hidden of the token before, seq.Prev. All ranks call it
// alike. It writes the draft layer's rows at pos and behind, which Forward writes again.
func (r *Run) Propose(seq Seq, token, pos int32, hidden []float32, n int) ([]int32, error) {
	if n < 1 || n > MaxProposals || !r.m.cfg.Drafts() {
		return nil, fmt.Errorf("%w: %d proposals of model %s: want 1 to %d of one with a draft layer", ErrConfig, n, r.m.cfg.Name, MaxProposals)
	}
	if err := r.check(seq, slices.Repeat([]int32{token}, n), pos); err != nil {
		return nil, err
	}
	found := make([]float32, n) // as a rank gives them to another
	if l := r.m.draft; l != nil {
		for i := range found {
			l.keep(r, seq, []int32{token}, int(pos))
			var err error
			if hidden, err = l.ask(r, seq, token, int(pos), hidden); err != nil {
				return nil, err
			}
			next := l.nearest(hidden)
			found[i] = float32(next)
			seq.Prev, token, pos = token, max(next, 0), pos+1
		}
	}
	if err := r.toFirst(found); err != nil || r.m.rank != 0 {
		return nil, err
	}
	out := make([]int32, n)
	for i, v := range found {
		if out[i] = int32(v); v < 0 {
			return nil, ErrState
		}
	}
	return out, nil
}

// Hidden copies the residual behind the last n tokens of the last Forward: in the last
// stage what the logits were made from.
func (r *Run) Hidden(n int) []float32 {
	h := r.m.cfg.Hidden
	return slices.Clone(r.x[(r.n-n)*h : r.n*h])
}

// Saved is the per-request state of a slot at one moment.
type Saved [2][]float32

// Save copies a slot, which Restore brings back: tokens that were computed in between are
// taken back from the state. Rows of paged caches need no such thing, a position does.
func (m *Memory) Save(slot int32) (s Saved) {
	for i, k := range []*slots{&m.conv, &m.ssm} {
		s[i] = make([]float32, k.layers*k.n)
		for l := range k.layers {
			k.load(k.slot(l, slot), s[i][l*k.n:][:k.n])
		}
	}
	return s
}

// Restore makes a slot what it was at Save.
func (m *Memory) Restore(slot int32, s Saved) {
	for i, k := range []*slots{&m.conv, &m.ssm} {
		for l := range k.layers {
			k.store(k.slot(l, slot), s[i][l*k.n:][:k.n])
		}
	}
}
