// Package drive carries out what the two halves of staging decide: it packs and unpacks by
// the local mover, runs a wire mover for each peer group, stamps chunks and compares
// stamps. It decides nothing itself.
//
// A Stage belongs to one goroutine, its owner's. What ends elsewhere, a copy, a fetch, the
// exit of a wire mover, comes back through Config.Post.
package drive

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/batonkv/baton/transfer"
	"github.com/batonkv/baton/transfer/layout"
	"github.com/batonkv/baton/transfer/staged"
	"github.com/batonkv/baton/transfer/staged/pack"
)

// ChunkBytes is the size of a chunk of an end that does not say its own.
const ChunkBytes = 1 << 20

// Mover is a wire mover; *mover.Wire is one.
type Mover interface {
	staged.Wire
	// Expose is Offer with its answer told later. Ends of Expose and Fetch are told in order,
	// by another goroutine than the caller's.
	Expose(o staged.Exposed, done func(error))
	Kill(why error)
	// Exited closes when the exit was seen and every fetch is done; Why is how it went.
	Exited() <-chan struct{}
	Why() error
	PID() int
}

// Owner is who a Stage works for: it has the sessions and the pins.
type Owner interface {
	// Send sends to the peer's present session. x goes with Want and Offer.
	Send(p transfer.PeerID, m staged.Message, x Extra)
	// AskGrant asks for leave to pack; Granted or Refused answers later.
	AskGrant(grant uint64, p transfer.PeerID, j staged.Job, pin staged.Pin)
	EndGrant(grant uint64)
	// Done ends a Pull: nothing touches engine memory for it any more. Pull may call it.
	Done(j staged.Job, bytes int64, err error)
	// Refused counts a message that was not acted on.
	Refused(p transfer.PeerID, m staged.Message, why staged.Refusal)
	// AskPlace asks a peer where it may be probed, by chunks of at most so many bytes;
	// TellPlace answers such a question, with the place or with why there is none.
	AskPlace(p transfer.PeerID, n uint64, bytes int64)
	TellPlace(p transfer.PeerID, n uint64, at Place, why error)
	// Wire says that the wire mover of a route is up, or why it is not, or not any more.
	Wire(r Route, err error)
}

// Extra is what a message carries that its machine does not look at.
type Extra struct {
	Spec *Spec // of Want
	Port int32 // of Offer: where the wire mover serves
}

// Spec is what a reader wants, as both ends cut it.
type Spec struct {
	Chunk  int64 // bytes of a chunk; 0: ChunkBytes
	Tokens layout.Span
	Moves  []pack.Move
}

// Route is a peer group, and the transport that brings its chunks.
type Route struct{ Group, Transport string }

// Config of a Stage.
type Config struct {
	Chunks  int32 // of each half of the arena
	Chunk   int64 // bytes of one, whole pages; 0: ChunkBytes
	PerPeer int32 // chunks that one peer may hold; 0: half of Chunks, at most 16
	MaxJobs int32 // open jobs of one peer; 0: 256
	// Patience is how long a chunk whose job is over may stay with a wire mover before
	// that is killed. 0: 5 s.
	Patience time.Duration
	// Answer is how long an own wire mover may take to say that an offer stands: it asks
	// nobody, and one that says nothing stands still. 0: 10 s.
	Answer time.Duration
	Local  transfer.Backend
	Region transfer.RegionID // of the arena, among those registered with Local
	// Route is how chunks come from a peer that has a session: those of one route share a
	// wire mover.
	Route func(transfer.PeerID) Route
	// Host is where a peer's wire movers are dialled.
	Host func(transfer.PeerID) string
	// Start starts the wire mover of a route over the arena.
	Start func(ctx context.Context, r Route, id staged.Incarnation, arena transfer.Memory) (Mover, error)
	// Mint makes numbers that never repeat.
	Mint func() uint64
	// Post runs f on the owner's goroutine, later; false: the owner has ended.
	Post  func(f func()) bool
	Owner Owner
	Log   *slog.Logger
}

func (c Config) withDefaults() Config {
	if c.Chunk == 0 {
		c.Chunk = ChunkBytes
	}
	if c.PerPeer == 0 {
		c.PerPeer = max(1, min(c.Chunks/2, 16))
	}
	if c.MaxJobs == 0 {
		c.MaxJobs = 256
	}
	if c.Patience == 0 {
		c.Patience = 5 * time.Second
	}
	if c.Answer == 0 {
		c.Answer = 10 * time.Second
	}
	return c
}

// Stage is one sidecar's staging.
type Stage struct {
	cfg    Config
	arena  *arena
	region transfer.Region
	ctx    context.Context // ends with Close
	end    context.CancelFunc
	work   sync.WaitGroup

	src     *staged.Source
	dst     *staged.Dest
	events  []any // to step, in order
	busy    bool  // events are being stepped
	engine  *engine
	peers   map[transfer.PeerID]Route // that have a session
	wires   map[Route]*wire
	serves  map[staged.Job]*serve
	grants  map[uint64]*serve
	pulls   map[staged.Job]*pull
	offers  map[uint64]transfer.PeerID // made to a peer, not credited
	packs   map[uint64]transfer.Ticket
	unpacks map[uint64]transfer.Ticket
	fetches map[uint64]func()         // their cancels
	at      map[transfer.PeerID]place // of the newest offer
	wanted  *serve                    // of the Want that is being stepped
	probing probing
	lacking bool // jobs are being canceled for want of a wire mover
	closed  bool
}

// place is where a wire mover of a peer serves.
type place struct {
	wire staged.Incarnation
	port int32
}

