//go:build cgo

package e2e

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/batonkv/baton/cmd/dev"
	"github.com/batonkv/baton/discovery"
	"github.com/batonkv/baton/kernels/cuda/owner"
	"github.com/batonkv/baton/kernels/dma"
	"github.com/batonkv/baton/kernels/rows/plain"
	"github.com/batonkv/baton/sidecar/engine/client"
	"github.com/batonkv/baton/sidecar/events"
	"github.com/batonkv/baton/sidecar/handoff"
	"github.com/batonkv/baton/transfer"
	"github.com/batonkv/baton/transfer/layout"
)

// ownerArg has the test binary be a process that owns GPU memory.
const ownerArg = "own-gpu-memory"

func init() {
	if len(os.Args) > 1 && os.Args[1] == ownerArg {
		if err := owner.Serve(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
}

// The state of an owned engine: owned.bytes of it are a block.
var owned = struct {
	model         layout.Model
	blocks, bytes int32
}{layout.Model{States: []layout.State{{Name: "attn.k", Paging: layout.PerBlock, Layers: 1, Units: 1, Elems: 64}}}, 32, block * 128}

// ownedEngine is an engine of one rank whose memory is another process's, which the test can
// look into, and end.
type ownedEngine struct {
	*client.Client
	of       *owner.Owner
	mem      []byte // the fake's memory is the host's
	number   int    // of mem
	admitted atomic.Int64
}

// attachOwned attaches one to the sidecar in dir: to that of a prefill engine from GPU 0, else from 1.
func attachOwned(t *testing.T, g *dev.Running, dir, driver string, kind transfer.Kind, instance handoff.Instance) *ownedEngine {
	t.Helper()
	gpu := 1
	if g.Role == discovery.Prefill {
		gpu = 0
	}
	must := func(err error) {
		if t.Helper(); err != nil {
			t.Fatal(err)
		}
	}
	o, err := owner.Start(exec.Command(os.Args[0], ownerArg))
	must(err)
	t.Cleanup(func() { _ = o.Close() })
	m, number, err := o.Alloc(gpu, kind, int64(owned.blocks*owned.bytes))
	must(err)
	t.Cleanup(func() {
		for _, f := range m.FDs() {
			_ = unix.Close(f) // nobody writes to it
		}
	})
	view, err := dma.NewDevice(dma.Config{}, driver)
	must(err)
	at, unmap, err := view.Map(m, true)
	must(err)
	t.Cleanup(func() { must(unmap()); must(view.Close()) })
	d := handoff.BufferDecl{Off: m.Off, Len: m.Len, GPU: &handoff.GPUMemory{UUID: m.GPU.UUID}}
	if kind == transfer.CUDA {
		d.GPU.Handle = m.GPU.Handle
	}
	for _, c := range m.GPU.Chunks {
		d.GPU.Chunks = append(d.GPU.Chunks, c.Len)
	}
	sh := layout.Shard{Box: layout.Box{Layers: layout.Span{Hi: 1}, Units: layout.Span{Hi: 1}}, Rows: block, Items: owned.blocks, DType: layout.BF16,
		View: layout.View{Layer: int64(owned.blocks * owned.bytes), Item: int64(owned.bytes), Row: 128, Unit: 128, Elem: 2}}
	c, err := client.Dial(bounded(t), client.Config{Dir: dir, Files: m.FDs(), Attach: handoff.Attach{
		Group: g.Name, Instance: instance, Ranks: 1, Model: handoff.ModelIdentity{Name: "owned", Layout: owned.model}, Shards: []layout.Shard{sh},
		Buffers: []handoff.BufferDecl{d}, Capacity: handoff.Capacity{Blocks: owned.blocks, BlockTokens: block},
		Scheduler: handoff.SchedulerRank, OnDown: handoff.OnDownFail}})
	must(err)
	e := &ownedEngine{Client: c, of: o, mem: plain.Bytes(at.Addr, at.Len), number: number}
	ended, stop := make(chan struct{}), make(chan struct{})
	go e.serve(stop, ended)
	t.Cleanup(func() { close(stop); <-ended; c.Close() })
	return e
}

// serve takes decisions: imports go to the blocks from 9 down.
func (e *ownedEngine) serve(stop <-chan struct{}, ended chan<- struct{}) {
	defer close(ended)
	for {
		select {
		case <-e.Wake():
		case <-stop:
			return
		}
		for _, m := range e.Poll(nil) {
			through, is := m.(handoff.Through)
			if !is {
				continue
			}
			for _, d := range e.Decisions(through.N) {
				switch d.Kind {
				case handoff.Reserve:
					r := handoff.Reserved{N: d.N, Slot: -1, Digest: sha256.Sum256(nil)}
					for b := range (d.Tokens + block - 1) / block {
						r.Blocks = append(r.Blocks, 9-b)
					}
					_ = e.Send(r) // the client has ended, and says so
				case handoff.Admit:
					e.admitted.Add(1)
				}
			}
			_ = e.Send(handoff.Applied{N: through.N})
		}
	}
}

// give exports four blocks of noise, and returns them with the manifest.
func (w *world) give(e *ownedEngine, label string) (want []byte, man handoff.Manifest) {
	w.t.Helper()
	x := handoff.Export{Label: label, Tokens: 4 * block, Position: 4 * block, Slot: -1, Blocks: []int32{3, 1, 8, 5}, Resume: handoff.Resume{Tokens: []int32{7}}}
	for _, b := range x.Blocks {
		part := e.mem[b*owned.bytes : (b+1)*owned.bytes]
		for i := range part {
			h := sha256.Sum256(fmt.Append(nil, label, b, i/32))
			part[i] = h[i%32]
		}
		want = append(want, part...)
	}
	if err := e.Send(x); err != nil {
		w.t.Fatal(err)
	}
	select {
	case man = <-w.manifest(label):
	case <-bounded(w.t).Done():
		w.t.Fatal("no manifest came")
	}
	return want, man
}

// got is what the four blocks of an import hold.
func (e *ownedEngine) got() (b []byte) {
	for i := int32(9); i > 5; i-- {
		b = append(b, e.mem[i*owned.bytes:(i+1)*owned.bytes]...)
	}
	return b
}

func (w *world) take(ctx context.Context, label string, man handoff.Manifest) error {
	_, err := w.decode.Leader.Import(ctx, handoff.Import{Label: label, Manifest: man, Tokens: slices.Repeat([]int32{1}, 4*block), Deadline: patience})
	return err
}

// TestGPUOwnerGone: GPU memory that its owner frees while it is read keeps its bytes until the
// reader lets go, and what is admitted is right; an owner that dies ends the hand-off, and
// nothing of it is admitted. The next engine is read as the first.
func TestGPUOwnerGone(t *testing.T) {
	for name, kind := range map[string]transfer.Kind{"handles": transfer.CUDA, "descriptors": transfer.CUDAFD} {
		t.Run(name, func(t *testing.T) {
			driver := onFakeGPUs(t)
			engines, dirs := map[discovery.Role]*ownedEngine{}, map[discovery.Role]string{}
			w := up(t, "tp=1,role=prefill+tp=1,role=decode", "attention", func(o *dev.Options) {
				o.Engine = func(_ context.Context, g *dev.Running, _ int32, dir string) error {
					engines[g.Role], dirs[g.Role] = attachOwned(t, g, dir, driver, kind, 1), dir
					return nil
				}
			})
			src, dst := engines[discovery.Prefill], engines[discovery.Decode]
			lands := func(label string) {
				t.Helper()
				want, man := w.give(src, label)
				if err := w.take(bounded(t), label, man); err != nil || !bytes.Equal(dst.got(), want) {
					t.Fatalf("%s: %v, or other bytes", label, err)
				}
			}
			lands("first")
			whileRead := func(label string, lose func()) error {
				t.Helper()
				want, man := w.give(src, label)
				ch, mover, done := w.events(w.decode), watch(t, w.decode.Ranks[0].Sidecar.MoverPID), make(chan error, 1)
				mover.halt(t)
				t.Cleanup(func() { _ = unix.PidfdSendSignal(mover.fd, unix.SIGCONT, nil, 0) })
				ctx := bounded(t)
				go func() { done <- w.take(ctx, label, man) }()
				w.next(ch, events.Moving, label)
				lose()
				mover.signal(t, unix.SIGCONT)
				err := <-done
				if err == nil && !bytes.Equal(dst.got(), want) {
					t.Errorf("%s: other bytes were admitted", label)
				}
				return err
			}
			before := dst.admitted.Load()
			if err := whileRead("killed", func() {
				src.of.Kill()
				src.Close()
				eventually(t, "its group is not ready", func() bool { return !w.ready(w.prefill) })
			}); !errors.Is(err, handoff.ErrPeer) && !errors.Is(err, handoff.ErrTransfer) && !errors.Is(err, handoff.ErrGone) || dst.admitted.Load() != before {
				t.Errorf("of an owner that died while it is read: %v, %d admitted", err, dst.admitted.Load()-before)
			}
			src = attachOwned(t, w.prefill, dirs[discovery.Prefill], driver, kind, 2)
			eventually(t, "its group is ready again", func() bool { return w.ready(w.prefill) })
			lands("of the next engine")
			if err := whileRead("freed", func() {
				if err := src.of.Free(src.number); err != nil {
					t.Fatal(err)
				}
			}); err != nil {
				t.Errorf("freed while it is read: %v", err)
			}
		})
	}
}
