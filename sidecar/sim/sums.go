package sim

import (
	"time"

	"github.com/batonkv/baton/sidecar/machine"
	"github.com/batonkv/baton/transfer/sums"
)

// verifies draws how a world's sidecars verify. Copies bring wrong bits where all is compared:
// elsewhere nobody would find them.
func (w *world) verifies() (m sums.Mode, corrupt int) {
	switch w.r.IntN(8) {
	case 0, 1:
		return sums.All, w.r.IntN(20)
	case 2:
		return sums.Sample, 0
	}
	return sums.Off, 0
}

// sum is a mover that adds up its engine's memory at one instant.
func (n *sidecar) sum(f machine.Sum) {
	w, e := n.w, n.memory
	took := w.between(50*time.Microsecond, 3*time.Millisecond)
	if w.chance(6) {
		took = w.between(3*time.Millisecond, 4*time.Second)
	}
	if e == nil || w.chance(w.temper.failing/4) {
		w.hit(SumFails)
		w.after(took, n, func() { n.step(machine.Summed{Ticket: f.Ticket, Err: errCopy}) })
		return
	}
	if n.adding == nil {
		n.adding = map[*engine]int{}
	}
	n.adding[e]++
	var made []uint64
	w.after(w.between(0, took), nil, func() { made = e.added(f.Job) })
	w.after(took, n, func() {
		n.adding[e]--
		n.step(machine.Summed{Ticket: f.Ticket, Sums: made})
	})
}

// added are numbers of what the cells that a job names hold, wherever these are.
func (e *engine) added(j sums.Job) (out []uint64) {
	for _, p := range j.Places {
		for u := p.Box.Units.Lo; u < p.Box.Units.Hi; u++ {
			of := func(cell int, at int32) uint64 {
				x := uint64(e.cells[cell].holds[u])<<32 ^ uint64(p.State)<<24 ^ uint64(u)<<16 ^ uint64(at) + 1
				return (x ^ x>>29) * 0x9e3779b97f4a7c15
			}
			if !p.Paged() {
				out = append(out, of(e.blocks+int(j.Slot), 0))
				continue
			}
			for lo := p.Tokens.Lo; lo < p.Tokens.Hi; lo += j.Range {
				var sum uint64
				for at := lo; at < min(lo+j.Range, p.Tokens.Hi); at += blockTokens {
					sum += of(int(j.Blocks[at/blockTokens]), at)
				}
				out = append(out, sum)
			}
		}
	}
	return out
}

// corrupt changes one head of one cell that a copy brought.
func (n *sidecar) corrupt(t *ticket) {
	lo, hi := n.units()
	slo, shi := t.link.eng.units()
	lo, hi = max(lo, slo), min(hi, shi)
	j := t.p.Job
	cells := j.DstBlocks[int(j.Tokens.Lo)/blockTokens : (int(j.Tokens.Hi)+blockTokens-1)/blockTokens]
	if lo >= hi || len(cells) == 0 {
		return
	}
	n.w.hit(CopyCorrupts)
	n.w.corrupt = true
	t.into.cells[cells[n.w.r.IntN(len(cells))]].holds[lo+n.w.r.IntN(hi-lo)] = dirt
}
