package machine

import (
	"errors"
	"testing"
	"time"

	"github.com/batonkv/baton/sidecar/handoff"
)

func dropType[M handoff.PeerMessage](_, _ handoff.Member, msg handoff.PeerMessage) bool {
	_, ok := msg.(M)
	return ok
}

// A session within a group that breaks and comes back: the sequence goes on, what was
// undecided is dropped, what was held is freed, and the group works.
func TestGroupSessionBreaks(t *testing.T) {
	for _, lost := range []func(_, _ handoff.Member, _ handoff.PeerMessage) bool{nil, dropType[handoff.Decision]} {
		w := pair(t, 2, 2)
		w.importStart("d", w.export("p", "r1", 40))
		w.run()
		man := w.export("p", "r2", 40)
		w.onPull = func(*node, Pull) error { return errStuck }
		w.drop = lost // a decision may go under with the session
		c := w.importStart("d", man)
		w.run()
		w.drop = nil
		w.cut(w.at("d", 0).self, w.at("d", 1).self)
		w.cut(w.at("p", 0).self, w.at("p", 1).self)
		w.run()
		if r := w.ended(c); !errors.Is(r.Err, handoff.ErrEngine) {
			t.Fatal(r.Err)
		}
		w.advance(time.Second)
		w.onPull = nil
		for rank := range 2 {
			d := w.at("d", rank)
			for tk := range d.open {
				delete(d.open, tk)
				d.step(PullDone{Ticket: tk, Err: errors.New("ended")})
			}
		}
		w.run()
		for rank := range 2 {
			if e := w.at("d", rank).eng; len(e.released) != 1 || len(w.at("d", rank).m.dests) != 0 {
				t.Errorf("rank %d: %d released, %d kept", rank, len(e.released), len(w.at("d", rank).m.dests))
			}
			if n := w.at("p", rank); len(n.eng.freed) != 2 || len(n.m.pins) != 0 {
				t.Errorf("source rank %d: %d frees, %d pins", rank, len(n.eng.freed), len(n.m.pins))
			}
		}
		c = w.importStart("d", w.export("p", "r3", 40))
		w.run()
		if r := w.ended(c); r.Err != nil {
			t.Fatal(r.Err)
		}
	}
}

func TestDoneWithoutAnswer(t *testing.T) {
	w := pair(t, 2, 2)
	w.drop = dropType[handoff.DoneAck]
	c := w.importStart("d", w.export("p", "r1", 40))
	w.run()
	w.advance(11 * time.Second)
	if r := w.ended(c); !errors.Is(r.Err, handoff.ErrPeer) {
		t.Fatal(r.Err)
	}
	if ns := w.at("d", 0).notices; ns[len(ns)-1].SourceSafe {
		t.Error("the source may have been consumed, and is said to be safe")
	}
	if e := w.at("d", 1).eng; len(e.admitted) != 0 || len(e.released) != 1 {
		t.Fatalf("%d admits, %d releases", len(e.admitted), len(e.released))
	}
}

// What is decided and not applied everywhere is in doubt for who waits, not failed.
func TestAdmitNotApplied(t *testing.T) {
	w := pair(t, 1, 2)
	w.drop = dropType[handoff.RankApplied]
	c := w.importStart("d", w.export("p", "r1", 40))
	w.run()
	w.advance(11 * time.Second)
	if r := w.ended(c); !errors.Is(r.Err, handoff.ErrInDoubt) {
		t.Fatal(r.Err)
	}
	w.drop = nil
	w.at("d", 1).step(FromEngine{w.at("d", 1).eng.session, handoff.Applied{N: 2}}) // said before: nothing new
	w.cut(w.at("d", 0).self, w.at("d", 1).self)
	w.advance(time.Second)
	if o, ok := w.at("d", 0).m.Get(w.at("d", 0).m.lead.done[0].ID); !ok || o.Err != nil || o.State != handoff.Finished {
		t.Fatalf("after the rank said again what it applied: %+v", o)
	}
}

func TestHeadOfQueueFails(t *testing.T) {
	w := pair(t, 1, 1)
	a, b := w.export("p", "a", 16), w.export("p", "b", 16)
	d := w.at("d", 0)
	d.eng.full = true
	d.step(Import{Call: 98, Import: handoff.Import{Manifest: a, Tokens: make([]int32, 16), Deadline: time.Second}})
	d.step(Import{Call: 99, Import: handoff.Import{Manifest: b, Tokens: make([]int32, 16)}})
	w.run()
	d.eng.full = false
	w.advance(2 * time.Second)
	if w.ended(98).Err == nil || w.ended(99).Err != nil {
		t.Fatalf("%v, %v", w.ended(98).Err, w.ended(99).Err)
	}
}

// The source leader is lost when nothing of it is read any more.
func TestDoneWithoutSession(t *testing.T) {
	w := pair(t, 2, 1)
	man := w.export("p", "r1", 40)
	w.onPull = func(n *node, p Pull) error {
		if p.Peer.Rank == 1 {
			return errStuck
		}
		return nil
	}
	c := w.importStart("d", man)
	w.run()
	d := w.at("d", 0)
	w.cut(d.self, w.at("p", 0).self)
	for tk := range d.open {
		delete(d.open, tk)
		d.step(PullDone{Ticket: tk})
	}
	w.run()
	if r := w.ended(c); !errors.Is(r.Err, handoff.ErrPeer) || !d.notices[len(d.notices)-1].SourceSafe {
		t.Fatalf("%v, source safe %v", r.Err, d.notices[len(d.notices)-1].SourceSafe)
	}
	w.onPull = nil
	w.advance(time.Second)
	c = w.importStart("d", man)
	w.run()
	if r := w.ended(c); r.Err != nil {
		t.Fatal(r.Err)
	}
}

