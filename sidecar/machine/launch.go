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
// It outlives a broken session within the group and a sidecar that restarts on another
// rank: the engines are the same, so the sequence goes on where it was. It ends with the
// leader's own engine session; what comes after it is made from what all ranks state.
type launch struct {
	seq      *handoff.Sequence
	log      []handoff.Decision // that some rank may not hold, oldest first
	owed     []handoff.Decision // to be decided when the roster stands again
	freeing  []freeing          // by rank
	reserved uint64             // the newest Reserve
	taking   taking
}

// freeing are the labels whose decision Free an engine has not applied, with its number.
// An export of such a label that comes meanwhile was sent before: Free is about it too.
type freeing map[string]uint64

func (f freeing) applied(n uint64) {
	maps.DeleteFunc(f, func(_ string, free uint64) bool { return free <= n })
}

// join takes a rank's statement. The roster stands when every rank of one launch is here.
// Of two live sidecars of a rank the one counts that discovery shows. The session of the
// other ends: if it lives, and is the later one, it comes back when discovery shows it.
func (m *Machine) join(p handoff.Member, j handoff.Join) {
	a := j.Attach
	if a.Group != m.cfg.Self.Group || a.Rank != p.Rank || a.Rank < 0 || a.Ranks < 1 || a.Ranks > maxRanks || int32(a.Rank) >= a.Ranks ||
		j.Held > a.Held || j.Applied > j.Held || checkStated(a) != nil {
		m.refuse(p, j, Malformed)
		return
	}
	if err := a.Model.Layout.Check(a.Shards); err != nil {
		m.refuse(p, j, Malformed)
		return
	}
	if !m.shows(p) {
		m.refuse(p, j, NotMember)
		m.do(ClosePeer{p})
		return
	}
	if o, ok := m.lead.joins[p.Rank]; ok && o.from != p {
		m.do(ClosePeer{o.from})
	}
	m.lead.joins[p.Rank] = join{from: p, Join: j, fresh: true}
	for _, r := range m.Strangers() { // each once: who joined, or all when rank 0 did
		if o := m.lead.joins[r]; r == p.Rank || p.Rank == 0 {
			m.refuse(o.from, o.Join, Launch)
		}
	}
	if m.lead.roster != nil {
		if !m.rostered(p.Rank) {
			return // of another launch, of more ranks: this one stands without it
		}
		m.breakRoster(fmt.Errorf("%w: rank %d joined anew", handoff.ErrNotReady, p.Rank))
	}
	m.form()
}

// rostered reports whether the roster stands and has a rank r.
func (m *Machine) rostered(r layout.Rank) bool {
	return m.lead.roster != nil && int(r) < len(m.lead.roster.Members)
}

// shows reports whether discovery shows p for its rank, or nobody while no other is here.
func (m *Machine) shows(p handoff.Member) bool {
	if p == m.cfg.Self {
		return true
	}
	if at, _, ok := m.lookup(p.Group, p.Rank); ok {
		return at == p
	}
	j, here := m.lead.joins[p.Rank]
	return !here || j.from == p
}

// form makes the roster if it can. What makes this launch hopeless is told to the
// leader's engine, whose end ends the launch.
func (m *Machine) form() {
	if m.engine == nil || !m.engine.mapped {
		return
	}
	own := m.engine.attach
	var joins []join
	for rank := range layout.Rank(own.Ranks) {
		j, ok := m.lead.joins[rank]
		if !ok || j.Attach.Instance != own.Instance {
			return
		}
		joins = append(joins, j)
	}
	err := m.agree(joins)
	var again handoff.Tail
	if err == nil && m.lead.launch == nil {
		again, err = m.startLaunch(joins)
	}
	if err == nil {
		err = m.agreeWeights(joins)
	}
	if err != nil {
		m.do(CloseEngine{m.engine.session, fmt.Errorf("%w: %w", handoff.ErrRelaunch, err)})
		return
	}
	m.setRoster(joins)
	m.resume(joins)
	m.recoverImports(again)
	m.freeStated(joins)
	m.tellIntake()
	m.endRecovered()
	m.advertise()
	m.publish(events.Ready, events.Event{})
	m.do(Notify{Notice{Kind: NoticeReady}})
	for _, p := range m.lead.askers {
		m.do(ToPeer{p, m.lead.roster.Geometry})
	}
	m.lead.askers = nil
}

// agree says why ranks that are all here cannot work as one group.
func (m *Machine) agree(joins []join) error {
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
		case a.Capacity.BlockTokens != own.Capacity.BlockTokens:
			return fmt.Errorf("%w: rank %d has blocks of %d tokens, rank 0 of %d", handoff.ErrAttach, r, a.Capacity.BlockTokens, own.Capacity.BlockTokens)
		case l != nil && j.fresh && (!l.seq.Stated(r, j.Held, j.Applied) || a.Held > l.seq.N()):
			return fmt.Errorf("%w: rank %d holds %d decisions and applied %d, which is not what it said before",
				handoff.ErrAttach, r, j.Held, j.Applied)
		}
	}
	return nil
}

