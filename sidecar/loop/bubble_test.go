package loop

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/batonkv/baton/discovery"
	"github.com/batonkv/baton/discovery/mem"
	"github.com/batonkv/baton/sidecar/events"
	"github.com/batonkv/baton/sidecar/handoff"
	"github.com/batonkv/baton/sidecar/machine"
	"github.com/batonkv/baton/sidecar/metrics"
	"github.com/batonkv/baton/transfer"
	"github.com/batonkv/baton/transfer/choice"
)

// bubble is a cluster whose time is its own: the loops are real, their doors, sessions,
// copies and engines are goroutines of the bubble, so that time passes exactly when all of
// them wait. What happens is noted with its instant.
type bubble struct {
	t     *testing.T
	began time.Time
	store *mem.Store
	sides map[string]*inside // by address

	mu    sync.Mutex // guards:
	notes []string
}

// inBubble runs f with the clock at 0, and ends what it started.
func inBubble(t *testing.T, f func(*bubble)) {
	synctest.Test(t, func(t *testing.T) {
		b := &bubble{t: t, began: time.Now(), store: mem.New(time.Now, time.Hour), sides: map[string]*inside{}}
		f(b)
		for _, n := range b.sides {
			n.close()
		}
	})
}

func (b *bubble) note(who, format string, args ...any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.notes = append(b.notes, fmt.Sprintf("%v %s ", time.Since(b.began), who)+fmt.Sprintf(format, args...))
}

// noted are the notes that hold a word, in order, without it. Those of one goroutine are in
// its order; of two at one instant either may come first.
func (b *bubble) noted(word string) (out []string) {
	synctest.Wait()
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, l := range b.notes {
		if before, after, ok := strings.Cut(l, word); ok {
			out = append(out, before+after)
		}
	}
	return out
}

func (b *bubble) want(word string, want ...string) {
	b.t.Helper()
	if got := b.noted(word); !slices.Equal(got, want) {
		b.t.Errorf("of %q noted\n  %s\nwant\n  %s\nall\n  %s", word, strings.Join(got, "\n  "), strings.Join(want, "\n  "), strings.Join(b.notes, "\n  "))
	}
}

// inside is a sidecar with its doors.
type inside struct {
	*Sidecar
	b     *bubble
	name  string
	reg   discovery.Registry
	end   context.CancelFunc
	over  chan struct{} // closed when Run has ended,
	ended error         // with this
	last  *engineEnd    // its engine's newest session

	mu     sync.Mutex // guards:
	open   []*peerEnd
	copies []*copied
	stay   bool          // copies stay open until they are ended
	unmaps chan struct{} // nil: memory is let go at once; else when it closes
}

// side starts a sidecar, whose registry may be wrapped.
func (b *bubble) side(group string, wrap func(*inside, discovery.Registry) discovery.Registry) *inside {
	n := &inside{b: b, name: group + "/0", over: make(chan struct{})}
	self := handoff.Member{Group: group, Incarnation: handoff.Incarnation(len(b.sides) + 1)}
	n.reg = b.store.Open(mem.Config{})
	if wrap != nil {
		n.reg = wrap(n, n.reg)
	}
	n.Sidecar = New(Config{Machine: machine.Config{Self: self, Mint: Random}, Backend: copier{n}, FDSocket: "fd.sock",
		Record: discovery.Record{Cluster: "c", Pool: "m", Group: group, Incarnation: uint64(self.Incarnation), Role: discovery.Both, Tenant: "t", Host: "h",
			PID: 1, Started: 1, Addr: fmt.Sprintf("%s:%d", group, self.Incarnation), Transports: []string{"shm"}},
		End:       choice.End{Offers: []choice.Offer{{Name: choice.Shm}}},
		KillMover: func() { b.note(n.name, "kills its mover") }, MoverPID: func() int32 { return 1 }, Registry: n.reg,
		Identify:  func(g string, r int32) string { return fmt.Sprintf("%s/%d", g, r) },
		Publisher: events.Discard{}, Metrics: metrics.New("c", "m", group, "0"), Log: slog.New(warnings{n})})
	n.fetch = func(context.Context, handoff.Buffers) (map[transfer.RegionID]transfer.Memory, error) { return nil, nil }
	n.Serve(doors{n}, doors{n}, doors{n})
	b.sides[n.cfg.Record.Addr] = n
	var ctx context.Context
	ctx, n.end = context.WithCancel(context.Background())
	go func() {
		n.ended = n.Run(ctx, 3*time.Second)
		b.note(n.name, "ran to its end: %v", n.ended)
		close(n.over)
	}()
	return n
}

