package drive_test

import (
	"bytes"
	"cmp"
	"context"
	"log/slog"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/batonkv/baton/kernels/rows/plain"
	"github.com/batonkv/baton/transfer"
	"github.com/batonkv/baton/transfer/layout"
	"github.com/batonkv/baton/transfer/layout/parallel"
	"github.com/batonkv/baton/transfer/lower"
	"github.com/batonkv/baton/transfer/reshard"
	"github.com/batonkv/baton/transfer/staged"
	"github.com/batonkv/baton/transfer/staged/drive"
	"github.com/batonkv/baton/transfer/staged/pack"
	"github.com/batonkv/baton/transfer/transfertest"
)

// model is small, and has every kind of state; its hand-offs fill some ten chunks.
var model = parallel.Desc{
	Attention: &parallel.Attention{Layers: 12, Heads: 4, Dim: 64},
	Mamba:     &parallel.Mamba{Layers: 2, Heads: 8, HeadDim: 64, StateDim: 128, Groups: 2, Window: 4},
}

// shape is a model, an engine's cache, and the tokens of a request that move.
type shape struct {
	parallel.Desc
	blocks, blockTokens int32
	tokens              layout.Span
}

var small = shape{model, 64, 16, layout.Span{Lo: 32, Hi: 900}}

func (s shape) memory() parallel.Memory {
	return parallel.Memory{Blocks: s.blocks, BlockTokens: s.blockTokens, KV: layout.BF16, Slots: 4, Conv: layout.BF16, SSM: layout.F32}
}

// node is a sidecar's part in staging: its loop, its engine's memory, its stage.
type node struct {
	t     testing.TB
	id    transfer.PeerID
	peers map[transfer.PeerID]*node
	stage *drive.Stage
	mem   parallel.RankMemory
	bufs  []transfertest.Buffer

	queue  chan func()
	over   chan struct{}
	held   func(grant uint64) bool         // says yes to a grant; nil: always
	from   pack.Own                        // what a grant lets be packed
	open   map[uint64]bool                 // grants
	routes map[transfer.PeerID]drive.Route // of peers that have a session
	done   chan result
	pid    chan drive.Mover
	lose   func(staged.Message) bool // on the way to the peer; nil: none
	stands chan struct{}             // no fetch begins before it is closed; nil: each does
	fetch  fetcher                   // nil: that of the wire
	// library is NIXL's; "": TCP.
	library string
	mute    bool          // wire movers do not answer offers
	fails   bool          // the start of a wire mover
	failing chan struct{} // closed when one is about to
	broken  error         // what the start of a wire mover says; nil: it goes well
	opening atomic.Pointer[opening]
}

type result struct {
	job   staged.Job
	bytes int64
	err   error
}

// answer is Config.Answer of nodes to come.
var answer = time.Minute

func newNode(t testing.TB, s shape, id transfer.PeerID, cut parallel.Cut, rank layout.Rank, chunks int32, chunk int64) *node {
	t.Helper()
	return newNodeAt(t, s, id, cut, rank, chunks, chunk, onHost)
}

func newNodeAt(t testing.TB, s shape, id transfer.PeerID, cut parallel.Cut, rank layout.Rank, chunks int32, chunk int64, at func(testing.TB) home) *node {
	t.Helper()
	h := at(t)
	n := &node{t: t, id: id, queue: make(chan func(), 4096), over: make(chan struct{}), open: map[uint64]bool{}, routes: map[transfer.PeerID]drive.Route{}, peers: map[transfer.PeerID]*node{},
		done: make(chan result, 64), pid: make(chan drive.Mover, 64), failing: make(chan struct{})}
	var err error
	if n.mem, err = s.Rank(cut, s.memory(), rank); err != nil {
		t.Fatal(err)
	}
	local := h.local(t)
	for i, size := range n.mem.Buffers {
		b := h.alloc(t, size)
		n.bufs = append(n.bufs, b)
		if _, err := local.Register(t.Context(), transfer.RegionID(i), b.Memory()); err != nil {
			t.Fatal(err)
		}
	}
	n.stage, err = drive.New(t.Context(), drive.Config{Chunks: chunks, Chunk: chunk, Local: opens{local, n}, Region: 100, Mint: mint, Owner: n, Log: slog.New(slog.DiscardHandler),
		Route: func(p transfer.PeerID) drive.Route { return n.routes[p] }, Host: func(transfer.PeerID) string { return "127.0.0.1" }, Patience: 250 * time.Millisecond, Answer: answer,
		Start: func(ctx context.Context, r drive.Route, id staged.Incarnation, arena transfer.Memory) (drive.Mover, error) {
			return n.start(ctx, r, id, arena, cmp.Or(chunk, drive.ChunkBytes))
		},
		Post: func(f func()) bool {
			select {
			case <-n.over:
				return false
			case n.queue <- f:
				return true
			}
		}})
	if err != nil {
		t.Fatal(err)
	}
	go n.run()
	n.sync(func() { n.stage.Engine(s.Model(), n.mem.Shards, n.regions) })
	t.Cleanup(func() {
		n.sync(func() {
			if err := n.stage.Close(context.Background()); err != nil {
				t.Errorf("%s: close: %v", id, err)
			}
			close(n.over)
		})
		local.Kill()
		_ = local.Close(context.Background())
	})
	return n
}

