package engine

import "github.com/batonkv/baton/examples/engine/model"

// dummies says whether ranks have memory for dummy rows: one block and one slot behind
// those of the pool, which neither requests nor hand-offs are ever given. Capacity does
// not count them, memory does.
func (c Config) dummies() bool { return c.EP > 1 }

// dummy computes one row that is nobody's, in a step that computes nothing else: experts
// on other ranks are met in every step, so that no rank of theirs waits for one that has
// nothing to do.
func (r *Rank) dummy() error {
	if !r.cfg.dummies() {
		return nil
	}
	seq := model.Seq{Blocks: []int32{r.cfg.Blocks}, Slot: -1}
	if r.hybrid() {
		seq.Slot = r.cfg.Slots
		r.mem.ClearSlot(seq.Slot)
	}
	_, err := r.run.Forward(seq, []int32{model.BOS}, 0)
	return err
}
