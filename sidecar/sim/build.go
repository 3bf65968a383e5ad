package sim

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/batonkv/baton/discovery"
	"github.com/batonkv/baton/sidecar/handoff"
	"github.com/batonkv/baton/sidecar/machine"
	"github.com/batonkv/baton/transfer/layout"
	"github.com/batonkv/baton/transfer/staged"
)

// hybrid is what most groups run: a paged state and one per request. attention has none of
// the latter, and no slots.
var (
	hybrid = layout.Model{States: []layout.State{
		{Name: "attn.k", Paging: layout.PerBlock, Layers: 1, Units: units, Elems: 8},
		{Name: "ssm", Paging: layout.PerRequest, Layers: 1, Units: units, Elems: 16},
	}}
	attention = layout.Model{States: hybrid.States[:1]}
)

func (w *world) model() layout.Model {
	if w.temper.plain {
		return attention
	}
	return hybrid
}

// shardsOf is a rank's share of hybrid among tp ranks.
func shardsOf(rank, tp int) []layout.Shard {
	n := int32(units / tp)
	box := layout.Box{Layers: layout.Span{Lo: 0, Hi: 1}, Units: layout.Span{Lo: int32(rank) * n, Hi: int32(rank+1) * n}}
	row, state := int64(n)*16, int64(n)*64
	return []layout.Shard{
		{State: 0, Rank: layout.Rank(rank), Box: box, Rows: blockTokens, Items: 64, DType: layout.BF16,
			View: layout.View{Layer: 64 * blockTokens * row, Item: blockTokens * row, Row: row, Unit: 16, Elem: 2}},
		{State: 1, Rank: layout.Rank(rank), Box: box, Rows: 1, Items: 8, DType: layout.F32,
			View: layout.View{Buffer: 1, Layer: 8 * state, Item: state, Row: state, Unit: 64, Elem: 4}},
	}
}

// newWorld makes the world of a seed: its groups, its temper, who asks for what, and
// when what goes wrong.
func newWorld(seed uint64, count *Coverage) *world {
	w := &world{seed: seed, r: rand.New(rand.NewPCG(seed, 0x5eed)), count: count, engines: map[machine.Session]*engine{},
		calls: map[machine.Call]*call{}, prompts: make([]prompt, 1), book: newBook(), loads: map[staged.Job]*load{}}
	w.temper = w.mood()
	both := w.r.IntN(4) == 0 || w.temper.pinches() && w.r.IntN(2) == 0
	for i, tps := range w.sides() {
		for j, tp := range tps {
			g := &group{w: w, name: fmt.Sprintf("%c%d", "pd"[i], j+1), role: [2]discovery.Role{discovery.Prefill, discovery.Decode}[i],
				epoch: 1, blocks: 5 + w.r.IntN(6), slots: 2 + w.r.IntN(2), old: w.r.IntN(8) == 0}
			if both && w.r.IntN(2) == 0 {
				g.role = discovery.Both
			}
			if w.temper.plain {
				g.slots = 0
			}
			for r := range tp {
				s := &seat{w: w, g: g, i: len(w.seats), rank: r}
				w.seats, g.seats = append(w.seats, s), append(g.seats, s)
			}
			w.groups = append(w.groups, g)
			if g.role != discovery.Decode {
				w.sources = append(w.sources, g)
			}
		}
	}
	return w
}

