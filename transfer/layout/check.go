package layout

import (
	"cmp"
	"fmt"
	"math/bits"
	"slices"
)

// Limits of a geometry. They bound what a peer's or an engine's statement can
// make this process allocate or loop over.
const (
	MaxStates   = 4096
	MaxShards   = 1 << 20
	MaxName     = 128     // bytes of a state's name
	MaxLayers   = 1 << 16 // layers of a state
	MaxUnits    = 1 << 24 // units of a state
	MaxElems    = 1 << 28 // elements of a unit in one row
	MaxRows     = 1 << 20 // rows of an item
	MaxBuffers  = 1 << 16 // buffers of one rank
	MaxRank     = 1 << 20 // ranks of one group
	maxExtent   = 1 << 60 // bytes from the start of a buffer
	maxOverlaps = 1 << 22 // steps that proving shards apart may take
)

// ErrOverlap reports boxes of one rank that hold a cell twice. It is an ErrGeometry.
var ErrOverlap = fmt.Errorf("%w: overlapping boxes", ErrGeometry)

// ErrMemory reports a shard that leaves its buffer or shares bytes with another
// shard of its rank. It is an ErrGeometry.
var ErrMemory = fmt.Errorf("%w: memory", ErrGeometry)

// ShardError names the shard that a refusal is about. Err is ErrGeometry or one
// of the sentinels that wrap it.
type ShardError struct {
	State string // name, or its index when the model lacks it
	Rank  Rank
	Box   Box
	Why   string
	Err   error
}

func (e *ShardError) Error() string {
	return fmt.Sprintf("%v: state %s, rank %d, %v: %s", e.Err, e.State, e.Rank, e.Box, e.Why)
}

func (e *ShardError) Unwrap() error { return e.Err }

func (m Model) refuse(s Shard, err error, why string, args ...any) error {
	name := fmt.Sprintf("#%d", s.State)
	if s.State >= 0 && int(s.State) < len(m.States) {
		name = m.States[s.State].Name
	}
	return &ShardError{name, s.Rank, s.Box, fmt.Sprintf(why, args...), err}
}

// Check reports the first thing that is wrong with m or with shards as parts of
// it: a box outside its state, a size or stride that cannot be, bytes that one
// shard's view names twice, boxes of one rank that share a cell. Buffers are
// looked at by CheckMemory.
func (m Model) Check(shards []Shard) error {
	if err := m.checkStates(); err != nil {
		return err
	}
	if len(shards) > MaxShards {
		return fmt.Errorf("%w: %d shards: at most %d", ErrGeometry, len(shards), MaxShards)
	}
	for i := range shards {
		if err := m.checkShard(&shards[i]); err != nil {
			return err
		}
	}
	return m.checkBoxes(shards)
}

func (m Model) checkStates() error {
	if len(m.States) == 0 || len(m.States) > MaxStates {
		return fmt.Errorf("%w: %d states: a model has 1 to %d", ErrGeometry, len(m.States), MaxStates)
	}
	names := make(map[string]struct{}, len(m.States))
	for i, s := range m.States {
		var why string
		switch {
		case s.Name == "" || len(s.Name) > MaxName:
			why = fmt.Sprintf("a name has 1 to %d bytes", MaxName)
		case s.Paging != PerBlock && s.Paging != PerRequest:
			why = fmt.Sprintf("paging %d: want per block (1) or per request (2)", s.Paging)
		case s.Layers < 1 || s.Layers > MaxLayers:
			why = fmt.Sprintf("%d layers: want 1 to %d", s.Layers, MaxLayers)
		case s.Units < 1 || s.Units > MaxUnits:
			why = fmt.Sprintf("%d units: want 1 to %d", s.Units, MaxUnits)
		case s.Elems < 1 || s.Elems > MaxElems:
			why = fmt.Sprintf("%d elements a unit: want 1 to %d", s.Elems, MaxElems)
		}
		if _, twice := names[s.Name]; twice {
			why = "its name is used twice"
		}
		if why != "" {
			return fmt.Errorf("%w: state %d %.*q: %s", ErrGeometry, i, MaxName, s.Name, why)
		}
		names[s.Name] = struct{}{}
	}
	return nil
}

func (m Model) checkShard(s *Shard) error {
	if s.State < 0 || int(s.State) >= len(m.States) {
		return m.refuse(*s, ErrGeometry, "the model has %d states", len(m.States))
	}
	st := &m.States[s.State]
	whole := Box{Span{0, st.Layers}, Span{0, st.Units}}
	switch {
	case s.Rank < 0 || s.Rank >= MaxRank:
		return m.refuse(*s, ErrGeometry, "ranks are 0 to %d", MaxRank-1)
	case s.Box.Empty():
		return m.refuse(*s, ErrGeometry, "the box is empty: leave out a state that a rank does not hold")
	case s.Box.Intersect(whole) != s.Box:
		return m.refuse(*s, ErrGeometry, "the state is %v", whole)
	case s.Rows < 1 || s.Rows > MaxRows:
		return m.refuse(*s, ErrGeometry, "%d rows an item: want 1 to %d", s.Rows, MaxRows)
	case s.Items < 1:
		return m.refuse(*s, ErrGeometry, "%d items: want at least one block or slot", s.Items)
	case s.DType.Size() == 0:
		return m.refuse(*s, ErrGeometry, "unknown dtype %v", s.DType)
	case s.View.Buffer >= MaxBuffers:
		return m.refuse(*s, ErrGeometry, "buffer %d: a rank has at most %d", s.View.Buffer, MaxBuffers)
	}
	return m.checkView(s)
}

