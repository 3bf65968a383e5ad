package codec

import (
	commonv1 "github.com/batonkv/baton/proto/common/v1"
	enginev1 "github.com/batonkv/baton/proto/engine/v1"
	peerv1 "github.com/batonkv/baton/proto/peer/v1"
	"github.com/batonkv/baton/sidecar/handoff"
)

func toReach(b *bound, r handoff.Reach) *commonv1.Reach {
	if r == (handoff.Reach{}) {
		return nil
	}
	return &commonv1.Reach{Tokens: b.num("reach.tokens", r.Tokens, 0, MaxTokens), Ahead: b.num("reach.ahead", r.Ahead, 0, MaxTokens),
		Layers: b.count("reach.layers", r.Layers)}
}

func fromReach(b *bound, p *commonv1.Reach) handoff.Reach {
	return handoff.Reach{Tokens: b.num("reach.tokens", p.GetTokens(), 0, MaxTokens), Ahead: b.num("reach.ahead", p.GetAhead(), 0, MaxTokens),
		Layers: b.count("reach.layers", p.GetLayers())}
}

func toExtent(b *bound, e handoff.Extent) *commonv1.Extent {
	if e == (handoff.Extent{}) {
		return nil
	}
	return &commonv1.Extent{More: e.More, Part: b.part("extent.part", e.Part), Reach: toReach(b, e.Reach)}
}

func fromExtent(b *bound, p *commonv1.Extent) handoff.Extent {
	return handoff.Extent{More: p.GetMore(), Part: b.part("extent.part", p.GetPart()), Reach: fromReach(b, p.GetReach())}
}

func toPart(b *bound, m handoff.Part) *peerv1.Part {
	return &peerv1.Part{Id: toID(b, m.ID), Attempt: uint64(m.Attempt), Reserve: m.Reserve, Pins: each(b, "part.pins", m.Pins, MaxRanks, toPin),
		Extent: toExtent(b, m.Extent), Resume: toResume(b, m.Resume)}
}

func fromPart(b *bound, p *peerv1.Part) handoff.Part {
	return handoff.Part{ID: fromID(b, p.GetId()), Attempt: handoff.Attempt(p.GetAttempt()), Reserve: p.GetReserve(),
		Pins: each(b, "part.pins", p.GetPins(), MaxRanks, fromPin), Extent: fromExtent(b, p.GetExtent()), Resume: fromResume(b, p.GetResume())}
}

func toExportPart(b *bound, m handoff.ExportPart) *enginev1.ExportPart {
	return &enginev1.ExportPart{
		Label:        b.str("export_part.label", m.Label),
		Part:         b.part("export_part.part", m.Part),
		Blocks:       clone(b, "export_part.blocks", m.Blocks, MaxBlocks),
		Tokens:       b.num("export_part.tokens", m.Tokens, 0, MaxTokens),
		Position:     b.num("export_part.position", m.Position, 0, MaxTokens),
		Reach:        toReach(b, m.Reach),
		WeightsEpoch: m.WeightsEpoch,
		Salt:         toSalt(b, m.Salt),
		Fence:        m.Fence,
	}
}

func fromExportPart(b *bound, p *enginev1.ExportPart) handoff.ExportPart {
	return handoff.ExportPart{
		Label:        b.str("export_part.label", p.GetLabel()),
		Part:         b.part("export_part.part", p.GetPart()),
		Blocks:       list(b, "export_part.blocks", p.GetBlocks(), MaxBlocks),
		Tokens:       b.num("export_part.tokens", p.GetTokens(), 0, MaxTokens),
		Position:     b.num("export_part.position", p.GetPosition(), 0, MaxTokens),
		Reach:        fromReach(b, p.GetReach()),
		WeightsEpoch: p.GetWeightsEpoch(),
		Salt:         fromSalt(b, p.GetSalt()),
		Fence:        p.GetFence(),
	}
}
