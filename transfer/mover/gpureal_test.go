//go:build cgo

package mover

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/batonkv/baton/transfer"
	"github.com/batonkv/baton/transfer/layout"
	"github.com/batonkv/baton/transfer/lower"
	"github.com/batonkv/baton/transfer/reshard"
	"github.com/batonkv/baton/transfer/transfertest"
)

// large is one buffer's worth: 64 blocks of 16 rows, all of them moved.
type large struct {
	m     *Mover
	dst   transfertest.Buffer
	src   [2]transfertest.Buffer // of different bytes
	links [2]transfer.Link
	t     *lower.Template
	j     lower.Job
}

func setLarge(t *testing.T, b *bench, m *Mover, size int64) *large {
	t.Helper()
	return setEnds(t, m, size, b.alloc(0), b.alloc(1))
}

func setEnds(t *testing.T, m *Mover, size int64, src, dst transfertest.Alloc) *large {
	t.Helper()
	x := &large{m: m, j: lower.Job{Tokens: layout.Span{Hi: 64 * 16}}}
	for i := range int32(64) {
		x.j.SrcBlocks, x.j.DstBlocks = append(x.j.SrcBlocks, i), append(x.j.DstBlocks, 63-i)
	}
	for i := range x.src { // before the destination: this process works in the context of GPU 0
		x.src[i] = src(t, size)
	}
	x.dst = dst(t, size)
	_, err := m.Register(t.Context(), 0, x.dst.Memory())
	must(t, err)
	for i := range x.src {
		for k := range x.src[i].Bytes {
			x.src[i].Bytes[k] = byte(k*7 + k>>11 + i*93)
		}
		if x.src[i].Store != nil {
			x.src[i].Store()
		}
		x.links[i], err = m.Open(t.Context(), transfer.Peer{ID: transfer.PeerID(fmt.Sprintf("p/%d@1", i)),
			Regions: map[transfer.RegionID]transfer.Memory{0: x.src[i].Memory()}})
		must(t, err)
	}
	row := size / (64 * 16)
	model := layout.Model{States: []layout.State{{Name: "attn.k", Paging: layout.PerBlock, Layers: 1, Units: 1, Elems: int32(row / 2)}}}
	s := []layout.Shard{{Box: layout.Box{Layers: layout.Span{Hi: 1}, Units: layout.Span{Hi: 1}}, Rows: 16, Items: 64, DType: layout.BF16,
		View: layout.View{Layer: size, Item: 16 * row, Row: row, Unit: row, Elem: 2}}}
	p, err := reshard.New(model, s, s)
	must(t, err)
	x.t, err = lower.New(p, 0)
	must(t, err)
	return x
}

func (x *large) pull(t *testing.T, i int) transfer.Ticket {
	t.Helper()
	k, err := x.links[i].Pull(t.Context(), x.t, x.j)
	must(t, err)
	return k
}

// check compares the destination with source i.
func (x *large) check(t *testing.T, i int) {
	t.Helper()
	x.load()
	block := len(x.dst.Bytes) / 64
	for k := range 64 {
		if !bytes.Equal(x.dst.Bytes[(63-k)*block:][:block], x.src[i].Bytes[k*block:][:block]) {
			t.Fatalf("block %d is not the source's", k)
		}
	}
}

func eachGPUs(t *testing.T, f func(t *testing.T, g gpus, size int64)) {
	t.Run("fake", func(t *testing.T) { f(t, fakeGPUs(t), 1<<20) })
	t.Run("real", func(t *testing.T) { f(t, realGPUs(t), 1<<29) })
}

// A mover that is killed while it copies leaves memory that does not change any more.
func TestGPUMoverKilled(t *testing.T) {
	eachGPUs(t, func(t *testing.T, g gpus, size int64) {
		for name, kind := range gpuKinds {
			t.Run(name, func(t *testing.T) {
				b := g.bench(t, kind)
				m := start(t, g.config())
				setLarge(t, b, m, size).kill(t, size)
			})
		}
	})
}

// kill kills the mover under copies.
func (x *large) kill(t *testing.T, size int64) {
	var open []transfer.Ticket
	for i := range 40 {
		open = append(open, x.pull(t, i%2))
	}
	<-open[3].Done()
	must(t, unix.Kill(x.m.PID(), unix.SIGKILL))
	dead := 0
	for _, k := range open {
		if <-k.Done(); errors.Is(k.Err(), transfer.ErrMover) {
			dead++
		}
	}
	if dead == 0 && size > 1<<20 { // small copies may be done before the kill
		t.Error("no ticket was open at the kill")
	}
	x.load()
	first := bytes.Clone(x.dst.Bytes)
	for range 3 {
		x.load()
		if !bytes.Equal(first, x.dst.Bytes) {
			t.Fatal("memory changes after the mover's exit was seen")
		}
	}
}

func (x *large) load() {
	if x.dst.Load != nil {
		x.dst.Load()
	}
}

// The same of copies between a GPU and memory of the host, pinned and not.
func TestMixedMoverKilled(t *testing.T) {
	eachGPUs(t, func(t *testing.T, g gpus, size int64) {
		for _, fail := range []string{"", "cuMemHostRegister:0:801"} { // a real driver does as it likes
			cfg := g.config()
			cfg.Env = append(cfg.Env, "FAKE_CUDA_FAIL="+fail)
			t.Run("to the host "+fail, func(t *testing.T) {
				setEnds(t, start(t, cfg), size, g.bench(t, transfer.CUDA).alloc(0), transfertest.Memfd).kill(t, size)
			})
			t.Run("from the host "+fail, func(t *testing.T) {
				setEnds(t, start(t, cfg), size, transfertest.Memfd, g.bench(t, transfer.CUDA).alloc(0)).kill(t, size)
			})
		}
	})
}

// Memory that its owner frees, or whose owner dies, while it is read keeps its bytes for who
// has mapped it.
func TestGPUOwnerEnds(t *testing.T) {
	eachGPUs(t, func(t *testing.T, g gpus, size int64) {
		for name, kind := range gpuKinds {
			for how, end := range map[string]func(*bench) error{
				"freed":  func(b *bench) error { return errors.Join(b.owners[0].Free(1), b.owners[0].Free(2)) },
				"killed": func(b *bench) error { b.owners[0].Kill(); return nil },
			} {
				t.Run(name+" "+how, func(t *testing.T) {
					b := g.bench(t, kind)
					x := setLarge(t, b, start(t, g.config()), size)
					var open []transfer.Ticket
					for i := range 20 {
						open = append(open, x.pull(t, i%2))
					}
					<-open[2].Done()
					must(t, end(b))
					for i, k := range open {
						if <-k.Done(); k.Err() != nil {
							t.Errorf("pull %d: %v", i, k.Err())
						}
					}
					for i := range 2 { // and pulls that begin later
						k := x.pull(t, i)
						if <-k.Done(); k.Err() != nil {
							t.Fatal(k.Err())
						}
						x.check(t, i)
					}
				})
			}
		}
	})
}
