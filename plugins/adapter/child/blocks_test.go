package child

import (
	"context"
	"errors"
	"iter"
	"reflect"
	"testing"

	"github.com/batonkv/baton/plugins/adapter"
	"github.com/batonkv/baton/sidecar/handoff"
)

// reading reads blocks as well.
type reading struct {
	*told
	feeds chan adapter.BlockFeed
}

func (a reading) ReadBlocks(f adapter.BlockFeed) { a.feeds <- f }

// cache is a feed: each read gets what it is given, and tells when it has ended.
type cache struct {
	events []adapter.BlockEvent
	err    error // after them; nil: it waits
	ended  chan error
}

func (c cache) Blocks(ctx context.Context) iter.Seq2[adapter.BlockEvent, error] {
	return func(yield func(adapter.BlockEvent, error) bool) {
		for _, e := range c.events {
			if !yield(e, nil) {
				c.ended <- errors.New("ended by its reader")
				return
			}
		}
		if c.err == nil {
			<-ctx.Done()
		}
		yield(adapter.BlockEvent{}, errors.Join(c.err, ctx.Err()))
		c.ended <- ctx.Err()
	}
}

// read opens the feed of an adapter whose sidecar has c.
func read(t *testing.T, c cache) (adapter.BlockFeed, func()) {
	a := reading{&told{info: info}, make(chan adapter.BlockFeed, 1)}
	cl, end := connectedUntil(t, a)
	if _, err := cl.Register(t.Context()); err != nil || !cl.reads {
		t.Fatalf("reads %v, %v", cl.reads, err)
	}
	if err := cl.Configure(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	cl.ReadBlocks(c)
	return <-a.feeds, end
}

var blocks = []adapter.BlockEvent{{Kind: handoff.BlocksCleared, Lost: 3},
	{Kind: handoff.BlocksStored, Parent: 1 << 63, Blocks: []adapter.StoredBlock{{ID: 7, Tokens: []int32{1, -2}}, {ID: 8, Tokens: []int32{3, 4}}},
		BlockTokens: 2, Salt: handoff.Salt{LoRA: "a", Namespace: "n", Media: [32]byte{5}}},
	{Kind: handoff.BlocksRemoved, Removed: []uint64{7, 1<<64 - 1}}}

func TestBlocksCrossTheWire(t *testing.T) {
	c := cache{events: blocks, ended: make(chan error, 1)}
	f, _ := read(t, c)
	for range 2 { // a reader may begin again
		var got []adapter.BlockEvent
		for e, err := range f.Blocks(t.Context()) {
			if err != nil {
				t.Fatal(err)
			}
			if got = append(got, e); len(got) == len(blocks) {
				for _, err := range f.Blocks(t.Context()) {
					if !errors.Is(err, handoff.ErrOrder) {
						t.Errorf("beside another read: %v", err)
					}
				}
				break
			}
		}
		if !reflect.DeepEqual(got, blocks) {
			t.Errorf("%+v\nwant %+v", got, blocks)
		}
		if err := <-c.ended; err == nil {
			t.Error("the sidecar's read goes on")
		}
	}
}

// TestReadsEnd ends a read by its ctx, by its life, and by the sidecar.
func TestReadsEnd(t *testing.T) {
	for name, c := range map[string]struct {
		feed error
		end  func(cancel, life func())
		want error
	}{
		"ctx":     {nil, func(cancel, _ func()) { cancel() }, context.Canceled},
		"life":    {nil, func(_, life func()) { life() }, handoff.ErrHost},
		"sidecar": {errors.New("stops"), func(func(), func()) {}, handoff.ErrHost},
	} {
		t.Run(name, func(t *testing.T) {
			f, life := read(t, cache{events: blocks[:1], err: c.feed, ended: make(chan error, 4)})
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			var last error
			for _, err := range f.Blocks(ctx) {
				if last = err; err == nil {
					c.end(cancel, life)
				}
			}
			if !errors.Is(last, c.want) {
				t.Errorf("%v, want %v", last, c.want)
			}
		})
	}
}

// TestNobodyReads opens nothing for adapters that read no blocks, and a read that no sidecar
// serves ends with its ctx.
func TestNobodyReads(t *testing.T) {
	cl := connected(t, &told{info: info})
	if _, err := cl.Register(t.Context()); err != nil || cl.reads {
		t.Fatalf("reads %v, %v", cl.reads, err)
	}
	cl.ReadBlocks(cache{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, err := range newFeed().Blocks(ctx) {
		if !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}
}
