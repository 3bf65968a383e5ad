// Package paged is a block allocator for engines: a pool of fixed blocks of tokens
// with a prefix cache, and the slots of per-request state.
//
// It holds no memory and starts nothing: it deals in block and slot numbers. It is
// deterministic, so the ranks of a group that call the same methods in the same order
// agree on every number (Digest proves it). Invariants: a block is free, cached or
// held; no block is in two tables unless both share it through the cache; a cached
// block is evicted only after every block that continues it.
package paged

import (
	"errors"
	"fmt"
)

var (
	// ErrFull: nothing was taken; it may fit once something is freed.
	ErrFull = errors.New("paged: no capacity")
	// ErrNever: the pool is too small for this request whatever is freed.
	ErrNever = errors.New("paged: can never fit")
	// ErrHold: the hold is unknown or in another phase.
	ErrHold = errors.New("paged: bad hold")
	// ErrConfig reports a pool that cannot be.
	ErrConfig = errors.New("paged: bad config")
)

// MaxBlocks and MaxSlots bound a pool.
const (
	MaxBlocks = 1 << 24
	MaxSlots  = 1 << 20
)

// Config sizes a pool.
type Config struct {
	Blocks, Slots int32
	BlockTokens   int32
}

// Check reports sizes that no pool can have.
func (c Config) Check() error {
	switch {
	case c.Blocks < 1 || c.Blocks > MaxBlocks:
		return fmt.Errorf("%w: blocks %d: want 1 to %d", ErrConfig, c.Blocks, MaxBlocks)
	case c.Slots < 0 || c.Slots > MaxSlots:
		return fmt.Errorf("%w: slots %d: want 0 to %d", ErrConfig, c.Slots, MaxSlots)
	case c.BlockTokens < 1 || c.BlockTokens > 1<<16:
		return fmt.Errorf("%w: block tokens %d: want 1 to %d", ErrConfig, c.BlockTokens, 1<<16)
	}
	return nil
}

// ID names a hold. Mirrored pools give equal ids.
type ID uint64

// Phase is where a hold stands.
type Phase uint8

const (
	Reserved    Phase = iota + 1 // taken, content not there yet
	Live                         // a running request
	Pinned                       // exported: it left the batch, its blocks and slot stay
	Quarantined                  // a failed import: somebody may still write there
)

var phaseNames = [...]string{Reserved: "reserved", Live: "live", Pinned: "pinned", Quarantined: "quarantined"}

func (p Phase) String() string {
	if int(p) < len(phaseNames) && p > 0 {
		return phaseNames[p]
	}
	return "phase(?)"
}

// Need is what one request wants, all or nothing.
type Need struct {
	Hashes       []uint64 // chain of complete blocks that may be found in the cache
	Tokens       int32    // tokens that the table must cover
	Continuation int32    // blocks beyond them
	Spare        int32    // blocks that have to stay available, none of them taken
	Slot         bool     // a slot of per-request state
}

// Table is what a request holds. Blocks covers it from token 0; the pool owns the
// slice, it is valid until the hold is extended, admitted or freed.
type Table struct {
	ID     ID
	Phase  Phase
	Blocks []int32
	Cached int32 // leading tokens whose content was in the cache, a multiple of the block size
	Slot   int32 // -1: none
}

type block struct {
	ref      int32
	parent   int32  // registered block before this one in its chain, -1 at the root
	children int32  // registered blocks that continue this one
	hash     uint64 // 0: not registered
	used     uint64 // clock of the last use
}

type hold struct {
	Table
	tokens  int32
	settled bool // its table names no other blocks any more
}

// Pool is an allocator. One goroutine uses it.
type Pool struct {
	// Evicted is called for the hash of each block that the cache forgets; nil: nobody asks.
	Evicted func(hash uint64)

	cfg    Config
	blocks []block
	index  map[uint64]int32 // hash to registered block
	holds  map[ID]*hold
	slots  []ID // holder of each slot, 0: free
	last   ID
	clock  uint64
	free   heap  // blocks with no content, lowest number first
	leaves heap  // evictable blocks, longest unused first
	idle   int32 // registered blocks that no hold refers to
	slotsF int32 // free slots
}

// New makes a pool in which everything is free.
func New(cfg Config) (*Pool, error) {
	if err := cfg.Check(); err != nil {
		return nil, err
	}
	p := &Pool{cfg: cfg, blocks: make([]block, cfg.Blocks), index: map[uint64]int32{},
		holds: map[ID]*hold{}, slots: make([]ID, cfg.Slots), slotsF: cfg.Slots}
	p.free.init(int(cfg.Blocks))
	p.leaves.init(int(cfg.Blocks))
	for b := range p.blocks {
		p.blocks[b].parent = -1
		p.free.push(int32(b), 0)
	}
	return p, nil
}