func TestExportCrossesFree(t *testing.T) {
	w := pair(t, 2, 1)
	p := w.at("p", 0)
	p.step(FromEngine{p.eng.session, handoff.Announce{Label: "r"}})
	man := *p.notices[len(p.notices)-1].Manifest
	w.drop = dropType[handoff.RankHeld] // so that no engine applies Free yet
	x := handoff.Export{Label: "r", Tokens: 16, Position: 16, Blocks: []int32{0}}
	p1 := w.at("p", 1)
	p1.step(FromEngine{p1.eng.session, x})
	w.run()
	p.step(Release{Call: 1, ID: man.ID, Key: man.Key})
	p.step(FromEngine{p.eng.session, handoff.Announce{Label: "r"}})
	w.run()
	p.step(FromEngine{p.eng.session, x})
	w.run()
	f, _ := p.eng.got[len(p.eng.got)-1].(handoff.Failed)
	if !errors.Is(f.Err, handoff.ErrGone) || len(p.m.pins)+len(p1.m.pins)+len(p.m.lead.labels) != 0 {
		t.Fatalf("failed %v; pins %d and %d, labels %d", f.Err, len(p.m.pins), len(p1.m.pins), len(p.m.lead.labels))
	}
}

// What cannot be mirrored any more ends with a reason on rank 0's engine.
func TestHopelessLaunch(t *testing.T) {
	for name, c := range map[string]struct {
		join func(*handoff.Join)
		want error
	}{
		"forgot": {func(j *handoff.Join) {
			j.Held, j.Applied, j.Attach.Held, j.Attach.Applied, j.Attach.Decisions = 0, 0, 0, 0, nil
		}, handoff.ErrAttach},
		"claims more": {func(j *handoff.Join) {
			j.Attach.Decisions = append(j.Attach.Decisions, handoff.Decision{N: 3, Kind: handoff.Free, Label: "x"})
			j.Held, j.Attach.Held = 3, 3
		}, handoff.ErrAttach},
		"another model":   {func(j *handoff.Join) { j.Attach.Model.Name = "x" }, handoff.ErrModel},
		"another size":    {func(j *handoff.Join) { j.Attach.Ranks = 3 }, handoff.ErrAttach},
		"unequal blocks":  {func(j *handoff.Join) { j.Attach.Capacity.BlockTokens = 32 }, handoff.ErrAttach},
		"other weights":   {func(j *handoff.Join) { j.Attach.Model.WeightsEpoch = 9 }, handoff.ErrWeights},
		"goes on":         {func(*handoff.Join) {}, nil},
		"applied by less": {func(j *handoff.Join) { j.Applied, j.Attach.Applied = 1, 1 }, handoff.ErrAttach},
	} {
		t.Run(name, func(t *testing.T) {
			w := pair(t, 1, 2)
			w.importStart("d", w.export("p", "r1", 16))
			w.run()
			d, d1 := w.at("d", 0), w.at("d", 1)
			d.step(PeerDown{d1.self, errors.New("cut")})
			j := d1.m.statement()
			c.join(&j)
			d.step(PeerUp{d1.self})
			d.step(FromPeer{d1.self, j})
			switch {
			case c.want == nil && (len(d.closed) > 0 || d.m.lead.roster == nil):
				t.Fatalf("closed %v", d.closed)
			case c.want != nil && (len(d.closed) != 1 || !errors.Is(d.closed[0], c.want)):
				t.Fatalf("closed %v", d.closed)
			}
		})
	}
}

func TestForeignWords(t *testing.T) {
	w := pair(t, 2, 2)
	d1 := w.at("d", 1)
	stranger := handoff.Member{Group: "d", Incarnation: 77}
	for _, msg := range []handoff.PeerMessage{handoff.Roster{}, handoff.Decision{N: 1, Kind: handoff.Free}, handoff.Leased{}, handoff.Unpin{}, handoff.Join{}} {
		was := len(d1.refused)
		if d1.step(FromPeer{stranger, msg}); len(d1.refused) != was+1 {
			t.Errorf("%T of a stranger is taken", msg)
		}
	}
	d1.step(FromPeer{w.at("d", 0).self, handoff.Decision{N: 1, Kind: handoff.Admit, Of: 5}})
	if len(d1.closed) != 1 || !errors.Is(d1.closed[0], handoff.ErrEngine) {
		t.Errorf("admit of nothing: closed %v", d1.closed)
	}
	n := w.at("p", 0)
	n.step(EngineDown{n.eng.session})
	a := n.eng.attach
	a.Held = 3 // and states none of them
	if n.step(FromEngine{5, a}); len(n.closed) != 1 || !errors.Is(n.closed[0], handoff.ErrAttach) {
		t.Errorf("an engine that lost its decisions attaches: %v", n.closed)
	}
}
