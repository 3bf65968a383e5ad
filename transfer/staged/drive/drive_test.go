package drive_test

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/batonkv/baton/transfer"
	"github.com/batonkv/baton/transfer/staged"
	"github.com/batonkv/baton/transfer/staged/drive"
	"github.com/batonkv/baton/transfer/staged/nixl/fake"
)

// TestStagedIsDirect: what goes through the arenas lands as a direct copy does, however
// small they are, and all comes back.
func TestStagedIsDirect(t *testing.T) {
	overEach(t, func(t *testing.T, over string) {
		for _, chunks := range []int32{1, 2, 16} {
			p := newPair(t, chunks).over(t, over)
			for n := range uint64(3) {
				p.wipe()
				p.pull(n + 1)
				r := p.wait(t)
				if r.err != nil || r.bytes != p.plan.Bytes(p.index(), p.tokens.Len()) {
					t.Fatalf("%d chunks, job %d: %d bytes, %v", chunks, n, r.bytes, r.err)
				}
				p.landed(t)
				p.quiet(t)
			}
		}
	})
}

// TestSizesDiffer: the smaller chunks of both ends travel.
func TestSizesDiffer(t *testing.T) {
	overEach(t, func(t *testing.T, over string) {
		for _, sizes := range [][2]int64{{0, 256 << 10}, {256 << 10, 0}, {4 << 20, 512 << 10}, {68 << 10, 4 << 20}} {
			p := newPairOf(t, small, 3, sizes[0], sizes[1]).over(t, over)
			p.pull(1)
			if r := p.wait(t); r.err != nil {
				t.Fatalf("%d bytes to %d: %v", sizes[0], sizes[1], r.err)
			}
			p.landed(t)
			p.quiet(t)
		}
	})
}

// TestSideBySide: jobs of one pair share the arena.
func TestSideBySide(t *testing.T) {
	p := newPair(t, 2)
	for n := range uint64(8) {
		p.pull(n + 1)
	}
	for range 8 {
		if r := p.wait(t); r.err != nil {
			t.Error(r.err)
		}
	}
	p.landed(t)
	p.quiet(t)
}

// TestWireMoversKilled: jobs of a wire mover that is killed end, and later ones succeed.
func TestWireMoversKilled(t *testing.T) {
	overEach(t, func(t *testing.T, over string) {
		t.Run("source", func(t *testing.T) { wireMoversKilled(t, over, func(p *pair) *node { return p.src }) })
		t.Run("destination", func(t *testing.T) { wireMoversKilled(t, over, func(p *pair) *node { return p.dst }) })
	})
}

func wireMoversKilled(t *testing.T, over string, victim func(*pair) *node) {
	p := newPair(t, 2).over(t, over)
	n := uint64(0)
	for ; n < 5; n++ {
		killed := false
		p.src.sync(func() {
			p.src.lose = func(m staged.Message) bool {
				if _, is := m.(staged.Offer); is && !killed {
					killed = true
					victim(p).kill(t)
				}
				return false
			}
		})
		p.pull(n + 1)
		if r := p.wait(t); r.err != nil && !errors.Is(r.err, transfer.ErrMover) && !errors.Is(r.err, transfer.ErrPeer) {
			t.Fatal(r.err)
		}
		p.quiet(t)
	}
	p.src.sync(func() { p.src.lose = nil })
	p.wipe()
	for { // until a wire mover of either end serves again
		n++
		p.pull(n)
		if r := p.wait(t); r.err == nil {
			break
		}
	}
	p.landed(t)
	p.quiet(t)
}

// TestNotHeld: without leave nothing is packed, and the reader hears why.
func TestNotHeld(t *testing.T) {
	p := newPair(t, 4)
	p.src.sync(func() { p.src.held = func(uint64) bool { return false } })
	p.pull(1)
	if r := p.wait(t); !errors.Is(r.err, staged.ErrLease) || r.bytes != 0 {
		t.Errorf("got %d bytes, %v", r.bytes, r.err)
	}
	p.landedNothing(t)
	p.quiet(t)
}

