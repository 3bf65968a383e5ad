package machine

import (
	"fmt"
	"maps"
	"slices"

	"github.com/batonkv/baton/sidecar/events"
	"github.com/batonkv/baton/sidecar/handoff"
	"github.com/batonkv/baton/transfer/layout"
	"github.com/batonkv/baton/transfer/lower"
)

// ticket is one open pull.
type ticket struct {
	reserve uint64 // key of its Dest
	peer    handoff.Member
	link    *link
}

// wantGeometry answers with this group's geometry, once there is one.
func (m *Machine) wantGeometry(p handoff.Member) {
	switch {
	case !m.leads():
		m.refuse(p, handoff.WantGeometry{}, NotLeader)
	case m.lead.roster != nil:
		m.do(ToPeer{p, m.lead.roster.Geometry})
	case slices.Contains(m.lead.askers, p):
	case len(m.lead.askers) >= maxRanks:
		m.refuse(p, handoff.WantGeometry{}, TooMany)
	default:
		m.lead.askers = append(m.lead.askers, p)
	}
}

// wantBuffers shares with whom the leader told of a pin that is held: memory is not for
// the asking.
func (m *Machine) wantBuffers(p handoff.Member, w handoff.WantBuffers) {
	if m.engine == nil || !m.engine.mapped {
		m.do(ToPeer{p, handoff.Buffers{Why: "no engine is attached"}})
		return
	}
	if pin := m.pins[w.Pin]; pin == nil || pin.Deadline <= m.now {
		m.refuse(p, w, NotHeld)
		m.do(ToPeer{p, handoff.Buffers{Why: "the pin that was named is not held"}})
		return
	}
	m.do(ShareBuffers{p, m.engine.session})
}

// geometry takes another group's: from its leader, or passed on by this rank's own.
func (m *Machine) geometry(p handoff.Member, g handoff.Geometry) {
	if err := g.Model.Check(g.Shards); err != nil {
		m.refuse(p, g, Malformed)
		if s := m.lead.groups[p]; s != nil && s.digest == (handoff.Digest{}) {
			delete(m.lead.groups, p) // the next import asks again
			for _, o := range m.lead.opens[p] {
				m.do(ToPeer{p, handoff.Opened{ID: o.ID, Attempt: o.Attempt, Status: handoff.Refused, Why: "the importer's geometry: " + err.Error()}})
			}
			delete(m.lead.opens, p)
		}
		return
	}
	if m.joined && p == m.boss {
		if len(m.sources) >= maxGeometries {
			m.forgetGeometries()
		}
		d := geometryDigest(g)
		if m.sources[d] == nil { // else a new leader passes on what imports here still read by
			m.sources[d] = &sourceGroup{geometry: g, digest: d}
		}
		return
	}
	if s := m.lead.groups[p]; m.leads() && s != nil && g.Group == p.Group && len(g.Members) > 0 && g.Members[0] == p {
		*s = sourceGroup{geometry: g, digest: geometryDigest(g), again: s.again}
		m.findSources()
		m.answerWaiting(p)
		return
	}
	m.refuse(p, g, Unmatched)
}

// forgetGeometries makes room; what an import here still reads by stays.
func (m *Machine) forgetGeometries() {
	used := map[handoff.Digest]bool{}
	for _, d := range m.dests {
		used[d.D.Source] = true
	}
	maps.DeleteFunc(m.sources, func(d handoff.Digest, _ *sourceGroup) bool { return !used[d] })
}

// reserved takes the engine's answer to a Reserve and starts to read for it.
func (m *Machine) reserved(r handoff.Reserved) {
	if r.N > 0 && r.N <= m.engine.stated {
		return // of before the engine attached: that import is over
	}
	if !m.engine.asked[r.N] {
		m.do(CloseEngine{m.engine.session, fmt.Errorf("%w: Reserved %d answers no open decision", handoff.ErrEngine, r.N)})
		return
	}
	delete(m.engine.asked, r.N)
	d := m.dests[r.N]
	if d == nil || d.State() != handoff.Reserving {
		return // dropped while the engine had not come to it
	}
	if r.Full || r.Why != "" {
		m.endDest(r.N)
		m.toLeader(handoff.RankReserved{Reserved: r})
		return
	}
	if reads, err := m.reads(d.D, r); err != nil {
		d.Fail(err.Error()) // and not Hold: nothing to read would be good
	} else {
		d.Hold(r, reads)
	}
	m.toLeader(handoff.RankReserved{Reserved: r})
	m.submit(d)
	m.report(d)
	m.failReplaced()
}

