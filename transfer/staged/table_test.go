package staged

import (
	"errors"
	"reflect"
	"slices"
	"testing"

	"github.com/batonkv/baton/transfer"
)

// What the walk's worlds hold no liar for, and what they are too small for.

func source(t *testing.T, c Config, peers ...transfer.PeerID) *Source {
	t.Helper()
	s, err := NewSource(c)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range peers {
		s.Step(PeerUp{p})
		s.Step(WireUp{p, 7})
	}
	return s
}

// effects returns those of one type.
func effects[E any](out []SourceEffect) (es []E) {
	for _, e := range out {
		if x, ok := e.(E); ok {
			es = append(es, x)
		}
	}
	return es
}

// want starts a job that is granted and returns what is packed at once.
func want(t *testing.T, s *Source, p transfer.PeerID, n uint64, chunks int32) []Pack {
	t.Helper()
	ask := effects[AskGrant](s.Step(FromPeer{p, Want{Job{Attempt: n}, Pin{ID: n}, chunks}}))
	if len(ask) != 1 {
		t.Fatalf("asks %v", ask)
	}
	return effects[Pack](s.Step(Granted{ask[0].Grant}))
}

func TestForgedCredits(t *testing.T) {
	s := source(t, Config{2, 2, 4}, "a", "b")
	pack := want(t, s, "a", 1, 1)[0]
	refused := func(p transfer.PeerID, offer uint64) {
		t.Helper()
		if r := effects[Refuse](s.Step(FromPeer{p, Credit{offer}})); len(r) != 1 || r[0].Why != Unmatched {
			t.Errorf("forged credit of %s for %d: %v", p, offer, r)
		}
	}
	refused("a", pack.Ticket) // not offered yet: the pack is open
	if s.Use().Local != 1 {
		t.Fatal("forged credit freed a chunk that is packed")
	}
	s.Step(PackDone{Ticket: pack.Ticket})
	refused("b", pack.Ticket)
	refused("a", pack.Ticket+100)
	if s.Use() != (Use{Free: 1, Wire: 1}) {
		t.Fatalf("forged credits: %+v", s.Use())
	}
	if d := effects[Served](s.Step(FromPeer{"a", Credit{pack.Ticket}})); len(d) != 1 || d[0].Why != 0 {
		t.Fatal(d)
	}
}

func TestExitOfAnotherWireMover(t *testing.T) {
	s := source(t, Config{2, 2, 4}, "a", "b")
	pack := want(t, s, "a", 1, 1)[0]
	s.Step(PackDone{Ticket: pack.Ticket})
	s.Step(WireExit{"b", 7})
	s.Step(WireExit{"a", 6})
	if s.Use().Wire != 1 {
		t.Fatal("the exit of another wire mover freed a chunk")
	}
	s.Step(WireExit{"a", 7})
	if s.Use().Free != 2 {
		t.Fatal("the exit of its wire mover frees a chunk")
	}
}

func TestPeersTakeTurns(t *testing.T) {
	s := source(t, Config{3, 3, 4}, "a", "b", "c")
	p := want(t, s, "a", 1, 9)
	want(t, s, "b", 2, 9)
	want(t, s, "c", 3, 9)
	var jobs []uint64
	for range 6 { // a's chunks come back one by one, then what was packed for them
		s.Step(PackDone{Ticket: p[0].Ticket})
		next := effects[Pack](s.Step(FromPeer{transfer.PeerID(rune('a' + p[0].Stamp.Job.Attempt - 1)), Credit{p[0].Ticket}}))
		p = append(p[1:], next...)
		jobs = append(jobs, next[0].Stamp.Job.Attempt)
	}
	if !reflect.DeepEqual(jobs, []uint64{2, 3, 1, 2, 3, 1}) {
		t.Fatalf("turn goes %v", jobs)
	}
}

func TestSlowPeerSlowsItself(t *testing.T) {
	s := source(t, Config{4, 2, 4}, "slow", "b")
	for _, p := range want(t, s, "slow", 1, 100) {
		s.Step(PackDone{Ticket: p.Ticket}) // never credited
	}
	p := want(t, s, "b", 2, 100)
	if len(p) != 2 {
		t.Fatalf("%d chunks for the other peer, want its 2", len(p))
	}
	for done := int32(0); done < 100; done++ {
		s.Step(PackDone{Ticket: p[0].Ticket})
		p = append(p, effects[Pack](s.Step(FromPeer{"b", Credit{p[0].Ticket}}))...)[1:]
	}
	if len(p) != 0 || s.Use() != (Use{Free: 2, Wire: 2}) {
		t.Fatalf("%+v", s.Use())
	}
}

