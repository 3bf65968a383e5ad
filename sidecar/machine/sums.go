package machine

import (
	"fmt"

	"github.com/batonkv/baton/sidecar/events"
	"github.com/batonkv/baton/sidecar/handoff"
	"github.com/batonkv/baton/transfer/layout"
	"github.com/batonkv/baton/transfer/sums"
)

// adding is one open Sum: of a pin, or of what a destination read.
type adding struct {
	pin   handoff.PinID
	says  handoff.Pinned // what the leader hears then
	made  sums.Sums      // of the pin, without the numbers
	dest  *handoff.Dest
	read  handoff.Read
	match sums.Match // of the destination
}

// sumPin has a pin, of which no part follows, added up before its leader hears that it is
// whole, and reports whether it does. What cannot be summed is exported without: an importer
// that insists refuses it.
func (m *Machine) sumPin(p *handoff.Pin, says handoff.Pinned) bool {
	a := m.engine.attach
	if m.cfg.Verify == sums.Off {
		return false
	}
	s, err := sums.Choose(a.Model.Layout, a.Shards, p.Info.Tokens, a.Ranks, m.cfg.Verify, m.cfg.Mint())
	if err != nil {
		m.do(Unsummed{p.Label, err})
		return false
	}
	m.add(adding{pin: p.Info.Pin, says: says, made: s}, sums.Job{Range: s.Range, Blocks: p.Info.Blocks, Slot: p.Info.Slot,
		Places: s.Here(a.Model.Layout, a.Shards)})
	return true
}

func (m *Machine) add(a adding, j sums.Job) uint64 {
	m.lastTkt++
	m.adding[m.lastTkt] = a
	m.do(Sum{m.lastTkt, j})
	return m.lastTkt
}

// compare has what r brought added up, if it is to be compared, before d is good.
func (m *Machine) compare(d *handoff.Dest, r *handoff.Read) {
	if m.cfg.Verify == sums.Off {
		return
	}
	g := m.sources[d.D.Source]
	model := g.geometry.Model
	if err := r.Source.Sums.Check(model, d.D.Tokens); err != nil {
		m.differs(d, *r, handoff.Compared{Differ: 1, Why: fmt.Sprintf("source rank %d brings sums that cannot be: %v", r.From.Rank, err)})
		return
	}
	if mode := r.Source.Sums.Mode; m.cfg.Verify == sums.All && mode != sums.All { // the leader's word may be another
		m.differs(d, *r, handoff.Compared{Differ: 1, Why: fmt.Sprintf("source rank %d sums up %v and this rank wants all", r.From.Rank, mode)})
		return
	}
	x := r.Source.Sums.Of(model, g.plan.Parts(r.Pair), layout.Span{Lo: d.Reserved.Cached, Hi: d.D.Tokens})
	if m.cfg.Verify == sums.All && x.Missing != "" {
		m.differs(d, *r, handoff.Compared{Differ: 1, Why: "the source brings no sums of " + x.Missing})
		return
	}
	if x.Total() == 0 {
		m.do(Compared{Compared: handoff.Compared{Skipped: x.Skipped}})
		return
	}
	d.Adding(r, m.add(adding{dest: d, read: *r, match: x}, sums.Job{Range: x.Range, Blocks: d.Reserved.Blocks, Slot: d.Reserved.Slot, Places: x.There(model)}))
}

// summed takes the numbers. Those of a pin that is over, or of an import that is, say nothing.
func (m *Machine) summed(e Summed) {
	a, ok := m.adding[e.Ticket]
	if !ok {
		return
	}
	delete(m.adding, e.Ticket)
	if a.dest == nil {
		m.pinSummed(e, a)
	} else if m.dests[a.dest.D.N] == a.dest {
		m.destSummed(e, a)
	}
	m.unmapQuiet()
}

func (m *Machine) pinSummed(e Summed, a adding) {
	p := m.pins[a.pin]
	if p == nil {
		return
	}
	if e.Err == nil {
		e.Err = a.made.Fill(e.Sums)
	}
	if e.Err != nil {
		m.do(Unsummed{p.Label, e.Err})
	} else {
		a.says.Pin.Sums = a.made
	}
	m.toLeader(a.says)
}

func (m *Machine) destSummed(e Summed, a adding) {
	d := a.dest
	n, first := a.match.Compare(m.sources[d.D.Source].geometry.Model, e.Sums)
	c := handoff.Compared{Equal: a.match.Total() - n, Differ: n, Skipped: a.match.Skipped}
	switch {
	case e.Err != nil:
		d.Fail(fmt.Sprintf("what was read could not be added up: %v", e.Err))
		c = handoff.Compared{}
	case n > 0:
		c.Why = fmt.Sprintf("%s is not what source rank %d exported: %d of %d sums differ", first, a.read.From.Rank, n, a.match.Total())
	default:
		m.do(Compared{Compared: c})
	}
	d.Added(e.Ticket, c)
	m.blame(d)
	m.report(d)
}

// blame tells of what differs, once its source has said that the pin was held.
func (m *Machine) blame(d *handoff.Dest) {
	for {
		r, c, ok := d.Blame()
		if !ok {
			return
		}
		m.differs(d, r, c)
	}
}

// differs ends an import whose bytes are not the source's, and tells of it.
func (m *Machine) differs(d *handoff.Dest, r handoff.Read, c handoff.Compared) {
	d.Differ(c.Why)
	m.do(Compared{c, d.D.ID, d.D.Label, r.From})
	m.publish(events.Differs, events.Event{Handoff: d.D.ID.String(), Label: d.D.Label, Peer: r.From.String(), Cause: c.Why})
}

// checkSums refuses at the importing leader sums that cannot be of a hand-off, and, once no
// part follows, less of them than this group wants.
func (m *Machine) checkSums(model layout.Model, o handoff.Opened) error {
	if o.More {
		return nil
	}
	for i := range o.Pins {
		s := &o.Pins[i].Sums
		if err := s.Check(model, o.Tokens); err != nil {
			return fmt.Errorf("%w: of source rank %d: %w", handoff.ErrChecksum, o.Pins[i].Rank, err)
		}
		if m.cfg.Verify == sums.All && s.Mode != sums.All {
			return fmt.Errorf("%w: source rank %d sums up %v and this group wants all: set verify to all for that group, or to sample or off for this one",
				handoff.ErrChecksum, o.Pins[i].Rank, s.Mode)
		}
	}
	return nil
}