// run is the node's goroutine.
func (n *node) run() {
	for {
		select {
		case f := <-n.queue:
			f()
		case <-n.over:
			return
		}
	}
}

func (n *node) regions() (map[transfer.RegionID]transfer.Memory, error) {
	out := map[transfer.RegionID]transfer.Memory{}
	for i, b := range n.bufs {
		out[transfer.RegionID(i)] = b.Memory()
	}
	return out, nil
}

// meets and leaves begin and end the session to a peer, whose route is known as long.
func (n *node) meets(p *node) {
	n.sync(func() {
		n.peers[p.id] = p
		n.hears(p.id)
	})
}

// hears has the session of a peer stand that says nothing.
func (n *node) hears(p transfer.PeerID) {
	n.routes[p] = drive.Route{Group: "other", Transport: "tcp"}
	n.stage.PeerUp(p)
}

func (n *node) leaves(p transfer.PeerID) {
	n.sync(func() {
		n.stage.PeerDown(p)
		delete(n.routes, p)
	})
}

// sync runs f on the node's goroutine and waits.
func (n *node) sync(f func()) {
	end := make(chan struct{})
	n.queue <- func() { f(); close(end) }
	<-end
}

// Send implements drive.Owner: the session to another node.
func (n *node) Send(p transfer.PeerID, m staged.Message, x drive.Extra) {
	if n.lose != nil && n.lose(m) {
		return
	}
	to := n.peers[p]
	if to == nil {
		return
	}
	select {
	case to.queue <- func() { to.stage.FromPeer(n.id, m, x) }:
	case <-to.over:
	}
}

// AskPlace implements drive.Owner.
func (n *node) AskPlace(p transfer.PeerID, k uint64, bytes int64) {
	to := n.peers[p]
	to.queue <- func() { to.stage.AskedPlace(n.id, k, bytes) }
}

// TellPlace implements drive.Owner.
func (n *node) TellPlace(p transfer.PeerID, k uint64, at drive.Place, why error) {
	to := n.peers[p]
	to.queue <- func() { to.stage.Place(n.id, k, at, why) }
}

// Wire implements drive.Owner.
func (n *node) Wire(drive.Route, error) {}

// AskGrant implements drive.Owner.
func (n *node) AskGrant(grant uint64, _ transfer.PeerID, _ staged.Job, _ staged.Pin) {
	n.queue <- func() {
		if n.held != nil && !n.held(grant) {
			n.stage.Refused(grant)
			return
		}
		n.open[grant] = true
		n.stage.Granted(grant, n.from.Blocks, n.from.Slot, func(tokens, _ layout.Span) bool { return tokens.Hi <= n.from.Tokens.Hi })
	}
}

// EndGrant implements drive.Owner.
func (n *node) EndGrant(grant uint64) {
	if !n.open[grant] {
		n.t.Errorf("grant %d ends and is not open", grant)
	}
	delete(n.open, grant)
}

// Done implements drive.Owner.
func (n *node) Done(j staged.Job, bytes int64, err error) { n.done <- result{j, bytes, err} }

// Refused implements drive.Owner.
func (n *node) Refused(p transfer.PeerID, m staged.Message, why staged.Refusal) {
	n.t.Logf("%s refuses %T of %s: %d", n.id, m, p, why)
}

// pair is a source rank and a destination rank of two groups, and the plan between them.
type pair struct {
	shape
	src, dst *node
	plan     *reshard.Plan
	chunk    int64    // of the source, as it says
	want     [][]byte // what the destination's memory holds afterwards
	before   [][]byte
}

func newPair(t testing.TB, chunks int32) *pair { return newPairOf(t, small, chunks, 0, 0) }

// newPairOf has chunks of these sizes; 0: one that says nothing.
func newPairOf(t testing.TB, s shape, chunks int32, from, to int64) *pair {
	t.Helper()
	return newPairAt(t, s, chunks, from, to, onHost, onHost)
}

