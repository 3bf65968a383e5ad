package handoff

import (
	"errors"
	"testing"
)

// at brings a leader of two ranks to a state by the ordinary way.
func at(t *testing.T, st LeaderState) *Leader {
	l := NewLeader(Import{Manifest: Manifest{ID: ID{Group: "p", N: 1}}, Tokens: []int32{1, 2}}, 3, 2, 0, 100)
	steps := []func(){
		func() { l.Open(Digest{1}) },
		func() {
			must(t, l.Answered(Opened{Attempt: 3, Status: OK, Plan: Digest{1}, Tokens: 2, Position: 2}, 1))
		},
		func() { l.Reserve(7, 2) },
		func() { grant(l, 0, Reserved{N: 7}); grant(l, 1, Reserved{N: 7}) },
		func() { land(l, 0, true); land(l, 1, true) },
		func() { must(t, l.Consumed(DoneAck{Attempt: 3, Status: OK})); l.Admit(8, 5) },
	}
	for _, f := range steps {
		if l.State() == st {
			return l
		}
		f()
	}
	if st == Draining {
		l = at(t, Pulling)
		l.Fail(ErrAborted, 6)
	}
	if st == Finished {
		l.Applied(8, 9)
	}
	if l.State() != st {
		t.Fatalf("in state %v, want %v", l.State(), st)
	}
	return l
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func grant(l *Leader, rank int, r Reserved) (bool, bool, error) { return l.Granted(rank, r, 3) }
func land(l *Leader, rank int, ok bool) (bool, error) {
	return l.Landed(rank, Landed{Attempt: 3, N: 7, OK: ok, Quiet: true, Why: "boom", Bytes: 1}, 4)
}

var allStates = []LeaderState{Finding, Opening, Waiting, Granting, Pulling, Consuming, Admitting, Draining, Finished}

// TestLeaderTable gives each input to each state. Where an input does not belong it
// changes nothing.
func TestLeaderTable(t *testing.T) {
	for _, in := range []struct {
		name string
		do   func(*Leader)
		next map[LeaderState]LeaderState // others stay
	}{
		{"opened", func(l *Leader) {
			_ = l.Answered(Opened{Attempt: 3, Status: OK, Plan: Digest{1}, Tokens: 2, Position: 1}, 1)
		},
			map[LeaderState]LeaderState{Opening: Waiting}},
		{"pending", func(l *Leader) { _ = l.Answered(Opened{Attempt: 3, Status: Pending}, 1) }, nil},
		{"opened for another attempt", func(l *Leader) {
			_ = l.Answered(Opened{Attempt: 2, Status: OK, Plan: Digest{1}, Tokens: 2, Position: 2}, 1)
		}, nil},
		{"granted by one", func(l *Leader) { grant(l, 0, Reserved{N: 7}) }, nil},
		{"granted by all", func(l *Leader) { grant(l, 0, Reserved{N: 7}); grant(l, 1, Reserved{N: 7}) },
			map[LeaderState]LeaderState{Granting: Pulling}},
		{"granted for another number", func(l *Leader) { grant(l, 0, Reserved{N: 6}); grant(l, 1, Reserved{N: 6}) }, nil},
		{"full", func(l *Leader) { grant(l, 0, Reserved{N: 7, Full: true}); grant(l, 1, Reserved{N: 7, Full: true}) },
			map[LeaderState]LeaderState{Granting: Waiting}},
		{"landed by all", func(l *Leader) { land(l, 0, true); land(l, 1, true) }, map[LeaderState]LeaderState{Pulling: Consuming}},
		{"landed by one twice", func(l *Leader) { land(l, 0, true); land(l, 0, true) }, nil},
		{"landed by rank 9", func(l *Leader) { land(l, 9, true) }, nil},
		{"applied", func(l *Leader) { l.Applied(8, 9) }, map[LeaderState]LeaderState{Admitting: Finished}},
		{"applied less", func(l *Leader) { l.Applied(7, 9) }, nil},
		{"quiet by all", func(l *Leader) { land(l, 0, false); land(l, 1, false); l.Drained(9) },
			map[LeaderState]LeaderState{Draining: Finished}},
		{"quiet by one", func(l *Leader) { land(l, 0, false); l.Drained(9) }, nil},
	} {
		for _, st := range allStates {
			l := at(t, st)
			want, ok := in.next[st]
			if !ok {
				want = st
			}
			if in.do(l); l.State() != want {
				t.Errorf("%s in state %v: %v, want %v", in.name, st, l.State(), want)
			}
		}
	}
}

func TestLeaderFail(t *testing.T) {
	for _, st := range allStates {
		l := at(t, st)
		drop := l.Fail(ErrAborted, 9)
		holds := st == Granting || st == Pulling || st == Consuming
		if drop != holds || (l.State() == Draining) != holds {
			t.Errorf("fail in state %v: drop %v, then %v", st, drop, l.State())
		}
		if got := at(t, st).Abortable(); got != (st < Consuming) {
			t.Errorf("abortable in state %v: %v", st, got)
		}
	}
}

func TestLeaderAnswers(t *testing.T) {
	good := Opened{Attempt: 3, Status: OK, Plan: Digest{1}, Tokens: 2, Position: 2}
	for name, c := range map[string]struct {
		change func(*Opened)
		want   error
	}{
		"taken":           {func(o *Opened) { o.Status = Taken }, ErrTaken},
		"gone":            {func(o *Opened) { o.Status = Gone }, ErrGone},
		"refused":         {func(o *Opened) { o.Status = Refused }, ErrPlan},
		"another plan":    {func(o *Opened) { o.Plan = Digest{2} }, ErrPlan},
		"another prompt":  {func(o *Opened) { o.Tokens = 3 }, ErrPosition},
		"another place":   {func(o *Opened) { o.Position = 0 }, ErrPosition},
		"ordinary":        {func(*Opened) {}, nil},
		"recomputes last": {func(o *Opened) { o.Position = 1 }, nil},
		"in parts":        {func(o *Opened) { o.Extent = Extent{More: true, Part: 1, Reach: All(1)} }, nil},
		"beyond the end":  {func(o *Opened) { o.Extent = Extent{More: true, Part: 1, Reach: All(3)} }, ErrPlan},
		"a strip of none": {func(o *Opened) { o.Extent = Extent{More: true, Part: 1, Reach: Reach{Layers: 1}} }, ErrPlan},
		"before a part":   {func(o *Opened) { o.Extent = Extent{More: true} }, ErrPlan},
	} {
		o := good
		c.change(&o)
		if err := at(t, Opening).Answered(o, 1); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
	for st, want := range map[Status]error{OK: nil, Taken: ErrTaken, Gone: ErrGone, Refused: ErrGone, 0: ErrGone} {
		if err := at(t, Consuming).Consumed(DoneAck{Attempt: 3, Status: st}); !errors.Is(err, want) {
			t.Errorf("done answered %v: %v, want %v", st, err, want)
		}
	}
	for _, st := range allStates {
		if err := at(t, st).Consumed(DoneAck{Attempt: 3, Status: OK}); (err == nil) != (st == Consuming) {
			t.Errorf("done answered in state %v: %v", st, err)
		}
	}
	if at(t, Consuming).Consumed(DoneAck{Attempt: 2, Status: OK}) == nil {
		t.Error("an answer to another attempt admits")
	}
}

func TestLeaderDiverged(t *testing.T) {
	a := Reserved{N: 7, Digest: Digest{1}, Cached: 16}
	for name, b := range map[string]Reserved{"digest": {N: 7, Digest: Digest{2}, Cached: 16}, "cached": {N: 7, Digest: Digest{1}},
		"full": {N: 7, Digest: Digest{1}, Cached: 16, Full: true}, "why": {N: 7, Digest: Digest{1}, Cached: 16, Why: "never"}} {
		l := at(t, Granting)
		grant(l, 1, b)
		if _, _, err := grant(l, 0, a); !errors.Is(err, ErrEngine) {
			t.Errorf("%s: %v", name, err)
		}
	}
	l := at(t, Granting)
	grant(l, 1, Reserved{N: 7, Why: "too long"})
	if _, _, err := grant(l, 0, Reserved{N: 7, Why: "too long"}); !errors.Is(err, ErrCapacity) {
		t.Errorf("why: %v", err)
	}
}

// A rank may land before another has answered Reserve; a failure counts in both states.
func TestLeaderLandsEarly(t *testing.T) {
	l := at(t, Granting)
	grant(l, 0, Reserved{N: 7})
	land(l, 0, true)
	land(l, 1, true)
	if l.State() != Granting || l.Bytes != 2 {
		t.Fatalf("state %v, %d bytes", l.State(), l.Bytes)
	}
	if grant(l, 1, Reserved{N: 7}); !l.Consumable(5) || l.State() != Consuming {
		t.Fatalf("state %v", l.State())
	}
	for _, st := range []LeaderState{Granting, Pulling} {
		if _, err := land(at(t, st), 1, false); !errors.Is(err, ErrTransfer) {
			t.Errorf("in state %v: %v", st, err)
		}
	}
}

func TestSequence(t *testing.T) {
	q := NewSequence(0, make([]uint64, 2), make([]uint64, 2))
	for range 3 {
		q.Next()
	}
	for _, c := range []struct {
		rank    int
		n       uint64
		through uint64
		grew    bool
	}{{0, 2, 0, false}, {1, 1, 1, true}, {1, 1, 1, false}, {1, 4, 1, false}, {1, 3, 2, true}, {0, 1, 2, false}, {2, 3, 2, false}, {-1, 3, 2, false}, {0, 3, 3, true}} {
		if th, grew := q.Held(c.rank, c.n); th != c.through || grew != c.grew {
			t.Errorf("held(%d, %d) = %d, %v", c.rank, c.n, th, grew)
		}
	}
	if q.AllHeld() != 3 {
		t.Errorf("all hold %d of 3", q.AllHeld())
	}
	for _, c := range []struct {
		rank int
		n    uint64
		all  uint64
	}{{0, 3, 0}, {1, 2, 2}, {1, 1, 2}, {1, 9, 2}, {7, 3, 2}, {1, 3, 3}} {
		if all := q.Applied(c.rank, c.n); all != c.all {
			t.Errorf("applied(%d, %d) = %d, want %d", c.rank, c.n, all, c.all)
		}
	}
	for _, c := range []struct {
		held, applied uint64
		want          bool
	}{{3, 3, true}, {4, 3, false}, {2, 2, false}, {3, 2, false}, {3, 4, false}} {
		if got := q.Stated(1, c.held, c.applied); got != c.want {
			t.Errorf("stated %d, %d: %v", c.held, c.applied, got)
		}
	}
}
