package transfertest

import (
	"context"
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/batonkv/baton/transfer"
	"github.com/batonkv/baton/transfer/layout"
	"github.com/batonkv/baton/transfer/layout/parallel"
)

// Env is one fresh backend, owned by the suite, which closes it.
type Env struct {
	Backend transfer.Backend
	Alloc   Alloc
	Source  Alloc // of the source ranks' memory; nil: Alloc
	// MaxOpen is the bound on open tickets; 0 when there is none to reach.
	MaxOpen int
	// Hold stops copies that begin after it, until release is called.
	Hold func() (release func())
	// Kill ends the process that copies and returns at once; nil when that is the
	// test's own. A held process must die too.
	Kill func()
	// Sums says that Backend is a transfer.Summer.
	Sums bool
}

// Open makes an Env for one subtest.
type Open func(t *testing.T) Env

// Run runs the suite.
func Run(t *testing.T, open Open) {
	for name, shape := range Shapes() {
		t.Run("bytes/"+name, func(t *testing.T) {
			testBytes(t, open(t), shape)
		})
	}
	for name, f := range map[string]func(*testing.T, Env){
		"zero length":                testZeroLength,
		"ticket":                     testTicket,
		"context ends after":         testContextEnds,
		"context ended before":       testContextEnded,
		"cancel":                     testCancel,
		"bounds":                     testBounds,
		"bad job":                    testBadJob,
		"memory refused":             testMemoryRefused,
		"register twice":             testRegisterTwice,
		"close while busy":           testCloseBusy,
		"closed":                     testClosed,
		"full":                       testFull,
		"a hundred thousand copies":  testManyCopies,
		"a thousand pulls":           testManyPulls,
		"concurrent":                 testConcurrent,
		"peer gone":                  testPeerGone,
		"mover killed":               testKilled,
		"mover killed between pulls": testKilledIdle,
	} {
		t.Run(name, func(t *testing.T) {
			e := open(t)
			f(t, e)
			if err := e.Backend.Close(context.Background()); err != nil {
				t.Errorf("close: %v", err)
			}
		})
	}
}

// scene is the fixture of most tests: TP2 to TP1, pulled from rank 0.
type scene struct {
	*world
	shape Shape
	reg   []transfer.Region
	link  transfer.Link
}

func set(t testing.TB, e Env) *scene {
	t.Helper()
	s := Shapes()["tp2 to tp1"]
	w := newWorld(t, s, e)
	return &scene{world: w, shape: s, reg: w.register(t, e.Backend, 0), link: w.open(t, e.Backend, 0)}
}

func hold(t *testing.T, e Env) (release func()) {
	t.Helper()
	if e.Hold == nil {
		t.Skip("this backend has copied when Pull returns")
	}
	done := false
	r := e.Hold()
	release = func() {
		if !done {
			done = true
			r()
		}
	}
	t.Cleanup(release)
	return release
}

