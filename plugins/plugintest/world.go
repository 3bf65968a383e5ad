package plugintest

import (
	"context"
	"fmt"
	"iter"
	"log/slog"
	"reflect"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/batonkv/baton/discovery"
	"github.com/batonkv/baton/plugins/adapter"
	"github.com/batonkv/baton/plugins/adapter/drive"
	"github.com/batonkv/baton/plugins/adapter/session"
	"github.com/batonkv/baton/sidecar/control"
	"github.com/batonkv/baton/sidecar/handoff"
)

// patience is the safety limit of one wait, and no claim about speed.
const patience = time.Minute

// call is one call of the adapter that succeeded.
type call struct {
	life   int
	verb   adapter.Verb
	update adapter.Update
}

// world is a sidecar, one session with the subject, and what they said to each other.
type world struct {
	t       *testing.T
	s       Subject
	section []byte
	cfg     session.Config
	clock   *clock
	session *drive.Session
	feed    chan control.Notice
	cache   *cache
	seq     uint64 // of the last notice

	mu     sync.Mutex // guards:
	change chan struct{}
	state  adapter.State
	st     session.Status
	made   []call
	lives  int
	end    func()        // ends the present life as a crash does
	shown  adapter.State // what the adapter was told
	heard  uint64        // the last notice that it was told
	on     adapter.Verb  // of the first life, where meddle has its turn
	meddle func(*world, context.Context)
}

// begin makes a world whose session does not run yet.
func begin(t *testing.T, s Subject, section []byte) *world {
	cfg := session.Default()
	cfg.Section, cfg.Pace = section, 0 // the clock stands still between two things that happen
	w := &world{t: t, s: s, section: section, cfg: cfg, clock: newClock(), feed: make(chan control.Notice), cache: newCache(), change: make(chan struct{})}
	w.state.Group = adapter.Group{Cluster: "c", Pool: "m", Name: "g", Tenant: "t", Role: discovery.Decode, Model: "model",
		Status: control.Status{Self: handoff.Member{Group: "g", Incarnation: 7}, Instance: 9, Ranks: 1, Ready: true}}
	return w
}

func start(t *testing.T, s Subject, section []byte) *world {
	w := begin(t, s, section)
	w.start()
	return w
}

func (w *world) start() {
	w.session = drive.Start(drive.Config{Session: w.cfg, Open: w.open, Source: source{w}, Blocks: w.cache, Clock: w.clock,
		Log: slog.New(slog.NewTextHandler(w.t.Output(), nil)), Tell: func(st session.Status) { w.do(func() { w.st = st }) }})
	w.t.Cleanup(w.stop)
}

// do changes what await looks at.
func (w *world) do(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f()
	close(w.change)
	w.change = make(chan struct{})
}

// until waits for ok, which is asked under mu.
func (w *world) until(what string, ok func() bool) {
	w.t.Helper()
	limit := time.NewTimer(patience)
	defer limit.Stop()
	for {
		w.mu.Lock()
		is, change, st := ok(), w.change, w.st
		w.mu.Unlock()
		if is {
			return
		}
		select {
		case <-change:
		case <-limit.C:
			w.t.Fatalf("never: %s; is %v, restarts %d, %v", what, st.Stage, st.Restarts, st.Err)
		}
	}
}

func (w *world) await(what string, ok func(session.Status) bool) {
	w.t.Helper()
	w.until(what, func() bool { return ok(w.st) })
}

// serving waits until a life rests after so many others.
func (w *world) serving(restarts uint64) {
	w.t.Helper()
	w.await("serves", func(st session.Status) bool { return st.Stage == session.Serving && st.Restarts == restarts })
}

// told waits until the adapter was told what the sidecar has.
func (w *world) told() {
	w.t.Helper()
	w.until("was told everything", func() bool { return reflect.DeepEqual(w.shown, w.state) })
}

func (w *world) status() session.Status { return w.session.Status() }

func (w *world) stop() {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := w.session.Stop(ctx); err != nil {
		w.t.Error(err)
	}
}

// calls are those that succeeded.
func (w *world) calls() []call {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.made)
}

// life are the calls of one life.
func (w *world) life(n int) []call {
	return slices.DeleteFunc(w.calls(), func(c call) bool { return c.life != n })
}

