package reshard_test

import (
	"errors"
	"fmt"
	"math/rand"
	"slices"
	"strings"
	"testing"

	"github.com/batonkv/baton/transfer/layout"
	"github.com/batonkv/baton/transfer/layout/parallel"
	"github.com/batonkv/baton/transfer/reshard"
)

var hybrid = parallel.Desc{Attention: &parallel.Attention{Layers: 12, Heads: 8, Dim: 4},
	Mamba: &parallel.Mamba{Layers: 24, Heads: 32, HeadDim: 2, StateDim: 4, Groups: 8, Window: 4}}

func shards(t testing.TB, d parallel.Desc, tp, pp, ep int32) []layout.Shard {
	t.Helper()
	s, err := d.Shards(parallel.Cut{TP: tp, PP: pp, EP: ep}, parallel.Memory{Blocks: 8, BlockTokens: 4, KV: layout.BF16,
		Slots: 2, Conv: layout.BF16, SSM: layout.F32})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// replay runs the plan on a model of the cells and checks the destination.
func replay(t *testing.T, m layout.Model, src, dst []layout.Shard) *reshard.Plan {
	t.Helper()
	p, err := reshard.New(m, src, dst)
	if err != nil {
		t.Fatal(err)
	}
	type cell struct {
		rank        layout.Rank
		state       int32
		layer, unit int32
	}
	held, got := map[cell]bool{}, map[cell]int{}
	each := func(s int32, r layout.Rank, b layout.Box, f func(cell)) {
		for l := b.Layers.Lo; l < b.Layers.Hi; l++ {
			for u := b.Units.Lo; u < b.Units.Hi; u++ {
				f(cell{r, s, l, u})
			}
		}
	}
	for _, s := range src {
		each(s.State, s.Rank, s.Box, func(c cell) { held[c] = true })
	}
	for mv := range p.Moves() {
		each(mv.State, mv.Src, mv.Box, func(c cell) {
			if !held[c] {
				t.Fatalf("move %+v reads %+v, which its source does not hold", mv, c)
			}
		})
		each(mv.State, mv.Dst, mv.Box, func(c cell) { got[c]++ })
	}
	want := 0
	for _, d := range dst {
		each(d.State, d.Rank, d.Box, func(c cell) {
			want++
			if got[c] != 1 {
				t.Fatalf("%+v written %d times", c, got[c])
			}
		})
	}
	if len(got) != want {
		t.Fatalf("%d cells written, want %d", len(got), want)
	}
	return p
}

func TestCover(t *testing.T) {
	for _, src := range [][3]int32{{1, 1, 1}, {2, 1, 1}, {4, 2, 1}, {2, 3, 1}, {8, 1, 1}, {16, 1, 1}, {2, 2, 3}, {3, 1, 1}} {
		for _, dst := range [][3]int32{{1, 1, 1}, {2, 1, 1}, {3, 1, 1}, {4, 3, 1}, {1, 5, 1}, {16, 2, 1}, {2, 1, 4}} {
			t.Run(fmt.Sprintf("tp%dpp%dx%d_to_tp%dpp%dx%d", src[0], src[1], src[2], dst[0], dst[1], dst[2]), func(t *testing.T) {
				p := replay(t, hybrid.Model(), shards(t, hybrid, src[0], src[1], src[2]), shards(t, hybrid, dst[0], dst[1], dst[2]))
				sameViews(t, p)
			})
		}
	}
}

// sameViews: Moves, Into, From and Parts are four ways to read one list.
func sameViews(t *testing.T, p *reshard.Plan) {
	t.Helper()
	all := slices.Collect(p.Moves())
	var into, parts []reshard.Move
	from := 0
	seen := map[layout.Rank]bool{}
	for i, pair := range p.Pairs() {
		if k, ok := p.PairOf(pair.Src, pair.Dst); !ok || k != uint32(i) {
			t.Fatalf("pair %d %+v is found at %d", i, pair, k)
		}
		if !seen[pair.Dst] {
			seen[pair.Dst] = true
			into = slices.AppendSeq(into, p.Into(pair.Dst))
		}
		for x := range p.Parts(uint32(i)) {
			if x.From.Rank != pair.Src || x.To.Rank != pair.Dst || x.From.Box.Intersect(x.Box) != x.Box || x.To.Box.Intersect(x.Box) != x.Box {
				t.Fatalf("part %+v lies outside its shards %+v %+v", x.Move, x.From, x.To)
			}
			parts = append(parts, x.Move)
		}
	}
	for r := range layout.Rank(64) {
		from += len(slices.Collect(p.From(r)))
	}
	if !slices.Equal(all, into) || !slices.Equal(all, parts) || from != len(all) {
		t.Fatalf("%d moves, %d into, %d parts, %d from", len(all), len(into), len(parts), from)
	}
	if len(slices.Collect(p.Parts(uint32(len(p.Pairs()))))) != 0 {
		t.Fatal("a pair beyond the last has parts")
	}
}

func TestOrderFree(t *testing.T) {
	src, dst := shards(t, hybrid, 4, 2, 2), shards(t, hybrid, 2, 3, 1)
	m := hybrid.Model()
	want := replay(t, m, src, dst).Digest()
	rng := rand.New(rand.NewSource(1))
	for range 20 {
		rng.Shuffle(len(src), func(i, j int) { src[i], src[j] = src[j], src[i] })
		rng.Shuffle(len(dst), func(i, j int) { dst[i], dst[j] = dst[j], dst[i] })
		if replay(t, m, src, dst).Digest() != want {
			t.Fatal("the plan depends on the order of its inputs")
		}
	}
	src[0].View.Off++
	if p, err := reshard.New(m, src, dst); err != nil || p.Digest() == want {
		t.Fatalf("a view that differs leaves the digest as it was (%v)", err)
	}
}

func TestReplicasShareLoad(t *testing.T) {
	p := replay(t, hybrid.Model(), shards(t, hybrid, 2, 1, 4), shards(t, hybrid, 2, 1, 4))
	sends := map[layout.Rank]int64{}
	for i, pair := range p.Pairs() {
		sends[pair.Src] += p.Bytes(uint32(i), 4096)
	}
	if len(sends) != 8 {
		t.Fatalf("ranks %v send; all 8 hold the state", sends)
	}
	for r, n := range sends {
		if share := p.Total(4096) / 8; n > share*51/50 || n < share*49/50 {
			t.Errorf("rank %d sends %d bytes, an eighth is %d", r, n, share)
		}
	}
}

// K and V come from one replica: one pair, one job, one nest with a plane loop.
func TestFamilyStaysTogether(t *testing.T) {
	d := parallel.Desc{Attention: &parallel.Attention{Layers: 2, Heads: 2, Dim: 4}}
	p := replay(t, d.Model(), shards(t, d, 8, 1, 1), shards(t, d, 2, 1, 1))
	if n := len(p.Pairs()); n != 2 {
		t.Fatalf("%d pairs for 2 destination ranks with one head each: %+v", n, p.Pairs())
	}
}

func TestRefusals(t *testing.T) {
	m := hybrid.Model()
	src, dst := shards(t, hybrid, 2, 1, 1), shards(t, hybrid, 1, 1, 1)
	bad, err := hybrid.Shards(parallel.Cut{}, parallel.Memory{Blocks: 8, BlockTokens: 4, KV: layout.BF16, Slots: 2, Columns: 6,
		Conv: layout.BF16, SSM: layout.F32})
	if err != nil {
		t.Fatal(err)
	}
	over := append(slices.Clone(src), src[0])
	for _, c := range []struct {
		name     string
		src, dst []layout.Shard
		want     error
		says     []string
	}{
		{"a rank is missing", src[:6], dst, reshard.ErrUncovered, []string{"attn.k", "layers [0,12)", "units [4,8)", "rank 0", "[0]"}},
		{"no source at all", nil, dst, reshard.ErrUncovered, []string{"attn.k", "no source rank"}},
		{"window", src, bad, reshard.ErrMismatch, []string{"conv.x", "4 columns", "6"}},
		{"overlap", over, dst, layout.ErrOverlap, []string{"source", "attn.k", "rank 0", "units [0,4)"}},
		{"overlap is geometry", over, dst, layout.ErrGeometry, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := reshard.New(m, c.src, c.dst)
			if !errors.Is(err, c.want) {
				t.Fatalf("got %v, want %v", err, c.want)
			}
			for _, s := range c.says {
				if !strings.Contains(err.Error(), s) {
					t.Errorf("%q does not say %q", err, s)
				}
			}
		})
	}
	var u *reshard.UncoveredError
	if _, err := reshard.New(m, src[:6], dst); !errors.As(err, &u) || u.State != "attn.k" || u.Rank != 0 {
		t.Errorf("facts %+v", u)
	}
}