// mood is how rough a world is. Most are mildly so in every way, some very much so in one.
func (w *world) mood() temper {
	t := temper{slow: w.r.IntN(6), long: w.between(30*time.Millisecond, 6*time.Second), dup: w.r.IntN(5), replay: w.r.IntN(8),
		lease: 12 * time.Second, hold: 24 * time.Second, margin: 3 * time.Second, keep: 40 * time.Second,
		failing: w.r.IntN(8), links: w.r.IntN(8), hang: w.r.IntN(10), fenced: w.r.IntN(20), rivals: 1, early: 30, policy: handoff.WeightsRefuse,
		step: w.between(time.Millisecond, 20*time.Millisecond), stale: w.r.IntN(4), plain: w.r.IntN(5) == 0, staged: w.r.IntN(4) == 0,
		parts: 30, copies: 15, packs: 8, pack: 6 * time.Second, pinch: 3}
	if w.r.IntN(10) == 0 {
		t.step = w.between(20*time.Millisecond, 2*time.Second)
	}
	if w.r.IntN(3) == 0 {
		t.lease, t.hold, t.margin, t.keep = 2*time.Second, 5*time.Second, time.Second, 3*time.Second
	}
	if w.r.IntN(4) == 0 {
		t.replay, t.keep, t.early = 50, 400*time.Millisecond, 70
	}
	if w.r.IntN(6) == 0 {
		t.dup, t.slow = 25, 15
	}
	if w.r.IntN(8) == 0 {
		t.stale, t.rivals = 50, 3
	}
	if w.r.IntN(8) == 0 {
		t.bereaved = 30
	}
	if w.r.IntN(4) == 0 {
		t.strike, t.rivals = w.r.IntN(25), 4
	}
	if w.r.IntN(5) == 0 {
		t.links, t.burst, t.slow, t.pinch, t.copies = 60, 4, 15, 20, 30
		for range 4 {
			s := w.r.IntN(1 << 16)
			w.after(w.between(50*time.Millisecond, 2*time.Second), nil, func() {
				if n := w.seats[s%len(w.seats)].side; n != nil && !w.calm {
					w.hit(MoverDies)
					n.restartMover()
				}
			})
		}
	}
	if w.r.IntN(4) == 0 {
		t.parts = 90
	}
	if w.r.IntN(8) == 0 {
		t.policy = handoff.WeightsAllow
	}
	if w.r.IntN(12) == 0 {
		t.failing, t.slow, t.pinch = 30, 15, 15
	}
	if w.r.IntN(6) == 0 {
		t.staged, t.packs, t.pack, t.pinch = true, 40, 10*time.Second, 30
		if w.r.IntN(3) == 0 {
			t.packs = 8 // more imports land
		}
		t.lease, t.hold, t.margin, t.keep = 2*time.Second, 5*time.Second, time.Second, 3*time.Second
	}
	t.verify, t.corrupt = w.verifies()
	return t
}

// sides are how many ranks each group of both sides has. In some worlds a rank that does not
// lead reads from two.
func (w *world) sides() [2][]int {
	if w.r.IntN(100) < 6 {
		return [2][]int{{4, 1}, {2, 1}}
	}
	return [2][]int{w.side(), w.side()}
}

// side is how many ranks each group of one side has: 2 to 8 in all, mostly few.
func (w *world) side() []int {
	switch k := w.r.IntN(100); {
	case w.temper.pinches() && k < 20:
		return []int{4, 1}
	case k < 40:
		return []int{1, 1}
	case k < 60:
		return []int{2, 1}
	case k < 80:
		return []int{1, 2}
	case k < 92:
		return []int{2, 2}
	case k < 96:
		return []int{4, 1}
	case k < 98:
		return []int{2, 4}
	}
	return []int{4, 4}
}

// schedule plays one seed.
func (w *world) schedule() {
	for _, s := range w.seats {
		s.start()
	}
	for _, g := range w.groups {
		g.launch()
	}
	w.run(40*time.Millisecond, maxMoments)
	w.launched = true
	span := w.between(500*time.Millisecond, 12*time.Second)
	for range 3 + w.r.IntN(4) + w.temper.burst {
		g := w.source()
		at := w.between(0, 100*time.Millisecond)
		if w.r.IntN(3) == 0 {
			at = w.between(0, span)
		}
		w.after(at, nil, func() { w.request(g) })
	}
	for range w.r.IntN(7) {
		at := w.between(0, 100*time.Millisecond)
		if w.r.IntN(2) == 0 {
			at = w.between(0, span)
		}
		w.after(at, nil, w.fault)
	}
	w.steers(span)
	w.run(w.now+span, maxMoments)
	w.finish()
}

// maxMoments is more than any schedule needs that comes to rest.
const maxMoments = 30000

// finish stops the faults, lets time run on until nothing is under way, and looks at
// what is left. Then a last hand-off must get through.
func (w *world) finish() {
	w.calm = true
	w.tell("faults STOP")
	for _, s := range w.seats {
		if n := s.side; n != nil {
			w.after(0, n, func() { // also waits for the end of a pause
				if n.misled {
					n.look()
				}
			})
			if n.stage != nil {
				n.stage.resume()
			}
			for _, t := range n.tickets {
				if t.hung {
					t.hung = false
					n.move(t)
				}
			}
		}
	}
	w.run(w.now+time.Hour, maxMoments)
	if w.bad != "" {
		return
	}
	w.checkRest()
	w.levelWeights()
	for _, ss := range w.net { // what carries nothing yet does so in the end
		w.when(max(ss.last[0], ss.last[1]), nil, func() {})
	}
	w.run(w.now+time.Hour, maxMoments)
	was := w.ok
	w.temper.rivals = 0
	w.temper.step = min(w.temper.step, 20*time.Millisecond) // a slow engine may miss a short lease
	tag := len(w.prompts)
	src := w.source()
	w.request(src)
	w.run(w.now+time.Hour, maxMoments)
	if w.bad == "" && (w.ok == was || !w.prompts[tag].shown) {
		w.fail("a last hand-off of group %s does not get through", src.name)
	}
}
