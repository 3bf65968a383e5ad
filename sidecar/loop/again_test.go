package loop

import (
	"fmt"
	"testing"

	"github.com/batonkv/baton/sidecar/control"
	"github.com/batonkv/baton/sidecar/handoff"
)

// lose ends the engine's session of a sidecar, as a broken socket would, and returns when
// the group took note and is whole again.
func (r *rig) lose(group string, n int32) {
	s := r.sides[fmt.Sprintf("%s/%d", group, n)]
	seen := r.sides[group+"/0"].notices.Append(control.Notice{Kind: control.Announced}) // counts them
	s.post(func() {
		for _, es := range s.sessions {
			es.Close(fmt.Errorf("%w: the session broke", handoff.ErrPeer))
		}
	})
	r.notice(group, seen+1, control.NotReady, "")
	r.notice(group, seen+1, control.Ready, "")
}

// An engine whose session breaks attaches again to the sidecar that lives: what it held
// for importers is freed in the group's order, and the group goes on.
func TestSessionBreaks(t *testing.T) {
	for _, c := range []struct {
		group string
		rank  int32
	}{{"p", 0}, {"p", 1}, {"d", 0}} {
		t.Run(fmt.Sprintf("%s-%d", c.group, c.rank), func(t *testing.T) {
			r := cluster(t, nil)
			before := r.export("p", "before", 40)
			r.lose(c.group, c.rank)
			_, err := r.importNow(t.Context(), "d", before)
			if gone := c.group == "p"; (err != nil) != gone {
				t.Errorf("what was held before: %v", err)
			}
			r.handoff("after", 40)
		})
	}
}
