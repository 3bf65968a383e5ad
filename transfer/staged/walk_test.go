package staged

import (
	"os"
	"strings"
	"testing"

	"github.com/batonkv/baton/internal/need"
	"github.com/batonkv/baton/internal/walk"
)

// ring is a world as a model of package walk.
type ring struct {
	set setup
	w   *world // read into again and again: a new one for each step costs half the time
}

// state is a world in bytes, and what is wrong with it.
type state struct{ bytes, bad string }

func (r *ring) pack(w *world) state {
	c := &coder{b: make([]byte, 0, 256)}
	w.code(c)
	return state{string(c.b), w.bad}
}

// unpack is valid until the next unpack.
func (r *ring) unpack(s state) *world {
	if r.w == nil {
		r.w = newWorld(&r.set)
	}
	r.w.bad = ""
	r.w.code(&coder{b: []byte(s.bytes), read: true})
	return r.w
}

func (w *world) code(c *coder) {
	num(c, &w.faults)
	for i := range w.job {
		j := &w.job[i]
		flag(c, &j.pulled)
		num(c, &j.ended)
		num(c, &j.why)
		flag(c, &j.pinned)
		flag(c, &j.over)
		for k := range j.got {
			codeOf(c, &j.got[k])
		}
	}
	for i := range w.link {
		w.link[i].code(c)
	}
	for _, e := range w.src {
		e.code(c)
	}
	for _, e := range w.dst {
		e.code(c)
	}
}

func (m *wire) code(c *coder) {
	num(c, &m.now)
	num(c, &m.last)
	flag(c, &m.dying)
	num(c, &m.seen)
}

func (l *link) code(c *coder) {
	flag(c, &l.up)
	flag(c, &l.downSrc)
	flag(c, &l.downDst)
	num(c, &l.ups)
	list(c, &l.toSrc, message)
	list(c, &l.toDst, message)
	list(c, &l.lateSrc, message)
	list(c, &l.lateDst, message)
	l.sw.code(c)
	l.dw.code(c)
}

func memory(c *coder, mem [][3]part) {
	for i := range mem {
		for k := range mem[i] {
			codeOf(c, &mem[i][k])
		}
	}
}

func (e *srcEnd) code(c *coder) {
	c.source(e.m)
	memory(c, e.mem)
	list(c, &e.g.held, func(c *coder, h *holding) {
		num(c, &h.pin.ID)
		num(c, &h.until)
		flag(c, &h.over)
		list(c, &h.open, func(c *coder, l *loan) { num(c, &l.grant) }) // all of the local mover
	})
	list(c, &e.packs, func(c *coder, p *packing) {
		num(c, &p.ticket)
		num(c, &p.chunk)
		codeOf(c, &p.code)
		num(c, &p.written)
		flag(c, &p.dead)
	})
	list(c, &e.local, localEvent)
	list(c, &e.waits, num[uint64])
}

func (e *dstEnd) code(c *coder) {
	c.dest(e.m)
	memory(c, e.mem)
	list(c, &e.fetches, func(c *coder, f *fetching) {
		num(c, &f.ticket)
		num(c, &f.offer)
		num(c, &f.src)
		num(c, &f.from)
		num(c, &f.chunk)
		num(c, &f.of)
		num(c, &f.wire)
		num(c, &f.moved)
		flag(c, &f.stuck)
		flag(c, &f.canceled)
	})
	list(c, &e.unpacks, func(c *coder, u *unpacking) {
		num(c, &u.ticket)
		num(c, &u.chunk)
		codeOf(c, &u.code)
		num(c, &u.phase)
		flag(c, &u.dead)
	})
	list(c, &e.waits, num[uint64])
}

