package staged

import (
	"math"
	"time"
)

// Costs are what a chunk's size follows from: measured, or said by who runs the sidecar.
type Costs struct {
	Arena    int64         // bytes of one half
	Peers    int32         // that may stream at once
	Local    float64       // bytes/s of a pack, and of an unpack
	Wire     float64       // bytes/s of the network
	Stream   float64       // bytes/s of one chunk on its way: of a connection
	Latency  time.Duration // of a round trip to the peer
	PerChunk time.Duration // what a chunk costs beside its bytes
}

const (
	minChunk = 64 << 10
	// MaxChunk is the largest chunk that any end cuts.
	MaxChunk = 64 << 20
	// goodBytes is the hand-off that chunks are made for: some thousand tokens. Larger ones
	// gain by larger chunks, smaller ones by smaller.
	goodBytes = 64 << 20
)

// Chunk is the size of a chunk, a power of two.
//
// A hand-off of B bytes in chunks of c takes B/c times what a chunk costs beside its bytes,
// and the first pack and the last unpack, of a chunk each, overlap nothing: c is where
// both together are least. Then chunks are halved until the arena has room for the depth
// of every peer.
func (c Costs) Chunk() int64 {
	chunk := int64(minChunk)
	best := math.Sqrt(c.PerChunk.Seconds() * goodBytes * c.Local / 2)
	for chunk < MaxChunk && 2*float64(chunk) <= best {
		chunk *= 2
	}
	for chunk > minChunk && int64(max(c.Peers, 1))*int64(c.depth(chunk)) > c.Arena/chunk {
		chunk /= 2
	}
	return chunk
}

// Depth is how many chunks of that size one peer may hold, as far as the arena has them.
func (c Costs) Depth(chunk int64) int32 {
	return int32(max(1, min(int64(c.depth(chunk)), c.Arena/chunk)))
}

// depth is how many chunks keep the slowest step busy: those that begin while one is held,
// from its pack to its credit, and one more, since steps end late.
func (c Costs) depth(chunk int64) int32 {
	local, wire, stream := float64(chunk)/c.Local, float64(chunk)/c.Wire, float64(chunk)/c.Stream
	held := local + max(wire, stream) + c.Latency.Seconds() + c.PerChunk.Seconds()
	return int32(min(math.Ceil(held/max(local, wire))+1, windowSize))
}
