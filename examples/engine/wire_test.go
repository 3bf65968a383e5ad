package engine_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/batonkv/baton/examples/engine"
	"github.com/batonkv/baton/examples/engine/model"
	"github.com/batonkv/baton/examples/engine/tp"
	sidecar "github.com/batonkv/baton/sidecar/engine"
	"github.com/batonkv/baton/sidecar/engine/client"
	"github.com/batonkv/baton/sidecar/handoff"
)

// side is one rank's sidecar socket, behind which the world decides.
type side struct {
	s   *session
	srv chan *sidecar.Server
}

const fdKey = 99

func (h *side) Attach(s *sidecar.Session, a handoff.Attach) error {
	h.s.w.mu.Lock()
	defer h.s.w.mu.Unlock()
	h.s.wire, h.s.attach = s, a
	srv := <-h.srv
	h.srv <- srv
	srv.ExpectFDs(fdKey, a.Buffers)
	return s.Send(handoff.Attached{Incarnation: 1, FDKey: fdKey})
}

func (h *side) Message(_ *sidecar.Session, m handoff.FromEngine) {
	s := h.s
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	if _, ok := m.(handoff.BuffersReady); !ok {
		s.w.handle(s, m)
		return
	}
	srv := <-h.srv
	h.srv <- srv
	fds := srv.TakeFDs(fdKey)
	for i := range uint32(len(s.attach.Buffers)) {
		mem, err := unix.Mmap(fds[i][0], 0, int(s.attach.Buffers[i].Len), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		if err != nil {
			s.w.errs = append(s.w.errs, fmt.Errorf("buffer %d: %w", i, err))
			return
		}
		s.mem = append(s.mem, mem)
		_ = unix.Close(fds[i][0])
	}
	s.push(handoff.MoverStarted{PID: 1})
}

func (h *side) Closed(*sidecar.Session, error) {}

// launchWired is launch over real sockets: ranks meet in a directory, and each dials
// its own sidecar.
func launchWired(t *testing.T, w *world, cfg engine.Config) *engine.Rank {
	g := &group{name: cfg.Group, exports: map[string][]handoff.Export{}, pulls: map[uint64]*pull{}, ids: map[string]handoff.ID{}}
	w.groups[cfg.Group] = g
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	t.Cleanup(func() { cancel(); wg.Wait() })
	meet, up := t.TempDir(), make(chan *engine.Rank, cfg.Ranks())
	for i := range cfg.Ranks() {
		h := &side{s: &session{w: w, g: g, rank: i}, srv: make(chan *sidecar.Server, 1)}
		g.sessions = append(g.sessions, h.s)
		dir := t.TempDir()
		srv, err := sidecar.Listen(dir, h, sidecar.Options{})
		if err != nil {
			t.Fatal(err)
		}
		h.srv <- srv
		t.Cleanup(func() { _ = srv.Close(context.Background()) })
		c := cfg
		c.Rank = i
		wg.Go(func() {
			if err := wired(ctx, c, meet, dir, up); err != nil {
				t.Errorf("%s rank %d: %v", cfg.Group, i, err)
				up <- nil
			}
		})
	}
	var lead *engine.Rank
	for range cfg.Ranks() {
		r := <-up
		if r == nil {
			t.FailNow()
		}
		if r.Attach().Rank == 0 {
			lead = r
		}
	}
	return lead
}

// wired is one rank's life.
func wired(ctx context.Context, cfg engine.Config, meet, dir string, up chan<- *engine.Rank) error {
	r, err := engine.New(cfg)
	if err != nil {
		return err
	}
	defer r.Close()
	g, err := tp.Meet(ctx, tp.Join{Dir: meet, Rank: cfg.Rank, Size: cfg.Ranks(), Identity: cfg.Identity()})
	if err != nil {
		return err
	}
	defer g.Close()
	c, err := client.Dial(ctx, client.Config{Dir: dir, Attach: r.Attach(), Files: r.Files()})
	if err != nil {
		return err
	}
	defer c.Close()
	up <- r
	return r.Run(ctx, g, c)
}

// TestHandOffOverSockets takes the engine's real way to its sidecar: client, codec,
// descriptors, Held before Through.
func TestHandOffOverSockets(t *testing.T) {
	m := model.Hybrid(4)
	w := newWorld(t)
	src := launchWired(t, w, config(m, "prefill", 2))
	dst := launchWired(t, w, config(m, "decode", 4))
	for i, n := range lengths() {
		tokens := prompt(n, 0, n)
		got, res := handOff(t, src, dst, fmt.Sprint(i), tokens)
		if want := reference(t, config(m, "x", 1), tokens, newTokens); !slices.Equal(got, want) || res.Forwarded != 0 {
			t.Errorf("%d tokens: %v, want %v", n, got, want)
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.errs) > 0 {
		t.Error(w.errs)
	}
}
