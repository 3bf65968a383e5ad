// Package direct pulls between memories that this process maps: shared memory and GPU
// memory of ranks on one host. It lowers jobs and hands the nests to a transfer.Copier on
// goroutines of its own; it decides nothing about who may read what.
//
// Invariant: nothing is unmapped while an open ticket can touch it. Only memory that
// is sealed against shrinking is mapped, so no peer can end the process by SIGBUS.
package direct

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/batonkv/baton/transfer"
)

// Config of a Backend.
type Config struct {
	// Copier executes nests; owned by the caller.
	Copier transfer.Copier
	// Workers is how many pulls copy at once, so that a short one need not wait for
	// a long one; the Copier splits each pull over CPUs by itself. 0: 2.
	Workers int
	// MaxOpen bounds open tickets, and so the queue before the workers; a pull beyond
	// it is refused with ErrFull. 0: 1024.
	MaxOpen int
	// Device maps and copies GPU memory; owned by the caller. nil: GPU memory is refused.
	Device Device
	// Lost is told of a copier's transfer.ErrLost. The ticket stays open: only the end of
	// this process proves its memory quiet, and Lost should bring that about. nil: nobody.
	Lost func(error)
	// Inline copies a pull of at most this many bytes in the call of Pull, or Begun.Copy, itself
	// while no other is open: waking a worker costs as much as 100 KiB. InlineGPU is the same
	// for a pull between GPUs. 0: never.
	Inline, InlineGPU int64
}

// Device maps memory of GPUs and executes nests that have at least one end there. It converts
// nothing.
type Device interface {
	transfer.Copier
	// Host says that n bytes at a page's start are host memory that copies may touch until
	// release is called, before they are unmapped; after its error they must stay mapped.
	Host(at uint64, n int64, write bool) (release func() error)
	// Map maps m, whose descriptors stay the caller's, until unmap is called. write says
	// that it is the local rank's, and is written.
	Map(m transfer.Memory, write bool) (at transfer.Mapped, unmap func() error, err error)
}

func (c Config) withDefaults() Config {
	if c.Lost == nil {
		c.Lost = func(error) {}
	}
	if c.Workers == 0 {
		c.Workers = 2
	}
	if c.MaxOpen == 0 {
		c.MaxOpen = 1024
	}
	return c
}

// Check reports a Config that New refuses.
func (c Config) Check() error {
	switch d := c.withDefaults(); {
	case d.Copier == nil:
		return fmt.Errorf("direct: copier: none given")
	case d.Workers < 1 || d.Workers > 256:
		return fmt.Errorf("direct: workers: %d: want 1 to 256", d.Workers)
	case d.MaxOpen < 1 || d.MaxOpen > 1<<20:
		return fmt.Errorf("direct: max open: %d: want 1 to %d", d.MaxOpen, 1<<20)
	case d.Inline < 0 || d.InlineGPU < 0:
		return fmt.Errorf("direct: inline: %d and %d bytes: want 0 (never) or more", d.Inline, d.InlineGPU)
	}
	return nil
}

// Backend implements transfer.Backend. Its owner calls Close.
type Backend struct {
	copier    transfer.Copier
	device    Device // nil: none
	lost      func(error)
	inline    int64 // bytes of a pull
	inlineGPU int64 // of one between GPUs
	bounce    bounce
	queue     chan *ticket // as long as tickets may be open, so a send never waits
	drain     chan struct{}
	wg        sync.WaitGroup // workers
	idle      sync.Cond      // on mu; signalled when open falls to 0

	fmu   sync.Mutex // after mu where both are held
	files []*file    // under fmu: that are mapped

	mu       sync.Mutex
	bufs     transfer.Buffers // replaced, never edited: open tickets hold older ones
	regions  map[transfer.RegionID]*region
	links    map[*Link]struct{}
	open     int // tickets
	closed   bool
	draining bool
	released bool
}

