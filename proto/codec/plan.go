package codec

import (
	commonv1 "github.com/batonkv/baton/proto/common/v1"
	"github.com/batonkv/baton/transfer/layout"
)

// ToModel encodes a model.
func ToModel(m layout.Model) (*commonv1.Model, error) {
	var b bound
	return toModel(&b, m), b.err
}

// FromModel decodes a model.
func FromModel(p *commonv1.Model) (layout.Model, error) {
	var b bound
	return fromModel(&b, p), b.err
}

// ToBox and FromBox are of a rectangle, whose numbers are whatever they are: what it
// must fit is the model's to say.
func ToBox(x layout.Box) *commonv1.Box   { return toBox(x) }
func FromBox(p *commonv1.Box) layout.Box { return fromBox(p) }
