package e2e

import (
	"errors"
	"testing"

	"github.com/batonkv/baton/cmd/dev"
	"github.com/batonkv/baton/sidecar/handoff"
)

// TestSetWeightsEpoch: what old weights made is neither imported nor found in a cache, on
// either side, and groups that are at one epoch again go on. A reset then leaves nothing.
func TestSetWeightsEpoch(t *testing.T) {
	w := up(t, "tp=2,role=prefill+tp=2,role=decode", "hybrid")
	p := prompt(1, 3*block+2)
	w.handoff("cached", p)
	man, err := w.export(bounded(t), w.prefill, "old", p)
	if err != nil {
		t.Fatal(err)
	}
	set := func(g *dev.Running, epoch uint64) {
		t.Helper()
		if err := g.Leader.SetWeightsEpoch(bounded(t), epoch); err != nil {
			t.Fatal(err)
		}
	}
	set(w.decode, 8)
	if _, err := w.bring(bounded(t), w.decode, man, "old", p); !errors.Is(err, handoff.ErrWeights) {
		t.Errorf("state of old weights: %v", err)
	}
	set(w.prefill, 8)
	w.allFree(w.prefill, poolBlocks, poolSlots)
	if _, err := w.bring(bounded(t), w.decode, man, "old", p); !errors.Is(err, handoff.ErrGone) {
		t.Errorf("what old weights made is held: %v", err)
	}
	if err := w.prefill.Leader.SetWeightsEpoch(bounded(t), 7); !errors.Is(err, handoff.ErrWeights) {
		t.Errorf("an older epoch: %v", err)
	}
	m := w.handoff("new", p)
	if m.Cached != 0 {
		t.Errorf("%d tokens of old weights were found in the cache", m.Cached)
	}
	if _, err := w.export(bounded(t), w.prefill, "held", p); err != nil {
		t.Fatal(err)
	}
	for _, g := range []*dev.Running{w.prefill, w.decode} {
		for err := handoff.ErrQuiet; err != nil; {
			if err = g.Leader.Reset(bounded(t)); err != nil && !errors.Is(err, handoff.ErrQuiet) {
				t.Fatal(err)
			}
		}
		w.allFree(g, poolBlocks, poolSlots)
	}
}
