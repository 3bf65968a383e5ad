package drive

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"slices"
	"strconv"
	"time"

	"github.com/batonkv/baton/internal/pause"
	"github.com/batonkv/baton/transfer"
	"github.com/batonkv/baton/transfer/layout"
	"github.com/batonkv/baton/transfer/staged"
)

// wire is a route's wire mover: wanted, started, and seen to exit, one at a time.
type wire struct {
	route Route
	id    staged.Incarnation
	mover Mover // nil while it is being started
	port  int32
	told  map[transfer.PeerID]bool // whose halves heard WireUp of it
	idle  bool                     // it was let go
}

var errStops = errors.New("the sidecar stops")

// ErrIdle is why a wire mover ended that nobody needs any more.
var ErrIdle = errors.New("drive: no session to its group is left")

// again is the pause before a wire mover that ended or did not start has a successor.
const again = 200 * time.Millisecond

// againMost bounds what doubling it comes to.
const againMost = 5 * time.Second

// wire makes sure that a route has a wire mover, or will have one.
func (s *Stage) wire(r Route) {
	if s.wires[r] != nil || s.ctx.Err() != nil {
		return
	}
	w := &wire{route: r, id: staged.Incarnation(s.cfg.Mint()), told: map[transfer.PeerID]bool{}}
	s.wires[r] = w
	s.work.Go(func() {
		m, err := s.start(w)
		told := make(chan struct{})
		ok := s.post(func() { close(told); s.started(w, m, err) })
		if err != nil {
			return
		}
		if ok {
			select {
			case <-told:
				return
			case <-s.ctx.Done():
			}
		}
		m.Kill(errStops)
	})
}

func (s *Stage) start(w *wire) (Mover, error) {
	mem, err := s.arena.memory()
	if err != nil {
		return nil, err
	}
	defer closeMemory(mem)
	return s.cfg.Start(s.ctx, w.route, w.id, mem)
}

func (s *Stage) started(w *wire, m Mover, err error) {
	port := 0
	if err == nil {
		var text string
		if _, text, err = net.SplitHostPort(m.Addr()); err == nil {
			port, err = strconv.Atoi(text)
		}
		if err != nil {
			m.Kill(err)
		}
	}
	if err != nil {
		s.cfg.Log.Warn("wire mover did not start", "peer-group", w.route.Group, "transport", w.route.Transport, "err", err)
		delete(s.wires, w.route)
		s.answerAsks(w.route, err)
		s.yieldProbe(fmt.Errorf("%w: the wire mover of %s did not start here: %w", transfer.ErrMover, w.route.Transport, err),
			func(p transfer.PeerID) bool { return s.cfg.Route(p) == w.route })
		s.cfg.Owner.Wire(w.route, err)
		s.unstarted(w.route, fmt.Errorf("%w: the wire mover did not start: %w", transfer.ErrMover, err))
		return
	}
	w.mover, w.port = m, int32(port)
	s.cfg.Log.Info("wire mover is up", "peer-group", w.route.Group, "transport", w.route.Transport, "pid", m.PID())
	s.work.Go(func() {
		<-m.Exited()
		s.post(func() { s.exited(w) })
	})
	for _, p := range s.of(w.route) {
		s.tell(w, p)
	}
	s.answerAsks(w.route, nil)
	s.fetchProbe()
	s.cfg.Owner.Wire(w.route, nil)
	s.retire(w.route)
}

// unstarted ends the jobs of a route that has no wire mover, for that reason.
func (s *Stage) unstarted(r Route, why error) {
	s.lacking = true
	for j := range s.jobsOf(r) {
		if k := s.pulls[j]; k != nil {
			k.unstarted = why
		}
		s.step(staged.Cancel{Job: j}, both)
	}
	s.lacking = false
}

// tell says that a wire mover serves a peer.
func (s *Stage) tell(w *wire, p transfer.PeerID) {
	w.told[p] = true
	s.step(staged.WireUp{Peer: p, Wire: w.id}, both)
}

// of are a route's peers that have a session, in order.
func (s *Stage) of(r Route) (out []transfer.PeerID) {
	for p, o := range s.peers {
		if o == r {
			out = append(out, p)
		}
	}
	slices.Sort(out)
	return out
}

// jobsOf are the open jobs of a route's peers, of both halves.
func (s *Stage) jobsOf(r Route) map[staged.Job]bool {
	out := map[staged.Job]bool{}
	for j, k := range s.serves {
		if s.cfg.Route(k.peer) == r {
			out[j] = true
		}
	}
	for j, k := range s.pulls {
		if s.cfg.Route(k.peer) == r {
			out[j] = true
		}
	}
	return out
}

// exited is the seen exit of a wire mover. A peer whose session has ended in between still
// has chunks with it.
func (s *Stage) exited(w *wire) {
	level, why := slog.LevelWarn, fmt.Errorf("%w: %w", transfer.ErrMover, w.mover.Why())
	if w.idle {
		level, why = slog.LevelInfo, ErrIdle
	}
	s.cfg.Log.Log(s.ctx, level, "wire mover ended; another starts when it is needed", "peer-group", w.route.Group, "transport", w.route.Transport,
		"pid", w.mover.PID(), "err", w.mover.Why())
	delete(s.wires, w.route)
	s.cfg.Owner.Wire(w.route, why)
	maps.DeleteFunc(s.offers, func(_ uint64, p transfer.PeerID) bool { return w.told[p] })
	for _, p := range slices.Sorted(maps.Keys(w.told)) {
		s.step(staged.WireExit{Peer: p, Wire: w.id}, both)
	}
	s.work.Go(func() {
		if pause.For(s.ctx, again) {
			s.post(func() {
				if len(s.jobsOf(w.route)) > 0 || s.probesWant(w.route) {
					s.wire(w.route)
				}
			})
		}
	})
}