// checkView proves that no byte is named twice and that no address overflows:
// sorted by stride, each dimension steps over all that lies inside it.
func (m Model) checkView(s *Shard) error {
	var l lattice
	l.of(s, &m.States[s.State])
	if l.off < 0 || l.off > maxExtent {
		return m.refuse(*s, ErrGeometry, "offset %d: want 0 to 2^60", l.off)
	}
	inner := l.run
	for i := l.n - 1; i >= 0; i-- {
		d := l.dims[i]
		if d.stride < inner {
			return m.refuse(*s, ErrGeometry, "stride %d steps into the %d bytes inside it: strides are bytes, each at least what it steps over",
				d.stride, inner)
		}
		hi, lo := bits.Mul64(uint64(d.stride), uint64(d.count-1))
		if hi != 0 || lo > maxExtent || inner+int64(lo) > maxExtent {
			return m.refuse(*s, ErrGeometry, "stride %d times %d leaves 2^60 bytes", d.stride, d.count)
		}
		inner += int64(lo)
	}
	return nil
}

// CompareShards orders shards by rank, state and box. Plans and digests use this
// order, so they do not depend on the order in which shards were stated.
func CompareShards(a, b Shard) int {
	if a.Rank != b.Rank {
		return cmp.Compare(a.Rank, b.Rank)
	}
	if a.State != b.State {
		return cmp.Compare(a.State, b.State)
	}
	return CompareBoxes(a.Box, b.Box)
}

// CompareBoxes orders boxes by first layer, first unit, then their ends.
func CompareBoxes(a, b Box) int {
	switch {
	case a.Layers.Lo != b.Layers.Lo:
		return cmp.Compare(a.Layers.Lo, b.Layers.Lo)
	case a.Units.Lo != b.Units.Lo:
		return cmp.Compare(a.Units.Lo, b.Units.Lo)
	case a.Layers.Hi != b.Layers.Hi:
		return cmp.Compare(a.Layers.Hi, b.Layers.Hi)
	}
	return cmp.Compare(a.Units.Hi, b.Units.Hi)
}

// checkBoxes refuses a rank that holds a cell twice.
func (m Model) checkBoxes(shards []Shard) error {
	if !slices.IsSortedFunc(shards, CompareShards) {
		shards = slices.Clone(shards)
		slices.SortFunc(shards, CompareShards)
	}
	for i := 0; i < len(shards); {
		j := i + 1
		for j < len(shards) && shards[j].Rank == shards[i].Rank && shards[j].State == shards[i].State {
			j++
		}
		if j-i > 1 {
			if a, b, ok := disjoint(shards[i:j]); !ok {
				return m.refuse(*a, ErrOverlap, "%v of the same rank holds some of the same cells", b.Box)
			}
		}
		i = j
	}
	return nil
}

// disjoint sweeps over the layers of shards sorted by box and keeps the open
// boxes sorted by unit: while none overlap, a new box can only hit a neighbour.
func disjoint(shards []Shard) (a, b *Shard, ok bool) {
	closing := make([]*Shard, len(shards)) // by last layer
	for i := range shards {
		closing[i] = &shards[i]
	}
	slices.SortFunc(closing, func(x, y *Shard) int { return cmp.Compare(x.Box.Layers.Hi, y.Box.Layers.Hi) })
	byUnit := func(x *Shard, lo int32) int { return cmp.Compare(x.Box.Units.Lo, lo) }
	var open []*Shard
	for i, next := 0, 0; i < len(shards); i++ {
		s := &shards[i]
		for ; next < len(closing) && closing[next].Box.Layers.Hi <= s.Box.Layers.Lo; next++ {
			k, _ := slices.BinarySearchFunc(open, closing[next].Box.Units.Lo, byUnit)
			open = slices.Delete(open, k, k+1)
		}
		k, same := slices.BinarySearchFunc(open, s.Box.Units.Lo, byUnit)
		if same || k < len(open) && open[k].Box.Units.Lo < s.Box.Units.Hi {
			return s, open[k], false
		}
		if k > 0 && open[k-1].Box.Units.Hi > s.Box.Units.Lo {
			return s, open[k-1], false
		}
		open = slices.Insert(open, k, s)
	}
	return nil, nil, true
}

// Subtract returns b minus o as at most four disjoint boxes, appended to out.
func (b Box) Subtract(out []Box, o Box) []Box {
	x := b.Intersect(o)
	if x.Empty() {
		return append(out, b)
	}
	for _, c := range [...]Box{
		{Span{b.Layers.Lo, x.Layers.Lo}, b.Units},
		{Span{x.Layers.Hi, b.Layers.Hi}, b.Units},
		{x.Layers, Span{b.Units.Lo, x.Units.Lo}},
		{x.Layers, Span{x.Units.Hi, b.Units.Hi}},
	} {
		if !c.Empty() {
			out = append(out, c)
		}
	}
	return out
}

// Uncovered finds cells of the model that none of the shards holds; ok: there are some. The
// shards must have passed Check.
func (m Model) Uncovered(shards []Shard) (state int32, left Box, ok bool) {
	for i, s := range m.States {
		open := []Box{{Span{0, s.Layers}, Span{0, s.Units}}}
		for _, sh := range shards {
			if int(sh.State) != i {
				continue
			}
			var rest []Box
			for _, b := range open {
				rest = b.Subtract(rest, sh.Box)
			}
			open = rest
		}
		if len(open) > 0 {
			return int32(i), open[0], true
		}
	}
	return 0, Box{}, false
}

// Extent is the byte after the last one that s touches in its buffer. The shard
// must have passed Check.
func (m Model) Extent(s Shard) int64 {
	var l lattice
	l.of(&s, &m.States[s.State])
	return l.end()
}
