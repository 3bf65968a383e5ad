package machine

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/batonkv/baton/sidecar/handoff"
)

// ask imports man by d's engine and leaves it where its messages are held back.
func (w *world) ask(man handoff.Manifest) { w.importAsked("d", man); w.run() }

// back lets time pass until everybody has found each other again.
func (w *world) back() {
	for range 4 {
		w.advance(time.Second)
	}
}

// The longest sequence that any rank holds becomes the group's, Reserve as well as Admit:
// a decision that reached rank 1 alone reaches rank 0 from its successor. What is undecided
// is dropped by new numbers, and nothing is taken before that.
func TestLongestSequenceIsTheGroups(t *testing.T) {
	w := pair(t, 2, 2)
	man := w.export("p", "a", 40)
	w.drop = func(_, to handoff.Member, msg handoff.PeerMessage) bool {
		_, ok := msg.(handoff.Decision)
		return ok && to == w.at("d", 0).self
	}
	w.ask(man)
	d0, d1 := w.at("d", 0).eng, w.at("d", 1).eng
	if d0.last != 0 || d1.last != 1 {
		t.Fatalf("rank 0 holds %d decisions, rank 1 %d", d0.last, d1.last)
	}
	w.drop = nil
	d1.full = true
	one := w.end("d", 1)
	n := w.start(w.end("d", 0))
	n.reattach()
	w.back()
	if n.m.lead.roster != nil || d0.last != 0 {
		t.Fatal("the leader decides before every rank has said what it holds")
	}
	c := w.importStart("d", man)
	if r := w.ended(c); !errors.Is(r.Err, handoff.ErrNotReady) {
		t.Fatalf("an import is taken before that: %v", r.Err)
	}
	w.start(one).reattach()
	w.back()
	if want := []string{"1 reserve 0a", "2 drop 1", "3 release-quarantine 1"}; !slices.Equal(d0.story, want) || d0.ends["a"] != "failed, safe false" {
		t.Fatalf("%q, %q", d0.story, d0.ends["a"])
	}
	w.advance(40 * time.Second) // the lease of a
	w.settled(t)
}

// What an engine applied and its leader did not hear of is stated: an import that every
// rank admitted is Imported, though the leader that decided it is gone.
func TestAppliedIsStated(t *testing.T) {
	for _, all := range []bool{true, false} {
		w := pair(t, 2, 2)
		w.drop = dropType[handoff.RankApplied]
		if !all { // rank 1 has it, and no engine was told to apply it
			w.drop = func(_, _ handoff.Member, msg handoff.PeerMessage) bool {
				h, ok := msg.(handoff.RankHeld)
				return ok && h.N == 2
			}
		}
		w.ask(w.export("p", "a", 40))
		d0 := w.at("d", 0).eng
		if (len(d0.admitted) == 1) != all || len(d0.imports) != 1 {
			t.Fatalf("%d admitted, imports %v", len(d0.admitted), d0.imports)
		}
		w.drop = nil
		w.restart("d", 0)
		w.back()
		if d0.ends["a"] != "imported" || len(w.at("d", 1).eng.admitted) != 1 {
			t.Fatalf("all applied %v: the engine heard %q", all, d0.ends["a"])
		}
		o := w.at("d", 0).m.lead.done
		if len(o) != 1 || o[0].Err != nil || o[0].State != handoff.Finished {
			t.Errorf("Get tells %+v", o)
		}
		w.settled(t)
	}
}

// An import that was not reserved can be tried elsewhere; of one that was, Done may have
// gone out.
func TestRecoveredImportsAreSafeOrNot(t *testing.T) {
	w := pair(t, 2, 2)
	w.full(true)
	w.drop = dropType[handoff.Opened]
	w.ask(w.export("p", "opening", 16))
	w.drop = dropType[handoff.Landed]
	w.full(false)
	w.ask(w.export("p", "pulling", 16))
	w.restart("d", 0)
	w.drop = nil
	w.back()
	d0 := w.at("d", 0).eng
	if d0.ends["opening"] != "failed, safe true" || d0.ends["pulling"] != "failed, safe false" {
		t.Fatalf("%q", d0.ends)
	}
	w.advance(40 * time.Second) // leases of p
	w.settled(t)
}

