package joint

import (
	"fmt"
	"reflect"
	"time"

	"github.com/batonkv/baton/discovery"
	"github.com/batonkv/baton/internal/deep"
	"github.com/batonkv/baton/sidecar/handoff"
	"github.com/batonkv/baton/sidecar/machine"
	"github.com/batonkv/baton/transfer/layout"
	"github.com/batonkv/baton/transfer/lower"
	"github.com/batonkv/baton/transfer/reshard"
	"github.com/batonkv/baton/transfer/staged"
)

// setup is what one walk is about: how many of what, and which faults.
type setup struct {
	src    int32   // ranks of group p, which exports
	dst    []int32 // ranks of each group that imports: d, e, ...
	copies int32
	labels int           // hand-offs
	tokens int32         // of each, in blocks of 16
	blocks int           // of each engine
	room   int           // of each importing engine, when it is less; requests that it admits come to their ends
	calls  [][]int       // by importing group: the hand-offs that it is asked to import, in order
	retry  int           // further calls of a group after one that failed
	hold   time.Duration // asked at export; 0: one lease
	gives  bool          // p's engine gives up the last hand-off
	unlike bool          // each rank of p exports the hand-off of its own number alone
	early  bool          // p announces, and an import may come before the export
	cold   bool          // the groups have not met: no session, no geometry, no link
	apart  bool          // prompts differ: no import waits for the blocks of another
	staged bool          // pulls go through chunks and wire movers
	owned  bool          // and the wire movers pack, not the local one
	hangs  bool          // packs end with their mover alone
	parts  []int32       // tokens that each ExportPart reaches: hand-off 0 leaves while it is computed
	twins  bool          // a rank's next process starts beside it, not after it
	frozen bool          // a host that hangs does nothing until its group stands anew

	faults faultKind // that may happen
	budget int8      // how many

	lease, margin, maxHold, deadline, patience time.Duration
}

// model is a setup as a walk's model. It belongs to one walk.
type model struct {
	set     setup
	codec   *deep.Codec
	members []handoff.Member // as they were launched, by index of node
	group   []int            // by node
	first   []int            // by group: its rank 0's node
	size    []int32          // by group
	base    int              // nodes without the second ones
	minting *node            // is stepped: its counter is what Mint says
	table   *table
	start   string
	read    *world // unpacked
	next    *world // changed
	buf     []byte

	admitted int // ranks that had admitted an import, at all ends
}

const (
	blockTokens = 16
	units       = 6 // heads: cut by 1, 2 and 3 ranks
	poolBytes   = 1 << 16
)

// shared are things that never change once made: a pointer to them is as good as a copy.
var shared = []reflect.Type{
	reflect.TypeFor[reshard.Plan](), reflect.TypeFor[lower.Template](), // pure functions of two geometries
	reflect.TypeFor[layout.Model](), reflect.TypeFor[[]layout.Shard](), // one for each group in a walk
	reflect.TypeFor[handoff.Resume](), reflect.TypeFor[[]handoff.BufferDecl](),
	reflect.TypeFor[discovery.Record](), reflect.TypeFor[staged.Config](),
}

// omitted are fields that decide nothing, or that others decide.
var omitted = []string{
	"machine.Machine.cfg",     // one for each node
	"machine.Machine.now",     // every step brings it
	"machine.Machine.out",     // of the last step, carried out
	"machine.Machine.records", // node.view says which
	"machine.leader.done",     // Get alone shows it
	"machine.leader.dues",     // of the sources
	"machine.Machine.pinEnds", // of the pins
	"machine.Machine.lent",    // Grants alone shows it
	"handoff.Bounds.seen",     // nothing between two calls

	"machine.sourceGroup.plan", "machine.sourceGroup.own", "machine.sourceGroup.templates", // made when missing, of
	"machine.sourceGroup.into", "machine.sourceGroup.intoOwn", // the two geometries

	"machine.importing.hashes",                                                           // of the tokens, which a label has one of
	"handoff.Leader.Err", "handoff.Dest.why", "handoff.Landed.Why", "handoff.Opened.Why", // said to people
	"handoff.Leader.Phases", "handoff.Dest.started", "handoff.Dest.quietSince", "handoff.Landed.Elapsed", // measured
	"handoff.Leader.Bytes", "handoff.Dest.Bytes", "handoff.Landed.Bytes",
	"handoff.Import.Tokens", "handoff.Decision.Hashes",
	"staged.Source.out", "staged.Dest.out", // of the last step, carried out

	"handoff.Manifest.Model", "handoff.Manifest.Geometry", // one for each group
}

