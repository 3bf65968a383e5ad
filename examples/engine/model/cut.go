package model

import (
	"errors"
	"fmt"

	"github.com/batonkv/baton/transfer/layout"
	"github.com/batonkv/baton/transfer/layout/parallel"
)

// Split is how the ranks of an engine divide a model. A count of 0 is 1.
type Split struct {
	TP, PP int
	// EP spreads experts over ranks, ExptTP the columns of each. Ranks that differ in
	// these alone repeat everything else: each keeps the state, and computes it alike.
	EP, ExptTP int
	Layers     []int // model layers of each stage; nil: evenly, the first stages smaller
}

// Ranks is the number of ranks, numbered with ExptTP fastest, then EP, TP, PP.
func (s Split) Ranks() int { return max(s.PP, 1) * s.stageRanks() }

func (s Split) stageRanks() int { return max(s.TP, 1) * s.experts() }

func (s Split) experts() int { return max(s.EP, 1) * max(s.ExptTP, 1) }

// Sampler is the rank that has the logits first: the first of the last stage.
func (s Split) Sampler() int { return s.Ranks() - s.stageRanks() }

func (s Split) String() string {
	out := fmt.Sprintf("TP=%d", max(s.TP, 1))
	for _, k := range []struct {
		name string
		n    int
	}{{"PP", s.PP}, {"EP", s.EP}, {"ExptTP", s.ExptTP}} {
		if k.n > 1 {
			out += fmt.Sprintf(" %s=%d", k.name, k.n)
		}
	}
	if s.Layers != nil {
		out += fmt.Sprintf(" layers=%d", s.Layers)
	}
	return out
}

// cuts are the first layer of each stage, and the end.
func (s Split) cuts(layers int) []int32 {
	if s.Layers == nil {
		return parallel.EvenCuts(int32(layers), int32(max(s.PP, 1)))
	}
	out := []int32{0}
	for i, n := range s.Layers {
		out = append(out, out[i]+int32(n))
	}
	return out
}

// check refuses counts and stages that no model of so many layers can have.
func (s Split) check(layers int) error {
	const most = 1 << 10
	for _, k := range []struct {
		name string
		n    int
	}{{"tp", s.TP}, {"pp", s.PP}, {"ep", s.EP}, {"expt_tp", s.ExptTP}} {
		if k.n < 0 || k.n > most {
			return fmt.Errorf("%w: %s %d: want 1 to %d", ErrConfig, k.name, k.n, most)
		}
	}
	pp, sum := max(s.PP, 1), 0
	for _, n := range s.Layers {
		if n < 1 || n > layers {
			return fmt.Errorf("%w: a stage of %d layers: want at least 1 of the model's %d", ErrConfig, n, layers)
		}
		sum += n
	}
	switch {
	case s.Layers != nil && (len(s.Layers) != pp || sum != layers):
		return fmt.Errorf("%w: layers %d for pp %d: give one number a stage, %d in all", ErrConfig, s.Layers, pp, layers)
	case pp > layers:
		return fmt.Errorf("%w: pp %d: the model has %d layers, and a stage at least one", ErrConfig, pp, layers)
	}
	return nil
}

// Part is what one rank holds: some layers, and of each of these equal units. Units are
// its own; a KV head or a group may be on other ranks too, and a latent is on all of them.
type Part struct {
	Place  parallel.Place
	Layers layout.Span // of the model
	// Layers of each kind of state, counted within it; empty where the stage has none.
	Attention, Latent, SSM layout.Span

	Queries layout.Span // units of query heads
	KV      layout.Span // KV heads that they read
	Heads   layout.Span // units of SSM heads
	Groups  layout.Span // B/C groups that they read
	MLP     layout.Span // groups of MLP columns
	Experts layout.Span
	Columns layout.Span // groups of columns of each of its experts

	ranks   []int // of its stage
	team    []int // of them, those among which the experts are
	before  int   // its neighbour in the stage before, -1: it is in the first
	after   int   // in the stage after, -1: it is in the last
	sampler int
}

// repeats says that what the rank computes, experts apart, another computes too.
func (p Part) repeats() bool { return p.Place.EP+p.Place.ExptTP > 0 }

// Cut gives rank its part of the model. TP has to divide every kind of unit that the
// model has. Of KV heads it is a divisor, or a multiple: then several ranks hold one.
func (c Config) Cut(rank int, s Split) (Part, error) {
	if err := c.Check(); err != nil {
		return Part{}, err
	}
	if err := s.check(len(c.Pattern)); err != nil {
		return Part{}, err
	}
	if rank < 0 || rank >= s.Ranks() {
		return Part{}, fmt.Errorf("%w: rank %d of %d", ErrConfig, rank, s.Ranks())
	}
	if err := errors.Join(c.checkTP(max(s.TP, 1)), c.checkExperts(max(s.EP, 1), max(s.ExptTP, 1))); err != nil {
		return Part{}, err
	}
	p := c.stage(rank, s)
	span := func(units int) layout.Span { return share(units, max(s.TP, 1), p.Place.TP) }
	p.Queries, p.Heads, p.MLP = span(c.QueryUnits), span(c.SSMUnits), span(c.MLPGroups)
	p.Experts, p.Columns = share(c.Experts, max(s.EP, 1), p.Place.EP), share(c.ExpertGroups, max(s.ExptTP, 1), p.Place.ExptTP)
	p.KV, p.Groups = readBy(p.Queries, c.QueryUnits/c.KVHeads), readBy(p.Heads, c.SSMUnits/c.Groups)
	return p, nil
}

