package sim

import (
	"fmt"
	"slices"
	"time"

	"github.com/batonkv/baton/discovery"
	"github.com/batonkv/baton/sidecar/handoff"
	"github.com/batonkv/baton/sidecar/machine"
)

// prompt is one export: what it is of, and what became of it. Its index is its tag,
// which its memory holds.
type prompt struct {
	g      *group
	label  string
	text   int // prompts of equal text, salt and weights have equal state, as far as both are long
	salt   handoff.Salt
	epoch  uint64 // of the weights that made it
	tokens int32
	copies int32
	hold   time.Duration
	early  bool // announced before it is exported
	shown  bool
	tries  int
}

// manifest is one that users saw.
type manifest struct {
	handoff.Manifest
	tag int
}

// call is a control call that waits for its answer.
type call struct {
	at    *sidecar
	kind  string
	man   manifest
	tries int
}

// text returns the first n tokens of a text.
func text(t int, n int32) []int32 { return texts[t][:n] }

const (
	numTexts  = 6
	maxTokens = 56
)

var texts = func() (out [numTexts][]int32) {
	for t := range out {
		out[t] = make([]int32, maxTokens)
		for i := range out[t] {
			out[t][i] = int32(t)
		}
	}
	return out
}()

// request makes a prompt arrive at a source group.
func (w *world) request(g *group) {
	g.labels++
	p := prompt{g: g, label: fmt.Sprint(g.name, g.labels), text: w.r.IntN(numTexts), tokens: int32(16 + w.r.IntN(maxTokens-16)), copies: 1}
	if w.chance(30) {
		p.copies = 2
	}
	if w.chance(30) {
		p.salt.LoRA = "a"
	}
	if w.chance(20) {
		p.hold = w.between(time.Second, 30*time.Second)
	}
	if old := len(w.prompts) - 1; old > 0 && w.prompts[old].g == g && w.chance(20) {
		o := w.prompts[old] // preempted, or a retry: the same prompt under its own name
		p.label, p.text, p.salt, p.tokens, p.copies = o.label, o.text, o.salt, o.tokens, o.copies
		w.hit(SameLabel)
	}
	tag := len(w.prompts)
	w.prompts = append(w.prompts, p)
	when := w.between(0, 20*time.Millisecond)
	if w.chance(w.temper.early) {
		w.prompts[tag].early = true
		w.announce(g, p.label)
		when = w.between(0, 2*time.Second)
		if w.chance(15) {
			w.hit(NeverExported)
			return
		}
	}
	w.after(when, nil, func() {
		g.wanted = append(g.wanted, tag)
		g.kick()
	})
}

func (w *world) announce(g *group, label string) {
	if e := g.seats[0].eng; e.able() {
		e.conn.say(handoff.Announce{Label: label})
	}
}

// export pins what waits, on every rank, if it fits; in a step, so that allocators stay
// mirrored.
func (g *group) export() {
	w := g.w
	for _, tag := range slices.Clone(g.wanted) {
		p := &w.prompts[tag]
		g.wanted = slices.DeleteFunc(g.wanted, func(o int) bool { return o == tag })
		if g.pinned(tag) || p.tries > 30 {
			continue
		}
		p.tries++
		w.after(w.between(10*time.Millisecond, 400*time.Millisecond), nil, func() {
			if !p.shown && w.prompts[tag].tries > 0 {
				g.wanted = append(g.wanted, tag)
				g.kick()
			}
		})
	}
}

