package codec

import (
	commonv1 "github.com/batonkv/baton/proto/common/v1"
	"github.com/batonkv/baton/transfer/layout"
	"github.com/batonkv/baton/transfer/sums"
)

// toSums encodes a rank's sums, nil when it made none. Whether they can be those of a
// hand-off is for who knows the model: Sums.Check.
func toSums(b *bound, s sums.Sums) *commonv1.Sums {
	if s.Mode == sums.Off && len(s.Parts) == 0 {
		return nil
	}
	return &commonv1.Sums{Mode: uint32(enum(b, "sums.mode", s.Mode, sums.Sample, sums.All)), Range: b.count("sums.range", s.Range),
		Parts: each(b, "sums.parts", s.Parts, sums.MaxParts, toSumPart)}
}

func fromSums(b *bound, p *commonv1.Sums) (s sums.Sums) {
	if p == nil {
		return s
	}
	if p.GetMode() > 255 {
		b.fail("sums.mode", "%d", p.GetMode())
	}
	return sums.Sums{Mode: enum(b, "sums.mode", sums.Mode(p.GetMode()), sums.Sample, sums.All), Range: b.count("sums.range", p.GetRange()),
		Parts: each(b, "sums.parts", p.GetParts(), sums.MaxParts, fromSumPart)}
}

func toSumPart(b *bound, p sums.Part) *commonv1.SumPart {
	return &commonv1.SumPart{State: b.count("sums.state", p.State), Box: toBox(p.Box), Tokens: toSpan(p.Tokens), Rows: b.count("sums.rows", p.Rows),
		Dtype: commonv1.DType(enum(b, "sums.dtype", p.DType, 0, layout.U8)), Sums: clone(b, "sums.sums", p.Sums, sums.MaxSums)}
}

func fromSumPart(b *bound, p *commonv1.SumPart) sums.Part {
	return sums.Part{State: b.count("sums.state", p.GetState()), Box: fromBox(p.GetBox()), Tokens: fromSpan(p.GetTokens()), Rows: b.count("sums.rows", p.GetRows()),
		DType: layout.DType(enum(b, "sums.dtype", p.GetDtype(), 0, commonv1.DType(layout.U8))), Sums: list(b, "sums.sums", p.GetSums(), sums.MaxSums)}
}
