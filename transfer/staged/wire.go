package staged

// Wire moves chunks between the arenas of two hosts, for one peer group, and never sees
// engine memory. It lives in a wire mover, whose exit ends all that it does. Safe for
// concurrent use.
type Wire interface {
	// Addr is what the other end's Wire fetches from.
	Addr() string
	// Offer lets the peer group fetch the first bytes of a chunk of the own arena.
	Offer(o Exposed) error
	// Withdraw ends an offer: no fetch of it begins any more.
	Withdraw(offer uint64)
	// Fetch reads what a peer's Wire offers into a chunk of the own arena. done is called
	// once, when nothing of it touches the chunk any more, with nil when all bytes are
	// there, and may be called before Fetch returns. cancel asks to stop.
	Fetch(f Fetching, done func(error)) (cancel func())
	// Close ends all fetches.
	Close() error
}

// Exposed is an offer as its own end's Wire serves it.
type Exposed struct {
	Offer uint64
	Chunk int32
	Bytes int64 // of the chunk from its first, stamps included
}

// Fetching is one fetch.
type Fetching struct {
	Addr  string      // of the peer's Wire
	Of    Incarnation // it fails when another process serves there
	Offer uint64
	Chunk int32 // of the own arena
	Bytes int64
}
