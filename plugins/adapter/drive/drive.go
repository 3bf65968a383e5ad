// Package drive runs sessions of adapters for real: it carries out what package session
// decides. One goroutine steps the machine; calls, looks and waits have goroutines of
// their own, which it starts and waits for.
package drive

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"sync"
	"time"

	"github.com/batonkv/baton/plugins/adapter"
	"github.com/batonkv/baton/plugins/adapter/session"
	"github.com/batonkv/baton/sidecar/control"
	"github.com/batonkv/baton/sidecar/handoff"
)

// Life is one life of an adapter. Its calls are held to their order by who opened it.
type Life struct {
	adapter.Adapter
	Ask  func(adapter.Calls)     // of an Asker; nil: it asks nothing
	Read func(adapter.BlockFeed) // of a BlockReader; nil: it reads none
	// Counts are those of a Counter; nil: it counts nothing.
	Counts func() map[string]float64
	PID    int             // of its process; 0: this one
	Done   <-chan struct{} // closes when it ended unasked; nil: it never does
	Why    func() error    // why, once Done is closed
	// Close returns when nothing of the life is left. Hard ends it at once, whatever it does;
	// else it has been drained. It is called once.
	Close func(hard bool) error
}

// Opener begins a life. ctx bounds the beginning alone.
type Opener func(ctx context.Context) (*Life, error)

// BuiltIn opens adapters of this process. An adapter that ignores the end of a call's ctx
// keeps its session from another life. One that is an io.Closer is closed at the end of its
// life, also while a call of it still runs.
func BuiltIn(make func() adapter.Adapter) Opener {
	return func(context.Context) (*Life, error) {
		one := make()
		a := adapter.Ordered(one)
		l := &Life{Adapter: a, Close: func(bool) error { return nil }}
		if closer, ok := one.(io.Closer); ok {
			l.Close = func(bool) error { return closer.Close() }
		}
		if asker, ok := a.(adapter.Asker); ok {
			l.Ask = asker.Ask
		}
		if reader, ok := a.(adapter.BlockReader); ok {
			l.Read = reader.ReadBlocks
		}
		if counter, ok := one.(adapter.Counter); ok { // which may be asked out of the order
			l.Counts = counter.Counts
		}
		return l, nil
	}
}

// Source is what an adapter is told of, and what it may ask. Safe for concurrent use.
type Source interface {
	adapter.Calls
	State(ctx context.Context) (adapter.State, error)
	// Watch yields notices from any earlier instant on, until ctx ends. What it could not
	// keep is a control.Gap.
	Watch(ctx context.Context) iter.Seq2[control.Notice, error]
}

// Clock tells the time of a session.
type Clock interface {
	Now() session.Now
	// At returns a channel that gets a value at the instant, at once if that has passed. The
	// one before is let go.
	At(session.Now) <-chan time.Time
}

// Config is one session. It closes nothing of it.
type Config struct {
	Session session.Config
	Open    Opener
	Source  Source
	Blocks  adapter.BlockFeed // what the engine's prefix cache holds; nil: nothing is known of it
	Clock   Clock             // nil: the process's
	Log     *slog.Logger
	Tell    func(session.Status) // of each change, in order; may be nil; must not wait
}

// Session is a running one.
type Session struct {
	cfg     Config
	machine *session.Machine
	inbox   chan func() // from the goroutines below, which wait until it is taken
	stop    chan struct{}
	once    sync.Once
	done    chan struct{}
	work    sync.WaitGroup
	ctx     context.Context // of all work
	end     context.CancelFunc
	life    *life // the one that is open

	mu     sync.Mutex // guards:
	status session.Status
	counts func() map[string]float64 // of the life that is open; nil: it counts nothing
	wrong  *sync.Once                // of that life: what is wrong with its counts is said once
}

// life is a Life from Open to Closed.
type life struct {
	n      session.Life
	ctx    context.Context // of its calls
	cancel context.CancelFunc
	opened chan struct{} // closed when the Opener returned
	it     *Life         // nil until then, or when it failed
	calls  sync.WaitGroup
	asks   *asks
	feed   *feed
}