// pinned exports one prompt and says whether it did.
func (g *group) pinned(tag int) bool {
	w, p := g.w, g.w.prompts[tag]
	for _, s := range g.seats {
		if e := s.eng; !e.able() || e.applied != g.seats[0].eng.applied || e.has(p.label) {
			return false
		}
	}
	w.prompts[tag].epoch = g.seats[0].eng.epoch
	inParts := w.chance(w.temper.parts)
	var blocks [][]int32
	var slots []int32
	x := handoff.Export{Label: p.label, Tokens: p.tokens, Position: p.tokens, Copies: p.copies, MaxHold: p.hold,
		WeightsEpoch: g.seats[0].eng.epoch, Salt: p.salt}
	for _, s := range g.seats {
		e := s.eng
		if x.Blocks, x.Slot = e.take(int(p.tokens+blockTokens-1)/blockTokens, exported|uint64(tag), p.label); x.Blocks == nil {
			if s.rank > 0 {
				w.fail("group %s: rank %d has no room where rank 0 has", g.name, s.rank)
			}
			return false
		}
		if inParts {
			blocks, slots = append(blocks, x.Blocks), append(slots, x.Slot)
			continue
		}
		own := func(c *cell) bool { return c.own == exported|uint64(tag) }
		if x.Fence = e.fence(x.Blocks, x.Slot, own, uint32(tag)); x.Fence == 0 {
			e.fill(own, uint32(tag))
		}
		x.Resume = handoff.Resume{}
		if s.rank == 0 {
			x.Resume.Tokens = []int32{int32(tag)}
		}
		e.conn.say(x)
	}
	if inParts {
		g.inParts(tag, x, blocks, slots)
	}
	return true
}

// fill writes a version into memory.
func (e *engine) fill(match func(*cell) bool, holds uint32) {
	for i := range e.cells {
		if c := &e.cells[i]; match(c) {
			for u := range c.holds {
				c.holds[u] = holds
			}
		}
	}
}

// same reports whether a prompt's state is the other's, as far as both are long.
func (w *world) same(a, b prompt) bool {
	return a.text == b.text && a.salt == b.salt && (a.epoch == b.epoch || w.temper.policy == handoff.WeightsAllow)
}

// newWeights changes a group's weights.
func (w *world) newWeights(g *group, epoch uint64) {
	if n := g.seats[0].side; n != nil {
		w.ask(n, &call{at: n, kind: "set weights"}, func(c machine.Call) machine.Event { return machine.SetWeightsEpoch{Call: c, Epoch: epoch} })
	}
}

// levelWeights gives every group the newest weights of any.
func (w *world) levelWeights() {
	newest := uint64(0)
	for _, g := range w.groups {
		newest = max(newest, g.epoch)
	}
	for _, g := range w.groups {
		if g.epoch < newest {
			w.newWeights(g, newest)
		}
	}
}

func (w *world) reset(g *group) {
	if n := g.seats[0].side; n != nil {
		w.hit(Reset)
		w.ask(n, &call{at: n, kind: "reset"}, func(c machine.Call) machine.Event { return machine.Reset{Call: c} })
	}
}

// tagged finds the newest prompt of a group's label.
func (w *world) tagged(g *group, label string) int {
	for tag := len(w.prompts) - 1; tag > 0; tag-- {
		if p := &w.prompts[tag]; p.g == g && p.label == label {
			return tag
		}
	}
	return 0
}

// show is a manifest that users come to see: some of them import it.
func (w *world) show(m handoff.Manifest, g *group) {
	tag := w.tagged(g, m.Label)
	if len(m.Resume.Tokens) > 0 {
		tag = int(m.Resume.Tokens[0])
		w.prompts[tag].shown = true
	}
	if i := slices.IndexFunc(w.shown, func(o manifest) bool { return o.ID == m.ID }); i >= 0 {
		if w.shown[i].Key != m.Key {
			w.fail("two hand-offs have the id %v", m.ID)
		}
		return
	}
	man := manifest{m, tag}
	w.shown = append(w.shown, man)
	if w.chance(10) {
		w.hit(NeverImported)
		return
	}
	p := &w.prompts[tag]
	for range int(p.copies) + w.r.IntN(w.temper.rivals+1) {
		wait := w.between(0, 30*time.Millisecond)
		if w.chance(20) {
			wait = w.between(0, 15*time.Second)
		}
		w.after(wait, nil, func() { w.importInto(w.sink(man), man, 0) })
	}
	if w.chance(6) {
		w.after(w.between(0, 300*time.Millisecond), nil, func() { w.release(man, g) })
	}
}

// source is some group that exports.
func (w *world) source() *group { return w.sources[w.r.IntN(len(w.sources))] }

