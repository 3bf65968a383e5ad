package bench

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/batonkv/baton/cmd/bench/measure"
	"github.com/batonkv/baton/cmd/dev"
	"github.com/batonkv/baton/discovery"
	"github.com/batonkv/baton/sidecar/engine/client"
	"github.com/batonkv/baton/sidecar/handoff"
	"github.com/batonkv/baton/transfer/layout"
)

// loadShape is the state of the one request that an engine without a model hands off, and
// its paged cache: [layer][block][token][unit][elem] bf16 on each rank, units divided evenly.
type loadShape struct {
	layers, units, elems int32
	block, blocks        int32 // tokens of a block; blocks of the cache
	tokens               int32 // of the request
}

// oneBlock is a request of one small block.
var oneBlock = loadShape{layers: 1, units: 2, elems: 64, block: 16, blocks: 64, tokens: 16}

// bytes of one request over all ranks.
func (s loadShape) bytes() int64 {
	return int64(s.layers) * int64(s.units) * int64(s.elems) * 2 * int64(s.tokens)
}

// table is the request's blocks, no run of neighbours, from the n-th on.
func (s loadShape) table(n uint64) []int32 {
	t := make([]int32, (s.tokens+s.block-1)/s.block)
	for i := range t {
		t[i] = int32((n + uint64(i)*7) % uint64(s.blocks))
	}
	return t
}

// loadEngine is an engine rank without a model: it applies decisions at once. One
// goroutine runs it; export is the only other user of its session.
type loadEngine struct {
	loadShape
	c    *client.Client
	fd   int
	mem  []byte // the cache
	done chan struct{}
	stop chan struct{}
	next *loadEngine // the rank after this one, which hears from it how far to apply
	told chan uint64

	mu    sync.Mutex // guards:
	shown map[string]chan handoff.Manifest
}

// attachLoad attaches a rank with one buffer, all of it touched.
func attachLoad(ctx context.Context, g *dev.Running, rank int32, dir string, s loadShape) (*loadEngine, error) {
	units := s.units / g.Size()
	row := int64(units) * int64(s.elems) * 2
	item := row * int64(s.block)
	layer := item * int64(s.blocks)
	fd, mem, err := measure.Memory(layer * int64(s.layers))
	if err != nil {
		return nil, err
	}
	m := layout.Model{States: []layout.State{{Name: "attn.k", Paging: layout.PerBlock, Layers: s.layers, Units: s.units, Elems: s.elems}}}
	shard := layout.Shard{Rank: layout.Rank(rank), Box: layout.Box{Layers: layout.Span{Hi: s.layers}, Units: layout.Span{Lo: rank * units, Hi: (rank + 1) * units}},
		Rows: s.block, Items: s.blocks, DType: layout.BF16, View: layout.View{Layer: layer, Item: item, Row: row, Unit: int64(s.elems) * 2, Elem: 2}}
	c, err := client.Dial(ctx, client.Config{Dir: dir, Files: []int{fd}, Attach: handoff.Attach{
		Group: g.Name, Instance: handoff.Instance(g.Instance), Rank: layout.Rank(rank), Ranks: g.Size(),
		Model: handoff.ModelIdentity{Name: "load", Layout: m}, Shards: []layout.Shard{shard},
		Buffers:  []handoff.BufferDecl{{ID: 0, Len: int64(len(mem))}},
		Capacity: handoff.Capacity{Blocks: s.blocks, BlockTokens: s.block}, Scheduler: handoff.SchedulerRank, OnDown: handoff.OnDownFail, Parts: true}})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("attach load engine %s/%d: %w", g.Name, rank, err), unix.Munmap(mem), unix.Close(fd))
	}
	e := &loadEngine{loadShape: s, c: c, fd: fd, mem: mem, done: make(chan struct{}), stop: make(chan struct{}),
		told: make(chan uint64, 1), shown: map[string]chan handoff.Manifest{}}
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
		case n := <-e.told:
			e.apply(n)
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
			r := handoff.Reserved{N: d.N, Blocks: e.table(d.N), Slot: -1}
			r.Digest = sha256.Sum256(fmt.Append(nil, r.Blocks))
			e.c.Send(r) // an ended session shows in Err
		}
	}
	e.c.Send(handoff.Applied{N: through})
	if e.next == nil {
		return
	}
	select {
	case e.next.told <- through:
	case <-e.next.done:
	}
}

// export pins one block and waits for the manifest.
func (e *loadEngine) export(ctx context.Context, label string) (handoff.Manifest, error) {
	return e.exports(ctx, label, handoff.Export{Label: label, Blocks: e.table(1), Slot: -1, Tokens: e.tokens, Position: e.tokens,
		Resume: handoff.Resume{Tokens: []int32{1}}})
}

// exports says a label's export, or its first part, and waits for the manifest.
func (e *loadEngine) exports(ctx context.Context, label string, msg handoff.FromEngine) (handoff.Manifest, error) {
	ch := make(chan handoff.Manifest, 1)
	e.mu.Lock()
	e.shown[label] = ch
	e.mu.Unlock()
	if err := e.c.Send(msg); err != nil {
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
	return errors.Join(e.c.Close(), unix.Munmap(e.mem), unix.Close(e.fd))
}

// loads is a cluster of the groups p, TP1, and d, with engines of this process.
type loads struct {
	c        *dev.Cluster
	src, dst []*loadEngine // by rank
	n        int
}

// pairOfLoads brings one up; tp is d's.
func pairOfLoads(ctx context.Context, opt dev.Options, tp int32, s loadShape) (*loads, error) {
	p := &loads{}
	opt.LogLevel = "error"
	opt.Groups = []dev.Group{{Name: "p", Role: discovery.Prefill, TP: 1}, {Name: "d", Role: discovery.Decode, TP: tp}}
	opt.Engine = func(ctx context.Context, g *dev.Running, rank int32, dir string) error {
		e, err := attachLoad(ctx, g, rank, dir, s)
		if err != nil {
			return err
		}
		if g.Name == "p" {
			p.src = append(p.src, e)
		} else {
			if rank > 0 {
				p.dst[rank-1].next = e
			}
			p.dst = append(p.dst, e)
		}
		return nil
	}
	var err error
	if p.c, err = dev.Up(ctx, opt); err != nil {
		return nil, errors.Join(err, p.close())
	}
	return p, nil
}

func (p *loads) close() (err error) {
	for _, e := range slices.Concat(p.src, p.dst) {
		err = errors.Join(err, e.close())
	}
	if p.c != nil {
		err = errors.Join(err, p.c.Close())
	}
	return err
}

// handOff is the time of one hand-off, from Export to the answer of Import.
func (p *loads) handOff(ctx context.Context) (time.Duration, error) {
	p.n++
	label := fmt.Sprintf("b%d", p.n)
	began := time.Now()
	man, err := p.src[0].export(ctx, label)
	if err != nil {
		return 0, err
	}
	_, err = p.c.Groups[1].Leader.Import(ctx, p.dst[0].wants(label, man))
	return time.Since(began), err
}

// wants is the import of a request of the engine's shape.
func (s loadShape) wants(label string, m handoff.Manifest) handoff.Import {
	return handoff.Import{Label: label, Manifest: m, Tokens: make([]int32, s.tokens), Deadline: time.Minute}
}
