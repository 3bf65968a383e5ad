package pack_test

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/batonkv/baton/kernels/rows/plain"
	"github.com/batonkv/baton/transfer"
	"github.com/batonkv/baton/transfer/layout"
	"github.com/batonkv/baton/transfer/layout/parallel"
	"github.com/batonkv/baton/transfer/lower"
	"github.com/batonkv/baton/transfer/reshard"
	"github.com/batonkv/baton/transfer/staged/pack"
	"github.com/batonkv/baton/transfer/transfertest"
)

var hybrid = parallel.Desc{
	Attention: &parallel.Attention{Layers: 3, Heads: 4, Dim: 16},
	Mamba:     &parallel.Mamba{Layers: 2, Heads: 8, HeadDim: 4, StateDim: 8, Groups: 2, Window: 4},
}

// models are hybrid and either of its kinds alone, so that the last move is of each kind.
var models = []parallel.Desc{hybrid, {Attention: hybrid.Attention}, {Mamba: hybrid.Mamba}}

// side is one group: its shards and its ranks' buffers.
type side struct {
	mem    parallel.Memory
	shards []layout.Shard
	bufs   [][]transfertest.Buffer
}

func newSide(t testing.TB, d parallel.Desc, c parallel.Cut, m parallel.Memory, fill func([]byte)) side {
	s := side{mem: m}
	for r := range c.Ranks() {
		rm, err := d.Rank(c, m, layout.Rank(r))
		if err != nil {
			t.Fatal(err)
		}
		s.shards = append(s.shards, rm.Shards...)
		var bufs []transfertest.Buffer
		for _, n := range rm.Buffers {
			b := transfertest.Local(t, n)
			fill(b.Bytes)
			bufs = append(bufs, b)
		}
		s.bufs = append(s.bufs, bufs)
	}
	return s
}

func (s side) of(r layout.Rank) (out []layout.Shard) {
	for _, sh := range s.shards {
		if sh.Rank == r {
			out = append(out, sh)
		}
	}
	return out
}

func (s side) table(tokens layout.Span, step int32) []int32 {
	out := make([]int32, (tokens.Hi+s.mem.BlockTokens-1)/s.mem.BlockTokens)
	for i := range out {
		out[i] = (int32(i)*step + 3) % s.mem.Blocks
	}
	return out
}

func mapped(bs ...transfertest.Buffer) (out transfer.Buffers) {
	for _, b := range bs {
		m := b.Memory()
		out = append(out, transfer.Mapped{Addr: m.Addr, Len: m.Len})
	}
	return out
}

func copyAll(t testing.TB, tm *lower.Template, j lower.Job, src, dst transfer.Buffers) {
	ns, err := tm.Nests(nil, j)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := (plain.Copier{}).Copy(t.Context(), ns, src, dst); err != nil {
		t.Fatal(err)
	}
}

func noise(seed uint64) func([]byte) {
	r := rand.New(rand.NewPCG(seed, 7))
	return func(b []byte) {
		for i := range b {
			b[i] = byte(r.Uint32())
		}
	}
}

func canary(b []byte) {
	for i := range b {
		b[i] = 0xC5
	}
}

