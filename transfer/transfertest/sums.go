package transfertest

import (
	"strings"
	"testing"

	"github.com/batonkv/baton/kernels/rows/plain"
	"github.com/batonkv/baton/transfer"
	"github.com/batonkv/baton/transfer/layout"
	"github.com/batonkv/baton/transfer/lower"
	"github.com/batonkv/baton/transfer/sums"
)

// checkSums: what a backend adds up of a destination is what the reference adds up of the
// source that was pulled, and a bit that changes is found.
func checkSums(t *testing.T, e Env, w *world, s Shape, pair int, j lower.Job) {
	t.Helper()
	m, ranks := w.plan.Model(), w.plan.Pairs()[pair]
	var own []layout.Shard
	for _, sh := range w.shards {
		if sh.Rank == ranks.Src {
			own = append(own, sh)
		}
	}
	made, err := sums.Choose(m, own, j.Tokens.Hi, int32(len(w.src)), sums.All, 0)
	if err != nil {
		t.Fatal(err)
	}
	ask := &sums.Job{Range: made.Range, Blocks: j.SrcBlocks, Slot: j.SrcSlot, Places: made.Here(m, own)}
	ops, n, err := plain.ResolveSums(nil, ask, mapped(w.src[ranks.Src]))
	if err != nil {
		t.Fatal(err)
	}
	out := make([]uint64, n)
	plain.Sum(ops, j.SrcBlocks, out)
	if err := made.Fill(out); err != nil {
		t.Fatal(err)
	}
	if err := made.Check(m, j.Tokens.Hi); err != nil {
		t.Fatal(err)
	}
	match := made.Of(m, w.plan.Parts(uint32(pair)), j.Tokens)
	if match.Missing != "" {
		t.Errorf("no sums of %s", match.Missing)
	}
	ask = &sums.Job{Range: match.Range, Blocks: j.DstBlocks, Slot: j.DstSlot, Places: match.There(m)}
	add := func() []uint64 {
		got, err := e.Backend.(transfer.Summer).Sum(t.Context(), ask)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	if n, of := match.Compare(m, add()); n > 0 {
		t.Errorf("tokens %v pair %d: %d sums differ of %d, the first of %s", j.Tokens, pair, n, match.Total(), of)
	}
	if match.Total() == 0 {
		return
	}
	p := &ask.Places[0]
	at := first(p, j)
	buf := &w.dst[ranks.Dst][p.View.Buffer]
	flip := func() {
		buf.load()
		buf.Bytes[at] ^= 4
		buf.store()
	}
	flip()
	want := m.States[p.State].Name
	if n, of := match.Compare(m, add()); n != 1 || !strings.Contains(of, want) {
		t.Errorf("a bit of %s changed: %d sums differ, the first of %s", want, n, of)
	}
	flip()
}

// first is where a byte lies that is summed.
func first(p *sums.Place, j lower.Job) int64 {
	if p.Paged() {
		return p.View.Off + int64(j.DstBlocks[p.Tokens.Lo/p.Depth])*p.View.Item + int64(p.Tokens.Lo%p.Depth)*p.View.Row
	}
	return p.View.Off + int64(j.DstSlot)*p.View.Item + int64(p.Depth-1)*p.View.Row
}
