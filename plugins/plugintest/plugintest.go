// Package plugintest is one suite for every adapter: the order of its calls, what it shows
// after a crash, a hang, or a flood of notices, what it shows of blocks, and how it refuses. Time is the suite's
// own, crashes are real: the process of an adapter that has one is killed.
package plugintest

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/batonkv/baton/plugins/adapter"
	"github.com/batonkv/baton/plugins/adapter/drive"
	"github.com/batonkv/baton/plugins/adapter/session"
	"github.com/batonkv/baton/sidecar/control"
	"github.com/batonkv/baton/sidecar/handoff"
)

// Subject is an adapter under test.
type Subject struct {
	Open    drive.Opener
	Section []byte   // that it takes
	Bad     [][]byte // that it refuses
	// Shows is what its control plane shows of a group's hand-offs: phase by id, in words.
	// It is asked when no call runs. nil: there is nothing to look at.
	Shows func(t *testing.T) map[string]string
	// Blocks is how many blocks of the engine's prefix cache its control plane shows as held. It
	// is asked while a life lasts. nil: it reads none.
	Blocks func(t *testing.T) int
}

// Run runs the suite. open makes a new subject, with a control plane of its own.
func Run(t *testing.T, open func(t *testing.T) Subject) {
	for _, c := range []struct {
		name string
		test func(*testing.T, Subject)
	}{
		{"order", order}, {"crash while it rests", crash}, {"crash in each call", crashes}, {"hang in each call", hangs},
		{"slow", slow}, {"gap", gap}, {"bad section", refuses}, {"out of order", disorder}, {"blocks", blocks},
	} {
		t.Run(c.name, func(t *testing.T) { c.test(t, open(t)) })
	}
}

// order holds one life against the order, and every notice that the adapter wants against
// what happened.
func order(t *testing.T, s Subject) {
	w := start(t, s, s.Section)
	w.happens(1, control.Held)
	w.serving(0)
	from := w.seq
	var want, got []uint64
	for n := range uint64(20) {
		k := w.happens(n, []control.Phase{control.Held, control.Queued, control.Ended}[n%3])
		if slices.Contains(w.status().Info.Wants, k) {
			want = append(want, w.seq)
			w.until("was told of it", func() bool { return w.heard == w.seq })
		}
		w.told()
	}
	w.shows()
	w.stop()
	var verbs []adapter.Verb
	for _, c := range w.calls() {
		verbs = append(verbs, c.verb)
		for _, n := range c.update.Notices {
			if n.Seq > from {
				got = append(got, n.Seq)
			}
		}
	}
	if n := len(verbs); n < 5 || !slices.Equal(verbs[:3], []adapter.Verb{adapter.Register, adapter.Configure, adapter.Sync}) ||
		verbs[n-1] != adapter.Drain || slices.Contains(verbs[3:n-1], adapter.Sync) {
		t.Errorf("calls %v", verbs)
	}
	if !slices.Equal(got, want) {
		t.Errorf("told %v, want %v", got, want)
	}
	if st := w.status(); st.Restarts != 0 || st.Coalesced != 0 || st.Err != nil {
		t.Errorf("%+v", st)
	}
}

// crash ends the adapter between two calls: it is synced from the top.
func crash(t *testing.T, s Subject) {
	w := start(t, s, s.Section)
	w.happens(1, control.Held)
	w.serving(0)
	w.kill()
	w.await("waits", func(st session.Status) bool { return st.Stage == session.Waiting && errors.Is(st.Err, handoff.ErrHost) })
	w.happens(1, control.Ended)
	w.happens(2, control.Held)
	w.clock.advance(w.cfg.Most)
	w.serving(1)
	w.shows()
	if c := w.life(2); len(c) < 3 || c[0].verb != adapter.Register || c[1].verb != adapter.Configure || c[2].verb != adapter.Sync {
		t.Errorf("the second life begins with %v", c)
	}
	w.stop()
}

// crashes ends the adapter in the middle of each call.
func crashes(t *testing.T, s Subject) {
	each(t, s, func(w *world, _ context.Context) { w.kill() })
}

// hangs lets each call hang: its deadline ends the life.
func hangs(t *testing.T, s Subject) {
	each(t, s, func(w *world, call context.Context) {
		w.clock.advance(max(w.cfg.Call, w.cfg.Start, w.cfg.Drain))
		<-call.Done()
	})
}