func (c Config) checkTP(tp int) error {
	for _, k := range []struct {
		name  string
		units int
		has   bool
	}{
		{"units of query heads", c.QueryUnits, c.AttentionLayers()+c.LatentLayers() > 0},
		{"units of SSM heads", c.SSMUnits, c.SSMLayers() > 0}, {"MLP groups", c.MLPGroups, true},
	} {
		if k.has && k.units%tp != 0 {
			return fmt.Errorf("%w: tp %d does not divide %d %s: choose a divisor", ErrConfig, tp, k.units, k.name)
		}
	}
	if c.AttentionLayers() > 0 && c.KVHeads%tp != 0 && tp%c.KVHeads != 0 {
		return fmt.Errorf("%w: tp %d neither divides %d KV heads nor is a multiple", ErrConfig, tp, c.KVHeads)
	}
	return nil
}

func (c Config) checkExperts(ep, exptTP int) error {
	switch {
	case ep*exptTP == 1:
		return nil
	case c.ExpertLayers() == 0:
		return fmt.Errorf("%w: ep %d, expt_tp %d: model %s has no experts: leave them out", ErrConfig, ep, exptTP, c.Name)
	case c.Experts%ep != 0:
		return fmt.Errorf("%w: ep %d does not divide %d experts: choose a divisor", ErrConfig, ep, c.Experts)
	case c.ExpertGroups%exptTP != 0:
		return fmt.Errorf("%w: expt_tp %d does not divide %d groups of an expert's columns: choose a divisor", ErrConfig, exptTP, c.ExpertGroups)
	}
	return nil
}

// stage is where rank stands: its layers and whom it meets.
func (c Config) stage(rank int, s Split) Part {
	cut, each := c.cut(s), s.stageRanks()
	p := Part{Place: cut.Place(layout.Rank(rank)), sampler: s.Sampler(), before: rank - each, after: rank + each}
	i := int(p.Place.PP)
	cuts := s.cuts(len(c.Pattern))
	p.Layers = layout.Span{Lo: cuts[i], Hi: cuts[i+1]}
	p.Attention, p.Latent, p.SSM = cut.AttentionStages[i], cut.LatentStages[i], cut.MambaStages[i]
	for r := range each {
		p.ranks = append(p.ranks, i*each+r)
	}
	p.team = p.ranks[int(p.Place.TP)*s.experts():][:s.experts()]
	if p.before < 0 {
		p.before = -1
	}
	if p.after >= s.Ranks() {
		p.after = -1
	}
	return p
}

// cut is the split for the builders of shards.
func (c Config) cut(s Split) parallel.Cut {
	cuts := s.cuts(len(c.Pattern))
	stages := func(kinds string) []layout.Span { return parallel.Stages(c.at(kinds), cuts) }
	return parallel.Cut{TP: int32(s.TP), PP: int32(s.PP), EP: int32(s.EP), ExptTP: int32(s.ExptTP),
		AttentionStages: stages(keepKV), LatentStages: stages(keepLatent), MambaStages: stages(keepSSM)}
}

// share is part i of n units in equal parts.
func share(n, parts int, i int32) layout.Span {
	each := int32(n / parts)
	return layout.Span{Lo: i * each, Hi: (i + 1) * each}
}

// readBy is what units read of which each serves per.
func readBy(units layout.Span, per int) layout.Span {
	return layout.Span{Lo: units.Lo / int32(per), Hi: (units.Hi + int32(per) - 1) / int32(per)}
}

// pieces are the elements of each share of own, of which each has as many.
func pieces(own layout.Span, each int) (out [][2]int) {
	for i := int(own.Lo); i < int(own.Hi); i++ {
		out = append(out, [2]int{i * each, (i + 1) * each})
	}
	return out
}

// sharesOf are the shares of one KV head or group, of which units has some.
func sharesOf(whole int32, units layout.Span, per int) layout.Span {
	lo := whole * int32(per)
	return layout.Span{Lo: max(units.Lo-lo, 0), Hi: min(units.Hi-lo, int32(per))}
}

// Desc is the model's state for the builders of shards: layers of each kind of state
// count on their own.
func (c Config) Desc() parallel.Desc {
	var d parallel.Desc
	if n := c.AttentionLayers(); n > 0 {
		d.Attention = &parallel.Attention{Layers: int32(n), Heads: int32(c.KVHeads), Dim: int32(c.HeadDim)}
	}
	if n := c.LatentLayers(); n > 0 {
		d.Latent = &parallel.Latent{Layers: int32(n), Dim: int32(c.latentRow())}
	}
	if n := c.SSMLayers(); n > 0 {
		d.Mamba = &parallel.Mamba{Layers: int32(n), Heads: int32(c.SSMHeads), HeadDim: int32(c.SSMHeadDim),
			StateDim: int32(c.StateDim), Groups: int32(c.Groups), Window: int32(c.Window)}
	}
	return d
}

// Shards says where the states of one rank lie in the buffers of a Memory, each left out
// when the rank has none of it.
func (c Config) Shards(rank int, split Split, s Sizes) (parallel.RankMemory, error) {
	if _, err := c.Cut(rank, split); err != nil {
		return parallel.RankMemory{}, err
	}
	return c.Desc().Rank(c.cut(split), s.Geometry(), layout.Rank(rank))
}

// AllShards are those of all ranks.
func (c Config) AllShards(split Split, s Sizes) ([]layout.Shard, error) {
	if _, err := c.Cut(0, split); err != nil {
		return nil, err
	}
	return c.Desc().Shards(c.cut(split), s.Geometry())
}

// Geometry is how memory of these sizes nests.
func (s Sizes) Geometry() parallel.Memory {
	t := s.Types.WithDefaults()
	return parallel.Memory{Order: parallel.Planes, Blocks: s.Blocks, BlockTokens: s.BlockTokens, KV: t.KV,
		Slots: s.Slots, Conv: t.Conv, SSM: t.SSM}
}
