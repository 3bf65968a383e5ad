package machine

import (
	"fmt"
	"maps"
	"slices"

	"github.com/batonkv/baton/sidecar/events"
	"github.com/batonkv/baton/sidecar/handoff"
	"github.com/batonkv/baton/transfer/layout"
)

// launch is what a group's leader keeps of one engine launch from its first roster on.
// It outlives a broken session within the group: the ranks that come back are the same
// processes with the same engines, so the sequence goes on where it was. It ends with
// the leader's own engine.
type launch struct {
	instance handoff.Instance
	members  []handoff.Member
	seq      *handoff.Sequence
	log      []handoff.Decision // that some rank may not hold, oldest first
	owed     []handoff.Decision // to be decided when the roster stands again
	freeing  []freeing          // by rank
}

// freeing are the labels whose decision Free an engine has not applied, with its number.
// An export of such a label that comes meanwhile was sent before: Free is about it too.
type freeing map[string]uint64

func (f freeing) applied(n uint64) {
	maps.DeleteFunc(f, func(_ string, free uint64) bool { return free <= n })
}

// join takes a rank's statement. The roster stands when every rank of one launch is here.
func (m *Machine) join(p handoff.Member, j handoff.Join) {
	a := j.Attach
	if a.Group != m.cfg.Self.Group || a.Rank != p.Rank || a.Rank < 0 || a.Ranks < 1 || a.Ranks > maxRanks || int32(a.Rank) >= a.Ranks {
		m.refuse(p, j, Malformed)
		return
	}
	if err := a.Model.Layout.Check(a.Shards); err != nil {
		m.refuse(p, j, Malformed)
		return
	}
	if o, ok := m.lead.joins[p.Rank]; ok && o.from != p {
		// Two lives of one rank: the one that discovery shows stays. The session of the
		// other ends: if it lives, it comes back.
		if m.listed(o.from) {
			m.refuse(p, j, NotMember)
			m.do(ClosePeer{p})
			return
		}
		m.do(ClosePeer{o.from})
	}
	if m.lead.roster != nil {
		m.breakRoster(fmt.Errorf("%w: rank %d joined anew", handoff.ErrNotReady, p.Rank))
	}
	m.lead.joins[p.Rank] = join{p, j}
	m.form()
}

// form makes the roster if it can. What makes this launch hopeless is told to the
// leader's engine, whose end ends the launch.
func (m *Machine) form() {
	if m.engine == nil || !m.engine.mapped {
		return
	}
	own := m.engine.attach
	var joins []handoff.Join
	members := make([]handoff.Member, own.Ranks)
	for rank := range layout.Rank(own.Ranks) {
		j, ok := m.lead.joins[rank]
		if !ok || j.Attach.Instance != own.Instance {
			return
		}
		joins, members[rank] = append(joins, j.Join), j.from
	}
	if err := m.agree(joins, members); err != nil {
		m.do(CloseEngine{m.engine.session, err})
		return
	}
	if m.lead.launch == nil {
		m.lead.launch = &launch{instance: own.Instance, members: members, seq: handoff.NewSequence(own.Ranks)}
		for range members {
			m.lead.launch.freeing = append(m.lead.launch.freeing, freeing{})
		}
		m.lead.weights = weights{epoch: own.Model.WeightsEpoch}
	}
	m.setRoster(joins, members)
	m.resume(joins)
	m.advertise()
	m.publish(events.Ready, events.Event{})
	m.do(Notify{Notice{Kind: NoticeReady}})
	for _, p := range m.lead.askers {
		m.do(ToPeer{p, m.lead.roster.Geometry})
	}
	m.lead.askers = nil
}

// agree says why ranks that are all here cannot work as one group.
func (m *Machine) agree(joins []handoff.Join, members []handoff.Member) error {
	own, l := m.engine.attach, m.lead.launch
	for r, j := range joins {
		a := j.Attach
		switch {
		case a.Ranks != own.Ranks:
			return fmt.Errorf("%w: rank %d says the group has %d ranks, rank 0 %d", handoff.ErrAttach, r, a.Ranks, own.Ranks)
		case modelDigest(a.Model) != modelDigest(own.Model):
			return fmt.Errorf("%w: rank %d attaches %q (%v), rank 0 %q (%v): one launch runs one model", handoff.ErrModel, r,
				a.Model.Name, modelDigest(a.Model), own.Model.Name, modelDigest(own.Model))
		case a.Weights != own.Weights:
			return fmt.Errorf("%w: rank %d has weights policy %d, rank 0 %d", handoff.ErrAttach, r, a.Weights, own.Weights)
		case a.Model.WeightsEpoch != own.Model.WeightsEpoch && (l == nil || j.Applied >= m.lead.weights.n): // else a decision brings it
			return fmt.Errorf("%w: rank %d has %d, rank 0 %d", handoff.ErrWeights, r, a.Model.WeightsEpoch, own.Model.WeightsEpoch)
		case a.Capacity.BlockTokens != own.Capacity.BlockTokens:
			return fmt.Errorf("%w: rank %d has blocks of %d tokens, rank 0 of %d", handoff.ErrAttach, r, a.Capacity.BlockTokens, own.Capacity.BlockTokens)
		case l == nil && (j.Held > 0 || j.Applied > 0):
			return fmt.Errorf("%w: rank %d holds decisions of an earlier leader: relaunch the group", handoff.ErrAttach, r)
		case l != nil && members[r] != l.members[r]:
			return fmt.Errorf("%w: rank %d came back as another process: relaunch the group", handoff.ErrAttach, r)
		case l != nil && r > 0 && !l.seq.Stated(r, j.Held, j.Applied):
			return fmt.Errorf("%w: rank %d holds %d decisions and applied %d, which is not what it said before: relaunch the group",
				handoff.ErrAttach, r, j.Held, j.Applied)
		}
	}
	return nil
}

