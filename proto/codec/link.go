package codec

import (
	"math"
	"time"

	commonv1 "github.com/batonkv/baton/proto/common/v1"
	peerv1 "github.com/batonkv/baton/proto/peer/v1"
	"github.com/batonkv/baton/sidecar/handoff"
	"github.com/batonkv/baton/transfer/choice"
)

// encodeLink encodes what ranks say of their links.
func encodeLink(b *bound, p *peerv1.PeerMessage, m handoff.PeerMessage) bool {
	switch m := m.(type) {
	case handoff.ProbeAsk:
		p.Message = &peerv1.PeerMessage_ProbeAsk{ProbeAsk: &peerv1.ProbeAsk{N: m.N, Bytes: b.bytes64("probe.bytes", m.Bytes)}}
	case handoff.ProbeAt:
		p.Message = &peerv1.PeerMessage_ProbeAt{ProbeAt: &peerv1.ProbeAt{N: m.N, Wire: m.Wire, Port: b.num("probe.port", m.Port, 0, maxPort),
			Bytes: b.bytes64("probe.bytes", m.Bytes), Busy: m.Busy, Why: b.text("probe.why", m.Why, MaxText)}}
	case handoff.LinkNews:
		p.Message = &peerv1.PeerMessage_LinkNews{LinkNews: &peerv1.LinkNews{Link: toLink(b, m.Link)}}
	default:
		return false
	}
	return true
}

func decodeLink(b *bound, p *peerv1.PeerMessage) handoff.PeerMessage {
	switch p := p.GetMessage().(type) {
	case *peerv1.PeerMessage_ProbeAsk:
		return handoff.ProbeAsk{N: p.ProbeAsk.GetN(), Bytes: b.bytes64("probe.bytes", p.ProbeAsk.GetBytes())}
	case *peerv1.PeerMessage_ProbeAt:
		a := p.ProbeAt
		return handoff.ProbeAt{N: a.GetN(), Wire: a.GetWire(), Port: b.num("probe.port", a.GetPort(), 0, maxPort),
			Bytes: b.bytes64("probe.bytes", a.GetBytes()), Busy: a.GetBusy(), Why: b.text("probe.why", a.GetWhy(), MaxText)}
	case *peerv1.PeerMessage_LinkNews:
		return handoff.LinkNews{Link: fromLink(b, p.LinkNews.GetLink())}
	}
	return nil
}

// ToLink encodes a link.
func ToLink(l handoff.Link) (*commonv1.Link, error) {
	var b bound
	p := toLink(&b, l)
	return p, b.err
}

// FromLink decodes a link.
func FromLink(p *commonv1.Link) (handoff.Link, error) {
	var b bound
	l := fromLink(&b, p)
	return l, b.err
}

// ToOffers encodes what an end offers.
func ToOffers(os []choice.Offer) ([]*commonv1.Transport, error) {
	var b bound
	p := each(&b, "transports", os, MaxTransports, toOffer)
	return p, b.err
}

// FromOffers decodes what an end offers.
func FromOffers(p []*commonv1.Transport) ([]choice.Offer, error) {
	var b bound
	os := each(&b, "transports", p, MaxTransports, fromOffer)
	return os, b.err
}

func toLink(b *bound, l handoff.Link) *commonv1.Link {
	c, f := l.Choice, l.Finding
	return &commonv1.Link{Reader: toMember(b, l.Reader), Peer: toMember(b, l.Peer),
		Transport: b.str("link.transport", c.Transport), Code: b.str("link.code", string(c.Code)), Why: b.text("link.why", c.Why, MaxText),
		Way: b.str("link.way", string(c.Way)), Caveat: b.text("link.caveat", c.Caveat, MaxText), AgeNs: int64(b.dur("link.age", l.Age)),
		Rate: b.rate("link.rate", l.Measured.Rate), LatencyNs: int64(b.dur("link.latency", l.Measured.Latency)), AgoNs: int64(b.dur("link.ago", l.Ago)),
		Expected: b.rate("link.expected", l.Expected), Against: b.text("link.against", l.Against, MaxText),
		Verdict: b.str("link.verdict", string(f.Verdict)), Cause: b.text("link.cause", f.Cause, MaxText), Fix: b.text("link.fix", f.Fix, MaxText)}
}

func fromLink(b *bound, p *commonv1.Link) handoff.Link {
	return handoff.Link{Reader: fromMember(b, p.GetReader()), Peer: fromMember(b, p.GetPeer()),
		Choice: choice.Choice{Transport: b.str("link.transport", p.GetTransport()), Code: choice.Code(b.str("link.code", p.GetCode())),
			Why: b.text("link.why", p.GetWhy(), MaxText), Way: choice.Way(b.str("link.way", p.GetWay())), Caveat: b.text("link.caveat", p.GetCaveat(), MaxText)},
		Age:      b.dur("link.age", time.Duration(p.GetAgeNs())),
		Measured: choice.Measured{Rate: b.rate("link.rate", p.GetRate()), Latency: b.dur("link.latency", time.Duration(p.GetLatencyNs()))},
		Ago:      b.dur("link.ago", time.Duration(p.GetAgoNs())), Expected: b.rate("link.expected", p.GetExpected()), Against: b.text("link.against", p.GetAgainst(), MaxText),
		Finding: choice.Finding{Verdict: choice.Verdict(b.str("link.verdict", p.GetVerdict())), Cause: b.text("link.cause", p.GetCause(), MaxText),
			Fix: b.text("link.fix", p.GetFix(), MaxText)}}
}

// rate is a number of bytes a second.
func (b *bound) rate(field string, v float64) float64 {
	if !(v >= 0) || math.IsInf(v, 0) {
		b.fail(field, "%v: want a number from 0", v)
		return 0
	}
	return v
}
