package model

import (
	"math"
	"math/rand/v2"
)

// Gains are chosen so that greedy tokens hang on what the mixers remember: mixer
// outputs outweigh the embedding, attention is sharp, and the recurrent state fades
// over tens of tokens. The tests that corrupt one state hold this.
const (
	gainQK    = 1.6
	gainMixer = 1.5
	gainMLP   = 0.8
)

// kind numbers what weights are drawn for; the numbers are part of a model.
type kind uint64

const (
	kindEmbed kind = iota + 1
	kindHead
	kindAttention
	kindSSM
	kindMLP
	kindLatent
	kindLatentHead
	kindDraft
	kindRouter
	kindExpert
)

// Model is one rank's weights. It is read only after New and may be shared.
type Model struct {
	cfg    Config
	part   Part
	rank   int
	embed  []float32   // [vocab][hidden], in the first stage and where tokens are drafted
	head   []float32   // [vocab][hidden], on the sampler only
	final  []float32   // weights of the last norm, on the sampler only; nil: ones
	blocks []residual  // a mixer, and an MLP or experts, for each layer of the stage
	draft  *draft      // in the last stage of a model that has one
	saved  *checkpoint // nil: weights are drawn; open within New only
}

// New makes the weights of one rank: what its own units need, read from the directory of
// cfg, or each drawn from the seed, the layer and the number of what is drawn.
func New(cfg Config, rank int, split Split) (*Model, error) {
	part, err := cfg.Cut(rank, split)
	if err != nil {
		return nil, err
	}
	m := &Model{cfg: cfg, part: part, rank: rank}
	if cfg.Dir != "" {
		if m.saved, err = openCheckpoint(cfg); err != nil {
			return nil, err
		}
	}
	m.makeEnds()
	m.makeBlocks()
	if m.saved != nil {
		if err := m.saved.close(); err != nil {
			return nil, err
		}
		m.saved = nil
	}
	return m, nil
}

// makeEnds makes what is before the first layer and behind the last.
func (m *Model) makeEnds() {
	n := int(m.cfg.Vocab) * m.cfg.Hidden
	if m.part.before < 0 || m.part.after < 0 && m.cfg.Drafts() {
		if m.saved != nil {
			m.embed = m.saved.embed()
		} else {
			m.embed = gauss(m.source(kindEmbed, 0, 0), n, 1)
		}
	}
	if m.rank == m.part.sampler {
		if m.saved != nil {
			m.head, m.final = m.saved.head(), m.saved.norm(m.saved.final)
		} else {
			m.head = gauss(m.source(kindHead, 0, 0), n, 1)
		}
	}
}

func (m *Model) makeBlocks() {
	cfg, part := m.cfg, m.part
	var kv, latent, ssm int // layers of each kind of state so far, of the stage
	for i := int(part.Layers.Lo); i < int(part.Layers.Hi); i++ {
		var mixer unitBlock
		var mix, feed residual
		if m.saved != nil {
			mix.norm, feed.norm = m.saved.norms(i)
		}
		switch cfg.Pattern[i] {
		case '*':
			mixer, kv = m.makeAttention(i, kv, 0), kv+1
		case 'W':
			mixer, kv = m.makeAttention(i, kv, cfg.Sliding), kv+1
		case 'L':
			mixer, latent = m.makeLatent(i, latent), latent+1
		case 'M':
			mixer, ssm = m.makeMamba(i, ssm), ssm+1
		case 'D':
			m.draft = m.makeDraft(i, kv)
			continue
		}
		mix.block = summed{mixer}
		if cfg.Feeds != "" && cfg.Feeds[i] == 'E' {
			feed.block = m.makeMoE(i)
		} else {
			feed.block = summed{m.makeMLP(i)}
		}
		m.blocks = append(m.blocks, mix, feed)
	}
}

// Config is the whole model's; Part is this rank's.
func (m *Model) Config() Config { return m.cfg }

// Part is what this rank holds.
func (m *Model) Part() Part { return m.part }

func (m *Model) source(k kind, layer, unit int) *rand.Rand {
	return rand.New(rand.NewPCG(m.cfg.Seed, uint64(k)<<48|uint64(layer)<<24|uint64(unit)))
}

// gauss draws a matrix, [out][in].
func gauss(r *rand.Rand, n int, std float64) []float32 {
	w := make([]float32, n)
	for i := range w {
		w[i] = float32(r.NormFloat64() * std)
	}
	return w
}

// root is √n: weights divided by it keep a sum of n products at the size of one.
func root(n int) float64 { return math.Sqrt(float64(n)) }

// columns takes columns lo to hi of a matrix of width columns.
func columns(w []float32, width, lo, hi int) []float32 {
	out := make([]float32, 0, len(w)/width*(hi-lo))
	for ; len(w) > 0; w = w[width:] {
		out = append(out, w[lo:hi]...)
	}
	return out
}