// killWire ends a wire mover: what it has in hand does not end otherwise. The session to p
// may have ended, and with it what is known of its group.
func (s *Stage) killWire(p transfer.PeerID, id staged.Incarnation) {
	for _, w := range s.wires {
		if w.id == id && w.mover != nil {
			w.mover.Kill(fmt.Errorf("a chunk of %s does not come back", p))
		}
	}
}

// retire lets a wire mover go that has no peer any more.
func (s *Stage) retire(r Route) {
	if w := s.wires[r]; w != nil && w.mover != nil && len(s.of(r)) == 0 {
		w.idle = true
		w.mover.Kill(ErrIdle)
	}
}

// Engine says which memory copies of this rank read and write: all of its shards, in the
// buffers that regions describes anew at each call. The local mover maps them already.
func (s *Stage) Engine(model layout.Model, shards []layout.Shard, regions func() (map[transfer.RegionID]transfer.Memory, error)) {
	s.NoEngine()
	s.engine = &engine{model: model, shards: shards, regions: regions, cuts: map[string]*cut{}}
	s.Relink()
}

// NoEngine forgets it. Nothing is packed or unpacked any more.
func (s *Stage) NoEngine() {
	if e := s.engine; e != nil {
		s.engine = nil
		s.unlink(e)
	}
}

func (s *Stage) unlink(e *engine) {
	if e.giveUp != nil {
		e.giveUp()
	}
	for _, l := range []transfer.Link{e.out, e.in} {
		if l != nil {
			s.work.Go(func() { _ = l.Close() }) // dead with its mover, or quiet
		}
	}
	e.out, e.in = nil, nil
}

// Relink opens the local mover's way between the engine and the arena, after the mover has
// started anew too. What fails is tried again, with pauses, for as long as the engine stays:
// a host short of descriptors or a GPU short of memory gets over it.
func (s *Stage) Relink() {
	e := s.engine
	if e == nil {
		return
	}
	s.unlink(e)
	ctx, giveUp := context.WithCancel(s.ctx)
	e.giveUp = giveUp
	s.work.Go(func() {
		defer giveUp()
		said, wait := "", again
		for out, in, err := s.links(ctx, e); ; out, in, err = s.links(ctx, e) {
			if err == nil {
				s.linked(ctx, e, out, in, said != "")
				return
			}
			if said != err.Error() && ctx.Err() == nil {
				said = err.Error()
				s.cfg.Log.Warn("staging has no way to the engine's memory, trying again", "err", err)
			}
			if !pause.For(ctx, wait) {
				return
			}
			wait = min(2*wait, againMost)
		}
	})
}

// linked hands a way over to the owner's goroutine, unless ctx has ended by then: the way may
// be that of a mover that is gone.
func (s *Stage) linked(ctx context.Context, e *engine, out, in transfer.Link, late bool) {
	told := make(chan struct{})
	ok := s.post(func() {
		defer close(told)
		if ctx.Err() != nil {
			s.unlink(&engine{out: out, in: in})
			return
		}
		e.out, e.in = out, in
		if late {
			s.cfg.Log.Warn("staging has a way to the engine's memory again")
		}
	})
	if ok {
		select {
		case <-told:
		case <-s.ctx.Done():
		}
	}
	select {
	case <-told:
	default:
		_, _ = out.Close(), in.Close() // the stage was closed before it heard
	}
}

func (s *Stage) links(ctx context.Context, e *engine) (out, in transfer.Link, err error) {
	own, err := e.regions()
	if err != nil {
		return nil, nil, err
	}
	if out, err = s.cfg.Local.Open(ctx, transfer.Peer{ID: "engine", Regions: own}); err != nil {
		return nil, nil, err
	}
	mem, err := s.arena.memory()
	if err == nil {
		in, err = s.cfg.Local.Open(ctx, transfer.Peer{ID: "staging", Regions: map[transfer.RegionID]transfer.Memory{0: mem}})
	}
	if err != nil {
		return nil, nil, errors.Join(err, out.Close())
	}
	return out, in, nil
}

// Close ends the wire movers and lets go of the arena; the owner's goroutine calls it. The
// local mover has no ticket of it any more, or has exited.
func (s *Stage) Close(ctx context.Context) error {
	s.end()
	s.closed = true
	for _, w := range s.wires {
		if w.mover != nil {
			w.mover.Kill(errStops)
		}
	}
	for _, w := range s.wires {
		if w.mover == nil {
			continue // started in vain: it is killed as soon as it is up
		}
		select {
		case <-w.mover.Exited():
		case <-ctx.Done():
			return fmt.Errorf("wire mover of %s, pid %d, has not exited: %w", w.route.Group, w.mover.PID(), ctx.Err())
		}
	}
	s.NoEngine()
	s.work.Wait()
	return errors.Join(s.region.Close(), s.arena.close())
}
