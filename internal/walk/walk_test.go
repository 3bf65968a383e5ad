package walk

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// jugs holds 3 and 5 litres; want is the amount that must not be reached.
type jugs struct{ want, faults int }

type pair struct{ a, b, f int }

func (j jugs) Init() pair                  { return pair{f: j.faults} }
func (j jugs) Key(s pair, b []byte) []byte { return append(b, byte(s.a), byte(s.b), byte(s.f)) }
func (j jugs) Stuck(pair) string           { return "" }
func (j jugs) Next(s pair, emit func(Step, pair)) {
	t := min(s.a, 5-s.b)
	u := min(s.b, 3-s.a)
	emit(Step{Name: "fill %d", Args: [3]int{3}}, pair{3, s.b, s.f})
	emit(Step{Name: "fill %d", Args: [3]int{5}}, pair{s.a, 5, s.f})
	emit(Step{Name: "empty %d", Args: [3]int{3}}, pair{0, s.b, s.f})
	emit(Step{Name: "empty %d", Args: [3]int{5}}, pair{s.a, 0, s.f})
	emit(Step{Name: "pour %d to %d", Args: [3]int{3, 5}}, pair{s.a - t, s.b + t, s.f})
	emit(Step{Name: "pour %d to %d", Args: [3]int{5, 3}}, pair{s.a + u, s.b - u, s.f})
}
func (j jugs) Bad(s pair) string {
	if s.b == j.want {
		return "reached"
	}
	return ""
}

func TestShortestTrace(t *testing.T) {
	r := Run(jugs{want: 4}, 1000)
	want := []string{"fill 5", "pour 5 to 3", "empty 3", "pour 5 to 3", "fill 5", "pour 5 to 3"}
	if r.Violation != "reached" || !slices.Equal(r.Trace, want) {
		t.Fatal(r)
	}
}

func TestFullAndLimit(t *testing.T) {
	if r := Run(jugs{want: 9}, 1000); r.Violation != "" || !r.Full || r.States != 16 {
		t.Fatal(r)
	}
	if r := Run(jugs{want: 9}, 4); r.Full {
		t.Fatal("stopped at a limit, and says that it saw everything:", r)
	}
}

// lamp goes out by a fault alone, and on again by nothing.
type lamp struct{}

func (lamp) Init() bool                  { return true }
func (lamp) Key(s bool, b []byte) []byte { return append(b, map[bool]byte{true: 1}[s]) }
func (lamp) Bad(bool) string             { return "" }
func (lamp) Next(s bool, emit func(Step, bool)) {
	if s {
		emit(Step{Name: "blink"}, s)
		emit(Step{Fault: true, Name: "cut"}, false)
	}
}
func (lamp) Stuck(s bool) string {
	if !s {
		return "dark"
	}
	return ""
}

func TestStuck(t *testing.T) {
	r := Run(lamp{}, 10)
	if r.Violation != "dark" || r.Trace[0] != "FAULT cut" || r.Ends != 1 {
		t.Fatal(r)
	}
}

// TestSet: a set says of a hash that it is new once.
func TestSet(t *testing.T) {
	var s set
	seen := map[uint64]bool{1: true}
	s.add(1)
	r := rand.New(rand.NewPCG(3, 4))
	for range 50_000 {
		h := r.Uint64() >> (r.IntN(2) * 48) // also such as meet in one place
		if h == 0 {
			h = 1 // which stands for 0
		}
		if got := s.add(h); got == seen[h] {
			t.Fatalf("%x: new %v after %d", h, got, s.n)
		}
		seen[h] = true
	}
	if s.add(0) || s.n != len(seen) {
		t.Errorf("%d of %d hashes", s.n, len(seen))
	}
}
