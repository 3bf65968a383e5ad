// Package walk searches the states of a model breadth first. Tests give it production
// machines in a small world; it finds the shortest way to a broken invariant, or says
// how many states there were.
//
// A state is known by 64 bits of a hash of its key; with n states the chance that one
// is missed is about n*n/2^65, and the seed differs between runs. Only the states of
// two neighbouring depths are kept, a trace is found again by replaying its steps.
package walk

import (
	"fmt"
	"hash/maphash"
	"slices"
	"strings"
	"time"
)

// Step names one step of a world.
type Step struct {
	Fault bool // taken from a budget: not progress
	Name  string
	Args  [3]int // for the verbs of Name
}

// String formats s for a trace.
func (s Step) String() string {
	out := s.Name
	if n := strings.Count(s.Name, "%"); n > 0 {
		args := []any{s.Args[0], s.Args[1], s.Args[2]}
		out = fmt.Sprintf(s.Name, args[:min(n, 3)]...)
	}
	if s.Fault {
		out = "FAULT " + out
	}
	return out
}

// Model is a world of states S. Next calls emit once for each step that is enabled in
// s, always in the same order, with a state that shares nothing that changes with s.
type Model[S any] interface {
	Init() S
	Next(s S, emit func(Step, S))
	// Key appends bytes that are equal for states that are the same.
	Key(s S, b []byte) []byte
	// Bad returns the invariant that s breaks, or "".
	Bad(s S) string
	// Stuck is asked where nothing but faults can happen: what is not as it should be
	// at an end, or "".
	Stuck(s S) string
}

// Result is what one search found.
type Result struct {
	States, Steps, Ends, Depth int
	Time                       time.Duration
	Full                       bool     // every state within the model's bounds was seen
	Violation                  string   // "": none
	Trace                      []string // shortest way to it
}

func (r Result) String() string {
	out := fmt.Sprintf("%d states, %d steps, %d ends, depth %d, %.1fs", r.States, r.Steps, r.Ends, r.Depth, r.Time.Seconds())
	switch {
	case r.Violation != "":
		return out + ": " + r.Violation + "\n    " + strings.Join(r.Trace, "\n    ")
	case !r.Full:
		return out + ": clean as far as it went"
	}
	return out + ": clean"
}

// from says how a state was first reached: which step of which state.
type from struct{ parent, step uint32 }

// search is one run.
type search[S any] struct {
	m     Model[S]
	seed  maphash.Seed
	seen  set
	how   []from
	key   []byte
	level []S
	next  []S
	res   Result
}

// Run searches until a violation, the end, or limit states.
func Run[S any](m Model[S], limit int) Result {
	t0 := time.Now()
	s := &search[S]{m: m, seed: maphash.MakeSeed()}
	s.add(m.Init(), from{})
	first := 0 // index of the level's first state
	for len(s.next) > 0 && s.res.Violation == "" && len(s.how) < limit {
		s.level, s.next = s.next, nil
		for k := range s.level {
			s.expand(first+k, s.level[k])
			if s.res.Violation != "" {
				break
			}
		}
		first += len(s.level)
		s.res.Depth++
	}
	s.res.Full = len(s.next) == 0 && s.res.Violation == ""
	s.res.States, s.res.Time = len(s.how), time.Since(t0)
	return s.res
}

func (s *search[S]) expand(at int, x S) {
	live, n := 0, 0
	s.m.Next(x, func(l Step, y S) {
		s.res.Steps++
		if !l.Fault {
			live++
		}
		s.add(y, from{uint32(at), uint32(n)})
		n++
	})
	if live > 0 || s.res.Violation != "" {
		return
	}
	s.res.Ends++
	if v := s.m.Stuck(x); v != "" {
		s.res.Violation, s.res.Trace = v, append(s.trace(at), "(nothing but faults can happen)")
	}
}

// add enters a state unless it is known or a violation was found.
func (s *search[S]) add(x S, f from) {
	if s.res.Violation != "" {
		return
	}
	s.key = s.m.Key(x, s.key[:0])
	if !s.seen.add(maphash.Bytes(s.seed, s.key)) {
		return
	}
	s.how = append(s.how, f)
	s.next = append(s.next, x)
	if v := s.m.Bad(x); v != "" {
		s.res.Violation, s.res.Trace = v, s.trace(len(s.how)-1)
	}
}

// trace replays the steps from the first state to state i.
func (s *search[S]) trace(i int) (out []string) {
	var steps []uint32
	for ; i != 0; i = int(s.how[i].parent) {
		steps = append(steps, s.how[i].step)
	}
	slices.Reverse(steps)
	x := s.m.Init()
	for _, want := range steps {
		n, to := uint32(0), x
		s.m.Next(x, func(l Step, y S) {
			if n == want {
				out, to = append(out, l.String()), y
			}
			n++
		})
		x = to
	}
	return out
}
