package lower_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/batonkv/baton/transfer/layout"
	"github.com/batonkv/baton/transfer/layout/parallel"
	"github.com/batonkv/baton/transfer/lower"
	"github.com/batonkv/baton/transfer/reshard"
	"pgregory.net/rapid"
)

// llama is one pipeline stage's worth of a 70B model.
var llama = parallel.Desc{Attention: &parallel.Attention{Layers: 80, Heads: 8, Dim: 128}}

var mamba = parallel.Desc{Attention: &parallel.Attention{Layers: 2, Heads: 8, Dim: 16},
	Mamba: &parallel.Mamba{Layers: 4, Heads: 16, HeadDim: 4, StateDim: 8, Groups: 8, Window: 4}}

func memory(tokens int32) parallel.Memory {
	return parallel.Memory{Blocks: 20000, BlockTokens: tokens, KV: layout.BF16, Slots: 4, Conv: layout.BF16, SSM: layout.F32}
}

type cut struct {
	tp  int32
	mem parallel.Memory
}

func plan(t testing.TB, d parallel.Desc, src, dst cut) *reshard.Plan {
	t.Helper()
	s, err := d.Shards(parallel.Cut{TP: src.tp}, src.mem)
	if err != nil {
		t.Fatal(err)
	}
	e, err := d.Shards(parallel.Cut{TP: dst.tp}, dst.mem)
	if err != nil {
		t.Fatal(err)
	}
	p, err := reshard.New(d.Model(), s, e)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func template(t testing.TB, p *reshard.Plan, pair uint32) *lower.Template {
	t.Helper()
	tm, err := lower.New(p, pair)
	if err != nil {
		t.Fatal(err)
	}
	return tm
}

// table is n blocks from first, step apart.
func table(n int, first, step int32) []int32 {
	out := make([]int32, n)
	for i := range out {
		out[i] = first + int32(i)*step
	}
	return out
}

// Nest counts say that what is dense on both sides became one.
func TestMerging(t *testing.T) {
	hnd, major, layers := memory(16), memory(16), memory(16)
	hnd.HeadsFirst = true
	major.Order = parallel.BlockMajor
	layers.Order = parallel.LayerPlanes
	layers.Blocks = 64
	keep3 := memory(16)
	keep3.Columns = 3
	for _, c := range []struct {
		name     string
		d        parallel.Desc
		src, dst cut
		job      lower.Job
		nests    int
		run      int64 // of the first nest
	}{
		{"identity, consecutive", llama, cut{1, memory(16)}, cut{1, memory(16)},
			lower.Job{SrcBlocks: table(8, 0, 1), DstBlocks: table(8, 7, 1), Tokens: layout.Span{Hi: 128}}, 1, 128 * 8 * 256},
		{"identity, scattered", llama, cut{1, memory(16)}, cut{1, memory(16)},
			lower.Job{SrcBlocks: table(8, 0, 2), DstBlocks: table(8, 7, 1), Tokens: layout.Span{Hi: 128}}, 8, 16 * 8 * 256},
		{"suffix inside a block", llama, cut{1, memory(16)}, cut{1, memory(16)},
			lower.Job{SrcBlocks: []int32{-1, 1, 2}, DstBlocks: []int32{-1, 4, 5}, Tokens: layout.Span{Lo: 21, Hi: 39}}, 1, 18 * 8 * 256},
		{"16 to 64, consecutive", llama, cut{1, memory(16)}, cut{1, memory(64)},
			lower.Job{SrcBlocks: table(8, 0, 1), DstBlocks: table(2, 7, 1), Tokens: layout.Span{Hi: 128}}, 1, 128 * 8 * 256},
		{"256 to 16, source scattered", llama, cut{1, memory(256)}, cut{1, memory(16)},
			lower.Job{SrcBlocks: table(2, 0, 5), DstBlocks: table(32, 0, 1), Tokens: layout.Span{Hi: 512}}, 2, 256 * 8 * 256},
		{"tp 4 to 2", llama, cut{4, memory(16)}, cut{2, memory(16)},
			lower.Job{SrcBlocks: table(8, 0, 1), DstBlocks: table(8, 7, 1), Tokens: layout.Span{Hi: 128}}, 1, 2 * 256},
		{"heads first, consecutive", llama, cut{1, hnd}, cut{1, hnd},
			lower.Job{SrcBlocks: table(8, 0, 1), DstBlocks: table(8, 7, 1), Tokens: layout.Span{Hi: 128}}, 1, 128 * 8 * 256},
		{"heads first, 64 to 16", llama, cut{1, hnd64()}, cut{1, hnd},
			lower.Job{SrcBlocks: table(2, 0, 1), DstBlocks: table(8, 7, 1), Tokens: layout.Span{Hi: 128}}, 1, 16 * 256},
		{"block major", llama, cut{1, major}, cut{1, major},
			lower.Job{SrcBlocks: table(8, 0, 1), DstBlocks: table(8, 7, 1), Tokens: layout.Span{Hi: 128}}, 1, 80 * 2 * 128 * 8 * 256},
		{"a buffer a layer", llama, cut{1, layers}, cut{1, layers},
			lower.Job{SrcBlocks: table(8, 0, 1), DstBlocks: table(8, 7, 1), Tokens: layout.Span{Hi: 128}}, 80, 128 * 8 * 256},
		{"state only, bands join", mamba, cut{1, memory(16)}, cut{1, memory(16)},
			lower.Job{SrcSlot: 1, DstSlot: 2}, 2, 4 * 2 * (16*4 + 2*8*8)},
		{"k to k-1", mamba, cut{1, memory(16)}, cut{1, keep3}, lower.Job{SrcSlot: 1, DstSlot: 2}, 2, 3 * 2},
		{"k-1 to k zeroes", mamba, cut{1, keep3}, cut{1, memory(16)}, lower.Job{SrcSlot: 1, DstSlot: 2}, 3, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			ns, err := template(t, plan(t, c.d, c.src, c.dst), 0).Nests(nil, c.job)
			if err != nil {
				t.Fatal(err)
			}
			if len(ns) != c.nests {
				t.Fatalf("%d nests, want %d: %+v", len(ns), c.nests, ns)
			}
			if ns[0].Run != c.run {
				t.Errorf("run of %d bytes, want %d: %+v", ns[0].Run, c.run, ns[0])
			}
		})
	}
}

