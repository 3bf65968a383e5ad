package golden_test

import (
	"hash/fnv"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/batonkv/baton/transfer/golden"
	"github.com/batonkv/baton/transfer/layout"
	"github.com/batonkv/baton/transfer/layout/parallel"
	"github.com/batonkv/baton/transfer/lower"
	"github.com/batonkv/baton/transfer/reshard"
)

// vector is a kv*, hy* or ext* file.
type vector struct {
	Model struct {
		Kind        string
		Layers      int32 `json:"num_layers"`
		Heads       int32 `json:"num_kv_heads"`
		Dim         int32 `json:"head_dim"`
		Latent      int32 `json:"latent_dim"`
		TokensPer   int32 `json:"tokens_per_block"`
		ElementSize int64 `json:"element_size"`
		SSM         *ssmDims
	}
	Src, Dst group
	Shapes   map[string]map[string][]int64 `json:"buffer_shapes"`
	Copies   []struct {
		SrcRank layout.Rank `json:"src_rank"`
		DstRank layout.Rank `json:"dst_rank"`
		Buffer  string
		Ranges  [][3]int64
	}
	Runs []struct {
		DstRank layout.Rank `json:"dst_rank"`
		DstOff  int64       `json:"dst_off"`
		Len     int64
		Sources []struct {
			SrcRank layout.Rank `json:"src_rank"`
			SrcOff  int64       `json:"src_off"`
		}
	}
}

type ssmDims struct {
	Layers  int32 `json:"num_layers"`
	Heads   int32 `json:"nheads"`
	HeadDim int32 `json:"headdim"`
	DState  int32 `json:"d_state"`
	Groups  int32 `json:"ngroups"`
	DConv   int32 `json:"d_conv"`
	Element int64 `json:"ssm_element_size"`
}

type group struct {
	Ranks []struct {
		Rank     layout.Rank `json:"global_rank"`
		TP       int32       `json:"tp_size"`
		TPRank   int32       `json:"tp_rank"`
		PP       int32       `json:"pp_size"`
		PPRank   int32       `json:"pp_rank"`
		Pool     int32
		Slots    int32
		First    *int32 `json:"layer_start"`
		Layers   int32  `json:"num_local_layers"`
		SSMFirst *int32 `json:"ssm_layer_start"`
		SSM      int32  `json:"ssm_num_layers"`
	}
	Blocks []int32 `json:"block_ids"`
	Slot   int32   `json:"ssm_slot"`
}

func dtype(t *testing.T, size int64) layout.DType {
	switch size {
	case 1:
		return layout.U8
	case 2:
		return layout.BF16
	case 4:
		return layout.F32
	}
	t.Fatalf("element size %d", size)
	return 0
}

func (v *vector) desc(t *testing.T) parallel.Desc {
	var d parallel.Desc
	switch m := v.Model; m.Kind {
	case "", "gqa", "mqa", "kv":
		d.Attention = &parallel.Attention{Layers: m.Layers, Heads: m.Heads, Dim: m.Dim}
	case "mla":
		d.Latent = &parallel.Latent{Layers: m.Layers, Dim: m.Latent}
	default:
		t.Fatalf("model kind %q", m.Kind)
	}
	if s := v.Model.SSM; s != nil {
		d.Mamba = &parallel.Mamba{Layers: s.Layers, Heads: s.Heads, HeadDim: s.HeadDim, StateDim: s.DState, Groups: s.Groups, Window: s.DConv}
	}
	return d
}

// mem is the buffers of one rank; every byte is the identity of what it holds.
type mem map[string][]uint64

// names are the vectors' buffers, by state.
var names = map[string]string{parallel.AttnK: "kv", parallel.AttnV: "kv", parallel.AttnLatent: "kv",
	parallel.ConvX: "conv", parallel.ConvB: "conv", parallel.ConvC: "conv", parallel.SSM: "recurrent"}

type side struct {
	shards []layout.Shard
	mem    map[layout.Rank]mem
	buffer map[layout.Rank]map[uint32]string
}