// reads are the source ranks that this rank must read for d.
func (m *Machine) reads(d handoff.Decision, r handoff.Reserved) ([]handoff.Read, error) {
	g := m.sources[d.Source]
	if g == nil || m.member == nil {
		return nil, fmt.Errorf("%w: the leader did not pass on the source's geometry", handoff.ErrPlan)
	}
	dig, err := m.planFrom(g)
	switch {
	case err != nil:
		return nil, err
	case dig != d.Plan:
		return nil, fmt.Errorf("%w: leader %v, rank %d %v", handoff.ErrPlan, d.Plan, m.cfg.Self.Rank, dig)
	case r.Cached < 0 || r.Cached > d.Tokens:
		return nil, fmt.Errorf("%w: %d cached of %d tokens", handoff.ErrEngine, r.Cached, d.Tokens)
	}
	if err := m.engine.bounds.Reserved(r); err != nil {
		return nil, err
	}
	var out []handoff.Read
	for i, pair := range g.plan.Pairs() {
		if pair.Dst != m.cfg.Self.Rank {
			continue
		}
		if int(pair.Src) >= len(d.Sources) || int(pair.Src) >= len(d.Members) {
			return nil, fmt.Errorf("%w: no pin of source rank %d", handoff.ErrPlan, pair.Src)
		}
		read := handoff.Read{Source: d.Sources[pair.Src], From: d.Members[pair.Src], Pair: uint32(i)}
		all := handoff.Piece{Tokens: layout.Span{Lo: r.Cached, Hi: d.Tokens}, Whole: true}
		t, err := g.template(read.Pair, all)
		if err != nil {
			return nil, err
		}
		some := t.PerRequest() || t.Paged() && r.Cached < d.Tokens
		if !d.More { // else the tables grow
			n, err := t.Bytes(job(d, r, read, all))
			if err != nil {
				return nil, err
			}
			some = n > 0
		}
		if some {
			out = append(out, read)
		}
	}
	return out, nil
}

func job(d handoff.Decision, r handoff.Reserved, read handoff.Read, p handoff.Piece) lower.Job {
	j := lower.Job{Handoff: d.ID.Bytes(), Pair: read.Pair, SrcBlocks: read.Source.Blocks, DstBlocks: r.Blocks, SrcSlot: -1, DstSlot: -1, Tokens: p.Tokens}
	if p.Whole {
		j.SrcSlot, j.DstSlot = read.Source.Slot, r.Slot
	}
	return j
}

// submit pulls what d may read, whose link stands and whose memory no step of the engine
// writes any more: one pull of each source rank at a time.
func (m *Machine) submit(d *handoff.Dest) {
	before := m.lastTkt
	for i := range d.Reads {
		for m.pull(d, i) {
		}
	}
	if m.lastTkt != before {
		m.publish(events.Moving, events.Event{Handoff: d.D.ID.String(), Label: d.D.Label})
	}
}

// pull does the next of read i of d; it reports whether another may follow at once.
func (m *Machine) pull(d *handoff.Dest, i int) bool {
	p, ok := d.Next(i)
	if !ok {
		return false
	}
	r := &d.Reads[i]
	t, err := m.sources[d.D.Source].template(r.Pair, p)
	if err != nil {
		d.Fail(err.Error())
		return false
	}
	j := job(d.D, d.Reserved, *r, p)
	n, err := t.Bytes(j)
	switch {
	case err != nil:
		d.Fail(err.Error())
		return false
	case n == 0:
		if done := d.Passed(i, p); done != nil {
			m.do(ToPeer{done.From, d.Check(done)})
			m.compare(d, done)
		}
		return true
	case !m.link(r.From, r.Source.Pin) || !m.clear(d.Reserved.Fence):
		return false
	}
	m.lastTkt++
	part := r.Pulls
	d.Submitted(i, p, m.lastTkt, m.now)
	l := m.links[r.From]
	m.tickets[m.lastTkt] = ticket{d.D.N, r.From, l}
	l.open++
	m.do(Pull{m.lastTkt, r.From, t, j, d.Check(r), m.sources[d.D.Source].plan, p, part})
	return false
}

