package machine

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/batonkv/baton/sidecar/handoff"
	"github.com/batonkv/baton/transfer/staged"
)

// askGrant asks rank 0 of p for leave to pack what d reads of label, and returns the answer.
func (w *world) askGrant(grant uint64, label string, change func(*AskGrant)) Effect {
	p, d := w.at("p", 0), w.at("d", 0)
	e := AskGrant{Grant: grant, Peer: d.self}
	if pin := p.m.pinOf(label); pin != nil {
		e.Of = handoff.Check{ID: pin.ID, Attempt: 7, Pin: pin.Info.Pin, Generation: pin.Info.Generation}
	}
	if change != nil {
		change(&e)
	}
	p.packs = nil
	p.step(e)
	if len(p.packs) == 0 {
		w.t.Fatalf("AskGrant is answered %+v", p.packs)
	}
	return p.packs[0]
}

// grant is an ask that is granted.
func (w *world) grant(grant uint64, label string, by staged.Packer) {
	w.t.Helper()
	if x, ok := w.askGrant(grant, label, func(e *AskGrant) { e.Packer = by }).(Granted); !ok || x.Grant != grant || len(x.Pin.Blocks) == 0 {
		w.t.Fatalf("not granted: %+v", x)
	}
	w.at("p", 0).packs = nil
}

// met is a pair of groups that have met: their session stands.
func met(t *testing.T, src, dst int32) *world {
	w := pair(t, src, dst)
	c := w.importStart("d", w.export("p", "first", 40))
	w.run()
	if r := w.ended(c); r.Err != nil {
		t.Fatal(r.Err)
	}
	return w
}

// hears returns what the leader's engine of p was told of a label's end.
func (w *world) hears(label string) string {
	e := w.at("p", 0).eng
	var out []string
	for _, m := range e.got {
		switch m := m.(type) {
		case handoff.UnpinExport:
			if m.Label == label {
				out = append(out, "unpin")
			}
		case handoff.Failed:
			if m.Label == label {
				out = append(out, "failed")
			}
		case handoff.Decision:
			if m.Kind == handoff.Free && m.Label == label {
				out = append(out, "free")
			}
		}
	}
	return strings.Join(out, " ")
}

func TestGrants(t *testing.T) {
	w := met(t, 1, 1)
	w.export("p", "r1", 40)
	for name, change := range map[string]func(*AskGrant){
		"another generation": func(e *AskGrant) { e.Of.Generation++ },
		"another pin":        func(e *AskGrant) { e.Of.Pin++ },
		"another hand-off":   func(e *AskGrant) { e.Of.ID.N++ },
		"another life":       func(e *AskGrant) { e.Peer.Incarnation++ },
		"a stranger":         func(e *AskGrant) { e.Peer = handoff.Member{Group: "x"} },
	} {
		if x := w.askGrant(1, "r1", change); x != (Effect)(GrantRefused{1}) {
			t.Errorf("%s: %+v", name, x)
		}
	}
	w.grant(2, "r1", staged.Packer{})
	w.grant(3, "r1", staged.Packer{}) // another pair of the same pull
	if l := w.at("p", 0).m.Load(); l.Grants != 2 || l.Leaving != 0 {
		t.Errorf("%+v", l)
	}
	w.at("p", 0).step(GrantEnded{2})
	if given, held := w.at("p", 0).m.Grants(); given != 2 || held != 1 {
		t.Errorf("%d given, %d held", given, held)
	}
	w.now = w.at("p", 0).m.pinOf("r1").Deadline
	if x := w.askGrant(4, "r1", nil); x != (Effect)(GrantRefused{4}) {
		t.Errorf("at the rank's deadline: %+v", x)
	}
}

// A pin has room for as many pulls as a hand-off has claims.
func TestGrantsAreBounded(t *testing.T) {
	w := met(t, 1, 1)
	w.export("p", "r1", 40)
	for n := range uint64(1100) {
		x := w.askGrant(n, "r1", func(e *AskGrant) { e.Of.Attempt = handoff.Attempt(n) })
		if _, ok := x.(Granted); ok != (n < 1024) {
			t.Fatalf("pull %d: %+v", n, x)
		}
	}
}

