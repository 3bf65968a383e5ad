package handoff

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

// renewable is a source of two ranks, leased at 0 for lease, renewed up to hold.
func renewable(t testing.TB, hold time.Duration) *Source {
	s := NewSource(ID{N: 1}, key, "r", 2, time.Hour)
	_ = s.Exported(Export{Label: "r", Tokens: 5, Position: 5})
	for r := range 2 {
		if err := s.Pinned(Pinned{Pin: PinInfo{Rank: rank(r), Pin: PinID(r + 1), Tokens: 5, Position: 5}}); err != nil {
			t.Fatal(err)
		}
	}
	s.Lease(0, lease, hold)
	return s
}

func ack(s *Source, now time.Duration, r int, n uint64) bool {
	return s.Extended(now, r, Extended{Pin: PinID(r + 1), N: n})
}

func TestExtend(t *testing.T) {
	const half = lease / 2
	runCases(t, []sourceCase{
		{"before half", renewable(t, 3*lease), func(s *Source) any { _, _, ok := s.Extend(half - 1); return ok }, false},
		{"at half, for a lease from then", renewable(t, 3*lease), func(s *Source) any { _, hold, _ := s.Extend(half); return hold }, time.Duration(lease)},
		{"hold bounds it", renewable(t, lease+2), func(s *Source) any { _, hold, _ := s.Extend(half); return hold }, half + 2},
		{"a hold of one lease is not renewed", renewable(t, lease), func(s *Source) any { _, ok := s.Renews(); return ok }, false},
		{"a shorter hold is the lease", renewable(t, half), func(s *Source) any { return s.Deadline() }, time.Duration(half)},
		{"asked once", renewable(t, 3*lease), func(s *Source) any { s.Extend(half); _, _, ok := s.Extend(half + 1); return ok }, false},
		{"after the end", renewable(t, 3*lease), func(s *Source) any { _, _, ok := s.Extend(lease); return ok }, false},
		{"unacknowledged", renewable(t, 3*lease), func(s *Source) any { s.Extend(half); return s.Deadline() }, time.Duration(lease)},
		{"one rank of two", renewable(t, 3*lease), func(s *Source) any { n, _, _ := s.Extend(half); ack(s, half, 1, n); return s.Deadline() }, time.Duration(lease)},
		{"one rank twice", renewable(t, 3*lease), func(s *Source) any {
			n, _, _ := s.Extend(half)
			ack(s, half, 1, n)
			again := ack(s, half, 1, n)
			return again || s.Deadline() != lease
		}, false},
		{"every rank", renewable(t, 3*lease), func(s *Source) any {
			n, _, _ := s.Extend(half)
			ack(s, half, 0, n)
			ack(s, lease-1, 1, n)
			return s.Deadline()
		}, half + lease},
		{"the last one too late", renewable(t, 3*lease), func(s *Source) any {
			n, _, _ := s.Extend(half)
			ack(s, half, 0, n)
			ack(s, lease, 1, n)
			return s.Deadline()
		}, time.Duration(lease)},
		{"closed since it was asked for", renewable(t, 3*lease), func(s *Source) any {
			n, _, _ := s.Extend(half)
			s.Close(half, half-1)
			ack(s, half, 0, n)
			ack(s, half, 1, n)
			return s.Deadline()
		}, time.Duration(lease - 1)},
		{"closed since, for longer", renewable(t, 3*lease), func(s *Source) any {
			n, _, _ := s.Extend(half)
			s.Close(half, half+2)
			ack(s, half, 0, n)
			ack(s, half, 1, n)
			return s.Deadline()
		}, time.Duration(lease + 2)},
		{"another number", renewable(t, 3*lease), func(s *Source) any { n, _, _ := s.Extend(half); return ack(s, half, 0, n+1) }, false},
		{"another pin", renewable(t, 3*lease), func(s *Source) any {
			n, _, _ := s.Extend(half)
			return s.Extended(half, 0, Extended{Pin: 7, N: n})
		}, false},
		{"a rank that is none", renewable(t, 3*lease), func(s *Source) any { n, _, _ := s.Extend(half); return s.Extended(half, 2, Extended{Pin: 3, N: n}) }, false},
		{"nothing is open", renewable(t, 3*lease), func(s *Source) any { return ack(s, 0, 0, 0) }, false},
		{"over", renewable(t, 3*lease), func(s *Source) any { n, _, _ := s.Extend(half); s.End(); return ack(s, half, 0, n) }, false},
	})
}