// A leader that lives on beside its successor does no harm: whoever joined the successor
// hears nothing of it any more, and its own roster is broken.
func TestOldLeaderIsNotHeard(t *testing.T) {
	w := pair(t, 2, 2)
	old, one := w.at("d", 0), w.at("d", 1)
	n := w.start(old)
	if one.m.boss != old.self || old.m.lead.roster == nil {
		t.Fatal("the rank left before its new leader could be reached")
	}
	w.run()
	n.reattach()
	w.back()
	if one.m.boss != n.self || old.m.lead.roster != nil || n.m.lead.roster == nil {
		t.Fatalf("boss %v, the old leader's roster %v", one.m.boss, old.m.lead.roster)
	}
	for _, msg := range []handoff.PeerMessage{handoff.Roster{Instance: one.eng.attach.Instance, Members: []handoff.Member{old.self, one.self}},
		handoff.Decision{N: 1, Kind: handoff.Free, Label: "x"}, handoff.Leased{}, handoff.Extend{}, handoff.Unpin{}} {
		was := len(one.refused)
		if one.step(FromPeer{old.self, msg}); len(one.refused) != was+1 || one.refused[was].Why != NotMember {
			t.Errorf("%T of the old leader is taken", msg)
		}
	}
	w.ask(w.export("p", "a", 40))
	if len(one.eng.admitted) != 1 {
		t.Fatalf("the group does not work: %q", n.eng.ends)
	}
}

// A rank that restarts says no to every Check of what it pinned before, and frees it
// at its own deadline when no leader does.
func TestRestartedRankFreesWithoutALeader(t *testing.T) {
	w := pair(t, 2, 1)
	man := w.export("p", "a", 40)
	pin := w.at("p", 1).m.sortedPins()[0].Info
	w.end("p", 0)
	w.restart("p", 1)
	p1 := w.at("p", 1)
	w.run()
	var said []bool
	w.drop = func(_, _ handoff.Member, msg handoff.PeerMessage) bool {
		if c, ok := msg.(handoff.Checked); ok {
			said = append(said, c.Held)
		}
		return false
	}
	d := w.at("d", 0)
	p1.up[d.self], d.up[p1.self] = true, true
	for id := handoff.PinID(1); id < 3; id++ {
		p1.step(FromPeer{d.self, handoff.Check{ID: man.ID, Attempt: 1, Pin: id, Generation: pin.Generation}})
	}
	w.run()
	if !slices.Equal(said, []bool{false, false}) {
		t.Errorf("pins of before the restart are held: %v", said)
	}
	w.advance(p1.m.cfg.MaxHold + p1.m.cfg.Margin - 1)
	if len(p1.eng.unpinned) != 0 {
		t.Fatal("given back before the rank's own deadline")
	}
	w.advance(1)
	if len(p1.eng.unpinned) != 1 || len(p1.m.kept) != 0 {
		t.Fatalf("%d given back at it, kept %v", len(p1.eng.unpinned), p1.m.kept)
	}
}

// A source leader that restarts ends what its predecessor held: gone for importers, freed
// in the group's order by every rank, once.
func TestRestartedSourceLeaderFrees(t *testing.T) {
	w := pair(t, 2, 1)
	man := w.export("p", "a", 40)
	w.export("p", "b", 16)
	w.restart("p", 0)
	c := w.importStart("d", man)
	w.back()
	if r := w.ended(c); !errors.Is(r.Err, handoff.ErrGone) {
		t.Errorf("the predecessor's hand-off: %v", r.Err)
	}
	p0, d := w.at("p", 0), w.at("d", 0)
	for _, msg := range []handoff.PeerMessage{handoff.Open{ID: man.ID, Key: man.Key, Importer: d.importer(), Attempt: 1},
		handoff.Done{ID: man.ID, Importer: d.importer(), Attempt: 1}} {
		var got handoff.Status
		w.drop = func(_, _ handoff.Member, m handoff.PeerMessage) bool {
			switch m := m.(type) {
			case handoff.Opened:
				got = m.Status
			case handoff.DoneAck:
				got = m.Status
			}
			return true
		}
		p0.up[d.self], d.up[p0.self] = true, true
		p0.step(FromPeer{d.self, msg})
		if w.run(); got != handoff.Gone {
			t.Errorf("%T of the predecessor's id: %v", msg, got)
		}
	}
	for rank := range 2 {
		if e := w.at("p", rank).eng; !slices.Equal(e.story, []string{"1 free 0a", "2 free 0b"}) || len(e.unpinned) != 0 {
			t.Errorf("rank %d: %q, %d given back outside the order", rank, e.story, len(e.unpinned))
		}
	}
}

