package handoff

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"
)

var (
	impA = Importer{Group: "a", Instance: 1, Leader: 2}
	impB = Importer{Group: "b", Instance: 3, Leader: 4}
	key  = Key{1}
)

const lease = 10 * time.Second

// leased is a source of two ranks with a lease from 0 to lease.
func leased(t testing.TB, copies int32) *Source {
	s := NewSource(ID{N: 1}, key, "r", 2, time.Hour)
	err := s.Exported(Export{Label: "r", Tokens: 5, Position: 5, Copies: copies})
	for r := range 2 {
		err = errors.Join(err, s.Pinned(Pinned{Pin: PinInfo{Rank: rank(r), Pin: 1, Tokens: 5, Position: 5}}))
	}
	if err != nil || !s.Complete() {
		t.Fatal(err)
	}
	s.Lease(0, lease, lease)
	return s
}

type sourceCase struct {
	name string
	s    *Source
	do   func(*Source) any
	want any
}

func open(s *Source, now time.Duration) Status {
	return s.Open(now, Open{Key: key, Importer: impA, Attempt: 1}).Status
}

func done(s *Source, now time.Duration) Status {
	a, _ := s.Done(now, Done{Importer: impA, Attempt: 1})
	return a.Status
}

func runCases(t *testing.T, cases []sourceCase) {
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			if got := c.do(c.s); got != c.want {
				t.Fatalf("got %v, want %v", got, c.want)
			}
		})
	}
}

// TestSourceAnnounced, Leasing and Over cover each state with each input.
func TestSourceAnnounced(t *testing.T) {
	announced := func() *Source { return NewSource(ID{N: 1}, key, "r", 2, lease) }
	runCases(t, []sourceCase{
		{"announced: open waits", announced(), func(s *Source) any { return open(s, 0) }, Pending},
		{"announced: open after the deadline", announced(), func(s *Source) any { return open(s, lease) }, Gone},
		{"announced: done", announced(), func(s *Source) any { return done(s, 0) }, Gone},
		{"announced: expired", announced(), func(s *Source) any { return s.Expired(lease) }, true},
		{"announced: not yet", announced(), func(s *Source) any { return s.Expired(lease - 1) }, false},
		{"announced: wrong key", announced(), func(s *Source) any { return s.Open(0, Open{Importer: impA}).Status }, Gone},
		{"announced: open twice waits once", announced(), func(s *Source) any { open(s, 0); open(s, 0); return len(s.End()) }, 1},
		{"announced: withdrawn does not wait", announced(), func(s *Source) any {
			open(s, 0)
			s.Withdraw(Withdraw{Importer: impA, Attempt: 1})
			return len(s.End())
		}, 0},
		{"announced: rank beyond", announced(), func(s *Source) any { return errors.Is(s.Pinned(Pinned{Pin: PinInfo{Rank: 2, Pin: 1}}), ErrEngine) }, true},
		{"announced: pins disagree", announced(), func(s *Source) any {
			_ = s.Pinned(Pinned{Pin: PinInfo{Rank: 0, Pin: 1, Tokens: 5, Position: 5}})
			return errors.Is(s.Pinned(Pinned{Pin: PinInfo{Rank: 1, Pin: 1, Tokens: 6, Position: 6}}), ErrPosition)
		}, true},
		{"announced: pinned twice", announced(), func(s *Source) any {
			_ = s.Pinned(Pinned{Pin: PinInfo{Rank: 0, Pin: 1}})
			return errors.Is(s.Pinned(Pinned{Pin: PinInfo{Rank: 0, Pin: 2}}), ErrEngine)
		}, true},
		{"announced: exported twice", announced(), func(s *Source) any {
			_ = s.Exported(Export{})
			return errors.Is(s.Exported(Export{}), ErrEngine)
		}, true},
	})
}