func TestPinDeadline(t *testing.T) {
	pin := Pin{Label: "r", Info: PinInfo{Pin: 4}, Deadline: 100}
	id := ID{N: 1}
	if pin.Extend(Extend{ID: id, Pin: 4, Hold: 500}, 0) {
		t.Error("a pin without a hand-off is extended")
	}
	pin.Leased(Leased{ID: id, Label: "r", Pin: 4, Hold: 50}, 10)
	pin.Leased(Leased{ID: id, Label: "r", Pin: 4, Hold: 50}, 20) // repeated
	if pin.Deadline != 60 || pin.ID != id {
		t.Fatalf("%+v", pin)
	}
	for _, c := range []struct {
		now  time.Duration
		e    Extend
		ok   bool
		want time.Duration
	}{
		{20, Extend{ID: ID{N: 2}, Pin: 4, Hold: 500}, false, 60},
		{20, Extend{ID: id, Pin: 5, Hold: 500}, false, 60},
		{20, Extend{ID: id, Pin: 4, Hold: 10}, true, 60}, // never earlier
		{20, Extend{ID: id, Pin: 4, Hold: 60}, true, 80},
		{80, Extend{ID: id, Pin: 4, Hold: 500}, false, 80}, // over
	} {
		if ok := pin.Extend(c.e, c.now); ok != c.ok || pin.Deadline != c.want {
			t.Errorf("%+v at %d: %v, deadline %d, want %v, %d", c.e, c.now, ok, pin.Deadline, c.ok, c.want)
		}
	}
}

// Whatever is delayed: while the leader's lease runs, every rank holds its pin for the
// margin longer, and no lease passes its hold.
func TestLeasesProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const margin = time.Second
		hold := time.Duration(rapid.IntRange(1, 13).Draw(t, "hold")) * lease / 4
		s := NewSource(ID{N: 1}, key, "r", 2, time.Hour)
		_ = s.Exported(Export{Label: "r"})
		pins := [2]Pin{}
		for r := range pins {
			pins[r] = Pin{Label: "r", Info: PinInfo{Rank: rank(r), Pin: PinID(r + 1)}, Deadline: time.Hour}
			_ = s.Pinned(Pinned{Pin: pins[r].Info})
		}
		s.Lease(0, lease, hold)
		var words [2][]Extend
		first := Leased{ID: s.ID, Label: "r", Hold: s.Deadline() + margin}
		var acks []Extended
		now := time.Duration(0)
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			now += time.Duration(rapid.IntRange(0, 4).Draw(t, "pass")) * lease / 12
			over := now >= s.Deadline()
			was := s.Deadline()
			if n, h, ok := s.Extend(now); ok {
				for r := range pins {
					words[r] = append(words[r], Extend{ID: s.ID, Pin: PinID(r + 1), N: n, Hold: h + margin})
				}
			}
			switch r := rapid.IntRange(0, 1).Draw(t, "rank"); {
			case pins[r].ID == ID{}:
				first.Pin = PinID(r + 1)
				pins[r].Leased(first, now)
			case len(words[r]) > 0:
				if e := words[r][0]; pins[r].Extend(e, now) {
					acks = append(acks, Extended{ID: e.ID, Pin: e.Pin, N: e.N})
				}
				words[r] = words[r][1:]
			case len(acks) > 0:
				e := acks[rapid.IntRange(0, len(acks)-1).Draw(t, "ack")] // any, any number of times
				s.Extended(now, int(e.Pin)-1, e)
			}
			if over && s.Deadline() != was {
				t.Fatalf("at %v: a lease that ended at %v is to %v", now, was, s.Deadline())
			}
			for r := range pins {
				if s.Deadline() > hold || pins[r].Deadline < s.Deadline()+margin {
					t.Fatalf("at %v: lease to %v of %v, rank %d to %v", now, s.Deadline(), hold, r, pins[r].Deadline)
				}
			}
		}
	})
}
