package handoff

import "github.com/batonkv/baton/transfer/layout"

// Messages of staging between a reading rank and the rank that it reads, beside those of
// the hand-off. Package transfer/staged says what they mean; the machines here do not look
// at them.
type (
	// StagedWant asks a source rank for the bytes of one pair of ranks, in so many chunks.
	StagedWant struct {
		Of     Check // what the reader asks when it has read
		Pair   uint32
		Part   uint32 // counts the pulls of the pair, from 0
		Chunks int32
		Chunk  int64 // bytes of one as both ends cut; 0: 1 MiB
		Tokens layout.Span
		Moves  []StagedMove
	}
	// StagedOffer says that a packed chunk may be fetched from a wire mover of the source.
	StagedOffer struct {
		Job   StagedJob
		Seq   int32  // number of the chunk within the job
		Offer uint64 // never repeats within one sidecar process
		Chunk int32  // of the source's arena
		Wire  uint64 // incarnation of the wire mover
		Port  int32  // where it serves, on the source's host
	}
	// StagedCredit says that no fetch of an offer is open and none will begin.
	StagedCredit struct{ Offer uint64 }
	// StagedStop says that the reader gave a job up.
	StagedStop struct{ Job StagedJob }
	// StagedGone ends a job at the source. Why is a staged.Reason.
	StagedGone struct {
		Job StagedJob
		Why uint8
	}
)

// StagedJob names one pull of one rank from another.
type StagedJob struct {
	Handoff [16]byte // ID.Bytes
	Attempt Attempt
	Pair    uint32
	Part    uint32 // counts the pulls of the pair, from 0
}

// StagedMove is one box that the pair moves, as it lies in chunks.
type StagedMove struct {
	State int32
	Box   layout.Box
	Rows  int32 // window columns that travel; 1 for a paged state
	DType layout.DType
}

func (StagedWant) peerMessage()   {}
func (StagedOffer) peerMessage()  {}
func (StagedCredit) peerMessage() {}
func (StagedStop) peerMessage()   {}
func (StagedGone) peerMessage()   {}
