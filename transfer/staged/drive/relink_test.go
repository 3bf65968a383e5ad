package drive_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/batonkv/baton/transfer"
	"github.com/batonkv/baton/transfer/lower"
)

// opening has a hand in the links that a node's local mover opens.
type opening func(ctx context.Context, p transfer.Peer, open func() (transfer.Link, error)) (transfer.Link, error)

type opens struct {
	transfer.Backend
	n *node
}

// Open implements transfer.Backend.
func (o opens) Open(ctx context.Context, p transfer.Peer) (transfer.Link, error) {
	open := func() (transfer.Link, error) { return o.Backend.Open(ctx, p) }
	if f := o.n.opening.Load(); f != nil {
		return (*f)(ctx, p, open)
	}
	return open()
}

// TestRelinkTriesAgain: a way to the engine's memory that could not be opened is opened later,
// without another mover, whichever end packs or unpacks.
func TestRelinkTriesAgain(t *testing.T) {
	for name, at := range map[string]func(*pair) *node{"source": func(p *pair) *node { return p.src }, "destination": func(p *pair) *node { return p.dst }} {
		t.Run(name, func(t *testing.T) {
			p := newPair(t, 2)
			n := at(p)
			var mu sync.Mutex
			fail := map[transfer.PeerID]int{"engine": 1, "staging": 1}
			h := opening(func(_ context.Context, to transfer.Peer, open func() (transfer.Link, error)) (transfer.Link, error) {
				mu.Lock()
				defer mu.Unlock()
				if l, err := open(); fail[to.ID] == 0 || err != nil {
					return l, err
				} else if err := l.Close(); err != nil {
					t.Error(err)
				}
				fail[to.ID]--
				return nil, fmt.Errorf("%w: too many open files", transfer.ErrMemory)
			})
			n.opening.Store(&h)
			n.sync(n.stage.Relink)
			failed := 0
			for i := uint64(1); ; i++ {
				p.pull(i)
				r := p.wait(t)
				if r.err == nil {
					break
				}
				if failed++; errors.Is(r.err, transfer.ErrCanceled) {
					t.Fatal(r.err)
				}
			}
			if failed == 0 {
				t.Error("nothing failed while there was no way")
			}
			p.landed(t)
			p.quiet(t)
		})
	}
}

// TestRelinkOvertaken: what was opened for a mover that is gone by then is not used, however
// late it comes.
func TestRelinkOvertaken(t *testing.T) {
	p := newPair(t, 2)
	n := p.dst
	var mu sync.Mutex
	calls := 0
	first, second, closed := make(chan struct{}), make(chan struct{}), make(chan struct{}, 2)
	begun := make(chan struct{})
	h := opening(func(_ context.Context, _ transfer.Peer, open func() (transfer.Link, error)) (transfer.Link, error) {
		mu.Lock()
		calls++
		call := calls
		mu.Unlock()
		if call > 2 {
			<-second
			return open()
		}
		l, err := open()
		if call == 2 {
			close(begun)
			<-first
		}
		return gone{l, closed}, err
	})
	n.opening.Store(&h)
	n.sync(n.stage.Relink)
	<-begun
	n.sync(n.stage.Relink)
	close(first)
	for range 2 {
		select {
		case <-closed:
		case <-t.Context().Done():
			t.Fatal("links of the last mover are kept")
		}
	}
	close(second)
	for i := uint64(1); ; i++ {
		p.pull(i)
		if r := p.wait(t); r.err == nil {
			break
		} else if errors.Is(r.err, errGone) {
			t.Fatal(r.err)
		}
	}
	p.landed(t)
}

var errGone = errors.New("its mover is gone")

// gone is a link of a mover that is.
type gone struct {
	transfer.Link
	closed chan<- struct{}
}

// Pull implements transfer.Link.
func (gone) Pull(context.Context, *lower.Template, lower.Job) (transfer.Ticket, error) {
	return nil, errGone
}

// Close implements transfer.Link.
func (l gone) Close() error {
	l.closed <- struct{}{}
	return l.Link.Close()
}