// TestPackedIsDirect: what goes through chunks lands as a direct copy does, whatever the
// layouts, the tokens and the size of a chunk, and no byte beside it changes.
func TestPackedIsDirect(t *testing.T) {
	types := []layout.DType{layout.BF16, layout.F16, layout.F32}
	memory := func(r *rapid.T) parallel.Memory {
		m := parallel.Memory{Blocks: 12, BlockTokens: rapid.SampledFrom([]int32{1, 8, 16, 64}).Draw(r, "block"), Slots: 4,
			KV: rapid.SampledFrom(types).Draw(r, "kv"), Conv: rapid.SampledFrom(types).Draw(r, "conv"), SSM: rapid.SampledFrom(types).Draw(r, "ssm"),
			Columns: rapid.SampledFrom([]int32{0, 3}).Draw(r, "columns"), HeadsFirst: rapid.Bool().Draw(r, "heads first")}
		if m.Blocks = 400 / m.BlockTokens; rapid.Bool().Draw(r, "by layer") {
			m.Order = parallel.LayerBlocks
		}
		return m
	}
	cuts := []parallel.Cut{{TP: 1}, {TP: 2}, {TP: 4}, {PP: 2}, {TP: 2, PP: 2}}
	rapid.Check(t, func(r *rapid.T) {
		desc := rapid.SampledFrom(models).Draw(r, "model")
		sm, dm := memory(r), memory(r)
		src := newSide(t, desc, rapid.SampledFrom(cuts).Draw(r, "from"), sm, noise(rapid.Uint64().Draw(r, "seed")))
		dst := newSide(t, desc, rapid.SampledFrom(cuts).Draw(r, "to"), dm, canary)
		var want side
		for _, bufs := range dst.bufs {
			var own []transfertest.Buffer
			for _, b := range bufs {
				o := transfertest.Local(t, int64(len(b.Bytes)))
				canary(o.Bytes)
				own = append(own, o)
			}
			want.bufs = append(want.bufs, own)
		}
		lo := rapid.Int32Range(0, 100).Draw(r, "lo")
		tokens := layout.Span{Lo: lo, Hi: lo + rapid.Int32Range(0, 200).Draw(r, "tokens")}
		w := &world{plan: plan(t, desc, src, dst), src: src, dst: dst, tokens: tokens, room: rapid.Int64Range(512, 1<<16).Draw(r, "room")}
		for i, pair := range w.plan.Pairs() {
			w.direct(t, uint32(i), want.bufs[pair.Dst])
			w.through(t, uint32(i))
		}
		for rank := range dst.bufs {
			for i, b := range dst.bufs[rank] {
				if !bytes.Equal(b.Bytes, want.bufs[rank][i].Bytes) {
					t.Fatalf("rank %d, buffer %d: bytes differ", rank, i)
				}
			}
		}
	})
}

type world struct {
	plan     *reshard.Plan
	src, dst side
	tokens   layout.Span
	room     int64
}

