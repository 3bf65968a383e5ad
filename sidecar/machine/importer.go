package machine

import (
	"errors"
	"fmt"
	"slices"

	"github.com/batonkv/baton/discovery"
	"github.com/batonkv/baton/sidecar/events"
	"github.com/batonkv/baton/sidecar/handoff"
)

// importing is an import with those who wait for it.
type importing struct {
	*handoff.Leader
	calls    []Call
	engine   bool     // rank 0's engine asked
	asked    bool     // Done went out: the source may be consumed
	doubted  bool     // callers were told that the outcome is in doubt
	safe     bool     // it failed and the source is still held
	hashes   []uint64 // of the prompt's complete blocks
	full     bool     // it found no room, and none came back since
	deferred uint64   // the one that another import brings; 0: it is not deferred
	importer handoff.Importer
	dropN    uint64 // its newest Drop
	// recovered: a leader before this one began it, and only its end is awaited.
	recovered bool
}

// maxCalls bounds the control calls that wait for one import.
const maxCalls = 64

// importCall and importEngine are the two ways in.
func (m *Machine) importCall(e Import) {
	i, err := m.startImport(e.Import)
	if err != nil {
		m.do(Reply{Call: e.Call, Err: err})
		return
	}
	i.calls = append(i.calls, e.Call)
	m.find(i)
}

func (m *Machine) importEngine(im handoff.Import) {
	if !m.leads() {
		m.toEngine(handoff.Failed{Label: im.Label, SourceSafe: true,
			Err: fmt.Errorf("%w: rank %d asks for an import: rank 0 alone does", handoff.ErrRole, m.cfg.Self.Rank)})
		return
	}
	i, err := m.startImport(im)
	if err != nil {
		m.toEngine(handoff.Failed{Label: im.Label, Err: err, SourceSafe: !errors.Is(err, handoff.ErrInDoubt)})
		return
	}
	i.engine = true
	m.find(i)
}

// startImport queues an import; the same hand-off under the same label joins the one
// under way.
func (m *Machine) startImport(im handoff.Import) (*importing, error) {
	if im.Label == "" {
		im.Label = im.Manifest.Label
	}
	for _, i := range m.lead.imports {
		if i.State() == handoff.Draining || i.Import.Label != im.Label {
			continue
		}
		switch old := i.Import; {
		case i.recovered && old.Manifest.ID == im.Manifest.ID:
			return nil, fmt.Errorf("%w: the import of %v ends as a leader before this one decided", handoff.ErrInDoubt, i.ID())
		case old.Manifest.ID != im.Manifest.ID || old.Manifest.Key != im.Manifest.Key || !slices.Equal(old.Tokens, im.Tokens):
			return nil, fmt.Errorf("%w: label %q names another import under way", handoff.ErrUnknown, im.Label)
		case len(i.calls) >= maxCalls || i.doubted:
			return nil, fmt.Errorf("%w: the import of %v is under way", handoff.ErrInDoubt, i.ID())
		}
		return i, nil
	}
	if err := m.checkImport(im); err != nil {
		return nil, err
	}
	deadline := im.Deadline
	if deadline <= 0 {
		deadline = m.cfg.Deadline
	}
	m.lead.attempts++
	i := &importing{Leader: handoff.NewLeader(im, m.lead.attempts, int32(len(m.lead.roster.Members)), m.now, m.now+deadline),
		importer: handoff.Importer{Group: m.cfg.Self.Group, Instance: m.lead.roster.Instance, Leader: m.cfg.Self.Incarnation}}
	m.lead.imports = append(m.lead.imports, i)
	return i, nil
}

func (m *Machine) checkImport(im handoff.Import) error {
	man, here := im.Manifest, m.whole()
	switch {
	case !m.leads():
		return here
	case m.cfg.Role == discovery.Prefill:
		return fmt.Errorf("%w: group %s has the role prefill: it imports nothing", handoff.ErrRole, m.cfg.Self.Group)
	case here != nil:
		return here
	case m.lead.draining:
		return fmt.Errorf("%w: group %s takes no new work: import into another group", handoff.ErrDraining, m.cfg.Self.Group)
	case len(m.lead.imports) >= m.cfg.MaxImports:
		return fmt.Errorf("%w: %d imports wait in group %s", handoff.ErrCapacity, len(m.lead.imports), m.cfg.Self.Group)
	case man.ID.Group == "" || im.Label == "":
		return fmt.Errorf("%w: the manifest names no hand-off or the import no label", handoff.ErrUnknown)
	case man.ID.Group == m.cfg.Self.Group:
		return fmt.Errorf("%w: group %s holds this hand-off itself", handoff.ErrPlan, man.ID.Group)
	case man.Model != modelDigest(m.engine.attach.Model):
		return fmt.Errorf("%w: the manifest is of model %v, group %s runs %q (%v)", handoff.ErrModel, man.Model,
			m.cfg.Self.Group, m.engine.attach.Model.Name, modelDigest(m.engine.attach.Model))
	case len(im.Tokens) == 0:
		return fmt.Errorf("%w: an import brings the prompt's tokens", handoff.ErrPosition)
	case man.Tokens > 0 && int(man.Tokens) != len(im.Tokens):
		return fmt.Errorf("%w: the manifest is of %d tokens, the import brings %d", handoff.ErrPosition, man.Tokens, len(im.Tokens))
	}
	return nil
}

