package machine

import (
	"slices"
	"testing"

	"github.com/batonkv/baton/discovery"
	"github.com/batonkv/baton/sidecar/handoff"
)

// guarded is a world in which d reads "r1" of p, and nothing goes on by itself. Group e is
// a stranger with a good certificate.
type guarded struct {
	*world
	p, p1, d, d1, e *node
	man, other      handoff.Manifest
	call            Call
	i               *importing
}

type guard struct {
	name string
	to   *node
	from handoff.Member
	msg  handoff.PeerMessage
	why  Why
}

func newGuarded(t *testing.T) guarded {
	w := pair(t, 2, 2)
	w.group("e", 1)
	w.onPull = func(*node, Pull) error { return errStuck }
	g := guarded{world: w, p: w.at("p", 0), p1: w.at("p", 1), d: w.at("d", 0), d1: w.at("d", 1), e: w.at("e", 0)}
	g.man, g.other = w.export("p", "r1", 40), w.export("p", "r2", 40)
	g.call = w.importStart("d", g.man)
	w.run()
	g.i = g.d.m.lead.imports[0]
	return g
}

func earlier(x handoff.Member) handoff.Member { x.Incarnation ^= 1; return x }

// check is what d asks p1 about what it read.
func (g guarded) check() handoff.Check {
	return handoff.Check{ID: g.man.ID, Attempt: g.i.Attempt, Pin: g.p1.pinOf("r1"), Generation: g.p1.m.attaches}
}

func (g guarded) betweenGroups() []guard {
	p, p1, d, d1, e, man, other, i := g.p, g.p1, g.d, g.d1, g.e, g.man, g.other, g.i
	relaunched, asE, wrong := d.importer(), e.importer(), man.Key
	relaunched.Instance ^= 1
	asE.Leader ^= 1
	wrong[15] ^= 1
	stale, foreign := g.check(), g.check()
	stale.Generation--
	foreign.ID = other.ID
	mine := func(a handoff.Attempt) handoff.Opened {
		return handoff.Opened{ID: man.ID, Attempt: a, Status: handoff.OK, Plan: i.Plan}
	}
	return []guard{
		{"Open with a wrong key", p, e.self, handoff.Open{ID: man.ID, Key: wrong, Importer: e.importer(), Attempt: 1}, Key},
		{"Open for another group", p, e.self, handoff.Open{ID: man.ID, Key: man.Key, Importer: d.importer(), Attempt: 7}, Importer},
		{"Open for another life of the sender", p, e.self, handoff.Open{ID: man.ID, Key: man.Key, Importer: asE, Attempt: 7}, Importer},
		{"Open for another launch", p, d.self, handoff.Open{ID: man.ID, Key: man.Key, Importer: relaunched, Attempt: 7}, Importer},
		{"Open by a rank", p, d1.self, handoff.Open{ID: man.ID, Key: man.Key, Importer: d.importer(), Attempt: 7}, NotLeader},
		{"Open at a rank", p1, d.self, handoff.Open{ID: man.ID, Key: man.Key, Importer: d.importer(), Attempt: 7}, NotLeader},
		{"Done for another group", p, e.self, handoff.Done{ID: man.ID, Importer: d.importer(), Attempt: i.Attempt}, Importer},
		{"Done for another launch", p, d.self, handoff.Done{ID: man.ID, Importer: relaunched, Attempt: i.Attempt}, Importer},
		{"Withdraw for another group", p, e.self, handoff.Withdraw{ID: man.ID, Importer: d.importer(), Attempt: i.Attempt}, Importer},
		{"Withdraw for another launch", p, d.self, handoff.Withdraw{ID: man.ID, Importer: relaunched, Attempt: i.Attempt}, Importer},
		{"Opened again", d, p.self, mine(i.Attempt), Unmatched},
		{"Opened of another attempt", d, p.self, mine(i.Attempt + 1), Unmatched},
		{"Opened by another group", d, e.self, mine(i.Attempt), Unmatched},
		{"DoneAck that nobody asked for", d, p.self, handoff.DoneAck{ID: man.ID, Attempt: i.Attempt, Status: handoff.OK}, Unmatched},
		{"DoneAck by another group", d, e.self, handoff.DoneAck{ID: man.ID, Attempt: i.Attempt, Status: handoff.OK}, Unmatched},
		{"Check of another generation", p1, d.self, stale, Unmatched},
		{"Check of another hand-off's pin", p1, d.self, foreign, Unmatched},
		{"Checked of no import", d1, p1.self, handoff.Checked{Check: handoff.Check{ID: other.ID, Attempt: 9}, Held: true}, Unmatched},
	}
}