func testBytes(t *testing.T, e Env, s Shape) {
	for _, tokens := range []layout.Span{{Hi: 1}, {Hi: 16}, {Hi: 300}, {Lo: 5, Hi: 130}, {Lo: 64, Hi: 65}, {Lo: 31, Hi: 500}} {
		w := newWorld(t, s, e)
		for r := range w.dst {
			rank := layout.Rank(r)
			regions := w.register(t, e.Backend, rank)
			before := w.shadow(t, rank, nil, nil)
			for pair, p := range w.plan.Pairs() {
				if p.Dst != rank {
					continue
				}
				tm, j := w.template(t, pair), s.job(pair, tokens)
				copyInto(before, w, t, rank, pair, j)
				l := w.open(t, e.Backend, p.Src)
				k := pull(t, l, tm, j)
				if err := wait(t, k); err != nil {
					t.Fatal(err)
				}
				if want, _ := tm.Bytes(j); k.Bytes() != want {
					t.Errorf("tokens %v pair %d: %d bytes, want %d", tokens, pair, k.Bytes(), want)
				}
				if err := l.Close(); err != nil {
					t.Error(err)
				}
				if e.Sums {
					checkSums(t, e, w, s, pair, j)
				}
			}
			equal(t, w.dst[r], before)
			for _, x := range regions {
				if err := x.Close(); err != nil {
					t.Error(err)
				}
			}
		}
	}
	if err := e.Backend.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

func testZeroLength(t *testing.T, e Env) {
	// No per-request state, so that an empty token range is no byte at all.
	s := Shapes()["tp2 to tp1"]
	s.Desc = parallel.Desc{Attention: s.Desc.Attention}
	w := newWorld(t, s, e)
	w.register(t, e.Backend, 0)
	want := w.shadow(t, 0, nil, nil)
	k := pull(t, w.open(t, e.Backend, 0), w.template(t, 0), s.job(0, layout.Span{Lo: 20, Hi: 20}))
	if err := wait(t, k); err != nil || k.Bytes() != 0 {
		t.Errorf("%d bytes, %v; want none", k.Bytes(), err)
	}
	equal(t, w.dst[0], want)
}

func testTicket(t *testing.T, e Env) {
	s, release := set(t, e), hold(t, e)
	tm, j := s.template(t, 0), s.shape.job(0, layout.Span{Hi: 100})
	want, _ := tm.Bytes(j)
	k := pull(t, s.link, tm, j)
	// The caller may reuse its tables at once.
	for i := range j.SrcBlocks {
		j.SrcBlocks[i] = -1
	}
	select {
	case <-k.Done():
		t.Error("done while the copy is held")
	default:
	}
	if k.Err() != nil || k.Bytes() != 0 {
		t.Errorf("before Done: %v, %d bytes", k.Err(), k.Bytes())
	}
	release()
	if err := wait(t, k); err != nil || k.Bytes() != want {
		t.Errorf("after Done: %v, %d bytes; want %d", err, k.Bytes(), want)
	}
	k.Cancel() // too late, harmless
	if k.Err() != nil {
		t.Errorf("a late Cancel changed the outcome: %v", k.Err())
	}
}

func testContextEnds(t *testing.T, e Env) {
	s, release := set(t, e), hold(t, e)
	tm, j := s.template(t, 0), s.shape.job(0, layout.Span{Hi: 100})
	want := s.world.shadow(t, 0, nil, nil)
	copyInto(want, s.world, t, 0, 0, j)
	ctx, end := context.WithCancel(t.Context())
	k, err := s.link.Pull(ctx, tm, j)
	if err != nil {
		t.Fatal(err)
	}
	end()
	release()
	if err := wait(t, k); err != nil {
		t.Errorf("the context's end reached the copy: %v", err)
	}
	equal(t, s.dst[0], want)
}

func testContextEnded(t *testing.T, e Env) {
	s := set(t, e)
	ctx, end := context.WithCancel(t.Context())
	end()
	want := s.shadow(t, 0, nil, nil)
	if k, err := s.link.Pull(ctx, s.template(t, 0), s.shape.job(0, layout.Span{Hi: 100})); !errors.Is(err, context.Canceled) {
		t.Errorf("Pull = %v, %v; want context.Canceled", k, err)
	}
	if l, err := e.Backend.Open(ctx, s.peer(0)); !errors.Is(err, context.Canceled) {
		t.Errorf("Open = %v, %v; want context.Canceled", l, err)
	}
	if r, err := e.Backend.Register(ctx, 77, s.dst[0][0].Memory()); !errors.Is(err, context.Canceled) {
		t.Errorf("Register = %v, %v; want context.Canceled", r, err)
	}
	equal(t, s.dst[0], want)
}

func testCancel(t *testing.T, e Env) {
	s, release := set(t, e), hold(t, e)
	j := s.shape.job(0, layout.Span{Hi: 100})
	want := s.shadow(t, 0, nil, nil)
	copyInto(want, s.world, t, 0, 0, j)
	k := pull(t, s.link, s.template(t, 0), j)
	k.Cancel()
	k.Cancel()
	release()
	switch err := wait(t, k); {
	case err == nil: // too late
		equal(t, s.dst[0], want)
	case !errors.Is(err, transfer.ErrCanceled):
		t.Errorf("Cancel: %v", err)
	}
	// Nothing of it is left behind, and the next pull is whole.
	if err := try(t, s.link, s.template(t, 0), j); err != nil {
		t.Error(err)
	}
	equal(t, s.dst[0], want)
}

func testPeerGone(t *testing.T, e Env) {
	s := set(t, e)
	if s.src[0][0].Gone == nil {
		t.Skip("this memory does not outlive its maker")
	}
	j := s.shape.job(0, layout.Span{Hi: 300})
	want := s.shadow(t, 0, nil, nil)
	copyInto(want, s.world, t, 0, 0, j)
	for _, b := range s.src[0] {
		b.Gone()
	}
	switch err := try(t, s.link, s.template(t, 0), j); {
	case err == nil:
		equal(t, s.dst[0], want)
	case !errors.Is(err, transfer.ErrPeer):
		t.Errorf("pull from a dead peer: %v; want its bytes or ErrPeer", err)
	}
}

// closedFD reports whether fd is closed, or means another file than before.
func closedFD(fd int, was unix.Stat_t) bool {
	var st unix.Stat_t
	return unix.Fstat(fd, &st) != nil || st.Ino != was.Ino || st.Dev != was.Dev
}
