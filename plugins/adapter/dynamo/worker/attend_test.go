package worker

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/batonkv/baton/discovery"
	"github.com/batonkv/baton/plugins/adapter/dynamo"
	"github.com/batonkv/baton/plugins/adapter/dynamo/directory"
	"github.com/batonkv/baton/plugins/adapter/dynamo/wire"
	"github.com/batonkv/baton/sidecar/handoff"
)

// attended is what looks made of a worker.
type attended struct{ offered, hung bool }

// attend plays looks, the first of them at once, and returns what came of each.
func (r *rig) attend(looks ...error) (got []attended) {
	ctx, cancel := context.WithCancel(r.ctx())
	tick := make(chan time.Time, len(looks))
	for range looks {
		tick <- time.Time{}
	}
	n := 0
	r.worker.attend(ctx, tick, func(context.Context) (int32, error) {
		if n > 0 {
			r.worker.engine.mu.Lock()
			got = append(got, attended{r.worker.offered.Load(), r.worker.engine.hung})
			r.worker.engine.mu.Unlock()
		}
		if n++; n > len(looks) {
			cancel()
			return 0, nil
		}
		return 0, looks[n-1]
	})
	return got
}

// TestAttend: a worker is offered while its engine serves. One answer too few is no reason.
func TestAttend(t *testing.T) {
	const silent = "silent"
	errs := map[string]error{"": nil, silent: fmt.Errorf("front: %w", context.DeadlineExceeded), "away": handoff.ErrNotReady, "role": handoff.ErrRole,
		"drains": fmt.Errorf("%w: its group does", handoff.ErrDraining), "busy": errors.New("busy"), "alone": handoff.ErrPeer}
	for looks, want := range map[string]string{
		" away away  busy drains  role":    "1 0 0 1 1 0 1 0",
		"away silent silent silent ":       "0 0 0 h 1",
		"silent silent ":                   "h h 1",
		" silent silent  silent silent":    "1 1 1 1 1 1",
		" silent silent silent silent ":    "1 1 1 h h 1",
		"drains silent silent silent":      "0 0 0 h",
		" silent silent silent away role":  "1 1 1 h 0 0",
		" alone alone  alone alone alone ": "1 1 1 1 1 1 0 1",
		"alone ":                           "0 1",
	} {
		r := newRig(t, discovery.Decode, true)
		var play []error
		for _, word := range strings.Split(looks, " ") {
			play = append(play, errs[word])
		}
		var got []string
		for _, a := range r.attend(play...) {
			got = append(got, map[attended]string{{true, false}: "1", {false, false}: "0", {false, true}: "h"}[a])
		}
		if s := strings.Join(got, " "); s != want {
			t.Errorf("%q: %s, want %s", looks, s, want)
		}
	}
}

// TestHangs: an engine that does not answer takes no call, and what runs ends when there is
// no hope left; hand-offs of both are released.
func TestHangs(t *testing.T) {
	unavailable := func(err error) {
		t.Helper()
		if f, ok := errors.AsType[*wire.Fault](err); !ok || f.Kind() != wire.Unavailable || !strings.HasPrefix(f.Message, "handoff.not-ready: ") {
			t.Errorf("%v", err)
		}
	}
	silent := make([]error, lostAfter)
	for i := range silent {
		silent[i] = context.DeadlineExceeded
	}
	r := newRig(t, discovery.Decode, true)
	q := Request{Tokens: []int32{1}, Prefill: carrier(t, dynamo.Carrier)}
	r.engine.hold = make(chan struct{})
	runs, late := r.call(q), r.call(Request{Tokens: []int32{1}})
	<-r.engine.began
	<-r.engine.began
	r.attend(silent[1:]...)
	select {
	case q := <-r.released:
		t.Errorf("asked %+v while the engine may come back", q)
	default:
	}
	r.worker.Offer(true) // so that the call finds it, as one that has not heard does
	if err := r.worker.Ready(r.ctx()); err != nil {
		t.Fatal(err)
	}
	_, _, err := r.rest(r.call(q))
	unavailable(err)
	<-r.released
	r.attend(silent...)
	_, _, err = r.rest(runs)
	unavailable(err)
	_, _, err = r.rest(late)
	unavailable(err)
	r.attend(nil)
	r.engine.hold = nil
	if err := r.worker.Ready(r.ctx()); err != nil {
		t.Fatal(err)
	}
	if tokens, _, err := r.rest(r.call(Request{Tokens: []int32{1}})); err != nil || len(tokens) != 4 {
		t.Errorf("it answers: %v %v", tokens, err)
	}
	r.wantReleased()
}

