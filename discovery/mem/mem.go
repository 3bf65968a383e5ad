// Package mem keeps discovery records in the process: for tests, simulations and
// everything on one machine. It keeps the rules of discovery/etcd; time passes only
// as the injected clock says, and expiry is looked at by Sweep.
package mem

import (
	"context"
	"fmt"
	"iter"
	"sync"
	"time"

	"github.com/batonkv/baton/discovery"
	"github.com/batonkv/baton/discovery/internal/feed"
)

// Store is what the registries of one cluster share, as they share one etcd.
type Store struct {
	now func() time.Time
	ttl time.Duration

	mu      sync.Mutex
	rev     int64
	entries map[string]*registration // by key
	feeds   map[*feed.Feed]discovery.Scope
	changed chan struct{} // closed and replaced at every change
}

// New is an empty store whose registrations outlive their process by ttl of now.
func New(now func() time.Time, ttl time.Duration) *Store {
	return &Store{
		now: now, ttl: ttl,
		entries: map[string]*registration{},
		feeds:   map[*feed.Feed]discovery.Scope{},
		changed: make(chan struct{}),
	}
}

// Config is what one process brings.
type Config struct {
	// Alive says whether the process of this host that has pid and start time lives.
	Alive func(pid int32, started uint64) bool
}

// Open is the store as one process sees it.
func (s *Store) Open(c Config) *Registry {
	ctx, cancel := context.WithCancelCause(context.Background())
	return &Registry{store: s, alive: c.Alive, done: ctx.Done(), end: cancel, open: map[*registration]bool{}}
}

// Orphan ends the renewal of r, as the death of its process does; the record expires
// a ttl later. A registration of another package is none of the store's.
func (s *Store) Orphan(r discovery.Registration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if own, ok := r.(*registration); ok {
		own.deadline = s.now().Add(s.ttl)
	}
}

// Sweep removes what has expired. Register and Watch sweep too; the owner of the
// clock calls it so that those who wait see the time that has passed.
func (s *Store) Sweep() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sweep()
}

func (s *Store) sweep() {
	for _, e := range s.entries {
		if !e.deadline.IsZero() && !s.now().Before(e.deadline) {
			s.remove(e)
		}
	}
}

// put makes r the record of its key. Callers hold mu.
func (s *Store) put(e *registration, r discovery.Record) {
	key := r.Key()
	if old := s.entries[key]; old != nil && old != e {
		close(old.lost)
	}
	e.record = r
	s.entries[key] = e
	s.notify(r, func(v *discovery.View) { v.Put(r) })
}

// remove takes e out, if it is in. Callers hold mu.
func (s *Store) remove(e *registration) {
	key := e.record.Key()
	if s.entries[key] != e {
		return
	}
	delete(s.entries, key)
	close(e.lost)
	s.notify(e.record, func(v *discovery.View) { v.Delete(key) })
}

func (s *Store) notify(r discovery.Record, edit func(*discovery.View)) {
	s.rev++
	for f, scope := range s.feeds {
		if scope.Holds(r) {
			f.Change(s.rev, edit)
		}
	}
	close(s.changed)
	s.changed = make(chan struct{})
}

// Registry implements discovery.Registry.
type Registry struct {
	store *Store
	alive func(pid int32, started uint64) bool
	done  <-chan struct{}
	end   context.CancelCauseFunc

	mu   sync.Mutex
	open map[*registration]bool
}

// Register implements discovery.Registry.
func (g *Registry) Register(ctx context.Context, r discovery.Record) (discovery.Registration, error) {
	if _, err := discovery.EncodeRecord(r); err != nil {
		return nil, err
	}
	e := &registration{registry: g, lost: make(chan struct{})}
	closed := fmt.Errorf("%w: the registry is closed", discovery.ErrDown)
	for {
		select {
		case <-g.done:
			return nil, closed
		default:
		}
		held, changed := g.claim(e, r)
		if changed == nil {
			return e, nil
		}
		select {
		case <-changed:
		case <-g.done:
			return nil, closed
		case <-ctx.Done():
			return nil, held.Taken(context.Cause(ctx))
		}
	}
}

// claim makes e the holder of r's key; when it may not, it gives the record that
// holds it and a channel that closes at the next change.
func (g *Registry) claim(e *registration, r discovery.Record) (discovery.Record, <-chan struct{}) {
	s := g.store
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sweep()
	if old := s.entries[r.Key()]; old != nil && !r.Replaces(old.record, g.alive) {
		return old.record, s.changed
	}
	s.put(e, r)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.open[e] = true
	return discovery.Record{}, nil
}

// Watch implements discovery.Registry.
func (g *Registry) Watch(ctx context.Context, scope discovery.Scope) iter.Seq2[discovery.Snapshot, error] {
	return func(yield func(discovery.Snapshot, error) bool) {
		if err := scope.Check(); err != nil {
			yield(discovery.Snapshot{}, err)
			return
		}
		f := g.store.subscribe(scope)
		defer g.store.unsubscribe(f)
		finished := make(chan struct{})
		watched := make(chan struct{})
		go func() {
			defer close(watched)
			select {
			case <-g.done:
				f.Fail(fmt.Errorf("%w: the registry is closed", discovery.ErrDown))
			case <-finished:
			}
		}()
		defer func() { close(finished); <-watched }()
		f.Each(ctx, yield)
	}
}

func (s *Store) subscribe(scope discovery.Scope) *feed.Feed {
	f := feed.New()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sweep()
	f.Change(s.rev, func(v *discovery.View) {
		for _, e := range s.entries {
			if scope.Holds(e.record) {
				v.Put(e.record)
			}
		}
	})
	s.feeds[f] = scope
	return f
}

func (s *Store) unsubscribe(f *feed.Feed) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.feeds, f)
}

// Close ends the watches and registrations of this process.
func (g *Registry) Close() error {
	g.end(nil)
	g.store.mu.Lock()
	defer g.store.mu.Unlock()
	g.mu.Lock()
	defer g.mu.Unlock()
	for e := range g.open {
		g.store.remove(e)
	}
	clear(g.open)
	return nil
}

// registration implements discovery.Registration; the store's mutex guards record
// and deadline.
type registration struct {
	registry *Registry
	lost     chan struct{} // closed, under the store's mutex, when the entry goes

	record   discovery.Record
	deadline time.Time // when it expires; zero while its process renews it
}

func (e *registration) Update(_ context.Context, r discovery.Record) error {
	if _, err := discovery.EncodeRecord(r); err != nil {
		return err
	}
	s := e.registry.store
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sweep()
	if err := r.Succeeds(e.record); err != nil {
		return err
	}
	if s.entries[r.Key()] != e {
		return fmt.Errorf("%w: %s", discovery.ErrLost, r.Name())
	}
	s.put(e, r)
	return nil
}

func (e *registration) Lost() <-chan struct{} { return e.lost }

func (e *registration) Close(context.Context) error {
	s := e.registry.store
	s.mu.Lock()
	defer s.mu.Unlock()
	s.remove(e)
	e.registry.mu.Lock()
	defer e.registry.mu.Unlock()
	delete(e.registry.open, e)
	return nil
}
