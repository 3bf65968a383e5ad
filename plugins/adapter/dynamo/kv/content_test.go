package kv

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/batonkv/baton/sidecar/handoff"
)

const blockTokens = 4

func run(n int) (tokens []int32) {
	for i := range int32(blockTokens) {
		tokens = append(tokens, int32(n)*blockTokens+i+1)
	}
	return tokens
}

// chain is blocks from..to of one sequence; their ids are 101, 102…
func chain(from, to int) handoff.BlockEvent {
	e := handoff.BlockEvent{Kind: handoff.BlocksStored, BlockTokens: blockTokens}
	if from > 0 {
		e.Parent = uint64(100 + from)
	}
	for i := from; i < to; i++ {
		e.Blocks = append(e.Blocks, handoff.StoredBlock{ID: uint64(101 + i), Tokens: run(i)})
	}
	return e
}

func removed(ids ...uint64) handoff.BlockEvent {
	return handoff.BlockEvent{Kind: handoff.BlocksRemoved, Removed: ids}
}

// router is what a router makes of events: what it can find. Events that a router complains
// of are faults.
type router struct {
	parent map[uint64]uint64 // by hash; 0: a sequence begins
	tokens map[uint64]uint64
}

func newRouter() *router { return &router{map[uint64]uint64{}, map[uint64]uint64{}} }

func (r *router) apply(d Data) error {
	switch {
	case d.Stored != nil:
		var at uint64
		if d.Stored.Parent != nil {
			at = *d.Stored.Parent
			if _, ok := r.tokens[at]; !ok {
				return fmt.Errorf("stored after %x, which is not held", at)
			}
		}
		if len(d.Stored.Blocks) == 0 || len(d.Stored.Blocks) > maxRun {
			return fmt.Errorf("a run of %d", len(d.Stored.Blocks))
		}
		for _, b := range d.Stored.Blocks {
			if _, ok := r.tokens[b.Hash]; ok {
				return fmt.Errorf("%x stored twice", b.Hash)
			}
			r.parent[b.Hash], r.tokens[b.Hash] = at, b.Tokens
			at = b.Hash
		}
	case d.Removed != nil:
		for _, h := range d.Removed.Hashes {
			if _, ok := r.tokens[h]; !ok {
				return fmt.Errorf("%x removed, which is not held", h)
			}
			for _, p := range r.parent {
				if p == h {
					return fmt.Errorf("%x removed before what follows it", h)
				}
			}
			delete(r.parent, h)
			delete(r.tokens, h)
		}
	default:
		clear(r.parent)
		clear(r.tokens)
	}
	return nil
}

// small is a cache of few blocks: block n follows block (n-1)/2 for n > 1, so that sequences
// fork.
type small map[int]bool

func (c small) whole(n int) bool {
	for ; n > 0; n = (n - 1) / 2 {
		if !c[n] {
			return false
		}
	}
	return true
}

func before(n int) uint64 { return uint64((n - 1) / 2) }

// TestToldIsWhole: whatever an engine stores and removes, in whatever order, a router holds
// the blocks that are held with all before them, never hears a thing that it cannot place,
// and what is dumped, or told again from any number on, is the same.
func TestToldIsWhole(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l, held, r := NewLog(), small{}, newRouter()
		var at uint64
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			n := rapid.IntRange(1, 14).Draw(t, "block")
			switch rapid.IntRange(0, 9).Draw(t, "kind") {
			case 0:
				l.Tell(handoff.BlockEvent{Kind: handoff.BlocksCleared})
				clear(held)
			case 1, 2, 3:
				if held[n] {
					l.Tell(removed(uint64(n)))
					delete(held, n)
				}
			case 4:
				ids := slices.Sorted(maps.Keys(held))
				if len(ids) > 3 {
					ids = ids[:3]
				}
				e := removed()
				for _, id := range ids {
					e.Removed = append(e.Removed, uint64(id))
					delete(held, id)
				}
				l.Tell(e)
			default:
				e := handoff.BlockEvent{Kind: handoff.BlocksStored, BlockTokens: blockTokens, Parent: before(n)}
				for ; n <= 14 && (len(e.Blocks) == 0 || rapid.Bool().Draw(t, "on")); n = 2*n + 1 {
					e.Blocks = append(e.Blocks, handoff.StoredBlock{ID: uint64(n), Tokens: run(n)})
					held[n] = true
				}
				l.Tell(e)
			}
			events, last, whole := l.Since(at + 1)
			if !whole || last != at+uint64(len(events)) {
				t.Fatalf("%d events after %d, newest %d, %v", len(events), at, last, whole)
			}
			at = last
			for _, e := range events {
				if err := r.apply(e.Data); err != nil {
					t.Fatal(e.ID, err)
				}
			}
			check(t, l, held, r)
		}
	})
}

