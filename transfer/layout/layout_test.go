package layout_test

import (
	"errors"
	"math/rand"
	"slices"
	"strings"
	"testing"

	"github.com/batonkv/baton/transfer/layout"
	"pgregory.net/rapid"
)

var model = layout.Model{States: []layout.State{
	{Name: "attn.k", Paging: layout.PerBlock, Layers: 4, Units: 8, Elems: 2},
	{Name: "attn.v", Paging: layout.PerBlock, Layers: 4, Units: 8, Elems: 2},
}}

func box(l0, l1, u0, u1 int32) layout.Box {
	return layout.Box{Layers: layout.Span{Lo: l0, Hi: l1}, Units: layout.Span{Lo: u0, Hi: u1}}
}

// shard is [L, B=5, T=4, H, d=2] bf16 from byte off of buffer 0.
func shard(state int32, rank layout.Rank, b layout.Box, off int64) layout.Shard {
	row := int64(b.Units.Len()) * 4
	return layout.Shard{State: state, Rank: rank, Box: b, Rows: 4, Items: 5, DType: layout.BF16,
		View: layout.View{Off: off, Layer: 5 * 4 * row, Item: 4 * row, Row: row, Unit: 4, Elem: 2}}
}

func TestCheck(t *testing.T) {
	all := box(0, 4, 0, 8)
	good := shard(0, 3, all, 0)
	with := func(f func(*layout.Shard)) []layout.Shard {
		s := good
		f(&s)
		return []layout.Shard{s}
	}
	for _, c := range []struct {
		name string
		s    []layout.Shard
		want error
		says string
	}{
		{"good", []layout.Shard{good}, nil, ""},
		{"four quarters", []layout.Shard{shard(0, 0, box(0, 2, 0, 4), 0), shard(0, 0, box(0, 2, 4, 8), 0), shard(0, 0, box(2, 4, 0, 4), 0), shard(0, 0, box(2, 4, 4, 8), 0)}, nil, ""},
		{"replica on another rank", []layout.Shard{good, shard(0, 4, all, 0)}, nil, ""},
		{"state", with(func(s *layout.Shard) { s.State = 2 }), layout.ErrGeometry, "state #2, rank 3"},
		{"rank", with(func(s *layout.Shard) { s.Rank = -1 }), layout.ErrGeometry, "rank -1"},
		{"empty box", with(func(s *layout.Shard) { s.Box.Units = layout.Span{} }), layout.ErrGeometry, "empty"},
		{"outside", with(func(s *layout.Shard) { s.Box.Layers.Hi = 5 }), layout.ErrGeometry, "attn.k, rank 3, layers [0,5) units [0,8)"},
		{"below", with(func(s *layout.Shard) { s.Box.Units.Lo = -1 }), layout.ErrGeometry, "units [-1,8)"},
		{"rows", with(func(s *layout.Shard) { s.Rows = 0 }), layout.ErrGeometry, "0 rows"},
		{"items", with(func(s *layout.Shard) { s.Items = -1 }), layout.ErrGeometry, "-1 items"},
		{"dtype", with(func(s *layout.Shard) { s.DType = 9 }), layout.ErrGeometry, "dtype"},
		{"offset", with(func(s *layout.Shard) { s.View.Off = -8 }), layout.ErrGeometry, "offset -8"},
		{"stride of none", with(func(s *layout.Shard) { s.View.Row = 0 }), layout.ErrGeometry, "stride 0"},
		{"negative stride", with(func(s *layout.Shard) { s.View.Item = -1 }), layout.ErrGeometry, "stride -1"},
		{"rows overlap", with(func(s *layout.Shard) { s.View.Row = 28 }), layout.ErrGeometry, "stride 28 steps into the 32 bytes"},
		{"huge stride", with(func(s *layout.Shard) { s.View.Layer = 1 << 60 }), layout.ErrGeometry, "2^60"},
		{"wraps", with(func(s *layout.Shard) { s.View.Layer = 1<<62 + 1 }), layout.ErrGeometry, "2^60"},
		{"twice", []layout.Shard{good, shard(0, 3, box(3, 4, 7, 8), 9999)}, layout.ErrOverlap, "layers [3,4) units [7,8)"},
		{"same", []layout.Shard{good, good}, layout.ErrOverlap, "rank 3"},
		{"buffer", with(func(s *layout.Shard) { s.View.Buffer = 1 << 20 }), layout.ErrGeometry, "buffer 1048576"},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := model.Check(c.s)
			if !errors.Is(err, c.want) || err != nil && (!errors.Is(err, layout.ErrGeometry) || !strings.Contains(err.Error(), c.says)) {
				t.Fatalf("got %v, want %v saying %q", err, c.want, c.says)
			}
		})
	}
}

