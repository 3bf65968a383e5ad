package codec

import (
	commonv1 "github.com/batonkv/baton/proto/common/v1"
	"github.com/batonkv/baton/transfer/choice"
)

// MaxTransports bounds what one end offers.
const MaxTransports = 16

func toOffer(b *bound, o choice.Offer) *commonv1.Transport {
	return &commonv1.Transport{Name: b.str("transport.name", o.Name), Protocol: b.str("transport.protocol", o.Protocol),
		Missing: b.str("transport.missing", o.Missing)}
}

func fromOffer(b *bound, p *commonv1.Transport) choice.Offer {
	return choice.Offer{Name: b.str("transport.name", p.GetName()), Protocol: b.str("transport.protocol", p.GetProtocol()),
		Missing: b.str("transport.missing", p.GetMissing())}
}

func toEnd(b *bound, e choice.End) *commonv1.LinkEnd {
	return &commonv1.LinkEnd{Transports: each(b, "end.transports", e.Offers, MaxTransports, toOffer), PidNamespace: b.str("end.pid_namespace", e.Process.PIDs),
		User: e.Process.User, Ptrace: e.Process.Ptrace, Yama: uint32(e.Process.Yama),
		Rdma: b.bytes64("end.rdma", e.Process.RDMA), Speed: b.bytes64("end.speed", e.Speed)}
}

func fromEnd(b *bound, p *commonv1.LinkEnd) choice.End {
	if p.GetYama() > 255 {
		b.fail("end.yama", "%d: want 0 to 255", p.GetYama())
	}
	return choice.End{Offers: each(b, "end.transports", p.GetTransports(), MaxTransports, fromOffer), Speed: b.bytes64("end.speed", p.GetSpeed()),
		Process: choice.Process{PIDs: b.str("end.pid_namespace", p.GetPidNamespace()), User: p.GetUser(), Ptrace: p.GetPtrace(), Yama: uint8(p.GetYama()),
			RDMA: b.bytes64("end.rdma", p.GetRdma())}}
}