func newPairAt(t testing.TB, s shape, chunks int32, from, to int64, source, dest func(testing.TB) home) *pair {
	t.Helper()
	src := newNodeAt(t, s, "prefill/0@1", parallel.Cut{TP: 1}, 0, chunks, from, source)
	dst := newNodeAt(t, s, "decode/1@2", parallel.Cut{TP: 2}, 1, chunks, to, dest)
	p := &pair{chunk: from, src: src, dst: dst, shape: s}
	noise := rand.NewChaCha8([32]byte{1})
	for _, b := range src.bufs {
		_, _ = noise.Read(b.Bytes) // it never fails
	}
	all, err := s.Shards(parallel.Cut{TP: 2}, s.memory())
	if err != nil {
		t.Fatal(err)
	}
	if p.plan, err = reshard.New(s.Model(), src.mem.Shards, all); err != nil {
		t.Fatal(err)
	}
	src.from = p.own(7, 1)
	p.expect(t)
	src.meets(dst)
	dst.meets(src)
	return p
}

func (p *pair) own(step, slot int32) pack.Own {
	blocks := make([]int32, (p.tokens.Hi+p.blockTokens-1)/p.blockTokens)
	for i := range blocks {
		blocks[i] = (int32(i)*step + 3) % p.blocks
	}
	return pack.Own{Tokens: p.tokens, Blocks: blocks, Slot: slot}
}

// expect copies directly into a second memory.
func (p *pair) expect(t testing.TB) {
	tm, err := lower.New(p.plan, p.index())
	if err != nil {
		t.Fatal(err)
	}
	var to transfer.Buffers
	for _, b := range p.dst.bufs {
		canary := bytes.Repeat([]byte{0xC5}, len(b.Bytes))
		copy(b.Bytes, canary)
		p.before = append(p.before, canary)
		c := transfertest.Local(t, int64(len(b.Bytes)))
		copy(c.Bytes, b.Bytes)
		p.want = append(p.want, c.Bytes)
		m := c.Memory()
		to = append(to, transfer.Mapped{Addr: m.Addr, Len: m.Len})
	}
	var from transfer.Buffers
	for _, b := range p.src.bufs {
		from = append(from, transfer.Mapped{Addr: uint64(uintptr(unsafe.Pointer(&b.Bytes[0]))), Len: int64(len(b.Bytes))})
	}
	a, b := p.own(7, 1), p.own(11, 2)
	ns, err := tm.Nests(nil, lower.Job{Pair: p.index(), Tokens: p.tokens, SrcBlocks: a.Blocks, DstBlocks: b.Blocks, SrcSlot: 1, DstSlot: 2})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := (plain.Copier{}).Copy(t.Context(), ns, from, to); err != nil {
		t.Fatal(err)
	}
}

func (p *pair) index() uint32 {
	i, _ := p.plan.PairOf(0, 1)
	return i
}

func (p *pair) job(n uint64) staged.Job {
	return staged.Job{Handoff: [16]byte{1}, Attempt: n, Pair: p.index()}
}

// pull starts a job.
func (p *pair) pull(n uint64) {
	p.dst.sync(func() {
		p.dst.stage.Pull(p.src.id, p.job(n), staged.Pin{ID: 5, Generation: 1}, pack.Of(p.plan, p.index()), p.own(11, 2), p.chunk)
	})
}

func (p *pair) wait(t testing.TB) result {
	t.Helper()
	select {
	case r := <-p.dst.done:
		return r
	case <-t.Context().Done():
		t.Fatal("no end of the pull")
		return result{}
	}
}

// landed compares the destination's memory.
func (p *pair) landed(t testing.TB) {
	t.Helper()
	for i, b := range p.dst.bufs {
		if !bytes.Equal(b.Bytes, p.want[i]) {
			t.Errorf("buffer %d: bytes differ from a direct copy's", i)
		}
	}
}

// wipe gives the destination's memory its first bytes.
func (p *pair) wipe() {
	for i, b := range p.dst.bufs {
		copy(b.Bytes, p.before[i])
	}
}

// quiet waits until both arenas are whole and no grant is open.
func (p *pair) quiet(t testing.TB) {
	t.Helper()
	for _, n := range []*node{p.src, p.dst} {
		for free := false; !free; {
			n.sync(func() {
				src, dst := n.stage.Use()
				free = src == staged.Use{Free: src.Free} && dst == staged.Use{Free: dst.Free} && len(n.open) == 0
			})
			if !free && t.Context().Err() != nil {
				t.Fatal("chunks or grants are held for ever")
			}
		}
	}
}

// spec is what the reader of the pair wants, changed.
func (p *pair) spec(f func(*drive.Spec)) *drive.Spec {
	s := &drive.Spec{Tokens: p.tokens, Moves: pack.Of(p.plan, p.index())}
	if f != nil {
		f(s)
	}
	return s
}
