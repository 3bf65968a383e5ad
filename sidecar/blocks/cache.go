// Package blocks follows what an engine's prefix cache holds, by the events that tell of it,
// and hands it on to readers at their own pace. It is pure: whoever owns a Cache locks it.
//
// A reader that begins, or that is too far behind, gets the whole content, and then each
// change: so nothing is queued for a reader, and what is kept has a bound. A reader that
// applies what it reads holds what the Cache held at some instant, and holds what it
// holds once it has read everything.
package blocks

import (
	"fmt"
	"slices"
	"unicode/utf8"

	"github.com/batonkv/baton/sidecar/handoff"
)

// Bounds of a Cache.
const (
	MaxBlocks = 1 << 20
	MaxTokens = 1 << 25 // of all blocks
	maxBlock  = 1 << 16 // tokens of one block
	maxRun    = 1 << 18 // tokens of one event, but for one block
	maxSalt   = 256     // bytes of a name in a salt
	maxKept   = 1 << 20 // weight of the changes that are kept for readers
	spare     = 16      // places of blocks that have gone, beside as many as are held
)

// Cache is what an engine's prefix cache holds. Make it with New.
type Cache struct {
	limit  int // blocks
	kept   int // most weight of changes
	held   map[uint64]*block
	order  []*block // by the time at which they were stored; nil where one has gone
	tokens int

	changes []handoff.BlockEvent // the newest,
	first   uint64               // of which this is the number of the oldest
	weight  int
	ignored uint64
}

// block is what readers share: it does not change, but for at.
type block struct {
	handoff.StoredBlock
	parent      uint64
	blockTokens int32
	salt        *handoff.Salt // of its run
	at          int           // in order; the Cache's alone
}

// New makes a cache of at most limit blocks, 0 to MaxBlocks.
func New(limit int32) *Cache {
	c := &Cache{kept: maxKept, held: map[uint64]*block{}}
	c.Resize(limit)
	return c
}

// Resize forgets every block, and takes another limit.
func (c *Cache) Resize(limit int32) {
	c.clear(0)
	c.limit = int(min(max(limit, 0), MaxBlocks))
}

// Len is how many blocks are held.
func (c *Cache) Len() int { return len(c.held) }

// Changes is how many changes there were.
func (c *Cache) Changes() uint64 { return c.first + uint64(len(c.changes)) }

// Ignored is how many blocks found no room.
func (c *Cache) Ignored() uint64 { return c.ignored }

// Check says what is wrong with an event by itself, as handoff.ErrBound.
func Check(e handoff.BlockEvent) error {
	switch {
	case e.Kind < handoff.BlocksStored || e.Kind > handoff.BlocksCleared:
		return fmt.Errorf("%w: block event of kind %d: want stored, removed or cleared", handoff.ErrBound, e.Kind)
	case e.Kind != handoff.BlocksStored && len(e.Blocks) > 0, e.Kind != handoff.BlocksRemoved && len(e.Removed) > 0:
		return fmt.Errorf("%w: blocks are %v, and the event has %d that are stored and %d that are removed", handoff.ErrBound, e.Kind, len(e.Blocks), len(e.Removed))
	case e.Kind == handoff.BlocksStored && (e.BlockTokens < 1 || e.BlockTokens > maxBlock):
		return fmt.Errorf("%w: blocks of %d tokens: want 1 to %d", handoff.ErrBound, e.BlockTokens, maxBlock)
	}
	for _, name := range []string{e.Salt.LoRA, e.Salt.Namespace} {
		if len(name) > maxSalt || !utf8.ValidString(name) {
			return fmt.Errorf("%w: salt with a name of %d bytes: want at most %d of UTF-8", handoff.ErrBound, len(name), maxSalt)
		}
	}
	for _, b := range e.Blocks {
		if b.ID == 0 || len(b.Tokens) != int(e.BlockTokens) {
			return fmt.Errorf("%w: block %d has %d tokens: want an id that is not 0, and %d tokens", handoff.ErrBound, b.ID, len(b.Tokens), e.BlockTokens)
		}
	}
	return nil
}

