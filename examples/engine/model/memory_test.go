package model_test

import (
	"bytes"
	"slices"
	"testing"

	"github.com/batonkv/baton/examples/engine/model"
	"github.com/batonkv/baton/transfer/layout"
)

// TestBytes holds the buffers to what the builder of shards says, and to closed forms.
func TestBytes(t *testing.T) {
	perToken := map[string]int64{ // elements of paged cache a rank of TP 1, 2, 4 in all layers
		"hybrid": 2 * 2 * 4 * 16, "attention": 4 * 2 * 4 * 16, "gqa": 2 * 2 * 2 * 16, "mla": 4 * 40, "swa": 4 * 2 * 4 * 16}
	shared := map[string][3]int64{ // what is left of it on each rank, in sixteenths
		"hybrid": {16, 8, 4}, "attention": {16, 8, 4}, "gqa": {16, 8, 8}, "mla": {16, 16, 16}, "swa": {16, 8, 4}}
	channels := map[string][3]int64{"hybrid": {128 + 128, 64 + 64, 32 + 32}, "gqa": {128 + 64, 64 + 32, 32 + 32}}
	for i, size := range []int{1, 2, 4} {
		for _, types := range []model.Types{{}, {KV: layout.F32, Conv: layout.BF16}, {KV: layout.F16, SSM: layout.BF16}} {
			for name := range perToken {
				cfg, err := model.ByName(name, 1)
				if err != nil {
					t.Fatal(err)
				}
				s := sizes
				s.Types = types
				d := types.WithDefaults()
				paged := perToken[name] * shared[name][i] / 16 * int64(s.Blocks*s.BlockTokens) * d.KV.Size()
				layers := int64(cfg.SSMLayers() * int(s.Slots))
				conv, ssm := layers*channels[name][i]*4*d.Conv.Size(), layers*128*16/int64(size)*d.SSM.Size()
				for rank := range size {
					part, err := cfg.Cut(rank, model.Split{TP: size})
					if err != nil {
						t.Fatal(err)
					}
					got := cfg.Bytes(part, s)
					if got[model.BufferKV]+got[model.BufferLatent] != paged || got[model.BufferConv] != conv || got[model.BufferSSM] != ssm {
						t.Errorf("%s rank %d of %d, %v: %v, want %d, %d, %d", name, rank, size, types, got, paged, conv, ssm)
					}
					m, err := cfg.Shards(rank, model.Split{TP: size}, s)
					if err != nil {
						t.Fatal(err)
					}
					if has := slices.DeleteFunc(got[:], func(n int64) bool { return n == 0 }); !slices.Equal(has, m.Buffers) {
						t.Errorf("%s rank %d of %d: %v, the shards say %v", name, rank, size, has, m.Buffers)
					}
				}
			}
		}
	}
}

// TestCellsAreWhereShardsSay: after one prompt each cell of each rank, found by its
// shard's view, holds the bytes of the same cell of one rank that holds all, of a request
// in other blocks and another slot. So the copies of a KV head, a group or a latent on
// several ranks are one another's too.
func TestCellsAreWhereShardsSay(t *testing.T) {
	prompt := text(prose)
	other := model.Seq{Blocks: []int32{1, 17, 3, 16, 12}, Slot: 2}
	for _, cfg := range models(3) {
		states := cfg.Desc().Model().States
		run := func(split model.Split, seq model.Seq) []rank {
			ranks := newSplit(t, cfg, sizes, split)
			generate(t, ranks, seq, prompt, 1, 30, nil)
			return ranks
		}
		shards := func(r int, split model.Split) []layout.Shard {
			m, err := cfg.Shards(r, split, sizes)
			if err != nil {
				t.Fatal(err)
			}
			return m.Shards
		}
		all, whole := run(model.Split{}, other)[0], shards(0, model.Split{})
		for _, split := range splits(cfg) {
			n := make([]int, len(states))
			for r, have := range run(split, seq) {
				for _, sh := range shards(r, split) {
					cells(states[sh.State], sh, int32(len(prompt)), func(l, u, row, e int32) {
						n[sh.State]++
						a, b := cell(have.bufs, seq, sh, states[sh.State], l, u, row, e), cell(all.bufs, other, whole[sh.State], states[sh.State], l, u, row, e)
						if !bytes.Equal(a, b) {
							t.Fatalf("%s rank %d of %v, %s layer %d unit %d row %d element %d: % x, want % x",
								cfg.Name, r, split, states[sh.State].Name, l, u, row, e, a, b)
						}
					})
				}
			}
			if slices.Contains(n, 0) {
				t.Errorf("%s, %v: of each state were compared %d", cfg.Name, split, n)
			}
		}
	}
}

// cells calls do for what a request of tokens has in sh.
func cells(st layout.State, sh layout.Shard, tokens int32, do func(l, u, row, e int32)) {
	rows := sh.Rows
	if st.Paging == layout.PerBlock {
		rows = tokens
	}
	for l := sh.Box.Layers.Lo; l < sh.Box.Layers.Hi; l++ {
		for u := sh.Box.Units.Lo; u < sh.Box.Units.Hi; u++ {
			for row := range rows {
				for e := range st.Elems {
					do(l, u, row, e)
				}
			}
		}
	}
}

// cell is the bytes of one element of seq's state.
func cell(bufs [][]byte, seq model.Seq, sh layout.Shard, st layout.State, l, u, row, e int32) []byte {
	item, in := seq.Slot, row
	if st.Paging == layout.PerBlock {
		item, in = seq.Blocks[row/sh.Rows], row%sh.Rows
	}
	v := sh.View
	at := v.Off + int64(l-sh.Box.Layers.Lo)*v.Layer + int64(item)*v.Item + int64(in)*v.Row + int64(u-sh.Box.Units.Lo)*v.Unit + int64(e)*v.Elem
	return bufs[v.Buffer][at:][:sh.DType.Size()]
}

func TestMemoryRefuses(t *testing.T) {
	cfg := model.Hybrid(1)
	part, err := cfg.Cut(0, model.Split{TP: 2})
	if err != nil {
		t.Fatal(err)
	}
	n := cfg.Bytes(part, sizes)
	n[model.BufferConv]--
	if _, err := model.NewMemory(cfg, part, sizes, alloc(n)); err == nil {
		t.Error("a buffer of another size is taken")
	}
	s := sizes
	s.KV = layout.U8
	if _, err := model.NewMemory(cfg, part, s, alloc(cfg.Bytes(part, s))); err == nil {
		t.Errorf("KV of %v is taken", s.KV)
	}
}
