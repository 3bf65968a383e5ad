package steer

import (
	"context"
	"errors"
	"io"
	"slices"
	"time"

	"github.com/batonkv/baton/internal/pause"
	"github.com/batonkv/baton/internal/say"
	"github.com/batonkv/baton/plugins"
	"github.com/batonkv/baton/sidecar/control"
	"github.com/batonkv/baton/sidecar/handoff"
)

// WatchOptions is one watch.
type WatchOptions struct {
	Groups []string // empty: all
	Kept   bool     // first what each leader keeps of the past
	JSON   bool     // a JSON object a line
	Color  bool     // for a terminal
	// Warn hears of a named group that is not there at first, and of "" when nobody is.
	Warn func(group string, there []string)
}

// How long after a stream ended it is begun again: it doubles.
const (
	againMin = 200 * time.Millisecond
	againMax = 5 * time.Second
)

// Watch writes a line to out for everything that happens in a cluster: who comes and goes,
// and each group's notices. It ends with ctx, and returns nil then. Before the first view
// of the cluster an error ends it; later a stream that ends is begun again where it was.
func Watch(ctx context.Context, c plugins.Cluster, h plugins.Handoff, o WatchOptions, out io.Writer) error {
	ctx, cancel := context.WithCancel(ctx)
	w := watch{WatchOptions: o, h: h, told: make(chan told), groups: map[string]*followed{}, show: newShow(out, o)}
	views := make(chan struct{})
	go func() { // ends with ctx
		defer close(views)
		w.views(ctx, c)
	}()
	defer func() {
		cancel()
		<-views
		for _, f := range w.groups {
			<-f.over
		}
	}()
	for {
		select {
		case t := <-w.told:
			if err := w.take(ctx, t); err != nil {
				return err
			}
		case <-ctx.Done():
			return nil
		}
	}
}

// told is one thing that a stream said: a view, a notice, or its end.
type told struct {
	view   []plugins.Group
	from   *followed // of notice; nil: discovery
	notice control.Notice
	err    error
}

// watch is a Watch under way; its loop alone touches all but told.
type watch struct {
	WatchOptions
	h      plugins.Handoff
	told   chan told
	groups map[string]*followed
	view   map[string]plugins.Group // nil before the first
	heard  bool                     // a notice
	lost   bool                     // discovery's stream ended and has not begun again
	show   *show
}

// followed is a group whose notices are watched, or were when it was there.
type followed struct {
	name   string
	from   control.Cursor
	newest bool // the first notice only says where the newest is
	lost   bool // its stream ended and has not begun again
	gone   bool // from the view, and stopped
	stop   context.CancelFunc
	over   chan struct{} // closed when its goroutine has ended
}

// tell hands t to the loop; false: ctx ended.
func (w *watch) tell(ctx context.Context, t told) bool {
	select {
	case w.told <- t:
		return true
	case <-ctx.Done():
		return false
	}
}

// views watches the cluster until ctx ends.
func (w *watch) views(ctx context.Context, c plugins.Cluster) {
	for wait := againMin; ; wait = min(2*wait, againMax) {
		for v, err := range c.Watch(ctx) {
			if !w.tell(ctx, told{view: v, err: err}) {
				return
			}
			if err == nil {
				wait = againMin
			}
		}
		if !pause.For(ctx, wait) {
			return
		}
	}
}

// follow watches a group from a cursor on until ctx ends.
func (w *watch) follow(ctx context.Context, f *followed, from control.Cursor) {
	for wait := againMin; ; wait = min(2*wait, againMax) {
		for n, err := range w.h.Watch(ctx, f.name, from) {
			if !w.tell(ctx, told{from: f, notice: n, err: err}) {
				return
			}
			if err == nil {
				from, wait = n.After(), againMin
			}
		}
		if !pause.For(ctx, wait) {
			return
		}
	}
}

// take shows what was told. The error is that of a cluster which was never seen.
func (w *watch) take(ctx context.Context, t told) error {
	switch {
	case t.from == nil && t.err != nil:
		if w.view == nil {
			return t.err
		}
		if !w.lost && ctx.Err() == nil {
			w.lost = true
			return w.show.line(event{What: "lost", Err: t.err, text: "discovery: " + say.Line(t.err.Error(), maxWhy)})
		}
		return nil
	case t.from == nil:
		if w.lost {
			w.lost = false
			if err := w.show.line(event{What: "back", text: "discovery answers again"}); err != nil {
				return err
			}
		}
		return w.see(ctx, t.view)
	case t.err != nil && !w.heard && (errors.Is(t.err, handoff.ErrDenied) || errors.Is(t.err, handoff.ErrVersion)):
		return t.err // another attempt would say the same
	case t.err != nil:
		if t.from.lost || t.from.gone || errors.Is(t.err, handoff.ErrGroup) || ctx.Err() != nil || errors.Is(t.err, context.Canceled) {
			return nil
		}
		t.from.lost = true
		return w.show.line(event{Group: t.from.name, What: "lost", Err: t.err, text: "its leader: " + say.Line(t.err.Error(), maxWhy)})
	}
	return w.hear(t.from, t.notice)
}

// hear shows a notice.
func (w *watch) hear(f *followed, n control.Notice) error {
	w.heard, f.from = true, n.After()
	if f.lost {
		f.lost = false
		if err := w.show.line(event{Group: f.name, What: "back", text: "its leader answers again"}); err != nil {
			return err
		}
	}
	if first := f.newest; first {
		f.newest = false
		if n.Kind == control.Gap && n.Lost == 0 {
			return nil
		}
	}
	return w.show.line(ofNotice(f.name, n))
}

// see shows what a view has that the one before it had not, and follows the groups in it.
func (w *watch) see(ctx context.Context, groups []plugins.Group) error {
	first, now := w.view == nil, map[string]plugins.Group{}
	var there []string
	for _, g := range groups {
		there = append(there, g.Name)
		if len(w.Groups) > 0 && !slices.Contains(w.Groups, g.Name) {
			continue
		}
		now[g.Name] = g
		w.show.room(g.Name)
	}
	for _, g := range w.Groups {
		if _, ok := now[g]; !ok && first && w.Warn != nil {
			w.Warn(g, there)
		}
	}
	if first && len(groups) == 0 && len(w.Groups) == 0 && w.Warn != nil {
		w.Warn("", nil)
	}
	for _, e := range changes(w.view, now, groups) {
		if err := w.show.line(e); err != nil {
			return err
		}
	}
	w.view = now
	for name := range now {
		w.start(ctx, name, first)
	}
	for name, f := range w.groups {
		if _, ok := now[name]; !ok && !f.gone {
			f.gone = true
			f.stop()
		}
	}
	return nil
}

// start follows a group, if that is not done yet. One that was away is followed from where
// it was; one that is new since the first view from its beginning.
func (w *watch) start(ctx context.Context, name string, first bool) {
	f := w.groups[name]
	switch {
	case f == nil:
		f = &followed{name: name}
		if first && !w.Kept {
			f.from, f.newest = control.Newest, true
		}
		w.groups[name] = f
	case f.gone: // and back
		<-f.over
		f.gone = false
	default:
		return
	}
	f.over = make(chan struct{})
	ctx, f.stop = context.WithCancel(ctx)
	from, over := f.from, f.over
	go func() { // ends with ctx, or when the group goes away
		defer close(over)
		w.follow(ctx, f, from)
	}()
}
