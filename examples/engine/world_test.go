package engine_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/batonkv/baton/examples/engine"
	"github.com/batonkv/baton/sidecar/blocks"
	sidecar "github.com/batonkv/baton/sidecar/engine"
	"github.com/batonkv/baton/sidecar/engine/blockhash"
	"github.com/batonkv/baton/sidecar/handoff"
	"github.com/batonkv/baton/transfer/layout"
)

// world stands in for all sidecars: it pins, decides, and copies element by element
// between mappings of its own, as Attach describes them.
type world struct {
	t      testing.TB
	mu     sync.Mutex
	groups map[string]*group
	nextID uint64
	errs   []error
	hold   bool // keep admits back until want imports are reserved or were told Full
	want   int
	held   []*pull
	fail   bool // drop imports instead of admitting them
	// endParts frees a label when so many parts were said; 0: none.
	endParts int
	ended    string // that label
	over     bool   // free exports instead of showing them
	bytes    int64
	took     map[string]handoff.Reserved                        // by label, of rank 0, when it is set
	spoil    func(st layout.State, layer int32, element []byte) // of what is copied, when it is set
	into     map[int]int64                                      // of bytes, by rank, when it is set
	skew     *rand.Rand                                         // ranks receive decisions when they look, some of them; nil: at once
	skewed   int                                                // how often a rank looked and had others than rank 0
}

type group struct {
	name     string
	sessions []*session
	n, told  uint64 // decisions; through which rank 0 was told
	exports  map[string][]handoff.Export
	parts    map[string][][]handoff.ExportPart // by label and rank, until Free
	partly   int                               // exports that closed parts
	pulls    map[uint64]*pull
	waiting  []*pull
	ids      map[string]handoff.ID
	next     *group        // the launch after this one
	formed   chan struct{} // closed when all ranks of a next launch are attached
}

// pull is one import of a group.
type pull struct {
	imp      handoff.Import
	n        uint64
	reserved map[int]handoff.Reserved
}

// session is one rank's.
type session struct {
	w       *world
	g       *group
	rank    int
	attach  handoff.Attach
	mem     [][]byte
	inbox   []handoff.ToEngine
	late    []handoff.Decision // on their way
	pending []handoff.Decision
	applied uint64
	wake    chan struct{}
	err     error
	away    error

	acks map[uint64]error // by decision
	told *blocks.Cache    // what it says of its prefix cache

	wire *sidecar.Session // real sockets instead of inbox and pending
	held uint64
}

func newWorld(t testing.TB) *world { return &world{t: t, groups: map[string]*group{}} }

