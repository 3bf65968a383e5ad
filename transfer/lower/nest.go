// Package lower turns a rank pair's share of a plan and a request's block ids
// into strided copies (nests). It is arithmetic only: offsets are relative to
// buffers, so the result is the same on any machine, and both ends can compute it.
package lower

import "github.com/batonkv/baton/transfer/layout"

// MaxDims bounds a Nest: items, layers, row groups, rows, units, elements.
const MaxDims = 6

// Dim is one loop of a Nest: N steps of SrcStride and DstStride bytes.
type Dim struct {
	N                    int32
	SrcStride, DstStride int64
}

// Nest is one strided n-dimensional copy, free of addresses. Dims[0] is the
// outermost loop; the body copies Run contiguous bytes (source side) and is
// executed once per index tuple, so N = product of Dims[:Rank].N bodies.
type Nest struct {
	Src, Dst       uint32 // buffer index on the source and on the destination rank
	SrcOff, DstOff int64
	Run            int64 // contiguous bytes of one body, as the source stores them
	Dims           [MaxDims]Dim
	Rank           uint8 // used entries of Dims
	// From and To are the element types. Equal: plain copy. Different: the copier
	// converts, and asks Fits first. To set and From zero: the destination is zeroed
	// and Src, SrcOff and SrcStride mean nothing.
	From, To layout.DType
}

// Job is one rank pair's share of one hand-off, symbolic: both ends hold the
// plan, so only ids travel. The slices are borrowed for the duration of a call.
type Job struct {
	Handoff [16]byte
	Pair    uint32 // index of the (source rank, destination rank) pair in the plan
	// SrcBlocks and DstBlocks are each side's block table from token SrcFirst or
	// DstFirst of the request, 0 for an engine's; blocks wholly before Tokens.Lo are
	// never touched and may be -1.
	SrcBlocks, DstBlocks []int32
	SrcFirst, DstFirst   int32
	SrcSlot, DstSlot     int32       // slots of per-request states; -1: the model has none
	Tokens               layout.Span // token positions of paged states that move
}

// Run1 is one contiguous copy, the result of splitting nests for backends that
// take nothing else.
type Run1 struct {
	Src, Dst       uint32
	SrcOff, DstOff int64
	Len            int64
}