func (m *Machine) submitReads() {
	for _, n := range m.sortedDests() {
		m.submit(m.dests[n])
		m.report(m.dests[n])
	}
}

// pullDone settles a ticket; a good one is followed by Check, so that what the source
// answers was true after the last byte was read.
func (m *Machine) pullDone(e PullDone) {
	t, ok := m.tickets[e.Ticket]
	if !ok {
		return
	}
	delete(m.tickets, e.Ticket)
	t.link.open--
	m.reapLink(t.peer, t.link)
	if d := m.dests[t.reserve]; d != nil {
		why := ""
		if e.Err != nil {
			why = e.Err.Error()
		}
		if r := d.TicketDone(e.Ticket, e.Bytes, why, m.now); r != nil {
			m.do(ToPeer{r.From, d.Check(r)})
			m.compare(d, r)
		}
		m.submit(d)
		m.report(d)
	}
	m.unmapQuiet()
}

// unmapQuiet lets go of a gone engine's memory once nothing here touches it.
func (m *Machine) unmapQuiet() {
	if m.unmap != 0 && m.quiet() {
		m.do(UnmapBuffers{m.unmap})
		m.unmap = 0
		m.dropDests()
	}
}

// quiet reports whether no copy, no pack and no sum is open.
func (m *Machine) quiet() bool {
	return m.openTickets() == 0 && m.grants.Open() == 0 && len(m.adding) == 0
}

func (m *Machine) checked(p handoff.Member, c handoff.Checked) {
	for _, n := range m.sortedDests() {
		d := m.dests[n]
		if d.D.ID == c.Check.ID && d.D.Attempt == c.Check.Attempt {
			d.Proved(p, c)
			m.blame(d)
			m.report(d)
			return
		}
	}
	m.refuse(p, c, Unmatched)
}

// report tells the leader what became of d, once per change.
func (m *Machine) report(d *handoff.Dest) {
	if l, ok := d.Report(m.cfg.Self.Rank); ok {
		m.toLeader(l)
	}
}

// dropDest is the leader's Drop: open tickets are asked to stop, and the leader hears
// when none is left. A rank that holds nothing is quiet at once.
func (m *Machine) dropDest(dec handoff.Decision) {
	d := m.dests[dec.Of]
	if d == nil {
		m.toLeader(handoff.Landed{ID: dec.ID, Attempt: dec.Attempt, N: dec.Of, Quiet: true})
		return
	}
	d.Drop()
	m.cancelReads(d)
	m.report(d)
}

func (m *Machine) endDest(n uint64) {
	if d := m.dests[n]; d != nil {
		d.End()
		delete(m.dests, n)
		for _, r := range d.Reads {
			m.prune(r.From)
		}
	}
}

// dropDests forgets the imports of an engine that is gone.
func (m *Machine) dropDests() {
	clear(m.dests)
	for _, p := range m.sortedPeers() {
		m.prune(p)
	}
}

func (m *Machine) openTickets() int { return len(m.tickets) }

// readsLost: a source rank's session ended. Copies under way go on; what needs that
// rank's answer cannot be proved.
func (m *Machine) readsLost(p handoff.Member) {
	m.failReads(p, fmt.Sprintf("session to source %v ended", p), true)
}

// linkFailed: a source rank's buffers cannot be reached.
func (m *Machine) linkFailed(p handoff.Member, why string) {
	m.failReads(p, fmt.Sprintf("buffers of %v: %s", p, why), false)
}

func (m *Machine) failReads(p handoff.Member, why string, unproved bool) {
	for _, n := range m.sortedDests() {
		d := m.dests[n]
		for _, r := range d.Reads {
			if r.From == p && (r.Waits() || unproved && !r.Proved()) {
				d.Fail(why)
			}
		}
		m.report(d)
	}
}

func (m *Machine) sortedDests() []uint64 {
	ns := make([]uint64, 0, len(m.dests))
	for n := range m.dests {
		ns = append(ns, n)
	}
	slices.Sort(ns)
	return ns
}
