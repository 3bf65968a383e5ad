package model

import (
	"errors"
	"fmt"
	"math"
	"slices"
)

// ErrState reports state that was read before anybody wrote it, or logits that are
// not finite for another reason.
var ErrState = errors.New("model: state is not finite")

// ErrGroup: a rank sent what the others cannot expect of it.
var ErrGroup = errors.New("model: ranks disagree")

// MaxChunk bounds the tokens of one Forward.
const MaxChunk = 256

// Group is the ranks of an engine, which call it alike. Values arrive bit for bit.
type Group interface {
	// Sum adds the partial sums of all units of ranks, of which this is one, in ascending
	// order: part is [own units][len(out)], out the sum on all of them.
	Sum(ranks []int, part []float32, units int, out []float32) error
	// Exchange is the all-to-all of ranks: out[i] goes to ranks[i], in takes what that has
	// for this one. A rank with nothing to give takes part.
	Exchange(ranks []int, out [][]float32, in func(i int, v []float32) error) error
	// Pass gives values to one rank, which Takes as many from this one.
	Pass(to int, v []float32) error
	Take(from int, out []float32) error
}

// Seq is where one request's state lies.
type Seq struct {
	Blocks []int32 // from token 0
	Slot   int32   // -1: none
	Prev   int32   // the token before those that are computed, for a draft layer; -1: none
}

// block is one residual block of a rank: a layer's mixer, its MLP or its experts.
type block interface {
	// add sets r.sum to what the chunk's residual gains, on all ranks of the stage alike.
	add(r *Run, c chunk) error
}

// unitBlock is a block whose units compute alone.
type unitBlock interface {
	// units is how many partial sums run gives, one a unit.
	units() int
	// run adds the chunk to the block's state and sets out(u, t) of each unit and token.
	run(r *Run, c chunk)
}

// tailed is a unitBlock whose partial sums have tail more elements behind each token's. What
// all units gave of a token is the residual's only after finish.
type tailed interface {
	tail(c *Config) int
	finish(c *Config, x, tail []float32)
}

// residual is a block and the weights of the norm before it, nil: ones.
type residual struct {
	block
	norm []float32
}

// chunk is the tokens of one Forward: n of them, the first at pos.
type chunk struct {
	seq    Seq
	pos, n int
}

// Run is one rank's arithmetic over its memory. One goroutine uses it.
type Run struct {
	m     *Model
	mem   *Memory
	group Group

	n, wide            int       // tokens of the chunk, elements of a token's partial sum
	x, norm, part, sum []float32 // residual, its norm, partial sums, their sum

	// Scratch of blocks:
	unit         []float32 // of one unit
	keys, values []float32 // rows that a head attends to, as memory holds them
	scores       []float32
	rot          []float32 // cos, sin per position of the chunk and frequency
	bc, window   []float32 // B and C of a token, the window of a channel
}

// NewRun joins weights, memory and the group.
func NewRun(m *Model, mem *Memory, group Group) *Run { return &Run{m: m, mem: mem, group: group} }

// normOf is the normed residual of the chunk's token t.
func (r *Run) normOf(t int) []float32 { return cut(r.norm, t, r.m.cfg.Hidden) }

// out is where unit u puts its partial sum for the chunk's token t.
func (r *Run) out(u, t int) []float32 { return cut(r.part, u*r.n+t, r.wide)[:r.m.cfg.Hidden] }

// tail is what lies behind it.
func (r *Run) tail(u, t int) []float32 { return cut(r.part, u*r.n+t, r.wide)[r.m.cfg.Hidden:] }

// Forward runs tokens at positions pos… of seq through the model, adding them to its
// state. On rank 0 it returns the logits after the last token, valid until the next call;
// on others nil. All ranks call it alike.
func (r *Run) Forward(seq Seq, tokens []int32, pos int32) ([]float32, error) {
	logits, err := r.forward(seq, tokens, pos, 1)
	if err != nil || logits == nil {
		return nil, err
	}
	return logits[0], nil
}

