package steer

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/batonkv/baton/plugins"
	"github.com/batonkv/baton/sidecar/control"
	"github.com/batonkv/baton/sidecar/handoff"
)

// drainer answers each Drain with the next of its answers, and then always with the last.
type drainer struct {
	plugins.Cluster
	answers []answer
	asked   int
	resumed bool
}

type answer struct {
	d   control.Drain
	err error
}

func (f *drainer) Drain(ctx context.Context, group string, resume bool) (control.Drain, error) {
	if err := ctx.Err(); err != nil {
		return control.Drain{}, err
	}
	f.resumed = f.resumed || resume
	a := f.answers[min(f.asked, len(f.answers)-1)]
	f.asked++
	return a.d, a.err
}

func left(imports, exports int32, waits ...string) answer {
	return answer{d: control.Drain{Draining: true, Imports: imports, Exports: exports, Waits: waits}}
}

var safe = answer{d: control.Drain{Draining: true, Safe: true}}

func TestDrain(t *testing.T) {
	const going = "d-0 goes on draining, 2 imports and 1 export left; baton drain d-0 waits again, baton drain d-0 --resume has it take work again"
	for _, c := range []struct {
		name    string
		answers []answer
		timeout time.Duration
		end     time.Duration // of the context; 0: never
		says    []string
		out     string
		err     error
		text    string
	}{
		{name: "at once", answers: []answer{safe}, says: []string{"d-0 takes no new work"}, out: "safe to stop\n"},
		{name: "as it empties", answers: []answer{left(2, 1), left(2, 1), left(0, 1, "rank 1"), left(0, 1, "rank 0"), left(0, 0, "a copy\nof rank 0"), safe},
			says: []string{"d-0 takes no new work", "2 imports and 1 export left", "1 export left: rank 1", "a copy of rank 0"}, out: "safe to stop\n"},
		{name: "unknown", answers: []answer{{err: handoff.ErrGroup}}, err: handoff.ErrGroup},
		{name: "its first answer is lost", answers: []answer{{err: handoff.ErrInDoubt}, left(1, 0), safe},
			says: []string{"asking again: handoff: in doubt: ask Get", "d-0 takes no new work", "1 import left"}, out: "safe to stop\n"},
		{name: "dead after that", answers: []answer{{err: handoff.ErrInDoubt}, {err: handoff.ErrPeer}}, says: []string{"asking again: handoff: in doubt: ask Get"}, err: handoff.ErrPeer},
		{name: "dead", answers: []answer{{err: handoff.ErrPeer}}, err: handoff.ErrPeer},
		{name: "its leader restarts", answers: []answer{left(1, 0), {err: handoff.ErrPeer}, {err: handoff.ErrPeer}, {err: handoff.ErrNotReady}, safe},
			says: []string{"d-0 takes no new work", "1 import left", "asking again: handoff: peer lost", "asking again: handoff: group not ready"}, out: "safe to stop\n"},
		{name: "goes away", answers: []answer{left(1, 0), {err: handoff.ErrGroup}}, says: []string{"d-0 takes no new work", "1 import left"}, err: handoff.ErrGroup, text: "went away before it was safe to stop, 1 import left"},
		{name: "denied later", answers: []answer{left(1, 0), {err: handoff.ErrDenied}}, says: []string{"d-0 takes no new work", "1 import left"}, err: handoff.ErrDenied},
		{name: "too long", answers: []answer{left(2, 1)}, timeout: time.Minute, says: []string{"d-0 takes no new work", "2 imports and 1 export left"}, err: ErrNotSafe, text: "d-0 is not safe to stop after 1m0s: 2 imports and 1 export left"},
		{name: "interrupted", answers: []answer{left(2, 1)}, end: time.Hour, says: []string{"d-0 takes no new work", "2 imports and 1 export left", going}, err: context.DeadlineExceeded},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx := t.Context()
				if c.end > 0 {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, c.end)
					defer cancel()
				}
				var says []string
				var out strings.Builder
				f := &drainer{answers: c.answers}
				err := Drain(ctx, f, DrainOptions{Group: "d-0", Timeout: c.timeout, Progress: func(s string) { says = append(says, s) }}, &out)
				if !errors.Is(err, c.err) || c.text != "" && !strings.Contains(err.Error(), c.text) {
					t.Errorf("error %v; want %v with %q", err, c.err, c.text)
				}
				if got := strings.Join(says, "\n"); got != strings.Join(c.says, "\n") || out.String() != c.out {
					t.Errorf("says\n%s\n%s", got, &out)
				}
				if f.resumed {
					t.Error("it took work again")
				}
			})
		})
	}
}

func TestResume(t *testing.T) {
	f := &drainer{answers: []answer{{}}}
	var out strings.Builder
	if err := Drain(t.Context(), f, DrainOptions{Group: "d-0", Resume: true}, &out); err != nil || !f.resumed || f.asked != 1 || out.String() != "d-0 takes work\n" {
		t.Errorf("%v, %+v, %s", err, f, &out)
	}
}
