package codec

import (
	commonv1 "github.com/batonkv/baton/proto/common/v1"
	peerv1 "github.com/batonkv/baton/proto/peer/v1"
	"github.com/batonkv/baton/sidecar/handoff"
	"github.com/batonkv/baton/transfer/layout"
)

// MaxMoves bounds the boxes of one StagedWant.
const MaxMoves = 1 << 16

// encodeStaged encodes what a reading rank and the rank that it reads say of staging.
func encodeStaged(b *bound, p *peerv1.PeerMessage, m handoff.PeerMessage) bool {
	switch m := m.(type) {
	case handoff.StagedWant:
		p.Message = &peerv1.PeerMessage_StagedWant{StagedWant: &peerv1.StagedWant{Of: toCheck(b, m.Of), Pair: m.Pair, Part: m.Part,
			Chunks: b.count("staged.chunks", m.Chunks), Tokens: toSpan(m.Tokens), Chunk: b.bytes64("staged.chunk_bytes", m.Chunk), Moves: each(b, "staged.moves", m.Moves, MaxMoves, toMove)}}
	case handoff.StagedOffer:
		p.Message = &peerv1.PeerMessage_StagedOffer{StagedOffer: &peerv1.StagedOffer{Job: toJob(m.Job), Seq: b.count("staged.seq", m.Seq),
			Offer: m.Offer, Chunk: b.count("staged.chunk", m.Chunk), Wire: m.Wire, Port: b.num("staged.port", m.Port, 0, maxPort)}}
	case handoff.StagedCredit:
		p.Message = &peerv1.PeerMessage_StagedCredit{StagedCredit: &peerv1.StagedCredit{Offer: m.Offer}}
	case handoff.StagedStop:
		p.Message = &peerv1.PeerMessage_StagedStop{StagedStop: &peerv1.StagedStop{Job: toJob(m.Job)}}
	case handoff.StagedGone:
		p.Message = &peerv1.PeerMessage_StagedGone{StagedGone: &peerv1.StagedGone{Job: toJob(m.Job), Why: uint32(m.Why)}}
	default:
		return false
	}
	return true
}

func decodeStaged(b *bound, p *peerv1.PeerMessage) handoff.PeerMessage {
	switch p := p.GetMessage().(type) {
	case *peerv1.PeerMessage_StagedWant:
		w := p.StagedWant
		return handoff.StagedWant{Of: fromCheck(b, w.GetOf()), Pair: w.GetPair(), Part: w.GetPart(), Chunks: b.count("staged.chunks", w.GetChunks()),
			Tokens: fromSpan(w.GetTokens()), Chunk: b.bytes64("staged.chunk_bytes", w.GetChunk()), Moves: each(b, "staged.moves", w.GetMoves(), MaxMoves, fromMove)}
	case *peerv1.PeerMessage_StagedOffer:
		o := p.StagedOffer
		return handoff.StagedOffer{Job: fromJob(b, o.GetJob()), Seq: b.count("staged.seq", o.GetSeq()), Offer: o.GetOffer(),
			Chunk: b.count("staged.chunk", o.GetChunk()), Wire: o.GetWire(), Port: b.num("staged.port", o.GetPort(), 0, maxPort)}
	case *peerv1.PeerMessage_StagedCredit:
		return handoff.StagedCredit{Offer: p.StagedCredit.GetOffer()}
	case *peerv1.PeerMessage_StagedStop:
		return handoff.StagedStop{Job: fromJob(b, p.StagedStop.GetJob())}
	case *peerv1.PeerMessage_StagedGone:
		why := p.StagedGone.GetWhy()
		if why > 255 {
			b.fail("staged.why", "%d: at most 255", why)
		}
		return handoff.StagedGone{Job: fromJob(b, p.StagedGone.GetJob()), Why: uint8(why)}
	}
	return nil
}

const maxPort = 1<<16 - 1

func toJob(j handoff.StagedJob) *peerv1.StagedJob {
	return &peerv1.StagedJob{Handoff: sum(j.Handoff), Attempt: uint64(j.Attempt), Pair: j.Pair, Part: j.Part}
}

func fromJob(b *bound, p *peerv1.StagedJob) handoff.StagedJob {
	return handoff.StagedJob{Handoff: b.key("staged.job", p.GetHandoff()), Attempt: handoff.Attempt(p.GetAttempt()), Pair: p.GetPair(), Part: p.GetPart()}
}

func toMove(b *bound, m handoff.StagedMove) *peerv1.StagedMove {
	return &peerv1.StagedMove{State: b.count("staged.state", m.State), Box: toBox(m.Box), Rows: b.count("staged.rows", m.Rows),
		Dtype: commonv1.DType(enum(b, "staged.dtype", m.DType, 0, layout.U8))}
}

func fromMove(b *bound, p *peerv1.StagedMove) handoff.StagedMove {
	return handoff.StagedMove{State: b.count("staged.state", p.GetState()), Box: fromBox(p.GetBox()), Rows: b.count("staged.rows", p.GetRows()),
		DType: layout.DType(enum(b, "staged.dtype", p.GetDtype(), 0, commonv1.DType(layout.U8)))}
}