func (g guarded) withinGroups() []guard {
	p, p1, d, d1, e, man, other, i, check := g.p, g.p1, g.d, g.d1, g.e, g.man, g.other, g.i, g.check()
	return []guard{
		{"Decision by another life of the leader", d1, earlier(d.self), handoff.Decision{N: 99, Kind: handoff.Admit, Of: i.ReserveN}, NotMember},
		{"Decision by another group", d1, e.self, handoff.Decision{N: 99, Kind: handoff.Admit, Of: i.ReserveN}, NotMember},
		{"Roster by another life of the leader", d1, earlier(d.self), *d1.m.member, NotMember},
		{"Roster of another launch", d1, d.self, handoff.Roster{Instance: d1.m.member.Instance ^ 1, Members: d1.m.member.Members, Geometry: d1.m.member.Geometry}, Malformed},
		{"Leased by another group", p1, e.self, handoff.Leased{ID: man.ID, Label: "r1", Pin: check.Pin, Hold: 1}, NotMember},
		{"Extend by another life of the leader", p1, earlier(p.self), handoff.Extend{ID: man.ID, Pin: check.Pin, N: 1, Hold: 1}, NotMember},
		{"Extend of another hand-off's pin", p1, p.self, handoff.Extend{ID: other.ID, Pin: check.Pin, N: 1, Hold: 1}, Unmatched},
		{"Extended by another life of a rank", p, earlier(p1.self), handoff.Extended{ID: man.ID, Pin: check.Pin, N: 1}, NotMember},
		{"Extended that answers nothing", p, p1.self, handoff.Extended{ID: man.ID, Pin: check.Pin, N: 1}, Unmatched},
		{"Unpin by another group", p1, e.self, handoff.Unpin{ID: man.ID, Pin: check.Pin}, NotMember},
		{"Landed by another group", d, e.self, handoff.Landed{ID: man.ID, Attempt: i.Attempt, N: i.ReserveN, OK: true, Quiet: true}, NotMember},
		{"Landed by another life of a rank", d, earlier(d1.self), handoff.Landed{ID: man.ID, Attempt: i.Attempt, N: i.ReserveN, OK: true, Quiet: true}, NotMember},
		{"RankApplied by another life of a rank", d, earlier(d1.self), handoff.RankApplied{N: 1}, NotMember},
		{"Pinned for another rank", p, p1.self, handoff.Pinned{Label: "r3", Pin: handoff.PinInfo{Rank: 0, Pin: 99}}, Malformed},
		{"Pinned of a label that is leased", p, p1.self, handoff.Pinned{Label: "r1", Pin: handoff.PinInfo{Rank: 1, Pin: 99}}, Malformed},
		{"Join by another group", d, e.self, handoff.Join{Attach: e.eng.attach}, NotMember},
		{"Geometry that nobody asked for", d, e.self, e.m.lead.roster.Geometry, Unmatched},
		{"Geometry of another group than asked of", p, d.self, e.m.lead.roster.Geometry, Unmatched},
		{"Buffers that nobody asked for", d, e.self, handoff.Buffers{Host: "h", Socket: "/s"}, Unmatched},
		{"WantBuffers without a pin", p1, e.self, handoff.WantBuffers{}, NotHeld},
		{"WantBuffers for a guessed pin", p1, e.self, handoff.WantBuffers{Pin: check.Pin + 1}, NotHeld},
		{"WantGeometry at a rank", p1, e.self, handoff.WantGeometry{}, NotLeader},
	}
}

