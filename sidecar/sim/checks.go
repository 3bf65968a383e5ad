package sim

import (
	"slices"

	"github.com/batonkv/baton/sidecar/handoff"
	"github.com/batonkv/baton/sidecar/machine"
)

// claim is one try of one importing leader.
type claim struct {
	id      handoff.ID
	attempt handoff.Attempt
	leader  handoff.Incarnation
}

// proof is one source rank's part of a claim at one rank.
type proof struct {
	claim
	reader, source handoff.Incarnation
}

// book is what the checks remember.
type book struct {
	read     map[proof]bool // a good copy has ended
	proved   map[proof]bool // and after that the source said that its pin is held
	consumed map[claim]bool
	spent    map[handoff.ID]int32
	admits   map[handoff.ID][]claim
	opened   map[opening]bool // and not withdrawn since
	asked    map[try]question
}

func newBook() book {
	return book{read: map[proof]bool{}, proved: map[proof]bool{}, consumed: map[claim]bool{}, spent: map[handoff.ID]int32{}, admits: map[handoff.ID][]claim{},
		opened: map[opening]bool{}, asked: map[try]question{}}
}

// claims are those that a decision of this rank's group may be about: the leader that
// asked may be an earlier life than the one that decides.
func (w *world) claims(d handoff.Decision, g *group) (out []claim) {
	for i := len(w.lives); i > 0; i-- {
		if n := w.lives[i-1]; n.seat == g.seats[0] {
			out = append(out, claim{d.ID, d.Attempt, n.self.Incarnation})
		}
	}
	return out
}

// read notes a good copy, while its engine knows the Reserve that it is for. What the source
// said of its pin before a copy began proves nothing of it.
func (w *world) read(n *sidecar, t *ticket, good bool) {
	if r := t.into.reserves[t.own]; r != nil {
		p := proof{claim{id: r.d.ID, attempt: r.d.Attempt}, n.self.Incarnation, t.p.Peer.Incarnation}
		w.book.read[p] = good
		w.book.proved[p] = w.book.proved[p] && good
	}
}

// checkSent looks at what a sidecar says to others.
func (n *sidecar) checkSent(f machine.ToPeer) {
	w := n.w
	switch m := f.Msg.(type) {
	case handoff.Pinned:
		var tag uint64
		e := n.eng
		if n.ghost != nil {
			e = n.ghost
		}
		if old, ok := n.pins[m.Pin.Pin]; ok && m.Part > 1 {
			m.Pin.Blocks = slices.Concat(old.info.Blocks, m.Pin.Blocks)
		}
		if e != nil && len(m.Pin.Blocks) > 0 {
			tag = e.cells[m.Pin.Blocks[0]].own
			n.pins[m.Pin.Pin] = pin{e, m.Pin, m.Label, tag}
		}
	case handoff.Checked:
		p := proof{claim{id: m.Check.ID, attempt: m.Check.Attempt}, f.Peer.Incarnation, n.self.Incarnation}
		w.book.proved[p] = w.book.proved[p] || m.Held && w.book.read[p]
		if pin, ok := n.pins[m.Check.Pin]; m.Held && (!ok || !pin.held()) {
			w.fail("%v says that pin %d of %q is held, and its memory is not", n.self, m.Check.Pin, pin.label)
		}
	case handoff.Landed:
		n.checkLanded(m)
	case handoff.DoneAck:
		if m.Status == handoff.Taken {
			n.checkTaken(m.ID)
		}
		c := claim{m.ID, m.Attempt, f.Peer.Incarnation}
		if m.Status == handoff.OK && !w.book.consumed[c] {
			n.checkOpened(c)
			w.book.consumed[c] = true
			w.book.spent[m.ID]++
		}
	case handoff.Opened:
		switch m.Status {
		case handoff.Taken:
			n.checkTaken(m.ID)
		case handoff.OK:
			w.book.opened[opening{claim{m.ID, m.Attempt, f.Peer.Incarnation}, n.self.Incarnation}] = true
		}
	case handoff.Roster:
		n.roster = m.Members
	case handoff.Open:
		n.checkAttempt(m)
	case handoff.Decision:
		if m.Kind == handoff.Free && n.side == n {
			n.g.freed[m.Label] = m.N
		}
	}
}