// Start runs a session until Stop.
func Start(cfg Config) *Session {
	if cfg.Clock == nil {
		cfg.Clock = newWall()
	}
	if cfg.Tell == nil {
		cfg.Tell = func(session.Status) {}
	}
	ctx, end := context.WithCancel(context.Background())
	s := &Session{cfg: cfg, machine: session.New(cfg.Session), inbox: make(chan func()), stop: make(chan struct{}),
		done: make(chan struct{}), ctx: ctx, end: end}
	s.status = s.machine.Status()
	s.work.Go(s.watch)
	go s.run()
	return s
}

// Stop drains the adapter and ends the session. It returns when nothing of it is left,
// or when ctx ends: the session goes on ending then.
func (s *Session) Stop(ctx context.Context) error {
	s.once.Do(func() { close(s.stop) })
	select {
	case <-s.done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("adapter has not ended: %w", ctx.Err())
	}
}

// Status is the present one.
func (s *Session) Status() session.Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.status
}

// Counts are what the adapter counts in its present life; nil while there is none, or when it
// counts what adapter.CheckCounts does not allow.
func (s *Session) Counts() map[string]float64 {
	s.mu.Lock()
	of, wrong := s.counts, s.wrong
	s.mu.Unlock()
	if of == nil {
		return nil
	}
	counts, err := count(of)
	if err != nil {
		wrong.Do(func() { s.cfg.Log.Warn("adapter's counts are not shown", "err", err) })
		return nil
	}
	return counts
}

// count asks an adapter. A scrape does not end a sidecar: a panic is an error.
func count(of func() map[string]float64) (counts map[string]float64, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("adapter: Counts panics: %v", r)
		}
	}()
	counts = of()
	return counts, adapter.CheckCounts(counts)
}

// counting sets whom Counts asks.
func (s *Session) counting(counts func() map[string]float64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.counts, s.wrong = counts, new(sync.Once)
}

// run steps the machine; it owns all else.
func (s *Session) run() {
	defer close(s.done)
	stop := s.stop
	s.step(session.Tick{})
	for s.machine.Status().Stage != session.Stopped {
		var tick <-chan time.Time
		if at, ok := s.machine.Next(); ok {
			tick = s.cfg.Clock.At(at)
		}
		select {
		case f := <-s.inbox:
			f()
		case <-tick:
			s.step(session.Tick{})
		case <-stop:
			stop = nil
			s.step(session.Stop{})
		}
	}
	s.end()
	s.work.Wait()
}

// post hands f to run's goroutine; it is dropped when the session is over.
func (s *Session) post(f func()) {
	select {
	case s.inbox <- f:
	case <-s.ctx.Done():
	}
}

func (s *Session) step(e session.Event) {
	for _, f := range s.machine.Step(s.cfg.Clock.Now(), e) {
		switch f := f.(type) {
		case session.Open:
			s.open(f)
		case session.Call:
			s.call(f)
		case session.Look:
			s.look(f)
		case session.Close:
			s.close(f)
		case session.Tell:
			s.tell(f.Status)
		}
	}
}

// watch tells the machine what happens.
func (s *Session) watch() {
	for n, err := range s.cfg.Source.Watch(s.ctx) {
		if err != nil {
			if s.ctx.Err() == nil {
				s.cfg.Log.Warn("adapter hears of no more notices; its state is looked at from time to time", "err", err)
			}
			return
		}
		s.post(func() { s.step(session.Noticed{Notice: n}) })
	}
}

func (s *Session) open(f session.Open) {
	l := &life{n: f.Life, opened: make(chan struct{})}
	l.ctx, l.cancel = context.WithCancel(s.ctx)
	s.life = l
	s.work.Go(func() {
		var err error
		defer func() {
			close(l.opened)
			s.post(func() {
				if err == nil && s.life == l {
					s.counting(l.it.Counts)
				}
				s.step(session.Opened{Life: l.n, Err: err})
			})
		}()
		if l.it, err = s.cfg.Open(l.ctx); err == nil && l.it.Done != nil {
			s.work.Go(func() { s.await(l) })
		}
	})
}

