package transfertest

import (
	"bytes"
	"context"
	"fmt"
	"testing"

	"github.com/batonkv/baton/kernels/rows/plain"
	"github.com/batonkv/baton/transfer"
	"github.com/batonkv/baton/transfer/layout"
	"github.com/batonkv/baton/transfer/layout/parallel"
	"github.com/batonkv/baton/transfer/lower"
	"github.com/batonkv/baton/transfer/reshard"
)

// canary fills destination memory: what no plan writes must keep it.
const canary = 0xC5

// Shape is one hand-off that the suite runs: a hybrid model between two groups.
type Shape struct {
	Desc     parallel.Desc
	Src, Dst parallel.Cut
	SrcMem   parallel.Memory
	DstMem   parallel.Memory
}

// hybrid is small, and has every kind of state.
var hybrid = parallel.Desc{
	Attention: &parallel.Attention{Layers: 3, Heads: 4, Dim: 16},
	Mamba:     &parallel.Mamba{Layers: 2, Heads: 8, HeadDim: 4, StateDim: 8, Groups: 2, Window: 4},
}

func memory(blocks, tokens int32) parallel.Memory {
	return parallel.Memory{Blocks: blocks, BlockTokens: tokens, KV: layout.BF16, Slots: 4, Conv: layout.BF16, SSM: layout.F32}
}

// Shapes are the re-shards of the suite by name.
func Shapes() map[string]Shape {
	heads := memory(40, 16)
	heads.HeadsFirst = true
	perLayer := memory(12, 64)
	perLayer.Order = parallel.LayerBlocks
	typed := memory(40, 16)
	typed.KV, typed.Conv, typed.SSM = layout.F16, layout.F32, layout.BF16
	return map[string]Shape{
		"same":           {hybrid, parallel.Cut{TP: 2}, parallel.Cut{TP: 2}, memory(40, 16), memory(40, 16)},
		"tp2 to tp1":     {hybrid, parallel.Cut{TP: 2}, parallel.Cut{TP: 1}, memory(40, 16), memory(40, 16)},
		"tp1 to tp2":     {hybrid, parallel.Cut{TP: 1}, parallel.Cut{TP: 2}, memory(40, 16), memory(40, 16)},
		"tp4 to pp2":     {hybrid, parallel.Cut{TP: 4}, parallel.Cut{PP: 2}, memory(40, 16), memory(12, 64)},
		"heads to layer": {hybrid, parallel.Cut{TP: 2}, parallel.Cut{TP: 1}, heads, perLayer},
		"converted":      {hybrid, parallel.Cut{TP: 2}, parallel.Cut{TP: 1}, memory(40, 16), typed},
	}
}

// world is the memory of a shape's ranks and their plan.
type world struct {
	plan     *reshard.Plan
	src, dst [][]Buffer     // by rank, by region
	shards   []layout.Shard // of the sources
}

func newWorld(t testing.TB, s Shape, e Env) *world {
	t.Helper()
	w := &world{}
	rank := func(c parallel.Cut, m parallel.Memory, alloc Alloc, fill func([]byte)) (out [][]Buffer, shards []layout.Shard) {
		for r := range c.Ranks() {
			rm, err := s.Desc.Rank(c, m, layout.Rank(r))
			if err != nil {
				t.Fatal(err)
			}
			var bufs []Buffer
			for _, n := range rm.Buffers {
				b := alloc(t, n)
				fill(b.Bytes)
				b.store()
				bufs = append(bufs, b)
			}
			out, shards = append(out, bufs), append(shards, rm.Shards...)
		}
		return out, shards
	}
	x := uint32(7)
	var dstShards []layout.Shard
	source := e.Source
	if source == nil {
		source = e.Alloc
	}
	w.src, w.shards = rank(s.Src, s.SrcMem, source, func(b []byte) {
		for i := range b {
			x = x*1664525 + 1013904223
			b[i] = byte(x >> 24)
		}
	})
	w.dst, dstShards = rank(s.Dst, s.DstMem, e.Alloc, func(b []byte) {
		for i := range b {
			b[i] = canary
		}
	})
	var err error
	if w.plan, err = reshard.New(s.Desc.Model(), w.shards, dstShards); err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *world) template(t testing.TB, pair int) *lower.Template {
	t.Helper()
	tm, err := lower.New(w.plan, uint32(pair))
	if err != nil {
		t.Fatal(err)
	}
	return tm
}