// each disturbs the first life in each call, and wants the second one to be right.
func each(t *testing.T, s Subject, disturb func(*world, context.Context)) {
	for _, v := range []adapter.Verb{adapter.Register, adapter.Configure, adapter.Sync, adapter.Notify} {
		w := begin(t, s, s.Section)
		w.disturb(v, disturb)
		w.start()
		w.happens(1, control.Held)
		if v == adapter.Notify {
			// What happened first may be told by Sync or by the Notify that is disturbed.
			w.await("synced", func(st session.Status) bool { return st.Stage >= session.Serving || st.Restarts == 1 })
			w.happens(2, control.Held)
		}
		w.await("waits", func(st session.Status) bool { return st.Stage == session.Waiting && st.Restarts == 1 })
		w.happens(3, control.Queued)
		w.clock.advance(w.cfg.Most)
		w.serving(1)
		w.happens(1, control.Ended)
		w.told()
		w.shows()
		w.stop()
	}
}

// slow holds an adapter in a call while more happens than is kept for it.
func slow(t *testing.T, s Subject) {
	w := begin(t, s, s.Section)
	in, out := make(chan struct{}), make(chan struct{})
	w.disturb(adapter.Notify, func(*world, context.Context) {
		close(in)
		<-out
	})
	w.start()
	w.serving(0)
	w.happens(0, control.Held)
	<-in
	many := uint64(0)
	for n := range uint64(2 * adapter.MaxNotices) {
		if slices.Contains(w.status().Info.Wants, w.happens(1+n, control.Held)) {
			many++
		}
		if n%2 == 0 {
			w.happens(1+n, control.Ended)
		}
	}
	w.settle()
	close(out)
	w.told()
	w.shows()
	st := w.status()
	if many > adapter.MaxNotices && (st.Coalesced == 0 || st.Lost < many) {
		t.Errorf("%d of %d notices were lost, in %d whole states", st.Lost, many, st.Coalesced)
	}
	for _, c := range w.calls() {
		if n := len(c.update.Notices); n > adapter.MaxNotices || c.update.Whole != nil && n > 0 {
			t.Errorf("a call brings %d notices", n)
		}
	}
	if st.Restarts != 0 {
		t.Errorf("a slow adapter was restarted: %v", st.Err)
	}
	w.stop()
}

// gap loses notices in the sidecar's own log.
func gap(t *testing.T, s Subject) {
	w := start(t, s, s.Section)
	w.serving(0)
	w.loses(2, control.Held)
	w.told()
	w.shows()
	if st := w.status(); st.Coalesced != 1 {
		t.Errorf("%+v", st)
	}
	w.stop()
}

// refuses gives sections that are wrong: each is refused for good, with a reason.
func refuses(t *testing.T, s Subject) {
	if len(s.Bad) == 0 {
		t.Fatal("the subject names no section that it refuses")
	}
	for _, bad := range s.Bad {
		w := start(t, s, bad)
		w.await("refuses", func(st session.Status) bool { return st.Stage == session.Refused })
		w.clock.advance(100 * w.cfg.Most)
		if st := w.status(); !errors.Is(st.Err, handoff.ErrSection) || len(st.Err.Error()) < len(handoff.ErrSection.Error())+8 {
			t.Errorf("%q: %v", bad, st.Err)
		}
		w.stop()
		if c := w.calls(); len(c) != 1 { // register
			t.Errorf("%q: calls %v", bad, c)
		}
	}
}

// disorder makes calls by hand, out of their order.
func disorder(t *testing.T, s Subject) {
	w := begin(t, s, s.Section)
	every := []adapter.Verb{adapter.Register, adapter.Configure, adapter.Sync, adapter.Notify, adapter.Drain}
	for last, may := range map[int][]adapter.Verb{0: {adapter.Register}, 1: {adapter.Configure}, 2: {adapter.Sync}, 3: {adapter.Notify, adapter.Drain}, 5: nil} {
		l, err := s.Open(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, v := range every[:last] {
			if err := w.make(l, v); err != nil {
				t.Errorf("%v in its place: %v", v, err)
			}
		}
		for _, v := range every {
			if slices.Contains(may, v) {
				continue
			}
			if err := w.make(l, v); !errors.Is(err, handoff.ErrOrder) {
				t.Errorf("%v after %v: %v, want %v", v, every[:last], err, handoff.ErrOrder)
			}
		}
		if err := l.Close(last != 5); err != nil {
			t.Errorf("close: %v", err)
		}
	}
}
