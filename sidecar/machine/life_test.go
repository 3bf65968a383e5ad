package machine

import (
	"slices"
	"testing"
	"time"

	"github.com/batonkv/baton/discovery"
	"github.com/batonkv/baton/sidecar/handoff"
)

// Two lives of one rank: the one that discovery shows keeps its place, whichever speaks
// last, and the session of the other ends, so that a living one comes back.
func TestJoinOfAnEarlierLife(t *testing.T) {
	w := pair(t, 2, 1)
	lead, rank := w.at("p", 0), w.at("p", 1)
	old := rank.self
	old.Incarnation++
	join := handoff.Join{Attach: rank.eng.attach}
	fs := lead.m.Step(w.now, FromPeer{old, join})
	if !slices.Contains(fs, Effect(ClosePeer{old})) || lead.m.lead.roster == nil || lead.m.lead.joins[1].from != rank.self {
		t.Fatalf("the late word of an earlier life: %+v, roster %v", fs, lead.m.lead.roster)
	}
	records := slices.Clone(w.records)
	for i := range records {
		if records[i].Group == "p" && records[i].Rank == 1 {
			records[i].Incarnation = uint64(old.Incarnation)
		}
	}
	lead.step(Found{records})
	fs = lead.m.Step(w.now, FromPeer{old, join})
	if !slices.Contains(fs, Effect(ClosePeer{rank.self})) || lead.m.lead.joins[1].from != old {
		t.Fatalf("the word of the life that discovery shows: %+v", fs)
	}
}

// A rank forgets its leader's earlier life once discovery does, although its engine
// waits for a leader.
func TestEarlierLeaderIsForgotten(t *testing.T) {
	w := pair(t, 2, 1)
	lead, rank := w.at("p", 0).self, w.at("p", 1)
	rank.step(Found{slices.DeleteFunc(slices.Clone(w.records), func(r discovery.Record) bool { return r.Group == "p" && r.Rank == 0 })})
	w.cut(rank.self, lead)
	if rank.m.peers[lead] != nil {
		t.Error("the leader that is gone is still waited for")
	}
	rank.step(Found{w.records})
	w.run()
	if rank.m.member == nil || !rank.m.joined {
		t.Error("the rank does not join again")
	}
}

// A link that was asked of a rank that never answers is forgotten with the last import
// that waited for it.
func TestLinkNobodyAwaits(t *testing.T) {
	w := pair(t, 2, 1)
	man := w.export("p", "r1", 40)
	d, gone := w.at("d", 0), w.at("p", 1).self
	d.step(Found{slices.DeleteFunc(slices.Clone(w.records), func(r discovery.Record) bool { return r.Group == "p" && r.Rank == 1 })})
	c := w.importStart("d", man)
	w.run()
	if d.m.links[gone] == nil || d.m.peers[gone] == nil {
		t.Fatal("the rank does not wait for its source")
	}
	w.advance(time.Minute)
	if w.ended(c).Err == nil || d.m.links[gone] != nil || d.m.peers[gone] != nil {
		t.Errorf("ended by %v; link %v, peer %v", w.ended(c).Err, d.m.links[gone], d.m.peers[gone])
	}
}

// An engine that attaches again goes on with its steps, which apply decisions and free
// memory before its mover is there.
func TestEngineStepsWhileItsBuffersAreMapped(t *testing.T) {
	w := pair(t, 1, 1)
	d := w.at("d", 0)
	a := d.eng.attach
	d.step(EngineDown{d.eng.session})
	w.run()
	d.step(FromEngine{99, a})
	for _, m := range []handoff.FromEngine{handoff.Freed{Blocks: 1}, handoff.Held{}, handoff.Applied{}, handoff.Fenced{N: 1}} {
		d.step(FromEngine{99, m})
	}
	if len(d.closed) > 0 {
		t.Errorf("the session ends: %v", d.closed)
	}
}
