package drive

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"net"
	"slices"
	"strconv"
	"time"

	"github.com/batonkv/baton/internal/pause"
	"github.com/batonkv/baton/transfer"
	"github.com/batonkv/baton/transfer/choice"
	"github.com/batonkv/baton/transfer/staged"
)

// A probe measures a link by the wire movers of hand-offs, over chunks of the arena that no
// job ever has: the source's holds a pattern and is not written again, and what lands is
// compared and thrown away. So it takes neither grant nor credit, and a fetch of it that ends late
// harms nobody. It gives way to jobs: it begins when there are none, and ends with the first.

// ErrProbe reports a probe that says nothing of its link: jobs were in its way.
var ErrProbe = errors.New("drive: a probe gave way to hand-offs")

// ErrLate reports a probe that an end did not answer in time.
var ErrLate = errors.New("drive: a probe did not end in time")

// probeLimit bounds a probe, the start of wire movers included.
const probeLimit = 10 * time.Second

// maxAsks bounds the peers that wait for wire movers to start before they probe.
const maxAsks = 4096

// probing is what a stage has of probes.
type probing struct {
	last    uint64
	now     *probe // under way
	queue   []*probe
	asks    []ask
	written bool // the pattern is
}

// probe is one measurement of a link.
type probe struct {
	peer  transfer.PeerID
	n     uint64 // names its question
	done  func(choice.Measured, error)
	ctx   context.Context // ends with the probe's leave to go on
	stop  context.CancelCauseFunc
	at    Place // of the peer; port 0: not known yet
	begun bool  // fetches may be open
}

// ask is a peer that waits for the place where it may probe.
type ask struct {
	peer  transfer.PeerID
	n     uint64
	bytes int64 // of a chunk, at most
	route Route
}

// Place is where a peer's wire mover serves, and the chunks that may be fetched there to
// measure the link.
type Place struct {
	Wire  staged.Incarnation
	Port  int32
	Bytes int64 // of one
}

// maxProbe bounds the chunk of a probe.
const maxProbe = 1 << 20

// fit is the size of the chunks of a probe: a power of two, so that there are few.
func fit(bytes int64) int64 { return 1 << (bits.Len64(uint64(min(bytes, maxProbe))) - 1) }

// Probe measures the link to a peer that has a session, after the probes before it; done
// follows on the owner's goroutine, unless the stage is closed first. ErrProbe: ask again later.
func (s *Stage) Probe(p transfer.PeerID, done func(choice.Measured, error)) {
	s.probing.last++
	s.probing.queue = append(s.probing.queue, &probe{peer: p, n: s.probing.last, done: done})
	s.nextProbe()
}

// idle reports whether no job is open.
func (s *Stage) idle() bool { return len(s.serves) == 0 && len(s.pulls) == 0 }

// nextProbe begins the probe that waits longest, when none is under way.
func (s *Stage) nextProbe() {
	for s.probing.now == nil && len(s.probing.queue) > 0 {
		k := s.probing.queue[0]
		s.probing.queue = s.probing.queue[1:]
		switch r, up := s.peers[k.peer]; {
		case !up:
			k.done(choice.Measured{}, fmt.Errorf("%w: no session to %s", transfer.ErrPeer, k.peer))
		case !s.idle():
			k.done(choice.Measured{}, ErrProbe)
		default:
			s.askPlace(k, r)
		}
	}
}

// askPlace has both ends start their wire movers. A probe that is stopped before it has
// fetched anything ends at once; one that has, with its fetches, and those that hang with their
// wire mover, where no job has chunks with it.
func (s *Stage) askPlace(k *probe, r Route) {
	limited, free := context.WithTimeoutCause(s.ctx, probeLimit, fmt.Errorf("%w: %w: within %v", transfer.ErrPeer, ErrLate, probeLimit))
	k.ctx, k.stop = context.WithCancelCause(limited)
	context.AfterFunc(k.ctx, func() {
		free()
		s.post(func() {
			switch {
			case s.probing.now != k:
			case !k.begun:
				s.endProbe(k, choice.Measured{}, context.Cause(k.ctx))
			default:
				s.hang(k, r)
			}
		})
	})
	s.probing.now = k
	s.writePattern()
	s.wire(r)
	s.cfg.Owner.AskPlace(k.peer, k.n, fit(s.cfg.Chunk))
}

// hang ends the wire mover of a probe whose fetches do not end in time, once no job has
// chunks with it.
func (s *Stage) hang(k *probe, r Route) {
	s.work.Go(func() {
		if !pause.For(s.ctx, s.cfg.Patience) {
			return
		}
		s.post(func() {
			switch w := s.wires[r]; {
			case s.probing.now != k || w == nil || w.mover == nil: // its fetches have ended
			case len(s.jobsOf(r)) > 0:
				s.hang(k, r)
			default:
				w.mover.Kill(fmt.Errorf("a probe of %s does not end", k.peer))
			}
		})
	})
}

// yieldProbe stops the probe under way: a job begins, or the session to its peer ended.
func (s *Stage) yieldProbe(why error, whose func(transfer.PeerID) bool) {
	if k := s.probing.now; k != nil && whose(k.peer) {
		k.stop(why)
	}
}

func anyPeer(transfer.PeerID) bool { return true }

