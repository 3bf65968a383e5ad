// Package loop drives one sidecar for real: it owns the machine, feeds it what
// engines, peers, discovery, the mover and control calls say, and carries out its
// effects. One goroutine steps the machine; nothing that it does waits for another
// process. It is where the sidecar's packages meet: they never import each other.
package loop

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/batonkv/baton/discovery"
	"github.com/batonkv/baton/sidecar/control"
	"github.com/batonkv/baton/sidecar/events"
	"github.com/batonkv/baton/sidecar/handoff"
	"github.com/batonkv/baton/sidecar/machine"
	"github.com/batonkv/baton/sidecar/metrics"
	"github.com/batonkv/baton/transfer"
	"github.com/batonkv/baton/transfer/choice"
)

// Config is what the loop needs from outside. It closes none of it.
type Config struct {
	Machine   machine.Config
	Record    discovery.Record // before an engine attached; an empty Addr is what Serve's peers listen on; Transports[0] is Backend
	Pools     []string         // that may pair with this group; empty: all of the cluster
	End       choice.End       // how this sidecar can be read, as its peers hear it
	Backend   transfer.Backend // the local mover
	FDSocket  string           // path of host.fd.sock
	KillMover func()           // ends the child that copies; another follows
	MoverPID  func() int32     // of the child that copies, 0 between two; this process's when it copies itself
	Registry  discovery.Registry
	// Identify is the identity in the certificate of a peer.
	Identify  func(group string, rank int32) string
	Publisher events.Publisher
	Metrics   *metrics.Metrics
	Log       *slog.Logger
}

// Sidecar is one running sidecar. Start it, then attach its servers, then Run.
type Sidecar struct {
	cfg     Config
	log     *slog.Logger
	machine *machine.Machine
	epoch   time.Time // instant 0 of the machine's clock

	inbox chan func()     // from other goroutines; full: the sender waits
	local []machine.Event // this sidecar's messages to itself, in order
	done  chan struct{}
	stage stage
	maps  chan struct{} // closed when the last mapping or unmapping that was begun has ended
	stop  sync.Once
	work  sync.WaitGroup  // goroutines that wait for other processes
	ctx   context.Context // ends when Run does; bounds that work
	end   context.CancelFunc

	engines  engineDoor
	peers    peerDoor
	fds      fdDoor
	fetch    func(context.Context, handoff.Buffers) (map[transfer.RegionID]transfer.Memory, error)
	sessions map[machine.Session]engineSession
	numbers  map[engineSession]machine.Session
	last     machine.Session
	buffers  map[machine.Session]*buffers
	place    choice.Place // where those of the newest engine are
	up       map[handoff.Member][]peerSession
	links    map[handoff.Member]transfer.Link
	tickets  map[uint64]transfer.Ticket
	calls    map[machine.Call]chan machine.Reply
	lastCall machine.Call
	refused  map[string]uint64      // messages that were not acted on, by type; sessions as "Session"
	adverts  chan machine.Advertise // newest wins
	notices  *control.Log
	cached   *cached
	host     string
	imports  atomic.Int64 // as the machine counts them; grants too
	grants   atomic.Pointer[metrics.Grants]
	draining atomic.Bool   // as the machine says
	staging  *staging      // nil: only memory that can be mapped is read
	adding   int           // sums that the mover makes
	toAdd    []machine.Sum // and those that wait; the machine bounds them
	pairs    map[handoff.Member]*pair
	roles    map[handoff.Incarnation]discovery.Role // by discovery
	view     []discovery.Record                     // its newest
	meeting  map[handoff.Member][]func()            // who waits for a session
	unmet    map[handoff.Member]error               // why there is none
	shown    atomic.Pointer[[]metrics.Link]         // of pairs
	attached map[engineSession]handoff.Attach
	mover    int32 // the last one that MoverRestarted told of; 0: none

	fatal   chan error                       // ends Run; holds one
	missing atomic.Pointer[string]           // why this sidecar is not registered; nil: it is
	holder  atomic.Pointer[discovery.Record] // another process that discovery shows in its place
}

// stage is how far a Sidecar is on its way out.
type stage uint8

const (
	running  stage = iota
	stopping       // no copy begins any more
	over           // the machine is not stepped any more
)

// inboxSize bounds what waits for the machine. A sender that finds it full waits:
// sessions stop reading, which is the back-pressure that other processes feel.
const inboxSize = 4096

// New makes a sidecar that does nothing yet.
func New(cfg Config) *Sidecar {
	ctx, end := context.WithCancel(context.Background())
	idle := make(chan struct{})
	close(idle)
	s := &Sidecar{cfg: cfg, log: cfg.Log, machine: machine.New(cfg.Machine), epoch: time.Now(),
		inbox: make(chan func(), inboxSize), done: make(chan struct{}), maps: idle, ctx: ctx, end: end, fetch: fetch,
		sessions: map[machine.Session]engineSession{}, numbers: map[engineSession]machine.Session{},
		buffers: map[machine.Session]*buffers{}, attached: map[engineSession]handoff.Attach{}, up: map[handoff.Member][]peerSession{},
		links: map[handoff.Member]transfer.Link{}, tickets: map[uint64]transfer.Ticket{},
		pairs: map[handoff.Member]*pair{}, roles: map[handoff.Incarnation]discovery.Role{}, meeting: map[handoff.Member][]func(){}, unmet: map[handoff.Member]error{},
		calls: map[machine.Call]chan machine.Reply{}, refused: map[string]uint64{}, adverts: make(chan machine.Advertise, 1),
		notices: control.NewLog(cfg.Machine.Self.Incarnation, 0), cached: newCached(cfg.Log), host: cfg.Record.Host, fatal: make(chan error, 1)}
	s.grants.Store(&metrics.Grants{})
	s.standing("discovery has not answered, or another sidecar holds the rank")
	return s
}

