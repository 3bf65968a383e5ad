package route

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/batonkv/baton/plugins"
	"github.com/batonkv/baton/sidecar/control"
	"github.com/batonkv/baton/sidecar/control/client"
	"github.com/batonkv/baton/sidecar/handoff"
	"github.com/batonkv/baton/transfer/layout"
	"github.com/batonkv/baton/transfer/models"
	"github.com/batonkv/baton/transfer/planview"
	"github.com/batonkv/baton/transfer/reshard"
)

type reshards struct{ *Router }

// Layouts plans between layouts alone, without any sidecar.
func Layouts() plugins.Reshard { return reshards{} }

// Of a layout that does not say: what `baton plan` takes too. A plan does not depend on
// the request, so any number of tokens gives it.
const (
	blockTokens = 64
	planTokens  = 8192
)

func (r reshards) Plan(ctx context.Context, q plugins.PlanQuery) (plugins.Plan, error) {
	g, err := r.geometry(ctx, q, planTokens)
	if err != nil {
		return plugins.Plan{}, err
	}
	p, err := reshard.New(g.Model, g.Src, g.Dst)
	if err != nil {
		return plugins.Plan{}, err
	}
	return plugins.Plan{Digest: p.Digest(), Model: g.Model, Moves: slices.Collect(p.Moves())}, nil
}

func (r reshards) Explain(ctx context.Context, q plugins.PlanQuery, tokens int32, f plugins.Format) ([]byte, error) {
	g, err := r.geometry(ctx, q, tokens)
	if err != nil {
		return nil, err
	}
	v, err := planview.Explain(g, tokens)
	if err != nil {
		return nil, input(err)
	}
	var b bytes.Buffer
	switch f {
	case plugins.JSON:
		e := json.NewEncoder(&b)
		e.SetIndent("", "  ")
		err = e.Encode(v)
	case plugins.SVG:
		err = v.SVG(&b)
	default:
		err = v.Table(&b)
	}
	return b.Bytes(), err
}

// input makes a wrong layout or model a sentinel that crosses processes.
func input(err error) error {
	for _, wrong := range []error{planview.ErrInput, models.ErrUnknown, models.ErrState} {
		if errors.Is(err, wrong) {
			return fmt.Errorf("%w: %w", layout.ErrGeometry, err)
		}
	}
	return err
}

// geometry is both sides of q, each a live group's own or one that its layout describes.
func (r reshards) geometry(ctx context.Context, q plugins.PlanQuery, tokens int32) (planview.Geometry, error) {
	src, err := r.live(ctx, q.Source)
	if err != nil {
		return planview.Geometry{}, err
	}
	dst, err := r.live(ctx, q.Destination)
	if err != nil {
		return planview.Geometry{}, err
	}
	if src != nil && dst != nil {
		if !slices.Equal(src.Model.States, dst.Model.States) || src.Name != dst.Name {
			return planview.Geometry{}, fmt.Errorf("%w: %s runs %q and %s runs %q", handoff.ErrModel, q.Source.Group, src.Name, q.Destination.Group, dst.Name)
		}
		return planview.Geometry{Name: src.Name, From: q.Source.Group, To: q.Destination.Group, Model: src.Model, Src: src.Shards, Dst: dst.Shards}, nil
	}
	g, err := described(q, runs(src, dst), tokens)
	if err != nil {
		return g, input(err)
	}
	for _, side := range []struct {
		live   *control.Geometry
		name   *string
		group  string
		shards *[]layout.Shard
	}{{src, &g.From, q.Source.Group, &g.Src}, {dst, &g.To, q.Destination.Group, &g.Dst}} {
		if side.live == nil {
			continue
		}
		if !slices.Equal(side.live.Model.States, g.Model.States) {
			return g, fmt.Errorf("%w: the states of %s, which runs %q, are not those of %s", handoff.ErrModel, side.group, side.live.Name, g.Name)
		}
		*side.name, *side.shards = side.group, side.live.Shards
	}
	return g, nil
}

// live asks a live group's leader; nil for a layout.
func (r reshards) live(ctx context.Context, s plugins.Side) (*control.Geometry, error) {
	if s.Group == "" {
		return nil, nil
	}
	if r.Router == nil {
		return nil, fmt.Errorf("%w: %s: live groups are not known here: name a layout", handoff.ErrGroup, s.Group)
	}
	g, err := call(ctx, r.Router, s.Group, func(ctx context.Context, c *client.Client) (control.Geometry, error) { return c.Geometry(ctx) })
	return &g, err
}

// runs is the model's name as a live side says it, "" without one.
func runs(sides ...*control.Geometry) string {
	for _, s := range sides {
		if s != nil {
			return s.Name
		}
	}
	return ""
}

// described is the published model under the layouts of q; a live side is described as
// the other one, and is put in its place later.
func described(q plugins.PlanQuery, running string, tokens int32) (planview.Geometry, error) {
	name := q.Model
	if name == "" {
		name = running
	}
	if name == "" {
		return planview.Geometry{}, fmt.Errorf("%w: no model: a plan between two layouts names a published one, as baton plan --list shows", planview.ErrInput)
	}
	m, err := models.ByName(name)
	if err != nil {
		return planview.Geometry{}, err
	}
	d := planview.Default{Block: blockTokens, KV: layout.BF16}
	texts := [2]string{q.Source.Layout, q.Destination.Layout}
	var sides [2]planview.Side
	for i, t := range texts {
		if t == "" {
			t = texts[1-i]
		}
		if sides[i], err = planview.ParseSide(t, d); err != nil {
			return planview.Geometry{}, err
		}
	}
	return planview.OfModel(m, sides[0], sides[1], tokens)
}