func check(t *rapid.T, l *Log, held small, r *router) {
	var want int
	for n := range held {
		if held.whole(n) {
			want++
		}
	}
	again := newRouter()
	dump, _ := l.Dump()
	for _, e := range dump {
		if err := again.apply(e.Data); err != nil {
			t.Fatal("dump", err)
		}
	}
	if c, _ := l.Content(); c.Blocks != want || c.Apart != len(held)-want || len(r.tokens) != want || !maps.Equal(r.tokens, again.tokens) || !maps.Equal(r.parent, again.parent) {
		t.Fatalf("held %v: %d told, a router has %d, a dump %d, want %d", held, c.Blocks, len(r.tokens), len(again.tokens), want)
	}
	if len(held) == 0 && len(l.content.blocks) != 0 {
		t.Fatalf("%d blocks are kept for nothing", len(l.content.blocks))
	}
}

// TestWhatIsNotTold: blocks that routers cannot hash or place, and that are too many.
func TestWhatIsNotTold(t *testing.T) {
	salted, partial, anonymous, looped := chain(0, 2), chain(0, 2), chain(0, 2), chain(0, 3)
	salted.Salt.Namespace = "tenant"
	partial.Blocks[1].Tokens = partial.Blocks[1].Tokens[:3]
	anonymous.Blocks[0].ID = 0
	looped.Blocks[2].ID = 101
	for name, c := range map[string]struct {
		e      handoff.BlockEvent
		told   int
		untold uint64
	}{"salted": {salted, 0, 2}, "partial": {partial, 1, 1}, "without a name": {anonymous, 0, 2}, "a loop": {looped, 2, 1}, "after nothing known": {chain(3, 5), 0, 0}} {
		l := NewLog()
		l.Tell(c.e)
		if got, _ := l.Content(); got.Blocks != c.told || got.Untold != c.untold {
			t.Errorf("%s: %+v, want %d and %d", name, got, c.told, c.untold)
		}
	}
	l := NewLog()
	l.Tell(chain(1, 2))
	l.Tell(handoff.BlockEvent{Kind: handoff.BlocksStored, BlockTokens: blockTokens, Parent: 102, Blocks: []handoff.StoredBlock{{ID: 101, Tokens: run(0)}}})
	l.Tell(handoff.BlockEvent{Kind: handoff.BlocksStored, BlockTokens: blockTokens, Parent: 77, Blocks: []handoff.StoredBlock{{ID: 78}}})
	if got, _ := l.Content(); got != (Content{Apart: 1, Untold: 2}) || len(l.content.blocks) != 2 {
		t.Errorf("a sequence that follows itself: %+v, %d kept", got, len(l.content.blocks))
	}
	l = NewLog()
	l.Tell(chain(0, 2))
	l.Tell(handoff.BlockEvent{Kind: handoff.BlocksCleared, Lost: 5}) // and all anew
	l.Tell(chain(0, 1))
	l.Tell(removed(101))
	l.Tell(handoff.BlockEvent{Kind: handoff.BlocksCleared, Lost: 2})
	if got, changes := l.Content(); got != (Content{Missed: 7}) || changes != (Changes{Stored: 3, Removed: 1, Cleared: 1}) {
		t.Errorf("%+v, %+v", got, changes)
	}
	l = NewLog()
	l.Tell(chain(0, maxHeld))
	l.Tell(chain(maxHeld, maxHeld+3))
	if got, _ := l.Content(); got != (Content{Blocks: maxHeld, Untold: 3}) {
		t.Errorf("%+v", got)
	}
	if a := (&Source{log: l}).recover(Query{}); a.TreeDump == nil {
		t.Errorf("%+v", a)
	}
	lora := chain(0, 1)
	lora.Salt.LoRA = "lora-a"
	l = NewLog()
	l.Tell(lora)
	if dump, _ := l.Dump(); dump[0].Data.Stored.Blocks[0].Tokens != 16997879858665117404 {
		t.Errorf("%+v", dump)
	}
}

