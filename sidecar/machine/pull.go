package machine

import (
	"fmt"
	"maps"
	"slices"

	"github.com/batonkv/baton/sidecar/events"
	"github.com/batonkv/baton/sidecar/handoff"
	"github.com/batonkv/baton/transfer/layout"
	"github.com/batonkv/baton/transfer/layout/float"
	"github.com/batonkv/baton/transfer/lower"
	"github.com/batonkv/baton/transfer/reshard"
)

// ticket is one open pull.
type ticket struct {
	reserve uint64 // key of its Dest
	peer    handoff.Member
	link    *link
}

// maxGeometries bounds the geometries of other groups that a rank keeps. Leader and
// rank count alike: what the leader thinks was shown, the rank has.
const maxGeometries = 256

// sourceGroup is another group's geometry with what was planned from it. A zero
// digest: asked, not here yet.
type sourceGroup struct {
	geometry  handoff.Geometry
	digest    handoff.Digest
	plan      *reshard.Plan
	own       handoff.Digest // geometry of this group that plan leads to
	templates map[uint32]*lower.Template
	again     handoff.Instance // asked anew for this launch: the answer stands for it, whichever it is
	// When the other group imports from this one: digest of the plan into it.
	into, intoOwn handoff.Digest
}

func geometryDigest(g handoff.Geometry) handoff.Digest {
	return handoff.Digest(layout.GeometryDigest(g.Model, g.Shards))
}

// planFrom plans from g into this group, once per pair of geometries.
func (m *Machine) planFrom(g *sourceGroup) (handoff.Digest, error) {
	if m.member == nil {
		return handoff.Digest{}, fmt.Errorf("%w: no roster", handoff.ErrNotReady)
	}
	own := geometryDigest(m.member.Geometry)
	if g.plan == nil || g.own != own {
		p, err := plan(m.member.Geometry, g.geometry)
		if err != nil {
			return handoff.Digest{}, err
		}
		g.plan, g.own, g.templates = p, own, map[uint32]*lower.Template{}
	}
	return handoff.Digest(g.plan.Digest()), nil
}

// plan is what both sides compute: from a source geometry into a destination geometry.
func plan(dst, src handoff.Geometry) (*reshard.Plan, error) {
	if !slices.Equal(dst.Model.States, src.Model.States) {
		return nil, fmt.Errorf("%w: groups %s and %s state different tensors", handoff.ErrModel, src.Group, dst.Group)
	}
	p, err := reshard.New(dst.Model, src.Shards, dst.Shards)
	if err != nil {
		return nil, fmt.Errorf("%w: from group %s to %s: %w", handoff.ErrPlan, src.Group, dst.Group, err)
	}
	if err := convertible(p, dst, src); err != nil {
		return nil, err
	}
	return p, nil
}

// convertible refuses a plan whose types no copier converts: a pull that its Fits refuses
// has cost both groups their blocks, so it is said before Open.
func convertible(p *reshard.Plan, dst, src handoff.Geometry) error {
	for pair := range p.Pairs() {
		for part := range p.Parts(uint32(pair)) {
			if !float.Converts(part.From.DType, part.To.DType) {
				return fmt.Errorf("%w: state %q is %v in group %s and %v in group %s, and no copier converts: launch both groups with one type of it",
					handoff.ErrPlan, dst.Model.States[part.To.State].Name, part.From.DType, src.Group, part.To.DType, dst.Group)
			}
		}
	}
	return nil
}

func (g *sourceGroup) template(pair uint32) (*lower.Template, error) {
	if t := g.templates[pair]; t != nil {
		return t, nil
	}
	t, err := lower.New(g.plan, pair)
	if err == nil {
		g.templates[pair] = t
	}
	return t, err
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
	var out []handoff.Read
	for i, pair := range g.plan.Pairs() {
		if pair.Dst != m.cfg.Self.Rank {
			continue
		}
		if int(pair.Src) >= len(d.Sources) || int(pair.Src) >= len(d.Members) {
			return nil, fmt.Errorf("%w: no pin of source rank %d", handoff.ErrPlan, pair.Src)
		}
		read := handoff.Read{Source: d.Sources[pair.Src], From: d.Members[pair.Src], Pair: uint32(i)}
		t, err := g.template(read.Pair)
		if err != nil {
			return nil, err
		}
		n, err := t.Bytes(job(d, r, read))
		if err != nil {
			return nil, err
		}
		if n > 0 {
			out = append(out, read)
		}
	}
	return out, nil
}

func job(d handoff.Decision, r handoff.Reserved, read handoff.Read) lower.Job {
	return lower.Job{Handoff: d.ID.Bytes(), Pair: read.Pair, SrcBlocks: read.Source.Blocks, DstBlocks: r.Blocks,
		SrcSlot: read.Source.Slot, DstSlot: r.Slot, Tokens: layout.Span{Lo: r.Cached, Hi: d.Tokens}}
}

// submit pulls what d still must read, whose link stands and whose memory no step of the
// engine writes any more.
func (m *Machine) submit(d *handoff.Dest) {
	before := m.lastTkt
	if d.State() != handoff.Linking && d.State() != handoff.Moving {
		return
	}
	for i := range d.Reads {
		r := &d.Reads[i]
		if r.Ticket != 0 || !m.link(r.From, r.Source.Pin) || !m.clear(d.Reserved.Fence) {
			continue
		}
		t, err := m.sources[d.D.Source].template(r.Pair)
		if err != nil {
			d.Fail(err.Error())
			return
		}
		m.lastTkt++
		d.Submitted(i, m.lastTkt, m.now)
		l := m.links[r.From]
		m.tickets[m.lastTkt] = ticket{d.D.N, r.From, l}
		l.open++
		m.do(Pull{m.lastTkt, r.From, t, job(d.D, d.Reserved, *r), d.Check(r), m.sources[d.D.Source].plan})
	}
	if m.lastTkt != before {
		m.publish(events.Moving, events.Event{Handoff: d.D.ID.String(), Label: d.D.Label})
	}
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
		}
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

// quiet reports whether no copy and no pack is open.
func (m *Machine) quiet() bool { return m.openTickets() == 0 && m.grants.Open() == 0 }

func (m *Machine) checked(p handoff.Member, c handoff.Checked) {
	for _, n := range m.sortedDests() {
		d := m.dests[n]
		if d.D.ID == c.Check.ID && d.D.Attempt == c.Check.Attempt {
			d.Proved(p, c)
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
			if r.From == p && (r.Ticket == 0 || unproved && !r.Proved()) {
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