func (s *Stage) endProbe(k *probe, m choice.Measured, err error) {
	s.probing.now = nil
	k.stop(nil)
	k.done(m, err)
	s.nextProbe()
}

// probesWant reports whether a probe, this end's or a peer's, waits for a wire mover.
func (s *Stage) probesWant(r Route) bool {
	k := s.probing.now
	return k != nil && !k.begun && s.cfg.Route(k.peer) == r || slices.ContainsFunc(s.probing.asks, func(a ask) bool { return a.route == r })
}

// Place is the peer's answer to AskPlace n.
func (s *Stage) Place(p transfer.PeerID, n uint64, at Place, why error) {
	k := s.probing.now
	switch {
	case k == nil || k.n != n || k.peer != p || k.begun || k.at.Port != 0:
	case why != nil:
		k.stop(why)
	case at.Port < 1 || at.Port > 65535 || at.Bytes < MinChunk || at.Bytes > fit(s.cfg.Chunk):
		k.stop(fmt.Errorf("%w: chunks of %d bytes at port %d", transfer.ErrPeer, at.Bytes, at.Port))
	default:
		k.at = at
		s.fetchProbe()
	}
}

// fetchProbe begins the fetches, once both ends have a wire mover.
func (s *Stage) fetchProbe() {
	k := s.probing.now
	if k == nil || k.begun || k.at.Port == 0 || k.ctx.Err() != nil {
		return
	}
	w := s.wires[s.cfg.Route(k.peer)]
	if w == nil || w.mover == nil {
		return
	}
	host := s.cfg.Host(k.peer)
	if host == "" {
		k.stop(fmt.Errorf("%w: discovery does not show the address of %s", transfer.ErrPeer, k.peer))
		return
	}
	k.begun = true
	m := &measure{ctx: k.ctx, mover: w.mover, want: s.arena.chunk(s.pattern()), bytes: k.at.Bytes, first: s.pattern() + 1,
		from: staged.Fetching{Addr: net.JoinHostPort(host, strconv.Itoa(int(k.at.Port))), Of: k.at.Wire}}
	for i := range m.land {
		m.land[i] = s.arena.chunk(m.first + int32(i))
	}
	s.work.Go(func() {
		found, err := m.run()
		s.post(func() { s.endProbe(k, found, err) })
	})
}

// extra are the chunks of probes, behind those of jobs: the pattern, then the landing places.
const extra = 1 + probeDepth

// pattern is the arena's number of the chunk that peers probe.
func (s *Stage) pattern() int32 { return 2 * s.cfg.Chunks }

// writePattern writes what every stage has there.
func (s *Stage) writePattern() {
	if s.probing.written {
		return
	}
	s.probing.written = true
	b, x := s.arena.chunk(s.pattern()), uint64(0)
	for i := 0; i+8 <= len(b); i += 8 {
		x += 0x9e3779b97f4a7c15
		v := (x ^ x>>30) * 0xbf58476d1ce4e5b9
		binary.LittleEndian.PutUint64(b[i:], v^v>>31)
	}
}

// AskedPlace takes a peer's wish to probe this end; Owner.TellPlace answers.
func (s *Stage) AskedPlace(p transfer.PeerID, n uint64, bytes int64) {
	r, up := s.peers[p]
	switch {
	case !up:
	case bytes < MinChunk:
		s.cfg.Owner.TellPlace(p, n, Place{}, fmt.Errorf("%w: chunks of %d bytes are none", transfer.ErrBounds, bytes))
	case !s.idle() || len(s.probing.asks) >= maxAsks:
		s.cfg.Owner.TellPlace(p, n, Place{}, ErrProbe)
	default:
		s.writePattern()
		s.wire(r)
		s.probing.asks = append(s.probing.asks, ask{p, n, fit(min(bytes, s.cfg.Chunk)), r})
		s.answerAsks(r, nil)
	}
}

// answerAsks answers the peers that wait for a route's wire mover, when it is up or has
// not started. The pattern stays exposed for as long as the mover lives.
func (s *Stage) answerAsks(r Route, failed error) {
	w := s.wires[r]
	if failed == nil && (w == nil || w.mover == nil) {
		return
	}
	s.probing.asks = slices.DeleteFunc(s.probing.asks, func(a ask) bool {
		switch {
		case a.route != r:
			return false
		case failed != nil:
			s.cfg.Owner.TellPlace(a.peer, a.n, Place{}, fmt.Errorf("%w: the wire mover of %s did not start: %w", transfer.ErrMover, r.Transport, failed))
		default:
			s.exposePattern(a, w)
		}
		return true
	})
}

func (s *Stage) exposePattern(a ask, w *wire) {
	w.mover.Expose(staged.Exposed{Offer: offerOf(smallBytes), Chunk: s.pattern(), Bytes: smallBytes}, func(error) {}) // it fails with the next
	silent := s.awaitAnswer(w.mover)
	w.mover.Expose(staged.Exposed{Offer: offerOf(a.bytes), Chunk: s.pattern(), Bytes: a.bytes}, func(err error) {
		silent.Stop()
		s.post(func() {
			if err != nil {
				s.cfg.Owner.TellPlace(a.peer, a.n, Place{}, err)
				return
			}
			s.cfg.Owner.TellPlace(a.peer, a.n, Place{w.id, w.port, a.bytes}, nil)
		})
	})
}