// checkLanded: a rank lands nothing of which it heard that a pin was not held.
func (n *sidecar) checkLanded(m handoff.Landed) {
	c := claim{id: m.ID, attempt: m.Attempt}
	if m.Differs && !n.w.corrupt {
		n.w.fail("%v says that %v differs, and no copy brought a wrong bit: %s", n.self, m.ID, m.Why)
	}
	switch held, asked := n.held[c]; {
	case !m.OK:
	case asked && !held:
		n.w.fail("%v says that attempt %d of %v landed, and heard before that a pin was not held", n.self, m.Attempt, m.ID)
	default:
		n.proves(c, true)
	}
}

// proves notes what a rank heard of a claim's pins before it landed: the first refusal, or
// the landing, stands.
func (n *sidecar) proves(c claim, held bool) {
	if n.held == nil {
		n.held = map[claim]bool{}
	}
	if _, stands := n.held[c]; !stands {
		n.held[c] = held
	}
}

// held reports whether the memory is still the export's. A dead engine's is nobody's once
// its own mover has let it go.
func (p pin) held() bool {
	return !p.eng.gone && !slices.ContainsFunc(p.info.Blocks, func(b int32) bool { return p.eng.cells[b].own != p.tag })
}

// checkWrite: a copy writes memory that is reserved for its import, and nothing else.
func (n *sidecar) checkWrite(t *ticket) {
	if t.into.dead {
		return // its memory is nobody's
	}
	for _, b := range t.p.Job.DstBlocks {
		if own := t.into.cells[b].own; own != t.own || own == 0 || own >= exported || slices.Contains(t.into.live, own) {
			n.w.fail("copy %d of %v writes block %d, which is not its own", t.p.Ticket, n.self, b)
			return
		}
	}
}

// checkQuiet: memory goes back when no copy can write it.
func (w *world) checkQuiet(e *engine, of uint64) {
	for _, n := range w.lives {
		for _, t := range n.tickets {
			if t.into == e && t.own == of {
				w.fail("engine of %s/%d takes the memory of %d back under copy %d", e.g.name, e.rank, of, t.p.Ticket)
			}
		}
	}
}

// checkFree: while its leader's lease is held, every rank of its roster holds its pin.
func (w *world) checkFree(e *engine, label string) {
	lead := e.g.seats[0].side
	if lead == nil || e.side == nil || e.g.ending || !e.has(label) {
		return
	}
	if lead.m.Leased(label, lead.clock(), e.side.self) {
		w.fail("engine of %s/%d returns %q, which its leader still leases", e.g.name, e.rank, label)
	}
}

// checkDecided: a launch has one sequence of decisions.
func (w *world) checkDecided(e *engine, d handoff.Decision) {
	g := e.g
	d.Hashes, d.Members, d.Sources = nil, nil, nil
	if int(d.N) == len(g.decided)+1 {
		g.decided = append(g.decided, d)
		return
	}
	if int(d.N) > len(g.decided) {
		w.fail("engine of %s/%d applies %d, and %d were applied before", e.g.name, e.rank, d.N, len(g.decided))
		return
	}
	if o := g.decided[d.N-1]; o.Kind != d.Kind || o.ID != d.ID || o.Of != d.Of || o.Attempt != d.Attempt || o.Label != d.Label {
		w.fail("decision %d is %v of %v at %s/%d and %v of %v elsewhere", d.N, d.Kind, d.Of, g.name, e.rank, o.Kind, o.Of)
	}
}