// build lays one group out as its engine does, rank by rank, for ranks may have
// pools of their own.
func (v *vector) build(t *testing.T, g *group, d parallel.Desc) side {
	s := side{mem: map[layout.Rank]mem{}, buffer: map[layout.Rank]map[uint32]string{}}
	m := d.Model()
	for _, r := range g.Ranks {
		es := v.Model.ElementSize
		pm := parallel.Memory{Blocks: r.Pool, BlockTokens: v.Model.TokensPer, KV: dtype(t, es), Slots: max(r.Slots, 1)}
		pm.Conv, pm.SSM = pm.KV, pm.KV
		if x := v.Model.SSM; x != nil && x.Element != 0 {
			pm.SSM = dtype(t, x.Element)
		}
		c := parallel.Cut{TP: r.TP, PP: r.PP}
		if r.First != nil {
			c.AttentionStages = make([]layout.Span, r.PP)
			c.AttentionStages[r.PPRank] = layout.Span{Lo: *r.First, Hi: *r.First + r.Layers}
			c.LatentStages = c.AttentionStages
		}
		if r.SSMFirst != nil {
			c.MambaStages = make([]layout.Span, r.PP)
			c.MambaStages[r.PPRank] = layout.Span{Lo: *r.SSMFirst, Hi: *r.SSMFirst + r.SSM}
		}
		one, err := d.Rank(c, pm, layout.Rank(r.PPRank*r.TP+r.TPRank))
		if err != nil {
			t.Fatalf("rank %d: %v", r.Rank, err)
		}
		s.mem[r.Rank], s.buffer[r.Rank] = mem{}, map[uint32]string{}
		for _, x := range one.Shards {
			x.Rank = r.Rank
			s.shards = append(s.shards, x)
			n := names[m.States[x.State].Name]
			s.buffer[r.Rank][x.View.Buffer] = n
			s.mem[r.Rank][n] = make([]uint64, one.Buffers[x.View.Buffer])
		}
	}
	return s
}

// fill writes the identity of every byte of every cell, which replicas share.
func (s *side) fill(m layout.Model) {
	for _, x := range s.shards {
		b := s.mem[x.Rank][s.buffer[x.Rank][x.View.Buffer]]
		v := x.View
		for l := x.Box.Layers.Lo; l < x.Box.Layers.Hi; l++ {
			for i := range x.Items {
				for r := range x.Rows {
					for u := x.Box.Units.Lo; u < x.Box.Units.Hi; u++ {
						for e := range m.States[x.State].Elems {
							at := v.Off + int64(l-x.Box.Layers.Lo)*v.Layer + int64(i)*v.Item + int64(r)*v.Row +
								int64(u-x.Box.Units.Lo)*v.Unit + int64(e)*v.Elem
							for k := range x.DType.Size() {
								b[at+k] = identity(x.State, l, i, r, u, e, int32(k))
							}
						}
					}
				}
			}
		}
	}
}

func identity(vs ...int32) uint64 {
	h := fnv.New64a()
	for _, v := range vs {
		h.Write([]byte{byte(v), byte(v >> 8), byte(v >> 16), byte(v >> 24)})
	}
	return h.Sum64()
}

func TestKV(t *testing.T)  { each(t, "kv") }
func TestHy(t *testing.T)  { each(t, "hy") }
func TestExt(t *testing.T) { each(t, "ext") }

func each(t *testing.T, kind string) {
	for _, f := range golden.Read(t, "testdata", kind) {
		t.Run(f.Name, func(t *testing.T) {
			v := golden.Decode[vector](t, f)
			v.check(t)
		})
	}
}