// TestMoreThanThePin: a reader that wants tokens which the pin does not hold gets none.
func TestMoreThanThePin(t *testing.T) {
	p := newPair(t, 4)
	p.src.sync(func() { p.src.from.Tokens.Hi-- })
	p.pull(1)
	if r := p.wait(t); !errors.Is(r.err, staged.ErrLease) {
		t.Errorf("got %v", r.err)
	}
	p.landedNothing(t)
	p.quiet(t)
}

// TestPerRequestIsNotThere: a reader that wants what is per request of a pin without a slot
// gets nothing.
func TestPerRequestIsNotThere(t *testing.T) {
	p := newPair(t, 4)
	p.src.sync(func() { p.src.from.Slot = -1 })
	p.pull(1)
	if r := p.wait(t); !errors.Is(r.err, staged.ErrLease) {
		t.Errorf("got %v", r.err)
	}
	p.landedNothing(t)
	p.quiet(t)
}

func (p *pair) landedNothing(t testing.TB) {
	t.Helper()
	for i, b := range p.dst.bufs {
		if string(b.Bytes) != string(p.before[i]) {
			t.Errorf("buffer %d was written", i)
		}
	}
}

// TestRevoked: a lease that ends under a job ends the job, and its grant.
func TestRevoked(t *testing.T) {
	p := newPair(t, 1)
	grants := make(chan uint64, 1)
	p.src.sync(func() { p.src.held = func(g uint64) bool { grants <- g; return true } })
	p.pull(1)
	g := <-grants
	p.src.sync(func() {
		if p.src.open[g] { // else it was faster
			p.src.stage.Revoked(g)
		}
	})
	if r := p.wait(t); r.err != nil && !errors.Is(r.err, staged.ErrLease) {
		t.Errorf("got %v", r.err)
	}
	p.quiet(t)
}

// TestCanceled: the end of a job that is given up comes, and nothing is held.
func TestCanceled(t *testing.T) {
	p := newPair(t, 1)
	p.pull(1)
	p.dst.sync(func() { p.dst.stage.Cancel(p.job(1)) })
	if r := p.wait(t); r.err != nil && !errors.Is(r.err, transfer.ErrCanceled) {
		t.Errorf("got %v", r.err)
	}
	p.quiet(t)
}

// TestStuckRead: a read that does not end, of a library that cannot cancel, costs its wire mover
// once patience is over, and nothing else.
func TestStuckRead(t *testing.T) {
	p := newPair(t, 2)
	lib := fake.Build(t)
	for _, n := range []*node{p.src, p.dst} {
		n.sync(func() { n.library = lib })
	}
	mark := filepath.Join(t.TempDir(), "stuck")
	t.Setenv(fake.Env, "stuck")
	t.Setenv(fake.EnvMark, mark)
	p.pull(1)
	w := <-p.dst.pid
	for _, err := os.Stat(mark); err != nil; _, err = os.Stat(mark) { // until a chunk is being read
		runtime.Gosched()
	}
	p.dst.sync(func() { p.dst.stage.Cancel(p.job(1)) })
	<-w.Exited()
	if r := p.wait(t); !errors.Is(r.err, transfer.ErrCanceled) {
		t.Errorf("got %v", r.err)
	}
	p.quiet(t)
	t.Setenv(fake.Env, "")
	p.pull(2)
	if r := p.wait(t); r.err != nil {
		t.Error(r.err)
	}
	p.landed(t)
	p.quiet(t)
}

// TestStandsStill: an own wire mover that says nothing of an offer is killed, and the pull
// that waited for it fails long before anybody's deadline; the next has another.
func TestStandsStill(t *testing.T) {
	answer = 20 * time.Millisecond
	p := newPair(t, 2)
	answer = time.Minute
	p.src.sync(func() { p.src.mute = true })
	p.pull(1)
	w := <-p.src.pid
	<-w.Exited()
	if r := p.wait(t); !errors.Is(r.err, transfer.ErrMover) {
		t.Errorf("got %v", r.err)
	}
	p.quiet(t)
}

