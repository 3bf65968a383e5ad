package handoff

import (
	"errors"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func numbered(from uint64, kinds ...DecisionKind) (ds []Decision) {
	for i, k := range kinds {
		ds = append(ds, Decision{N: from + uint64(i), Kind: k})
	}
	return ds
}

func TestCheckTail(t *testing.T) {
	later := numbered(3, Free, Free)
	later[1].Of = 4
	settles := numbered(3, Free, Free)
	settles[0].Settled = 3
	for name, c := range map[string]struct {
		ds            []Decision
		applied, held uint64
		ok            bool
	}{
		"nothing":                  {nil, 0, 0, true},
		"all":                      {numbered(1, Reserve, Admit), 1, 2, true},
		"the newest":               {numbered(3, Free, Free), 4, 4, true},
		"from the first unapplied": {numbered(3, Free, Free), 2, 4, true},
		"applies what it lacks":    {numbered(1, Free), 2, 1, false},
		"states none":              {nil, 2, 2, false},
		"ends early":               {numbered(1, Free), 1, 2, false},
		"ends late":                {numbered(1, Free, Free), 1, 1, false},
		"starts late":              {numbered(3, Free, Free), 1, 4, false},
		"starts with 0":            {numbered(0, Free, Free), 0, 1, false},
		"a gap":                    {append(numbered(1, Free), numbered(3, Free)...), 1, 3, false},
		"twice":                    {append(numbered(1, Free), numbered(1, Free)...), 1, 1, false},
		"no kind":                  {numbered(1, 0), 0, 1, false},
		"unknown kind":             {numbered(1, SetWeightsEpoch+1), 0, 1, false},
		"about itself":             {later, 4, 4, false},
		"settles itself":           {settles, 4, 4, false},
	} {
		if err := CheckTail(c.ds, c.applied, c.held); (err == nil) != c.ok || err != nil && !errors.Is(err, ErrAttach) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestReservations(t *testing.T) {
	a, b := ID{N: 1}, ID{N: 2}
	tail := Tail{
		{N: 4, Kind: Drop, ID: b, Attempt: 9, Of: 2}, // its Reserve is not kept any more
		{N: 5, Kind: Reserve, ID: a, Attempt: 1, Label: "full"},
		{N: 6, Kind: Reserve, ID: a, Attempt: 1, Label: "full"}, // decided again
		{N: 7, Kind: Reserve, ID: a, Attempt: 2, Label: "x"},
		{N: 8, Kind: Admit, ID: a, Attempt: 2, Of: 7},
		{N: 9, Kind: Free, Label: "x"},
		{N: 10, Kind: Drop, ID: a, Attempt: 1, Of: 6},
		{N: 11, Kind: ReleaseQuarantine, ID: a, Attempt: 1, Of: 6},
		{N: 12, Kind: Reserve, ID: b, Attempt: 3, Label: "y"},
	}
	want := []Reservation{
		{N: 2, ID: b, Attempt: 9, Drop: 4},
		{N: 6, ID: a, Attempt: 1, Label: "full", Drop: 10, Released: true},
		{N: 7, ID: a, Attempt: 2, Label: "x", Admit: 8},
		{N: 12, ID: b, Attempt: 3, Label: "y"},
	}
	got := tail.Reservations()
	if !slices.Equal(got, want) {
		t.Fatalf("%+v\nwant %+v", got, want)
	}
	for i, open := range []bool{true, false, false, true} {
		if got[i].Open() != open {
			t.Errorf("%+v: open %v", got[i], !open)
		}
	}
	states := []LeaderState{Draining, Draining, Admitting, Consuming}
	for i, r := range got {
		if l := Recovered(r, 2, 7); l.State() != states[i] || l.ReserveN != r.N || l.ID() != r.ID || l.Abortable() {
			t.Errorf("%+v is %v", r, l.State())
		}
	}
}

func TestJoinTails(t *testing.T) {
	full := Decision{N: 3, Kind: Reserve, ID: ID{N: 1}, Tokens: 40, Hashes: []uint64{1, 2}}
	slim := Decision{N: 3, Kind: Reserve, ID: ID{N: 1}}
	other := Decision{N: 3, Kind: Reserve, ID: ID{N: 2}, Tokens: 40}
	free := numbered(1, Free, Free)
	for name, c := range map[string]struct {
		tails           []Tail
		low, high, held uint64
		want            []uint64 // nil: hopeless
	}{
		"nothing":                      {[]Tail{nil, nil}, 0, 0, 0, []uint64{}},
		"the longest":                  {[]Tail{free[:1], append(slices.Clone(free), full)}, 0, 3, 1, []uint64{1, 2, 3}},
		"each has a part":              {[]Tail{free, {full}}, 1, 3, 2, []uint64{1, 2, 3}},
		"a gap":                        {[]Tail{free[:1], {full}}, 0, 3, 1, nil},
		"a gap that all applied":       {[]Tail{free[:1], {full}}, 2, 3, 1, []uint64{1, 3}},
		"the newest is missing":        {[]Tail{free}, 0, 3, 2, nil},
		"contents of the other":        {[]Tail{append(slices.Clone(free), slim), append(slices.Clone(free), full)}, 0, 3, 2, []uint64{1, 2, 3}},
		"contents that nobody needs":   {[]Tail{append(slices.Clone(free), slim)}, 0, 3, 3, []uint64{1, 2, 3}},
		"contents are gone":            {[]Tail{append(slices.Clone(free), slim)}, 0, 3, 2, nil},
		"two decisions under a number": {[]Tail{append(slices.Clone(free), full), append(slices.Clone(free), other)}, 0, 3, 2, nil},
		"one of them without contents": {[]Tail{append(slices.Clone(free), slim), append(slices.Clone(free), other)}, 0, 3, 2, nil},
	} {
		got, err := JoinTails(c.tails, c.low, c.high, c.held)
		if (err != nil) != (c.want == nil) || err != nil && !errors.Is(err, ErrAttach) {
			t.Errorf("%s: %v", name, err)
			continue
		}
		var ns []uint64
		for _, d := range got {
			if ns = append(ns, d.N); d.N == 3 && d.N > c.held && len(d.Hashes) != 2 {
				t.Errorf("%s: %+v has lost its contents", name, d)
			}
		}
		if !slices.Equal(ns, c.want) {
			t.Errorf("%s: %v, want %v", name, ns, c.want)
		}
	}
}

// chronicle is a leader's sequence, and what three ranks have of it.
type chronicle struct {
	log           []Decision
	tails         [3]Tail
	held, applied [3]uint64
	open          map[uint64]bool   // by Reserve
	dropped       map[uint64]uint64 // its Drop
}

func least(ns [3]uint64) uint64 { return slices.Min(ns[:]) }

// decide is the leader's next decision: about Reserve of, if that is open.
func (c *chronicle) decide(of uint64) {
	d := Decision{N: uint64(len(c.log)) + 1, Kind: Free, Settled: least(c.applied)}
	for n := range c.open {
		rest := n
		if c.dropped[n] > 0 {
			rest = c.dropped[n]
		}
		d.Settled = min(d.Settled, rest-1)
	}
	switch {
	case !c.open[of]:
		if d.N%3 > 0 {
			d.Kind, d.Tokens, d.Attempt, c.open[d.N] = Reserve, 7, Attempt(d.N), true
		}
	case c.dropped[of] == 0 && d.N%2 == 0:
		d.Kind, d.Of = Admit, of
		delete(c.open, of)
	case c.dropped[of] > 0 && d.N%2 == 0:
		d.Kind, d.Of = ReleaseQuarantine, of
		delete(c.open, of)
	default:
		d.Kind, d.Of, c.dropped[of] = Drop, of, d.N
	}
	c.log = append(c.log, d)
}

// step is the next thing that happens: k 0: the leader decides; 1 to 3: rank r hears what
// comes next; else it applies what all hold.
func (c *chronicle) step(k, r int, of uint64) {
	switch {
	case k < 1:
		c.decide(of)
	case k < 4:
		if c.held[r] < uint64(len(c.log)) {
			c.tails[r], c.held[r] = c.tails[r].Add(c.log[c.held[r]]), c.held[r]+1
		}
	default:
		c.applied[r] = max(c.applied[r], least(c.held))
		c.tails[r].Applied(c.applied[r])
	}
}

// Whatever ranks hold and applied when their leader dies: what they state makes the
// leader's sequence up to the newest that any of them holds, with the contents of
// everything that one of them may lack, and tells of each import that is not over.
func TestTailsProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := chronicle{open: map[uint64]bool{}, dropped: map[uint64]uint64{}}
		for range rapid.IntRange(1, 250).Draw(t, "steps") {
			c.step(rapid.IntRange(0, 5).Draw(t, "what"), rapid.IntRange(0, 2).Draw(t, "rank"),
				uint64(rapid.IntRange(0, len(c.log)).Draw(t, "of")))
		}
		high := slices.Max(c.held[:])
		for r := range c.tails {
			if err := CheckTail(c.tails[r], c.applied[r], c.held[r]); err != nil {
				t.Fatal(err)
			}
		}
		got, err := JoinTails(c.tails[:], least(c.applied), high, least(c.held))
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range got {
			if o := c.log[d.N-1]; d.Kind != o.Kind || d.Of != o.Of || d.N > least(c.held) && d.Tokens != o.Tokens {
				t.Fatalf("%+v was %+v", d, o)
			}
		}
		told := map[uint64]bool{}
		for _, x := range got.Reservations() {
			told[x.N] = x.Open()
		}
		for _, x := range Tail(c.log[:high]).Reservations() { // as anybody can know
			if x.Open() && !told[x.N] {
				t.Fatalf("nobody tells of Reserve %d: %+v", x.N, got)
			}
		}
	})
}
