package mover

import (
	"fmt"

	"github.com/batonkv/baton/transfer"
)

// maxChunks bounds the physical allocations of one GPU buffer, and so its descriptors.
const maxChunks = 4096

// maxFDs bounds the descriptors of one frame: of all buffers of a rank, which a link has.
const maxFDs = 1 << 14

// appendMemory is a region but for its descriptors, which travel beside the frame.
func appendMemory(b []byte, id transfer.RegionID, m transfer.Memory) []byte {
	b = le.AppendUint32(b, uint32(id))
	b = append(b, byte(m.Kind))
	b = le.AppendUint64(b, m.Addr)
	b = le.AppendUint64(b, uint64(m.Off))
	b = le.AppendUint64(b, uint64(m.Len))
	if m.Kind != transfer.CUDA && m.Kind != transfer.CUDAFD {
		return b
	}
	g := m.GPU
	if g == nil {
		g = new(transfer.GPU)
	}
	b = append(append(b, g.UUID[:]...), g.Handle[:]...)
	b = le.AppendUint32(b, uint32(len(g.Chunks)))
	for _, c := range g.Chunks {
		b = le.AppendUint64(b, uint64(c.Len))
	}
	return b
}

// memory reads a region; its descriptors are the next of fds, which it takes.
func (r *reader) memory(fds *[]int) (transfer.RegionID, transfer.Memory) {
	id := transfer.RegionID(r.u32())
	m := transfer.Memory{Kind: transfer.Kind(r.u8()), Addr: r.u64(), Off: int64(r.u64()), Len: int64(r.u64()), FD: -1}
	want := 0
	switch m.Kind {
	case transfer.Memfd:
		want = 1
	case transfer.CUDA, transfer.CUDAFD:
		m.GPU = r.gpu()
		if m.Kind == transfer.CUDAFD {
			want = len(m.GPU.Chunks)
		}
	}
	if r.err == nil && want > len(*fds) {
		r.err = fmt.Errorf("%w: region %d came with %d of its %d descriptors: raise the limit of open files", errWire, id, len(*fds), want)
	}
	if r.err == nil && want > 0 {
		m = m.WithFDs((*fds)[:want])
		*fds = (*fds)[want:]
	}
	return id, m
}

// gpu reads a GPU, with descriptors that are none.
func (r *reader) gpu() *transfer.GPU {
	g := new(transfer.GPU)
	copy(g.UUID[:], r.bytes(len(g.UUID)))
	copy(g.Handle[:], r.bytes(len(g.Handle)))
	n := r.u32()
	if r.err == nil && n > maxChunks {
		r.err = fmt.Errorf("%w: GPU memory of %d allocations: at most %d", errWire, n, maxChunks)
	}
	if r.err != nil {
		return g
	}
	for range n {
		g.Chunks = append(g.Chunks, transfer.Chunk{FD: -1, Len: int64(r.u64())})
	}
	return g
}
