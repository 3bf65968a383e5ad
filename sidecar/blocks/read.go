package blocks

import (
	"slices"

	"github.com/batonkv/baton/sidecar/handoff"
)

// Reader is how far somebody has read a Cache. The zero Reader begins.
type Reader struct {
	begun bool
	next  uint64               // number of the change to read next,
	rest  []handoff.BlockEvent // once what is left of a snapshot was read,
	list  []*block             // which is to be made of these yet; in order of Cache
	gaps  uint64
}

// Gaps is how often it was too far behind, and began anew.
func (r *Reader) Gaps() uint64 { return r.gaps }

// Read gives what r has to hear next; false: nothing. Slices are read only.
func (c *Cache) Read(r *Reader) (handoff.BlockEvent, bool) {
	if !r.begun || r.next < c.first {
		cleared := handoff.BlockEvent{Kind: handoff.BlocksCleared}
		if r.begun {
			cleared.Lost = c.Changes() - r.next
			r.gaps++
		}
		*r = Reader{begun: true, next: c.Changes(), list: slices.Clone(c.order), gaps: r.gaps}
		return cleared, true
	}
	r.Prepare()
	if len(r.rest) > 0 {
		e := r.rest[0]
		r.rest[0] = handoff.BlockEvent{}
		r.rest = r.rest[1:]
		return e, true
	}
	r.rest = nil
	if r.next == c.Changes() {
		return handoff.BlockEvent{}, false
	}
	r.next++
	return c.changes[r.next-1-c.first], true
}

// Ready says that Prepare has nothing to do.
func (r *Reader) Ready() bool { return len(r.list) == 0 }

// Prepare makes ready what r is to read of a snapshot, which takes long for many blocks. It
// touches no Cache: who locks one calls it between two Reads without, and nobody waits.
func (r *Reader) Prepare() {
	if r.Ready() {
		return
	}
	r.rest, r.list = runs(r.list), nil
}

// runs lists blocks in runs, a block after the one that it continues where that is among them,
// else by age.
func runs(list []*block) (out []handoff.BlockEvent) {
	left := make(map[uint64]*block, len(list)) // what out has not
	for _, b := range list {
		if b != nil {
			left[b.ID] = b
		}
	}
	var above []*block // and what they continue, the newest first
	var last *block
	for _, oldest := range list {
		if oldest == nil {
			continue
		}
		for b := left[oldest.ID]; b != nil; b = left[b.parent] {
			delete(left, b.ID)
			above = append(above, b)
		}
		for len(above) > 0 {
			b := above[len(above)-1]
			above = above[:len(above)-1]
			if n := len(out); n > 0 && continues(out[n-1], last, b) {
				out[n-1].Blocks = append(out[n-1].Blocks, b.StoredBlock)
			} else {
				out = append(out, handoff.BlockEvent{Kind: handoff.BlocksStored, Parent: b.parent,
					Blocks: []handoff.StoredBlock{b.StoredBlock}, BlockTokens: b.blockTokens, Salt: *b.salt})
			}
			last = b
		}
	}
	return out
}

// continues says whether b goes into the run that last ends.
func continues(run handoff.BlockEvent, last, b *block) bool {
	return b.parent == last.ID && len(run.Blocks) < longest(b.blockTokens) && b.blockTokens == run.BlockTokens && *b.salt == run.Salt
}
