package drive

import (
	"bytes"
	"context"
	"errors"
	"iter"
	"log/slog"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/batonkv/baton/plugins/adapter"
	"github.com/batonkv/baton/plugins/adapter/session"
	"github.com/batonkv/baton/sidecar/control"
	"github.com/batonkv/baton/sidecar/handoff"
	"github.com/batonkv/baton/transfer/layout"
)

// scripted does what on says, and passes on what it may ask.
type scripted struct {
	on    func(adapter.Verb) error
	calls chan adapter.Calls
}

func (s *scripted) Register(context.Context) (adapter.Info, error) {
	return adapter.Info{Name: "x", Version: "1"}, s.on(adapter.Register)
}
func (s *scripted) Configure(context.Context, []byte) error { return s.on(adapter.Configure) }
func (s *scripted) Ask(c adapter.Calls)                     { s.calls <- c }
func (s *scripted) Sync(context.Context, adapter.State) error {
	return s.on(adapter.Sync)
}
func (s *scripted) Notify(context.Context, adapter.Update) error { return s.on(adapter.Notify) }
func (s *scripted) Drain(context.Context) error                  { return s.on(adapter.Drain) }

// service is a leader with n hand-offs.
type service struct {
	control.Service
	n     int
	ready bool
	asked chan context.Context // of Import, which waits for the end of its ctx
}

func (s *service) Status(context.Context) (control.Status, error) {
	return control.Status{Instance: 4, Ready: s.ready, Counters: map[string]uint64{"x": uint64(s.n)}}, nil
}

func (s *service) Geometry(context.Context) (control.Geometry, error) {
	if !s.ready {
		return control.Geometry{}, handoff.ErrNotReady
	}
	return control.Geometry{Name: "m", WeightsEpoch: 3, Geometry: handoff.Geometry{Group: "g", Instance: 4, Model: layout.Model{}}}, nil
}

// List tells from N-1 down to 0, so that the order is not that of the ids.
func (s *service) List(_ context.Context, q control.Query) (p control.Page, err error) {
	from, _ := strconv.Atoi(q.Page)
	for i := from; i < min(s.n, from+control.MaxPage); i++ {
		p.Infos = append(p.Infos, control.Info{ID: handoff.ID{Group: "g", N: uint64(s.n - i)}, Phase: control.Held, Err: errors.ErrUnsupported})
	}
	if next := from + control.MaxPage; next < s.n {
		p.Next = strconv.Itoa(next)
	}
	return p, nil
}

func (s *service) Import(ctx context.Context, m handoff.Import) (handoff.Imported, error) {
	if s.asked != nil {
		s.asked <- ctx
		<-ctx.Done()
		return handoff.Imported{}, errors.Join(handoff.ErrInDoubt, ctx.Err())
	}
	return handoff.Imported{Label: m.Label}, nil
}

func (s *service) Watch(ctx context.Context, _ control.Cursor) iter.Seq2[control.Notice, error] {
	return func(func(control.Notice, error) bool) { <-ctx.Done() }
}

func TestSource(t *testing.T) {
	names := adapter.Group{Cluster: "c", Pool: "p", Name: "g", Tenant: "t", Role: "decode", Model: "not yet"}
	for _, c := range []struct {
		n     int
		ready bool
		held  int
		more  bool
	}{{0, false, 0, false}, {3, true, 3, false}, {control.MaxPage, true, control.MaxPage, false}, {control.MaxPage + 1, true, control.MaxPage + 1, false},
		{adapter.MaxHandoffs, true, adapter.MaxHandoffs, false}, {adapter.MaxHandoffs + 1, true, adapter.MaxHandoffs, true}} {
		s, err := Of(names, &service{n: c.n, ready: c.ready}).State(t.Context())
		if err != nil || len(s.Handoffs) != c.held || s.More != c.more || s.Group.Status.Counters != nil || s.Group.Status.Instance != 4 || s.Group.Name != "g" {
			t.Errorf("%+v: %d hand-offs, more %v, %+v, %v", c, len(s.Handoffs), s.More, s.Group, err)
		}
		if want := layout.GeometryDigest(layout.Model{}, nil); c.ready != (s.Group.Geometry == want) || c.ready != (s.Group.Model == "m") || c.ready != (s.Group.WeightsEpoch == 3) {
			t.Errorf("%+v: %+v", c, s.Group)
		}
		if !slices.IsSortedFunc(s.Handoffs, func(a, b control.Info) int { return adapter.Compare(a.ID, b.ID) }) {
			t.Errorf("%+v: not sorted", c)
		}
		for _, i := range s.Handoffs {
			if i.Err != nil {
				t.Fatalf("%+v", i)
			}
		}
		if u := s.Diff(s); !s.Same(u) || !reflect.DeepEqual(s.Apply(u), s) {
			t.Errorf("%+v: not the same as itself", c)
		}
	}
}

func begin(svc *service, open Opener) *Session {
	return Start(Config{Session: session.Default(), Open: open, Source: Of(adapter.Group{}, svc), Log: slog.New(slog.DiscardHandler)})
}