func (w *world) attach(g *group, r *engine.Rank, rank int) *session {
	s := &session{w: w, g: g, rank: rank, attach: r.Attach(), wake: make(chan struct{}, 1), told: blocks.New(r.Attach().Capacity.Blocks)}
	if err := s.attach.Model.Layout.Check(s.attach.Shards); err != nil {
		w.t.Fatal(err)
	}
	var lens []int64
	for i, fd := range r.Files() {
		n := s.attach.Buffers[i].Len
		lens = append(lens, n)
		mem, err := unix.Mmap(fd, 0, int(n), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		if err != nil {
			w.t.Fatal(err)
		}
		w.t.Cleanup(func() { _ = unix.Munmap(mem) })
		if err := unix.Ftruncate(fd, n/2); !errors.Is(err, unix.EPERM) {
			w.t.Fatalf("buffer %d is not sealed: %v", i, err)
		}
		s.mem = append(s.mem, mem)
	}
	if err := layout.CheckMemory(s.attach.Model.Layout, s.attach.Shards, lens); err != nil {
		w.t.Fatal(err)
	}
	s.push(handoff.MoverStarted{PID: 1})
	return s
}

func (s *session) push(m handoff.ToEngine) {
	if s.wire != nil {
		if err := s.wire.Send(m); err != nil {
			s.w.errs = append(s.w.errs, err)
		}
		return
	}
	s.inbox = append(s.inbox, m)
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (s *session) Wake() <-chan struct{} { return s.wake }

func (s *session) Err() error {
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	return s.err
}

func (s *session) Away() error {
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	return s.away
}

func (s *session) Poll(dst []handoff.ToEngine) []handoff.ToEngine {
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	s.receive()
	dst = append(dst, s.inbox...)
	s.inbox = nil
	return dst
}

// receive takes some of the decisions that are on their way.
func (s *session) receive() {
	if len(s.late) == 0 {
		return
	}
	n := s.w.skew.IntN(len(s.late) + 1)
	s.pending, s.late = append(s.pending, s.late[:n]...), s.late[n:]
	if len(s.pending) > 0 {
		s.held = s.pending[len(s.pending)-1].N
	}
	if s.held != s.g.sessions[0].held {
		s.w.skewed++
	}
	s.w.through(s.g)
}

func (s *session) Decisions(through uint64) []handoff.Decision {
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	var out []handoff.Decision
	for len(s.pending) > 0 && s.pending[0].N <= through {
		out, s.pending = append(out, s.pending[0]), s.pending[1:]
	}
	return out
}

func (s *session) Send(m handoff.FromEngine) error {
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	if s.err != nil {
		return s.err
	}
	if i, ok := m.(handoff.Import); ok && len(i.Manifest.Resume.Sampler) > 100 {
		return handoff.ErrBound
	}
	s.w.handle(s, m)
	return nil
}

func (w *world) decide(g *group, d handoff.Decision) uint64 {
	g.n++
	d.N = g.n
	for _, s := range g.sessions {
		if s.wire != nil {
			s.push(d)
		} else if w.skew != nil {
			s.late = append(s.late, d)
		} else {
			s.pending, s.held = append(s.pending, d), g.n
		}
	}
	w.through(g)
	return g.n
}

// through tells rank 0 what every rank holds.
func (w *world) through(g *group) {
	all := g.n
	for _, s := range g.sessions {
		all = min(all, s.held)
	}
	if all > g.told {
		g.told = all
		g.sessions[0].push(handoff.Through{N: all})
	}
}

func (w *world) handle(s *session, m handoff.FromEngine) {
	g := s.g
	switch m := m.(type) {
	case handoff.ExportPart:
		w.part(s, m)
	case handoff.Export:
		w.closes(s, m)
		if g.exports[m.Label] == nil {
			g.exports[m.Label] = make([]handoff.Export, len(g.sessions))
		}
		g.exports[m.Label][s.rank] = m
		for _, e := range g.exports[m.Label] {
			if e.Label == "" {
				return
			}
		}
		if w.over {
			w.free(g, m.Label)
			return
		}
		w.nextID++
		id := handoff.ID{Group: g.name, N: w.nextID}
		g.ids[m.Label] = id
		lead := g.exports[m.Label][0]
		g.sessions[0].push(handoff.Exported{Label: m.Label, Manifest: handoff.Manifest{ID: id, Label: m.Label,
			Tokens: lead.Tokens, Position: lead.Position, Resume: lead.Resume, BlockTokens: s.attach.Capacity.BlockTokens}})
	case handoff.ReleaseExport:
		if g.exports[m.Label] != nil || g.parts[m.Label] != nil {
			w.free(g, m.Label)
		}
	case handoff.Import:
		w.reserve(g, &pull{imp: m})
	case handoff.Reserved:
		w.granted(s, m)
	case handoff.Freed:
		waiting := g.waiting
		g.waiting = nil
		for _, p := range waiting {
			w.reserve(g, p)
		}
	case handoff.Held:
		s.held = m.N
		w.through(g)
	case handoff.Applied:
		s.applied = m.N
	case handoff.BlockEvents:
		for _, e := range m.Events {
			if err := s.told.Apply(e); err != nil {
				w.errs = append(w.errs, err)
			}
		}
	case handoff.LifecycleAck:
		if s.acks == nil {
			s.acks = map[uint64]error{}
		}
		s.acks[m.N] = m.Err
	}
}

func (w *world) free(g *group, label string) {
	delete(g.exports, label)
	delete(g.parts, label)
	w.decide(g, handoff.Decision{Kind: handoff.Free, ID: g.ids[label], Label: label})
}

func (w *world) reserve(g *group, p *pull) {
	hashes, err := blockhash.Hashes(p.imp.Tokens, g.sessions[0].attach.Capacity.BlockTokens,
		blockhash.For(g.sessions[0].attach.Model, g.sessions[0].attach.Weights, handoff.Salt{}))
	if err != nil {
		w.errs = append(w.errs, err)
		return
	}
	man := p.imp.Manifest
	p.reserved = map[int]handoff.Reserved{}
	p.n = w.decide(g, handoff.Decision{Kind: handoff.Reserve, ID: man.ID, Label: p.imp.Label, Tokens: int32(len(p.imp.Tokens)),
		Hashes: hashes, Position: man.Position, Resume: man.Resume})
	g.pulls[p.n] = p
}

func (w *world) granted(s *session, m handoff.Reserved) {
	g, p := s.g, s.g.pulls[m.N]
	p.reserved[s.rank] = m
	if w.took != nil && s.rank == 0 {
		w.took[p.imp.Label] = m
	}
	if len(p.reserved) < len(g.sessions) {
		return
	}
	for _, r := range p.reserved {
		if r.Digest != m.Digest || r.Cached != m.Cached {
			w.errs = append(w.errs, fmt.Errorf("ranks of %s answer %d differently", g.name, m.N))
		}
	}
	lead := g.sessions[0]
	switch {
	case m.Full:
		g.waiting = append(g.waiting, p)
		w.admitHeld(g)
	case m.Why != "":
		lead.push(handoff.Failed{Label: p.imp.Label, Err: fmt.Errorf("%w: %s", handoff.ErrCapacity, m.Why), SourceSafe: true})
	case w.fail:
		w.decide(g, handoff.Decision{Kind: handoff.Drop, Of: p.n})
		w.decide(g, handoff.Decision{Kind: handoff.ReleaseQuarantine, Of: p.n})
		lead.push(handoff.Failed{Label: p.imp.Label, Err: handoff.ErrTransfer, SourceSafe: true})
	case w.hold:
		w.held = append(w.held, p)
		w.admitHeld(g)
	default:
		w.admit(g, p)
	}
}

// admitWhen admits what is held back once n imports are reserved or were told Full.
func (w *world) admitWhen(name string, n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.want = n
	w.admitHeld(w.groups[name])
}

func (w *world) admitHeld(g *group) {
	if w.want == 0 || len(w.held)+len(g.waiting) < w.want {
		return
	}
	for _, p := range w.held {
		w.admit(g, p)
	}
	w.held, w.want, w.hold = nil, 0, false
}

func (w *world) admit(g *group, p *pull) {
	src := w.groups[p.imp.Manifest.ID.Group]
	exports := src.exports[p.imp.Manifest.Label]
	if exports == nil {
		g.sessions[0].push(handoff.Failed{Label: p.imp.Label, Err: handoff.ErrGone})
		w.decide(g, handoff.Decision{Kind: handoff.Drop, Of: p.n})
		w.decide(g, handoff.Decision{Kind: handoff.ReleaseQuarantine, Of: p.n})
		return
	}
	for rank, s := range g.sessions {
		w.copyInto(s, p.reserved[rank], src, exports)
	}
	w.decide(g, handoff.Decision{Kind: handoff.Admit, Of: p.n, ID: p.imp.Manifest.ID})
	if exports[0].Copies--; exports[0].Copies <= 0 {
		w.free(src, p.imp.Manifest.Label)
	}
	g.sessions[0].push(handoff.Imported{Label: p.imp.Label, ID: p.imp.Manifest.ID})
}
