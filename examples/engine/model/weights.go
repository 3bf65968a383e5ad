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

type kind uint64

const (
	kindEmbed kind = iota + 1
	kindHead
	kindAttention
	kindSSM
	kindMLP
)

// attnUnit is one KV head with its query heads. Matrices are [out][in].
type attnUnit struct {
	q, k, v, o []float32
}

// ssmUnit is one group: its heads, its B and its C.
type ssmUnit struct {
	z, x, b, c, dt      []float32 // in-projection, [out][hidden]
	convX, convB, convC []float32 // [channel][window]
	a, d, bias          []float32 // per head: -exp(A_log), skip, dt bias
	out                 []float32 // [hidden][heads*headdim]
}

// mlpUnit is one group of columns.
type mlpUnit struct{ up, down []float32 }

type layer struct {
	mixer byte
	index int // among the layers of its kind
	attn  []attnUnit
	ssm   []ssmUnit
	mlp   []mlpUnit
}

// Model is one rank's weights. It is read only after New and may be shared.
type Model struct {
	cfg    Config
	part   Part
	embed  []float32 // [vocab][hidden], every rank
	head   []float32 // [vocab][hidden], on rank 0 only, which samples
	layers []layer
	freq   []float64 // rotary frequencies, [headdim/2]
}

// New makes the weights of one rank: of its own units only, each from the seed, the
// layer and the unit.
func New(cfg Config, rank, tp int) (*Model, error) {
	part, err := cfg.Cut(rank, tp)
	if err != nil {
		return nil, err
	}
	m := &Model{cfg: cfg, part: part}
	m.embed = gauss(m.source(kindEmbed, 0, 0), int(Vocab)*cfg.Hidden, 1)
	if rank == 0 {
		m.head = gauss(m.source(kindHead, 0, 0), int(Vocab)*cfg.Hidden, 1)
	}
	var attention, ssm int
	for i, mixer := range []byte(cfg.Pattern) {
		l := layer{mixer: mixer}
		switch mixer {
		case '*':
			l.index, attention = attention, attention+1
			for u := part.KV.Lo; u < part.KV.Hi; u++ {
				l.attn = append(l.attn, m.makeAttention(i, int(u)))
			}
		case 'M':
			l.index, ssm = ssm, ssm+1
			for u := part.Groups.Lo; u < part.Groups.Hi; u++ {
				l.ssm = append(l.ssm, m.makeSSM(i, int(u)))
			}
		}
		for u := part.MLP.Lo; u < part.MLP.Hi; u++ {
			l.mlp = append(l.mlp, m.makeMLP(i, int(u)))
		}
		m.layers = append(m.layers, l)
	}
	for i := range cfg.HeadDim / 2 {
		m.freq = append(m.freq, math.Pow(10000, -2*float64(i)/float64(cfg.HeadDim)))
	}
	return m, nil
}

// Config is the whole model's; Part is this rank's.
func (m *Model) Config() Config { return m.cfg }

// Part is what this rank holds.
func (m *Model) Part() Part { return m.part }

func (m *Model) source(k kind, layer, unit int) *rand.Rand {
	return rand.New(rand.NewPCG(m.cfg.Seed, uint64(k)<<48|uint64(layer)<<24|uint64(unit)))
}

func gauss(r *rand.Rand, n int, std float64) []float32 {
	w := make([]float32, n)
	for i := range w {
		w[i] = float32(r.NormFloat64() * std)
	}
	return w
}

func (m *Model) makeAttention(layer, unit int) attnUnit {
	c, r := m.cfg, m.source(kindAttention, layer, unit)
	in := 1 / math.Sqrt(float64(c.Hidden))
	heads := c.QueryHeads / c.KVHeads
	return attnUnit{
		q: gauss(r, heads*c.HeadDim*c.Hidden, gainQK*in),
		k: gauss(r, c.HeadDim*c.Hidden, gainQK*in),
		v: gauss(r, c.HeadDim*c.Hidden, in),
		o: gauss(r, c.Hidden*heads*c.HeadDim, gainMixer/math.Sqrt(float64(c.QueryHeads*c.HeadDim))),
	}
}

func (m *Model) makeSSM(layer, unit int) ssmUnit {
	c, r := m.cfg, m.source(kindSSM, layer, unit)
	heads := c.headsPerGroup()
	inner := heads * c.SSMHeadDim
	in := 1 / math.Sqrt(float64(c.Hidden))
	conv := 1 / math.Sqrt(float64(c.Window))
	u := ssmUnit{
		z: gauss(r, inner*c.Hidden, in), x: gauss(r, inner*c.Hidden, 2*in),
		b: gauss(r, c.StateDim*c.Hidden, 2*in), c: gauss(r, c.StateDim*c.Hidden, 2*in),
		dt:    gauss(r, heads*c.Hidden, 0.5*in),
		convX: gauss(r, inner*c.Window, conv), convB: gauss(r, c.StateDim*c.Window, conv),
		convC: gauss(r, c.StateDim*c.Window, conv),
		out:   gauss(r, c.Hidden*inner, gainMixer/math.Sqrt(float64(c.SSMHeads*c.SSMHeadDim))),
	}
	for range heads {
		u.a = append(u.a, float32(-math.Exp(-2.5+2*r.Float64())))
		u.d = append(u.d, float32(0.1+0.2*r.Float64()))
		u.bias = append(u.bias, float32(-1+r.Float64()))
	}
	return u
}

func (m *Model) makeMLP(layer, unit int) mlpUnit {
	c, r := m.cfg, m.source(kindMLP, layer, unit)
	return mlpUnit{
		up:   gauss(r, c.MLPColumns*c.Hidden, 1/math.Sqrt(float64(c.Hidden))),
		down: gauss(r, c.Hidden*c.MLPColumns, gainMLP/math.Sqrt(float64(c.MLPGroups*c.MLPColumns))),
	}
}
