package control

import (
	"context"

	"github.com/batonkv/baton/proto/codec"
	controlv1 "github.com/batonkv/baton/proto/control/v1"
	"github.com/batonkv/baton/proto/errs"
)

func (s *server) Links(ctx context.Context, req *controlv1.LinksRequest) (*controlv1.LinksResponse, error) {
	if err := s.allow(ctx); err != nil {
		return nil, err
	}
	got, err := s.svc.Links(ctx, LinksQuery{Probe: req.GetProbe(), Meet: req.GetMeet()})
	if err != nil {
		return nil, errs.ToStatus(err)
	}
	p, err := EncodeLinks(got)
	return p, errs.ToStatus(err)
}

// EncodeLinks encodes what Links tells.
func EncodeLinks(l Links) (*controlv1.LinksResponse, error) {
	if len(l.Links) > MaxLinks {
		return nil, over("links", len(l.Links), MaxLinks)
	}
	p := &controlv1.LinksResponse{More: l.More}
	var err error
	if p.Self, err = codec.ToMember(l.Self); err != nil {
		return nil, err
	}
	if p.Transports, err = codec.ToOffers(l.Offers); err != nil {
		return nil, err
	}
	for _, k := range l.Links {
		link, err := codec.ToLink(k)
		if err != nil {
			return nil, err
		}
		p.Links = append(p.Links, link)
	}
	return p, nil
}

// DecodeLinks decodes what Links tells.
func DecodeLinks(p *controlv1.LinksResponse) (Links, error) {
	if n := len(p.GetLinks()); n > MaxLinks || p.GetMore() < 0 {
		return Links{}, over("links", n, MaxLinks)
	}
	l := Links{More: p.GetMore()}
	var err error
	if l.Self, err = codec.FromMember(p.GetSelf()); err != nil {
		return Links{}, err
	}
	if l.Offers, err = codec.FromOffers(p.GetTransports()); err != nil {
		return Links{}, err
	}
	for _, k := range p.GetLinks() {
		link, err := codec.FromLink(k)
		if err != nil {
			return Links{}, err
		}
		l.Links = append(l.Links, link)
	}
	return l, nil
}
