//go:build cgo

package dma

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/batonkv/baton/kernels/cuda"
	"github.com/batonkv/baton/kernels/rows/plain"
	"github.com/batonkv/baton/transfer"
	"github.com/batonkv/baton/transfer/lower"
)

// Config of a Copier. The zero value is good.
type Config struct {
	// Lanes is how many Copy calls run at once; others wait for one of them. 0: 4.
	Lanes int
	// Streams is how many streams each window of a Copy uses. 0: 1: more gain nothing.
	Streams int
	// BatchFrom is how many flat copies of one job make the driver's batch pay. 0: 8.
	// Negative: never.
	BatchFrom int
	// FlattenRows is up to how many rows a strided copy has to become flat copies of a batch.
	// 0: 4. Negative: never.
	FlattenRows int
	// PinBytes bounds the host memory that is pinned for copies to and from a GPU; what is
	// beyond it is copied more slowly. 0: 4 GiB. Negative: none is.
	PinBytes int64
	// Warn hears of host memory that cannot be pinned. nil: nobody.
	Warn func(error)
}

func (c Config) withDefaults() Config {
	def := func(n *int, to int) {
		if *n == 0 {
			*n = to
		}
	}
	def(&c.Lanes, 4)
	def(&c.Streams, 1)
	def(&c.BatchFrom, 8)
	def(&c.FlattenRows, 4)
	if c.PinBytes == 0 {
		c.PinBytes = 4 << 30
	}
	if c.Warn == nil {
		c.Warn = func(error) {}
	}
	return c
}

// Check reports a Config that New refuses.
func (c Config) Check() error {
	switch d := c.withDefaults(); {
	case d.Lanes < 1 || d.Lanes > 64:
		return fmt.Errorf("dma: lanes: %d: want 1 to 64", c.Lanes)
	case d.Streams < 1 || d.Streams > cuda.MaxStreams:
		return fmt.Errorf("dma: streams: %d: want 1 to %d", c.Streams, cuda.MaxStreams)
	}
	return nil
}

// lanes is what one Copy runs on: two for each goroutine that submits, whose windows take
// turns.
type lanes [4]*cuda.Lane

// Counts say what a Copier has done.
type Counts struct {
	Jobs, Calls, Batched int64 // Calls: ops that were submitted one by one
}

// Copier implements transfer.Copier with the copy engines of one GPU. Its owner calls Close.
type Copier struct {
	cfg   Config
	batch bool
	room  chan struct{} // a place for each of free, and each that a Copy has
	all   []*cuda.Lane
	work  sync.Pool // *work
	order sync.Pool // *[]cuda.Op

	jobs, calls, batched atomic.Int64

	mu   sync.Mutex
	free []lanes // under mu: the last are those that were used last
}

// work is what a Copy needs beside a lane; it is recycled.
type work struct {
	plain []plain.Op
	ops   []cuda.Op
	sort  []cuda.Op
}

// New makes the Copier of a context's GPU, which outlives it.
func New(ctx *cuda.Context, cfg Config) (*Copier, error) {
	if err := cfg.Check(); err != nil {
		return nil, err
	}
	c := &Copier{cfg: cfg.withDefaults(), batch: ctx.Driver().Batches()}
	c.room = make(chan struct{}, c.cfg.Lanes)
	c.work.New = func() any { return new(work) }
	c.order.New = func() any { return new([]cuda.Op) }
	for range c.cfg.Lanes {
		var p lanes
		for i := range p {
			l, err := ctx.Lane(c.cfg.Streams)
			if err != nil {
				return nil, errors.Join(err, c.Close())
			}
			c.all = append(c.all, l)
			p[i] = l
		}
		c.free = append(c.free, p)
	}
	return c, nil
}