func (v *vector) check(t *testing.T) {
	d := v.desc(t)
	m := d.Model()
	src, dst, want := v.build(t, &v.Src, d), v.build(t, &v.Dst, d), v.build(t, &v.Dst, d)
	src.fill(m)
	for rank, shapes := range v.Shapes {
		v.sameShape(t, rank, shapes, &src, &dst)
	}
	listed := v.expect(t, &src, &want)
	if listed == 0 {
		t.Fatal("the vector lists no bytes")
	}
	p, err := reshard.New(m, src.shards, dst.shards)
	if err != nil {
		t.Fatal(err)
	}
	var moved int64
	for i, pair := range p.Pairs() {
		tm, err := lower.New(p, uint32(i))
		if err != nil {
			t.Fatal(err)
		}
		ns, err := tm.Nests(nil, lower.Job{Pair: uint32(i), SrcBlocks: v.Src.Blocks, DstBlocks: v.Dst.Blocks,
			SrcSlot: v.Src.Slot, DstSlot: v.Dst.Slot, Tokens: layout.Span{Hi: int32(len(v.Dst.Blocks)) * v.Model.TokensPer}})
		if err != nil {
			t.Fatal(err)
		}
		runs, err := lower.Split(nil, ns)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range runs {
			from, to := src.mem[pair.Src][src.buffer[pair.Src][r.Src]], dst.mem[pair.Dst][dst.buffer[pair.Dst][r.Dst]]
			copy(to[r.DstOff:r.DstOff+r.Len], from[r.SrcOff:r.SrcOff+r.Len])
			moved += r.Len
		}
	}
	if moved != listed {
		t.Errorf("%d bytes move, the vector lists %d", moved, listed)
	}
	for rank, bufs := range want.mem {
		for name, b := range bufs {
			for i := range b {
				if got := dst.mem[rank][name][i]; got != b[i] {
					t.Fatalf("rank %d %s byte %d: wrong source (%x, want %x)", rank, name, i, got, b[i])
				}
			}
		}
	}
}

// expect runs the vector's own copies on to and returns how many bytes they are.
func (v *vector) expect(t *testing.T, from, to *side) (n int64) {
	for _, c := range v.Copies {
		for _, r := range c.Ranges {
			copy(to.mem[c.DstRank][c.Buffer][r[1]:r[1]+r[2]], from.mem[c.SrcRank][c.Buffer][r[0]:r[0]+r[2]])
			n += r[2]
		}
	}
	for _, r := range v.Runs {
		at := to.mem[r.DstRank]["kv"][r.DstOff : r.DstOff+r.Len]
		for i, s := range r.Sources {
			b := from.mem[s.SrcRank]["kv"][s.SrcOff : s.SrcOff+r.Len]
			for k := range b {
				if i > 0 && at[k] != b[k] {
					t.Fatalf("rank %d offset %d: listed sources %v differ", r.DstRank, r.DstOff, r.Sources)
				}
			}
			copy(at, b)
		}
		n += r.Len
	}
	return n
}

// sameShape compares the built buffers with the vector's shapes.
func (v *vector) sameShape(t *testing.T, rank string, shapes map[string][]int64, sides ...*side) {
	for _, s := range sides {
		for r, bufs := range s.mem {
			if rank != strconv.Itoa(int(r)) {
				continue
			}
			for name, shape := range shapes {
				n := v.Model.ElementSize
				if name == "recurrent" && v.Model.SSM.Element != 0 {
					n = v.Model.SSM.Element
				}
				for _, d := range shape {
					n *= d
				}
				if int64(len(bufs[name])) != n {
					t.Fatalf("rank %s %s: built %d bytes, the vector's shape %v has %d", rank, name, len(bufs[name]), shape, n)
				}
			}
		}
	}
}

// TestRule: a directory without any vector fails, one that lacks a kind skips.
func TestRule(t *testing.T) {
	dir := t.TempDir()
	t.Setenv(golden.Env, dir)
	if rec := record(func(t testing.TB) { golden.Read(t, "testdata", "kv") }); !rec.failed {
		t.Error("an empty directory passes")
	}
	if err := os.WriteFile(filepath.Join(dir, "hy99_x.json"), []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	if rec := record(func(t testing.TB) { golden.Read(t, "testdata", "kv") }); !rec.skipped {
		t.Error("a directory with hy vectors only does not skip kv")
	}
	if got := golden.Read(t, "testdata", "hy"); len(got) != 1 || got[0].Name != "hy99_x" {
		t.Errorf("read %v", got)
	}
}

// recorder is a testing.TB that notes how a helper ended.
type recorder struct {
	testing.TB
	failed, skipped bool
}

func (r *recorder) Helper()               {}
func (r *recorder) Fatal(...any)          { r.failed = true; panic(r) }
func (r *recorder) Fatalf(string, ...any) { r.failed = true; panic(r) }
func (r *recorder) Skipf(string, ...any)  { r.skipped = true; panic(r) }

func record(f func(testing.TB)) (r *recorder) {
	r = &recorder{}
	defer func() { _ = recover() }()
	f(r)
	return r
}