// An importing leader that restarts consumes nothing by what its predecessor opened, and
// no answer to the predecessor is taken for one to it.
func TestSuccessorOpensAnew(t *testing.T) {
	w := pair(t, 2, 1)
	man := w.export("p", "a", 40)
	w.drop = dropType[handoff.Done]
	w.ask(man)
	was := w.at("d", 0).m.lead.imports[0].Attempt
	w.restart("d", 0)
	w.drop = nil
	w.back()
	d, p := w.at("d", 0), w.at("p", 0)
	var got handoff.DoneAck
	w.drop = func(_, _ handoff.Member, m handoff.PeerMessage) bool {
		if a, ok := m.(handoff.DoneAck); ok {
			got = a
		}
		return false
	}
	p.up[d.self], d.up[p.self] = true, true
	p.step(FromPeer{d.self, handoff.Done{ID: man.ID, Importer: d.importer(), Attempt: was}})
	if w.run(); got.Status != handoff.Gone {
		t.Fatalf("a claim of its predecessor: %v", got.Status)
	}
	w.ask(man)
	if d.eng.ends["a"] != "imported" || d.m.lead.done[len(d.m.lead.done)-1].Attempt == was {
		t.Fatalf("%q, attempt %d after %d", d.eng.ends, d.m.lead.done[0].Attempt, was)
	}
}

// With no leader an engine's imports stay held, however long that takes; its successor
// drops them and they come back.
func TestImportsStayHeldWithoutALeader(t *testing.T) {
	w := pair(t, 2, 2)
	w.drop = dropType[handoff.Landed]
	w.ask(w.export("p", "a", 40))
	old := w.end("d", 0)
	one := w.at("d", 1)
	for range 100 {
		w.advance(time.Hour)
	}
	if len(one.eng.released)+len(one.eng.admitted) != 0 || one.eng.last != 1 || len(one.m.dests) != 1 {
		t.Fatalf("%d given back by nobody's word", len(one.eng.released))
	}
	w.drop = nil
	w.start(old).reattach()
	w.back()
	w.settled(t)
	if len(one.eng.released) != 1 {
		t.Error("not given back by the leader that came")
	}
}

// A decision that is lost is missed when the next one comes: the rank states anew what it
// holds, and hears both.
func TestLostDecisionIsSentAgain(t *testing.T) {
	w := pair(t, 2, 2)
	lost := false
	w.drop = func(_, to handoff.Member, msg handoff.PeerMessage) bool {
		d, ok := msg.(handoff.Decision)
		drop := ok && to == w.at("d", 1).self && d.N == 1 && !lost
		lost = lost || drop
		return drop
	}
	w.ask(w.export("p", "a", 40))
	d := w.at("d", 0)
	d.step(FromEngine{d.eng.session, handoff.AbortImport{Label: "a"}})
	w.back()
	w.advance(40 * time.Second) // the lease of a
	w.settled(t)
	if !lost || len(d.eng.released) != 1 {
		t.Fatalf("lost %v, %q", lost, d.eng.story)
	}
}

// A decision that nobody holds any more is the one thing that ends a launch.
func TestDecisionThatNobodyHolds(t *testing.T) {
	w := pair(t, 2, 2)
	w.ask(w.export("p", "a", 40))
	for rank := range 2 { // both say that they have forgotten what the other has not applied
		e := w.at("d", rank).eng
		e.applied, e.tail = uint64(2*(1-rank)), e.tail[1:]
		if rank == 1 {
			e.last, e.tail = 0, nil
		}
	}
	w.end("d", 1)
	w.restart("d", 0)
	w.start(w.at("d", 1)).reattach()
	w.back()
	n := w.at("d", 0)
	if len(n.closed) == 0 || !errors.Is(n.closed[0], handoff.ErrAttach) || !strings.Contains(n.closed[0].Error(), "no rank holds decision 1 of 2") {
		t.Fatalf("closed %v", n.closed)
	}
}

// A leader whose engine attached again does not go by what ranks said before that.
func TestStatementsOfTheLastLaunchAreForgotten(t *testing.T) {
	w := pair(t, 1, 2)
	d := w.at("d", 0)
	d.step(EngineDown{d.eng.session})
	d.eng.session = 77
	d.step(FromEngine{77, d.eng.statement()})
	d.step(FromEngine{77, handoff.BuffersReady{}})
	d.step(Mapped{Session: 77, PID: 7})
	d.step(FromPeer{d.self, d.m.statement()})
	if d.m.lead.roster != nil {
		t.Fatal("the roster stands on a statement of the last launch")
	}
	w.back()
	if d.m.lead.roster == nil {
		t.Fatal("the roster does not stand again")
	}
}
