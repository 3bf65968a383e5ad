package codec

import (
	"time"

	peerv1 "github.com/batonkv/baton/proto/peer/v1"
	"github.com/batonkv/baton/sidecar/handoff"
	"github.com/batonkv/baton/transfer/choice"
)

// Hello is the first message of a peer session, each way.
type Hello struct {
	Self handoff.Member
	Host string         // host id: equal on one host only
	Want handoff.Member // by the dialer: whom it expects
	End  choice.End     // how Self can be read; its Host is Host, its Name that of Self
}

// EncodeHello encodes the first message of a peer session.
func EncodeHello(h Hello) (*peerv1.PeerMessage, error) {
	var b bound
	return done(&b, &peerv1.PeerMessage{Message: &peerv1.PeerMessage_Hello{Hello: &peerv1.Hello{
		Self: toMember(&b, h.Self), Host: b.str("hello.host", h.Host), Want: toMember(&b, h.Want), End: toEnd(&b, h.End)}}})
}

// DecodeHello decodes the first message of a peer session.
func DecodeHello(p *peerv1.PeerMessage) (Hello, error) {
	var b bound
	m, ok := p.GetMessage().(*peerv1.PeerMessage_Hello)
	if !ok {
		b.fail("message", "want hello first")
		return Hello{}, b.err
	}
	h := Hello{Self: fromMember(&b, m.Hello.GetSelf()), Host: b.str("hello.host", m.Hello.GetHost()),
		Want: fromMember(&b, m.Hello.GetWant())}
	h.End = fromEnd(&b, m.Hello.GetEnd())
	h.End.Name, h.End.Host = h.Self.Name(), h.Host
	return h, b.err
}

// EncodePeer encodes a message between sidecars.
func EncodePeer(m handoff.PeerMessage) (*peerv1.PeerMessage, error) {
	var b bound
	p := &peerv1.PeerMessage{}
	if !encodeInside(&b, p, m) && !encodeBetween(&b, p, m) && !encodeStaged(&b, p, m) && !encodeLink(&b, p, m) {
		b.fail("message", "unknown kind %T", m)
	}
	return done(&b, p)
}

// DecodePeer decodes a message between sidecars. A Hello is refused: it comes once,
// before all else.
func DecodePeer(p *peerv1.PeerMessage) (handoff.PeerMessage, error) {
	var b bound
	m := decodeInside(&b, p)
	if m == nil {
		m = decodeBetween(&b, p)
	}
	if m == nil {
		m = decodeStaged(&b, p)
	}
	if m == nil {
		m = decodeLink(&b, p)
	}
	if m == nil {
		b.fail("message", "empty, a second hello, or of a newer version")
	}
	if b.err != nil {
		return nil, b.err
	}
	return m, nil
}

// encodeInside encodes what travels inside a group.
func encodeInside(b *bound, p *peerv1.PeerMessage, m handoff.PeerMessage) bool {
	switch m := m.(type) {
	case handoff.Join:
		p.Message = &peerv1.PeerMessage_Join{Join: &peerv1.Join{Attach: toAttach(b, m.Attach),
			Applied: m.Applied, Held: m.Held}}
	case handoff.Roster:
		p.Message = &peerv1.PeerMessage_Roster{Roster: &peerv1.Roster{Instance: uint64(m.Instance),
			Members: each(b, "roster.members", m.Members, MaxRanks, toMember), Geometry: toGeometry(b, m.Geometry)}}
	case handoff.Pinned:
		p.Message = &peerv1.PeerMessage_Pinned{Pinned: &peerv1.Pinned{Label: b.str("pinned.label", m.Label), Pin: toPin(b, m.Pin),
			WeightsEpoch: m.WeightsEpoch, Extent: toExtent(b, m.Extent)}}
	case handoff.Leased:
		p.Message = &peerv1.PeerMessage_Leased{Leased: toLeased(b, m)}
	case handoff.Extend:
		p.Message = &peerv1.PeerMessage_Extend{Extend: &peerv1.Extend{Id: toID(b, m.ID), Pin: uint64(m.Pin), N: m.N,
			HoldNs: int64(b.dur("extend.hold_ns", m.Hold))}}
	case handoff.Extended:
		p.Message = &peerv1.PeerMessage_Extended{Extended: &peerv1.Extended{Id: toID(b, m.ID), Pin: uint64(m.Pin), N: m.N}}
	case handoff.Unpin:
		p.Message = &peerv1.PeerMessage_Unpin{Unpin: &peerv1.Unpin{Id: toID(b, m.ID), Pin: uint64(m.Pin)}}
	case handoff.Landed:
		p.Message = &peerv1.PeerMessage_Landed{Landed: toLanded(b, m)}
	case handoff.RankHeld:
		p.Message = &peerv1.PeerMessage_RankHeld{RankHeld: &peerv1.RankHeld{N: m.N}}
	case handoff.RankApplied:
		p.Message = &peerv1.PeerMessage_RankApplied{RankApplied: &peerv1.RankApplied{N: m.N}}
	case handoff.RankReserved:
		p.Message = &peerv1.PeerMessage_RankReserved{RankReserved: &peerv1.RankReserved{Reserved: toReserved(b, m.Reserved)}}
	case handoff.RankAcked:
		p.Message = &peerv1.PeerMessage_RankAcked{RankAcked: &peerv1.RankAcked{Ack: toAck(m.Ack)}}
	case handoff.Decision:
		p.Message = &peerv1.PeerMessage_Decision{Decision: toDecision(b, m)}
	default:
		return false
	}
	return true
}