// TestRefusedLooks: a call that the engine refuses because it drains is reason to look at once.
func TestRefusedLooks(t *testing.T) {
	r := newRig(t, discovery.Decode, true)
	r.engine.err = handoff.ErrDraining
	looks := 0
	ctx, cancel := context.WithCancel(r.ctx())
	defer cancel()
	r.worker.attend(ctx, nil, func(context.Context) (int32, error) {
		if looks++; looks == 1 {
			if _, _, err := r.rest(r.call(Request{Tokens: []int32{1}})); err == nil {
				t.Error("it is served")
			}
		} else {
			cancel()
		}
		return 0, nil
	})
	if looks != 2 {
		t.Error(looks)
	}
}

// TestRefusedLooksAreNone: looks that refused calls bring count neither as seconds of an engine
// that hangs nor of one whose group should have joined.
func TestRefusedLooksAreNone(t *testing.T) {
	for _, shown := range []error{nil, context.DeadlineExceeded} {
		var said bytes.Buffer
		r := newRig(t, discovery.Decode, true, func(c *Config) { c.Group, c.Log = "nogroup", slog.New(slog.NewTextHandler(&said, nil)) })
		lost := r.worker.engine.lost
		ctx, cancel := context.WithCancel(r.ctx())
		looks := 0
		r.worker.attend(ctx, nil, func(context.Context) (int32, error) {
			r.worker.engine.refused <- struct{}{}
			if looks++; looks > 3*joinedBy {
				cancel()
			}
			return 0, shown
		})
		r.close(r.ctx())
		if lost.Err() != nil || strings.Contains(said.String(), "no group of this name") {
			t.Errorf("%v: calls end: %v; %s", shown, lost.Err(), &said)
		}
	}
}

// TestTwoOfOneGroup: a worker tells of another one of its engine, and not of itself.
func TestTwoOfOneGroup(t *testing.T) {
	for group, want := range map[string]int{"p": 1, "q": 0} {
		var said bytes.Buffer
		r := newRig(t, discovery.Decode, true, func(c *Config) { c.Group, c.Log = "p", slog.New(slog.NewTextHandler(&said, nil)) })
		r.attend(nil, nil)
		text := fmt.Appendf(nil, `{"runtime_config":{"runtime_data":{"baton_group":%q}}}`, group)
		card, err := directory.NewModel(r.worker.endpoint(), 7, text).Record()
		if err != nil {
			t.Fatal(err)
		}
		other := directory.Keep(r.files, time.Second, r.log)
		defer other.Close(context.Background())
		other.Set([]directory.Record{card})
		if err := errors.Join(other.Settled(r.ctx()), r.worker.Ready(r.ctx())); err != nil {
			t.Fatal(err)
		}
		r.attend(make([]error, joinedBy)...)
		r.close(r.ctx())
		if n := strings.Count(said.String(), "another worker serves"); n != want {
			t.Errorf("%q: %s", group, &said)
		}
	}
}

// TestNoSuchGroup: a group that nobody sees is told of, once.
func TestNoSuchGroup(t *testing.T) {
	for group, want := range map[string]int{"p": 0, "": 0, "nogroup": 1} {
		var said bytes.Buffer
		r := newRig(t, discovery.Decode, true, func(c *Config) { c.Group, c.Log = group, slog.New(slog.NewTextHandler(&said, nil)) })
		r.attend(make([]error, 2*joinedBy)...)
		r.close(r.ctx())
		if n := strings.Count(said.String(), "level=WARN"); n != want {
			t.Errorf("%q: %s", group, &said)
		}
	}
}
