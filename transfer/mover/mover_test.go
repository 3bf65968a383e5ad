package mover

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/batonkv/baton/kernels/rows"
	"github.com/batonkv/baton/lifeline"
	"github.com/batonkv/baton/transfer"
	"github.com/batonkv/baton/transfer/layout"
	"github.com/batonkv/baton/transfer/lower"
	"github.com/batonkv/baton/transfer/transfertest"
)

// serveOwner is set where the build has C.
var serveOwner = func() error { return errors.New("built without cgo") }

const envRole = "MOVER_TEST_ROLE"

// TestMain makes the test binary the child of the tests.
func TestMain(m *testing.M) {
	switch os.Getenv(envRole) {
	case "":
		os.Exit(m.Run())
	case "mover":
		if err := Serve(context.Background(), lifeline.FirstExtra); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	case "broken":
		fmt.Fprintln(os.Stderr, "no such library")
		os.Exit(1)
	case "wire":
		if err := ServeWire(context.Background(), lifeline.FirstExtra, openTCP); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	case "owner":
		if err := serveOwner(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	case "mute":
		<-lifeline.Watch()
	}
}

func config(role string) Config {
	return Config{Command: []string{os.Args[0]}, Env: append(os.Environ(), envRole+"="+role),
		RestartMin: time.Millisecond, MaxOpen: 40}
}

func start(t testing.TB, cfg Config) *Mover {
	t.Helper()
	m, err := Start(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		m.Kill()
		_ = m.Close(context.Background())
	})
	return m
}

func TestProcess(t *testing.T) {
	transfertest.Run(t, func(t *testing.T) transfertest.Env {
		m := start(t, config("mover"))
		return transfertest.Env{Backend: m, Alloc: transfertest.Memfd, MaxOpen: 40, Kill: m.Kill, Sums: true,
			Hold: func() func() { return transfertest.Freeze(t, m.PID()) }}
	})
}

type gate struct {
	transfer.Copier
	mu sync.RWMutex // held for writing while shut
}

func (g *gate) Copy(ctx context.Context, ns []lower.Nest, src, dst transfer.Buffers) (int64, error) {
	g.mu.RLock()
	defer g.mu.RUnlock()
	return g.Copier.Copy(ctx, ns, src, dst)
}

func inProcess(t testing.TB) (*Mover, *gate) {
	t.Helper()
	c, err := rows.New(rows.Config{})
	if err != nil {
		t.Fatal(err)
	}
	g := &gate{Copier: c}
	m, err := InProcess(Config{MaxOpen: 40, RestartMin: time.Millisecond}, g)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close(context.Background()) })
	return m, g
}

func TestInProcess(t *testing.T) {
	for name, alloc := range map[string]transfertest.Alloc{"memfd": transfertest.Memfd, "local": transfertest.Local} {
		t.Run(name, func(t *testing.T) {
			transfertest.Run(t, func(t *testing.T) transfertest.Env {
				m, g := inProcess(t)
				return transfertest.Env{Backend: m, Alloc: alloc, MaxOpen: 40,
					Hold: func() func() { g.mu.Lock(); return g.mu.Unlock }}
			})
		})
	}
}

func TestLocalMemoryRefusedByProcess(t *testing.T) {
	m := start(t, config("mover"))
	b := transfertest.Local(t, 4096)
	if _, err := m.Register(t.Context(), 0, b.Memory()); !errors.Is(err, transfer.ErrMemory) || !strings.Contains(err.Error(), "memfd") {
		t.Errorf("Register of local memory: %v", err)
	}
}

func TestStartFails(t *testing.T) {
	cfg := config("broken")
	if m, err := Start(cfg); !errors.Is(err, transfer.ErrMover) || !strings.Contains(err.Error(), "no such library") {
		t.Errorf("Start = %v, %v; want what the child said", m, err)
	}
	cfg = config("mute")
	cfg.StartTimeout = time.Nanosecond
	if m, err := Start(cfg); !errors.Is(err, transfer.ErrMover) {
		t.Errorf("Start = %v, %v; want ErrMover", m, err)
	}
	cfg.Command = []string{"/does/not/exist"}
	if m, err := Start(cfg); err == nil {
		t.Errorf("Start = %v", m)
	}
}