// job moves tokens through tables that are no run of neighbours, from slot 1 to 2.
func (s Shape) job(pair int, tokens layout.Span) lower.Job {
	table := func(m parallel.Memory, step int32) []int32 {
		n := (tokens.Hi + m.BlockTokens - 1) / m.BlockTokens
		out := make([]int32, n)
		for i := range out {
			out[i] = (int32(i)*step + 3) % m.Blocks
		}
		return out
	}
	return lower.Job{Handoff: [16]byte{9}, Pair: uint32(pair), Tokens: tokens, SrcSlot: 1, DstSlot: 2,
		SrcBlocks: table(s.SrcMem, 7), DstBlocks: table(s.DstMem, 11)}
}

func mapped(bs []Buffer) (out transfer.Buffers) {
	for _, b := range bs {
		out = append(out, transfer.Mapped{Addr: address(b.Bytes), Len: int64(len(b.Bytes))})
	}
	return out
}

// shadow is what the destination rank's buffers must hold after the jobs: the Go
// reference run on copies.
func (w *world) shadow(t testing.TB, rank layout.Rank, tms []*lower.Template, jobs []lower.Job) [][]byte {
	t.Helper()
	var bufs []Buffer
	var out [][]byte
	for _, b := range w.dst[rank] {
		b.load()
		c := Local(t, int64(len(b.Bytes)))
		copy(c.Bytes, b.Bytes)
		bufs, out = append(bufs, c), append(out, c.Bytes)
	}
	for i, tm := range tms {
		ns, err := tm.Nests(nil, jobs[i])
		if err != nil {
			t.Fatal(err)
		}
		if _, err := (plain.Copier{}).Copy(t.Context(), ns, mapped(w.src[tm.Ranks().Src]), mapped(bufs)); err != nil {
			t.Fatal(err)
		}
	}
	return out
}

func equal(t testing.TB, got []Buffer, want [][]byte) {
	t.Helper()
	for i := range got {
		got[i].load()
		if !bytes.Equal(got[i].Bytes, want[i]) {
			t.Errorf("region %d: bytes differ", i)
		}
	}
}

func (w *world) register(t testing.TB, b transfer.Backend, rank layout.Rank) []transfer.Region {
	t.Helper()
	var out []transfer.Region
	for i, m := range w.dst[rank] {
		r, err := b.Register(t.Context(), transfer.RegionID(i), m.Memory())
		if err != nil {
			t.Fatal(err)
		}
		if r.ID() != transfer.RegionID(i) {
			t.Fatalf("region %d says it is %d", i, r.ID())
		}
		out = append(out, r)
	}
	return out
}

func (w *world) peer(rank layout.Rank) transfer.Peer {
	p := transfer.Peer{ID: transfer.PeerID(fmt.Sprintf("prefill/%d@1", rank)), Regions: map[transfer.RegionID]transfer.Memory{}}
	for i, m := range w.src[rank] {
		p.Regions[transfer.RegionID(i)] = m.Memory()
	}
	return p
}

func (w *world) open(t testing.TB, b transfer.Backend, rank layout.Rank) transfer.Link {
	t.Helper()
	l, err := b.Open(t.Context(), w.peer(rank))
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func pull(t testing.TB, l transfer.Link, tm *lower.Template, j lower.Job) transfer.Ticket {
	t.Helper()
	k, err := l.Pull(t.Context(), tm, j)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// wait waits for a ticket and returns its error.
func wait(t testing.TB, k transfer.Ticket) error {
	t.Helper()
	select {
	case <-k.Done():
		return k.Err()
	case <-t.Context().Done():
		t.Fatal("the test ended before the ticket was done")
		return context.Canceled
	}
}

// try pulls and waits: a refusal may come from either.
func try(t testing.TB, l transfer.Link, tm *lower.Template, j lower.Job) error {
	t.Helper()
	k, err := l.Pull(t.Context(), tm, j)
	if err != nil {
		return err
	}
	return wait(t, k)
}
