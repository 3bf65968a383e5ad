package engine_test

import (
	"errors"
	"os"
	"testing"

	"github.com/batonkv/baton/sidecar/engine"
	"github.com/batonkv/baton/sidecar/engine/client"
	"github.com/batonkv/baton/sidecar/handoff"
)

func run(parent uint64, ids ...uint64) handoff.BlockEvent {
	e := handoff.BlockEvent{Kind: handoff.BlocksStored, Parent: parent, BlockTokens: 64}
	for _, id := range ids {
		tokens := make([]int32, e.BlockTokens)
		for i := range tokens {
			tokens[i] = int32(id)
		}
		e.Blocks = append(e.Blocks, handoff.StoredBlock{ID: id, Tokens: tokens})
	}
	return e
}

func tell(t *testing.T, c *client.Client, es ...handoff.BlockEvent) {
	t.Helper()
	if err := c.Send(handoff.BlockEvents{Events: es}); err != nil {
		t.Fatal(err)
	}
}

// told is what came of blocks up to and with a block.
func (h *handler) told(t *testing.T, until uint64) (out []handoff.BlockEvent) {
	t.Helper()
	for {
		m, ok := h.message(t).(handoff.BlockEvents)
		if !ok {
			t.Fatalf("%T among the blocks", m)
		}
		out = append(out, m.Events...)
		if last := out[len(out)-1].Blocks; len(last) > 0 && last[len(last)-1].ID == until {
			return out
		}
	}
}

var tellsBlocks = client.Config{Attach: handoff.Attach{Group: "p", Ranks: 1, Capacity: handoff.Capacity{Blocks: 20_000}, TellsBlocks: true}}

// TestBlocksAreToldWhenAsked: without a wish nothing is sent; with one everything, also what
// was before; after a session is lost the next one asks anew.
func TestBlocksAreToldWhenAsked(t *testing.T) {
	dir, srv, h := start(t, engine.Options{})
	c, s := attach(t, dir, h, tellsBlocks)
	e := run(0, 1, 2)
	tell(t, c, e)
	e.Blocks[0].Tokens[0] = 99 // the engine's own
	if err := errors.Join(c.Send(handoff.Freed{Blocks: 1}), s.Send(handoff.TellBlocks{On: true})); err != nil {
		t.Fatal(err)
	}
	if m := h.message(t); m != (handoff.Freed{Blocks: 1}) {
		t.Fatalf("%+v before it was asked", m)
	}
	if got := h.told(t, 2); len(got) != 2 || got[0].Kind != handoff.BlocksCleared || got[1].Parent != 0 || got[1].Blocks[0].Tokens[0] != 1 {
		t.Fatalf("%+v", got)
	}
	tell(t, c, run(0, 1, 2, 3), run(3, 4))
	if got := h.told(t, 4); len(got) != 2 || len(got[0].Blocks) != 1 || got[0].Parent != 2 {
		t.Fatalf("%+v", got)
	}
	if err := c.Send(handoff.BlockEvents{Events: []handoff.BlockEvent{run(0, 77), run(0, 0)}}); !errors.Is(err, handoff.ErrBound) {
		t.Error(err)
	}
	if err := s.Send(handoff.TellBlocks{}); err != nil {
		t.Fatal(err)
	}
	shut(t, srv)
	if err := h.closed(t); err == nil {
		t.Error("the session was closed in order")
	}
	_ = away(c)
	tell(t, c, handoff.BlockEvent{Kind: handoff.BlocksRemoved, Removed: []uint64{3}}) // nobody is there
	next := &handler{srv: make(chan *engine.Server, 1), events: make(chan event, 1024)}
	srv, err := engine.Listen(dir, next, engine.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { shut(t, srv) })
	next.srv <- srv
	a := <-next.events
	if m := next.message(t); m != (handoff.BuffersReady{}) {
		t.Fatalf("%+v", m)
	}
	if err := errors.Join(a.s.Send(handoff.TellBlocks{On: true}), a.s.Send(handoff.MoverStarted{PID: int32(os.Getpid())})); err != nil {
		t.Fatal(err)
	}
	if got := next.told(t, 4); len(got) != 3 || len(got[1].Blocks) != 2 || got[2].Parent != 3 {
		t.Errorf("%+v", got)
	}
}

// TestASidecarThatDoesNotRead: what the engine tells meanwhile waits for nobody, its other
// messages have room, and then the sidecar hears what is held.
func TestASidecarThatDoesNotRead(t *testing.T) {
	dir, _, h := start(t, engine.Options{})
	c, s := attach(t, dir, h, tellsBlocks)
	if err := s.Send(handoff.TellBlocks{On: true}); err != nil {
		t.Fatal(err)
	}
	if got, ok := h.message(t).(handoff.BlockEvents); !ok || len(got.Events) != 1 {
		t.Fatalf("%+v", got)
	}
	// The handler takes 1024 messages and then nothing.
	for range cap(h.events) {
		if err := c.Send(handoff.Fenced{N: 1}); err != nil {
			t.Fatal(err)
		}
	}
	ids := make([]uint64, 12_000)
	for i := range ids {
		ids[i] = uint64(i) + 1
	}
	for range 10 {
		tell(t, c, run(0, ids...), handoff.BlockEvent{Kind: handoff.BlocksCleared})
	}
	tell(t, c, run(0, ids...))
	tell(t, c, run(0, 1<<40))
	if err := errors.Join(c.Away(), c.Err()); err != nil {
		t.Fatal(err)
	}
	held, lost := map[uint64]bool{}, uint64(0)
	for !held[1<<40] {
		m, ok := h.message(t).(handoff.BlockEvents)
		if !ok {
			continue
		}
		for _, e := range m.Events {
			if e.Kind == handoff.BlocksCleared {
				clear(held)
				lost += e.Lost
			}
			for _, b := range e.Blocks {
				held[b.ID] = true
			}
		}
	}
	if len(held) != len(ids)+1 || lost == 0 {
		t.Errorf("%d blocks, %d events lost", len(held), lost)
	}
}

// TestWhoTellsUnasked is refused.
func TestWhoTellsUnasked(t *testing.T) {
	dir, _, h := start(t, engine.Options{})
	c, s := attach(t, dir, h, client.Config{Attach: handoff.Attach{Group: "p", Ranks: 1}})
	if err := c.Send(handoff.BlockEvents{}); !errors.Is(err, handoff.ErrEngine) {
		t.Error(err)
	}
	if err := errors.Join(s.Send(handoff.TellBlocks{On: true}), s.Send(handoff.Through{N: 3})); err != nil {
		t.Fatal(err)
	}
	if got := poll(t, c, 2); got[1] != (handoff.Through{N: 3}) { // behind MoverStarted
		t.Errorf("%+v", got)
	}
}
