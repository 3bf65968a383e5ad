package paged

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
)

// Settle makes a reserved hold's table name the same blocks for good, but for new ones behind
// them: somebody reads them.
func (p *Pool) Settle(id ID) error {
	h, err := p.get(id, Reserved)
	if err == nil {
		h.settled = true
	}
	return err
}

// Pin detaches a live hold from its request: blocks and slot leave the batch and stay
// untouched until Free.
func (p *Pool) Pin(id ID) error { return p.move(id, Live, Pinned) }

// Drop ends a reserved hold whose content never came. Its blocks and slot stay out of
// use until ReleaseQuarantine, because a copy may still write them.
func (p *Pool) Drop(id ID) error { return p.move(id, Reserved, Quarantined) }

// ReleaseQuarantine returns what a dropped hold had: nobody writes there any more.
func (p *Pool) ReleaseQuarantine(id ID) (Table, error) { return p.release(id, Quarantined) }

// Free returns what a reserved, live or pinned hold has. Complete blocks that are in
// the cache stay there until they are evicted. A quarantined hold is refused.
func (p *Pool) Free(id ID) (Table, error) { return p.release(id, Reserved, Live, Pinned) }

// Lookup returns the table of a hold.
func (p *Pool) Lookup(id ID) (Table, bool) {
	h, ok := p.holds[id]
	if !ok {
		return Table{}, false
	}
	return h.Table, true
}

// Stats counts blocks and slots.
type Stats struct {
	Free, Idle, Held    int32 // blocks: without content; cached and unused; in tables
	SlotsFree, SlotHeld int32
	Holds               int32
}

// Stats counts what the pool has: Free + Idle + Held is its size.
func (p *Pool) Stats() Stats {
	s := Stats{Free: int32(p.free.len()), Idle: p.idle, SlotsFree: p.slotsF, Holds: int32(len(p.holds))}
	s.Held = p.cfg.Blocks - s.Free - s.Idle
	s.SlotHeld = p.cfg.Slots - s.SlotsFree
	return s
}

// Digest is a SHA-256 sum of everything that decides what the pool does next: two
// ranks whose digests agree give equal answers to equal calls.
func (p *Pool) Digest() (d [sha256.Size]byte) {
	b := make([]byte, 0, 32*len(p.blocks)+64)
	le := binary.LittleEndian
	b = le.AppendUint64(b, uint64(p.last))
	b = le.AppendUint64(b, p.clock)
	for i := range p.blocks {
		k := &p.blocks[i]
		b = le.AppendUint32(le.AppendUint32(b, uint32(k.ref)), uint32(k.parent))
		b = le.AppendUint64(le.AppendUint64(b, k.hash), k.used)
	}
	for _, id := range p.slots {
		b = le.AppendUint64(b, uint64(id))
	}
	for _, id := range slices.Sorted(maps.Keys(p.holds)) {
		h := p.holds[id]
		b = append(le.AppendUint64(b, uint64(id)), byte(h.Phase))
		if h.settled {
			b = append(b, 1)
		}
		b = le.AppendUint32(le.AppendUint32(b, uint32(h.tokens)), uint32(h.Cached))
		b = le.AppendUint32(b, uint32(len(h.Blocks)))
		for _, k := range h.Blocks {
			b = le.AppendUint32(b, uint32(k))
		}
	}
	return sha256.Sum256(b)
}

func (p *Pool) get(id ID, want ...Phase) (*hold, error) {
	h, ok := p.holds[id]
	if !ok {
		return nil, fmt.Errorf("%w: %d is not held", ErrHold, id)
	}
	if !slices.Contains(want, h.Phase) {
		return nil, fmt.Errorf("%w: %d is %v, want %v", ErrHold, id, h.Phase, want)
	}
	return h, nil
}

func (p *Pool) move(id ID, from, to Phase) error {
	h, err := p.get(id, from)
	if err != nil {
		return err
	}
	p.clock++
	h.Phase = to
	return nil
}

func (p *Pool) release(id ID, from ...Phase) (Table, error) {
	h, err := p.get(id, from...)
	if err != nil {
		return Table{}, err
	}
	p.clock++
	// From the end: a block is idle only after the ones that continue it.
	for _, b := range slices.Backward(h.Blocks) {
		p.unref(b)
	}
	if h.Slot >= 0 {
		p.slots[h.Slot] = 0
		p.slotsF++
	}
	delete(p.holds, id)
	return h.Table, nil
}

func (p *Pool) takeSlot(id ID) int32 {
	s := int32(slices.Index(p.slots, 0))
	p.slots[s] = id
	p.slotsF--
	return s
}

// grow takes fresh blocks until h has total; the caller checked that they are there.
func (p *Pool) grow(h *hold, total int) {
	for len(h.Blocks) < total {
		if p.free.len() == 0 {
			p.evict()
		}
		b := p.free.pop()
		p.blocks[b].ref, p.blocks[b].used = 1, p.clock
		h.Blocks = append(h.Blocks, b)
	}
}

// evict forgets the longest unused block that no cached block continues.
func (p *Pool) evict() {
	b := p.leaves.pop()
	k := &p.blocks[b]
	delete(p.index, k.hash)
	if p.Evicted != nil {
		p.Evicted(k.hash)
	}
	parent := k.parent
	k.hash, k.parent = 0, -1
	p.idle--
	p.free.push(b, 0)
	if parent >= 0 {
		q := &p.blocks[parent]
		if q.children--; q.children == 0 && q.ref == 0 {
			p.leaves.push(parent, q.used)
		}
	}
}

// Caches reports whether a block is found under hash.
func (p *Pool) Caches(hash uint64) bool {
	_, ok := p.index[hash]
	return ok
}

// Forget frees every block that is cached and unused.
func (p *Pool) Forget() {
	for p.leaves.len() > 0 {
		p.evict()
	}
}

func (p *Pool) register(b, parent int32, hash uint64) {
	k := &p.blocks[b]
	k.hash, k.parent = hash, parent
	p.index[hash] = b
	if parent >= 0 {
		p.blocks[parent].children++
	}
}

func (p *Pool) ref(b int32) {
	k := &p.blocks[b]
	if k.ref == 0 {
		p.idle--
		if k.children == 0 {
			p.leaves.remove(b)
		}
	}
	k.ref++
	k.used = p.clock
}

func (p *Pool) unref(b int32) {
	k := &p.blocks[b]
	k.used = p.clock
	if k.ref--; k.ref > 0 {
		return
	}
	switch {
	case k.hash == 0:
		p.free.push(b, 0)
	case k.children == 0:
		p.idle++
		p.leaves.push(b, k.used)
	default:
		p.idle++
	}
}