func TestConfig(t *testing.T) {
	for name, edit := range map[string]func(*Config){
		"command":  func(c *Config) { c.Command = nil },
		"max open": func(c *Config) { c.MaxOpen = -1 },
		"workers":  func(c *Config) { c.Workers = 1000 },
		"restart":  func(c *Config) { c.RestartMin, c.RestartMax = time.Second, time.Millisecond },
	} {
		c := config("mover")
		edit(&c)
		if err := c.Check(); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Started and Exited alternate, name the same processes, and Exited comes after the
// process is gone.
func TestCallbacks(t *testing.T) {
	type event struct {
		pid   int
		ended bool
		alive bool
	}
	events := make(chan event, 10)
	cfg := config("mover")
	starts := map[int]uint64{}
	cfg.Started = func(pid int) (err error) {
		starts[pid], err = lifeline.StartTime(pid)
		events <- event{pid: pid}
		return err
	}
	cfg.Exited = func(pid int, _ error) { events <- event{pid, true, lifeline.Alive(pid, starts[pid])} }
	m := start(t, cfg)
	first := <-events
	if first.ended || first.pid != m.PID() {
		t.Errorf("first event %+v, pid %d", first, m.PID())
	}
	if err := unix.Kill(first.pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if e := <-events; e != (event{first.pid, true, false}) {
		t.Errorf("second event %+v", e)
	}
	second := <-events
	if second.ended || second.pid == first.pid {
		t.Errorf("third event %+v", second)
	}
	if _, err := m.Open(t.Context(), transfer.Peer{ID: "p"}); err != nil {
		t.Fatal(err)
	}
	if err := m.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if e := <-events; e != (event{second.pid, true, false}) {
		t.Errorf("last event %+v", e)
	}
}

// Restored names the next child, once it maps what the last one did and before it takes
// work.
func TestRestored(t *testing.T) {
	restored := make(chan int, 1)
	cfg := config("mover")
	var m *Mover
	var early bool
	cfg.Restored = func(pid int) {
		m.mu.Lock()
		early = m.cur != nil
		l := m.last
		m.mu.Unlock()
		if l.mu.Lock(); len(l.calls) > 0 {
			early = true
		}
		l.mu.Unlock()
		restored <- pid
	}
	m = start(t, cfg)
	r, err := m.Register(t.Context(), 3, transfertest.Memfd(t, 8192).Memory())
	if err != nil {
		t.Fatal(err)
	}
	first := m.PID()
	m.Kill()
	pid := <-restored
	if _, err := m.Open(t.Context(), transfer.Peer{ID: "p"}); err != nil {
		t.Fatal(err)
	}
	if pid == 0 || pid == first || pid != m.PID() || early {
		t.Errorf("restored %d, first %d, present %d, early %v", pid, first, m.PID(), early)
	}
	if in := r.(*region).in; in == nil || in.pid != pid {
		t.Errorf("the region is not in the child that was told of")
	}
}

// Requests whose context ends leave nothing in the child.
func TestAbandonedRequests(t *testing.T) {
	m := start(t, config("mover"))
	thaw := transfertest.Freeze(t, m.PID())
	ctx, end := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	b := transfertest.Memfd(t, 8192)
	wg.Go(func() {
		if _, err := m.Register(ctx, 3, b.Memory()); !errors.Is(err, context.Canceled) {
			t.Errorf("Register: %v", err)
		}
	})
	wg.Go(func() {
		p := transfer.Peer{ID: "p", Regions: map[transfer.RegionID]transfer.Memory{0: b.Memory()}}
		if _, err := m.Open(ctx, p); !errors.Is(err, context.Canceled) {
			t.Errorf("Open: %v", err)
		}
	})
	// Both have been sent when their calls are on the list.
	for l := m.cur; ; {
		l.mu.Lock()
		n := len(l.calls)
		l.mu.Unlock()
		if n == 2 {
			break
		}
		runtime.Gosched()
	}
	end()
	wg.Wait()
	thaw()
	// A request of ours comes after their answers; one more after their undoing.
	for range 2 {
		if _, err := m.Open(t.Context(), transfer.Peer{ID: "q"}); err != nil {
			t.Fatal(err)
		}
	}
	if r, err := m.Register(t.Context(), 3, b.Memory()); err != nil {
		t.Errorf("Register anew: %v", err)
	} else if err := r.Close(); err != nil {
		t.Error(err)
	}
}

// More regions than one message has descriptors, and no descriptor left behind.
func TestManyRegions(t *testing.T) {
	m := start(t, config("mover"))
	b := transfertest.Memfd(t, 4096)
	open := func() int {
		d, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", m.PID()))
		if err != nil {
			t.Fatal(err)
		}
		return len(d)
	}
	before := open()
	p := transfer.Peer{ID: "p", Regions: map[transfer.RegionID]transfer.Memory{}}
	for i := range transfer.RegionID(450) {
		p.Regions[i] = b.Memory()
	}
	l, err := m.Open(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if after := open(); after != before {
		t.Errorf("the child has %d descriptors, %d before", after, before)
	}
}

// Templates beyond the slots of a link replace the oldest.
func TestTemplateSlots(t *testing.T) {
	m := start(t, config("mover"))
	p := transfertest.NewPair(t, transfertest.Memfd, m)
	for range 3 * maxTemplates {
		tm := *p.Template // another address: another template to the cache
		k, err := p.Link.Pull(t.Context(), &tm, p.Job(layout.Span{Hi: 20}))
		if err != nil {
			t.Fatal(err)
		}
		if <-k.Done(); k.Err() != nil {
			t.Fatal(k.Err())
		}
	}
	if n := len(p.Link.(*link).slots); n > maxTemplates {
		t.Errorf("%d templates are kept", n)
	}
	if k := p.Pull(t, layout.Span{Hi: 20}); k != nil {
		if <-k.Done(); k.Err() != nil {
			t.Error(k.Err())
		}
	}
}

// A mover run by hand says who starts it.
func TestServeByHand(t *testing.T) {
	fds := [2]int{}
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fds[1])
	if err := Serve(t.Context(), fds[0]); err == nil || !strings.Contains(err.Error(), "sidecars start movers") {
		t.Errorf("Serve of a pipe: %v", err)
	}
	if err := Serve(t.Context(), 1<<20); err == nil {
		t.Error("Serve of no descriptor")
	}
}

// BenchmarkPull is the cost of a small job, submit to Done, on a warm child.
func BenchmarkPull(b *testing.B) {
	m := start(b, config("mover"))
	p := transfertest.NewPair(b, transfertest.Memfd, m)
	j := p.Job(layout.Span{Hi: 16})
	for b.Loop() {
		k, err := p.Link.Pull(b.Context(), p.Template, j)
		if err != nil {
			b.Fatal(err)
		}
		if <-k.Done(); k.Err() != nil {
			b.Fatal(k.Err())
		}
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