func hnd64() parallel.Memory {
	m := memory(64)
	m.HeadsFirst = true
	return m
}

func TestJobErrors(t *testing.T) {
	p := plan(t, mamba, cut{2, memory(16)}, cut{1, memory(16)})
	tm := template(t, p, 1)
	good := lower.Job{Pair: 1, SrcBlocks: table(4, 0, 1), DstBlocks: table(4, 0, 1), Tokens: layout.Span{Hi: 50}}
	if _, err := tm.Nests(nil, good); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		bad  func(*lower.Job)
		says string
	}{
		{"pair", func(j *lower.Job) { j.Pair = 0 }, "pair 0"},
		{"negative tokens", func(j *lower.Job) { j.Tokens.Lo = -1 }, "tokens [-1,50)"},
		{"backward tokens", func(j *lower.Job) { j.Tokens.Lo = 51 }, "tokens [51,50)"},
		{"source table", func(j *lower.Job) { j.SrcBlocks = j.SrcBlocks[:3] }, "source table has 3 blocks of 16"},
		{"destination table", func(j *lower.Job) { j.DstBlocks = nil }, "destination table has 0 blocks"},
		{"table behind the tokens", func(j *lower.Job) { j.SrcFirst = 1 }, "tables that start at 1 and 0"},
		{"table before the request", func(j *lower.Job) { j.DstFirst = -16 }, "tables that start at 0 and -16"},
		{"table too short for its start", func(j *lower.Job) { j.Tokens.Lo, j.DstFirst, j.DstBlocks = 48, 48, nil }, "destination table has 0 blocks"},
		{"source block", func(j *lower.Job) { j.SrcBlocks = []int32{0, -1, 2, 3} }, "source block -1 at place 1"},
		{"destination block", func(j *lower.Job) { j.DstBlocks = []int32{0, 1, 2, 20000} }, "destination block 20000 at place 3"},
		{"source slot", func(j *lower.Job) { j.SrcSlot = -1 }, "source slot -1"},
		{"destination slot", func(j *lower.Job) { j.DstSlot = 4 }, "destination slot 4"},
	} {
		t.Run(c.name, func(t *testing.T) {
			j := good
			c.bad(&j)
			old := make([]lower.Nest, 3, 64)
			ns, err := tm.Nests(old, j)
			if !errors.Is(err, lower.ErrJob) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("got %v, want ErrJob with %q", err, c.says)
			}
			if len(ns) != 3 {
				t.Errorf("the caller's slice comes back with %d nests", len(ns))
			}
		})
	}
	if _, err := lower.New(p, 2); !errors.Is(err, lower.ErrPair) {
		t.Errorf("pair 2 of 2: %v", err)
	}
}

