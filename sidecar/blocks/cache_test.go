package blocks

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/batonkv/baton/sidecar/handoff"
)

const size = 2 // tokens of a block

func stored(parent uint64, ids ...uint64) handoff.BlockEvent {
	e := handoff.BlockEvent{Kind: handoff.BlocksStored, Parent: parent, BlockTokens: size, Salt: handoff.Salt{LoRA: "a"}}
	for _, id := range ids {
		e.Blocks = append(e.Blocks, handoff.StoredBlock{ID: id, Tokens: []int32{int32(id), -int32(id)}})
	}
	return e
}

func removed(ids ...uint64) handoff.BlockEvent {
	return handoff.BlockEvent{Kind: handoff.BlocksRemoved, Removed: ids}
}

var cleared = handoff.BlockEvent{Kind: handoff.BlocksCleared}

// view is what a reader holds: the parent of each block.
type view map[uint64]uint64

// hear takes an event as a reader does that trusts what Read promises.
func (v view) hear(t rapid.TB, e handoff.BlockEvent) {
	if err := Check(e); err != nil || max(len(e.Blocks), len(e.Removed)) > handoff.MaxEventBlocks {
		t.Fatalf("%+v: %v", e, err)
	}
	parent := e.Parent
	for _, b := range e.Blocks {
		if _, held := v[b.ID]; held || b.Tokens[0] != int32(b.ID) || e.Salt.LoRA != "a" {
			t.Fatalf("stored twice, or damaged: %+v", e)
		}
		v[b.ID], parent = parent, b.ID
	}
	for _, id := range e.Removed {
		if _, held := v[id]; !held {
			t.Fatalf("%d is removed, and not held", id)
		}
		delete(v, id)
	}
	if e.Kind == handoff.BlocksCleared {
		clear(v)
	}
}

var id = rapid.Uint64Range(1, 16)

// changes does something to a cache of at most limit blocks, and to what it is to hold.
func changes(t *rapid.T, c *Cache, model view, limit int32) {
	var e handoff.BlockEvent
	switch rapid.IntRange(0, 8).Draw(t, "what") {
	case 0:
		clear(model)
		e = cleared
	case 1, 2, 3:
		e = removed(rapid.SliceOfNDistinct(id, 0, 4, rapid.ID).Draw(t, "gone")...)
		for _, id := range e.Removed {
			delete(model, id)
		}
	default:
		e = stored(id.Draw(t, "parent"), rapid.SliceOfN(id, 0, 5).Draw(t, "ids")...)
		parent := e.Parent
		for _, b := range e.Blocks {
			if _, held := model[b.ID]; !held && len(model) >= int(limit) {
				break
			} else if !held {
				model[b.ID] = parent
			}
			parent = b.ID
		}
	}
	if err := c.Apply(e); err != nil {
		t.Fatal(err)
	}
}

// TestReaders: whatever happens, and however far behind it falls, a reader that has read all
// holds what the cache holds.
func TestReaders(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit := rapid.Int32Range(0, 12).Draw(t, "limit")
		c, model := New(limit), view{}
		c.kept = rapid.IntRange(0, 60).Draw(t, "kept")
		readers := make([]Reader, 3)
		views := []view{{}, {}, {}}
		for range rapid.IntRange(0, 40).Draw(t, "steps") {
			if rapid.Bool().Draw(t, "changes") {
				changes(t, c, model, limit)
			}
			i := rapid.IntRange(0, 2).Draw(t, "reader")
			for range rapid.IntRange(0, 6).Draw(t, "reads") {
				first := !readers[i].begun
				e, ok := c.Read(&readers[i])
				if ok {
					views[i].hear(t, e)
				}
				if first && (e.Kind != handoff.BlocksCleared || e.Lost != 0) {
					t.Fatalf("begins with %+v", e)
				}
			}
			if c.Len() != len(model) || c.weight > c.kept {
				t.Fatalf("%d blocks, want %d; keeps %d of %d", c.Len(), len(model), c.weight, c.kept)
			}
		}
		for i := range readers {
			for e, ok := c.Read(&readers[i]); ok; e, ok = c.Read(&readers[i]) {
				views[i].hear(t, e)
			}
			if !maps.Equal(views[i], model) {
				t.Fatalf("reader %d holds %v, want %v", i, views[i], model)
			}
		}
	})
}

// all reads everything that there is.
func all(c *Cache, r *Reader) (out []handoff.BlockEvent) {
	for e, ok := c.Read(r); ok; e, ok = c.Read(r) {
		out = append(out, e)
	}
	return out
}

// TestSnapshotsAreInOrder: a block comes after the one that it continues, also where that was
// evicted and stored again, and where chains bite their tails.
func TestSnapshotsAreInOrder(t *testing.T) {
	c := New(100)
	for _, e := range []handoff.BlockEvent{stored(0, 1, 2, 3), stored(2, 4, 5), removed(1), stored(0, 9), stored(0, 1), stored(7, 8), stored(8, 7)} {
		if err := c.Apply(e); err != nil {
			t.Fatal(err)
		}
	}
	var told []string
	seen := map[uint64]bool{}
	for _, e := range all(c, &Reader{})[1:] {
		parent := e.Parent
		for _, b := range e.Blocks {
			if c.held[parent] != nil && !seen[parent] && parent != 8 && parent != 7 {
				told = append(told, "before its parent")
			}
			seen[b.ID], parent = true, b.ID
		}
	}
	if len(told) > 0 || len(seen) != c.Len() {
		t.Errorf("%v of %d: %v", slices.Sorted(maps.Keys(seen)), c.Len(), told)
	}
}

