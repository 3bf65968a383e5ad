package machine

import (
	"fmt"
	"slices"

	"github.com/batonkv/baton/sidecar/handoff"
	"github.com/batonkv/baton/transfer/layout"
	"github.com/batonkv/baton/transfer/layout/float"
	"github.com/batonkv/baton/transfer/lower"
	"github.com/batonkv/baton/transfer/reshard"
)

// maxGeometries bounds the geometries of other groups that a rank keeps. Leader and
// rank count alike: what the leader thinks was shown, the rank has.
const maxGeometries = 256

// sourceGroup is another group's geometry with what was planned from it. A zero
// digest: asked, not here yet.
type sourceGroup struct {
	geometry  handoff.Geometry
	digest    handoff.Digest
	plan      *reshard.Plan
	own       handoff.Digest // geometry of this group that plan leads to
	templates map[cut]*lower.Template
	again     handoff.Instance // asked anew for this launch: the answer stands for it, whichever it is
	// When the other group imports from this one: digest of the plan into it.
	into, intoOwn handoff.Digest
}

func geometryDigest(g handoff.Geometry) handoff.Digest {
	return handoff.Digest(layout.GeometryDigest(g.Model, g.Shards))
}

// planFrom plans from g into this group, once per pair of geometries.
func (m *Machine) planFrom(g *sourceGroup) (handoff.Digest, error) {
	if m.member == nil {
		return handoff.Digest{}, fmt.Errorf("%w: no roster", handoff.ErrNotReady)
	}
	own := geometryDigest(m.member.Geometry)
	if g.plan == nil || g.own != own {
		p, err := plan(m.member.Geometry, g.geometry)
		if err != nil {
			return handoff.Digest{}, err
		}
		g.plan, g.own, g.templates = p, own, map[cut]*lower.Template{}
	}
	return handoff.Digest(g.plan.Digest()), nil
}

// plan is what both sides compute: from a source geometry into a destination geometry.
func plan(dst, src handoff.Geometry) (*reshard.Plan, error) {
	if !slices.Equal(dst.Model.States, src.Model.States) {
		return nil, fmt.Errorf("%w: groups %s and %s state different tensors", handoff.ErrModel, src.Group, dst.Group)
	}
	p, err := reshard.New(dst.Model, src.Shards, dst.Shards)
	if err != nil {
		return nil, fmt.Errorf("%w: from group %s to %s: %w", handoff.ErrPlan, src.Group, dst.Group, err)
	}
	// A source that lacks a part is found by the plan. A destination that lacks one would be
	// given all that it asks for, and go on without the rest.
	if i, left, ok := dst.Model.Uncovered(dst.Shards); ok {
		return nil, fmt.Errorf("%w: no rank of group %s holds %v of state %q: state it in the shards of some rank",
			handoff.ErrPlan, dst.Group, left, dst.Model.States[i].Name)
	}
	if err := convertible(p, dst, src); err != nil {
		return nil, err
	}
	return p, nil
}

// convertible refuses a plan whose types no copier converts: a pull that its Fits refuses
// has cost both groups their blocks, so it is said before Open.
func convertible(p *reshard.Plan, dst, src handoff.Geometry) error {
	for pair := range p.Pairs() {
		for part := range p.Parts(uint32(pair)) {
			if !float.Converts(part.From.DType, part.To.DType) {
				return fmt.Errorf("%w: state %q is %v in group %s and %v in group %s, and no copier converts: launch both groups with one type of it",
					handoff.ErrPlan, dst.Model.States[part.To.State].Name, part.From.DType, src.Group, part.To.DType, dst.Group)
			}
		}
	}
	return nil
}

// cut is what of a pair a template is for: all of it, or the paged states of some layers.
type cut struct {
	pair   uint32
	layers layout.Span
	whole  bool
}

// maxTemplates bounds what parts by layers make of them.
const maxTemplates = 1 << 12

func (g *sourceGroup) template(pair uint32, p handoff.Piece) (*lower.Template, error) {
	k := cut{pair, p.Layers, p.Whole}
	if t := g.templates[k]; t != nil {
		return t, nil
	}
	var t *lower.Template
	var err error
	if p.Whole {
		t, err = lower.New(g.plan, pair)
	} else {
		t, err = lower.Paged(g.plan, pair, p.Layers)
	}
	if err != nil {
		return nil, err
	}
	if len(g.templates) >= maxTemplates {
		clear(g.templates)
	}
	g.templates[k] = t
	return t, nil
}