// TestRecover: what each question is answered, while the log has it and later.
func TestRecover(t *testing.T) {
	s := &Source{worker: 7, rank: 2, log: NewLog()}
	for n := range 5 {
		s.log.Tell(chain(n, n+1))
	}
	number := func(n uint64) *uint64 { return &n }
	ask := func(start, end *uint64) Answer { return s.recover(Query{Worker: 7, Rank: 2, Start: start, End: end}) }
	if a := ask(number(2), number(3)); a.Events == nil || len(a.Events.Events) != 4 || a.Events.Last != 5 || a.Events.Events[0].Event.ID != 2 || a.Events.Events[0].Event.Rank != 2 {
		t.Errorf("%+v", a)
	}
	if a := ask(nil, nil); a.TreeDump == nil || a.TreeDump.Last != 5 || len(a.TreeDump.Events) != 1 || a.TreeDump.Events[0].Worker != 7 {
		t.Errorf("%+v", a)
	}
	if a := ask(number(6), nil); a.TooNew == nil || a.TooNew.Newest != 5 {
		t.Errorf("%+v", a)
	}
	if a := ask(number(3), number(2)); a.InvalidRange == nil {
		t.Errorf("%+v", a)
	}
	for _, q := range []Query{{Worker: 8, Rank: 2}, {Worker: 7}, {Worker: 7, Rank: 2, Kind: "status"}} {
		if a := s.recover(q); a.Error == "" {
			t.Errorf("%+v: %+v", q, a)
		}
	}
	for range keptEvents {
		s.log.Tell(removed(105))
		s.log.Tell(chain(4, 5))
	}
	if a := ask(number(2), nil); a.TreeDump == nil || a.TreeDump.Last != 5+2*keptEvents {
		t.Errorf("%+v", a)
	}
	if a := ask(number(5+keptEvents+1), nil); a.Events == nil || len(a.Events.Events) != keptEvents {
		t.Errorf("%+v", a)
	}
	l := NewLog()
	for n := range 2 * maxDump / (eventSize + blockSize) { // forks everywhere
		l.Tell(handoff.BlockEvent{Kind: handoff.BlocksStored, BlockTokens: blockTokens, Blocks: []handoff.StoredBlock{{ID: uint64(n + 1), Tokens: run(n)}}})
	}
	s.log = l
	if a := s.recover(Query{Worker: 7, Rank: 2, KnowsFails: true}); a.DumpFailed == nil {
		t.Errorf("%+v", a.Error)
	}
	if a := s.recover(Query{Worker: 7, Rank: 2}); a.Error == "" {
		t.Error("an answer that is too large")
	}
}

// TestNextIsBounded: no message has more than routers take.
func TestNextIsBounded(t *testing.T) {
	l := NewLog()
	l.Tell(chain(0, 3*MaxBlocks))
	for n := range 3 * MaxEvents {
		l.Tell(removed(uint64(100 + 3*MaxBlocks - n)))
	}
	var at uint64
	for at < l.Last() {
		events, _ := l.Next(at)
		var blocks int
		for n, e := range events {
			if e.ID != at+uint64(n)+1 {
				t.Fatalf("%d at %d", e.ID, at)
			}
			blocks += e.weight()
		}
		if len(events) == 0 || len(events) > MaxEvents || blocks > MaxBlocks {
			t.Fatalf("%d events of %d blocks", len(events), blocks)
		}
		b, err := EncodeBatch((&Source{worker: ^uint64(0)}).router(events))
		if err != nil || len(b) > 1<<20-512 {
			t.Fatalf("%d bytes, %v", len(b), err)
		}
		at = events[len(events)-1].ID
	}
	if events, change := l.Next(at); len(events) != 0 {
		t.Error(events)
	} else {
		l.Tell(removed(101))
		<-change
	}
	if events, _ := NewLog().Next(9); len(events) != 0 {
		t.Error(events)
	}
}

// TestLiveOnlyTellsAll: also more than is kept of what happens.
func TestLiveOnlyTellsAll(t *testing.T) {
	for name, c := range map[string]struct{ sequences, blocks int }{"many sequences": {2 * keptEvents, 1}, "many blocks": {3, keptBlocks / 2}} {
		t.Run(name, func(t *testing.T) {
			l, id := NewLog(), uint64(0)
			for n := range c.sequences {
				e := handoff.BlockEvent{Kind: handoff.BlocksStored, BlockTokens: 1}
				for range c.blocks {
					id++
					e.Blocks = append(e.Blocks, handoff.StoredBlock{ID: id, Tokens: []int32{int32(n)}})
				}
				l.Tell(e)
			}
			told := l.Last()
			l.Again()
			r := newRouter()
			for {
				events, _ := l.Next(told)
				if len(events) == 0 {
					break
				}
				for _, e := range events {
					if told++; e.ID != told {
						t.Fatalf("event %d follows %d", e.ID, told-1)
					}
					if err := r.apply(e.Data); err != nil {
						t.Fatal(err)
					}
				}
			}
			if len(r.tokens) != c.sequences*c.blocks {
				t.Errorf("%d blocks are told, want %d", len(r.tokens), c.sequences*c.blocks)
			}
		})
	}
}