// The rank's own deadline comes while it is packed from: nobody begins, who packs hears,
// and the engine hears of it when the last one has ended.
func TestPackDelaysUnpin(t *testing.T) {
	w := met(t, 1, 1)
	w.export("p", "r1", 40)
	p := w.at("p", 0)
	w.grant(1, "r1", staged.Packer{})
	w.grant(2, "r1", staged.Packer{})
	pin := *p.m.pinOf("r1")
	p.m.lead.sources[pin.ID].End() // its leader is silent
	w.now = pin.Deadline
	p.step(Tick{})
	w.run()
	if !slices.Equal(p.packs, []Effect{Revoked{1}, Revoked{2}}) || w.hears("r1") != "" {
		t.Fatalf("%+v, the engine heard %q", p.packs, w.hears("r1"))
	}
	of := handoff.Check{ID: pin.ID, Attempt: 7, Pin: pin.Info.Pin, Generation: pin.Info.Generation}
	if x := w.askGrant(3, "r1", func(e *AskGrant) { e.Of = of }); x != (Effect)(GrantRefused{3}) {
		t.Errorf("asked while it leaves: %+v", x)
	}
	if fs := p.m.Step(w.now, FromPeer{w.at("d", 0).self, of}); !slices.Contains(fs, Effect(ToPeer{w.at("d", 0).self, handoff.Checked{Check: of}})) {
		t.Errorf("Check while it leaves: %+v", fs)
	}
	if l := p.m.Load(); l.Leaving != 1 || l.Pins != 1 || l.Grants != 2 {
		t.Errorf("%+v", l)
	}
	p.step(GrantEnded{2})
	p.step(GrantEnded{2})
	if w.run(); w.hears("r1") != "" {
		t.Fatalf("under a pack the engine heard %q", w.hears("r1"))
	}
	p.step(GrantEnded{1})
	if w.run(); w.hears("r1") != "unpin" || p.m.Load().Leaving != 0 {
		t.Fatalf("the engine heard %q, %+v", w.hears("r1"), p.m.Load())
	}
}

// Free is decided while a rank packs: that rank's engine gets it, and what follows it, when
// the pack has ended, so no engine of the group applies it before.
func TestPackDelaysFree(t *testing.T) {
	w := met(t, 2, 1)
	man := w.export("p", "r1", 40)
	w.export("p", "r2", 40)
	p, other := w.at("p", 0), w.at("p", 1)
	freed := func() (out []string) {
		for _, e := range []*fakeEngine{p.eng, other.eng} {
			for _, d := range e.freed[1:] {
				out = append(out, d.Label)
			}
		}
		return out
	}
	w.grant(1, "r1", staged.Packer{})
	p.step(Release{Call: 90, ID: man.ID, Key: man.Key})
	p.step(FromEngine{p.eng.session, handoff.ReleaseExport{Label: "r2"}})
	w.run()
	if w.hears("r1")+w.hears("r2") != "" || len(freed()) > 0 || !slices.Equal(p.packs, []Effect{Revoked{1}}) {
		t.Fatalf("freed %q, the engine heard %q and %q, %+v", freed(), w.hears("r1"), w.hears("r2"), p.packs)
	}
	p.step(GrantEnded{1})
	w.run()
	if want := []string{"r1", "r2", "r1", "r2"}; !slices.Equal(freed(), want) {
		t.Fatalf("freed %q", freed())
	}
}

// An export fails at the leader while it is packed from.
func TestPackDelaysFailed(t *testing.T) {
	w := met(t, 2, 1)
	w.export("p", "r1", 40)
	p := w.at("p", 0)
	w.grant(1, "r1", staged.Packer{})
	p.step(FromPeer{w.at("p", 1).self, handoff.Pinned{Label: "r1", Pin: handoff.PinInfo{Rank: 1}}})
	if w.run(); w.hears("r1") != "" {
		t.Fatalf("under a pack the engine heard %q", w.hears("r1"))
	}
	p.step(GrantEnded{1})
	if w.run(); w.hears("r1") != "failed free" {
		t.Fatalf("the engine heard %q", w.hears("r1"))
	}
}