// close ends the sidecar and everything around it.
func (n *inside) close() {
	n.end()
	<-n.over
	synctest.Wait()
	n.settle(transfer.ErrMover)
	if n.last != nil {
		n.last.Close(nil)
	}
	for _, ps := range n.open {
		ps.Close(nil)
	}
	if err := n.Wait(); err != nil {
		n.b.t.Errorf("%s: %v", n.name, err)
	}
	_ = n.reg.Close()
}

// doors are the three servers of a sidecar.
type doors struct{ n *inside }

func (doors) ExpectFDs(uint64, []handoff.BufferDecl) {}
func (doors) RefusedFDs() uint64                     { return 0 }
func (doors) Counts() map[string]uint64              { return map[string]uint64{} }
func (doors) Offer(uint64, []int, string) error      { return nil }
func (d doors) Addr() string                         { return d.n.cfg.Record.Addr }
func (d doors) Revoke(owner string) int {
	d.n.b.note(d.n.name, "revokes what %s may fetch", owner)
	return 0
}
func (d doors) TakeFDs(uint64) map[uint32][]int     { return map[uint32][]int{0: {memory(d.n.b.t)}} }
func (d doors) Dial(addr string, to handoff.Member) { d.n.dial(addr, to) }

func memory(t *testing.T) int {
	f, err := unix.MemfdCreate("engine", unix.MFD_CLOEXEC)
	check(t, err)
	return f
}

// dial joins two sidecars; who is not there does not answer.
func (n *inside) dial(addr string, to handoff.Member) {
	n.b.note(n.name, "dials %s", to.Group)
	o := n.b.sides[addr]
	if o == nil {
		go n.peerDown(&peerEnd{n: n, peer: to, dialed: true}, fmt.Errorf("%w: nobody is there", handoff.ErrPeer))
		return
	}
	n.join(o)
}

// join makes a session that n dialled.
func (n *inside) join(o *inside) (*peerEnd, *peerEnd) {
	a := &peerEnd{n: n, peer: o.cfg.Machine.Self, dialed: true, words: make(chan func(), 1024)}
	z := &peerEnd{n: o, peer: n.cfg.Machine.Self, words: make(chan func(), 1024)}
	a.other, z.other, a.once = z, a, new(sync.Once)
	z.once = a.once
	for _, e := range []*peerEnd{a, z} {
		e.n.mu.Lock()
		e.n.open = append(e.n.open, e)
		e.n.mu.Unlock()
		go func() {
			e.n.peerUp(e)
			for f := range e.words {
				f()
			}
		}()
	}
	return a, z
}

// peerEnd is one side's end of a session.
type peerEnd struct {
	n      *inside
	peer   handoff.Member
	dialed bool
	other  *peerEnd
	once   *sync.Once
	words  chan func() // what arrives here; closed after the session's end

	mu   sync.Mutex // guards:
	over bool
}

func (e *peerEnd) Peer() handoff.Member { return e.peer }
func (e *peerEnd) Identity() string     { return fmt.Sprintf("%s/%d", e.peer.Group, e.peer.Rank) }
func (e *peerEnd) Dialed() bool         { return e.dialed }
func (e *peerEnd) End() choice.End      { return e.other.n.own() }

func (e *peerEnd) put(f func(), last bool) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.over {
		return false
	}
	e.words <- f // has room
	if last {
		e.over = true
		close(e.words)
	}
	return true
}

func (e *peerEnd) Send(m handoff.PeerMessage) error {
	o := e.other
	if !o.put(func() { o.n.fromPeer(o, m) }, false) {
		return handoff.ErrPeer
	}
	return nil
}

func (e *peerEnd) Close(err error) {
	e.once.Do(func() {
		e.n.b.note(e.n.name, "ends a session with %s", e.peer.Group)
		for _, x := range []*peerEnd{e, e.other} {
			x.put(func() { x.n.peerDown(x, err) }, true)
		}
	})
}

// warnings notes what is logged as a warning or worse.
type warnings struct{ n *inside }

func (w warnings) Enabled(_ context.Context, l slog.Level) bool { return l >= slog.LevelWarn }
func (w warnings) WithAttrs([]slog.Attr) slog.Handler           { return w }
func (w warnings) WithGroup(string) slog.Handler                { return w }
func (w warnings) Handle(_ context.Context, r slog.Record) error {
	w.n.b.note(w.n.name, "warns: %s", r.Message)
	return nil
}
