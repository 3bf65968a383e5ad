package bench

import (
	"context"
	"crypto/sha256"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/batonkv/baton/cmd/dev"
	"github.com/batonkv/baton/sidecar/engine/client"
	"github.com/batonkv/baton/sidecar/handoff"
	"github.com/batonkv/baton/transfer/layout"
)

// loadTokens is one block; loadPrompt is the prompt that fills it.
const loadTokens = 16

var loadPrompt = make([]int32, loadTokens)

// loadEngine is an engine rank without a model: it applies decisions at once. One
// goroutine runs it; export is the only other user of its session.
type loadEngine struct {
	c    *client.Client
	fd   int
	done chan struct{}
	stop chan struct{}

	mu    sync.Mutex // guards:
	shown map[string]chan handoff.Manifest
}

// attachLoad attaches a rank with one buffer of 64 blocks.
func attachLoad(ctx context.Context, g *dev.Running, rank int32, dir string) (*loadEngine, error) {
	const blocks, block = 64, 2 * loadTokens * 64 * 2
	fd, err := unix.MemfdCreate("baton-load", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, err
	}
	if err := unix.Ftruncate(fd, blocks*block); err != nil {
		return nil, err
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW); err != nil {
		return nil, err
	}
	m := layout.Model{States: []layout.State{{Name: "attn.k", Paging: layout.PerBlock, Layers: 1, Units: 2, Elems: 64}}}
	shard := layout.Shard{Rank: layout.Rank(rank), Box: layout.Box{Layers: layout.Span{Hi: 1}, Units: layout.Span{Hi: 2}}, Rows: loadTokens, Items: blocks,
		DType: layout.BF16, View: layout.View{Layer: blocks * block, Item: block, Row: 256, Unit: 128, Elem: 2}}
	c, err := client.Dial(ctx, client.Config{Dir: dir, Files: []int{fd}, Attach: handoff.Attach{
		Group: g.Name, Instance: handoff.Instance(g.Instance), Rank: layout.Rank(rank), Ranks: g.Size(),
		Model: handoff.ModelIdentity{Name: "load", Layout: m}, Shards: []layout.Shard{shard},
		Buffers:  []handoff.BufferDecl{{ID: 0, Len: blocks * block}},
		Capacity: handoff.Capacity{Blocks: blocks, BlockTokens: loadTokens}, Scheduler: handoff.SchedulerRank, OnDown: handoff.OnDownFail}})
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("attach load engine %s/%d: %w", g.Name, rank, err)
	}
	e := &loadEngine{c: c, fd: fd, done: make(chan struct{}), stop: make(chan struct{}), shown: map[string]chan handoff.Manifest{}}
	go e.run()
	return e, nil
}

// run applies what the sidecar decides until the session or the engine ends.
func (e *loadEngine) run() {
	defer close(e.done)
	var msgs []handoff.ToEngine
	for {
		select {
		case <-e.c.Wake():
		case <-e.stop:
			return
		}
		if e.c.Err() != nil {
			return
		}
		msgs = e.c.Poll(msgs[:0])
		for _, m := range msgs {
			switch m := m.(type) {
			case handoff.Through:
				e.apply(m.N)
			case handoff.Exported:
				e.mu.Lock()
				if ch := e.shown[m.Label]; ch != nil {
					ch <- m.Manifest // holds one
					delete(e.shown, m.Label)
				}
				e.mu.Unlock()
			}
		}
	}
}

func (e *loadEngine) apply(through uint64) {
	for _, d := range e.c.Decisions(through) {
		if d.Kind == handoff.Reserve {
			r := handoff.Reserved{N: d.N, Blocks: []int32{int32(d.N % 64)}, Slot: -1}
			r.Digest = sha256.Sum256(fmt.Append(nil, r.Blocks))
			e.c.Send(r) // an ended session shows in Err
		}
	}
	e.c.Send(handoff.Applied{N: through})
}

// export pins one block and waits for the manifest.
func (e *loadEngine) export(ctx context.Context, label string) (handoff.Manifest, error) {
	ch := make(chan handoff.Manifest, 1)
	e.mu.Lock()
	e.shown[label] = ch
	e.mu.Unlock()
	err := e.c.Send(handoff.Export{Label: label, Blocks: []int32{1}, Slot: -1, Tokens: loadTokens, Position: loadTokens,
		Resume: handoff.Resume{Tokens: []int32{1}}})
	if err != nil {
		return handoff.Manifest{}, err
	}
	select {
	case m := <-ch:
		return m, nil
	case <-e.done:
		return handoff.Manifest{}, fmt.Errorf("load engine: %w", e.c.Err())
	case <-ctx.Done():
		return handoff.Manifest{}, ctx.Err()
	}
}

func (e *loadEngine) close() error {
	close(e.stop)
	<-e.done
	err := e.c.Close()
	unix.Close(e.fd)
	return err
}