// BlocksFor is the number of blocks that cover tokens.
func (p *Pool) BlocksFor(tokens int32) int32 {
	return int32((int64(tokens) + int64(p.cfg.BlockTokens) - 1) / int64(p.cfg.BlockTokens))
}

// Available is the number of blocks that a Reserve without cached prefix may take.
func (p *Pool) Available() int32 { return int32(p.free.len()) + p.idle }

// Reserve takes the longest cached prefix of n.Hashes and fresh blocks and a slot for
// the rest, or nothing: ErrFull, ErrNever.
func (p *Pool) Reserve(n Need) (Table, error) {
	if n.Tokens < 0 || n.Continuation < 0 || n.Spare < 0 {
		return Table{}, fmt.Errorf("%w: %d tokens, %d continuation and %d spare blocks", ErrNever, n.Tokens, n.Continuation, n.Spare)
	}
	total := int64(p.BlocksFor(n.Tokens)) + int64(n.Continuation)
	if total > int64(p.cfg.Blocks) {
		return Table{}, fmt.Errorf("%w: %d blocks wanted, the pool has %d", ErrNever, total, p.cfg.Blocks)
	}
	if n.Slot && p.cfg.Slots == 0 {
		return Table{}, fmt.Errorf("%w: a slot wanted, the pool has none", ErrNever)
	}
	hits, idle := p.lookup(n)
	fresh := int32(total) - hits
	if left := p.Available() - idle; int64(fresh)+int64(n.Spare) > int64(left) {
		return Table{}, fmt.Errorf("%w: %d blocks wanted beside %d, %d available", ErrFull, fresh, n.Spare, left)
	}
	if n.Slot && p.slotsF == 0 {
		return Table{}, fmt.Errorf("%w: all %d slots are taken", ErrFull, p.cfg.Slots)
	}
	p.clock++
	p.last++
	h := &hold{Table: Table{ID: p.last, Phase: Reserved, Slot: -1, Cached: hits * p.cfg.BlockTokens,
		Blocks: make([]int32, 0, total)}, tokens: n.Tokens}
	for _, hash := range n.Hashes[:hits] {
		b := p.index[hash]
		p.ref(b)
		h.Blocks = append(h.Blocks, b)
	}
	p.grow(h, int(total))
	if n.Slot {
		h.Slot = p.takeSlot(h.ID)
	}
	p.holds[h.ID] = h
	return h.Table, nil
}

// lookup counts the leading hashes that are cached, and how many of them are idle.
func (p *Pool) lookup(n Need) (hits, idle int32) {
	for _, hash := range n.Hashes {
		b, ok := p.index[hash]
		if !ok || hits == n.Tokens/p.cfg.BlockTokens {
			return hits, idle
		}
		if hits++; p.blocks[b].ref == 0 {
			idle++
		}
	}
	return hits, idle
}

// Extend grows a live hold until it covers tokens: all of it or ErrFull.
func (p *Pool) Extend(id ID, tokens int32) (Table, error) {
	h, err := p.get(id, Live)
	if err != nil {
		return Table{}, err
	}
	total := p.BlocksFor(tokens)
	if total > p.cfg.Blocks {
		return Table{}, fmt.Errorf("%w: %d blocks wanted, the pool has %d", ErrNever, total, p.cfg.Blocks)
	}
	if more := total - int32(len(h.Blocks)); more > p.Available() {
		return Table{}, fmt.Errorf("%w: %d blocks wanted, %d available", ErrFull, more, p.Available())
	}
	p.clock++
	p.grow(h, int(total))
	h.tokens = max(h.tokens, tokens)
	return h.Table, nil
}

// Admit makes a reserved hold live and puts its complete blocks into the cache under
// hashes, their chain from token 0. Where another block holds the same prefix
// already, the table takes that one and the own copy is freed: so a block is never
// kept without the one before it. A settled table keeps its own copies, uncached.
func (p *Pool) Admit(id ID, hashes []uint64) (Table, error) {
	h, err := p.get(id, Reserved)
	if err != nil {
		return Table{}, err
	}
	if complete := h.tokens / p.cfg.BlockTokens; int32(len(hashes)) > complete {
		return Table{}, fmt.Errorf("%w: %d hashes for %d complete blocks", ErrHold, len(hashes), complete)
	}
	p.clock++
	parent := int32(-1)
	for i, hash := range hashes {
		own := h.Blocks[i]
		known, ok := p.index[hash]
		switch {
		case ok && known != own && h.settled: // and what it has behind them: nobody holds known for that
			h.Phase = Live
			return h.Table, nil
		case ok && known != own:
			p.ref(known)
			p.unref(own)
			h.Blocks[i] = known
		case !ok && p.blocks[own].hash == 0:
			p.register(own, parent, hash)
		}
		parent = h.Blocks[i]
	}
	h.Phase = Live
	return h.Table, nil
}