// await tells of a life that ended unasked.
func (s *Session) await(l *life) {
	select {
	case <-l.it.Done:
		s.post(func() { s.step(session.Ended{Life: l.n, Err: l.it.Why()}) })
	case <-l.ctx.Done():
	}
}

func (s *Session) call(f session.Call) {
	l := s.life
	if f.Verb == adapter.Sync && l.it.Ask != nil {
		l.asks = newAsks(l.ctx, s.cfg.Source)
	}
	if f.Verb == adapter.Sync && l.it.Read != nil {
		l.feed = newFeed(l.ctx, s.cfg.Blocks)
	}
	if f.Verb == adapter.Drain && l.asks != nil {
		l.asks.refuse()
	}
	asks, feed := l.asks, l.feed
	l.calls.Go(func() {
		a := session.Answered{Life: l.n}
		a.Info, a.Err = invoke(l.ctx, l.it, f, asks, feed)
		s.post(func() { s.step(a) })
	})
}

// invoke makes one call. A panic of an adapter ends its life, not the sidecar and the
// copies that it looks after.
func invoke(ctx context.Context, a *Life, f session.Call, asks adapter.Calls, feed adapter.BlockFeed) (i adapter.Info, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("adapter: %v panics: %v", f.Verb, r)
		}
	}()
	switch f.Verb {
	case adapter.Register:
		return a.Register(ctx)
	case adapter.Configure:
		return i, a.Configure(ctx, f.Section)
	case adapter.Sync:
		if a.Ask != nil {
			a.Ask(asks)
		}
		if a.Read != nil {
			a.Read(feed)
		}
		return i, a.Sync(ctx, f.State)
	case adapter.Notify:
		return i, a.Notify(ctx, f.Update)
	case adapter.Drain:
		return i, a.Drain(ctx)
	}
	return i, errors.New("adapter: no such call")
}

func (s *Session) look(f session.Look) {
	l := s.life
	l.calls.Go(func() {
		e := session.Looked{Life: f.Life}
		e.State, e.Err = s.cfg.Source.State(l.ctx)
		s.post(func() { s.step(e) })
	})
}

// close ends what the life does, and tells when nothing of it is left.
func (s *Session) close(f session.Close) {
	l := s.life
	s.life = nil
	s.counting(nil)
	if f.Hard {
		l.cancel()
	}
	if l.feed != nil {
		l.feed.end() // an adapter that is closed may wait for its reader
	}
	s.work.Go(func() {
		<-l.opened
		if l.it != nil {
			if err := l.it.Close(f.Hard); err != nil {
				s.cfg.Log.Warn("adapter did not end in order", "err", err)
			}
		}
		l.cancel()
		if l.asks != nil {
			l.asks.close()
		}
		if l.feed != nil {
			l.feed.work.Wait()
		}
		l.calls.Wait()
		s.post(func() { s.step(session.Closed{Life: f.Life}) })
	})
}

// tell shows and logs a status.
func (s *Session) tell(st session.Status) {
	s.mu.Lock()
	old := s.status
	s.status = st
	s.mu.Unlock()
	switch log := s.cfg.Log.With("stage", st.Stage.String()); {
	case st.Restarts > old.Restarts && !errors.Is(st.Err, handoff.ErrSection):
		log.Warn("adapter failed; it is started again", "restarts", st.Restarts, "err", st.Err)
	case st.Stage == session.Refused:
		log.Error("adapter refuses its configuration; correct it and restart the sidecar", "err", st.Err)
	case st.Stage == session.Serving && old.Stage == session.Syncing:
		log.Info("adapter is synced", "name", st.Info.Name, "version", st.Info.Version)
	case st.Coalesced > old.Coalesced:
		log.Warn("adapter fell behind; it is told the whole state", "lost", st.Lost)
	case st.Stage == session.Stopped:
		log.Info("adapter has stopped")
	}
	s.cfg.Tell(st)
}