// FuzzNew: whatever is stated, a plan comes out that covers, or a named refusal.
func FuzzNew(f *testing.F) {
	f.Add([]byte{2, 8, 0, 0, 2, 0, 8, 1, 0, 2, 0, 8}, uint8(1))
	f.Add([]byte{4, 6, 0, 0, 4, 0, 3, 1, 0, 4, 3, 6, 0, 0, 2, 0, 6, 1, 2, 4, 0, 6}, uint8(2))
	f.Fuzz(func(t *testing.T, b []byte, nsrc uint8) {
		if len(b) < 2 {
			return
		}
		m := layout.Model{States: []layout.State{{Name: "a.x", Paging: layout.PerBlock, Layers: int32(b[0]), Units: int32(b[1]), Elems: 1}}}
		var all []layout.Shard
		for b = b[2:]; len(b) >= 5 && len(all) < 64; b = b[5:] {
			s := layout.Shard{Rank: layout.Rank(int8(b[0])), Rows: 1, Items: 1, DType: layout.U8,
				Box: layout.Box{Layers: layout.Span{Lo: int32(int8(b[1])), Hi: int32(b[2])}, Units: layout.Span{Lo: int32(int8(b[3])), Hi: int32(b[4])}}}
			s.View = layout.View{Unit: 1, Layer: 256, Elem: 1}
			all = append(all, s)
		}
		n := min(int(nsrc), len(all))
		_, err := reshard.New(m, all[:n], all[n:])
		if err == nil {
			replay(t, m, all[:n], all[n:])
		} else if !errors.Is(err, layout.ErrGeometry) && !errors.Is(err, reshard.ErrUncovered) {
			t.Fatal(err)
		}
	})
}

func BenchmarkNew(b *testing.B) {
	for _, c := range []struct {
		name     string
		src, dst [3]int32
	}{
		{"8_to_4", [3]int32{8, 1, 1}, [3]int32{4, 1, 1}},
		{"32_to_32", [3]int32{8, 4, 1}, [3]int32{4, 2, 4}},
		{"128_to_128", [3]int32{8, 8, 2}, [3]int32{8, 8, 2}},
		{"1024_to_1024", [3]int32{8, 8, 16}, [3]int32{4, 8, 32}},
	} {
		src, dst := shards(b, hybrid, c.src[0], c.src[1], c.src[2]), shards(b, hybrid, c.dst[0], c.dst[1], c.dst[2])
		m := hybrid.Model()
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := reshard.New(m, src, dst); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