// Serve attaches the servers whose handlers this sidecar is. Before Run.
func (s *Sidecar) Serve(engines engineDoor, peers peerDoor, fds fdDoor) {
	s.engines, s.peers, s.fds = engines, peers, fds
	if s.cfg.Record.Addr == "" {
		s.cfg.Record.Addr = peers.Addr()
	}
	m := s.cfg.Metrics
	m.Depth(metrics.Imports, func() int { return int(s.imports.Load()) })
	m.Depth(metrics.LoopInbox, func() int { return len(s.inbox) })
	m.Registered(func() bool { return s.missing.Load() == nil })
	m.Draining(s.draining.Load)
	m.Grants(func() metrics.Grants { return *s.grants.Load() })
	m.MoverPID(s.cfg.MoverPID)
	m.Blocks(s.cached.now)
	m.Links(func() []metrics.Link {
		if ls := s.shown.Load(); ls != nil {
			return *ls
		}
		return nil
	})
}

// Run steps the machine until ctx ends, or discovery refuses the record. Then open copies are asked to stop, and awaited
// for as long as grace lasts. Wait follows.
func (s *Sidecar) Run(ctx context.Context, grace time.Duration) error {
	s.work.Go(func() { s.watch(s.ctx) })
	s.work.Go(func() { s.register(s.ctx) })
	if g := s.staging; g != nil && g.cfg.Period > 0 {
		s.work.Go(func() { g.every(s.ctx, g.cfg.Period) })
	}
	tick := time.NewTimer(time.Hour)
	defer tick.Stop()
	for {
		s.drain()
		s.count()
		s.arm(tick)
		select {
		case f := <-s.inbox:
			f()
		case <-tick.C:
			s.step(machine.Tick{})
		case err := <-s.fatal:
			return errors.Join(err, s.shutdown(grace))
		case <-ctx.Done():
			return s.shutdown(grace)
		}
	}
}

// count notes what scrapes on other goroutines show of the machine.
func (s *Sidecar) count() {
	s.imports.Store(int64(s.machine.Imports()))
	var g metrics.Grants
	if g.Given, g.Held = s.machine.Grants(); g != *s.grants.Load() {
		s.grants.Store(&g)
	}
}

// drain steps the messages to itself and what already waits.
func (s *Sidecar) drain() {
	for len(s.local) > 0 {
		e := s.local[0]
		s.local = s.local[1:]
		s.step(e)
	}
	s.local = nil
}

func (s *Sidecar) arm(t *time.Timer) {
	d := time.Hour
	if at, ok := s.machine.Next(); ok {
		d = max(at-s.now(), 0)
	}
	t.Reset(d)
}

func (s *Sidecar) now() machine.Now { return time.Since(s.epoch) }

func (s *Sidecar) step(e machine.Event) {
	if s.stage == over {
		return
	}
	for _, f := range s.machine.Step(s.now(), e) {
		s.carry(f)
	}
}

// post hands f to the machine's goroutine; false: the sidecar has ended. What is posted
// in the last instant runs in Wait, where the machine is not stepped any more.
func (s *Sidecar) post(f func()) bool { return s.postWithin(context.Background(), f) == nil }

// postWithin is post for callers that do not wait for ever.
func (s *Sidecar) postWithin(ctx context.Context, f func()) error {
	select {
	case <-s.done:
		return errStopped
	default:
	}
	select {
	case s.inbox <- f:
		return nil
	case <-s.done:
		return errStopped
	case <-ctx.Done():
		return ctx.Err()
	}
}

// shutdown waits for copies, which nothing else may end, and lets go.
func (s *Sidecar) shutdown(grace time.Duration) error {
	s.stage = stopping
	for _, t := range s.tickets {
		t.Cancel()
	}
	limit := time.NewTimer(grace)
	defer limit.Stop()
	var err error
	for len(s.tickets) > 0 && err == nil {
		select {
		case f := <-s.inbox:
			f()
			s.drain()
		case <-limit.C:
			err = fmt.Errorf("sidecar: %d copies have not ended after %v: the mover's exit ends them", len(s.tickets), grace)
		}
	}
	s.stage = over
	s.stop.Do(func() { close(s.done) })
	s.end()
	for c, ch := range s.calls {
		ch <- machine.Reply{Call: c, Err: fmt.Errorf("%w: the sidecar stopped", handoff.ErrInDoubt)}
		delete(s.calls, c)
	}
	s.notices.Close()
	return err
}

// stageGrace bounds the wait for the exits of wire movers, which are killed.
const stageGrace = 10 * time.Second

// Wait ends when the last copy has, and lets go of what was mapped. After Run, and
// after the backend was closed when Run says that copies did not end.
func (s *Sidecar) Wait() error {
	s.stage = over
	s.stop.Do(func() { close(s.done) })
	s.end()
	s.work.Wait()
	for len(s.inbox) > 0 {
		(<-s.inbox)()
	}
	var err error
	for _, l := range s.links {
		err = errors.Join(err, l.Close())
	}
	if s.staging != nil {
		ending, stop := context.WithTimeout(context.Background(), stageGrace)
		err = errors.Join(err, s.staging.stage.Close(ending))
		stop()
	}
	for n := range s.buffers {
		s.unmap(n)
	}
	<-s.maps
	s.work.Wait()
	return err
}