// Conversions are marked, and a split refuses them.
func TestConversion(t *testing.T) {
	f32 := memory(16)
	f32.SSM = layout.BF16
	f32.KV = layout.F32
	tm := template(t, plan(t, mamba, cut{2, memory(16)}, cut{1, f32}), 0)
	ns, err := tm.Nests(nil, lower.Job{SrcBlocks: table(1, 0, 1), DstBlocks: table(1, 0, 1), Tokens: layout.Span{Hi: 3}})
	if err != nil {
		t.Fatal(err)
	}
	kinds := map[[2]layout.DType]bool{}
	for _, n := range ns {
		kinds[[2]layout.DType{n.From, n.To}] = true
	}
	for _, k := range [][2]layout.DType{{layout.BF16, layout.F32}, {layout.F32, layout.BF16}, {layout.BF16, layout.BF16}} {
		if !kinds[k] {
			t.Errorf("no nest turns %v into %v", k[0], k[1])
		}
	}
	if _, err := lower.Split(nil, ns); !errors.Is(err, lower.ErrSplit) {
		t.Errorf("split: %v", err)
	}
	sample := map[[2]layout.DType]bool{}
	for _, n := range tm.Sample(nil) {
		sample[[2]layout.DType{n.From, n.To}] = true
	}
	if len(sample) != len(kinds) {
		t.Errorf("the sample has %v, the nests %v", sample, kinds)
	}
}

func TestNoAllocation(t *testing.T) {
	tm := template(t, plan(t, mamba, cut{4, memory(16)}, cut{2, memory(64)}), 0)
	j := lower.Job{SrcBlocks: table(512, 3, 7), DstBlocks: table(128, 0, 3), Tokens: layout.Span{Lo: 5, Hi: 8190}}
	ns, err := tm.Nests(nil, j)
	if err != nil {
		t.Fatal(err)
	}
	runs, err := lower.Split(nil, ns)
	if err != nil {
		t.Fatal(err)
	}
	if n := testing.AllocsPerRun(20, func() {
		ns, _ = tm.Nests(ns[:0], j)
		runs, _ = lower.Split(runs[:0], ns)
	}); n != 0 {
		t.Errorf("%v allocations a request", n)
	}
}

func FuzzDecode(f *testing.F) {
	for pair := range uint32(2) {
		b, err := template(f, plan(f, mamba, cut{2, memory(16)}, cut{1, memory(64)}), pair).MarshalBinary()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		tm, err := lower.Decode(b)
		if err != nil {
			if !errors.Is(err, lower.ErrTemplate) {
				t.Fatalf("%v is no ErrTemplate", err)
			}
			return
		}
		again, err := tm.MarshalBinary()
		if err != nil || string(again) != string(b) {
			t.Fatalf("%v: %x comes back as %x", err, b, again)
		}
		j := lower.Job{Pair: tm.Pair(), SrcBlocks: table(64, 0, 1), DstBlocks: table(64, 0, 1), Tokens: layout.Span{Lo: 1, Hi: 60}}
		ns, err := tm.Nests(nil, j)
		if err != nil && !errors.Is(err, lower.ErrJob) {
			t.Fatal(err)
		}
		for _, n := range ns {
			if n.SrcOff < 0 || n.DstOff < 0 || n.Run <= 0 || n.Rank > lower.MaxDims {
				t.Fatalf("nest %+v", n)
			}
		}
		_ = lower.Bytes(ns)
	})
}

func FuzzProperty(f *testing.F) { f.Fuzz(rapid.MakeFuzz(property)) }

func BenchmarkNests(b *testing.B) {
	for _, c := range []struct {
		name   string
		blocks int32
		src    cut
		dst    cut
		random bool
	}{
		{"512_scattered", 512, cut{4, memory(16)}, cut{2, memory(16)}, true},
		{"12000_scattered", 12000, cut{4, memory(16)}, cut{2, memory(16)}, true},
		{"12000_consecutive", 12000, cut{4, memory(16)}, cut{2, memory(16)}, false},
		{"12000_of_16_to_64", 12000, cut{4, memory(16)}, cut{2, memory(64)}, true},
	} {
		tm := template(b, plan(b, llama, c.src, c.dst), 0)
		j := lower.ScatteredJob(tm, c.blocks, c.src.mem.BlockTokens, c.dst.mem.BlockTokens, !c.random)
		b.Run(c.name, func(b *testing.B) {
			var ns []lower.Nest
			b.ReportAllocs()
			for b.Loop() {
				var err error
				if ns, err = tm.Nests(ns[:0], j); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(len(ns)), "nests")
		})
	}
}