func newModel(s setup) *model {
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	def(&s.lease, 20*time.Second)
	def(&s.margin, 1) // the worst that clocks within the margin may do to each other
	def(&s.maxHold, 60*time.Second)
	def(&s.deadline, 30*time.Second)
	def(&s.patience, 5*time.Second)
	m := &model{set: s, codec: deep.New(shared, omitted...), table: newTable(), read: &world{}, next: &world{}}
	for g, n := range append([]int32{s.src}, s.dst...) {
		m.first, m.size = append(m.first, len(m.members)), append(m.size, n)
		for r := range n {
			m.members = append(m.members, handoff.Member{Group: string("pdefg"[g]), Rank: layout.Rank(r), Incarnation: handoff.Incarnation(len(m.members) + 1)})
			m.group = append(m.group, g)
		}
	}
	if m.base = len(m.members); s.twins {
		for i, p := range m.members {
			p.Incarnation += handoff.Incarnation(m.base)
			m.members, m.group = append(m.members, p), append(m.group, m.group[i])
		}
	}
	m.start = m.prelude()
	return m
}

func (m *model) config(self handoff.Member) machine.Config {
	s := &m.set
	return machine.Config{Self: self, // KillAfter is longer than any walk: copies end at any time
		KillAfter: time.Hour, Mint: m.mint, Lease: s.lease, Margin: s.margin, MaxHold: s.maxHold, Deadline: s.deadline,
		Patience: s.patience, KeepSources: 10 * time.Minute,
		Redial: -1} // at once: a dial takes as long as it likes, which is the same and saves instants
}

// mint is each sidecar's own sequence of numbers that no other has.
func (m *model) mint() uint64 {
	m.minting.minted++
	return uint64(m.minting.i+1)<<32 | uint64(m.minting.self.Incarnation)<<16 | m.minting.minted
}

// lifeSpan is between the incarnations of two processes of one node.
const lifeSpan = 50

// index finds the node of a member, of whatever life; -1 is the stranger.
func (m *model) index(p handoff.Member) int {
	for i, o := range m.members {
		if o.Group == p.Group && o.Rank == p.Rank && (p.Incarnation-o.Incarnation)%lifeSpan == 0 {
			return i
		}
	}
	return -1
}

var tensors = layout.Model{States: []layout.State{{Name: "attn.k", Paging: layout.PerBlock, Layers: 1, Units: units, Elems: 1}}}

func cut(rank, tp int32) layout.Span {
	n := int32(units) / tp
	return layout.Span{Lo: rank * n, Hi: (rank + 1) * n}
}

func instance(g int, launch uint64) handoff.Instance {
	return handoff.Instance(100 + g + 50*int(launch))
}

func (m *model) attach(i int, launch uint64) handoff.Attach {
	self, tp := m.members[i], m.size[m.group[i]]
	u := cut(int32(self.Rank), tp)
	row := int64(u.Hi-u.Lo) * 2
	return handoff.Attach{Group: self.Group, Instance: instance(m.group[i], launch), Rank: self.Rank, Ranks: tp,
		Model: handoff.ModelIdentity{Name: "test", Layout: tensors},
		Shards: []layout.Shard{{State: 0, Rank: self.Rank, Box: layout.Box{Layers: layout.Span{Lo: 0, Hi: 1}, Units: u}, Rows: blockTokens,
			Items: int32(m.set.blocks), DType: layout.BF16, View: layout.View{Layer: 1 << 12, Item: blockTokens * row, Row: row, Unit: 2, Elem: 2}}},
		Buffers:  []handoff.BufferDecl{{ID: 0, Len: poolBytes}},
		Capacity: handoff.Capacity{Blocks: int32(m.set.blocks), BlockTokens: blockTokens}, Scheduler: handoff.SchedulerRank, Parts: true}
}

// reads are the ranks of p that node i, of an importing group, must read.
func (m *model) reads(i int) (out []int) {
	own := cut(int32(m.members[i].Rank), m.size[m.group[i]])
	for r := range m.set.src {
		if u := cut(r, m.set.src); u.Lo < own.Hi && own.Lo < u.Hi {
			out = append(out, int(r))
		}
	}
	return out
}

// blocks are of each engine of a group.
func (m *model) blocks(g int) int {
	if m.set.room > 0 && g > 0 {
		return m.set.room
	}
	return m.set.blocks
}

func labelOf(h int) string { return "h" + string(rune('0'+h)) }

func handOf(label string) int {
	var h int
	fmt.Sscanf(label, "h%d", &h)
	return h
}
