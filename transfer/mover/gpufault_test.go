//go:build cgo

package mover

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/batonkv/baton/transfer"
	"github.com/batonkv/baton/transfer/layout"
	"github.com/batonkv/baton/transfer/lower"
	"github.com/batonkv/baton/transfer/reshard"
	"github.com/batonkv/baton/transfer/transfertest"
)

// What a driver lacks, or refuses, is an ErrMemory that says what it is and what to do.
func TestGPURefused(t *testing.T) {
	for name, c := range map[string]struct {
		env  string
		edit func(*transfer.Memory)
		says string
	}{
		"driver too old":   {"FAKE_CUDA_VERSION=11080", nil, "12.0 or later"},
		"no symbol":        {"FAKE_CUDA_MISSING=cuIpcOpenMemHandle", nil, "cuIpcOpenMemHandle"},
		"no driver":        {"LD_LIBRARY_PATH=/nowhere", nil, "install the NVIDIA driver"},
		"no GPU":           {"FAKE_CUDA_DEVICES=0", nil, "no driver"},
		"out of memory":    {"FAKE_CUDA_FAIL=cuIpcOpenMemHandle:0:2", nil, "CUDA_ERROR_OUT_OF_MEMORY"},
		"streams":          {"FAKE_CUDA_FAIL=cuStreamCreateWithPriority:2:2", nil, "CUDA_ERROR_OUT_OF_MEMORY"},
		"GPU not visible":  {"", func(m *transfer.Memory) { m.GPU.UUID[3]++ }, "CUDA_VISIBLE_DEVICES"},
		"wrong handle":     {"", func(m *transfer.Memory) { m.GPU.Handle[0]++ }, "CUDA_ERROR_INVALID_HANDLE"},
		"offset too large": {"", func(m *transfer.Memory) { m.Off += 1 << 30 }, "at offset"},
		"without a GPU":    {"", func(m *transfer.Memory) { m.GPU = nil }, "no such GPU"},
	} {
		t.Run(name, func(t *testing.T) {
			g := fakeGPUs(t)
			b := g.bench(t, transfer.CUDA)
			cfg := g.config()
			if c.env != "" {
				cfg.Env = append(cfg.Env, c.env)
			}
			m := start(t, cfg)
			mem := b.alloc(1)(t, 4096).Memory()
			if c.edit != nil {
				if mem.GPU != nil {
					own := *mem.GPU
					mem.GPU = &own
				}
				c.edit(&mem)
			}
			if _, err := m.Register(t.Context(), 0, mem); !errors.Is(err, transfer.ErrMemory) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("Register: %v; want ErrMemory with %q", err, c.says)
			}
		})
	}
}

// Without access between the GPUs the peer is refused, and memory of one's own is not.
func TestGPUsApart(t *testing.T) {
	g := fakeGPUs(t)
	b := g.bench(t, transfer.CUDA)
	src, dst := b.alloc(0)(t, 4096), b.alloc(1)(t, 4096)
	cfg := g.config()
	cfg.Env = append(cfg.Env, "FAKE_CUDA_NO_PEER=1")
	m := start(t, cfg)
	if _, err := m.Register(t.Context(), 0, dst.Memory()); err != nil {
		t.Fatal(err)
	}
	_, err := m.Open(t.Context(), transfer.Peer{ID: "p", Regions: map[transfer.RegionID]transfer.Memory{0: src.Memory()}})
	if !errors.Is(err, transfer.ErrMemory) || !strings.Contains(err.Error(), "stage through the host") {
		t.Errorf("Open: %v", err)
	}
	if _, err := m.Register(t.Context(), 1, src.Memory()); !errors.Is(err, transfer.ErrMemory) || !strings.Contains(err.Error(), "a sidecar for each GPU") {
		t.Errorf("memory of a second GPU: %v", err)
	}
}

