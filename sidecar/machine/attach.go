package machine

import (
	"fmt"
	"maps"
	"slices"

	"github.com/batonkv/baton/sidecar/handoff"
	"github.com/batonkv/baton/transfer/layout"
)

const maxRanks = 1024

// attach takes the first message of a session. What the engine kept of an earlier one is
// believed: it holds the memory. Its pins answer no Check any more, since what was read
// of them was asked of another session; they wait for the leader's Free, or this rank's
// own deadline.
func (m *Machine) attach(s Session, a handoff.Attach) {
	if err := m.checkAttach(a); err != nil {
		m.do(CloseEngine{s, err})
		return
	}
	m.attaches++
	e := &engine{session: s, attach: a, bounds: handoff.NewBounds(a), fdKey: m.cfg.Mint(), asked: map[uint64]bool{}, freeing: freeing{}, early: map[uint64]*handoff.Dest{},
		stated: a.Held, decided: a.Held, held: a.Held, applied: a.Applied, tail: a.Decisions}
	e.attach.Decisions = nil
	for _, d := range e.tail {
		e.attach.Model.WeightsEpoch = d.WeightsEpoch // what is held and not applied yet brings it
		e.attach.Draining = d.Draining(e.attach.Draining)
		if d.Kind == handoff.Free && d.N > a.Applied {
			e.freeing[d.Label] = d.N
		}
	}
	for _, l := range a.Pins {
		if e.freeing[l] == 0 {
			m.kept[l] = m.now + m.cfg.MaxHold + m.cfg.Margin
		}
	}
	m.engine = e
	m.do(ExpectBuffers{s, e.fdKey, a.Buffers},
		ToEngine{s, handoff.Attached{Incarnation: m.cfg.Self.Incarnation, FDKey: e.fdKey}})
}

func (m *Machine) checkAttach(a handoff.Attach) error {
	self := m.cfg.Self
	switch {
	case m.engine != nil:
		return fmt.Errorf("%w: rank %d of group %s has a live engine session: stop that engine first", handoff.ErrAttached, self.Rank, self.Group)
	case a.Group != self.Group:
		return fmt.Errorf("%w: group is %q, this sidecar serves %q", handoff.ErrAttach, a.Group, self.Group)
	case a.Rank != self.Rank:
		return fmt.Errorf("%w: rank is %d, this sidecar serves rank %d", handoff.ErrAttach, a.Rank, self.Rank)
	case a.Ranks < 1 || int32(a.Rank) >= a.Ranks || a.Ranks > maxRanks:
		return fmt.Errorf("%w: ranks is %d: want 1 to %d, and more than rank %d", handoff.ErrAttach, a.Ranks, maxRanks, a.Rank)
	case a.Instance == 0:
		return fmt.Errorf("%w: group_instance is 0: want a random number, equal on all ranks of one launch", handoff.ErrAttach)
	case a.Capacity.BlockTokens < 1:
		return fmt.Errorf("%w: capacity.block_tokens is %d", handoff.ErrAttach, a.Capacity.BlockTokens)
	case !m.quiet():
		return fmt.Errorf("%w: copies into the previous engine's memory are not finished: attach again", handoff.ErrAttach)
	case len(a.Imports) > 0 && a.Rank != 0:
		return fmt.Errorf("%w: rank %d states imports: rank 0 alone asks for them", handoff.ErrAttach, a.Rank)
	}
	if err := checkStated(a); err != nil {
		return err
	}
	lens := make([]int64, 0, len(a.Buffers))
	for i, b := range a.Buffers {
		if b.ID != uint32(i) || b.Len <= 0 || b.Off < 0 {
			return fmt.Errorf("%w: buffer %d: id %d, off %d, len %d: want ids from 0 and positive lengths", handoff.ErrAttach, i, b.ID, b.Off, b.Len)
		}
		lens = append(lens, b.Len)
	}
	for _, sh := range a.Shards {
		if sh.Rank != a.Rank {
			return fmt.Errorf("%w: a shard names rank %d, the attaching rank is %d", handoff.ErrAttach, sh.Rank, a.Rank)
		}
	}
	if err := a.Model.Layout.Check(a.Shards); err != nil {
		return fmt.Errorf("%w: %w", handoff.ErrAttach, err)
	}
	if err := handoff.CheckCapacity(a); err != nil {
		return err
	}
	if err := layout.CheckMemory(a.Model.Layout, a.Shards, lens); err != nil {
		return fmt.Errorf("%w: %w", handoff.ErrAttach, err)
	}
	return nil
}

// checkStated says why what is stated of an earlier session cannot be true. A sidecar
// states to its leader in the same form what it passed on.
func checkStated(a handoff.Attach) error {
	for _, labels := range [][]string{a.Pins, a.Imports} {
		seen := map[string]bool{}
		for _, l := range labels {
			if l == "" || seen[l] {
				return fmt.Errorf("%w: a label is stated twice or empty: %q", handoff.ErrAttach, l)
			}
			seen[l] = true
		}
	}
	return handoff.CheckTail(a.Decisions, a.Applied, a.Held)
}

// labels are what this rank's engine holds until a Free that was not passed on, by name.
func (m *Machine) labels() []string {
	ls := slices.Collect(maps.Keys(m.kept))
	for _, p := range m.pins {
		ls = append(ls, p.Label)
	}
	slices.Sort(ls)
	return ls
}

// statement is what this rank's engine has, for its leader: decisions as far as they were
// passed on, since the engine may hold what it has not said yet.
func (m *Machine) statement() handoff.Join {
	e := m.engine
	j := handoff.Join{Attach: e.attach, Held: e.held, Applied: e.applied}
	j.Attach.Buffers, j.Attach.Imports = nil, nil
	j.Attach.Pins, j.Attach.Decisions = m.labels(), slices.Clone(e.tail)
	j.Attach.Held, j.Attach.Applied = e.decided, e.applied
	return j
}

// restate says to a leader, under its new roster, what it may not have heard: how far the
// engine is, what became of its imports, and that nothing touches the memory of those
// that were under way in an earlier session.
func (m *Machine) restate() {
	e := m.engine
	if e.decided == 0 {
		return
	}
	m.toLeader(handoff.RankHeld{N: e.held})
	m.toLeader(handoff.RankApplied{N: e.applied})
	for _, a := range e.acks {
		m.toLeader(handoff.RankAcked{Ack: a})
	}
	for _, n := range m.sortedDests() {
		m.dests[n].Restate()
		m.report(m.dests[n])
	}
	for _, r := range e.tail.Reservations() {
		if m.dests[r.N] == nil && r.Open() {
			m.toLeader(handoff.Landed{ID: r.ID, Attempt: r.Attempt, N: r.N, Quiet: true, Why: "the session in which it was read has ended"})
		}
	}
}