// checkAdmit: what is admitted was consumed, read while it was pinned, proved, and is
// what was exported.
func (w *world) checkAdmit(e *engine, d handoff.Decision, r *reserve) {
	w.checkQuiet(e, d.Of)
	tag := tagOf(r.d)
	if r.d.More {
		tag = tagOf(d)
	}
	p := w.prompts[tag]
	w.checkConsumed(e, d, p)
	if w.temper.policy == handoff.WeightsRefuse && e.epoch != p.epoch {
		w.fail("engine of %s/%d runs weights %d and admits %v of weights %d", e.g.name, e.rank, e.epoch, d.ID, p.epoch)
	}
	lo, hi := e.units()
	for _, s := range p.g.seats {
		if r.r.Slot < 0 && r.r.Cached >= r.d.Tokens {
			break // nothing was left to read
		}
		if slo, shi := s.units(); max(lo, slo) < min(hi, shi) && !w.hasProof(e, d, s) {
			w.fail("engine of %s/%d admits %v, which source rank %d has not proved", e.g.name, e.rank, d.ID, s.rank)
		}
	}
	for i, b := range r.r.Blocks {
		for u := lo; u < hi; u++ {
			got := e.cells[b].holds[u]
			if got == uint32(tag) || i < int(r.r.Cached)/blockTokens && got < uint32(len(w.prompts)) && w.same(w.prompts[got], p) {
				continue
			}
			w.fail("engine of %s/%d admits %v: block %d holds version %x, want %x", e.g.name, e.rank, d.ID, b, got, tag)
		}
	}
	for u := lo; u < hi && r.r.Slot >= 0; u++ {
		if got := e.cells[e.blocks+int(r.r.Slot)].holds[u]; got != uint32(tag) {
			w.fail("engine of %s/%d admits %v: slot %d holds version %x, want %x", e.g.name, e.rank, d.ID, r.r.Slot, got, tag)
		}
	}
}

// checkBrings: no two imports under way bring the same block to a cache.
func (w *world) checkBrings(e *engine, r *reserve) {
	brings := func(r *reserve) []uint64 { return r.d.Hashes[int(r.r.Cached)/blockTokens:] }
	for n, o := range e.reserves {
		if n == r.d.N || o.dropped || slices.Contains(e.live, n) {
			continue
		}
		if slices.ContainsFunc(brings(r), func(h uint64) bool { return slices.Contains(brings(o), h) }) {
			w.fail("engine of %s/%d reserves %d and %d for the same block of a prompt", e.g.name, e.rank, n, r.d.N)
		}
	}
}

// checkConsumed: an admission has a copy, and no copy has two.
func (w *world) checkConsumed(e *engine, d handoff.Decision, p prompt) {
	i := slices.IndexFunc(w.claims(d, e.g), func(c claim) bool { return w.book.consumed[c] })
	if i < 0 {
		w.fail("engine of %s/%d admits %v, attempt %d, without a copy", e.g.name, e.rank, d.ID, d.Attempt)
		return
	}
	c := w.claims(d, e.g)[i]
	if !slices.Contains(w.book.admits[d.ID], c) {
		w.book.admits[d.ID] = append(w.book.admits[d.ID], c)
	}
	if n := int32(len(w.book.admits[d.ID])); n > p.copies || w.book.spent[d.ID] > p.copies {
		w.fail("%v has %d copies: %d are admitted, %d consumed", d.ID, p.copies, n, w.book.spent[d.ID])
	}
}

// hasProof looks for a proof of any life of the reading and of the read sidecar.
func (w *world) hasProof(e *engine, d handoff.Decision, s *seat) bool {
	for _, a := range w.lives {
		for _, b := range w.lives {
			if a.seat == e.seat && b.seat == s && w.book.proved[proof{claim{id: d.ID, attempt: d.Attempt}, a.self.Incarnation, b.self.Incarnation}] {
				return true
			}
		}
	}
	return false
}

// checkRest: when faults have stopped and time has run on, nothing is left.
func (w *world) checkRest() {
	for id, c := range w.calls {
		w.fail("call %d (%s of %v) has no answer", id, c.kind, c.man.ID)
	}
	for _, s := range w.seats {
		n, e := s.side, s.eng
		if n == nil || e == nil || e.dead || e.conn == nil || !n.m.Status().Ready {
			w.fail("%s/%d: its group does not stand", s.g.name, s.rank)
			return
		}
		w.checkServes(s)
		if l := n.m.Load(); l != (machine.Load{}) {
			w.fail("%v is left with %+v", n.self, l)
		}
		if len(n.tickets) > 0 || len(e.imports) > 0 || len(e.held) > 0 {
			w.fail("%v is left with %d copies, imports %v, %d decisions", n.self, len(n.tickets), e.imports, len(e.held))
		}
		if n.stage != nil {
			n.stage.checkRest()
		}
		for _, l := range n.links {
			if l.dead {
				w.fail("%v keeps a link of a mover that is gone", n.self)
			}
		}
		for i := range e.cells {
			if c := &e.cells[i]; c.own != 0 {
				w.fail("engine of %s/%d: cell %d is still held by %x %q", s.g.name, s.rank, i, c.own, c.label)
			}
		}
	}
}
