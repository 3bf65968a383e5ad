package handoff

import (
	"errors"
	"slices"
	"testing"

	"github.com/batonkv/baton/transfer/layout"
	"pgregory.net/rapid"
)

// bounded attaches two paged states, of 70 and 66 blocks, and one of 4 slots.
func bounded() Attach {
	return Attach{Capacity: Capacity{Blocks: 66, Slots: 4, BlockTokens: 16},
		Model:  ModelIdentity{Layout: layout.Model{States: []layout.State{{Name: "k", Paging: layout.PerBlock}, {Name: "ssm", Paging: layout.PerRequest}, {Name: "v", Paging: layout.PerBlock}}}},
		Shards: []layout.Shard{{State: 0, Rows: 16, Items: 70}, {State: 1, Rows: 1, Items: 4}, {State: 2, Rows: 16, Items: 66}}}
}

func TestBounds(t *testing.T) {
	all, paged, slotted, none := bounded(), bounded(), bounded(), bounded()
	paged.Shards, slotted.Shards, none.Shards = all.Shards[:1], all.Shards[1:2], nil
	for name, c := range map[string]struct {
		of             Attach
		before, blocks []int32
		slot           int32
		bad            bool
	}{
		"good":                         {all, nil, []int32{65, 0, 64, 1}, 3, false},
		"nothing":                      {all, nil, nil, -1, false},
		"beyond the smallest":          {all, nil, []int32{0, 66}, 3, true},
		"less than none":               {all, nil, []int32{0, -1}, 3, true},
		"twice":                        {all, nil, []int32{5, 6, 5}, 3, true},
		"at once again":                {all, nil, []int32{0, 0}, 3, true},
		"what an earlier part has":     {all, []int32{5, 6}, []int32{7, 6}, -1, true},
		"goes on":                      {all, []int32{5, 6}, []int32{7, 8}, -1, false},
		"a slot beyond":                {all, nil, []int32{0}, 4, true},
		"the only state":               {paged, nil, []int32{69}, 4, false},
		"beyond the only state":        {paged, nil, []int32{70}, 4, true},
		"nothing lies in blocks":       {slotted, nil, []int32{900, 900, -5}, 3, false},
		"nothing in blocks, no slot":   {slotted, nil, []int32{900}, 4, true},
		"a rank that holds no state":   {none, nil, []int32{900, 900}, 99, false},
		"a table of the highest words": {all, []int32{63}, []int32{64, 65}, 0, false},
	} {
		b := NewBounds(c.of)
		for range 2 { // no call leaves anything for the next
			if err := b.Check(c.before, c.blocks, c.slot); c.bad != errors.Is(err, ErrEngine) || !c.bad && err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}

func TestBoundsOfAReservation(t *testing.T) {
	all, slotted, slotless := bounded(), bounded(), bounded()
	slotted.Shards = all.Shards[1:2]
	slotless.Model.Layout.States, slotless.Shards = all.Model.Layout.States[:1], all.Shards[:1]
	for name, c := range map[string]struct {
		of  Attach
		r   Reserved
		bad bool
	}{
		"nothing cached":            {all, Reserved{Blocks: []int32{1}, Slot: 0}, false},
		"all cached":                {all, Reserved{Blocks: []int32{1, 2}, Slot: 0, Cached: 32}, false},
		"beyond the last block":     {all, Reserved{Blocks: []int32{1, 2}, Slot: 0, Cached: 48}, true},
		"an end within a block":     {all, Reserved{Blocks: []int32{1, 2}, Slot: 0, Cached: 5}, true},
		"less than nothing":         {all, Reserved{Blocks: []int32{1, 2}, Slot: 0, Cached: -16}, true},
		"a block twice":             {all, Reserved{Blocks: []int32{1, 1}, Slot: 0}, true},
		"nothing lies in blocks":    {slotted, Reserved{Slot: 0, Cached: 32}, false},
		"no slot of no state":       {slotless, Reserved{Blocks: []int32{1}, Slot: -1}, false},
		"a slot of no state at all": {slotless, Reserved{Blocks: []int32{1}, Slot: 1}, true},
	} {
		b := NewBounds(c.of)
		if err := b.Reserved(c.r); c.bad != errors.Is(err, ErrEngine) || !c.bad && err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestBoundsProperty holds Check against what sorting says, over many calls of one Bounds.
func TestBoundsProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := bounded()
		a.Shards[0].Items = rapid.Int32Range(1, 130).Draw(t, "items")
		n := min(a.Shards[0].Items, a.Shards[2].Items)
		b := NewBounds(a)
		for range 3 {
			table := rapid.SliceOfN(rapid.Int32Range(-1, n), 0, 12).Draw(t, "table")
			if rapid.Bool().Draw(t, "apart") {
				table = rapid.SliceOfDistinct(rapid.Int32Range(0, n-1), rapid.ID).Draw(t, "distinct")
			}
			split := rapid.IntRange(0, len(table)).Draw(t, "split")
			sorted := slices.Sorted(slices.Values(table))
			good := len(table) == 0 || sorted[0] >= 0 && sorted[len(sorted)-1] < n && len(slices.Compact(sorted)) == len(table)
			err := b.Check(nil, table[:split], -1)
			if err == nil {
				err = b.Check(table[:split], table[split:], -1)
			}
			if good != (err == nil) {
				t.Fatalf("%v of %d: %v", table, n, err)
			}
		}
	})
}

func TestBoundsAllocateOnce(t *testing.T) {
	a := bounded()
	a.Shards = a.Shards[:1]
	a.Shards[0].Items = 12000
	b := NewBounds(a)
	table := make([]int32, 12000)
	for i := range table {
		table[i] = int32((i * 7001) % 12000)
	}
	check := func() {
		if err := b.Check(nil, table, -1); err != nil {
			t.Fatal(err)
		}
	}
	check()
	if n := testing.AllocsPerRun(10, check); n != 0 {
		t.Errorf("%v allocations a call", n)
	}
}

// BenchmarkBounds is what a table of scattered blocks costs.
func BenchmarkBounds(b *testing.B) {
	for _, n := range []int32{512, 12000} {
		a := bounded()
		a.Shards = a.Shards[:1]
		a.Shards[0].Items = 12000
		of, table := NewBounds(a), make([]int32, n)
		for i := range table {
			table[i] = int32((i * 7001) % 12000)
		}
		b.Run("", func(b *testing.B) {
			for b.Loop() {
				if err := of.Check(nil, table, -1); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func TestCapacity(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Attach)
		bad    bool
	}{
		"good":                     {func(*Attach) {}, false},
		"some left out":            {func(a *Attach) { a.Capacity.Blocks, a.Capacity.Slots = 60, 3 }, false},
		"more blocks than a shard": {func(a *Attach) { a.Capacity.Blocks = 67 }, true},
		"more slots than a shard":  {func(a *Attach) { a.Capacity.Slots = 5 }, true},
		"no blocks":                {func(a *Attach) { a.Capacity.Blocks = 0 }, true},
		"no slots":                 {func(a *Attach) { a.Capacity.Slots = 0 }, true},
		"other blocks":             {func(a *Attach) { a.Shards[2].Rows = 32 }, true},
		"slots of nothing": {func(a *Attach) {
			a.Model.Layout.States, a.Shards = a.Model.Layout.States[:1], a.Shards[:1]
		}, true},
		"a stage that holds no ssm": {func(a *Attach) { a.Capacity.Slots, a.Shards = 9, a.Shards[:1] }, false},
	} {
		a := bounded()
		a.Shards = slices.Clone(a.Shards)
		c.change(&a)
		if err := CheckCapacity(a); c.bad != errors.Is(err, ErrAttach) || !c.bad && err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
