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
//
// Where pulls are staged, the production halves of package staged talk in the same
// sessions, over an arena of one chunk an end. A fetch brings what the source's chunk holds
// when it ends, if the process that offered it lives; a pack reads engine memory when it ends.
package joint

import (
	"flag"
	"regexp"
	"runtime/debug"
	"testing"

	"github.com/batonkv/baton/internal/need"
	"github.com/batonkv/baton/internal/walk"
)

var (
	long  = flag.Bool("long", false, "walk the large worlds as well: minutes, and up to 6 GB")
	only  = flag.String("world", "", "walk the worlds whose name this expression matches, and no other")
	limit = flag.Int("limit", 60_000_000, "states at which a walk stops")
)

func TestJoint(t *testing.T) {
	if testing.Short() || racing {
		need.Skip(t, "walks", "a walk takes minutes under the race detector, and is one goroutine")
	}
	if !*long { // nearly all that a walk makes is either kept or soon gone
		was := debug.SetGCPercent(400)
		t.Cleanup(func() { debug.SetGCPercent(was) })
	}
	chosen := regexp.MustCompile(*only)
	for _, x := range worlds {
		if !chosen.MatchString(x.name) {
			continue
		}
		t.Run(x.name, func(t *testing.T) {
			if x.long && !*long {
				need.Skip(t, "walks", "takes minutes: -long")
			}
			if !*long {
				t.Parallel()
			}
			m := newModel(x.setup)
			r := walk.Run[string](m, *limit)
			t.Logf("%s: %v; %d states of a node, %d ranks admitted at all ends", x.name, r, len(m.table.nodes), m.admitted)
			if r.Violation != "" || !r.Full && !*long {
				t.Fail()
			}
			if m.admitted == 0 && x.calls != nil && !x.hangs {
				t.Error("nothing is ever admitted: the world has become idle")
			}
		})
	}
}