func builtIn(s *scripted) Opener { return BuiltIn(func() adapter.Adapter { return s }) }

func stop(t *testing.T, s *Session) {
	t.Helper()
	if err := s.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func TestAPanicEndsALifeAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		panics := 3
		a := &scripted{calls: make(chan adapter.Calls, 9), on: func(v adapter.Verb) error {
			if v == adapter.Sync && panics > 0 {
				panics--
				panic("sync")
			}
			return nil
		}}
		s := begin(&service{}, builtIn(a))
		time.Sleep(5 * time.Second) // of the bubble's clock
		synctest.Wait()
		if st := s.Status(); st.Stage != session.Serving || st.Restarts != 3 {
			t.Errorf("%+v", st)
		}
		stop(t, s)
	})
}

// counter counts its lives.
type counter struct {
	*scripted
	counts func() map[string]float64
}

func (c counter) Counts() map[string]float64 { return c.counts() }

// TestCounts: they are of the present life; a fault in them harms nobody.
func TestCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lives, fail := 0, true
		s := begin(&service{}, BuiltIn(func() adapter.Adapter {
			lives++
			n := lives
			a := &scripted{calls: make(chan adapter.Calls, 9), on: func(v adapter.Verb) error {
				if v == adapter.Sync && fail {
					fail = false
					return errors.New("once")
				}
				return nil
			}}
			return counter{a, func() map[string]float64 { return map[string]float64{"life": float64(n)} }}
		}))
		synctest.Wait() // it pauses after a life that failed
		if c := s.Counts(); c != nil {
			t.Errorf("%v between two lives", c)
		}
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if c := s.Counts(); c["life"] != 2 {
			t.Errorf("%v, want those of life 2", c)
		}
		var said bytes.Buffer
		s.cfg.Log = slog.New(slog.NewTextHandler(&said, &slog.HandlerOptions{Level: slog.LevelWarn}))
		for _, of := range []func() map[string]float64{func() map[string]float64 { panic("counts") }, func() map[string]float64 { return map[string]float64{"No": 1} }} {
			s.counting(of)
			for range 3 {
				if c := s.Counts(); c != nil {
					t.Error(c)
				}
			}
		}
		if n := strings.Count(said.String(), "counts are not shown"); n != 2 {
			t.Errorf("said %d times of two faults: %s", n, &said)
		}
		stop(t, s)
		if c := s.Counts(); c != nil {
			t.Errorf("%v after its end", c)
		}
	})
}

// TestStopOfAnAdapterThatHangs: its deadline ends the call, and Stop says so when not even that helps.
func TestStopOfAnAdapterThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		free := make(chan struct{})
		a := &scripted{calls: make(chan adapter.Calls, 1), on: func(v adapter.Verb) error {
			if v == adapter.Drain {
				<-free
			}
			return nil
		}}
		s := begin(&service{}, builtIn(a))
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		if err := s.Stop(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("stopped: %v", err)
		}
		if st := s.Status(); st.Stage != session.Ending || !errors.Is(st.Err, handoff.ErrDeadline) {
			t.Errorf("%+v", st)
		}
		close(free)
		stop(t, s)
	})
}

func TestAsksEndWithTheirLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		svc := &service{asked: make(chan context.Context, 2*adapter.MaxAsks)}
		fail := make(chan error, 1)
		a := &scripted{calls: make(chan adapter.Calls, 2), on: func(v adapter.Verb) error {
			if v == adapter.Notify {
				return <-fail
			}
			return nil
		}}
		s := begin(svc, builtIn(a))
		calls := <-a.calls
		errs := make(chan error, adapter.MaxAsks)
		for range adapter.MaxAsks {
			go func() {
				_, err := calls.Import(context.Background(), handoff.Import{})
				errs <- err
			}()
		}
		synctest.Wait()
		if _, err := calls.Import(t.Context(), handoff.Import{}); !errors.Is(err, handoff.ErrCapacity) {
			t.Errorf("beyond the bound: %v", err)
		}
		fail <- errors.New("lost")
		for range adapter.MaxAsks {
			if err := <-errs; !errors.Is(err, handoff.ErrInDoubt) {
				t.Fatalf("the life ended: %v", err)
			}
		}
		if _, err := calls.List(t.Context(), control.Query{}); !errors.Is(err, handoff.ErrOrder) {
			t.Errorf("after it: %v", err)
		}
		svc.asked = nil
		calls = <-a.calls // of the next life
		if got, err := calls.Import(t.Context(), handoff.Import{Label: "r"}); err != nil || got.Label != "r" {
			t.Errorf("%+v, %v", got, err)
		}
		if err := calls.Abort(t.Context(), handoff.ID{}, handoff.Key{}); !errors.Is(err, handoff.ErrUnknown) {
			t.Errorf("an abort of whatever has the id: %v", err)
		}
		close(fail)
		stop(t, s)
		if err := calls.Abort(t.Context(), handoff.ID{}, handoff.Key{1}); !errors.Is(err, handoff.ErrOrder) {
			t.Errorf("after drain: %v", err)
		}
	})
}
