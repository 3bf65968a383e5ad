package adapter

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/batonkv/baton/sidecar/control"
	"github.com/batonkv/baton/sidecar/handoff"
)

func drawState(t *rapid.T) State {
	s := State{More: rapid.Bool().Draw(t, "more")}
	s.Group.Name = rapid.SampledFrom([]string{"a", "b"}).Draw(t, "group")
	s.Group.Status.Members = []control.MemberStatus{{PID: rapid.Int32Range(0, 1).Draw(t, "pid")}}
	for n := range uint64(6) {
		if p := control.Phase(rapid.IntRange(0, 3).Draw(t, "phase")); p != 0 {
			s.Handoffs = append(s.Handoffs, control.Info{ID: handoff.ID{Group: "g", N: n}, Phase: p})
		}
	}
	return s
}

func TestDiffAndApply(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := drawState(t), drawState(t)
		before := reflect.DeepEqual(a, b)
		u := a.Diff(b)
		if got := a.Apply(u); !reflect.DeepEqual(got, b) {
			t.Fatalf("%+v\nby %+v\nis %+v\nwant %+v", a, u, got, b)
		}
		if a.Same(u) != before {
			t.Fatalf("same: %v of %+v", !before, u)
		}
		if got := a.Apply(Update{Whole: &b, Lost: 3}); !reflect.DeepEqual(got, b) {
			t.Fatalf("whole: %+v", got)
		}
		for _, list := range [][]control.Info{u.Changed, a.Apply(u).Handoffs} {
			if !slices.IsSortedFunc(list, byID) {
				t.Fatalf("not sorted: %+v", list)
			}
		}
	})
}

// scripted fails where it is told to.
type scripted struct {
	fail  Verb
	calls []Verb
	info  Info
}

var errScript = errors.New("script")

func (s *scripted) call(v Verb) error {
	if s.calls = append(s.calls, v); s.fail == v {
		return errScript
	}
	return nil
}
func (s *scripted) Register(context.Context) (Info, error)  { return s.info, s.call(Register) }
func (s *scripted) Configure(context.Context, []byte) error { return s.call(Configure) }
func (s *scripted) Sync(context.Context, State) error       { return s.call(Sync) }
func (s *scripted) Notify(context.Context, Update) error    { return s.call(Notify) }
func (s *scripted) Drain(context.Context) error             { return s.call(Drain) }

type asking struct{ *scripted }

func (asking) Ask(Calls) {}

type reading struct{ *scripted }

func (reading) ReadBlocks(BlockFeed) {}

type both struct {
	asking
	reading
	*scripted
}

func invoke(a Adapter, v Verb) error {
	ctx := context.Background()
	switch v {
	case Register:
		_, err := a.Register(ctx)
		return err
	case Configure:
		return a.Configure(ctx, nil)
	case Sync:
		return a.Sync(ctx, State{})
	case Notify:
		return a.Notify(ctx, Update{})
	}
	return a.Drain(ctx)
}

// TestOrdered tries every sequence of five calls, each of which may be the one that fails.
func TestOrdered(t *testing.T) {
	allowed := map[Verb][]Verb{0: {Register}, Register: {Configure}, Configure: {Sync}, Sync: {Notify, Drain}, Notify: {Notify, Drain}, Drain: nil}
	for n := range 5 * 5 * 5 * 5 * 5 * 6 {
		inner := &scripted{fail: Verb(n % 6), info: Info{Name: "x", Version: "1"}}
		o := Ordered(inner)
		last, over, reached := Verb(0), false, 0
		for i, rest := 0, n/6; i < 5; i, rest = i+1, rest/5 {
			v := Verb(rest%5) + Register
			err, ok := invoke(o, v), !over && slices.Contains(allowed[last], v)
			switch {
			case !ok && !errors.Is(err, handoff.ErrOrder):
				t.Fatalf("%v after %v: %v", v, inner.calls, err)
			case ok && v == inner.fail && !errors.Is(err, errScript), ok && v != inner.fail && err != nil:
				t.Fatalf("%v after %v: %v", v, inner.calls, err)
			}
			if ok {
				last, over, reached = v, v == inner.fail, reached+1
			}
		}
		if len(inner.calls) != reached {
			t.Fatalf("reached %v", inner.calls)
		}
	}
}

func TestOrderedKeepsAbilitiesAndChecks(t *testing.T) {
	one := &scripted{}
	for _, c := range []struct {
		a           Adapter
		asks, reads bool
	}{{one, false, false}, {asking{one}, true, false}, {reading{one}, false, true}, {both{scripted: one}, true, true}} {
		o := Ordered(c.a)
		_, asks := o.(Asker)
		if _, reads := o.(BlockReader); asks != c.asks || reads != c.reads {
			t.Errorf("%T asks %v, reads %v", c.a, asks, reads)
		}
	}
	for _, bad := range []Info{{}, {Name: "x"}, {Name: string(make([]byte, 64)), Version: "1"}, {Name: "\xff", Version: "1"},
		{Name: "x", Version: "1", Wants: []control.Kind{control.Gap}}, {Name: "x", Version: "1", Wants: []control.Kind{99}},
		{Name: "x", Version: "1", Wants: []control.Kind{control.Over, control.Over}}} {
		o := Ordered(&scripted{info: bad})
		if _, err := o.Register(t.Context()); !errors.Is(err, handoff.ErrBound) {
			t.Errorf("%+v: %v", bad, err)
		}
		if err := o.Configure(t.Context(), nil); !errors.Is(err, handoff.ErrOrder) {
			t.Errorf("goes on after it: %v", err)
		}
	}
}

// waits hands over the call that it is in.
type waits struct {
	scripted
	in, out chan struct{}
}

func (w *waits) Configure(context.Context, []byte) error {
	w.in <- struct{}{}
	<-w.out
	return nil
}

func TestOneCallAtATime(t *testing.T) {
	w := &waits{in: make(chan struct{}), out: make(chan struct{})}
	w.info = Info{Name: "x", Version: "1"}
	o := Ordered(w)
	if err := invoke(o, Register); err != nil {
		t.Fatal(err)
	}
	done := make(chan error)
	go func() { done <- invoke(o, Configure) }()
	<-w.in
	if err := invoke(o, Sync); !errors.Is(err, handoff.ErrOrder) {
		t.Errorf("beside another call: %v", err)
	}
	close(w.out)
	if err := errors.Join(<-done, invoke(o, Sync)); err != nil {
		t.Error(err)
	}
}