// What is late, replayed or forged is refused and counted, whoever sends it over a session
// of its own: nothing of what is under way changes by it, and nothing is told that lets
// anybody read.
func TestGuards(t *testing.T) {
	w := newGuarded(t)
	for _, g := range slices.Concat(w.betweenGroups(), w.withinGroups()) {
		was := len(g.to.refused)
		g.to.step(FromPeer{g.from, g.msg})
		w.run()
		if n := len(g.to.refused); n != was+1 || g.to.refused[was].Why != g.why {
			t.Errorf("%s: refused %v, want %q", g.name, g.to.refused[was:], g.why)
		}
	}
	if lease := w.p.m.lead.sources[w.man.ID].Deadline(); lease != w.now+w.p.m.cfg.Lease || len(w.p1.m.pins) != 2 {
		t.Errorf("lease to %v, %d pins", lease, len(w.p1.m.pins))
	}
	if w.e.eng.reserves != 0 || len(w.d1.eng.admitted) != 0 {
		t.Error("something was read or admitted")
	}
	w.d.settle(nil)
	w.d1.settle(nil)
	if r := w.ended(w.call); r.Err != nil {
		t.Fatalf("what was under way did not survive it: %v", r.Err)
	}
}

// A rank that this launch has not, of a launch of more ranks, ends nothing of it, and none
// of its words is taken.
func TestRankOfALargerLaunch(t *testing.T) {
	w := pair(t, 2, 1)
	man := w.export("p", "r1", 40)
	w.run()
	p := w.at("p", 0)
	stray := handoff.Member{Group: "p", Rank: 5, Incarnation: 9}
	a := w.at("p", 1).eng.attach
	a.Instance, a.Rank, a.Ranks, a.Shards = a.Instance+1, 5, 8, slices.Clone(a.Shards)
	for i := range a.Shards {
		a.Shards[i].Rank = 5
	}
	p.step(PeerUp{stray})
	p.step(FromPeer{stray, handoff.Join{Attach: a}})
	if j := p.m.lead.joins[5]; j.from != stray {
		t.Fatalf("joined: %+v", p.refused)
	}
	was := len(p.refused)
	for _, msg := range []handoff.PeerMessage{handoff.Pinned{Label: "x", Pin: handoff.PinInfo{Rank: 5, Pin: 7}}, handoff.RankHeld{N: 1}, handoff.RankApplied{N: 1}} {
		p.step(FromPeer{stray, msg})
	}
	if len(p.refused) != was+3 {
		t.Errorf("refused %+v", p.refused[was:])
	}
	p.step(PeerDown{Peer: stray})
	c := w.importStart("d", man)
	w.run()
	if err := w.ended(c).Err; err != nil {
		t.Errorf("the hand-off of the launch that stands: %v", err)
	}
}

// TestMeet: a session that nothing needs is dialled where discovery shows its peer, once,
// and nowhere else; the end of a dial leaves nothing.
func TestMeet(t *testing.T) {
	there, gone := handoff.Member{Group: "p", Incarnation: 7}, handoff.Member{Group: "p", Incarnation: 6}
	m := New(Config{Self: handoff.Member{Group: "d", Incarnation: 1}, Mint: func() uint64 { return 1 }})
	m.Step(0, Found{Records: []discovery.Record{{Group: "p", Incarnation: 7, Addr: "h:1"}}})
	dials := func(p handoff.Member) (n int) {
		for _, f := range m.Step(0, Meet{Peer: p}) {
			if d, is := f.(Dial); is && d.Peer == p && d.Addr == "h:1" {
				n++
			}
		}
		return n
	}
	if a, b, c := dials(there), dials(there), dials(gone); a != 1 || b != 0 || c != 0 {
		t.Errorf("dials %d, %d, and %d of a process that is not shown; want 1, 0, 0", a, b, c)
	}
	m.Step(0, PeerDown{Peer: there, Err: handoff.ErrPeer})
	if len(m.peers) != 0 {
		t.Errorf("kept %v", m.peers)
	}
	if dials(there) != 1 {
		t.Error("not dialled again")
	}
}
