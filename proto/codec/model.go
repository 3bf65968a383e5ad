package codec

import (
	commonv1 "github.com/batonkv/baton/proto/common/v1"
	"github.com/batonkv/baton/sidecar/handoff"
	"github.com/batonkv/baton/transfer/layout"
)

func toState(b *bound, s layout.State) *commonv1.State {
	return &commonv1.State{
		Name:   b.str("state.name", s.Name),
		Paging: commonv1.Paging(enum(b, "state.paging", s.Paging, 0, layout.PerRequest)),
		Layers: b.count("state.layers", s.Layers),
		Units:  b.count("state.units", s.Units),
		Elems:  b.count("state.elems", s.Elems),
	}
}

func fromState(b *bound, p *commonv1.State) layout.State {
	return layout.State{
		Name:   b.str("state.name", p.GetName()),
		Paging: layout.Paging(enum(b, "state.paging", p.GetPaging(), 0, commonv1.Paging(layout.PerRequest))),
		Layers: b.count("state.layers", p.GetLayers()),
		Units:  b.count("state.units", p.GetUnits()),
		Elems:  b.count("state.elems", p.GetElems()),
	}
}

func toModel(b *bound, m layout.Model) *commonv1.Model {
	return &commonv1.Model{States: each(b, "model.states", m.States, MaxStates, toState)}
}

func fromModel(b *bound, p *commonv1.Model) layout.Model {
	return layout.Model{States: each(b, "model.states", p.GetStates(), MaxStates, fromState)}
}

func toSpan(s layout.Span) *commonv1.Span   { return &commonv1.Span{Lo: s.Lo, Hi: s.Hi} }
func fromSpan(p *commonv1.Span) layout.Span { return layout.Span{Lo: p.GetLo(), Hi: p.GetHi()} }
func toBox(x layout.Box) *commonv1.Box {
	return &commonv1.Box{Layers: toSpan(x.Layers), Units: toSpan(x.Units)}
}
func fromBox(p *commonv1.Box) (box layout.Box) {
	return layout.Box{Layers: fromSpan(p.GetLayers()), Units: fromSpan(p.GetUnits())}
}

func toView(v layout.View) *commonv1.View {
	return &commonv1.View{Buffer: v.Buffer, Off: v.Off, Layer: v.Layer, Item: v.Item,
		Row: v.Row, Unit: v.Unit, Elem: v.Elem}
}

func fromView(p *commonv1.View) layout.View {
	return layout.View{Buffer: p.GetBuffer(), Off: p.GetOff(), Layer: p.GetLayer(), Item: p.GetItem(),
		Row: p.GetRow(), Unit: p.GetUnit(), Elem: p.GetElem()}
}

func toShard(b *bound, s layout.Shard) *commonv1.Shard {
	return &commonv1.Shard{
		State: b.count("shard.state", s.State),
		Rank:  b.rank("shard.rank", s.Rank),
		Box:   toBox(s.Box),
		Rows:  b.count("shard.rows", s.Rows),
		Items: b.count("shard.items", s.Items),
		Dtype: commonv1.DType(enum(b, "shard.dtype", s.DType, 0, layout.U8)),
		View:  toView(s.View),
	}
}

func fromShard(b *bound, p *commonv1.Shard) layout.Shard {
	return layout.Shard{
		State: b.count("shard.state", p.GetState()),
		Rank:  layout.Rank(b.rank("shard.rank", layout.Rank(p.GetRank()))),
		Box:   fromBox(p.GetBox()),
		Rows:  b.count("shard.rows", p.GetRows()),
		Items: b.count("shard.items", p.GetItems()),
		DType: layout.DType(enum(b, "shard.dtype", p.GetDtype(), 0, commonv1.DType(layout.U8))),
		View:  fromView(p.GetView()),
	}
}

// ToCapacity encodes a capacity.
func ToCapacity(c handoff.Capacity) *commonv1.Capacity {
	return &commonv1.Capacity{Blocks: c.Blocks, Slots: c.Slots, BlockTokens: c.BlockTokens}
}

// FromCapacity decodes a capacity.
func FromCapacity(p *commonv1.Capacity) (handoff.Capacity, error) {
	var b bound
	return fromCapacity(&b, p), b.err
}

func fromCapacity(b *bound, p *commonv1.Capacity) handoff.Capacity {
	return handoff.Capacity{
		Blocks:      b.count("capacity.blocks", p.GetBlocks()),
		Slots:       b.count("capacity.slots", p.GetSlots()),
		BlockTokens: b.count("capacity.block_tokens", p.GetBlockTokens()),
	}
}

func same(field string) func(*bound, string) string {
	return func(b *bound, s string) string { return b.str(field, s) }
}