func TestBounds(t *testing.T) {
	for _, c := range []Config{{}, {1, 2, 1}, {100, 65, 1}, {1 << 20, 1, 1}, {-1, 1, 1}, {1, 1, 0}} {
		if _, err := NewSource(c); !errors.Is(err, ErrConfig) {
			t.Errorf("%+v: %v", c, err)
		}
		if _, err := NewDest(c); !errors.Is(err, ErrConfig) {
			t.Errorf("%+v: %v", c, err)
		}
	}
	s := source(t, Config{1, 1, 1}, "a")
	s.Step(FromPeer{"a", Want{Job: Job{Attempt: 1}, Chunks: 1}})
	for _, w := range []Want{{Job: Job{Attempt: 2}, Chunks: 1}, {Job: Job{Attempt: 3}}, {Job: Job{Attempt: 4}, Chunks: -1}} {
		if r := effects[Refuse](s.Step(FromPeer{"a", w})); len(r) != 1 {
			t.Errorf("%+v is not refused", w)
		}
	}
	d, err := NewDest(Config{1, 1, 1})
	if err != nil {
		t.Fatal(err)
	}
	d.Step(PeerUp{"s"})
	d.Step(Pull{"s", Job{Attempt: 1}, Pin{}, 100})
	for _, o := range []Offer{{Seq: -1}, {Seq: 100}, {Seq: windowSize}, {Chunk: -1}, {Seq: -1 << 31}} {
		o.Job, o.Offer = Job{Attempt: 1}, 5
		out := d.Step(FromPeer{"s", o})
		if want := []DestEffect{Send{"s", Credit{5}}, Refuse{"s", o, Malformed}}; !reflect.DeepEqual(out, want) {
			t.Errorf("%+v: %v", o, out)
		}
	}
	for n := range uint64(windowSize) { // of another job number each, as a liar might
		d.Step(FromPeer{"s", Offer{Job: Job{Attempt: 1}, Seq: int32(n), Offer: 10 + n}})
	}
	if n := len(d.peers[0].offers); n != windowSize {
		t.Fatalf("%d offers wait", n)
	}
}

func TestGrants(t *testing.T) {
	var g Grants
	p, q := Pin{1, 1}, Pin{1, 2}
	if err := g.Ask(1, Packer{}, p, 0); !errors.Is(err, ErrLease) {
		t.Error("Grants: unknown pin:", err)
	}
	g.Hold(p, 10)
	if err := g.Ask(1, Packer{}, q, 0); !errors.Is(err, ErrLease) {
		t.Error("Grants: another generation:", err)
	}
	if err := g.Ask(1, Packer{}, p, 10); !errors.Is(err, ErrLease) {
		t.Error("Grants: the lease is over at its end:", err)
	}
	g.Hold(p, 20)
	wire := Packer{"d", 7}
	if g.Ask(1, Packer{}, p, 10) != nil || g.Ask(2, wire, p, 19) != nil || g.Ask(3, wire, p, 19) != nil {
		t.Error("Grants: extended")
	}
	if by := g.By(p); !slices.Equal(by, []Packer{{}, wire}) || g.Open() != 3 {
		t.Error("Grants: held by", by, g.Open())
	}
	if open := g.Over(p); len(open) != 3 {
		t.Error("Grants: over with three open:", open)
	}
	if err := g.Ask(4, wire, p, 0); !errors.Is(err, ErrLease) {
		t.Error("Grants: granted after Over:", err)
	}
	for _, other := range []Packer{{"e", 7}, {"d", 6}, {"", 7}} {
		if gs, ps := g.Exit(other); len(gs)+len(ps) > 0 || g.Open() != 3 {
			t.Error("Grants: ended by the exit of", other)
		}
	}
	if gs, ps := g.Exit(wire); len(gs)+len(ps) > 0 || g.Open() != 1 {
		t.Error("Grants: unpinned under a grant of the local mover:", gs, ps)
	}
	if pin, unpin := g.End(1); !unpin || pin != p {
		t.Error("Grants: not unpinned by the last grant:", pin, unpin)
	}
	if _, unpin := g.End(1); unpin || len(g.held) != 0 {
		t.Error("Grants: unpinned twice")
	}
	if open := g.Over(p); len(open) > 0 {
		t.Error("Grants: of a pin that nobody asked for:", open)
	}
	g.Hold(p, 30)
	if g.Ask(5, wire, p, 29) != nil || len(g.Over(p)) != 1 {
		t.Error("Grants: held anew")
	}
	if gs, ps := g.Exit(wire); len(gs) > 0 || !slices.Equal(ps, []Pin{p}) {
		t.Error("Grants: not unpinned by its mover's exit:", gs, ps)
	}
	g.Hold(p, 30)
	if err := g.Ask(6, wire, p, 29); err != nil {
		t.Fatal(err)
	}
	if gs, ps := g.Exit(wire); !slices.Equal(gs, []uint64{6}) || len(ps) > 0 || g.Open() != 0 {
		t.Error("Grants: the mover of a pin that is held exits:", gs, ps)
	}
}

func TestReasons(t *testing.T) {
	for r := Reason(1); r < maxReason; r++ {
		if r.Err() == nil {
			t.Errorf("reason %d has no error", r)
		}
	}
	if Reason(0).Err() != nil || Reason(200).Err() == nil {
		t.Error("zero is good, and no other number is")
	}
}