// TestStartFailsAtEnd: a wire mover that did not start is nothing to be killed.
func TestStartFailsAtEnd(t *testing.T) {
	p := newPair(t, 2)
	p.dst.sync(func() { p.dst.fails = true })
	p.pull(1)
	<-p.dst.failing
}

// TestSessionEnds: jobs end with the session on both sides, and the source's chunks come
// back by the exit of its wire mover.
func TestSessionEnds(t *testing.T) {
	p := newPair(t, 1)
	p.pull(1)
	p.src.leaves(p.dst.id)
	p.dst.leaves(p.src.id)
	if r := p.wait(t); r.err != nil && !errors.Is(r.err, transfer.ErrPeer) {
		t.Errorf("got %v", r.err)
	}
	p.quiet(t)
	p.src.meets(p.dst)
	p.dst.meets(p.src)
	p.pull(2)
	if r := p.wait(t); r.err != nil {
		t.Errorf("over the next session: %v", r.err)
	}
	p.landed(t)
	p.quiet(t)
}

// TestLostCredits: a reader whose credits do not arrive costs the source its wire mover and
// nothing else.
func TestLostCredits(t *testing.T) {
	p := newPair(t, 2)
	lost := 0
	p.dst.sync(func() {
		p.dst.lose = func(m staged.Message) bool {
			_, is := m.(staged.Credit)
			if is = is && lost < 2; is {
				lost++
			}
			return is
		}
	})
	p.pull(1)
	p.dst.sync(func() { p.dst.stage.Cancel(p.job(1)) })
	p.wait(t)
	p.quiet(t)
}

// TestHostGone: a fetch from a host that says nothing any more, not even that it is gone,
// costs its chunk no longer than patience, while another rank of that group stays.
func TestHostGone(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	port := int32(silent.Addr().(*net.TCPAddr).Port)
	p := newPair(t, 2)
	p.src.sync(func() {
		p.src.lose = func(m staged.Message) bool {
			_, is := m.(staged.Offer)
			if is {
				p.dst.queue <- func() { p.dst.stage.FromPeer(p.src.id, m, drive.Extra{Port: port}) }
			}
			return is
		}
	})
	p.dst.sync(func() { p.dst.hears("prefill/1@3") })
	p.pull(1)
	c, err := silent.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	p.src.leaves(p.dst.id)
	p.dst.leaves(p.src.id)
	p.wait(t)
	p.quiet(t)
}

// TestForgedWants: what a reader says of the bytes is checked before a grant is asked.
func TestForgedWants(t *testing.T) {
	p := newPair(t, 2)
	p.src.sync(func() { p.src.held = func(uint64) bool { t.Error("a grant was asked"); return false } })
	for name, w := range map[string]struct {
		x      drive.Extra
		chunks int32
	}{
		"nothing said":  {drive.Extra{}, 1},
		"another count": {drive.Extra{Spec: p.spec(nil)}, 1},
		"no moves":      {drive.Extra{Spec: &drive.Spec{Tokens: p.tokens}}, 1},
		"backwards":     {drive.Extra{Spec: p.spec(func(s *drive.Spec) { s.Tokens.Lo = 1 << 20 })}, 1},
		"larger chunks": {drive.Extra{Spec: p.spec(func(s *drive.Spec) { s.Chunk = 2 << 20 })}, 1},
		"tiny chunks":   {drive.Extra{Spec: p.spec(func(s *drive.Spec) { s.Chunk = 1 })}, 1},
		"other heads":   {drive.Extra{Spec: p.spec(func(s *drive.Spec) { s.Moves[0].Box.Units.Hi = 99 })}, 1},
	} {
		p.src.sync(func() {
			p.src.stage.FromPeer(p.dst.id, staged.Want{Job: p.job(9), Chunks: w.chunks}, w.x)
			src, _ := p.src.stage.Use()
			if src.Free != 2 {
				t.Errorf("%s: a chunk is taken", name)
			}
		})
	}
}
