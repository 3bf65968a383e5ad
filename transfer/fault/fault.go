// Package fault wraps any transfer backend and makes its pulls late, lost or wrong,
// as a test says. It adds no timing of its own: what is held is held until the test
// lets it go.
package fault

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/batonkv/baton/transfer"
	"github.com/batonkv/baton/transfer/lower"
)

// Fate is what becomes of one pull. The zero value lets it pass.
type Fate struct {
	// Hold delays the pull: it begins when Hold closes. Cancel or Backend.Kill ends
	// the wait and nothing is copied. nil: no delay.
	Hold <-chan struct{}
	// Drop settles the ticket with ErrPeer and copies nothing.
	Drop bool
	// Fail settles the ticket with this error after the bytes were copied.
	Fail error
	// Late delays Done after the bytes were copied, until it closes or Kill. nil: no delay.
	Late <-chan struct{}
}

// Never is a Hold or a Late that ends with Backend.Kill alone.
var Never <-chan struct{} = make(chan struct{})

// Script decides the fate of each pull, in the order of submission.
type Script func(peer transfer.PeerID, j lower.Job) Fate

// Backend implements transfer.Backend around another one. Its owner calls Close, and
// before that Kill when a ticket would never settle.
type Backend struct {
	inner  transfer.Backend
	script Script
	killed chan struct{}
	kill   sync.Once

	mu     sync.Mutex
	open   map[*ticket]struct{}
	change chan struct{} // closed and replaced when a ticket settles
	closed bool
}

// Wrap makes a Backend around inner, which it owns. A nil script lets all pass.
func Wrap(inner transfer.Backend, script Script) *Backend {
	if script == nil {
		script = func(transfer.PeerID, lower.Job) Fate { return Fate{} }
	}
	return &Backend{inner: inner, script: script, killed: make(chan struct{}),
		open: map[*ticket]struct{}{}, change: make(chan struct{})}
}

// Name implements transfer.Backend.
func (b *Backend) Name() string { return "fault+" + b.inner.Name() }

func (b *Backend) fail(op string, peer transfer.PeerID, err error) error {
	return &transfer.OpError{Backend: b.Name(), Op: op, Peer: peer, Err: err}
}

// Kill plays the death of the process that copies: what is held settles with
// ErrMover, and so does every later pull.
func (b *Backend) Kill() { b.kill.Do(func() { close(b.killed) }) }

// OpenTickets tells how many tickets have not settled.
func (b *Backend) OpenTickets() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.open)
}

func (b *Backend) isClosed() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.closed
}

// Register implements transfer.Backend.
func (b *Backend) Register(ctx context.Context, id transfer.RegionID, m transfer.Memory) (transfer.Region, error) {
	r, err := b.inner.Register(ctx, id, m)
	if err == nil && b.isClosed() { // only inner can let go of what m holds
		err = errors.Join(b.fail("register", "", transfer.ErrClosed), r.Close())
	}
	if err != nil {
		return nil, err
	}
	return &region{Region: r, b: b}, nil
}

// Open implements transfer.Backend.
func (b *Backend) Open(ctx context.Context, p transfer.Peer) (transfer.Link, error) {
	l, err := b.inner.Open(ctx, p)
	if err == nil && b.isClosed() {
		err = errors.Join(b.fail("open", p.ID, transfer.ErrClosed), l.Close())
	}
	if err != nil {
		return nil, err
	}
	return &link{Link: l, b: b, peer: p.ID}, nil
}

// Close implements transfer.Backend.
func (b *Backend) Close(ctx context.Context) error {
	for {
		b.mu.Lock()
		b.closed = true
		n, change := len(b.open), b.change
		b.mu.Unlock()
		if n == 0 {
			return b.inner.Close(ctx)
		}
		select {
		case <-change:
		case <-ctx.Done():
			return b.fail("close", "", fmt.Errorf("%w: %d tickets are open: %w", transfer.ErrBusy, n, ctx.Err()))
		}
	}
}

// region refuses to close while any ticket is open: which region a held pull will
// write is not known before it is lowered.
type region struct {
	transfer.Region
	b *Backend
}

func (r *region) Close() error {
	if n := r.b.OpenTickets(); n > 0 {
		return r.b.fail("unregister", "", fmt.Errorf("%w: %d tickets", transfer.ErrBusy, n))
	}
	return r.Region.Close()
}