// Verify is Forward with the logits after each token.
func (r *Run) Verify(seq Seq, tokens []int32, pos int32) ([][]float32, error) {
	return r.forward(seq, tokens, pos, len(tokens))
}

// forward gives the logits after the last tokens.
func (r *Run) forward(seq Seq, tokens []int32, pos int32, last int) ([][]float32, error) {
	if err := r.check(seq, tokens, pos); err != nil {
		return nil, err
	}
	c := chunk{seq: seq, pos: int(pos), n: len(tokens)}
	if err := r.enter(tokens); err != nil {
		return nil, err
	}
	for _, b := range r.m.blocks {
		if err := r.add(b, c); err != nil {
			return nil, err
		}
	}
	if r.m.draft != nil {
		r.m.draft.keep(r, seq, tokens, c.pos)
	}
	if after := r.m.part.after; after >= 0 {
		if err := r.group.Pass(after, r.x); err != nil {
			return nil, err
		}
	}
	return r.logits(last)
}

// enter makes the residual: embeddings in the first stage, else what the stage before made.
func (r *Run) enter(tokens []int32) error {
	h := r.m.cfg.Hidden
	r.n = len(tokens)
	r.x, r.norm = size(r.x, r.n*h), size(r.norm, r.n*h)
	if before := r.m.part.before; before >= 0 {
		return r.group.Take(before, r.x)
	}
	for i, t := range tokens {
		copy(cut(r.x, i, h), cut(r.m.embed, int(t), h))
	}
	return nil
}

// add runs one residual block over the norm.
func (r *Run) add(b residual, c chunk) error {
	h := r.m.cfg.Hidden
	for t := range c.n {
		rmsNorm(r.normOf(t), cut(r.x, t, h), b.norm, r.m.cfg.Eps)
	}
	r.sum = size(r.sum, c.n*h)
	if err := b.add(r, c); err != nil {
		return err
	}
	for i, v := range r.sum {
		r.x[i] += v
	}
	return nil
}

// summed is a block of units: every own unit over every token, and the group's sum.
type summed struct{ unitBlock }

func (b summed) add(r *Run, c chunk) error {
	h := r.m.cfg.Hidden
	r.wide = h
	tail, ok := b.unitBlock.(tailed)
	if ok {
		r.wide += tail.tail(&r.m.cfg)
	}
	r.part, r.sum = size(r.part, b.units()*c.n*r.wide), size(r.sum, c.n*r.wide)
	b.run(r, c)
	if err := r.sumUp(r.part, r.sum); err != nil || r.wide == h {
		return err
	}
	for t := range c.n {
		sum := cut(r.sum, t, r.wide)
		tail.finish(&r.m.cfg, sum[:h], sum[h:])
		copy(r.sum[t*h:], sum[:h]) // never over what is yet to be read
	}
	r.sum = r.sum[:c.n*h]
	return nil
}

func (r *Run) check(seq Seq, tokens []int32, pos int32) error {
	if len(tokens) < 1 || len(tokens) > MaxChunk {
		return fmt.Errorf("%w: %d tokens in one step: want 1 to %d", ErrConfig, len(tokens), MaxChunk)
	}
	for _, t := range tokens {
		if t < 0 || t >= r.m.cfg.Vocab {
			return fmt.Errorf("%w: token %d: want 0 to %d", ErrConfig, t, r.m.cfg.Vocab-1)
		}
	}
	s := r.mem.sizes
	if end := int64(pos) + int64(len(tokens)); pos < 0 || end > int64(len(seq.Blocks))*int64(s.BlockTokens) {
		return fmt.Errorf("%w: positions %d to %d with %d blocks of %d tokens", ErrConfig, pos, end, len(seq.Blocks), s.BlockTokens)
	}
	for _, b := range seq.Blocks {
		if b < 0 || b >= s.Blocks {
			return fmt.Errorf("%w: block %d of %d", ErrConfig, b, s.Blocks)
		}
	}
	if r.m.cfg.SSMLayers() > 0 && (seq.Slot < 0 || seq.Slot >= s.Slots) {
		return fmt.Errorf("%w: slot %d of %d", ErrConfig, seq.Slot, s.Slots)
	}
	return nil
}