func TestCheckStates(t *testing.T) {
	st := model.States[0]
	for name, f := range map[string]func(*layout.State){
		"name":   func(s *layout.State) { s.Name = "" },
		"long":   func(s *layout.State) { s.Name = strings.Repeat("x", 129) },
		"twice":  func(s *layout.State) { s.Name = "attn.v" },
		"paging": func(s *layout.State) { s.Paging = 3 },
		"layers": func(s *layout.State) { s.Layers = 0 },
		"units":  func(s *layout.State) { s.Units = layout.MaxUnits + 1 },
		"elems":  func(s *layout.State) { s.Elems = -1 },
	} {
		s := st
		f(&s)
		if err := (layout.Model{States: []layout.State{s, model.States[1]}}).Check(nil); !errors.Is(err, layout.ErrGeometry) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := (layout.Model{}).Check(nil); !errors.Is(err, layout.ErrGeometry) {
		t.Errorf("no states: %v", err)
	}
	if err := (layout.Model{States: make([]layout.State, layout.MaxStates+1)}).Check(nil); !errors.Is(err, layout.ErrGeometry) {
		t.Errorf("many states: %v", err)
	}
}

func TestCheckMemory(t *testing.T) {
	all := box(0, 4, 0, 8)
	k := shard(0, 0, all, 0)
	plane := model.Extent(k) // 4*5*4*8*4
	v := shard(1, 0, all, plane)
	// heads of K and V side by side: [.., H, 2, d]
	mix := func(state int32) layout.Shard {
		s := shard(state, 0, all, int64(state)*4)
		s.View = layout.View{Off: s.View.Off, Layer: 5 * 4 * 64, Item: 4 * 64, Row: 64, Unit: 8, Elem: 2}
		return s
	}
	other := v
	other.View.Buffer = 1
	for _, c := range []struct {
		name     string
		s        []layout.Shard
		bufs     []int64
		declared []layout.Overlay
		says     string
	}{
		{"planes", []layout.Shard{k, v}, []int64{2 * plane}, nil, ""},
		{"interleaved", []layout.Shard{mix(0), mix(1)}, []int64{2 * plane}, nil, ""},
		{"one byte short", []layout.Shard{k, v}, []int64{2*plane - 1}, nil, "ends at byte 5120 of buffer 0, which has 5119"},
		{"no buffer", []layout.Shard{k, other}, []int64{2 * plane}, nil, "buffer 1: the rank attached 1"},
		{"overlay", []layout.Shard{k, shard(1, 0, all, plane-2)}, []int64{2 * plane}, nil, "same bytes of buffer 0"},
		{"declared", []layout.Shard{k, shard(1, 0, all, plane-2)}, []int64{2 * plane}, []layout.Overlay{{A: 1, B: 0}}, ""},
		{"two ranks", []layout.Shard{k, shard(1, 1, all, plane)}, []int64{2 * plane}, nil, "rank by rank"},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := layout.CheckMemory(model, c.s, c.bufs, c.declared...)
			if (err == nil) != (c.says == "") || err != nil && (!errors.Is(err, layout.ErrGeometry) || !strings.Contains(err.Error(), c.says)) {
				t.Fatalf("got %v, want %q", err, c.says)
			}
		})
	}
}