// find gets the source leader's session and geometry, then opens.
func (m *Machine) find(i *importing) {
	if i.State() != handoff.Finding {
		return
	}
	at, _, ok := m.lookup(i.Source.Group, 0)
	if ok && at.Incarnation != i.Source.Incarnation {
		m.failImport(i, fmt.Errorf("%w: the leader of group %s that held it has restarted", handoff.ErrGone, i.Source.Group))
		return
	}
	if !m.up(i.Source) {
		m.want(i.Source)
		return
	}
	g := m.known(i.Source, i.ID().Instance)
	if g == nil {
		return // asked
	}
	plan, err := m.planFrom(g)
	if err != nil {
		m.failImport(i, err)
		return
	}
	i.Open(plan)
	m.do(ToPeer{i.Source, handoff.Open{ID: i.ID(), Key: i.Import.Manifest.Key, Importer: i.importer, Attempt: i.Attempt, Plan: plan,
		Parts: m.readsParts()}})
}

// known returns the geometry of the launch that p leads, or asks for it and returns nil.
func (m *Machine) known(p handoff.Member, launch handoff.Instance) *sourceGroup {
	g := m.lead.groups[p]
	switch {
	case g == nil:
		m.lead.groups[p] = &sourceGroup{}
		m.do(ToPeer{p, handoff.WantGeometry{}})
		return nil
	case g.digest != (handoff.Digest{}) && g.geometry.Instance != launch && g.again != launch:
		m.lead.groups[p] = &sourceGroup{again: launch}
		m.do(ToPeer{p, handoff.WantGeometry{}})
		return nil
	case g.digest == (handoff.Digest{}):
		return nil
	}
	g.again = 0
	return g
}

// findSources looks again after discovery or a session brought something.
func (m *Machine) findSources() {
	for _, i := range slices.Clone(m.lead.imports) {
		m.find(i)
	}
}

// sourceDown: what was asked of p and not answered is lost. An import whose Done was
// under way is dropped: the copy may be consumed, which costs a prefill, never a byte.
func (m *Machine) sourceDown(p handoff.Member) {
	if g := m.lead.groups[p]; g != nil && (g.digest == (handoff.Digest{}) || !m.listed(p)) {
		delete(m.lead.groups, p)
	}
	for _, i := range slices.Clone(m.lead.imports) {
		if i.Source == p && (i.State() == handoff.Opening || i.State() == handoff.Consuming || i.Awaits()) {
			m.failImport(i, fmt.Errorf("%w: session to %v ended", handoff.ErrPeer, p))
		}
	}
}

func (m *Machine) importOf(id handoff.ID, a handoff.Attempt) *importing {
	for _, i := range m.lead.imports {
		if i.ID() == id && i.Attempt == a {
			return i
		}
	}
	return nil
}

// roster reports whether ms are a group that p leads, one for each rank, in order. Its
// processes may be others than those whose geometry is known: the plan, which both sides
// compare, says that their shards are the same.
func roster(p handoff.Member, ms []handoff.Member) bool {
	for i, o := range ms {
		if o.Group != p.Group || int(o.Rank) != i || i == 0 && o != p {
			return false
		}
	}
	return true
}

