package direct

import (
	"context"
	"errors"
	"os"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/batonkv/baton/kernels/rows"
	"github.com/batonkv/baton/transfer"
	"github.com/batonkv/baton/transfer/layout"
	"github.com/batonkv/baton/transfer/lower"
	"github.com/batonkv/baton/transfer/transfertest"
)

// gate is a Copier whose copies wait while it is shut.
type gate struct {
	transfer.Copier
	mu sync.RWMutex // held for writing while shut
}

func (g *gate) Copy(ctx context.Context, ns []lower.Nest, src, dst transfer.Buffers) (int64, error) {
	g.mu.RLock()
	defer g.mu.RUnlock()
	return g.Copier.Copy(ctx, ns, src, dst)
}

func open(alloc transfertest.Alloc) transfertest.Open {
	return func(t *testing.T) transfertest.Env {
		c, err := rows.New(rows.Config{})
		if err != nil {
			t.Fatal(err)
		}
		g := &gate{Copier: c}
		b, err := New(Config{Copier: g, MaxOpen: 40})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = b.Close(context.Background()) })
		return transfertest.Env{Backend: b, Alloc: alloc, MaxOpen: 40,
			Hold: func() func() { g.mu.Lock(); return g.mu.Unlock }}
	}
}

func TestMemfd(t *testing.T) { transfertest.Run(t, open(transfertest.Memfd)) }
func TestLocal(t *testing.T) { transfertest.Run(t, open(transfertest.Local)) }

func TestConfig(t *testing.T) {
	c, _ := rows.New(rows.Config{})
	for name, cfg := range map[string]Config{
		"copier":   {},
		"workers":  {Copier: c, Workers: -1},
		"max open": {Copier: c, MaxOpen: -1},
	} {
		if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A mapping shows the reader nothing to write to, and leaves no descriptor.
func TestAttach(t *testing.T) {
	attach := new(Backend).attach
	fd := transfertest.File(t, 8192, unix.F_SEAL_SHRINK|unix.F_SEAL_WRITE)
	m := transfer.Memory{Kind: transfer.Memfd, FD: transfertest.Dup(t, fd), Len: 8192}
	if got, err := attach(0, m, false); err != nil {
		t.Errorf("read-only memory as a source: %v", err)
	} else if err := got.unmap(); err != nil {
		t.Error(err)
	}
	m.FD = transfertest.Dup(t, fd)
	if _, err := attach(0, m, true); !errors.Is(err, transfer.ErrMemory) {
		t.Errorf("read-only memory as a destination: %v", err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	m.FD = transfertest.Dup(t, int(r.Fd()))
	if _, err := attach(0, m, false); !errors.Is(err, transfer.ErrMemory) || !strings.Contains(err.Error(), "memfd") {
		t.Errorf("a pipe as memory: %v", err)
	}
	if _, err := attach(MaxRegions, transfer.Memory{Kind: transfer.Local, Addr: 4096, Len: 1}, false); !errors.Is(err, transfer.ErrMemory) {
		t.Errorf("region %d: %v", MaxRegions, err)
	}
	if _, err := attach(0, transfer.Memory{Kind: transfer.CUDA, Len: 1}, false); !errors.Is(err, transfer.ErrMemory) || !strings.Contains(err.Error(), "driver") {
		t.Errorf("GPU memory without a device: %v", err)
	}
}

// Drain lets the copy that has begun end and settles those behind it.
func TestDrain(t *testing.T) {
	c, _ := rows.New(rows.Config{})
	begun, let := make(chan struct{}), make(chan struct{})
	b, err := New(Config{Workers: 1, Copier: &hooked{Copier: c, f: func() { begun <- struct{}{}; <-let }}})
	if err != nil {
		t.Fatal(err)
	}
	s := transfertest.NewPair(t, transfertest.Memfd, b)
	first := s.Pull(t, layout.Span{Hi: 100})
	<-begun
	second := s.Pull(t, layout.Span{Hi: 100})
	b.Drain()
	close(let)
	if err := b.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if first.Err() != nil {
		t.Errorf("the copy in progress: %v", first.Err())
	}
	if !errors.Is(second.Err(), transfer.ErrClosed) {
		t.Errorf("the copy behind it: %v, want ErrClosed", second.Err())
	}
}

type hooked struct {
	transfer.Copier
	f func()
}

func (h *hooked) Copy(ctx context.Context, ns []lower.Nest, src, dst transfer.Buffers) (int64, error) {
	h.f()
	return h.Copier.Copy(ctx, ns, src, dst)
}
