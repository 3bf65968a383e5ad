// Package joint walks the machines of whole groups together: production machines,
// stepped one event at a time in every order that a small world allows, with every
// fault at every place. What must never happen is asked in every state, and at every end
// whether all that was begun has ended.
//
// What a world abstracts. A session keeps its order; it ends at any time, with any
// number of its last words lost, and each side hears of that whenever it comes to it. A
// dial takes any time. An engine's client holds what it hears at once; engines of a group
// apply decisions in one step, at any time, and each sidecar hears of that at its own
// pace. A copy ends at any time and reads memory at that instant; memory that is given
// back is written over at once. Clocks differ by less than the margin: machines compare
// their own clock alone with instants that they took from it, so that all they can do to
// each other is the order of two deadlines, and a margin of one nanosecond leaves the
// order that the margin promises and nothing more. Time passes to the next deadline
// where nothing else can happen; a deadline that comes earlier is a delay of all else,
// and counted as a fault. So is each loss, death, second arrival and call to abort.
package joint

import (
	"flag"
	"testing"

	"github.com/batonkv/baton/internal/walk"
)

var (
	long  = flag.Bool("long", false, "walk the large worlds as well: minutes, and up to 6 GB")
	limit = flag.Int("limit", 60_000_000, "states at which a walk stops")
)

// one is one hand-off of one block between groups of equal size.
func one(ranks int32, budget int8, faults faultKind) setup {
	return setup{src: ranks, dst: []int32{ranks}, labels: 1, tokens: blockTokens, blocks: 2, calls: [][]int{{0}}, faults: faults, budget: budget}
}

func (s setup) with(change func(*setup)) setup {
	change(&s)
	return s
}

const local = badCopies | movers | twice | users // faults that break no session

var worlds = []struct {
	name string
	long bool
	setup
}{
	{"1+1, a fault", false, one(1, 1, every|views)},
	{"1+1, two faults", false, one(1, 2, every|views)},
	{"1+1 that have not met, a fault", false, one(1, 1, every|views).with(func(s *setup) { s.cold = true })},
	{"1+1 announced, two faults", false, one(1, 2, every).with(func(s *setup) { s.early = true })},
	{"2+2, no fault", false, one(2, 0, 0)},
	{"2+2, a copy, mover, word or user", false, one(2, 1, local)},
	{"2+2, a process dies", false, one(2, 1, processes)},
	{"2 read by 1, a fault", false, one(1, 1, every).with(func(s *setup) { s.src = 2 })},
	{"1 read by 2, a fault", true, one(2, 1, every).with(func(s *setup) { s.src = 1 })},
	{"2+2, a session ends", false, one(2, 1, breaks)},
	{"2+2, a word outlives its session", true, one(2, 1, lates)},
	{"2+2, a delay", true, one(2, 1, delays)},
}

func TestJoint(t *testing.T) {
	if testing.Short() || racing {
		t.Skip("a walk takes minutes under the race detector, and is one goroutine")
	}
	for _, x := range worlds {
		t.Run(x.name, func(t *testing.T) {
			if x.long && !*long {
				t.Skip("takes minutes: -long")
			}
			if !*long {
				t.Parallel()
			}
			m := newModel(x.setup)
			r := walk.Run[string](m, *limit)
			t.Logf("%v; %d states of a node, %d ranks admitted at all ends", r, len(m.table.nodes), m.admitted)
			if r.Violation != "" || !r.Full && !*long {
				t.Fail()
			}
			if m.admitted == 0 {
				t.Error("nothing is ever admitted: the world has become idle")
			}
		})
	}
}
