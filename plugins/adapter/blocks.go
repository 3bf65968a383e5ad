package adapter

import (
	"context"
	"iter"

	"github.com/batonkv/baton/sidecar/handoff"
)

// BlockEvent and StoredBlock are what a BlockFeed tells; its kinds are handoff.BlocksStored,
// BlocksRemoved and BlocksCleared.
type (
	BlockEvent  = handoff.BlockEvent
	StoredBlock = handoff.StoredBlock
)

// BlockReader is an ability of adapters that are told what the prefix cache of their group's
// engine holds.
type BlockReader interface {
	// ReadBlocks gives the feed. It is called once, after Configure and before Sync, and
	// returns at once.
	ReadBlocks(feed BlockFeed)
}

// BlockFeed tells what the prefix cache of a group's engine holds.
type BlockFeed interface {
	// Blocks yields events until ctx or the life ends, whose error is the last item. The first
	// is BlocksCleared, behind which comes everything that is held, and then each change.
	// BlocksCleared comes again, and everything anew behind it, when the engine forgot all or
	// was lost, and when the reader was too slow: Lost says how many events it is not told. Blocks
	// that are held already are not stored again, and only such that are held are removed.
	//
	// The engine is asked to tell only while somebody reads; one that cannot has no blocks.
	// One read at a time: another one fails with handoff.ErrOrder. Slices are read only.
	Blocks(ctx context.Context) iter.Seq2[BlockEvent, error]
}