// sink is some group that can import m.
func (w *world) sink(m manifest) *group {
	for {
		if g := w.groups[w.r.IntN(len(w.groups))]; g.role != discovery.Prefill && g != w.prompts[m.tag].g {
			return g
		}
	}
}

// noticed is what control planes hear.
func (w *world) noticed(n *sidecar, t machine.Notice) {
	switch t.Kind {
	case machine.NoticeAnnounced, machine.NoticeExported:
		w.show(*t.Manifest, n.g)
	case machine.NoticeReady:
		n.checkReady()
	}
}

// importInto asks a group to bring a hand-off in: by a control call, or by its engine.
func (w *world) importInto(g *group, m manifest, tries int) {
	n := g.seats[0].side
	if n == nil {
		return
	}
	p := w.prompts[m.tag]
	im := handoff.Import{Manifest: m.Manifest, Tokens: text(p.text, p.tokens), Label: fmt.Sprint("i", m.ID.Group, m.ID.N, ".", m.ID.Leader)}
	if w.chance(2) {
		w.hit(WrongKey)
		im.Manifest.Key[3] ^= 1
		im.Label += "x"
	}
	if w.chance(10) {
		im.Deadline = w.between(10*time.Millisecond, 2*time.Second)
	}
	e := g.seats[0].eng
	switch {
	case w.chance(25) && e.able():
		if !slices.Contains(e.imports, im.Label) {
			e.imports = append(e.imports, im.Label)
			e.conn.say(im)
		}
		if w.chance(20) {
			w.after(w.between(0, 100*time.Millisecond), nil, func() {
				if e.able() {
					w.hit(EngineAborts)
					e.conn.say(handoff.AbortImport{Label: im.Label})
				}
			})
		}
	default:
		w.ask(n, &call{at: n, kind: "import", man: m, tries: tries}, func(c machine.Call) machine.Event { return machine.Import{Call: c, Import: im} })
		if w.chance(10) {
			w.hit(AskedTwice)
			w.ask(n, &call{at: n, kind: "import", man: m, tries: 9}, func(c machine.Call) machine.Event { return machine.Import{Call: c, Import: im} })
		}
	}
	if w.chance(15) {
		wait := w.between(0, 40*time.Millisecond)
		if w.chance(50) {
			wait = w.between(0, 3*time.Second)
		}
		w.after(wait, nil, func() { w.abort(g, m) })
	}
}

// ask puts a control call.
func (w *world) ask(n *sidecar, c *call, event func(machine.Call) machine.Event) {
	w.lastC++
	id := w.lastC
	w.calls[id] = c
	w.after(w.transit(), n, func() { n.step(event(id)) })
}

func (w *world) abort(g *group, m manifest) {
	if n := g.seats[0].side; n != nil {
		w.hit(Aborted)
		w.ask(n, &call{at: n, kind: "abort", man: m}, func(c machine.Call) machine.Event { return machine.Abort{Call: c, ID: m.ID} })
	}
}

// release gives a hand-off up: by a control plane, or by its engine.
func (w *world) release(m manifest, g *group) {
	w.hit(Released)
	if e := g.seats[0].eng; e.able() && w.chance(40) {
		e.conn.say(handoff.ReleaseExport{Label: m.Label})
		return
	}
	if n := g.seats[0].side; n != nil {
		w.ask(n, &call{at: n, kind: "release", man: m}, func(c machine.Call) machine.Event {
			return machine.Release{Call: c, ID: m.ID, Key: m.Key}
		})
	}
}

// replied ends a call. An import that failed may go elsewhere.
func (w *world) replied(f machine.Reply) {
	c := w.calls[f.Call]
	if c == nil {
		w.fail("call %d is answered, and nobody waits for it", f.Call)
		return
	}
	delete(w.calls, f.Call)
	switch {
	case f.Err == nil && f.Imported.Label != "":
		w.ok++
	case c.kind == "import" && c.tries < 2 && w.chance(50):
		w.hit(Rerouted)
		w.after(w.between(0, 200*time.Millisecond), nil, func() { w.importInto(w.sink(c.man), c.man, c.tries+1) })
	}
}