// TestOverlay compares CheckMemory with a map of bytes.
func TestOverlay(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := layout.Model{States: []layout.State{
			{Name: "a", Paging: layout.PerBlock, Layers: 3, Units: 3, Elems: 2}, {Name: "b", Paging: layout.PerBlock, Layers: 2, Units: 4, Elems: 3}}}
		var ss []layout.Shard
		used := map[int64]int{}
		clash := false
		shared := rapid.SliceOfN(rapid.Int64Range(0, 3), 5, 5).Draw(t, "gaps")
		for i, st := range m.States {
			s := layout.Shard{State: int32(i), Box: box(0, st.Layers, 0, st.Units), Rows: 2, Items: rapid.Int32Range(1, 3).Draw(t, "items"), DType: layout.U8}
			v := &s.View
			type dim struct {
				n int32
				s *int64
			}
			dims := rapid.Permutation([]dim{{st.Layers, &v.Layer}, {s.Items, &v.Item}, {2, &v.Row}, {st.Units, &v.Unit}, {st.Elems, &v.Elem}}).Draw(t, "order")
			size := int64(1)
			for k, d := range dims {
				size += shared[k] * int64(rapid.IntRange(0, 2).Draw(t, "times"))
				*d.s = size
				size *= int64(d.n)
			}
			v.Off = rapid.Int64Range(0, 60).Draw(t, "off")
			if i == 1 && rapid.Bool().Draw(t, "apart") {
				v.Off = ss[0].View.Off + rapid.Int64Range(-5, 200).Draw(t, "shift")
				v.Off = max(v.Off, 0)
			}
			for _, at := range bytesOf(m, s) {
				if used[at]++; used[at] > 1 {
					clash = true
				}
			}
			ss = append(ss, s)
		}
		err := layout.CheckMemory(m, ss, []int64{1 << 40})
		if (err != nil) != clash || err != nil && !errors.Is(err, layout.ErrMemory) {
			t.Fatalf("shards clash: %v, CheckMemory: %v", clash, err)
		}
	})
}

func bytesOf(m layout.Model, s layout.Shard) (out []int64) {
	v := s.View
	for l := range int64(s.Box.Layers.Len()) {
		for i := range int64(s.Items) {
			for r := range int64(s.Rows) {
				for u := range int64(s.Box.Units.Len()) {
					for e := range int64(m.States[s.State].Elems) {
						for k := range s.DType.Size() {
							out = append(out, v.Off+l*v.Layer+i*v.Item+r*v.Row+u*v.Unit+e*v.Elem+k)
						}
					}
				}
			}
		}
	}
	return out
}

// TestBoxes compares Subtract and the overlap check with sets of cells.
func TestBoxes(t *testing.T) {
	draw := func(t *rapid.T) layout.Box {
		l, u := rapid.Int32Range(0, 3).Draw(t, "layer"), rapid.Int32Range(0, 7).Draw(t, "unit")
		return box(l, rapid.Int32Range(l+1, 4).Draw(t, "to"), u, rapid.Int32Range(u+1, 8).Draw(t, "to"))
	}
	cells := func(bs ...layout.Box) map[[2]int32]int {
		out := map[[2]int32]int{}
		for _, b := range bs {
			for l := b.Layers.Lo; l < b.Layers.Hi; l++ {
				for u := b.Units.Lo; u < b.Units.Hi; u++ {
					out[[2]int32{l, u}]++
				}
			}
		}
		return out
	}
	rapid.Check(t, func(t *rapid.T) {
		a, b := draw(t), draw(t)
		rest := cells(a.Subtract(nil, b)...)
		for c, n := range cells(a) {
			if _, both := cells(b)[c]; both == (rest[c] == n) {
				t.Fatalf("%v minus %v: cell %v is there %d times", a, b, c, rest[c])
			}
		}
		if len(rest) != len(cells(a))-len(cells(a.Intersect(b))) {
			t.Fatalf("%v minus %v: %v", a, b, rest)
		}
		var ss []layout.Shard
		var bs []layout.Box
		for range rapid.IntRange(1, 5).Draw(t, "boxes") {
			bs = append(bs, draw(t))
			ss = append(ss, shard(0, 0, bs[len(bs)-1], 0))
		}
		twice := false
		for _, n := range cells(bs...) {
			twice = twice || n > 1
		}
		if err := model.Check(ss); (err != nil) != twice || err != nil && !errors.Is(err, layout.ErrOverlap) {
			t.Fatalf("%v overlap: %v, Check: %v", bs, twice, err)
		}
	})
}

