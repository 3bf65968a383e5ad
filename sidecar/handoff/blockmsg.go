package handoff

// BlockKind is what a BlockEvent tells.
type BlockKind uint8

const (
	BlocksStored  BlockKind = iota + 1 // complete blocks entered the prefix cache
	BlocksRemoved                      // blocks left it
	BlocksCleared                      // forget every block: what follows is the whole content anew, then its changes
)

var blockNames = [...]string{BlocksStored: "stored", BlocksRemoved: "removed", BlocksCleared: "cleared"}

func (k BlockKind) String() string {
	if int(k) < len(blockNames) && k > 0 {
		return blockNames[k]
	}
	return "blocks(?)"
}

// MaxEventBlocks bounds the blocks, or the ids, of one BlockEvent.
const MaxEventBlocks = 512

// BlockEvent is a change of what an engine's prefix cache holds.
type BlockEvent struct {
	Kind BlockKind
	// Stored: a run of blocks under one salt, each of which continues the one before it.
	// Parent is what the first continues, 0: nothing. It may have left the cache.
	Parent      uint64
	Blocks      []StoredBlock
	BlockTokens int32 // of each
	Salt        Salt
	Removed     []uint64 // ids
	// Lost, of Cleared: so many events are not told, since the reader, or somebody on the way to
	// it, was too slow for them.
	Lost uint64
}

// StoredBlock is a complete block. ID is the engine's name of its content and of all before
// it, never 0: equal ids are one prefix.
type StoredBlock struct {
	ID     uint64
	Tokens []int32
}

// BlockEvents tells what changed in the prefix cache, in order; by rank 0 of an engine whose
// Attach says TellsBlocks, between TellBlocks on and off.
type BlockEvents struct{ Events []BlockEvent }

// TellBlocks asks rank 0's engine to tell what its prefix cache holds: with On it says
// Cleared, then everything, then each change.
type TellBlocks struct{ On bool }

func (BlockEvents) fromEngine() {}
func (TellBlocks) toEngine()    {}
