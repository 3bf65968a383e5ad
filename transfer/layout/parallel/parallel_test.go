package parallel_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/batonkv/baton/transfer/layout"
	"github.com/batonkv/baton/transfer/layout/parallel"
	"github.com/batonkv/baton/transfer/reshard"
	"pgregory.net/rapid"
)

// strides of a dense tensor whose axes are letters, outermost first; p is the plane.
func strides(axes string, n map[byte]int64, es int64) map[byte]int64 {
	out := map[byte]int64{}
	for i := len(axes) - 1; i >= 0; i-- {
		out[axes[i]] = es
		es *= n[axes[i]]
	}
	return out
}

// TestOrders compares the views with the strides of the tensor each order names.
func TestOrders(t *testing.T) {
	d := parallel.Desc{Attention: &parallel.Attention{Layers: 3, Heads: 4, Dim: 8}}
	for _, c := range []struct {
		order      parallel.Order
		headsFirst bool
		axes       string
		buffers    int
	}{
		{parallel.Planes, false, "plbthd", 1}, {parallel.Planes, true, "plbhtd", 1},
		{parallel.LayerPlanes, false, "pbthd", 3}, {parallel.LayerPlanes, true, "pbhtd", 3},
		{parallel.LayerBlocks, false, "bpthd", 3}, {parallel.LayerBlocks, true, "bphtd", 3},
		{parallel.BlockMajor, false, "blpthd", 1}, {parallel.BlockMajor, true, "blphtd", 1},
	} {
		t.Run(fmt.Sprintf("%s in %d buffers", c.axes, c.buffers), func(t *testing.T) {
			r, err := d.Rank(parallel.Cut{TP: 2}, parallel.Memory{Order: c.order, HeadsFirst: c.headsFirst, Blocks: 5, BlockTokens: 16, KV: layout.BF16}, 1)
			if err != nil {
				t.Fatal(err)
			}
			n := map[byte]int64{'p': 2, 'l': 3, 'b': 5, 't': 16, 'h': 2, 'd': 8}
			if len(r.Buffers) != c.buffers || len(r.Shards) != 2*c.buffers {
				t.Fatalf("%d shards in buffers %v", len(r.Shards), r.Buffers)
			}
			w := strides(c.axes, n, 2)
			var total int64
			for _, b := range r.Buffers {
				total += b
			}
			if total != 2*3*5*16*2*8*2 {
				t.Errorf("%d bytes", total)
			}
			for _, s := range r.Shards {
				v := s.View
				if c.buffers > 1 {
					if s.Box.Layers.Len() != 1 || v.Buffer != uint32(s.Box.Layers.Lo) {
						t.Errorf("layers %v in buffer %d", s.Box.Layers, v.Buffer)
					}
				} else if v.Layer != w['l'] {
					t.Errorf("layer stride %d, want %d", v.Layer, w['l'])
				}
				if v.Off != int64(s.State)*w['p'] || v.Item != w['b'] || v.Row != w['t'] || v.Unit != w['h'] || v.Elem != w['d'] {
					t.Errorf("state %d: %+v, want %v", s.State, v, w)
				}
				if s.Box.Units != (layout.Span{Lo: 2, Hi: 4}) {
					t.Errorf("units %v", s.Box.Units)
				}
			}
		})
	}
}

func TestConvColumns(t *testing.T) {
	d := parallel.Desc{Mamba: &parallel.Mamba{Layers: 2, Heads: 8, HeadDim: 4, StateDim: 2, Groups: 2, Window: 4}}
	for _, first := range []bool{false, true} {
		r, err := d.Rank(parallel.Cut{TP: 4}, parallel.Memory{Slots: 3, Columns: 3, ColumnsFirst: first, LayerStates: true, Conv: layout.BF16, SSM: layout.F32}, 3)
		if err != nil {
			t.Fatal(err)
		}
		// rank 3 holds heads 6-7, which read group 1: channels 2*4 | 2 | 2
		b, s := r.Shards[1], r.Shards[1].View
		if b.Box.Units != (layout.Span{Lo: 1, Hi: 2}) || b.Rows != 3 || len(r.Buffers) != 4 || r.Buffers[0] != 3*12*3*2 {
			t.Errorf("%+v in buffers %v", b, r.Buffers)
		}
		want := layout.View{Off: 8 * 6, Layer: 3 * 72, Item: 72, Row: 2, Unit: 2 * 6, Elem: 6, Buffer: s.Buffer}
		if first {
			want = layout.View{Off: 8 * 2, Layer: 3 * 72, Item: 72, Row: 24, Unit: 4, Elem: 2, Buffer: s.Buffer}
		}
		if s != want {
			t.Errorf("columns first %v: %+v, want %+v", first, s, want)
		}
	}
}

