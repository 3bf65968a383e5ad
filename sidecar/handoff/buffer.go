package handoff

// BufferDecl announces a buffer, whose descriptors follow on the fd socket.
type BufferDecl struct {
	ID  uint32
	Off int64 // first byte within the file, or within the GPU's allocations
	Len int64
	GPU *GPUMemory // nil: a file that is sealed against shrinking
}

// Descriptors is how many descriptors the buffer has.
func (d BufferDecl) Descriptors() int { return d.GPU.descriptors() }

// GPUMemory says how another process reaches memory of a GPU: by the legacy handle of the
// allocation that it lies in, or by descriptors of physical allocations. It is not changed
// by whoever holds it.
type GPUMemory struct {
	UUID   [16]byte // of the GPU
	Handle [64]byte // of memory without Chunks
	Chunks []int64  // bytes of each allocation, one behind the other; a descriptor each
}

func (g *GPUMemory) descriptors() int {
	if g == nil {
		return 1
	}
	return len(g.Chunks)
}

// BufferCard is one buffer of an engine, as a peer hears of it.
type BufferCard struct {
	Buffer uint32
	Off    int64 // first byte within the file, or within the GPU's allocations
	Len    int64
	Key    uint64 // of all its descriptors, in order; 0: it has none
	GPU    *GPUMemory
}

// Descriptors is how many descriptors the buffer has.
func (c BufferCard) Descriptors() int { return c.GPU.descriptors() }
