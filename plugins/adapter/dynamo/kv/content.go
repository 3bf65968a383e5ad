package kv

import (
	"slices"

	"github.com/batonkv/baton/sidecar/handoff"
)

// maxHeld bounds the blocks of a content, with those that are kept since one after them is
// held. What is over it is not told: a router then expects less of the worker than it has.
const maxHeld = 1 << 18

// maxRun is how many blocks one event has.
const maxRun = 1024

// content is what a cache holds, as routers are told it: a tree. An engine may drop a block
// before those that follow it, and a router forgets these with it, or keeps what it never
// finds. So what is told is always whole: a block is told while it and all before it are held.
type content struct {
	blocks map[uint64]*node // by the engine's names
	root   node             // sequences begin below it
	held   int
	told   int    // of held: all before them are held too
	untold uint64 // blocks that no event tells: over the bound, or salted as routers cannot hash
	missed uint64 // events that the reader of the cache was too slow for
}

// node is a block. It stays while it or one after it is held.
type node struct {
	id                        uint64
	hash, tokens              uint64 // hash names it to routers; both once it is told
	parent, child, next, prev *node  // parent is nil: what is before it is not known
	held, told                bool
}

func newContent() *content {
	c := &content{}
	c.clear()
	return c
}

// clear forgets all.
func (c *content) clear() {
	*c = content{blocks: map[uint64]*node{}, untold: c.untold, missed: c.missed}
	c.root.told = true
}

// store takes blocks that follow each other and gives what routers are told of it.
func (c *content) store(e handoff.BlockEvent) (told []Data) {
	seed, at := SeedOf(e.Salt.LoRA), &c.root
	if e.Salt.Namespace != "" || e.Salt.Media != (handoff.Digest{}) {
		c.untold += uint64(len(e.Blocks))
		return nil
	}
	if e.Parent != 0 {
		at = c.block(e.Parent)
	}
	for n, b := range e.Blocks {
		var next *node
		if at != nil && b.ID != 0 && len(b.Tokens) > 0 && len(b.Tokens) == int(e.BlockTokens) {
			next = c.block(b.ID)
		}
		if next == nil || next.parent != nil && next.parent != at || next.parent == nil && above(at, next) {
			c.prune(next)
			c.untold += uint64(len(e.Blocks) - n)
			break
		}
		if next.parent == nil {
			c.link(next, at)
		}
		if !next.held {
			c.held++
			next.held, next.tokens = true, TokensHash(seed, b.Tokens)
			if at.told {
				told = c.reveal(next, told)
			}
		}
		at = next
	}
	c.prune(at)
	return told
}

// above says whether n is at or before it: what follows itself is no sequence.
func above(at, n *node) bool {
	for n.child != nil && at != nil && at != n {
		at = at.parent
	}
	return at == n
}

// block is that of an id; nil when there is no room for it.
func (c *content) block(id uint64) *node {
	n := c.blocks[id]
	if n == nil && len(c.blocks) < maxHeld {
		n = &node{id: id}
		c.blocks[id] = n
	}
	return n
}

// link puts n after parent.
func (c *content) link(n, parent *node) {
	n.parent, n.next, n.prev = parent, parent.child, nil
	if n.next != nil {
		n.next.prev = n
	}
	parent.child = n
}

// remove takes blocks that are held no more.
func (c *content) remove(ids []uint64) (told []Data) {
	for _, id := range ids {
		n := c.blocks[id]
		if n == nil || !n.held {
			continue
		}
		n.held = false
		c.held--
		if n.told {
			told = c.hide(n, told)
		}
		c.prune(n)
	}
	return told
}

// prune forgets n, and what is before it, as far as no block that is held is or follows it.
func (c *content) prune(n *node) {
	for n != nil && n != &c.root && !n.held && n.child == nil {
		p := n.parent
		if p != nil {
			if n.prev != nil {
				n.prev.next = n.next
			} else {
				p.child = n.next
			}
			if n.next != nil {
				n.next.prev = n.prev
			}
		}
		delete(c.blocks, n.id)
		n = p
	}
}

// walk visits root and what is below it, parents first; visit says whether to go below.
func walk(root *node, visit func(*node) bool) {
	for n := root; ; {
		if visit(n) && n.child != nil {
			n = n.child
			continue
		}
		for n != root && n.next == nil {
			n = n.parent
		}
		if n == root {
			return
		}
		n = n.next
	}
}

// reveal tells n and what is held after it.
func (c *content) reveal(n *node, told []Data) []Data {
	walk(n, func(n *node) bool {
		if !n.held {
			return false
		}
		n.told, n.hash = true, n.tokens
		if n.parent != &c.root {
			n.hash = SequenceHash(n.parent.hash, n.tokens)
		}
		c.told++
		told = c.add(told, n)
		return true
	})
	return told
}

// add appends n to what is told: to the last run when it follows that.
func (c *content) add(told []Data, n *node) []Data {
	b := BlockData{Hash: n.hash, Tokens: n.tokens}
	s := &StoredData{Blocks: []BlockData{b}}
	if n.parent != &c.root {
		if len(told) > 0 {
			if last := told[len(told)-1].Stored; last != nil && len(last.Blocks) < maxRun && last.Blocks[len(last.Blocks)-1].Hash == n.parent.hash {
				last.Blocks = append(last.Blocks, b)
				return told
			}
		}
		hash := n.parent.hash
		s.Parent = &hash
	}
	return append(told, Data{Stored: s})
}

// hide tells that n and what was told after it are held no more, the last ones first.
func (c *content) hide(n *node, told []Data) []Data {
	var gone []uint64
	walk(n, func(n *node) bool {
		was := n.told
		if n.told = false; was {
			gone = append(gone, n.hash)
		}
		return was
	})
	c.told -= len(gone)
	for _, hash := range slices.Backward(gone) {
		if len(told) > 0 {
			if last := told[len(told)-1].Removed; last != nil && len(last.Hashes) < maxRun {
				last.Hashes = append(last.Hashes, hash)
				continue
			}
		}
		told = append(told, Data{Removed: &RemovedData{Hashes: []uint64{hash}}})
	}
	return told
}

// dump is all that is told.
func (c *content) dump() (told []Data) {
	walk(&c.root, func(n *node) bool {
		if n != &c.root && n.told {
			told = c.add(told, n)
		}
		return n.told
	})
	return told
}