// sumUp adds the units of the stage's ranks; part is those of this one.
func (r *Run) sumUp(part, out []float32) error {
	units := len(part) / len(out)
	if r.m.part.repeats() {
		part, units = nil, 0
	}
	return r.group.Sum(r.m.part.ranks, part, units, out)
}

// logits makes those after the last n tokens on the sampler, and brings them to rank 0.
func (r *Run) logits(n int) ([][]float32, error) {
	vocab := int(r.m.cfg.Vocab)
	all := make([]float32, n*vocab)
	if r.m.head != nil {
		norm := make([]float32, r.m.cfg.Hidden)
		for i := range n {
			rmsNorm(norm, cut(r.x, r.n-n+i, len(norm)), r.m.final, r.m.cfg.Eps)
			matVec(cut(all, i, vocab), r.m.head, norm)
		}
	}
	if err := r.toFirst(all); err != nil || r.m.rank != 0 {
		return nil, err
	}
	for _, v := range all {
		if v != v || math.IsInf(float64(v), 0) {
			return nil, ErrState
		}
	}
	return slices.Collect(slices.Chunk(all, vocab)), nil
}

// toFirst brings what the sampler has to rank 0.
func (r *Run) toFirst(v []float32) error {
	switch sampler := r.m.part.sampler; {
	case sampler == 0:
		return nil
	case r.m.rank == sampler:
		return r.group.Pass(0, v)
	case r.m.rank == 0:
		return r.group.Take(sampler, v)
	}
	return nil
}

// Greedy is the index of the largest logit, the lowest one of equals.
func Greedy(logits []float32) int32 {
	best := 0
	for i, v := range logits {
		if v > logits[best] {
			best = i
		}
	}
	return int32(best)
}

// cut is the i-th n elements of a.
func cut(a []float32, i, n int) []float32 { return a[i*n : (i+1)*n : (i+1)*n] }

// size is a with n elements, which mean nothing.
func size(a []float32, n int) []float32 {
	if cap(a) < n {
		return make([]float32, n)
	}
	return a[:n]
}

// rmsNorm is x over its root mean square, times w; nil: ones.
func rmsNorm(out, x, w []float32, eps float64) {
	var ss float32
	for _, v := range x {
		ss += v * v
	}
	f := float32(1 / math.Sqrt(float64(ss/float32(len(x)))+eps))
	for i, v := range x {
		out[i] = v * f
	}
	for i, v := range w {
		out[i] *= v
	}
}

// matVec is out = w·x for w [len(out)][len(x)].
func matVec(out, w, x []float32) {
	n := len(x)
	for i := range out {
		out[i] = dot(w[i*n:(i+1)*n], x)
	}
}

// dot adds in one fixed order, in four strands so that the additions overlap. It reads
// weights and the scratch of its own rank: the race detector would only slow it down.
//
//go:norace
func dot(a, b []float32) float32 {
	var s0, s1, s2, s3 float32
	b = b[:len(a)]
	i := 0
	for ; i+4 <= len(a); i += 4 {
		s0 += a[i] * b[i]
		s1 += a[i+1] * b[i+1]
		s2 += a[i+2] * b[i+2]
		s3 += a[i+3] * b[i+3]
	}
	for ; i < len(a); i++ {
		s0 += a[i] * b[i]
	}
	return (s0 + s1) + (s2 + s3)
}

func silu(v float32) float32 { return v / (1 + float32(math.Exp(-float64(v)))) }

func softplus(v float32) float32 {
	if v > 20 {
		return v
	}
	return float32(math.Log1p(math.Exp(float64(v))))
}