// Packs that do not end cost the movers that hold them, each its own: the exit is the
// proof, and another mover's is none.
func TestPackerExits(t *testing.T) {
	w := met(t, 1, 1)
	man := w.export("p", "r1", 40)
	w.export("p", "r2", 40)
	p := w.at("p", 0)
	one, two, other := staged.Packer{Group: "d", Wire: 3}, staged.Packer{Group: "e", Wire: 3}, staged.Packer{Group: "d", Wire: 2}
	w.grant(1, "r1", one)
	w.grant(2, "r1", one)
	w.grant(3, "r1", staged.Packer{})
	w.grant(4, "r2", two)
	p.step(Release{Call: 90, ID: man.ID, Key: man.Key})
	w.run()
	for range 2 {
		r2 := p.m.pinOf("r2")
		r2.Deadline += time.Hour
		p.m.pinEnds.set(r2.Info.Pin, r2.Deadline)
		p.m.lead.sources[p.m.pinOf("r2").ID].End()
		p.packs = nil
		w.advance(p.m.cfg.KillAfter)
		if !slices.Equal(p.packs, []Effect{KillMover{one}, KillMover{}}) {
			t.Fatalf("%+v", p.packs)
		}
	}
	p.step(PackerExited{other})
	p.step(PackerExited{two})
	p.step(PackerExited{one})
	if !slices.Equal(p.packs, []Effect{KillMover{one}, KillMover{}, Revoked{4}}) {
		t.Errorf("%+v", p.packs) // the others have heard
	}
	if w.run(); w.hears("r1") != "" {
		t.Fatalf("under the local mover's pack the engine heard %q", w.hears("r1"))
	}
	p.step(PackerExited{})
	if w.run(); w.hears("r1") != "free" {
		t.Fatalf("the engine heard %q", w.hears("r1"))
	}
}

// An engine's session ends while its memory is packed from: it stays mapped, and the
// engine, or another, attaches when the pack has ended.
func TestEngineEndsUnderAPack(t *testing.T) {
	w := met(t, 1, 1)
	w.export("p", "r1", 40)
	p := w.at("p", 0)
	w.grant(1, "r1", staged.Packer{})
	s := p.eng.session
	fs := p.m.Step(w.now, EngineDown{s})
	if !slices.Contains(fs, Effect(Revoked{1})) || slices.Contains(fs, Effect(UnmapBuffers{s})) {
		t.Fatalf("%+v", fs)
	}
	fs = p.m.Step(w.now, FromEngine{s + 1, p.eng.statement()})
	if len(fs) != 1 || !errors.Is(fs[0].(CloseEngine).Err, handoff.ErrAttach) {
		t.Fatalf("attach under a pack: %+v", fs)
	}
	if fs = p.m.Step(w.now, GrantEnded{1}); !slices.Equal(fs, []Effect{UnmapBuffers{s}}) {
		t.Fatalf("the pack ends: %+v", fs)
	}
	p.eng.session = 0
	p.reattach()
	w.run()
	if len(p.closed) > 0 || p.m.kept["r1"] == 0 && w.hears("r1") == "" {
		t.Fatalf("closed %v, kept %v", p.closed, p.m.kept)
	}
}

