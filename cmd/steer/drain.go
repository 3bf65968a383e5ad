// Package steer is what people steer a cluster with: drain a group, watch what happens.
// It speaks to the interfaces of package plugins, as any control plane does.
package steer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/batonkv/baton/discovery"
	"github.com/batonkv/baton/internal/pause"
	"github.com/batonkv/baton/internal/say"
	"github.com/batonkv/baton/plugins"
	"github.com/batonkv/baton/sidecar/control"
	"github.com/batonkv/baton/sidecar/handoff"
)

// ErrNotSafe says that a group drains and has something left that a stop would lose.
var ErrNotSafe = errors.New("not safe to stop")

// DrainOptions is one drain.
type DrainOptions struct {
	Group   string
	Resume  bool          // take work again, instead
	Timeout time.Duration // 0: as long as it takes
	// Progress hears what is left, when that changes.
	Progress func(string)
}

// How often a draining group is asked.
const (
	askMin = 100 * time.Millisecond
	askMax = time.Second
)

// Drain stops group's intake and returns nil when nothing is left that a stop would lose,
// with the last line "safe to stop" on out. The group goes on draining whatever ends the
// wait: ctx, or the timeout, which is ErrNotSafe.
func Drain(ctx context.Context, c plugins.Cluster, o DrainOptions, out io.Writer) error {
	if o.Resume {
		if _, err := c.Drain(ctx, o.Group, true); err != nil {
			return err
		}
		_, err := fmt.Fprintf(out, "%s takes work\n", o.Group)
		return err
	}
	waiting := ctx
	if o.Timeout > 0 {
		var cancel context.CancelFunc
		waiting, cancel = context.WithTimeout(ctx, o.Timeout)
		defer cancel()
	}
	d := drain{DrainOptions: o, c: c}
	err := d.run(waiting)
	switch {
	case err == nil:
		_, err = fmt.Fprintln(out, "safe to stop")
		return err
	case !d.begun || waiting.Err() == nil:
		return err
	case ctx.Err() != nil:
		o.Progress(fmt.Sprintf("%s goes on draining, %s; baton drain %[1]s waits again, baton drain %[1]s --resume has it take work again", o.Group, d.left()))
		return ctx.Err()
	}
	return fmt.Errorf("%s is %w after %v: %s", o.Group, ErrNotSafe, o.Timeout, d.left())
}

// drain is a drain under way.
type drain struct {
	DrainOptions
	c     plugins.Cluster
	begun bool
	last  control.Drain
	said  string
}

// run asks until the group is safe, or ctx ends. What may pass is asked again once the
// drain may have begun.
func (d *drain) run(ctx context.Context) error {
	for wait := askMin; ; wait = min(wait*3/2, askMax) {
		got, err := d.c.Drain(ctx, d.Group, false)
		switch {
		case ctx.Err() != nil && err != nil:
			return ctx.Err()
		case err == nil:
			if !d.begun {
				d.begun = true
				d.Progress(d.Group + " takes no new work")
			}
			d.last = got
			if got.Safe {
				return nil
			}
			d.say(d.counts(), got.Waits...)
		case !d.begun && !errors.Is(err, handoff.ErrInDoubt): // else it may have begun
			return err
		case errors.Is(err, handoff.ErrGroup):
			return fmt.Errorf("%s went away before it was safe to stop, %s: %w", d.Group, d.left(), err)
		case !passing(err):
			return err
		default:
			if said := "asking again: " + say.Line(err.Error(), maxWhy); said != d.said {
				d.said = said
				d.Progress(said)
			}
		}
		if !pause.For(ctx, wait) {
			return ctx.Err()
		}
	}
}

// passing says that the same call may succeed later.
func passing(err error) bool {
	for _, p := range []error{handoff.ErrPeer, handoff.ErrNotReady, handoff.ErrInDoubt, handoff.ErrCapacity, discovery.ErrDown, context.DeadlineExceeded} {
		if errors.Is(err, p) {
			return true
		}
	}
	return false
}

// say tells what is new. A number in what is waited for is a time that runs down, and none.
func (d *drain) say(what string, waits ...string) {
	key := what + strings.Map(func(r rune) rune {
		if r >= '0' && r <= '9' {
			return -1
		}
		return r
	}, strings.Join(waits, ";"))
	if key != d.said {
		d.said = key
		d.Progress(strings.TrimPrefix(what+d.waits(), ": "))
	}
}

// left says what keeps the group from being safe.
func (d *drain) left() string {
	if s := strings.TrimPrefix(d.counts()+d.waits(), ": "); s != "" {
		return s
	}
	return "nothing of it is known to be left"
}

func (d *drain) counts() string {
	var parts []string
	if n := d.last.Imports; n > 0 {
		parts = append(parts, say.Count(int64(n), "import"))
	}
	if n := d.last.Exports; n > 0 {
		parts = append(parts, say.Count(int64(n), "export"))
	}
	if len(parts) == 0 {
		return ""
	}
	return strings.Join(parts, " and ") + " left"
}

func (d *drain) waits() string {
	if len(d.last.Waits) == 0 {
		return ""
	}
	return ": " + say.Line(strings.Join(d.last.Waits, "; "), maxWhy)
}
