package wire

import (
	"github.com/batonkv/baton/plugins"
	"github.com/batonkv/baton/proto/codec"
	pluginv1 "github.com/batonkv/baton/proto/plugin/v1"
	"github.com/batonkv/baton/transfer/layout"
	"github.com/batonkv/baton/transfer/reshard"
)

func encodeSide(field string, s plugins.Side) (*pluginv1.Side, error) {
	if err := texts(field+".group", s.Group, field+".layout", s.Layout); err != nil {
		return nil, err
	}
	switch {
	case s.Group != "" && s.Layout == "":
		return &pluginv1.Side{Side: &pluginv1.Side_Group{Group: s.Group}}, nil
	case s.Group == "" && s.Layout != "":
		return &pluginv1.Side{Side: &pluginv1.Side_Layout{Layout: s.Layout}}, nil
	}
	return nil, bound(field, "want the name of a live group, or a layout")
}

// EncodePlanQuery encodes which plan is asked for.
func EncodePlanQuery(q plugins.PlanQuery) (*pluginv1.PlanRequest, error) {
	src, err := encodeSide("source", q.Source)
	if err != nil {
		return nil, err
	}
	dst, err := encodeSide("destination", q.Destination)
	if err != nil {
		return nil, err
	}
	return &pluginv1.PlanRequest{Source: src, Destination: dst, Model: q.Model}, text("model", q.Model)
}

// DecodePlanQuery decodes which plan is asked for.
func DecodePlanQuery(p *pluginv1.PlanRequest) (plugins.PlanQuery, error) {
	q := plugins.PlanQuery{Model: p.GetModel(),
		Source:      plugins.Side{Group: p.GetSource().GetGroup(), Layout: p.GetSource().GetLayout()},
		Destination: plugins.Side{Group: p.GetDestination().GetGroup(), Layout: p.GetDestination().GetLayout()}}
	_, err := EncodePlanQuery(q)
	return q, err
}

// EncodePlan encodes a plan.
func EncodePlan(pl plugins.Plan) (*pluginv1.PlanResponse, error) {
	m, err := codec.ToModel(pl.Model)
	if err != nil {
		return nil, err
	}
	if len(pl.Moves) > MaxMoves {
		return nil, bound("moves", "%d, at most %d", len(pl.Moves), MaxMoves)
	}
	p := &pluginv1.PlanResponse{Digest: pl.Digest[:], Model: m}
	for _, v := range pl.Moves {
		if err := checkMove(v, pl.Model); err != nil {
			return nil, err
		}
		p.Moves = append(p.Moves, &pluginv1.Move{State: v.State, Source: int32(v.Src), Destination: int32(v.Dst), Box: codec.ToBox(v.Box)})
	}
	return p, nil
}

// DecodePlan decodes a plan.
func DecodePlan(p *pluginv1.PlanResponse) (plugins.Plan, error) {
	m, err := codec.FromModel(p.GetModel())
	if err != nil {
		return plugins.Plan{}, err
	}
	pl := plugins.Plan{Model: m}
	if len(p.GetDigest()) != len(pl.Digest) {
		return plugins.Plan{}, bound("digest", "%d bytes, want %d", len(p.GetDigest()), len(pl.Digest))
	}
	copy(pl.Digest[:], p.GetDigest())
	if n := len(p.GetMoves()); n > MaxMoves {
		return plugins.Plan{}, bound("moves", "%d, at most %d", n, MaxMoves)
	}
	for _, x := range p.GetMoves() {
		v := reshard.Move{State: x.GetState(), Src: layout.Rank(x.GetSource()), Dst: layout.Rank(x.GetDestination()), Box: codec.FromBox(x.GetBox())}
		if err := checkMove(v, m); err != nil {
			return plugins.Plan{}, err
		}
		pl.Moves = append(pl.Moves, v)
	}
	return pl, nil
}

func checkMove(v reshard.Move, m layout.Model) error {
	if v.State < 0 || int(v.State) >= len(m.States) || v.Src < 0 || v.Src >= codec.MaxRanks || v.Dst < 0 || v.Dst >= codec.MaxRanks {
		return bound("move", "state %d of %d, rank %d to %d", v.State, len(m.States), v.Src, v.Dst)
	}
	return nil
}

// EncodeFormat encodes how Explain renders.
func EncodeFormat(f plugins.Format) (pluginv1.Format, error) {
	if f < plugins.Text || f > plugins.SVG {
		return 0, bound("format", "%d: want %d to %d", f, plugins.Text, plugins.SVG)
	}
	return pluginv1.Format(f), nil
}

// DecodeFormat is the inverse of EncodeFormat.
func DecodeFormat(p pluginv1.Format) (plugins.Format, error) {
	if p < 0 || p > pluginv1.Format(plugins.SVG) {
		return 0, bound("format", "%d: want %d to %d", p, plugins.Text, plugins.SVG)
	}
	_, err := EncodeFormat(plugins.Format(p))
	return plugins.Format(p), err
}
