package codec

import (
	commonv1 "github.com/batonkv/baton/proto/common/v1"
	"github.com/batonkv/baton/sidecar/handoff"
)

const maxBlockTokens = 1 << 16 // of one block

// ToBlockEvent encodes what is told of a prefix cache.
func ToBlockEvent(e handoff.BlockEvent) (*commonv1.BlockEvent, error) {
	var b bound
	return toBlockEvent(&b, e), b.err
}

// FromBlockEvent decodes what is told of a prefix cache.
func FromBlockEvent(p *commonv1.BlockEvent) (handoff.BlockEvent, error) {
	var b bound
	return fromBlockEvent(&b, p), b.err
}

func toBlockEvent(b *bound, e handoff.BlockEvent) *commonv1.BlockEvent {
	return &commonv1.BlockEvent{
		Kind:        commonv1.BlockEventKind(enum(b, "block_event.kind", e.Kind, handoff.BlocksStored, handoff.BlocksCleared)),
		Parent:      e.Parent,
		Blocks:      each(b, "block_event.blocks", e.Blocks, handoff.MaxEventBlocks, toStored),
		BlockTokens: b.num("block_event.block_tokens", e.BlockTokens, 0, maxBlockTokens),
		Salt:        toSalt(b, e.Salt),
		Removed:     clone(b, "block_event.removed", e.Removed, handoff.MaxEventBlocks),
		Lost:        e.Lost,
	}
}

func fromBlockEvent(b *bound, p *commonv1.BlockEvent) handoff.BlockEvent {
	return handoff.BlockEvent{
		Kind:        handoff.BlockKind(enum(b, "block_event.kind", p.GetKind(), commonv1.BlockEventKind(handoff.BlocksStored), commonv1.BlockEventKind(handoff.BlocksCleared))),
		Parent:      p.GetParent(),
		Blocks:      each(b, "block_event.blocks", p.GetBlocks(), handoff.MaxEventBlocks, fromStored),
		BlockTokens: b.num("block_event.block_tokens", p.GetBlockTokens(), 0, maxBlockTokens),
		Salt:        fromSalt(b, p.GetSalt()),
		Removed:     list(b, "block_event.removed", p.GetRemoved(), handoff.MaxEventBlocks),
		Lost:        p.GetLost(),
	}
}

func toStored(b *bound, s handoff.StoredBlock) *commonv1.StoredBlock {
	return &commonv1.StoredBlock{Id: s.ID, Tokens: clone(b, "block_event.tokens", s.Tokens, maxBlockTokens)}
}

func fromStored(b *bound, p *commonv1.StoredBlock) handoff.StoredBlock {
	return handoff.StoredBlock{ID: p.GetId(), Tokens: list(b, "block_event.tokens", p.GetTokens(), maxBlockTokens)}
}