func plan(t testing.TB, d parallel.Desc, src, dst side) *reshard.Plan {
	p, err := reshard.New(d.Model(), src.shards, dst.shards)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func (w *world) direct(t testing.TB, pair uint32, into []transfertest.Buffer) {
	tm, err := lower.New(w.plan, pair)
	if err != nil {
		t.Fatal(err)
	}
	j := lower.Job{Pair: pair, Tokens: w.tokens, SrcBlocks: w.src.table(w.tokens, 7), DstBlocks: w.dst.table(w.tokens, 11), SrcSlot: 1, DstSlot: 2}
	copyAll(t, tm, j, mapped(w.src.bufs[tm.Ranks().Src]...), mapped(into...))
}

// through packs every chunk of a pair, carries it to the other arena and unpacks it there.
func (w *world) through(t testing.TB, pair uint32) {
	ranks := w.plan.Pairs()[pair]
	p, err := pack.New(w.plan.Model(), pack.Of(w.plan, pair), w.room)
	if err != nil {
		t.Fatal(err)
	}
	const head, chunks = 64, 3
	a := pack.Arena{Chunks: chunks, Chunk: w.room + 2*head, Head: head}
	out, in := transfertest.Local(t, chunks*a.Chunk), transfertest.Local(t, chunks*a.Chunk)
	packs, unpacks := p.Pack(w.src.of(ranks.Src), a), p.Unpack(w.dst.of(ranks.Dst), a)
	n, err := p.Chunks(w.tokens)
	if err != nil {
		t.Fatal(err)
	}
	for seq := range n {
		from, to := seq%chunks, (seq+1)%chunks
		size, err := p.Bytes(w.tokens, seq)
		if err != nil || size < 1 || size > w.room {
			t.Fatalf("chunk %d of %d has %d bytes, room is %d: %v", seq, n, size, w.room, err)
		}
		tm, j, err := packs.Copy(pack.Own{Tokens: w.tokens, Blocks: w.src.table(w.tokens, 7), Slot: 1}, seq, from)
		if err != nil {
			t.Fatal(err)
		}
		canary(out.Bytes)
		copyAll(t, tm, j, mapped(w.src.bufs[ranks.Src]...), mapped(out))
		body := out.Bytes[int64(from)*a.Chunk+head:][:size]
		for i, b := range out.Bytes {
			if at := int64(i) - int64(from)*a.Chunk - head; (at < 0 || at >= size) && b != 0xC5 {
				t.Fatalf("chunk %d: byte %d is not its body's", seq, i)
			}
		}
		canary(in.Bytes)
		copy(in.Bytes[int64(to)*a.Chunk+head:], body)
		if tm, j, err = unpacks.Copy(pack.Own{Tokens: w.tokens, Blocks: w.dst.table(w.tokens, 11), Slot: 2}, seq, to); err != nil {
			t.Fatal(err)
		}
		copyAll(t, tm, j, mapped(in), mapped(w.dst.bufs[ranks.Dst]...))
	}
}

func some(t testing.TB) (side, *reshard.Plan) {
	m := parallel.Memory{Blocks: 40, BlockTokens: 16, KV: layout.BF16, Slots: 4, Conv: layout.BF16, SSM: layout.F32}
	s := newSide(t, hybrid, parallel.Cut{TP: 2}, m, canary)
	return s, plan(t, hybrid, s, newSide(t, hybrid, parallel.Cut{TP: 1}, m, canary))
}

// TestForgedMoves: what a peer may claim is refused, and never reaches memory that the rank
// does not hold for that state.
func TestForgedMoves(t *testing.T) {
	s, p := some(t)
	good := pack.Of(p, 0)
	for name, f := range map[string]func(*pack.Move){
		"state":    func(v *pack.Move) { v.State = 99 },
		"negative": func(v *pack.Move) { v.State = -1 },
		"type":     func(v *pack.Move) { v.DType = 0 },
		"layers":   func(v *pack.Move) { v.Box.Layers.Hi = 1 << 20 },
		"units":    func(v *pack.Move) { v.Box.Units.Lo = -1 },
		"empty":    func(v *pack.Move) { v.Box.Units = layout.Span{} },
		"rows":     func(v *pack.Move) { v.Rows = 0 },
		"tokens":   func(v *pack.Move) { v.Rows = 2 },
	} {
		moves := append([]pack.Move(nil), good...)
		f(&moves[0])
		if _, err := pack.New(hybrid.Model(), moves, 1<<16); !errors.Is(err, pack.ErrMoves) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := pack.New(hybrid.Model(), good, 16); !errors.Is(err, pack.ErrMoves) {
		t.Errorf("a unit that is larger than a chunk: %v", err)
	}
	other := pack.Of(p, 1) // rank 1's heads, asked of rank 0
	k, err := pack.New(hybrid.Model(), other, 1<<16)
	if err != nil {
		t.Fatal(err)
	}
	a := pack.Arena{Chunks: 2, Chunk: 1<<16 + 128, Head: 64}
	if _, _, err := k.Pack(s.of(0), a).Copy(pack.Own{Tokens: layout.Span{Hi: 8}, Blocks: []int32{1}, Slot: 1}, 0, 0); !errors.Is(err, reshard.ErrUncovered) {
		t.Errorf("another rank's heads: %v", err)
	}
	if _, _, err := k.Unpack(s.of(0), a).Copy(pack.Own{Tokens: layout.Span{Hi: 8}, Blocks: []int32{1}, Slot: 1}, 0, 0); !errors.Is(err, pack.ErrMoves) {
		t.Errorf("unpacked into another rank: %v", err)
	}
}

func TestBounds(t *testing.T) {
	s, p := some(t)
	k, err := pack.New(hybrid.Model(), pack.Of(p, 0), 4096)
	if err != nil {
		t.Fatal(err)
	}
	tokens := layout.Span{Lo: 5, Hi: 90}
	n, err := k.Chunks(tokens)
	if err != nil {
		t.Fatal(err)
	}
	total := int64(0)
	for seq := range n {
		b, err := k.Bytes(tokens, seq)
		if err != nil {
			t.Fatal(err)
		}
		total += b
	}
	if want := p.Bytes(0, tokens.Len()); total != want {
		t.Errorf("the chunks hold %d bytes, the pair moves %d", total, want)
	}
	c := k.Pack(s.of(0), pack.Arena{Chunks: 2, Chunk: 4096 + 128, Head: 64})
	own := pack.Own{Tokens: tokens, Blocks: s.table(tokens, 7), Slot: 1}
	for name, f := range map[string]func() error{
		"number":    func() error { _, _, err := c.Copy(own, n, 0); return err },
		"below":     func() error { _, _, err := c.Copy(own, -1, 0); return err },
		"backwards": func() error { _, err := k.Chunks(layout.Span{Lo: 3, Hi: 2}); return err },
	} {
		if err := f(); !errors.Is(err, pack.ErrMoves) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, _, err := c.Copy(own, 0, 2); !errors.Is(err, lower.ErrJob) {
		t.Errorf("chunk outside the arena: %v", err)
	}
	if ts, err := c.Templates(); err != nil || len(ts) == 0 || slices.Contains(ts, nil) {
		t.Errorf("templates: %v, %v", ts, err)
	}
}