func decodeInside(b *bound, p *peerv1.PeerMessage) handoff.PeerMessage {
	switch p := p.GetMessage().(type) {
	case *peerv1.PeerMessage_Join:
		return handoff.Join{Attach: fromAttach(b, p.Join.GetAttach()), Applied: p.Join.GetApplied(),
			Held: p.Join.GetHeld()}
	case *peerv1.PeerMessage_Roster:
		return handoff.Roster{Instance: handoff.Instance(p.Roster.GetInstance()),
			Members:  each(b, "roster.members", p.Roster.GetMembers(), MaxRanks, fromMember),
			Geometry: fromGeometry(b, p.Roster.GetGeometry())}
	case *peerv1.PeerMessage_Pinned:
		return handoff.Pinned{Label: b.str("pinned.label", p.Pinned.GetLabel()), Pin: fromPin(b, p.Pinned.GetPin()),
			WeightsEpoch: p.Pinned.GetWeightsEpoch(), Extent: fromExtent(b, p.Pinned.GetExtent())}
	case *peerv1.PeerMessage_Leased:
		return fromLeased(b, p.Leased)
	case *peerv1.PeerMessage_Extend:
		return handoff.Extend{ID: fromID(b, p.Extend.GetId()), Pin: handoff.PinID(p.Extend.GetPin()), N: p.Extend.GetN(),
			Hold: b.dur("extend.hold_ns", time.Duration(p.Extend.GetHoldNs()))}
	case *peerv1.PeerMessage_Extended:
		return handoff.Extended{ID: fromID(b, p.Extended.GetId()), Pin: handoff.PinID(p.Extended.GetPin()), N: p.Extended.GetN()}
	case *peerv1.PeerMessage_Unpin:
		return handoff.Unpin{ID: fromID(b, p.Unpin.GetId()), Pin: handoff.PinID(p.Unpin.GetPin())}
	case *peerv1.PeerMessage_Landed:
		return fromLanded(b, p.Landed)
	case *peerv1.PeerMessage_RankHeld:
		return handoff.RankHeld{N: p.RankHeld.GetN()}
	case *peerv1.PeerMessage_RankApplied:
		return handoff.RankApplied{N: p.RankApplied.GetN()}
	case *peerv1.PeerMessage_RankReserved:
		return handoff.RankReserved{Reserved: fromReserved(b, p.RankReserved.GetReserved())}
	case *peerv1.PeerMessage_RankAcked:
		return handoff.RankAcked{Ack: fromAck(p.RankAcked.GetAck())}
	case *peerv1.PeerMessage_Decision:
		return fromDecision(b, p.Decision)
	}
	return nil
}

