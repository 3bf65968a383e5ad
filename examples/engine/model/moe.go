package model

import (
	"cmp"
	"fmt"
	"math"
	"slices"
)

// moe is a layer of experts: a router sends each token to a few of them, and adds what
// they give by weight. Experts are spread over the ranks of a team, and the columns of
// each may be: the stage's ranks share the tokens out, and a token's owner exchanges with
// the team. Who owns no token, or is sent none, takes part all the same.
//
//	owner  ── row: expert, normed residual ──▶  every rank with columns of that expert
//	owner  ◀── a partial sum for each of its groups of columns ──  that rank
//	owner  ── the weighted sum ──▶  all ranks of the stage
//
// Partial sums are added in ascending order of experts and columns, whoever has them.
type moe struct {
	router  []float32   // [experts][hidden]
	experts [][]mlpUnit // own experts, and of each the own groups of columns
}

func (m *Model) makeMoE(layer int) *moe {
	c := m.cfg
	// Logits are wide apart, so that two tokens rarely have the same experts by weight.
	b := &moe{router: gauss(m.source(kindRouter, layer, 0), c.Experts*c.Hidden, 2/root(c.Hidden))}
	for e := m.part.Experts.Lo; e < m.part.Experts.Hi; e++ {
		var own []mlpUnit
		for g := m.part.Columns.Lo; g < m.part.Columns.Hi; g++ {
			r := m.source(kindExpert, layer, int(e)*c.ExpertGroups+int(g))
			own = append(own, mlpUnit{
				up:   gauss(r, c.ExpertColumns*c.Hidden, 1/root(c.Hidden)),
				down: gauss(r, c.Hidden*c.ExpertColumns, 2*gainMLP/root(c.ExpertGroups*c.ExpertColumns)),
			})
		}
		b.experts = append(b.experts, own)
	}
	return b
}

// choice is one expert of a token's, and its weight.
type choice struct {
	expert int
	weight float32
}

// choose gives the experts of a token with the largest logits, of equals the lower one,
// weighted by softmax over them, in ascending order.
func (b *moe) choose(cfg *Config, x []float32) []choice {
	logits := make([]float32, cfg.Experts)
	matVec(logits, b.router, x)
	all := make([]choice, cfg.Experts)
	for e, v := range logits {
		all[e] = choice{e, v}
	}
	slices.SortStableFunc(all, func(a, b choice) int { return cmp.Compare(b.weight, a.weight) })
	top := all[:cfg.TopK]
	most, total := top[0].weight, float32(0)
	for i := range top {
		top[i].weight = float32(math.Exp(float64(top[i].weight - most)))
		total += top[i].weight
	}
	for i := range top {
		top[i].weight /= total
	}
	slices.SortFunc(top, func(a, b choice) int { return cmp.Compare(a.expert, b.expert) })
	return top
}

func (b *moe) add(r *Run, c chunk) error {
	own := r.owned(c)
	choices := make([][]choice, len(own))
	for i, t := range own {
		choices[i] = b.choose(&r.m.cfg, r.normOf(t))
	}
	rows, err := r.all(r.m.part.team, b.dispatch(r, own, choices))
	if err != nil {
		return err
	}
	for i := range rows {
		if rows[i], err = b.compute(r, rows[i]); err != nil {
			return fmt.Errorf("rank %d: %w", r.m.part.team[i], err)
		}
	}
	parts, err := r.all(r.m.part.team, rows)
	if err != nil {
		return err
	}
	sums, err := b.combine(r, choices, parts)
	if err != nil {
		return err
	}
	return r.share(c, sums)
}

// owned is the chunk's tokens that this rank routes.
func (r *Run) owned(c chunk) (own []int) {
	ranks := r.m.part.ranks
	for t := r.m.rank - ranks[0]; t < c.n; t += len(ranks) {
		own = append(own, t)
	}
	return own
}

