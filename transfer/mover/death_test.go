package mover

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/batonkv/baton/kernels/rows"
	"github.com/batonkv/baton/lifeline"
	"github.com/batonkv/baton/transfer"
	"github.com/batonkv/baton/transfer/layout"
	"github.com/batonkv/baton/transfer/lower"
	"github.com/batonkv/baton/transfer/transfertest"
)

// The death of one mover is nobody else's.
func TestDeathIsOnesOwn(t *testing.T) {
	a, b := start(t, config("mover")), start(t, config("mover"))
	pa, pb := transfertest.NewPair(t, transfertest.Memfd, a), transfertest.NewPair(t, transfertest.Memfd, b)
	transfertest.Freeze(t, a.PID())
	thaw := transfertest.Freeze(t, b.PID())
	ka, kb := pa.Pull(t, layout.Span{Hi: 50}), pb.Pull(t, layout.Span{Hi: 50})
	a.Kill()
	<-ka.Done()
	thaw()
	<-kb.Done()
	if !errors.Is(ka.Err(), transfer.ErrMover) || kb.Err() != nil {
		t.Errorf("killed: %v; other: %v", ka.Err(), kb.Err())
	}
}

// A closed socket is no proof of quiet memory: the ticket waits for the exit.
func TestTicketWaitsForExit(t *testing.T) {
	m := start(t, config("mover"))
	p := transfertest.NewPair(t, transfertest.Memfd, m)
	l := p.Link.(*link).l
	began, err := lifeline.StartTime(l.pid)
	if err != nil {
		t.Fatal(err)
	}
	transfertest.Freeze(t, l.pid)
	k := p.Pull(t, layout.Span{Hi: 50})
	l.conn.Close() // the stream breaks; the child is frozen and lives
	<-k.Done()
	if lifeline.Alive(l.pid, began) {
		t.Error("the ticket settled while the child lives")
	}
	if !errors.Is(k.Err(), transfer.ErrMover) {
		t.Errorf("ticket: %v", k.Err())
	}
}

// The loss of the sidecar does not interrupt the copy in progress: its last byte is
// written and told before the mover ends.
func TestServeFinishesCopy(t *testing.T) {
	for name, cut := range map[string]func(l *life, stop func()){
		"socket":   func(l *life, _ func()) { _ = l.conn.CloseWrite() },
		"lifeline": func(_ *life, stop func()) { stop() },
	} {
		t.Run(name, func(t *testing.T) {
			c, err := rows.New(rows.Config{})
			if err != nil {
				t.Fatal(err)
			}
			begun, let := make(chan struct{}, 1), make(chan struct{})
			g := hooked{c, func() { begun <- struct{}{}; <-let }}
			m, err := InProcess(Config{MaxOpen: 40, Workers: 1, RestartMin: time.Millisecond}, g)
			if err != nil {
				t.Fatal(err)
			}
			p := transfertest.NewPair(t, transfertest.Memfd, m)
			first := p.Pull(t, layout.Span{Hi: 200})
			<-begun
			l := p.Link.(*link).l
			l.mu.Lock()
			l.ended = true // else the end of the stream counts as a failure
			l.mu.Unlock()
			cut(l, l.end)
			select {
			case <-l.exited:
				t.Error("the mover ended in the middle of a copy")
			default:
			}
			close(let)
			<-l.gone
			if first.Err() != nil || first.Bytes() == 0 {
				t.Errorf("the copy in progress: %v, %d bytes", first.Err(), first.Bytes())
			}
			if err := m.Close(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}

// A child that cannot be told of never takes work: Start fails, a successor is tried again.
func TestUntoldChildEnds(t *testing.T) {
	untold := errors.New("disk is full")
	var pids []int
	cfg := config("mover")
	cfg.Started = func(pid int) error { pids = append(pids, pid); return untold }
	if _, err := Start(cfg); !errors.Is(err, transfer.ErrMover) || !strings.Contains(err.Error(), untold.Error()) {
		t.Fatalf("start: %v", err)
	}
	if _, err := lifeline.StartTime(pids[0]); err == nil {
		t.Error("the child outlived the failed start")
	}
	n, ended := 0, make(chan int, 10)
	cfg.Started = func(pid int) error {
		if n++; n == 2 {
			return untold
		}
		return nil
	}
	cfg.Exited = func(pid int, err error) { ended <- pid }
	m := start(t, cfg)
	first := m.PID()
	m.Kill()
	if pid := <-ended; pid != first {
		t.Errorf("%d ended, want %d", pid, first)
	}
	second := <-ended
	if _, err := m.Open(t.Context(), transfer.Peer{ID: "p"}); err != nil || m.PID() == second {
		t.Errorf("pid %d after %d and %d: %v", m.PID(), first, second, err)
	}
}

type hooked struct {
	transfer.Copier
	f func()
}

func (h hooked) Copy(ctx context.Context, ns []lower.Nest, src, dst transfer.Buffers) (int64, error) {
	h.f()
	return h.Copier.Copy(ctx, ns, src, dst)
}
