package load

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/batonkv/baton/examples/engine/memfd"
	"github.com/batonkv/baton/sidecar/handoff"
)

// Memory is where a rank keeps its state.
type Memory string

const (
	OnHost     Memory = "host"
	OnGPU      Memory = "gpu"        // allocations that a handle names, as of cudaMalloc
	OnSegments Memory = "gpu-chunks" // physical allocations, each with a descriptor
)

// Memories are all of them.
var Memories = []Memory{OnHost, OnGPU, OnSegments}

// buffer is memory that the rank shares with its sidecar's mover.
type buffer struct {
	mem   []byte // what the rank reads and writes
	decl  handoff.BufferDecl
	fds   []int  // its descriptors
	dev   device // of which mem is a copy; nil: mem is the memory itself
	dirty []span // of mem, what the device does not have
}

// device is memory of a GPU, by offset.
type device interface {
	put(off int64, b []byte) error
	get(b []byte, off int64) error
}

// newBuffers allocates buffers of those sizes, until free is called.
func newBuffers(cfg Config, sizes []int64) (bs []buffer, free func(), err error) {
	if cfg.Memory != OnHost && cfg.Memory != "" {
		return onGPU(cfg, sizes)
	}
	var files []memfd.Buffer
	free = func() {
		for _, b := range files {
			b.Close()
		}
	}
	for i, n := range sizes {
		b, err := memfd.New(fmt.Sprintf("baton-load-%.32s-%d-%d", cfg.Group, cfg.Rank, i), n)
		if err != nil {
			free()
			return nil, nil, err
		}
		files = append(files, b)
		bs = append(bs, buffer{mem: b.Mem, decl: handoff.BufferDecl{ID: uint32(i), Len: n}, fds: []int{b.FD}})
	}
	return bs, free, nil
}

// span is a part of a buffer, in bytes.
type span struct{ lo, hi int64 }

// fetch brings what the GPU has: all of it, since a call takes as long for a few bytes.
func (b *buffer) fetch() error {
	if b.dev == nil {
		return nil
	}
	return b.dev.get(b.mem, 0)
}

// touch notes what was written to mem since fetch.
func (b *buffer) touch(s span) {
	if b.dev != nil {
		b.dirty = append(b.dirty, s)
	}
}

// store takes what was touched, and nothing that a mover may be writing beside it, to the GPU,
// which has it when store returns.
func (b *buffer) store() error {
	slices.SortFunc(b.dirty, func(x, y span) int { return cmp.Compare(x.lo, y.lo) })
	for len(b.dirty) > 0 {
		s, n := b.dirty[0], 1
		for ; n < len(b.dirty) && b.dirty[n].lo <= s.hi; n++ {
			s.hi = max(s.hi, b.dirty[n].hi)
		}
		b.dirty = b.dirty[n:]
		if err := b.dev.put(s.lo, b.mem[s.lo:s.hi]); err != nil {
			return err
		}
	}
	return nil
}