// Apply takes a change, of whose slices it keeps none. It drops what changes nothing: blocks that
// are held already are not stored again, and what is not held is not removed. What finds no
// room is not held, and neither is what continues it.
func (c *Cache) Apply(e handoff.BlockEvent) error {
	if err := Check(e); err != nil {
		return err
	}
	switch e.Kind {
	case handoff.BlocksStored:
		c.store(e)
	case handoff.BlocksRemoved:
		c.remove(e.Removed)
	case handoff.BlocksCleared:
		c.clear(e.Lost)
	}
	return nil
}

func (c *Cache) clear(lost uint64) {
	if len(c.held) == 0 && lost == 0 {
		return
	}
	clear(c.held)
	c.order, c.tokens = nil, 0
	c.tell(handoff.BlockEvent{Kind: handoff.BlocksCleared, Lost: lost})
}

func (c *Cache) store(e handoff.BlockEvent) {
	e.Blocks = slices.Clone(e.Blocks)
	run := handoff.BlockEvent{Kind: handoff.BlocksStored, Parent: e.Parent, BlockTokens: e.BlockTokens, Salt: e.Salt}
	from, parent := 0, e.Parent
	told := func(to int) {
		for ; from < to; from += len(run.Blocks) {
			run.Blocks = e.Blocks[from:min(to, from+longest(e.BlockTokens))]
			if from > 0 {
				run.Parent = e.Blocks[from-1].ID
			}
			c.tell(run)
		}
	}
	for i, b := range e.Blocks {
		switch {
		case c.held[b.ID] != nil:
			told(i)
			from = i + 1
		case len(c.held) >= c.limit || c.tokens+len(b.Tokens) > MaxTokens:
			told(i)
			c.ignored += uint64(len(e.Blocks) - i)
			return
		default:
			b.Tokens = slices.Clone(b.Tokens)
			e.Blocks[i] = b
			c.add(&block{StoredBlock: b, parent: parent, blockTokens: e.BlockTokens, salt: &e.Salt})
		}
		parent = b.ID
	}
	told(len(e.Blocks))
}

// longest is how many blocks one event may have.
func longest(blockTokens int32) int {
	return min(handoff.MaxEventBlocks, max(maxRun/int(blockTokens), 1))
}

func (c *Cache) add(b *block) {
	c.held[b.ID] = b
	c.tokens += len(b.Tokens)
	if len(c.order) > 2*len(c.held)+spare { // else it grows with what has gone
		c.order = slices.DeleteFunc(c.order, func(b *block) bool { return b == nil })
		for i, o := range c.order {
			o.at = i
		}
	}
	b.at = len(c.order)
	c.order = append(c.order, b)
}

func (c *Cache) remove(ids []uint64) {
	var gone []uint64
	for _, id := range ids {
		b := c.held[id]
		if b == nil {
			continue
		}
		gone = append(gone, id)
		delete(c.held, id)
		c.tokens -= len(b.Tokens)
		c.order[b.at] = nil
	}
	for ; len(gone) > handoff.MaxEventBlocks; gone = gone[handoff.MaxEventBlocks:] {
		c.tell(handoff.BlockEvent{Kind: handoff.BlocksRemoved, Removed: gone[:handoff.MaxEventBlocks]})
	}
	if len(gone) > 0 {
		c.tell(handoff.BlockEvent{Kind: handoff.BlocksRemoved, Removed: gone})
	}
}

// Weight is what an event takes, in numbers.
func Weight(e handoff.BlockEvent) int {
	return 8 + len(e.Removed) + len(e.Blocks)*(2+int(e.BlockTokens))
}

// tell keeps a change for readers; the oldest make room.
func (c *Cache) tell(e handoff.BlockEvent) {
	c.changes = append(c.changes, e)
	for c.weight += Weight(e); c.weight > c.kept; c.first++ {
		c.weight -= Weight(c.changes[0])
		c.changes[0] = handoff.BlockEvent{}
		c.changes = c.changes[1:]
	}
}