func (m *Machine) setRoster(joins []handoff.Join, members []handoff.Member) {
	own := m.engine.attach
	g := handoff.Geometry{Group: m.cfg.Self.Group, Instance: own.Instance, Model: own.Model.Layout, Members: members}
	for _, j := range joins {
		g.Shards = append(g.Shards, j.Attach.Shards...)
	}
	m.lead.roster = &handoff.Roster{Instance: own.Instance, Members: members, Geometry: g}
	clear(m.lead.shown)
	for _, p := range members {
		m.do(ToPeer{p, *m.lead.roster})
	}
}

// resume sends each rank the decisions that it may have missed, in order, decides what
// is owed since the roster broke, and frees pins that no lease covers.
func (m *Machine) resume(joins []handoff.Join) {
	l := m.lead.launch
	for r, j := range joins[1:] {
		for _, d := range l.log {
			if d.N > j.Held {
				m.do(ToPeer{l.members[r+1], d})
			}
		}
	}
	owed := l.owed
	l.owed = nil
	for _, d := range owed {
		m.decideAll(d)
	}
	for r, j := range joins {
		for _, p := range j.Pins {
			m.do(ToPeer{l.members[r], handoff.Unpin{Pin: p.Pin}})
		}
		kept := m.lead.joins[layout.Rank(r)]
		kept.Pins = nil // unpinned once
		m.lead.joins[layout.Rank(r)] = kept
	}
}

// memberDown: a rank of this group left. What the group holds is over: its leases and
// its undecided imports end, and what its ranks must do about them is owed to them.
func (m *Machine) memberDown(p handoff.Member) {
	if m.lead.joins[p.Rank].from != p {
		return
	}
	delete(m.lead.joins, p.Rank)
	why := fmt.Errorf("%w: rank %d of group %s left", handoff.ErrEngine, p.Rank, p.Group)
	if m.lead.roster != nil {
		m.breakRoster(why)
	}
	if p == m.cfg.Self {
		m.endLaunch(why)
	}
}

func (m *Machine) breakRoster(why error) {
	m.lead.roster = nil
	for _, id := range m.sortedSources() {
		m.endSource(id)
	}
	m.failUndecided(why) // what is decided is admitted if the ranks come back
	clear(m.lead.opens)
	m.do(Advertise{})
	m.publish(events.Detached, events.Event{Cause: why.Error()})
	m.do(Notify{Notice{Kind: NoticeLost, Err: why}})
}

// endLaunch forgets a launch whose engine on rank 0 is gone: there is no memory of it
// that decisions could still be about.
func (m *Machine) endLaunch(why error) {
	m.lead.launch = nil
	m.answerWeights(fmt.Errorf("%w: %w", handoff.ErrInDoubt, why))
	for _, i := range slices.Clone(m.lead.imports) {
		if i.State() == handoff.Admitting {
			m.failImport(i, fmt.Errorf("%w: %w", handoff.ErrInDoubt, why))
			continue
		}
		m.finish(i, m.outcome(i))
	}
}

// decideAll issues one decision to every rank, in order. Without a roster it is owed.
func (m *Machine) decideAll(d handoff.Decision) uint64 {
	l := m.lead.launch
	if m.lead.roster == nil {
		if l != nil {
			l.owed = append(l.owed, d)
		}
		return 0
	}
	d.N, d.WeightsEpoch = l.seq.Next(), m.lead.weights.epoch
	l.log = append(l.log, d)
	for r, p := range m.lead.roster.Members {
		if d.Kind == handoff.Free {
			l.freeing[r][d.Label] = d.N
		}
		m.do(ToPeer{p, d})
	}
	return d.N
}

// held takes how many decisions a rank's engine client holds.
func (m *Machine) held(rank layout.Rank, n uint64) {
	l := m.lead.launch
	if through, grew := l.seq.Held(int(rank), n); grew {
		m.toEngine(handoff.Through{N: through})
		done := 0
		for done < len(l.log) && l.log[done].N <= l.seq.AllHeld() {
			done++
		}
		l.log = slices.Delete(l.log, 0, done)
	}
}

// applied takes what a rank's engine applied, and ends what all ranks have.
func (m *Machine) applied(rank layout.Rank, n uint64) {
	all := m.lead.launch.seq.Applied(int(rank), n)
	m.lead.launch.freeing[rank].applied(n)
	m.weightsApplied(all)
	for _, i := range slices.Clone(m.lead.imports) {
		if i.Applied(all, m.now) {
			m.admitted(i)
		}
	}
}