// encodeBetween encodes what travels between groups.
func encodeBetween(b *bound, p *peerv1.PeerMessage, m handoff.PeerMessage) bool {
	switch m := m.(type) {
	case handoff.WantGeometry:
		p.Message = &peerv1.PeerMessage_WantGeometry{WantGeometry: &peerv1.WantGeometry{}}
	case handoff.Geometry:
		p.Message = &peerv1.PeerMessage_Geometry{Geometry: toGeometry(b, m)}
	case handoff.WantBuffers:
		p.Message = &peerv1.PeerMessage_WantBuffers{WantBuffers: &peerv1.WantBuffers{Pin: uint64(m.Pin)}}
	case handoff.Buffers:
		p.Message = &peerv1.PeerMessage_Buffers{Buffers: &peerv1.Buffers{Host: b.str("buffers.host", m.Host),
			Socket: b.str("buffers.socket", m.Socket), Why: b.text("buffers.why", m.Why, MaxText),
			Cards: toCards(b, m.Cards), Chunk: b.bytes64("buffers.chunk", m.Chunk)}}
	case handoff.Open:
		p.Message = &peerv1.PeerMessage_Open{Open: &peerv1.Open{Id: toID(b, m.ID), Key: sum(m.Key),
			Importer: toImporter(b, m.Importer), Attempt: uint64(m.Attempt), Plan: sum(m.Plan), Parts: m.Parts}}
	case handoff.Opened:
		p.Message = &peerv1.PeerMessage_Opened{Opened: toOpened(b, m)}
	case handoff.Part:
		p.Message = &peerv1.PeerMessage_Part{Part: toPart(b, m)}
	case handoff.Check:
		p.Message = &peerv1.PeerMessage_Check{Check: toCheck(b, m)}
	case handoff.Checked:
		p.Message = &peerv1.PeerMessage_Checked{Checked: &peerv1.Checked{Check: toCheck(b, m.Check), Held: m.Held}}
	case handoff.Done:
		p.Message = &peerv1.PeerMessage_Done{Done: &peerv1.Done{Id: toID(b, m.ID),
			Importer: toImporter(b, m.Importer), Attempt: uint64(m.Attempt)}}
	case handoff.DoneAck:
		p.Message = &peerv1.PeerMessage_DoneAck{DoneAck: &peerv1.DoneAck{Id: toID(b, m.ID), Attempt: uint64(m.Attempt),
			Status: toStatus(b, "done_ack.status", m.Status)}}
	case handoff.Withdraw:
		p.Message = &peerv1.PeerMessage_Withdraw{Withdraw: &peerv1.Withdraw{Id: toID(b, m.ID),
			Importer: toImporter(b, m.Importer), Attempt: uint64(m.Attempt)}}
	default:
		return false
	}
	return true
}

func decodeBetween(b *bound, p *peerv1.PeerMessage) handoff.PeerMessage {
	switch p := p.GetMessage().(type) {
	case *peerv1.PeerMessage_WantGeometry:
		return handoff.WantGeometry{}
	case *peerv1.PeerMessage_Geometry:
		return fromGeometry(b, p.Geometry)
	case *peerv1.PeerMessage_WantBuffers:
		return handoff.WantBuffers{Pin: handoff.PinID(p.WantBuffers.GetPin())}
	case *peerv1.PeerMessage_Buffers:
		return handoff.Buffers{Host: b.str("buffers.host", p.Buffers.GetHost()),
			Socket: b.str("buffers.socket", p.Buffers.GetSocket()), Why: b.text("buffers.why", p.Buffers.GetWhy(), MaxText),
			Cards: fromCards(b, p.Buffers.GetCards()), Chunk: b.bytes64("buffers.chunk", p.Buffers.GetChunk())}
	case *peerv1.PeerMessage_Open:
		return handoff.Open{ID: fromID(b, p.Open.GetId()), Key: b.key("open.key", p.Open.GetKey()),
			Importer: fromImporter(b, p.Open.GetImporter()), Attempt: handoff.Attempt(p.Open.GetAttempt()),
			Plan: b.digest("open.plan", p.Open.GetPlan()), Parts: p.Open.GetParts()}
	case *peerv1.PeerMessage_Opened:
		return fromOpened(b, p.Opened)
	case *peerv1.PeerMessage_Part:
		return fromPart(b, p.Part)
	case *peerv1.PeerMessage_Check:
		return fromCheck(b, p.Check)
	case *peerv1.PeerMessage_Checked:
		return handoff.Checked{Check: fromCheck(b, p.Checked.GetCheck()), Held: p.Checked.GetHeld()}
	case *peerv1.PeerMessage_Done:
		return handoff.Done{ID: fromID(b, p.Done.GetId()), Importer: fromImporter(b, p.Done.GetImporter()),
			Attempt: handoff.Attempt(p.Done.GetAttempt())}
	case *peerv1.PeerMessage_DoneAck:
		return handoff.DoneAck{ID: fromID(b, p.DoneAck.GetId()), Attempt: handoff.Attempt(p.DoneAck.GetAttempt()),
			Status: fromStatus(b, "done_ack.status", p.DoneAck.GetStatus())}
	case *peerv1.PeerMessage_Withdraw:
		return handoff.Withdraw{ID: fromID(b, p.Withdraw.GetId()), Importer: fromImporter(b, p.Withdraw.GetImporter()),
			Attempt: handoff.Attempt(p.Withdraw.GetAttempt())}
	}
	return nil
}