// opened takes the source's answer and queues the import for blocks.
func (m *Machine) opened(p handoff.Member, o handoff.Opened) {
	i := m.importOf(o.ID, o.Attempt)
	if i != nil && i.Source == p && i.Awaits() && o.Status == handoff.Gone {
		m.failImport(i, fmt.Errorf("%w: %v ended before all of it was exported", handoff.ErrGone, o.ID))
		return
	}
	if i == nil || i.Source != p || i.State() != handoff.Opening {
		m.refuse(p, o, Unmatched)
		return
	}
	err := i.Answered(o, m.now)
	if g := m.lead.groups[p]; err == nil && o.Status == handoff.OK {
		switch {
		case g == nil || len(o.Members) != len(g.geometry.Members) || len(o.Pins) != len(o.Members) || !roster(p, o.Members):
			if g != nil && g.digest != (handoff.Digest{}) { // else it is asked for anew, and p's opens wait for it
				delete(m.lead.groups, p)
			}
			err = fmt.Errorf("%w: the roster of group %s changed", handoff.ErrGone, p.Group)
		case slices.ContainsFunc(o.Pins, func(x handoff.PinInfo) bool {
			return int(x.Rank) >= len(o.Pins) || x.Rank < 0 || o.Pins[x.Rank].Pin != x.Pin
		}):
			err = fmt.Errorf("%w: the source's pins are not one for each rank, in order", handoff.ErrPlan)
		case o.More && !m.readsParts():
			err = fmt.Errorf("%w: the source answers in parts, and an engine here takes none", handoff.ErrPlan)
		default:
			if err = m.checkSums(g.geometry.Model, o); err == nil {
				err = m.hash(i)
			}
		}
	}
	if err != nil {
		m.failImport(i, err)
		return
	}
	m.reserveNext()
}

func (m *Machine) importByReserve(n uint64) *importing {
	for _, i := range m.lead.imports {
		if i.ReserveN == n {
			return i
		}
	}
	return nil
}

// granted takes a rank's answer to Reserve.
func (m *Machine) granted(p handoff.Member, r handoff.Reserved) {
	i := m.importByReserve(r.N)
	if i == nil || i.State() != handoff.Granting {
		return // dropped meanwhile
	}
	done, full, err := i.Granted(int(p.Rank), r, m.now)
	switch {
	case errors.Is(err, handoff.ErrEngine):
		// Nothing that the ranks say of their memory can be trusted any more.
		m.failImport(i, err)
		m.do(CloseEngine{m.engine.session, err})
		return
	case err != nil:
		m.failImport(i, err)
	case done && !full:
		m.bring(i)
		if i.Consumable(m.now) {
			m.consume(i)
		}
	}
	if done {
		i.full = full && !m.lead.freed
		m.reserveNext()
	}
}

func (m *Machine) landed(p handoff.Member, l handoff.Landed) {
	i := m.importByReserve(l.N)
	if i == nil {
		return
	}
	all, err := i.Landed(int(p.Rank), l, m.now)
	if err != nil {
		m.failImport(i, err)
	}
	if all {
		m.publish(events.Landed, events.Event{Handoff: i.ID().String(), Label: i.Import.Label, Bytes: i.Bytes, Elapsed: i.Phases.Move})
		m.consume(i)
	}
	m.drained(i)
}

// consume asks for a copy. Without a session nothing was asked, and nothing consumed.
func (m *Machine) consume(i *importing) {
	if !m.up(i.Source) {
		m.failImport(i, fmt.Errorf("%w: no session to %v", handoff.ErrPeer, i.Source))
		return
	}
	i.asked = true
	m.do(ToPeer{i.Source, handoff.Done{ID: i.ID(), Importer: i.importer, Attempt: i.Attempt}})
}

func (m *Machine) doneAnswered(p handoff.Member, a handoff.DoneAck) {
	i := m.importOf(a.ID, a.Attempt)
	if i == nil || i.Source != p || i.State() != handoff.Consuming {
		m.refuse(p, a, Unmatched)
		return
	}
	err := i.Consumed(a)
	if err == nil {
		err = m.checkEpoch(i)
	}
	if err != nil {
		m.failImport(i, err)
		return
	}
	d := handoff.Decision{Kind: handoff.Admit, ID: i.ID(), Attempt: i.Attempt, Of: i.ReserveN}
	if i.Late {
		d.Resume = i.Opened.Resume
	}
	i.Admit(m.decideAll(d), m.now)
}

func (m *Machine) admitted(i *importing) {
	res := handoff.Imported{Label: i.Import.Label, ID: i.ID(), Bytes: i.Bytes, Cached: i.Cached, Phases: i.Phases}
	if i.engine {
		m.toEngine(res)
	}
	for _, c := range i.calls {
		m.do(Reply{Call: c, Imported: res})
	}
	m.do(Notify{Notice{Kind: NoticeImported, Label: res.Label, Imported: res, ID: res.ID}})
	m.publish(events.Admitted, events.Event{Handoff: i.ID().String(), Label: res.Label, Bytes: res.Bytes})
	m.finish(i, m.outcome(i))
	m.reserveNext() // it may have brought what others wait for
}