func TestDigest(t *testing.T) {
	ss := []layout.Shard{shard(0, 0, box(0, 4, 0, 4), 0), shard(0, 1, box(0, 4, 4, 8), 0), shard(1, 0, box(0, 4, 0, 4), 9000)}
	want := layout.GeometryDigest(model, ss)
	rand.New(rand.NewSource(2)).Shuffle(len(ss), func(i, j int) { ss[i], ss[j] = ss[j], ss[i] })
	if layout.GeometryDigest(model, ss) != want {
		t.Error("the digest depends on the order of shards")
	}
	for name, f := range map[string]func(*layout.Shard){
		"rank": func(s *layout.Shard) { s.Rank++ }, "rows": func(s *layout.Shard) { s.Rows++ }, "items": func(s *layout.Shard) { s.Items++ },
		"dtype": func(s *layout.Shard) { s.DType++ }, "buffer": func(s *layout.Shard) { s.View.Buffer++ }, "off": func(s *layout.Shard) { s.View.Off++ },
		"elem": func(s *layout.Shard) { s.View.Elem++ }, "box": func(s *layout.Shard) { s.Box.Layers.Hi-- }, "state": func(s *layout.Shard) { s.State ^= 1 },
	} {
		c := slices.Clone(ss)
		f(&c[1])
		if layout.GeometryDigest(model, c) == want {
			t.Errorf("%s does not change the digest", name)
		}
	}
	m := layout.Model{States: slices.Clone(model.States)}
	m.States[1].Elems++
	if m.Digest() == model.Digest() || layout.GeometryDigest(m, ss) == want {
		t.Error("the model does not change the digest")
	}
}

// TestUncovered compares with a count of cells.
func TestUncovered(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var shards []layout.Shard
		held := [2][4][8]bool{}
		for range rapid.IntRange(0, 6).Draw(t, "shards") {
			span := func(n int32, name string) layout.Span {
				lo := rapid.Int32Range(0, n-1).Draw(t, name)
				return layout.Span{Lo: lo, Hi: rapid.Int32Range(lo+1, n).Draw(t, name+" end")}
			}
			state := rapid.Int32Range(0, 1).Draw(t, "state")
			b := layout.Box{Layers: span(4, "layer"), Units: span(8, "unit")}
			shards = append(shards, shard(state, 0, b, 0))
			for l := b.Layers.Lo; l < b.Layers.Hi; l++ {
				for u := b.Units.Lo; u < b.Units.Hi; u++ {
					held[state][l][u] = true
				}
			}
		}
		missing := 0
		for _, s := range held {
			for _, l := range s {
				for _, is := range l {
					if !is {
						missing++
					}
				}
			}
		}
		state, left, ok := model.Uncovered(shards)
		if ok != (missing > 0) {
			t.Fatalf("%d cells are held by nobody, and Uncovered says %v", missing, ok)
		}
		for l := left.Layers.Lo; l < left.Layers.Hi; l++ {
			for u := left.Units.Lo; u < left.Units.Hi; u++ {
				if held[state][l][u] {
					t.Fatalf("layer %d unit %d of state %d is held", l, u, state)
				}
			}
		}
		if ok && left.Empty() {
			t.Fatal("an empty box")
		}
	})
}
