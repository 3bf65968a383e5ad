package codec

import (
	"time"

	peerv1 "github.com/batonkv/baton/proto/peer/v1"
	"github.com/batonkv/baton/sidecar/handoff"
)

func toStatus(b *bound, field string, s handoff.Status) peerv1.Status {
	return peerv1.Status(enum(b, field, s, handoff.OK, handoff.Refused))
}

func fromStatus(b *bound, field string, s peerv1.Status) handoff.Status {
	return handoff.Status(enum(b, field, s, peerv1.Status(handoff.OK), peerv1.Status(handoff.Refused)))
}

func toGeometry(b *bound, g handoff.Geometry) *peerv1.Geometry {
	return &peerv1.Geometry{
		Group:    b.str("geometry.group", g.Group),
		Instance: uint64(g.Instance),
		Model:    toModel(b, g.Model),
		Shards:   each(b, "geometry.shards", g.Shards, MaxShards, toShard),
		Members:  each(b, "geometry.members", g.Members, MaxRanks, toMember),
	}
}

func fromGeometry(b *bound, p *peerv1.Geometry) handoff.Geometry {
	return handoff.Geometry{
		Group:    b.str("geometry.group", p.GetGroup()),
		Instance: handoff.Instance(p.GetInstance()),
		Model:    fromModel(b, p.GetModel()),
		Shards:   each(b, "geometry.shards", p.GetShards(), MaxShards, fromShard),
		Members:  each(b, "geometry.members", p.GetMembers(), MaxRanks, fromMember),
	}
}

func toLeased(b *bound, m handoff.Leased) *peerv1.Leased {
	return &peerv1.Leased{Id: toID(b, m.ID), Label: b.str("leased.label", m.Label),
		Pin: uint64(m.Pin), HoldNs: int64(b.dur("leased.hold_ns", m.Hold))}
}

func fromLeased(b *bound, p *peerv1.Leased) handoff.Leased {
	return handoff.Leased{ID: fromID(b, p.GetId()), Label: b.str("leased.label", p.GetLabel()),
		Pin: handoff.PinID(p.GetPin()), Hold: b.dur("leased.hold_ns", time.Duration(p.GetHoldNs()))}
}

func toLanded(b *bound, m handoff.Landed) *peerv1.Landed {
	return &peerv1.Landed{
		Id:        toID(b, m.ID),
		Attempt:   uint64(m.Attempt),
		N:         m.N,
		Ok:        m.OK,
		Quiet:     m.Quiet,
		Why:       b.text("landed.why", m.Why, MaxText),
		Differs:   m.Differs,
		Bytes:     b.bytes64("landed.bytes", m.Bytes),
		ElapsedNs: int64(b.dur("landed.elapsed_ns", m.Elapsed)),
	}
}

func fromLanded(b *bound, p *peerv1.Landed) handoff.Landed {
	return handoff.Landed{
		ID:      fromID(b, p.GetId()),
		Attempt: handoff.Attempt(p.GetAttempt()),
		N:       p.GetN(),
		OK:      p.GetOk(),
		Quiet:   p.GetQuiet(),
		Why:     b.text("landed.why", p.GetWhy(), MaxText),
		Differs: p.GetDiffers(),
		Bytes:   b.bytes64("landed.bytes", p.GetBytes()),
		Elapsed: b.dur("landed.elapsed_ns", time.Duration(p.GetElapsedNs())),
	}
}

func toOpened(b *bound, m handoff.Opened) *peerv1.Opened {
	return &peerv1.Opened{
		Id:           toID(b, m.ID),
		Attempt:      uint64(m.Attempt),
		Status:       toStatus(b, "opened.status", m.Status),
		Why:          b.text("opened.why", m.Why, MaxText),
		Plan:         sum(m.Plan),
		Members:      each(b, "opened.members", m.Members, MaxRanks, toMember),
		Pins:         each(b, "opened.pins", m.Pins, MaxRanks, toPin),
		WeightsEpoch: m.WeightsEpoch,
		Tokens:       b.num("opened.tokens", m.Tokens, 0, MaxTokens),
		Position:     b.num("opened.position", m.Position, 0, MaxTokens),
		Resume:       toResume(b, m.Resume),
		Salt:         toSalt(b, m.Salt),
		Extent:       toExtent(b, m.Extent),
	}
}

func fromOpened(b *bound, p *peerv1.Opened) handoff.Opened {
	return handoff.Opened{
		ID:           fromID(b, p.GetId()),
		Attempt:      handoff.Attempt(p.GetAttempt()),
		Status:       fromStatus(b, "opened.status", p.GetStatus()),
		Why:          b.text("opened.why", p.GetWhy(), MaxText),
		Plan:         b.digest("opened.plan", p.GetPlan()),
		Members:      each(b, "opened.members", p.GetMembers(), MaxRanks, fromMember),
		Pins:         each(b, "opened.pins", p.GetPins(), MaxRanks, fromPin),
		WeightsEpoch: p.GetWeightsEpoch(),
		Tokens:       b.num("opened.tokens", p.GetTokens(), 0, MaxTokens),
		Position:     b.num("opened.position", p.GetPosition(), 0, MaxTokens),
		Resume:       fromResume(b, p.GetResume()),
		Salt:         fromSalt(b, p.GetSalt()),
		Extent:       fromExtent(b, p.GetExtent()),
	}
}

func toCheck(b *bound, m handoff.Check) *peerv1.Check {
	return &peerv1.Check{Id: toID(b, m.ID), Attempt: uint64(m.Attempt), Pin: uint64(m.Pin), Generation: uint64(m.Generation)}
}

func fromCheck(b *bound, p *peerv1.Check) handoff.Check {
	return handoff.Check{ID: fromID(b, p.GetId()), Attempt: handoff.Attempt(p.GetAttempt()),
		Pin: handoff.PinID(p.GetPin()), Generation: handoff.Generation(p.GetGeneration())}
}