// New starts the workers of a Backend.
func New(cfg Config) (*Backend, error) {
	if err := cfg.Check(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	b := &Backend{
		copier:    cfg.Copier,
		device:    cfg.Device,
		lost:      cfg.Lost,
		inline:    cfg.Inline,
		inlineGPU: cfg.InlineGPU,
		queue:     make(chan *ticket, cfg.MaxOpen),
		drain:     make(chan struct{}),
		regions:   map[transfer.RegionID]*region{},
		links:     map[*Link]struct{}{},
	}
	b.idle.L = &b.mu
	b.bounce.half, b.bounce.free = bounceHalf, make(chan struct{}, 1)
	for range cfg.Workers {
		b.wg.Go(b.work)
	}
	return b, nil
}

// Name implements transfer.Backend.
func (b *Backend) Name() string { return "direct" }

func (b *Backend) fail(op string, peer transfer.PeerID, err error) error {
	return &transfer.OpError{Backend: b.Name(), Op: op, Peer: peer, Err: err}
}

// Register implements transfer.Backend. The pages are mapped, not touched.
func (b *Backend) Register(ctx context.Context, id transfer.RegionID, m transfer.Memory) (transfer.Region, error) {
	got, err := b.attach(id, m, true)
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		_ = got.unmap()
		return nil, b.fail("register", "", err)
	}
	r := &region{b: b, id: id, m: got}
	b.mu.Lock()
	defer b.mu.Unlock()
	switch _, taken := b.regions[id]; {
	case b.closed:
		err = transfer.ErrClosed
	case taken:
		err = fmt.Errorf("%w: region %d is registered already: close it first", transfer.ErrBusy, id)
	default:
		b.regions[id] = r
		b.place(id, got.Mapped)
		return r, nil
	}
	_ = got.unmap()
	return nil, b.fail("register", "", err)
}

// place puts m at id in a copy of the buffers. Caller holds mu.
func (b *Backend) place(id transfer.RegionID, m transfer.Mapped) {
	bufs := slices.Clone(b.bufs)
	for len(bufs) <= int(id) {
		bufs = append(bufs, transfer.Mapped{})
	}
	bufs[id] = m
	b.bufs = bufs
}

// Open implements transfer.Backend: it maps the peer's buffers for reading.
func (b *Backend) Open(ctx context.Context, p transfer.Peer) (transfer.Link, error) {
	l := &Link{b: b, peer: p.ID}
	var err error
	for id, m := range p.Regions {
		got, e := b.attach(id, m, false) // also after an error: it closes the descriptors
		if e != nil {
			err = e
			continue
		}
		l.maps = append(l.maps, got)
		for len(l.bufs) <= int(id) {
			l.bufs = append(l.bufs, transfer.Mapped{})
		}
		l.bufs[id] = got.Mapped
	}
	if err == nil {
		err = ctx.Err()
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if err == nil && b.closed {
		err = transfer.ErrClosed
	}
	if err != nil {
		_ = l.unmap()
		return nil, b.fail("open", p.ID, err)
	}
	b.links[l] = struct{}{}
	return l, nil
}

// Drain stops intake and settles the pulls that have not begun with ErrClosed; those
// that have begun go on to their end. Close then waits for these alone.
func (b *Backend) Drain() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	if !b.draining {
		b.draining = true
		close(b.drain)
	}
}

// Close implements transfer.Backend. When ctx ends first, intake stays stopped,
// nothing is released, and Close may be called again.
func (b *Backend) Close(ctx context.Context) error {
	defer context.AfterFunc(ctx, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.idle.Broadcast()
	})()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	for b.open > 0 {
		if err := ctx.Err(); err != nil {
			return b.fail("close", "", fmt.Errorf("%w: %d tickets are open: %w", transfer.ErrBusy, b.open, err))
		}
		b.idle.Wait()
	}
	if b.released {
		return nil
	}
	b.released = true
	close(b.queue)
	var first error
	for l := range b.links {
		if err := l.unmap(); err != nil && first == nil {
			first = b.fail("close", l.peer, err)
		}
	}
	for _, r := range b.regions {
		if err := r.m.unmap(); err != nil && first == nil {
			first = b.fail("close", "", err)
		}
	}
	if err := b.bounce.close(); err != nil && first == nil {
		first = b.fail("close", "", err)
	}
	b.links, b.regions, b.bufs = nil, nil, nil
	b.mu.Unlock()
	b.wg.Wait()
	b.mu.Lock()
	return first
}

// region implements transfer.Region.
type region struct {
	b  *Backend
	id transfer.RegionID

	// Under b.mu.
	m    mapping
	refs int // open tickets that write it
	gone bool
}

func (r *region) ID() transfer.RegionID { return r.id }

func (r *region) Close() error {
	r.b.mu.Lock()
	defer r.b.mu.Unlock()
	if r.gone || r.b.released {
		return nil
	}
	if r.refs > 0 {
		return r.b.fail("unregister", "", fmt.Errorf("%w: region %d, %d tickets", transfer.ErrBusy, r.id, r.refs))
	}
	r.gone = true
	delete(r.b.regions, r.id)
	r.b.place(r.id, transfer.Mapped{})
	return r.m.unmap()
}

var _ interface {
	transfer.Backend
	Drain()
} = (*Backend)(nil)