// serve is a job at the source.
type serve struct {
	*cut
	peer transfer.PeerID
	job  staged.Job
	spec *Spec
	own  pack.Own // once granted
}

// pull is a job at the destination.
type pull struct {
	*cut
	peer  transfer.PeerID
	moves []pack.Move
	own   pack.Own
	moved int64
	cause error // of the first ticket of a mover that failed
	// unstarted is why it was canceled here, when that was for want of a wire mover.
	unstarted error
}

// New makes a stage with its arena, and registers that with the local mover.
func New(ctx context.Context, cfg Config) (*Stage, error) {
	cfg = cfg.withDefaults()
	half := staged.Config{Chunks: cfg.Chunks, PerPeer: cfg.PerPeer, MaxJobs: cfg.MaxJobs}
	src, err := staged.NewSource(half)
	if err != nil {
		return nil, err
	}
	dst, err := staged.NewDest(half)
	if err != nil {
		return nil, err
	}
	a, err := newArena(2*int64(cfg.Chunks)+extra, cfg.Chunk)
	if err != nil {
		return nil, err
	}
	m, err := a.memory()
	if err != nil {
		return nil, errors.Join(err, a.close())
	}
	region, err := cfg.Local.Register(ctx, cfg.Region, m)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("staging arena: %w", err), a.close())
	}
	s := &Stage{cfg: cfg, arena: a, region: region, src: src, dst: dst, peers: map[transfer.PeerID]Route{},
		wires: map[Route]*wire{}, serves: map[staged.Job]*serve{}, grants: map[uint64]*serve{}, pulls: map[staged.Job]*pull{},
		offers: map[uint64]transfer.PeerID{}, packs: map[uint64]transfer.Ticket{}, unpacks: map[uint64]transfer.Ticket{},
		fetches: map[uint64]func(){}, at: map[transfer.PeerID]place{}}
	s.ctx, s.end = context.WithCancel(context.Background())
	return s, nil
}

// PeerUp says that a session to p stands.
func (s *Stage) PeerUp(p transfer.PeerID) {
	r := s.cfg.Route(p)
	s.peers[p] = r
	s.step(staged.PeerUp{Peer: p}, both)
	if w := s.wires[r]; w != nil && w.mover != nil {
		s.tell(w, p)
	}
}

// PeerDown says that it ended.
func (s *Stage) PeerDown(p transfer.PeerID) {
	r, up := s.peers[p]
	if !up {
		return
	}
	delete(s.peers, p)
	delete(s.at, p)
	s.yieldProbe(fmt.Errorf("%w: its session ended", transfer.ErrPeer), func(o transfer.PeerID) bool { return o == p })
	s.step(staged.PeerDown{Peer: p}, both)
	s.retire(r)
}

// FromPeer takes a message of p.
func (s *Stage) FromPeer(p transfer.PeerID, m staged.Message, x Extra) {
	if _, up := s.peers[p]; !up {
		return
	}
	e := staged.FromPeer{Peer: p, Msg: m}
	switch m := m.(type) {
	case staged.Want:
		s.want(p, m, x.Spec)
	case staged.Credit:
		s.credited(p, m.Offer)
		s.step(e, source)
	case staged.Stop:
		s.step(e, source)
	case staged.Offer:
		if x.Port < 1 || x.Port > 65535 {
			s.cfg.Owner.Refused(p, m, staged.Malformed)
			return
		}
		s.at[p] = place{m.Wire, x.Port}
		s.step(e, dest)
	case staged.Gone:
		if k := s.pulls[m.Job]; k != nil && k.peer == p && m.Why.Err() != nil {
			k.failed(fmt.Errorf("%w: at the source, %s", m.Why.Err(), p))
		}
		s.step(e, dest)
	}
}

// Pull moves a pair's bytes, or some of them, from a peer; Owner.Done follows. From of the
// moves is the peer's rank, To this one's. chunk is the size of the peer's chunks, 0: ChunkBytes; the
// smaller ones of both ends travel.
func (s *Stage) Pull(p transfer.PeerID, j staged.Job, pin staged.Pin, moves []pack.Move, own pack.Own, chunk int64) {
	if chunk == 0 {
		chunk = ChunkBytes
	}
	if err := s.begin(p, j, pin, moves, own, min(chunk, s.cfg.Chunk)); err != nil {
		s.cfg.Owner.Done(j, 0, err)
	}
}

func (s *Stage) begin(p transfer.PeerID, j staged.Job, pin staged.Pin, moves []pack.Move, own pack.Own, chunk int64) error {
	c, err := s.cut(moves, chunk)
	if err != nil {
		return err
	}
	n, err := c.pack.Chunks(own.Tokens)
	if err != nil {
		return err
	}
	if _, twice := s.pulls[j]; twice {
		return fmt.Errorf("%w: job %+v", transfer.ErrBusy, j)
	}
	s.yieldProbe(ErrProbe, anyPeer)
	s.pulls[j] = &pull{cut: c, peer: p, moves: moves, own: own}
	if r, up := s.peers[p]; up {
		s.wire(r)
	}
	s.step(staged.Pull{Peer: p, Job: j, Pin: pin, Chunks: n}, dest)
	return nil
}

// Use counts the chunks of both halves.
func (s *Stage) Use() (src, dst staged.Use) { return s.src.Use(), s.dst.Use() }

// Cancel asks a Pull to stop; Done still follows.
func (s *Stage) Cancel(j staged.Job) { s.step(staged.Cancel{Job: j}, dest) }

// post runs f on the owner's goroutine, unless the arena is gone by then.
func (s *Stage) post(f func()) bool {
	return s.cfg.Post(func() {
		if !s.closed {
			f()
		}
	})
}
