package codec

import (
	"slices"

	commonv1 "github.com/batonkv/baton/proto/common/v1"
	peerv1 "github.com/batonkv/baton/proto/peer/v1"
	"github.com/batonkv/baton/sidecar/handoff"
)

func toBuffers(b *bound, ds []handoff.BufferDecl) []*commonv1.BufferDecl {
	files(b, "attach.buffers", ds)
	return each(b, "attach.buffers", ds, MaxBuffers, toBuffer)
}

func fromBuffers(b *bound, ps []*commonv1.BufferDecl) []handoff.BufferDecl {
	ds := each(b, "attach.buffers", ps, MaxBuffers, fromBuffer)
	files(b, "attach.buffers", ds)
	return ds
}

func toBuffer(b *bound, d handoff.BufferDecl) *commonv1.BufferDecl {
	return &commonv1.BufferDecl{Id: d.ID, Off: b.bytes64("buffer.off", d.Off), Len: b.bytes64("buffer.len", d.Len), Gpu: toGPU(b, "buffer.gpu", d.GPU)}
}

func fromBuffer(b *bound, p *commonv1.BufferDecl) handoff.BufferDecl {
	return handoff.BufferDecl{ID: p.GetId(), Off: b.bytes64("buffer.off", p.GetOff()), Len: b.bytes64("buffer.len", p.GetLen()),
		GPU: fromGPU(b, "buffer.gpu", p.GetGpu())}
}

func toCards(b *bound, cs []handoff.BufferCard) []*peerv1.BufferCard {
	files(b, "buffers.cards", cs)
	return each(b, "buffers.cards", cs, MaxBuffers, toCard)
}

func fromCards(b *bound, ps []*peerv1.BufferCard) []handoff.BufferCard {
	cs := each(b, "buffers.cards", ps, MaxBuffers, fromCard)
	files(b, "buffers.cards", cs)
	return cs
}

func toCard(b *bound, c handoff.BufferCard) *peerv1.BufferCard {
	return &peerv1.BufferCard{Buffer: c.Buffer, Off: b.bytes64("card.off", c.Off), Len: b.bytes64("card.len", c.Len), Key: c.Key, Gpu: toGPU(b, "card.gpu", c.GPU)}
}

func fromCard(b *bound, p *peerv1.BufferCard) handoff.BufferCard {
	return handoff.BufferCard{Buffer: p.GetBuffer(), Off: b.bytes64("card.off", p.GetOff()), Len: b.bytes64("card.len", p.GetLen()), Key: p.GetKey(),
		GPU: fromGPU(b, "card.gpu", p.GetGpu())}
}

// files bounds the descriptors of one rank's buffers.
func files[T interface{ Descriptors() int }](b *bound, field string, bs []T) {
	n := 0
	for _, v := range bs {
		n += v.Descriptors()
	}
	if n > MaxFiles {
		b.fail(field, "%d descriptors, at most %d: attach fewer, larger allocations", n, MaxFiles)
	}
}

func toGPU(b *bound, field string, g *handoff.GPUMemory) *commonv1.GPUMemory {
	if g == nil {
		return nil
	}
	p := &commonv1.GPUMemory{Uuid: slices.Clone(g.UUID[:]), Chunks: slices.Clone(b.chunks(field, g.Chunks))}
	if len(g.Chunks) == 0 {
		p.Handle = slices.Clone(g.Handle[:])
	} else if g.Handle != [64]byte{} {
		b.fail(field, "a handle and %d allocations: want one of the two", len(g.Chunks))
	}
	return p
}

func fromGPU(b *bound, field string, p *commonv1.GPUMemory) *handoff.GPUMemory {
	if p == nil {
		return nil
	}
	g := &handoff.GPUMemory{Chunks: b.chunks(field, p.GetChunks())}
	want := len(g.Handle)
	if len(p.GetChunks()) > 0 {
		want = 0
	}
	if len(p.GetUuid()) != len(g.UUID) || len(p.GetHandle()) != want {
		b.fail(field, "uuid of %d bytes, handle of %d and %d allocations: want a uuid of %d and either a handle of %d or allocations",
			len(p.GetUuid()), len(p.GetHandle()), len(p.GetChunks()), len(g.UUID), len(g.Handle))
		return nil
	}
	copy(g.UUID[:], p.GetUuid())
	copy(g.Handle[:], p.GetHandle())
	return g
}

// chunks checks the sizes of physical allocations.
func (b *bound) chunks(field string, sizes []int64) []int64 {
	for _, n := range list(b, field+".chunks", sizes, MaxChunks) {
		if n < 1 || n > maxChunk {
			b.fail(field+".chunks", "an allocation of %d bytes: want 1 to %d", n, int64(maxChunk))
			return nil
		}
	}
	return list(b, field+".chunks", sizes, MaxChunks)
}
