// Package mem is a transfer backend for tests: local memory, Go's own copy, no
// goroutine. A pull has copied when Pull returns, so tests that use it are
// deterministic; package fault adds delays and failures.
package mem

import (
	"context"
	"fmt"
	"sync"

	"github.com/batonkv/baton/kernels/rows/plain"
	"github.com/batonkv/baton/transfer"
	"github.com/batonkv/baton/transfer/lower"
)

// maxRegions bounds RegionID.
const maxRegions = 4096

// Backend implements transfer.Backend. The zero value is ready.
type Backend struct {
	mu     sync.RWMutex // held for reading by a pull, so that nothing closes under it
	bufs   transfer.Buffers
	closed bool
}

// Name implements transfer.Backend.
func (b *Backend) Name() string { return "mem" }

func fail(op string, peer transfer.PeerID, err error) error {
	return &transfer.OpError{Backend: "mem", Op: op, Peer: peer, Err: err}
}

// put sets bufs[id] to the memory m.
func put(bufs transfer.Buffers, id transfer.RegionID, m transfer.Memory) (transfer.Buffers, error) {
	if m.Kind != transfer.Local || m.Addr == 0 || m.Len <= 0 || m.Off < 0 || id >= maxRegions {
		return bufs, fmt.Errorf("%w: region %d, kind %d, address %#x, offset %d, length %d: want local memory",
			transfer.ErrMemory, id, m.Kind, m.Addr, m.Off, m.Len)
	}
	for len(bufs) <= int(id) {
		bufs = append(bufs, transfer.Mapped{})
	}
	bufs[id] = transfer.Mapped{Addr: m.Addr + uint64(m.Off), Len: m.Len}
	return bufs, nil
}

// Register implements transfer.Backend.
func (b *Backend) Register(ctx context.Context, id transfer.RegionID, m transfer.Memory) (transfer.Region, error) {
	if err := ctx.Err(); err != nil {
		return nil, fail("register", "", err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return nil, fail("register", "", transfer.ErrClosed)
	}
	if int(id) < len(b.bufs) && b.bufs[id].Len > 0 {
		return nil, fail("register", "", fmt.Errorf("%w: region %d is registered already: close it first", transfer.ErrBusy, id))
	}
	var err error
	if b.bufs, err = put(b.bufs, id, m); err != nil {
		return nil, fail("register", "", err)
	}
	return &region{b: b, id: id}, nil
}

// Open implements transfer.Backend.
func (b *Backend) Open(ctx context.Context, p transfer.Peer) (transfer.Link, error) {
	l := &link{b: b, peer: p.ID}
	err := ctx.Err()
	for id, m := range p.Regions {
		if err == nil {
			l.bufs, err = put(l.bufs, id, m)
		}
	}
	b.mu.RLock()
	defer b.mu.RUnlock()
	if err == nil && b.closed {
		err = transfer.ErrClosed
	}
	if err != nil {
		return nil, fail("open", p.ID, err)
	}
	return l, nil
}

// Close implements transfer.Backend.
func (b *Backend) Close(context.Context) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed, b.bufs = true, nil
	return nil
}

type region struct {
	b    *Backend
	id   transfer.RegionID
	once sync.Once
}

func (r *region) ID() transfer.RegionID { return r.id }

func (r *region) Close() error {
	r.once.Do(func() {
		r.b.mu.Lock()
		defer r.b.mu.Unlock()
		if int(r.id) < len(r.b.bufs) {
			r.b.bufs[r.id] = transfer.Mapped{}
		}
	})
	return nil
}

type link struct {
	b    *Backend
	peer transfer.PeerID
	bufs transfer.Buffers
	gone bool // under b.mu
}

// Pull implements transfer.Link; the ticket is settled already.
func (l *link) Pull(ctx context.Context, t *lower.Template, j lower.Job) (transfer.Ticket, error) {
	if err := ctx.Err(); err != nil {
		return nil, fail("pull", l.peer, err)
	}
	ns, err := t.Nests(nil, j)
	if err != nil {
		return nil, fail("pull", l.peer, err)
	}
	l.b.mu.RLock()
	defer l.b.mu.RUnlock()
	if l.gone || l.b.closed {
		return nil, fail("pull", l.peer, transfer.ErrClosed)
	}
	k := settled{}
	// The copy does not end with ctx, which bounds the submission alone.
	if k.bytes, k.err = (plain.Copier{}).Copy(context.WithoutCancel(ctx), ns, l.bufs, l.b.bufs); k.err != nil {
		k.err = fail("pull", l.peer, k.err)
	}
	return k, nil
}

func (l *link) Close() error {
	l.b.mu.Lock()
	defer l.b.mu.Unlock()
	l.gone = true
	return nil
}

// settled is a transfer.Ticket that is done.
type settled struct {
	bytes int64
	err   error
}

var done = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

func (settled) Done() <-chan struct{} { return done }
func (s settled) Err() error          { return s.err }
func (s settled) Bytes() int64        { return s.bytes }
func (settled) Cancel()               {}