type link struct {
	transfer.Link
	b    *Backend
	peer transfer.PeerID
	open int // tickets; under b.mu
}

func (l *link) Close() error {
	l.b.mu.Lock()
	n := l.open
	l.b.mu.Unlock()
	if n > 0 {
		return l.b.fail("close", l.peer, fmt.Errorf("%w: %d tickets", transfer.ErrBusy, n))
	}
	return l.Link.Close()
}

// Pull implements transfer.Link.
func (l *link) Pull(ctx context.Context, t *lower.Template, j lower.Job) (transfer.Ticket, error) {
	b := l.b
	if err := ctx.Err(); err != nil {
		return nil, b.fail("pull", l.peer, err)
	}
	if _, err := t.Bytes(j); err != nil { // refused at once, as without a delay
		return nil, b.fail("pull", l.peer, err)
	}
	k := &ticket{l: l, fate: b.script(l.peer, j), done: make(chan struct{}), canceled: make(chan struct{})}
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		return nil, b.fail("pull", l.peer, transfer.ErrClosed)
	}
	b.open[k] = struct{}{}
	l.open++
	b.mu.Unlock()
	if k.fate.Hold == nil {
		if err := k.submit(ctx, t, j); err != nil {
			k.settle(0, err)
			return nil, err
		}
		go k.finish()
		return k, nil
	}
	j.SrcBlocks, j.DstBlocks = slices.Clone(j.SrcBlocks), slices.Clone(j.DstBlocks)
	go k.later(t, j)
	return k, nil
}

// ticket implements transfer.Ticket. One goroutine carries it from Hold to Done;
// Close waits for it.
type ticket struct {
	l        *link
	fate     Fate
	inner    transfer.Ticket // nil: dropped
	canceled chan struct{}
	cancel   sync.Once

	done  chan struct{}
	bytes int64
	err   error
}

func (k *ticket) submit(ctx context.Context, t *lower.Template, j lower.Job) (err error) {
	select {
	case <-k.l.b.killed:
		return k.l.b.fail("pull", k.l.peer, transfer.ErrMover)
	default:
	}
	if !k.fate.Drop {
		k.inner, err = k.l.Link.Pull(ctx, t, j)
	}
	return err
}

// later waits out Hold, then submits.
func (k *ticket) later(t *lower.Template, j lower.Job) {
	b := k.l.b
	select {
	case <-k.fate.Hold:
	case <-k.canceled:
		k.settle(0, b.fail("pull", k.l.peer, transfer.ErrCanceled))
		return
	case <-b.killed:
		k.settle(0, b.fail("pull", k.l.peer, transfer.ErrMover))
		return
	}
	if err := k.submit(context.Background(), t, j); err != nil {
		k.settle(0, err)
		return
	}
	k.finish()
}

// finish waits for the inner ticket and for Late, then settles as the fate says.
func (k *ticket) finish() {
	b := k.l.b
	if k.inner == nil {
		k.settle(0, b.fail("pull", k.l.peer, transfer.ErrPeer))
		return
	}
	select {
	case <-k.inner.Done():
	case <-k.canceled:
		k.inner.Cancel()
		<-k.inner.Done()
	}
	err := k.inner.Err()
	if err == nil && k.fate.Fail != nil {
		err = b.fail("pull", k.l.peer, k.fate.Fail)
	}
	if k.fate.Late != nil {
		select {
		case <-k.fate.Late:
		case <-b.killed:
			err = b.fail("pull", k.l.peer, transfer.ErrMover)
		}
	}
	k.settle(k.inner.Bytes(), err)
}

func (k *ticket) settle(n int64, err error) {
	b := k.l.b
	k.bytes, k.err = n, err
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.open, k)
	k.l.open--
	close(k.done)
	close(b.change)
	b.change = make(chan struct{})
}

func (k *ticket) Done() <-chan struct{} { return k.done }
func (k *ticket) Cancel()               { k.cancel.Do(func() { close(k.canceled) }) }

func (k *ticket) Err() error {
	select {
	case <-k.done:
		return k.err
	default:
		return nil
	}
}

func (k *ticket) Bytes() int64 {
	select {
	case <-k.done:
		return k.bytes
	default:
		return 0
	}
}