// TestSnapshotsAreMadeAside: the feed goes on while a reader makes ready what was held when it
// began, and the reader then hears what became of it.
func TestSnapshotsAreMadeAside(t *testing.T) {
	const n = 500
	c, want := New(2*n), view{}
	for id := uint64(1); id <= n; id++ {
		if err := c.Apply(stored(id-1, id)); err != nil {
			t.Fatal(err)
		}
	}
	var r Reader
	if e, ok := c.Read(&r); !ok || e.Kind != handoff.BlocksCleared || len(r.rest) > 0 || len(r.list) < n {
		t.Fatalf("%+v; %d runs were made under the caller's lock", e, len(r.rest))
	}
	fed := make(chan error, 1)
	go func() {
		var errs error
		for id := uint64(1); id <= n; id++ { // places are used again
			errs = errors.Join(errs, c.Apply(stored(n+id-1, n+id)), c.Apply(removed(id)))
		}
		fed <- errs
	}()
	r.Prepare()
	if err := <-fed; err != nil {
		t.Fatal(err)
	}
	if len(c.order) > 2*n+spare+1 {
		t.Errorf("%d places of %d blocks", len(c.order), c.Len())
	}
	got := view{}
	for e, ok := c.Read(&r); ok; e, ok = c.Read(&r) {
		got.hear(t, e)
	}
	for id := uint64(n + 1); id <= 2*n; id++ {
		want[id] = id - 1
	}
	if !maps.Equal(got, want) {
		t.Errorf("%d blocks, want %d", len(got), len(want))
	}
}

// TestLongRuns are cut, and a reader that is too far behind hears how far.
func TestLongRuns(t *testing.T) {
	const n = 12_000
	ids := make([]uint64, n)
	for i := range ids {
		ids[i] = uint64(i) + 1
	}
	c, live := New(n), Reader{}
	if got := all(c, &live); len(got) != 1 {
		t.Fatalf("%+v", got)
	}
	if err := c.Apply(stored(0, ids...)); err != nil {
		t.Fatal(err)
	}
	const rounds, runs = 30, (n + handoff.MaxEventBlocks - 1) / handoff.MaxEventBlocks
	if got, again := len(all(c, &live)), len(all(c, &Reader{})); got != runs || again != runs+1 {
		t.Errorf("%d events, and %d in a snapshot, want %d", got, again, runs)
	}
	if err := c.Apply(stored(n, n+1)); err != nil || c.Ignored() != 1 || c.Len() != n || len(all(c, &live)) != 0 {
		t.Errorf("%v, ignored %d", err, c.Ignored())
	}
	if err := c.Apply(removed(ids...)); err != nil || len(all(c, &live)) != runs {
		t.Errorf("%v", err)
	}
	for range rounds { // more than is kept
		if err := errors.Join(c.Apply(stored(0, ids...)), c.Apply(cleared)); err != nil {
			t.Fatal(err)
		}
	}
	if got := all(c, &live); len(got) != 1 || got[0].Lost != rounds*(runs+1) || live.Gaps() != 1 || c.weight > maxKept || len(c.changes) > maxKept/8 {
		t.Errorf("%+v, %d gaps, keeps %d in %d", got, live.Gaps(), c.weight, len(c.changes))
	}
}

// TestLargeBlocks: a run is cut before it is too large for a message.
func TestLargeBlocks(t *testing.T) {
	e := handoff.BlockEvent{Kind: handoff.BlocksStored, BlockTokens: maxBlock}
	for id := range uint64(9) {
		e.Blocks = append(e.Blocks, handoff.StoredBlock{ID: id + 1, Tokens: make([]int32, maxBlock)})
	}
	c, live := New(9), Reader{}
	all(c, &live)
	if err := c.Apply(e); err != nil {
		t.Fatal(err)
	}
	for _, got := range [][]handoff.BlockEvent{all(c, &live), all(c, &Reader{})[1:]} {
		if len(got) != 3 || len(got[0].Blocks) != 4 || got[2].Parent != 8 {
			t.Errorf("%d events", len(got))
		}
	}
}

func TestBadEvents(t *testing.T) {
	short := stored(0, 1)
	short.Blocks[0].Tokens = nil
	salted := stored(0, 1)
	salted.Salt.Namespace = strings.Repeat("n", 257)
	for want, e := range map[string]handoff.BlockEvent{
		"257 bytes":  salted,
		"kind 0":     {},
		"0 tokens":   {Kind: handoff.BlocksStored},
		"an id":      stored(0, 0),
		"2 tokens":   short,
		"1 that are": {Kind: handoff.BlocksCleared, Removed: []uint64{1}},
		"removed, ":  {Kind: handoff.BlocksRemoved, Blocks: stored(0, 1).Blocks},
	} {
		c := New(5)
		if err := c.Apply(e); !errors.Is(err, handoff.ErrBound) || !strings.Contains(err.Error(), want) || c.Len()+len(c.changes) > 0 {
			t.Errorf("%+v: %v, want %s", e, err, want)
		}
	}
	lost := cleared
	lost.Lost = 4
	c, r := New(5), Reader{}
	all(c, &r)
	if err := errors.Join(c.Apply(cleared), c.Apply(lost)); err != nil {
		t.Fatal(err)
	}
	if got := all(c, &r); len(got) != 1 || got[0].Lost != 4 {
		t.Errorf("of an empty cache: %+v", got)
	}
}