func TestSourceLeasing(t *testing.T) {
	runCases(t, []sourceCase{
		{"leasing: open", leased(t, 1), func(s *Source) any { return open(s, lease-1) }, OK},
		{"leasing: open at the end", leased(t, 1), func(s *Source) any { return open(s, lease) }, Gone},
		{"leasing: done without open", leased(t, 1), func(s *Source) any { return done(s, 0) }, Gone},
		{"leasing: done", leased(t, 1), func(s *Source) any { open(s, 0); return done(s, lease-1) }, OK},
		{"leasing: done at the end", leased(t, 1), func(s *Source) any { open(s, 0); return done(s, lease) }, Gone},
		{"leasing: done after withdraw", leased(t, 1), func(s *Source) any {
			open(s, 0)
			s.Withdraw(Withdraw{Importer: impA, Attempt: 1})
			return done(s, 0)
		}, Gone},
		{"leasing: open after withdraw", leased(t, 1), func(s *Source) any {
			s.Withdraw(Withdraw{Importer: impA, Attempt: 1})
			return open(s, 0)
		}, Gone},
		{"leasing: exported", leased(t, 1), func(s *Source) any { return errors.Is(s.Exported(Export{}), ErrEngine) }, true},
		{"leasing: pinned", leased(t, 1), func(s *Source) any { return errors.Is(s.Pinned(Pinned{Pin: PinInfo{Pin: 3}}), ErrEngine) }, true},
		{"leasing: expired", leased(t, 1), func(s *Source) any { return s.Expired(lease) }, true},
	})
}

func TestSourceOver(t *testing.T) {
	over := func() *Source { s := leased(t, 1); s.End(); return s }
	runCases(t, []sourceCase{
		{"over: open", over(), func(s *Source) any { return open(s, 0) }, Gone},
		{"over: done", over(), func(s *Source) any { return done(s, 0) }, Gone},
		{"over: expired", over(), func(s *Source) any { return s.Expired(time.Hour) }, false},
		{"over: exported", over(), func(s *Source) any { return errors.Is(s.Exported(Export{}), ErrEngine) }, true},
		{"over: pinned", over(), func(s *Source) any { return errors.Is(s.Pinned(Pinned{Pin: PinInfo{Pin: 3}}), ErrEngine) }, true},
		{"over: complete", over(), func(s *Source) any { return s.Complete() }, false},
		{"over: what was done stays done", leased(t, 1), func(s *Source) any { open(s, 0); done(s, 0); s.End(); return done(s, time.Hour) }, OK},
	})
}

// TestSourceBound: what a hand-off remembers of importers does not grow for ever, and a
// claim that is not remembered never consumes.
func TestSourceBound(t *testing.T) {
	s := leased(t, 1)
	refused := 0
	for n := range Attempt(3 * maxClaims) {
		if s.Open(0, Open{Key: key, Importer: impA, Attempt: n}).Status == Refused {
			refused++
		}
		s.Withdraw(Withdraw{Importer: impB, Attempt: n})
	}
	if len(s.opened) > maxClaims || len(s.answers) > maxClaims || refused == 0 {
		t.Fatalf("%d claims, %d answers, %d refused", len(s.opened), len(s.answers), refused)
	}
	if a, _ := s.Done(0, Done{Importer: impA, Attempt: 3*maxClaims - 1}); a.Status != Gone {
		t.Fatalf("a refused claim got %v", a.Status)
	}
}

// TestStrangersTakeNoRoom: words without the key, however many, keep nobody with the key
// from importing.
func TestStrangersTakeNoRoom(t *testing.T) {
	s := leased(t, 1)
	for n := range Attempt(2 * maxClaims) {
		s.Open(0, Open{Importer: impB, Attempt: n})
		s.Withdraw(Withdraw{Importer: impB, Attempt: n})
		s.Done(0, Done{Importer: impB, Attempt: maxClaims*4 + n})
	}
	if a := s.Open(0, Open{Key: key, Importer: impA, Attempt: 1}); a.Status != OK {
		t.Fatalf("the key opens %v", a.Status)
	}
	if a, over := s.Done(0, Done{Importer: impA, Attempt: 1}); a.Status != OK || !over {
		t.Fatalf("done: %v, over %v", a.Status, over)
	}
}