// acquire takes the lanes that were used last: a GPU takes microseconds to change over to
// another stream. release gives them back.
func (c *Copier) acquire(ctx context.Context) (lanes, error) {
	select {
	case c.room <- struct{}{}:
	case <-ctx.Done():
		return lanes{}, canceled(ctx, 0)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	l := c.free[len(c.free)-1]
	c.free = c.free[:len(c.free)-1]
	return l, nil
}

func (c *Copier) release(l lanes) {
	c.mu.Lock()
	c.free = append(c.free, l)
	c.mu.Unlock()
	<-c.room
}

// Close frees the streams. No Copy may be under way.
func (c *Copier) Close() error {
	var errs []error
	for _, l := range c.all {
		errs = append(errs, l.Close())
	}
	c.all = nil
	return errors.Join(errs...)
}

// Counts are what was done until then.
func (c *Copier) Counts() Counts {
	return Counts{c.jobs.Load(), c.calls.Load(), c.batched.Load()}
}

// Fits implements transfer.Copier: copy engines convert nothing.
func (c *Copier) Fits(n lower.Nest) error {
	if n.From != 0 && n.From != n.To {
		return fmt.Errorf("%w: %v to %v: copy engines move bytes as they are: store both sides in one dtype", transfer.ErrConvert, n.From, n.To)
	}
	return nil
}

// Copy implements transfer.Copier. When ctx ends it starts nothing more and waits for what
// has begun. After transfer.ErrLost copies may still be under way.
func (c *Copier) Copy(ctx context.Context, ns []lower.Nest, src, dst transfer.Buffers) (int64, error) {
	w := c.work.Get().(*work)
	defer c.work.Put(w)
	for i := range ns {
		if err := c.Fits(ns[i]); err != nil {
			return 0, err
		}
	}
	var total int64
	var err error
	if w.plain, total, err = plain.Resolve(w.plain[:0], ns, src, dst); err != nil || total == 0 {
		return 0, err
	}
	w.ops = w.ops[:0]
	next := 0
	for i := range ns {
		if !empty(&ns[i]) { // else it has no op
			w.ops = cut(w.ops, &w.plain[next], kind(&ns[i], src, dst))
			next++
		}
	}
	if c.batch && c.cfg.BatchFrom > 0 && len(w.ops) >= c.cfg.BatchFrom {
		w.flatten(uint64(max(c.cfg.FlattenRows, 0)))
	}
	l, err := c.acquire(ctx)
	if err != nil {
		return 0, err
	}
	defer c.release(l)
	c.jobs.Add(1)
	return c.run(ctx, l, w)
}

// empty reports whether n writes nothing.
func empty(n *lower.Nest) bool {
	return n.Run == 0 || slices.ContainsFunc(n.Dims[:n.Rank], func(d lower.Dim) bool { return d.N == 0 })
}

// kind is what copies of n are: its buffers say which of its sides is on a GPU.
func kind(n *lower.Nest, src, dst transfer.Buffers) cuda.Kind {
	switch {
	case n.From == 0:
		return cuda.Zero
	case !dst[n.Dst].GPU:
		return cuda.ToHost
	case !src[n.Src].GPU:
		return cuda.FromHost
	}
	return cuda.Copy
}

// flatten takes strided copies of at most most rows apart: a flat copy of a batch costs a
// fraction of a strided one.
func (w *work) flatten(most uint64) {
	w.sort = w.sort[:0]
	for i := range w.ops {
		o := &w.ops[i]
		if o.Flat() || o.Kind != cuda.Copy || o.Height*o.Depth > most {
			w.sort = append(w.sort, *o)
			continue
		}
		for z := range o.Depth {
			for y := range o.Height {
				dst, src := o.Dst+(z*o.DstRows+y)*o.DstPitch, o.Src+(z*o.SrcRows+y)*o.SrcPitch
				w.sort = append(w.sort, cuda.Op{Dst: dst, Src: src, Width: o.Width, Height: 1, Depth: 1})
			}
		}
	}
	w.ops, w.sort = w.sort, w.ops
}

func canceled(ctx context.Context, done int64) error {
	return fmt.Errorf("%w: after %d bytes: %w", transfer.ErrCanceled, done, context.Cause(ctx))
}

// arrange picks how each of ops is submitted, by their shapes and number. buf is scratch.
func (c *Copier) arrange(buf *[]cuda.Op, ops []cuda.Op) cuda.Program {
	flat := 0
	for i := range ops {
		if ops[i].Flat() {
			flat++
		}
	}
	p := cuda.Program{Ops: ops}
	if c.batch && c.cfg.BatchFrom > 0 && flat >= c.cfg.BatchFrom {
		p.Batched = flat
		if flat < len(ops) {
			*buf = flatFirst((*buf)[:0], ops)
			p.Ops = *buf
		}
	}
	for i := range p.Ops[p.Batched:] {
		p.Ops[p.Batched+i].Stream = int32(i % c.cfg.Streams)
	}
	c.calls.Add(int64(len(ops) - p.Batched))
	c.batched.Add(int64(p.Batched))
	return p
}

func flatFirst(out, ops []cuda.Op) []cuda.Op {
	for _, flat := range []bool{true, false} {
		for i := range ops {
			if ops[i].Flat() == flat {
				out = append(out, ops[i])
			}
		}
	}
	return out
}
