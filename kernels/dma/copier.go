//go:build cgo

package dma

import (
	"context"
	"errors"
	"fmt"
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
	// Streams is how many streams a Copy uses. 0: 4.
	Streams int
	// BatchFrom is how many flat copies of one job make the driver's batch pay. 0: 8.
	// Negative: never.
	BatchFrom int
	// FlattenRows is up to how many rows a strided copy has to become flat copies of a batch.
	// 0: 4. Negative: never.
	FlattenRows int
	// GraphFrom is how many strided copies of one job make graphs pay. 0: 8. Negative: never.
	GraphFrom int
	// GraphOps is how many copies a graph holds, and Branches how many of them run side by
	// side. 0: 32 and 2.
	GraphOps, Branches int
}

func (c Config) withDefaults() Config {
	def := func(n *int, to int) {
		if *n == 0 {
			*n = to
		}
	}
	def(&c.Lanes, 4)
	def(&c.Streams, 4)
	def(&c.BatchFrom, 8)
	def(&c.GraphFrom, 8)
	def(&c.FlattenRows, 4)
	def(&c.GraphOps, 32)
	def(&c.Branches, 2)
	return c
}

// Check reports a Config that New refuses.
func (c Config) Check() error {
	switch d := c.withDefaults(); {
	case d.Lanes < 1 || d.Lanes > 64:
		return fmt.Errorf("dma: lanes: %d: want 1 to 64", c.Lanes)
	case d.Streams < 1 || d.Streams > cuda.MaxStreams:
		return fmt.Errorf("dma: streams: %d: want 1 to %d", c.Streams, cuda.MaxStreams)
	case d.GraphOps < 1 || d.GraphOps > 1024:
		return fmt.Errorf("dma: ops of a graph: %d: want 1 to 1024", c.GraphOps)
	case d.Branches < 1 || d.Branches > d.GraphOps:
		return fmt.Errorf("dma: branches of a graph: %d: want 1 to %d", c.Branches, d.GraphOps)
	}
	return nil
}

const (
	// windowBytes is how much a Copy starts before it looks whether it was cancelled: some
	// milliseconds' work.
	windowBytes = 1 << 30
	// windowOps bounds the copies of a window, which are built in one call into C.
	windowOps = 4096
)

// Counts say what a Copier has done.
type Counts struct {
	Jobs, Calls, Batched, Graphs int64 // Calls: ops that were submitted one by one
}

// Copier implements transfer.Copier with the copy engines of one GPU. Its owner calls Close.
type Copier struct {
	cfg   Config
	batch bool
	lanes chan *cuda.Lane
	all   []*cuda.Lane
	work  sync.Pool // *work

	jobs, calls, batched, graphs atomic.Int64
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
	c.lanes = make(chan *cuda.Lane, c.cfg.Lanes)
	c.work.New = func() any { return new(work) }
	for range c.cfg.Lanes {
		l, err := ctx.Lane(c.cfg.Streams)
		if err != nil {
			return nil, errors.Join(err, c.Close())
		}
		c.all = append(c.all, l)
		c.lanes <- l
	}
	return c, nil
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
	return Counts{c.jobs.Load(), c.calls.Load(), c.batched.Load(), c.graphs.Load()}
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
	for i := range w.plain {
		w.ops = cut(w.ops, &w.plain[i])
	}
	if c.batch && c.cfg.BatchFrom > 0 && len(w.ops) >= c.cfg.BatchFrom {
		w.flatten(uint64(max(c.cfg.FlattenRows, 0)))
	}
	var l *cuda.Lane
	select {
	case l = <-c.lanes:
		defer func() { c.lanes <- l }()
	case <-ctx.Done():
		return 0, canceled(ctx, 0)
	}
	c.jobs.Add(1)
	return c.run(ctx, l, w)
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

// run submits window after window.
func (c *Copier) run(ctx context.Context, l *cuda.Lane, w *work) (done int64, err error) {
	for next := w.ops; len(next) > 0; {
		if ctx.Err() != nil {
			return done, canceled(ctx, done)
		}
		n, bytes := window(next)
		p := c.arrange(w, next[:n])
		err := l.Submit(&p)
		switch e := l.Wait(); {
		case e != nil:
			return done, fmt.Errorf("%w: %w", transfer.ErrLost, e)
		case errors.Is(err, cuda.ErrLost):
			return done, fmt.Errorf("%w: %w", transfer.ErrLost, err)
		case err != nil:
			return done, fmt.Errorf("%w: %w", transfer.ErrMemory, err)
		}
		done += bytes
		next = next[n:]
	}
	return done, nil
}

// window is how many of ops are started at once, and their bytes.
func window(ops []cuda.Op) (n int, bytes int64) {
	for n < len(ops) && n < windowOps && (n == 0 || bytes+ops[n].Bytes() <= windowBytes) {
		bytes += ops[n].Bytes()
		n++
	}
	return n, bytes
}

// arrange picks how each of ops is submitted, by their shapes and number.
func (c *Copier) arrange(w *work, ops []cuda.Op) cuda.Program {
	flat, strided := 0, 0
	for i := range ops {
		switch {
		case ops[i].Flat():
			flat++
		case ops[i].Kind == cuda.Copy:
			strided++
		}
	}
	p := cuda.Program{Ops: ops, GraphOps: c.cfg.GraphOps, Branches: c.cfg.Branches}
	if c.batch && c.cfg.BatchFrom > 0 && flat >= c.cfg.BatchFrom {
		p.Batched = flat
	}
	if c.cfg.GraphFrom > 0 && strided >= c.cfg.GraphFrom {
		p.Graphed = strided
		p.GraphOps = max(p.GraphOps, (strided+cuda.MaxGraphs-1)/cuda.MaxGraphs)
	}
	if p.Batched+p.Graphed > 0 && p.Batched+p.Graphed < len(ops) || p.Batched > 0 && p.Graphed > 0 {
		p.Ops = w.order(ops, p.Batched > 0, p.Graphed > 0)
	}
	for i := range p.Ops[p.Batched+p.Graphed:] {
		p.Ops[p.Batched+p.Graphed+i].Stream = int32(i % c.cfg.Streams)
	}
	c.calls.Add(int64(len(ops) - p.Batched - p.Graphed))
	c.batched.Add(int64(p.Batched))
	if p.Graphed > 0 {
		c.graphs.Add(int64((p.Graphed + p.GraphOps - 1) / p.GraphOps))
	}
	return p
}

// order puts batched ops first, graphed ones behind them, and the rest last.
func (w *work) order(ops []cuda.Op, batched, graphed bool) []cuda.Op {
	class := func(o *cuda.Op) int {
		switch {
		case batched && o.Flat():
			return 0
		case graphed && o.Kind == cuda.Copy && !o.Flat():
			return 1
		}
		return 2
	}
	w.sort = w.sort[:0]
	for k := range 3 {
		for i := range ops {
			if class(&ops[i]) == k {
				w.sort = append(w.sort, ops[i])
			}
		}
	}
	return w.sort
}
