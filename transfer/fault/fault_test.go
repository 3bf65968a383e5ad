package fault

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"github.com/batonkv/baton/transfer"
	"github.com/batonkv/baton/transfer/layout"
	"github.com/batonkv/baton/transfer/lower"
	"github.com/batonkv/baton/transfer/mem"
	"github.com/batonkv/baton/transfer/transfertest"
)

// holder makes every pull wait while it is shut.
type holder struct{ hold atomic.Pointer[chan struct{}] }

func (h *holder) script(transfer.PeerID, lower.Job) Fate {
	if c := h.hold.Load(); c != nil {
		return Fate{Hold: *c}
	}
	return Fate{}
}

func (h *holder) Hold() func() {
	c := make(chan struct{})
	h.hold.Store(&c)
	return func() { h.hold.Store(nil); close(c) }
}

func TestSuite(t *testing.T) {
	transfertest.Run(t, func(t *testing.T) transfertest.Env {
		var h holder
		return transfertest.Env{Backend: Wrap(new(mem.Backend), h.script), Alloc: transfertest.Local, Hold: h.Hold}
	})
}

func TestNilScript(t *testing.T) {
	b := Wrap(new(mem.Backend), nil)
	k := transfertest.NewPair(t, transfertest.Local, b).Pull(t, layout.Span{Hi: 10})
	<-k.Done()
	if k.Err() != nil {
		t.Error(k.Err())
	}
}

func TestFates(t *testing.T) {
	late := make(chan struct{})
	boom := errors.New("boom")
	for name, c := range map[string]struct {
		fate   Fate
		settle func(*Backend, transfer.Ticket) // nil: it settles by itself
		want   error
		bytes  bool
	}{
		"drop":           {Fate{Drop: true}, nil, transfer.ErrPeer, false},
		"fail":           {Fate{Fail: boom}, nil, boom, true},
		"late":           {Fate{Late: late}, func(*Backend, transfer.Ticket) { close(late) }, nil, true},
		"never, killed":  {Fate{Hold: Never}, func(b *Backend, _ transfer.Ticket) { b.Kill() }, transfer.ErrMover, false},
		"late, killed":   {Fate{Late: Never}, func(b *Backend, _ transfer.Ticket) { b.Kill() }, transfer.ErrMover, true},
		"held, canceled": {Fate{Hold: Never}, func(_ *Backend, k transfer.Ticket) { k.Cancel() }, transfer.ErrCanceled, false},
	} {
		t.Run(name, func(t *testing.T) {
			b := Wrap(new(mem.Backend), func(transfer.PeerID, lower.Job) Fate { return c.fate })
			p := transfertest.NewPair(t, transfertest.Local, b)
			k := p.Pull(t, layout.Span{Hi: 10})
			if c.settle != nil {
				ended, end := context.WithCancel(t.Context())
				end()
				if err := b.Close(ended); !errors.Is(err, transfer.ErrBusy) {
					t.Errorf("Close while held: %v, want ErrBusy", err)
				}
				if n := b.OpenTickets(); n != 1 || k.Err() != nil {
					t.Errorf("%d tickets open, Err %v", n, k.Err())
				}
				c.settle(b, k)
			}
			<-k.Done()
			if !errors.Is(k.Err(), c.want) || (k.Bytes() > 0) != c.bytes {
				t.Errorf("settled with %v and %d bytes, want %v", k.Err(), k.Bytes(), c.want)
			}
			if err := b.Close(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestKilledStaysDead(t *testing.T) {
	b := Wrap(new(mem.Backend), nil)
	p := transfertest.NewPair(t, transfertest.Local, b)
	b.Kill()
	if _, err := p.Link.Pull(t.Context(), p.Template, p.Job(layout.Span{Hi: 1})); !errors.Is(err, transfer.ErrMover) {
		t.Errorf("Pull after Kill: %v, want ErrMover", err)
	}
}