// agreeWeights compares the weights of ranks that hold every decision: what the others
// lack brings theirs.
func (m *Machine) agreeWeights(joins []join) error {
	l := m.lead.launch
	for r, j := range joins {
		if at := j.Attach.Model.WeightsEpoch; j.fresh && j.Attach.Held == l.seq.N() && at != m.lead.weights.epoch {
			return fmt.Errorf("%w: rank %d has %d, the group %d", handoff.ErrWeights, r, at, m.lead.weights.epoch)
		}
	}
	return nil
}

func (m *Machine) setRoster(joins []join) {
	own := m.engine.attach
	g := handoff.Geometry{Group: m.cfg.Self.Group, Instance: own.Instance, Model: own.Model.Layout}
	for _, j := range joins {
		g.Members = append(g.Members, j.from)
		g.Shards = append(g.Shards, j.Attach.Shards...)
	}
	m.lead.roster = &handoff.Roster{Instance: own.Instance, Members: g.Members, Geometry: g}
	clear(m.lead.shown)
	for _, p := range g.Members {
		m.do(ToPeer{p, *m.lead.roster})
	}
}

// resume sends each rank the decisions that it may have missed, in order, and decides
// what is owed since the roster broke.
func (m *Machine) resume(joins []join) {
	l := m.lead.launch
	for r, j := range joins {
		l.freeing[r].applied(j.Applied)
		for _, d := range l.log {
			if d.N > l.seq.HeldBy(r) {
				m.do(ToPeer{j.from, d})
			}
		}
	}
	owed := l.owed
	l.owed = nil
	for _, d := range owed {
		m.decideAll(d)
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
	if m.rostered(p.Rank) {
		if p != m.cfg.Self {
			m.stopped(p.Rank)
		}
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
	m.do(Advertise{Draining: m.lead.draining})
	m.publish(events.Detached, events.Event{Cause: why.Error()})
	m.do(Notify{Notice{Kind: NoticeLost, Err: why}})
}

// endLaunch forgets a launch whose engine session on rank 0 is over. If that engine lives
// it comes back, and the launch is made anew from what every rank states then.
func (m *Machine) endLaunch(why error) {
	m.lead.launch = nil
	m.doubtAwaited(why)
	clear(m.lead.joins)
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
	d.Settled, d.N = m.settled(), l.seq.Next()
	switch i := m.importByReserve(d.Of); {
	case d.Kind == handoff.Reserve:
		l.reserved = d.N
	case d.Kind == handoff.Drop && i != nil:
		i.dropN = d.N
	}
	l.taking.decided(d, len(m.lead.roster.Members))
	d.WeightsEpoch = m.lead.weights.epoch
	l.log = append(l.log, d)
	for r, p := range m.lead.roster.Members {
		if d.Kind == handoff.Free {
			l.freeing[r][d.Label] = d.N
		}
		m.do(ToPeer{p, d})
	}
	return d.N
}

// settled is the newest decision that nobody need keep: every rank applied it and all
// before it, and no import that is still under way rests on one of them.
func (m *Machine) settled() uint64 {
	n := m.lead.launch.seq.AllApplied()
	for _, i := range m.lead.imports {
		if at := i.rests(); at > 0 {
			n = min(n, at-1)
		}
	}
	return n
}

// rests is the decision from which a leader that comes back can end i; 0: none is needed.
func (i *importing) rests() uint64 {
	switch s := i.State(); {
	case s == handoff.Draining && i.dropN > 0:
		return i.dropN
	case s >= handoff.Granting && s <= handoff.Draining:
		return i.ReserveN
	}
	return 0
}

// What the ranks keep for a recovery is bounded: an import whose copies never end is
// dropped again from time to time, by a new number, and no Reserve is decided while much
// more rests on older ones.
const (
	dropAgain = 4096
	maxTail   = 2 * dropAgain
)

func (m *Machine) shortenTails() {
	l := m.lead.launch
	if m.lead.roster == nil || l.seq.N()-m.settled() < dropAgain {
		return
	}
	for _, i := range m.lead.imports {
		if i.dropN > 0 && i.State() == handoff.Draining && l.seq.N()-i.dropN > dropAgain/2 {
			m.decideAll(handoff.Decision{Kind: handoff.Drop, ID: i.ID(), Attempt: i.Attempt, Of: i.ReserveN})
		}
	}
}

// mayReserve reports whether another Reserve may be decided. One is on its way at a time,
// so that its contents, which are large, are all that a rank may have to state of them.
func (m *Machine) mayReserve() bool {
	l := m.lead.launch
	return l.reserved <= l.seq.AllApplied() && l.seq.N()-m.settled() < maxTail
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
	m.lead.launch.seq.Applied(int(rank), n)
	m.lead.launch.freeing[rank].applied(n)
	m.answerAwaited()
	m.endApplied()
	m.shortenTails()
	if m.lead.waits && m.mayReserve() {
		m.reserveNext()
	}
}

// endApplied ends the imports whose Admit every rank applied.
func (m *Machine) endApplied() {
	all := m.lead.launch.seq.AllApplied()
	for _, i := range slices.Clone(m.lead.imports) {
		if i.Applied(all, m.now) {
			m.admitted(i)
		}
	}
}