// A peer that is opened before the rank's own memory does not decide which GPU copies.
func TestGPUOfItsOwnMemory(t *testing.T) {
	g := fakeGPUs(t)
	b := g.bench(t, transfer.CUDA)
	src, dst := b.alloc(0)(t, 4096), b.alloc(1)(t, 4096)
	m := start(t, g.config())
	l, err := m.Open(t.Context(), transfer.Peer{ID: "p", Regions: map[transfer.RegionID]transfer.Memory{0: src.Memory()}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.Register(t.Context(), 0, dst.Memory()); !errors.Is(err, transfer.ErrMemory) {
		t.Errorf("memory of another GPU while the first is in use: %v", err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := m.Register(t.Context(), 0, dst.Memory()); err != nil {
		t.Errorf("the rank's own memory once nothing is open: %v", err)
	}
}

// pair is TP2 to TP1 over GPU memory.
func (b *bench) pair(t testing.TB, m *Mover) *transfertest.Pair {
	return transfertest.PairOf(t, transfertest.Env{Backend: m, Source: b.alloc(0), Alloc: b.alloc(1)})
}

// An error that poisons the context ends the mover: its tickets settle by its exit, and the
// next one serves.
func TestGPULost(t *testing.T) {
	g := fakeGPUs(t)
	b := g.bench(t, transfer.CUDA)
	cfg := g.config()
	exits := make(chan error, 10)
	cfg.Exited = func(_ int, err error) { exits <- err }
	cfg.Env = append(cfg.Env, "FAKE_CUDA_FAIL=exec:0:700")
	p := b.pair(t, start(t, cfg))
	k := p.Pull(t, layout.Span{Hi: 100})
	if <-k.Done(); !errors.Is(k.Err(), transfer.ErrMover) {
		t.Errorf("the ticket: %v, want ErrMover", k.Err())
	}
	if err := <-exits; err == nil || !strings.Contains(err.Error(), "CUDA_ERROR_ILLEGAL_ADDRESS") {
		t.Errorf("the mover's exit: %v", err)
	}
}

// A rank of whose two buffers one is on a GPU and the other on the host, which a peer's are
// alike or the other way round.
func TestGPUAndHost(t *testing.T) {
	g := fakeGPUs(t)
	b := g.bench(t, transfer.CUDAFD)
	m := start(t, g.config())
	bufs := []transfertest.Buffer{b.alloc(0)(t, 4096), transfertest.Memfd(t, 4096), b.alloc(1)(t, 4096), transfertest.Memfd(t, 4096)}
	for i := range 2 {
		for k := range bufs[i].Bytes {
			bufs[i].Bytes[k] = byte(k*3 + i)
		}
	}
	bufs[0].Store()
	for i := range 2 {
		if _, err := m.Register(t.Context(), transfer.RegionID(i), bufs[2+i].Memory()); err != nil {
			t.Fatal(err)
		}
	}
	straight, crossed := twoBuffers(t, 0, 1), twoBuffers(t, 1, 0)
	l, err := m.Open(t.Context(), transfer.Peer{ID: "p", Regions: map[transfer.RegionID]transfer.Memory{0: bufs[0].Memory(), 1: bufs[1].Memory()}})
	if err != nil {
		t.Fatal(err)
	}
	pull := func(tm *lower.Template) error {
		for i := range 2 {
			clear(bufs[2+i].Bytes)
		}
		bufs[2].Store()
		k, err := l.Pull(t.Context(), tm, lower.Job{SrcBlocks: []int32{1, 3}, DstBlocks: []int32{0, 2}, Tokens: layout.Span{Hi: 32}})
		if err != nil {
			return err
		}
		<-k.Done()
		return k.Err()
	}
	for name, tm := range map[string]*lower.Template{"straight": straight, "crossed": crossed} {
		if err := pull(tm); err != nil {
			t.Fatal(err)
		}
		bufs[2].Load()
		for i := range 2 {
			d, s := bufs[2+i].Bytes, bufs[i].Bytes
			if name == "crossed" {
				s = bufs[1-i].Bytes
			}
			if !bytes.Equal(d[:512], s[512:1024]) || !bytes.Equal(d[1024:1536], s[1536:2048]) {
				t.Errorf("%s: buffer %d: bytes differ", name, i)
			}
		}
	}
}

// What fails between a GPU and the host settles its ticket, and the next pull is whole.
func TestMixedFails(t *testing.T) {
	for name, c := range map[string]struct {
		fail string
		is   error
		says string
	}{
		"a copy is refused": {"cuMemcpy3DAsync:0:1,cuMemcpy3DAsync:1:0", transfer.ErrMemory, "CUDA_ERROR_INVALID_VALUE"},
		"out of memory":     {"cuMemcpy3DAsync:0:2", transfer.ErrMemory, "CUDA_ERROR_OUT_OF_MEMORY"},
		"context lost":      {"exec:0:700", transfer.ErrMover, ""},
	} {
		t.Run(name, func(t *testing.T) {
			g := fakeGPUs(t)
			b := g.bench(t, transfer.CUDA)
			cfg := g.config()
			cfg.Env = append(cfg.Env, "FAKE_CUDA_FAIL="+c.fail)
			p := transfertest.PairOf(t, transfertest.Env{Backend: start(t, cfg), Source: b.alloc(0), Alloc: transfertest.Memfd})
			k := p.Pull(t, layout.Span{Hi: 100})
			if <-k.Done(); !errors.Is(k.Err(), c.is) || !strings.Contains(k.Err().Error(), c.says) {
				t.Errorf("the ticket: %v; want %v with %q", k.Err(), c.is, c.says)
			}
		})
	}
}

// twoBuffers is a template of two states in a buffer each, of eight 16-token blocks of 512
// bytes; first and second are the destination's buffers of the source's 0 and 1.
func twoBuffers(t *testing.T, first, second uint32) *lower.Template {
	t.Helper()
	var m layout.Model
	var src, dst []layout.Shard
	for i, to := range []uint32{first, second} {
		m.States = append(m.States, layout.State{Name: []string{"attn.k", "attn.v"}[i], Paging: layout.PerBlock, Layers: 1, Units: 1, Elems: 16})
		s := layout.Shard{State: int32(i), Box: layout.Box{Layers: layout.Span{Hi: 1}, Units: layout.Span{Hi: 1}}, Rows: 16, Items: 8, DType: layout.BF16,
			View: layout.View{Buffer: uint32(i), Layer: 4096, Item: 512, Row: 32, Unit: 32, Elem: 2}}
		src = append(src, s)
		s.View.Buffer = to
		dst = append(dst, s)
	}
	p, err := reshard.New(m, src, dst)
	if err != nil {
		t.Fatal(err)
	}
	tm, err := lower.New(p, 0)
	if err != nil {
		t.Fatal(err)
	}
	return tm
}