func TestReplicasAndStages(t *testing.T) {
	d := parallel.Desc{Attention: &parallel.Attention{Layers: 5, Heads: 2, Dim: 4}}
	mem := parallel.Memory{Blocks: 2, BlockTokens: 4, KV: layout.BF16}
	units := func(c parallel.Cut) (out []layout.Box) {
		s, err := d.Shards(c, mem)
		if err != nil {
			t.Fatal(err)
		}
		for _, x := range s {
			if x.State == 0 {
				out = append(out, x.Box)
			}
		}
		return out
	}
	box := func(l0, l1, u0, u1 int32) layout.Box {
		return layout.Box{Layers: layout.Span{Lo: l0, Hi: l1}, Units: layout.Span{Lo: u0, Hi: u1}}
	}
	for _, c := range []struct {
		name string
		cut  parallel.Cut
		want []layout.Box
	}{
		{"tp4 shares heads", parallel.Cut{TP: 4}, []layout.Box{box(0, 5, 0, 1), box(0, 5, 0, 1), box(0, 5, 1, 2), box(0, 5, 1, 2)}},
		{"pp2 is uneven", parallel.Cut{PP: 2}, []layout.Box{box(0, 2, 0, 2), box(2, 5, 0, 2)}},
		{"explicit stages, one empty", parallel.Cut{PP: 3, AttentionStages: []layout.Span{{Lo: 0, Hi: 4}, {Lo: 4, Hi: 4}, {Lo: 4, Hi: 5}}},
			[]layout.Box{box(0, 4, 0, 2), box(4, 5, 0, 2)}},
		{"ep and expt_tp repeat", parallel.Cut{TP: 2, EP: 2}, []layout.Box{box(0, 5, 0, 1), box(0, 5, 0, 1), box(0, 5, 1, 2), box(0, 5, 1, 2)}},
		{"expt_tp", parallel.Cut{ExptTP: 3}, []layout.Box{box(0, 5, 0, 2), box(0, 5, 0, 2), box(0, 5, 0, 2)}},
	} {
		if got := units(c.cut); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

func TestRefusals(t *testing.T) {
	d := parallel.Desc{Attention: &parallel.Attention{Layers: 4, Heads: 2, Dim: 4}}
	mem := parallel.Memory{Blocks: 2, BlockTokens: 4, KV: layout.BF16}
	huge := parallel.Memory{Blocks: 1<<31 - 1, BlockTokens: layout.MaxRows, KV: layout.F32}
	m := parallel.Desc{Mamba: &parallel.Mamba{Layers: 1, Heads: 6, HeadDim: 4, StateDim: 4, Groups: 4, Window: 4}}
	for _, c := range []struct {
		d    parallel.Desc
		c    parallel.Cut
		m    parallel.Memory
		says string
	}{
		{d, parallel.Cut{TP: -1}, mem, "tp=-1"},
		{d, parallel.Cut{TP: 1 << 12, PP: 1 << 12}, mem, "at most"},
		{d, parallel.Cut{PP: 2, AttentionStages: []layout.Span{{Hi: 4}}}, mem, "1 attention stages for pp=2"},
		{d, parallel.Cut{PP: 1, AttentionStages: []layout.Span{{Hi: 5}}}, mem, "layers [0,5)"},
		{d, parallel.Cut{}, parallel.Memory{BlockTokens: 4, KV: layout.BF16}, "0 items"},
		{d, parallel.Cut{}, parallel.Memory{Blocks: 2, BlockTokens: 4}, "dtype"},
		{parallel.Desc{Attention: &parallel.Attention{Layers: 1 << 16, Heads: 1 << 24, Dim: 1 << 28}}, parallel.Cut{}, huge, "2^60"},
		{m, parallel.Cut{}, mem, "mamba groups 4"},
		{parallel.Desc{}, parallel.Cut{}, mem, "0 states"},
	} {
		if _, err := c.d.Shards(c.c, c.m); !errors.Is(err, layout.ErrGeometry) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%v does not say %q", err, c.says)
		}
	}
}

// Whatever the cut, every cell is on some rank, places are distinct and the plan covers.
func TestEveryCellIsHeld(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := func(what string, hi int32) int32 { return rapid.Int32Range(1, hi).Draw(t, what) }
		g := n("groups", 4)
		d := parallel.Desc{Attention: &parallel.Attention{Layers: n("layers", 6), Heads: n("heads", 8), Dim: 2}, Latent: &parallel.Latent{Layers: n("latent", 3), Dim: 3},
			Mamba: &parallel.Mamba{Layers: n("mamba", 5), Groups: g, Heads: g * n("heads a group", 4), HeadDim: 2, StateDim: 3, Window: 3}}
		mem := func() parallel.Memory {
			return parallel.Memory{Order: parallel.Order(n("order", 4) - 1), HeadsFirst: rapid.Bool().Draw(t, "hnd"), Blocks: 3, BlockTokens: 4, KV: layout.BF16,
				Slots: 2, ColumnsFirst: rapid.Bool().Draw(t, "columns"), LayerStates: rapid.Bool().Draw(t, "each"), Conv: layout.BF16, SSM: layout.F32}
		}
		cut := func() parallel.Cut {
			return parallel.Cut{TP: n("tp", 9), PP: n("pp", 4), EP: n("ep", 2), ExptTP: n("etp", 2)}
		}
		c := cut()
		places := map[parallel.Place]bool{}
		for r := range c.Ranks() {
			places[c.Place(layout.Rank(r))] = true
		}
		if len(places) != int(c.Ranks()) {
			t.Fatalf("%d places of %d ranks", len(places), c.Ranks())
		}
		src, err := d.Shards(c, mem())
		if err != nil {
			t.Fatal(err)
		}
		dst, err := d.Shards(cut(), mem())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := reshard.New(d.Model(), src, dst); err != nil {
			t.Fatal(err)
		}
	})
}

func TestStages(t *testing.T) {
	got := parallel.Stages([]int32{7, 18, 29, 40}, parallel.EvenCuts(52, 4)) // cuts 0 13 26 39 52
	if want := []layout.Span{{Lo: 0, Hi: 1}, {Lo: 1, Hi: 2}, {Lo: 2, Hi: 3}, {Lo: 3, Hi: 4}}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}