func (r *ring) Init() state                  { return r.pack(newWorld(&r.set)) }
func (r *ring) Key(s state, b []byte) []byte { return append(b, s.bytes...) }
func (r *ring) Bad(s state) string           { return s.bad }
func (r *ring) Stuck(s state) string         { return r.unpack(s).stuck() }
func (r *ring) Next(s state, emit func(walk.Step, state)) {
	for _, x := range r.unpack(s).steps() {
		w := r.unpack(s)
		w.apply(x)
		emit(x.label(), r.pack(w))
	}
}

func arena(chunks int32) Config { return Config{Chunks: chunks, PerPeer: chunks, MaxJobs: 2} }

// TestWalk searches every state of small worlds. The short ones run always, the others
// where BATON_WALK=long.
func TestWalk(t *testing.T) {
	one := []jobSpec{{chunks: 1}}
	two := []jobSpec{{chunks: 1}, {chunks: 1}}
	stream := []jobSpec{{chunks: 2}}
	for _, c := range []struct {
		name string
		long bool
		set  setup
		cut  int // states after which the search may stop; 0: it sees all
	}{
		{"one job, two faults", false, setup{src: arena(1), dst: arena(1), jobs: one, faults: 2, reconnect: 1, copies: headFirst}, 0},
		{"one chunk, two jobs, one fault", false, setup{src: arena(1), dst: arena(1), jobs: two, faults: 1, reconnect: 1, copies: headFirst}, 0},
		{"a stream of two through one chunk, one fault", false, setup{src: arena(1), dst: arena(1), jobs: stream, faults: 1, reconnect: 1}, 0},
		{"two chunks, two jobs, one fault", false, setup{src: arena(2), dst: arena(2), jobs: two, faults: 1, copies: atOnce}, 0},
		{"two destinations, one chunk at the source, one fault", false, setup{src: arena(1), dst: arena(1), dsts: 2,
			jobs: []jobSpec{{chunks: 1}, {dst: 1, chunks: 1}}, faults: 1, copies: atOnce}, 0},
		{"two sources, one chunk at the destination, one fault", false, setup{src: arena(1), dst: arena(1), srcs: 2,
			jobs: []jobSpec{{chunks: 1}, {src: 1, chunks: 1}}, faults: 1, copies: atOnce}, 0},
		{"two streams across, one chunk at each of four ends", true, setup{src: arena(1), dst: arena(1), srcs: 2, dsts: 2,
			jobs: []jobSpec{{chunks: 2}, {src: 1, dst: 1, chunks: 2}, {dst: 1, chunks: 1}, {src: 1, chunks: 1}}, copies: atOnce}, 0},
		{"one chunk, two jobs, one fault, any order", true, setup{src: arena(1), dst: arena(1), jobs: two, faults: 1, reconnect: 1}, 0},
		{"one chunk, two jobs, two faults", true, setup{src: arena(1), dst: arena(1), jobs: two, faults: 2, reconnect: 1, copies: headFirst}, 0},
		{"two chunks, two jobs, two faults", true, setup{src: arena(2), dst: arena(2), jobs: two, faults: 2, copies: atOnce}, 4_000_000},
		{"one job, three faults", true, setup{src: arena(1), dst: arena(1), jobs: one, faults: 3, reconnect: 1, copies: headFirst}, 0},
		{"a stream of two through two chunks, two faults", true, setup{src: arena(2), dst: arena(2), jobs: stream, faults: 2, reconnect: 1, copies: atOnce}, 4_000_000},
	} {
		t.Run(strings.ReplaceAll(c.name, " ", "_"), func(t *testing.T) {
			if racing || c.long && os.Getenv("BATON_WALK") != "long" {
				need.Skip(t, "walks", "BATON_WALK is not long, or the race detector is on")
			}
			c.set.srcs, c.set.dsts = max(c.set.srcs, 1), max(c.set.dsts, 1)
			limit := c.cut
			if limit == 0 {
				limit = 30_000_000
			}
			r := walk.Run(&ring{set: c.set}, limit)
			t.Log(r)
			if r.Violation != "" || !r.Full && c.cut == 0 {
				t.Fail()
			}
		})
	}
}