// What was packed for a session that has ended since proves nothing, and is not packed
// again; a direct copy of the same pin, and another pull, are another matter.
func TestCheckOfABrokenStagedPull(t *testing.T) {
	w := met(t, 1, 1)
	w.export("p", "r1", 40)
	p, d := w.at("p", 0), w.at("d", 0)
	w.grant(1, "r1", staged.Packer{})
	p.step(GrantEnded{1})
	pin := p.m.pinOf("r1")
	held := func(attempt handoff.Attempt) bool {
		of := handoff.Check{ID: pin.ID, Attempt: attempt, Pin: pin.Info.Pin, Generation: pin.Info.Generation}
		fs := p.m.Step(w.now, FromPeer{d.self, of})
		return reflect.DeepEqual(fs, []Effect{ToPeer{d.self, handoff.Checked{Check: of, Held: true}}})
	}
	if !held(7) || !held(8) {
		t.Fatal("not held before")
	}
	p.step(PeerDown{d.self, fmt.Errorf("made to fail")})
	p.step(PeerUp{d.self})
	if held(7) || !held(8) {
		t.Errorf("over the next session the staged pull is held: %v, the direct one: %v", held(7), held(8))
	}
	if x := w.askGrant(2, "r1", nil); x != (Effect)(GrantRefused{2}) {
		t.Errorf("the broken pull is packed again: %+v", x)
	}
}

func TestResetWaitsForPacks(t *testing.T) {
	w := met(t, 1, 1)
	w.export("p", "r1", 40)
	w.grant(1, "r1", staged.Packer{})
	w.lastC = 50
	if err := w.ended(w.reset("p", 0)).Err; !errors.Is(err, handoff.ErrQuiet) || !strings.Contains(err.Error(), "1 grant to pack is") {
		t.Errorf("%v", err)
	}
	if w.run(); w.hears("r1") != "" {
		t.Fatalf("the engine heard %q", w.hears("r1"))
	}
	w.at("p", 0).step(GrantEnded{1})
	w.run()
	if err := w.ended(w.reset("p", 0)).Err; err != nil || w.hears("r1") != "free" {
		t.Errorf("%v, the engine heard %q", err, w.hears("r1"))
	}
}

// A rank keeps a Free back when its leader's process ends: the successor, which may know
// of other decisions under those numbers, hears of the pin and frees it in its own order.
func TestPackOutlivesTheLeader(t *testing.T) {
	w := met(t, 2, 1)
	w.export("p", "a", 40) // the successor frees it first
	man := w.export("p", "r1", 40)
	rank := w.at("p", 1)
	pin := rank.m.pinOf("r1")
	of := handoff.Check{ID: pin.ID, Attempt: 7, Pin: pin.Info.Pin, Generation: pin.Info.Generation}
	rank.step(PeerUp{w.at("d", 0).self})
	rank.step(AskGrant{Grant: 1, Peer: w.at("d", 0).self, Of: of})
	lost := w.at("p", 0)
	w.drop = func(from, to handoff.Member, msg handoff.PeerMessage) bool {
		return from == lost.self && to == lost.self
	}
	lost.step(Release{Call: 90, ID: man.ID, Key: man.Key}) // the leader's own rank never takes it
	w.run()
	if len(rank.m.engine.waits) != 1 {
		t.Fatalf("waits %+v", rank.m.engine.waits)
	}
	w.drop = nil
	e := lost.eng
	w.end("p", 0)
	lead := w.start(lost)
	e.session = 0
	lead.reattach()
	w.run()
	w.advance(10 * time.Second)
	w.export("p", "r2", 40)
	if len(rank.m.engine.waits) == 0 || len(rank.eng.freed) != 2 {
		t.Fatalf("waits %+v, freed %+v", rank.m.engine.waits, rank.eng.freed)
	}
	rank.step(GrantEnded{1})
	w.run()
	w.advance(10 * time.Second)
	for _, n := range []*node{lead, rank} {
		if s := strings.Join(n.eng.story, "; "); strings.Count(s, "free 0r1") != 1 || len(n.closed) > 0 || n.eng.pins["r1"] {
			t.Errorf("rank %d: %s, closed %v", n.self.Rank, s, n.closed)
		}
	}
	if lead.m.lead.roster == nil || !reflect.DeepEqual(lead.eng.story, rank.eng.story) {
		t.Errorf("%q and %q", lead.eng.story, rank.eng.story)
	}
}
