package handoff

import (
	"fmt"
	"math"
	"slices"

	"github.com/batonkv/baton/transfer/layout"
)

// Bounds is how far the ids of a rank's blocks and slots reach: as far as the smallest of its
// shards. Capacity may count fewer, where an engine keeps some for itself. A rank that holds
// nothing in blocks, as a stage without attention, is given tables that say nothing of its
// memory. Not for concurrent use.
type Bounds struct {
	paged, slotted bool // of what is per block, and per request, the rank holds some
	slotless       bool // nothing of the model is per request
	blocks, slots  int32
	tokens         int32    // of a block
	seen           []uint64 // a bit for each block; none is set between two calls
}

// NewBounds is of the shards that a states, in blocks of its capacity. Those that
// layout.Model.Check refuses do not count.
func NewBounds(a Attach) Bounds {
	b := Bounds{blocks: math.MaxInt32, slots: math.MaxInt32, tokens: max(a.Capacity.BlockTokens, 1), slotless: a.slotless()}
	for _, s := range a.Shards {
		switch st, ok := a.stateOf(s); {
		case !ok:
		case st.Paging == layout.PerBlock:
			b.paged, b.blocks = true, min(b.blocks, s.Items)
		default:
			b.slotted, b.slots = true, min(b.slots, s.Items)
		}
	}
	return b
}

// slotless reports whether nothing of the model is per request.
func (a Attach) slotless() bool {
	return !slices.ContainsFunc(a.Model.Layout.States, func(s layout.State) bool { return s.Paging == layout.PerRequest })
}

// stateOf is the state that a shard is of; ok is false for one that cannot be.
func (a Attach) stateOf(s layout.Shard) (layout.State, bool) {
	ss := a.Model.Layout.States
	if s.State < 0 || int(s.State) >= len(ss) || s.Items < 1 {
		return layout.State{}, false
	}
	return ss[s.State], true
}

// Export says why an export of label cannot be, whose first tokens are computed: too few or
// too many blocks, those of before included, or one of what Check finds.
func (b *Bounds) Export(label string, before, blocks []int32, slot, computed, tokens int32) error {
	n, least, most := len(before)+len(blocks), b.blocksOf(computed), b.blocksOf(tokens)
	if b.paged && (n < least || n > most) {
		want := fmt.Sprint(least)
		if least != most {
			want = fmt.Sprintf("%d to %d", least, most)
		}
		return fmt.Errorf("%w: export of %q: %d of %d tokens are computed, and %d blocks are named: want %s", ErrEngine, label, computed, tokens, n, want)
	}
	if err := b.Check(before, blocks, slot); err != nil {
		return fmt.Errorf("export of %q: %w", label, err)
	}
	return nil
}

// blocksOf is how many blocks hold so many tokens.
func (b *Bounds) blocksOf(tokens int32) int {
	n := int64(b.tokens)
	return int((int64(tokens) + n - 1) / n)
}

// Check says why no prompt can lie in blocks, behind those of before, and in slot (less than
// 0: none): a block or a slot that is not there, or a block that comes twice. It takes as long
// as reading both, and after the first call no memory.
func (b *Bounds) Check(before, blocks []int32, slot int32) error {
	if b.slotless && slot > 0 { // 0 is what an engine in Go says that says nothing
		return fmt.Errorf("%w: slot %d: the model has no per-request state", ErrEngine, slot)
	}
	if b.slotted && slot >= b.slots {
		return fmt.Errorf("%w: slot %d: there are %d, from 0", ErrEngine, slot, b.slots)
	}
	if !b.paged {
		return nil
	}
	if b.seen == nil {
		b.seen = make([]uint64, (int64(b.blocks)+63)/64) // a bit for a block of memory that is there
	}
	_, err := b.mark(before, 0)
	n := 0
	if err == nil {
		n, err = b.mark(blocks, len(before))
	}
	if len(b.seen) <= len(before)+n {
		clear(b.seen)
		return err
	}
	for _, ids := range [...][]int32{before, blocks[:n]} {
		for _, id := range ids {
			if w := uint32(id) / 64; int(w) < len(b.seen) {
				b.seen[w] = 0
			}
		}
	}
	return err
}

// Reserved says why r cannot be the memory of a prompt: what Check finds, or cached tokens that
// end within a block, or beyond the last.
func (b *Bounds) Reserved(r Reserved) error {
	if r.Cached < 0 || r.Cached%b.tokens != 0 {
		return fmt.Errorf("%w: %d tokens are cached: want a multiple of %d, the tokens of a block", ErrEngine, r.Cached, b.tokens)
	}
	if n := b.blocksOf(r.Cached); b.paged && n > len(r.Blocks) {
		return fmt.Errorf("%w: %d tokens are cached, and %d blocks of %d are named", ErrEngine, r.Cached, len(r.Blocks), b.tokens)
	}
	return b.Check(nil, r.Blocks, r.Slot)
}

// mark notes ids, the first of which is at a place of a table, and returns how many it noted.
func (b *Bounds) mark(ids []int32, at int) (int, error) {
	seen, blocks := b.seen, uint32(b.blocks)
	for i, id := range ids {
		u := uint32(id) // less than 0 is beyond all
		if u >= blocks {
			return i, fmt.Errorf("%w: block %d at place %d: there are %d, from 0", ErrEngine, id, at+i, blocks)
		}
		w, bit := &seen[u/64], uint64(1)<<(u%64)
		if *w&bit != 0 {
			return i, fmt.Errorf("%w: block %d at place %d is named twice", ErrEngine, id, at+i)
		}
		*w |= bit
	}
	return len(ids), nil
}

// CheckCapacity says why a counts more than its shards hold, or in blocks of another size.
func CheckCapacity(a Attach) error {
	c := a.Capacity
	if c.Slots != 0 && a.slotless() {
		return fmt.Errorf("%w: capacity.slots is %d, and the model has no per-request state: want 0", ErrAttach, c.Slots)
	}
	for _, s := range a.Shards {
		st, ok := a.stateOf(s)
		if !ok {
			continue // layout.Model.Check says so
		}
		what, n := "blocks", c.Blocks
		if st.Paging == layout.PerRequest {
			what, n = "slots", c.Slots
		}
		switch {
		case n < 1 || n > s.Items:
			return fmt.Errorf("%w: capacity.%s is %d, and the shard of %q has %d %s: want 1 to %d", ErrAttach, what, n, st.Name, s.Items, what, s.Items)
		case st.Paging == layout.PerBlock && s.Rows != c.BlockTokens:
			return fmt.Errorf("%w: capacity.block_tokens is %d, and a block of the shard of %q has %d", ErrAttach, c.BlockTokens, st.Name, s.Rows)
		}
	}
	return nil
}
