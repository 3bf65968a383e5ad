package wire

import (
	"github.com/batonkv/baton/plugins"
	"github.com/batonkv/baton/proto/codec"
	commonv1 "github.com/batonkv/baton/proto/common/v1"
	controlv1 "github.com/batonkv/baton/proto/control/v1"
	pluginv1 "github.com/batonkv/baton/proto/plugin/v1"
	"github.com/batonkv/baton/sidecar/control"
	"github.com/batonkv/baton/sidecar/handoff"
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

// EncodeAction encodes what engines are asked to do.
func EncodeAction(a handoff.Action) (commonv1.Action, error) {
	return commonv1.Action(a), checkAction(a)
}

// DecodeAction is the inverse of EncodeAction.
func DecodeAction(p commonv1.Action) (handoff.Action, error) {
	if p < 0 || p > commonv1.Action(^handoff.Action(0)) {
		return 0, bound("action", "%d", p)
	}
	return handoff.Action(p), checkAction(handoff.Action(p))
}

func checkAction(a handoff.Action) error {
	if _, known := commonv1.Action_name[int32(a)]; a == 0 || !known {
		return bound("action", "%d: want one of baton.common.v1.Action", a)
	}
	return nil
}

// maxWaits bounds what a drain waits for.
const maxWaits = 16

// EncodeDrain encodes how far a drain is.
func EncodeDrain(d control.Drain) (*controlv1.DrainResponse, error) {
	return &controlv1.DrainResponse{Draining: d.Draining, Safe: d.Safe, Imports: d.Imports, Exports: d.Exports, Waits: d.Waits}, checkDrain(d)
}

// DecodeDrain is the inverse of EncodeDrain.
func DecodeDrain(p *controlv1.DrainResponse) (control.Drain, error) {
	d := control.Drain{Draining: p.GetDraining(), Safe: p.GetSafe(), Imports: p.GetImports(), Exports: p.GetExports(), Waits: p.GetWaits()}
	return d, checkDrain(d)
}

func checkDrain(d control.Drain) error {
	if d.Imports < 0 || d.Exports < 0 || len(d.Waits) > maxWaits {
		return bound("drain", "%d imports, %d exports, %d waits", d.Imports, d.Exports, len(d.Waits))
	}
	for _, w := range d.Waits {
		if err := text("drain.waits", w); err != nil {
			return err
		}
	}
	return nil
}