func toAttach(b *bound, a handoff.Attach) *commonv1.Attach {
	b.count("capacity.blocks", a.Capacity.Blocks)
	b.count("capacity.slots", a.Capacity.Slots)
	b.count("capacity.block_tokens", a.Capacity.BlockTokens)
	return &commonv1.Attach{
		Group:    b.str("attach.group", a.Group),
		Instance: uint64(a.Instance),
		Rank:     b.rank("attach.rank", a.Rank),
		Ranks:    b.num("attach.ranks", a.Ranks, 0, MaxRanks),
		Model: &commonv1.ModelIdentity{
			Name:         b.str("attach.model.name", a.Model.Name),
			WeightsEpoch: a.Model.WeightsEpoch,
			Layout:       toModel(b, a.Model.Layout),
		},
		Shards:    each(b, "attach.shards", a.Shards, MaxShards, toShard),
		Buffers:   toBuffers(b, a.Buffers),
		Capacity:  ToCapacity(a.Capacity),
		Scheduler: commonv1.Scheduler(enum(b, "attach.scheduler", a.Scheduler, 0, handoff.SchedulerGroup)),
		OnDown:    commonv1.OnDown(enum(b, "attach.on_down", a.OnDown, 0, handoff.OnDownRecompute)),
		Pins:      each(b, "attach.pins", a.Pins, MaxPins, same("attach.pins")),
		Applied:   a.Applied,
		Held:      a.Held,
		Decisions: each(b, "attach.decisions", a.Decisions, MaxStated, toDecision),
		Imports:   each(b, "attach.imports", a.Imports, MaxPins, same("attach.imports")),
		Weights:   commonv1.WeightsPolicy(enum(b, "attach.weights", a.Weights, 0, handoff.WeightsAllow)),
		Draining:  a.Draining,
		Parts:     a.Parts,

		TellsBlocks: a.TellsBlocks,
	}
}

func fromAttach(b *bound, p *commonv1.Attach) handoff.Attach {
	return handoff.Attach{
		Group:    b.str("attach.group", p.GetGroup()),
		Instance: handoff.Instance(p.GetInstance()),
		Rank:     layout.Rank(b.rank("attach.rank", layout.Rank(p.GetRank()))),
		Ranks:    b.num("attach.ranks", p.GetRanks(), 0, MaxRanks),
		Model: handoff.ModelIdentity{
			Name:         b.str("attach.model.name", p.GetModel().GetName()),
			WeightsEpoch: p.GetModel().GetWeightsEpoch(),
			Layout:       fromModel(b, p.GetModel().GetLayout()),
		},
		Shards:    each(b, "attach.shards", p.GetShards(), MaxShards, fromShard),
		Buffers:   fromBuffers(b, p.GetBuffers()),
		Capacity:  fromCapacity(b, p.GetCapacity()),
		Scheduler: handoff.Scheduler(enum(b, "attach.scheduler", p.GetScheduler(), 0, commonv1.Scheduler(handoff.SchedulerGroup))),
		OnDown:    handoff.OnDown(enum(b, "attach.on_down", p.GetOnDown(), 0, commonv1.OnDown(handoff.OnDownRecompute))),
		Pins:      each(b, "attach.pins", p.GetPins(), MaxPins, same("attach.pins")),
		Applied:   p.GetApplied(),
		Held:      p.GetHeld(),
		Decisions: each(b, "attach.decisions", p.GetDecisions(), MaxStated, fromDecision),
		Imports:   each(b, "attach.imports", p.GetImports(), MaxPins, same("attach.imports")),
		Weights:   handoff.WeightsPolicy(enum(b, "attach.weights", p.GetWeights(), 0, commonv1.WeightsPolicy(handoff.WeightsAllow))),
		Draining:  p.GetDraining(),
		Parts:     p.GetParts(),

		TellsBlocks: p.GetTellsBlocks(),
	}
}

// ToGroup encodes the model, the shards and the members of a geometry.
func ToGroup(g handoff.Geometry) (*commonv1.Model, []*commonv1.Shard, []*commonv1.Member, error) {
	var b bound
	b.str("geometry.group", g.Group)
	m, ss := toModel(&b, g.Model), each(&b, "geometry.shards", g.Shards, MaxShards, toShard)
	return m, ss, each(&b, "geometry.members", g.Members, MaxRanks, toMember), b.err
}

// FromGroup decodes a geometry.
func FromGroup(group string, launch uint64, m *commonv1.Model, ss []*commonv1.Shard, ms []*commonv1.Member) (handoff.Geometry, error) {
	var b bound
	g := handoff.Geometry{Group: b.str("geometry.group", group), Instance: handoff.Instance(launch), Model: fromModel(&b, m),
		Shards:  each(&b, "geometry.shards", ss, MaxShards, fromShard),
		Members: each(&b, "geometry.members", ms, MaxRanks, fromMember)}
	return g, b.err
}