// all exchanges among ranks: what each has for this one.
func (r *Run) all(ranks []int, out [][]float32) ([][]float32, error) {
	got := make([][]float32, len(ranks))
	err := r.group.Exchange(ranks, out, func(i int, v []float32) error {
		got[i] = slices.Clone(v)
		return nil
	})
	return got, err
}

// members are the team's ranks, by place, that have columns of an expert, in the order of
// the columns.
func (r *Run) members(expert int) (first, n int) {
	part := &r.m.part
	n = r.m.cfg.ExpertGroups / int(part.Columns.Len())
	return expert / int(part.Experts.Len()) * n, n
}

// dispatch is what goes to each rank of the team: a row for each choice of a token.
func (b *moe) dispatch(r *Run, own []int, choices [][]choice) [][]float32 {
	out := make([][]float32, len(r.m.part.team))
	for i, t := range own {
		for _, c := range choices[i] {
			first, n := r.members(c.expert)
			for to := first; to < first+n; to++ {
				out[to] = append(append(out[to], float32(c.expert)), r.normOf(t)...)
			}
		}
	}
	return out
}

// compute gives the partial sums of each row, one for each of this rank's groups of
// columns of the row's expert.
func (b *moe) compute(r *Run, rows []float32) ([]float32, error) {
	cfg, part := &r.m.cfg, &r.m.part
	h, groups := cfg.Hidden, int(part.Columns.Len())
	if len(rows)%(1+h) != 0 || len(rows)/(1+h) > MaxChunk*cfg.TopK {
		return nil, fmt.Errorf("%w: rows of %d values in all", ErrGroup, len(rows))
	}
	out := make([]float32, len(rows)/(1+h)*groups*h)
	for at := out; len(rows) > 0; rows = rows[1+h:] {
		e := int32(rows[0])
		if e < part.Experts.Lo || e >= part.Experts.Hi {
			return nil, fmt.Errorf("%w: a row for expert %v, which is not of %v", ErrGroup, rows[0], part.Experts)
		}
		for _, u := range b.experts[e-part.Experts.Lo] {
			u.run(r, rows[1:1+h], at[:h])
			at = at[h:]
		}
	}
	return out, nil
}

// combine adds the partial sums of the owned tokens, each in the order of experts and
// columns. Those of one rank of the team come in the order of its rows.
func (b *moe) combine(r *Run, choices [][]choice, parts [][]float32) ([]float32, error) {
	h, groups := r.m.cfg.Hidden, int(r.m.part.Columns.Len())
	sums := make([]float32, len(choices)*h)
	for i, of := range choices {
		sum := cut(sums, i, h)
		for _, c := range of {
			first, n := r.members(c.expert)
			for from := first; from < first+n; from++ {
				if len(parts[from]) < groups*h {
					return nil, fmt.Errorf("%w: rank %d answered too few rows", ErrGroup, r.m.part.team[from])
				}
				for g := range groups {
					for k, v := range cut(parts[from], g, h) {
						sum[k] += c.weight * v
					}
				}
				parts[from] = parts[from][groups*h:]
			}
		}
	}
	return sums, nil
}

// share gives what the owned tokens gain to all ranks of the stage.
func (r *Run) share(c chunk, sums []float32) error {
	h, ranks := r.m.cfg.Hidden, r.m.part.ranks
	out := make([][]float32, len(ranks))
	for i := range out {
		out[i] = sums
	}
	return r.group.Exchange(ranks, out, func(i int, v []float32) error {
		for t := i; t < c.n; t, v = t+len(ranks), v[h:] {
			if len(v) < h {
				return fmt.Errorf("%w: rank %d shares too few tokens", ErrGroup, ranks[i])
			}
			copy(cut(r.sum, t, h), v)
		}
		if len(v) > 0 {
			return fmt.Errorf("%w: rank %d shares more tokens than it has", ErrGroup, ranks[i])
		}
		return nil
	})
}