// TestSourceWalk takes every order of seven inputs of two importers, with one copy and
// with two: copies are never exceeded, a claim's answer never changes, and OK goes only
// to a claim that opened before its lease ended and did not withdraw.
func TestSourceWalk(t *testing.T) {
	type model struct {
		opened, withdrawn [2]bool
		answer            [2]Status
		expired           bool
	}
	imps := [2]Importer{impA, impB}
	for copies := int32(1); copies <= 2; copies++ {
		walks := 0
		var walk func(path []int)
		check := func(path []int) {
			s, m, ok, now := leased(t, copies), model{}, int32(0), time.Duration(0)
			for _, x := range path {
				i := x % 2
				switch x / 2 {
				case 0:
					st := s.Open(now, Open{Key: key, Importer: imps[i], Attempt: 1}).Status
					m.opened[i] = m.opened[i] || st == OK
				case 1:
					a, over := s.Done(now, Done{Importer: imps[i], Attempt: 1})
					if m.answer[i] == 0 && a.Status == OK {
						ok++
						if !m.opened[i] || m.withdrawn[i] || m.expired || over != (ok == copies) {
							t.Fatalf("%v: done of %d is %v, over %v", path, i, a.Status, over)
						}
					}
					if m.answer[i] != 0 && a.Status != m.answer[i] {
						t.Fatalf("%v: the answer to %d changed from %v to %v", path, i, m.answer[i], a.Status)
					}
					m.answer[i] = a.Status
				case 2:
					s.Withdraw(Withdraw{Importer: imps[i], Attempt: 1})
					m.withdrawn[i] = true
				case 3:
					now, m.expired = lease, true
				}
			}
			if ok > copies || s.Copies() != copies-ok {
				t.Fatalf("%v: %d consumed, %d of %d left", path, ok, s.Copies(), copies)
			}
			walks++
		}
		walk = func(path []int) {
			check(path)
			if len(path) == 6 {
				return
			}
			for x := range 7 {
				walk(append(path, x))
			}
		}
		walk(nil)
		t.Log(fmt.Sprint(walks, " orders with copies ", copies))
	}
}

func TestPinAnswers(t *testing.T) {
	p := Pin{Info: PinInfo{Pin: 3, Generation: 1}}
	c := Check{ID: ID{N: 1}, Pin: 3, Generation: 1}
	for _, x := range []struct {
		id   ID
		pin  PinID
		gen  Generation
		want bool
	}{{ID{}, 3, 1, true}, {ID{N: 1}, 3, 1, true}, {ID{N: 2}, 3, 1, false}, {ID{N: 1}, 4, 1, false}, {ID{N: 1}, 3, 2, false}} {
		p.ID, c.Pin, c.Generation = x.id, x.pin, x.gen
		if got := p.Answers(c); got != x.want {
			t.Errorf("%+v: %v", x, got)
		}
	}
}

// TestAwait: the wait for the ranks that pin nothing only gets shorter, and no lease is.
func TestAwait(t *testing.T) {
	s := NewSource(ID{N: 1}, Key{1}, "r", 2, 90)
	if m := s.Missing(); m != nil {
		t.Fatalf("missing %v of what nobody pins", m)
	}
	if err := errors.Join(s.Exported(Export{Label: "r", Tokens: 1, Position: 1}), s.Pinned(Pinned{Label: "r", Pin: PinInfo{Rank: 1, Pin: 5, Tokens: 1, Position: 1}})); err != nil {
		t.Fatal(err)
	}
	s.Await(50)
	s.Await(70)
	if m := s.Missing(); !slices.Equal(m, []int32{0}) || s.Deadline() != 50 || s.Expired(49) {
		t.Fatalf("missing %v until %v", m, s.Deadline())
	}
	if err := s.Pinned(Pinned{Label: "r", Pin: PinInfo{Pin: 6, Tokens: 1, Position: 1}}); err != nil {
		t.Fatal(err)
	}
	s.Lease(40, 30, 30)
	if s.Await(50); s.Missing() != nil || s.Deadline() != 70 {
		t.Fatalf("missing %v, leased until %v", s.Missing(), s.Deadline())
	}
}