// shows compares what the control plane shows with what is.
func (w *world) shows() {
	w.t.Helper()
	if w.s.Shows == nil {
		return
	}
	got, want := w.s.Shows(w.t), map[string]string{}
	w.mu.Lock()
	for _, i := range w.state.Handoffs {
		want[i.ID.String()] = i.Phase.String()
	}
	w.mu.Unlock()
	if len(got)+len(want) > 0 && !reflect.DeepEqual(got, want) {
		w.t.Errorf("the control plane shows %v, want %v", got, want)
	}
}

var kinds = map[control.Phase]control.Kind{control.Held: control.Exported, control.Ended: control.Over, control.Queued: control.Imported}

// happens brings hand-off n to phase p, and tells of it.
func (w *world) happens(n uint64, p control.Phase) control.Kind {
	id := handoff.ID{Group: "g", Instance: 9, Leader: 7, N: n}
	w.put(id, p)
	w.seq++
	w.feed <- control.Notice{Seq: w.seq, Kind: kinds[p], ID: id}
	return kinds[p]
}

// loses brings hand-off n to phase p, and the notice is lost.
func (w *world) loses(n uint64, p control.Phase) {
	w.put(handoff.ID{Group: "g", Instance: 9, Leader: 7, N: n}, p)
	w.seq++
	w.feed <- control.Notice{Seq: w.seq, Kind: control.Gap, Lost: 1}
}

func (w *world) put(id handoff.ID, p control.Phase) {
	w.do(func() {
		next := slices.DeleteFunc(slices.Clone(w.state.Handoffs), func(i control.Info) bool { return i.ID == id })
		if p != control.Ended {
			next = append(next, control.Info{ID: id, Role: control.Source, Phase: p, Label: "r"})
		}
		slices.SortFunc(next, func(a, b control.Info) int { return adapter.Compare(a.ID, b.ID) })
		if w.state.Handoffs = next; len(next) == 0 {
			w.state.Handoffs = nil
		}
	})
}

// settle returns when the session has taken every notice: it takes one at a time.
func (w *world) settle() {
	for range 2 {
		w.seq++
		w.feed <- control.Notice{Seq: w.seq, Kind: control.Ready}
	}
}

// source is the sidecar.
type source struct{ w *world }

func (s source) State(context.Context) (adapter.State, error) {
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	return s.w.state, nil
}

func (s source) Watch(ctx context.Context) iter.Seq2[control.Notice, error] {
	return func(yield func(control.Notice, error) bool) {
		for {
			select {
			case n := <-s.w.feed:
				if !yield(n, nil) {
					return
				}
			case <-ctx.Done():
				return
			}
		}
	}
}

func (s source) Import(context.Context, handoff.Import) (handoff.Imported, error) {
	return handoff.Imported{}, handoff.ErrNotReady
}

func (s source) Get(_ context.Context, id handoff.ID) (control.Info, error) {
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	for _, i := range s.w.state.Handoffs {
		if i.ID == id {
			return i, nil
		}
	}
	return control.Info{}, handoff.ErrUnknown
}

func (s source) List(context.Context, control.Query) (control.Page, error) {
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	return control.Page{Infos: s.w.state.Handoffs}, nil
}

func (s source) Abort(context.Context, handoff.ID, handoff.Key) error { return handoff.ErrUnknown }

func (s source) Release(context.Context, handoff.ID, handoff.Key) error { return handoff.ErrUnknown }

var errKilled = fmt.Errorf("%w: killed", handoff.ErrHost)

// open begins a life that the world sees and can end.
func (w *world) open(ctx context.Context) (*drive.Life, error) {
	l, err := w.s.Open(ctx)
	if err != nil {
		return nil, err
	}
	seen := *l
	ended := make(chan struct{})
	end := sync.OnceFunc(func() { close(ended) })
	if l.PID != 0 {
		end = func() { _ = unix.Kill(l.PID, unix.SIGKILL) }
	} else {
		seen.Done, seen.Why = ended, func() error { return errKilled }
	}
	w.do(func() {
		w.lives++
		w.end, w.shown = end, adapter.State{}
		seen.Adapter = &gate{w: w, to: l.Adapter, life: w.lives, ended: ended}
	})
	return &seen, nil
}

// kill ends the present life as a crash does.
func (w *world) kill() {
	w.mu.Lock()
	end := w.end
	w.mu.Unlock()
	end()
}

// disturbs lets f have its turn in the first call of v of the first life, in its place.
func (w *world) disturb(v adapter.Verb, f func(*world, context.Context)) { w.on, w.meddle = v, f }
