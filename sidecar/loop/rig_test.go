package loop

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/batonkv/baton/discovery"
	"github.com/batonkv/baton/discovery/mem"
	"github.com/batonkv/baton/kernels/rows/plain"
	"github.com/batonkv/baton/sidecar/control"
	"github.com/batonkv/baton/sidecar/engine"
	"github.com/batonkv/baton/sidecar/engine/client"
	"github.com/batonkv/baton/sidecar/events"
	"github.com/batonkv/baton/sidecar/handoff"
	"github.com/batonkv/baton/sidecar/internal/certtest"
	"github.com/batonkv/baton/sidecar/machine"
	"github.com/batonkv/baton/sidecar/metrics"
	"github.com/batonkv/baton/sidecar/peer"
	"github.com/batonkv/baton/sidecar/peer/fd"
	"github.com/batonkv/baton/transfer/choice"
	"github.com/batonkv/baton/transfer/direct"
	"github.com/batonkv/baton/transfer/fault"
	"github.com/batonkv/baton/transfer/layout"
	"github.com/batonkv/baton/transfer/transfertest"
)

const (
	layers, items, rows, unitBytes = 2, 16, 16, 16
	units                          = 2
)

var model = layout.Model{States: []layout.State{{Name: "attn.k", Paging: layout.PerBlock, Layers: layers, Units: units, Elems: 8}}}

// rig is a cluster in this process: real doors over loopback and unix sockets, engines
// that are goroutines, copies between memfds.
type rig struct {
	t        *testing.T
	ca       *certtest.CA
	store    *mem.Store
	patience time.Duration // of the machines; 0: the ordinary one
	ends     func(name string) choice.End
	stage    func(name string) Staging // nil: none
	heard    events.Publisher
	sides    map[string]*side // by "group/rank"
}

type side struct {
	*Sidecar
	self    handoff.Member
	dir     string
	backend *fault.Backend
	peers   *peer.Server
	stopped func() error  // stops it and tells what Run said
	over    chan struct{} // closed when Run has ended
	doors   func()
	engine  *rank
	pid     atomic.Int32 // of the mover
}

func newRig(t *testing.T) *rig {
	return &rig{t: t, ca: certtest.New(t), store: mem.New(time.Now, time.Hour), sides: map[string]*side{}, heard: events.Discard{},
		ends: func(string) choice.End { return choice.End{Offers: []choice.Offer{{Name: choice.Shm}}} }}
}

func (r *rig) side(group string, n int32, script fault.Script, wrap func(discovery.Registry) discovery.Registry) *side {
	t := r.t
	name := fmt.Sprintf("%s/%d", group, n)
	s := &side{self: handoff.Member{Group: group, Rank: layout.Rank(n), Incarnation: handoff.Incarnation(Random())},
		dir: t.TempDir()}
	d, err := direct.New(direct.Config{Copier: plain.Copier{}})
	check(t, err)
	s.backend = fault.Wrap(d, script)
	s.pid.Store(1)
	var reg discovery.Registry = r.store.Open(mem.Config{})
	if wrap != nil {
		reg = wrap(reg)
	}
	s.Sidecar = New(Config{Machine: machine.Config{Self: s.self, Mint: Random, Patience: r.patience},
		Record:   discovery.Record{Cluster: "c", Pool: "m", Group: group, Rank: n, Incarnation: uint64(s.self.Incarnation), Role: discovery.Both, Tenant: "t", Host: "h", PID: 1, Started: 1, Transports: []string{"shm"}},
		End:      r.ends(name),
		Identify: func(g string, n int32) string { return fmt.Sprintf("baton://c/t/%s/%d", g, n) },
		Backend:  s.backend, FDSocket: filepath.Join(s.dir, fd.Socket), MoverPID: s.pid.Load, Registry: reg,
		Publisher: r.heard, Metrics: metrics.New("c", "m", group, fmt.Sprint(n)), Log: logger(t)})
	if r.stage != nil {
		check(t, s.Stage(t.Context(), r.stage(name)))
	}
	engines, err := engine.Listen(s.dir, s.Engines(), engine.Options{})
	check(t, err)
	fds, err := fd.Listen(filepath.Join(s.dir, fd.Socket), nil)
	check(t, err)
	server, cl := r.ca.Configs(t, "baton://c/t/"+name)
	s.peers, err = peer.Listen(peer.Config{Self: s.self, Host: "h", End: s.cfg.End, Listen: "127.0.0.1:0", Server: server, Client: cl}, s.Peers())
	check(t, err)
	s.Serve(engines, s.peers, fds)
	ctx, end := context.WithCancel(context.Background())
	ran := make(chan error, 1)
	s.over = make(chan struct{})
	go func() {
		defer close(s.over)
		ran <- s.Run(ctx, 50*time.Millisecond)
	}()
	s.stopped = sync.OnceValue(func() error { end(); return <-ran })
	s.doors = sync.OnceFunc(func() {
		shut, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_ = s.peers.Close(shut)
		_ = engines.Close(shut)
		_ = fds.Close()
	})
	t.Cleanup(func() {
		_ = s.stopped()
		s.doors()
		s.backend.Kill()
		_ = s.backend.Close(context.Background())
		if err := s.Wait(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		_ = reg.Close()
	})
	r.sides[name] = s
	return s
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// rank is one engine rank.
type rank struct {
	*client.Client
	mem     []byte
	tp      int32
	rank    int32
	told    chan handoff.ToEngine // what rank 0 polled
	mute    atomic.Bool           // answers no action
	refuses map[handoff.Action]error
}

// group attaches an engine of tp ranks and runs it until the test ends. The group is
// ready when its leader says so.
func (r *rig) group(group string, tp int32) {
	t := r.t
	var ranks []*rank
	inst := handoff.Instance(Random())
	for n := range tp {
		s := r.sides[fmt.Sprintf("%s/%d", group, n)]
		r.attach(s, attachOf(group, inst, n, tp))
		ranks = append(ranks, s.engine)
	}
	stop, ended := make(chan struct{}), make(chan struct{})
	t.Cleanup(func() { close(stop); <-ended })
	go func() {
		defer close(ended)
		for {
			select {
			case <-ranks[0].Wake():
			case <-stop:
				return
			}
			for _, m := range ranks[0].Poll(nil) {
				ranks[0].told <- m
				if th, ok := m.(handoff.Through); ok {
					for _, e := range ranks {
						e.apply(th.N)
					}
				}
			}
		}
	}()
	r.notice(group, 0, control.Ready, "")
}

// attach attaches an engine rank until the test ends.
func (r *rig) attach(s *side, at handoff.Attach) {
	t, size := r.t, at.Buffers[0].Len
	file := transfertest.File(t, size, unix.F_SEAL_SHRINK)
	m, err := unix.Mmap(file, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	check(t, err)
	c, err := client.Dial(t.Context(), client.Config{Dir: s.dir, Files: []int{file}, Attach: at})
	check(t, err)
	s.engine = &rank{Client: c, mem: m, tp: at.Ranks, rank: int32(at.Rank), told: make(chan handoff.ToEngine, 64)}
	t.Cleanup(func() { c.Close(); unix.Close(file); check(t, unix.Munmap(m)) })
}

// attachOf is what rank n of tp states.
func attachOf(group string, inst handoff.Instance, n, tp int32) handoff.Attach {
	u := int32(units) / tp
	row := int64(u) * unitBytes
	sh := layout.Shard{Rank: layout.Rank(n), Box: layout.Box{Layers: layout.Span{Hi: layers}, Units: layout.Span{Lo: n * u, Hi: (n + 1) * u}},
		Rows: rows, Items: items, DType: layout.BF16, View: layout.View{Layer: items * rows * row, Item: rows * row, Row: row, Unit: unitBytes, Elem: 2}}
	return handoff.Attach{Group: group, Instance: inst, Rank: layout.Rank(n), Ranks: tp, Model: handoff.ModelIdentity{Name: "m", Layout: model},
		Shards: []layout.Shard{sh}, Buffers: []handoff.BufferDecl{{Len: int64(layers*items*rows) * row}},
		Capacity: handoff.Capacity{Blocks: items, BlockTokens: rows}, Scheduler: handoff.SchedulerRank, OnDown: handoff.OnDownFail}
}

func (e *rank) apply(through uint64) {
	for _, d := range e.Decisions(through) {
		if d.Kind == handoff.Reserve {
			r := handoff.Reserved{N: d.N, Slot: -1, Digest: sha256.Sum256(nil)}
			for b := range (d.Tokens + rows - 1) / rows {
				r.Blocks = append(r.Blocks, 9-b)
			}
			_ = e.Send(r)
		}
		if d.Kind == handoff.Lifecycle && !e.mute.Load() {
			_ = e.Send(handoff.LifecycleAck{N: d.N, Err: e.refuses[d.Action]})
		}
	}
	_ = e.Send(handoff.Applied{N: through})
}

// at is the bytes of one unit of a token in a layer.
func (e *rank) at(layer, block, row, unit int32) []byte {
	u := units / e.tp
	o := (((layer*items+block)*rows+row)*u + unit - e.rank*u) * unitBytes
	return e.mem[o : o+unitBytes]
}

// export fills a prompt of a group and returns its manifest.
func (r *rig) export(group, label string, tokens int32) handoff.Manifest {
	for n := int32(0); r.sides[fmt.Sprintf("%s/%d", group, n)] != nil; n++ {
		e := r.sides[fmt.Sprintf("%s/%d", group, n)].engine
		x := handoff.Export{Label: label, Tokens: tokens, Position: tokens, Slot: -1}
		for b := range (tokens + rows - 1) / rows {
			x.Blocks = append(x.Blocks, 2*b)
		}
		for i := range tokens {
			for l := range int32(layers) {
				for u := e.rank * units / e.tp; u < (e.rank+1)*units/e.tp; u++ {
					copy(e.at(l, 2*(i/rows), i%rows, u), pattern(label, l, i, u))
				}
			}
		}
		if n == 0 {
			x.Resume.Tokens = []int32{7}
		}
		check(r.t, e.Send(x))
	}
	return *r.notice(group, 0, control.Exported, label).Manifest
}

func pattern(label string, l, i, u int32) []byte {
	h := sha256.Sum256(fmt.Append(nil, label, l, i, u))
	return h[:unitBytes]
}

// same says whether the decode side holds what was exported.
func (r *rig) same(group, label string, tokens int32) bool {
	for n := int32(0); r.sides[fmt.Sprintf("%s/%d", group, n)] != nil; n++ {
		e := r.sides[fmt.Sprintf("%s/%d", group, n)].engine
		for i := range tokens {
			for l := range int32(layers) {
				for u := e.rank * units / e.tp; u < (e.rank+1)*units/e.tp; u++ {
					if !bytes.Equal(e.at(l, 9-i/rows, i%rows, u), pattern(label, l, i, u)) {
						return false
					}
				}
			}
		}
	}
	return true
}

// notice waits for the first notice of a kind from number from on.
func (r *rig) notice(group string, from uint64, kind control.Kind, label string) control.Notice {
	for n, err := range r.sides[group+"/0"].Service().Watch(r.t.Context(), control.Cursor{Seq: from}) {
		check(r.t, err)
		if n.Kind == kind && (label == "" || n.Label == label) {
			return n
		}
	}
	r.t.Fatalf("no %v of %q", kind, label)
	return control.Notice{}
}

func (r *rig) importNow(ctx context.Context, group string, man handoff.Manifest) (handoff.Imported, error) {
	return r.sides[group+"/0"].Service().Import(ctx, handoff.Import{Manifest: man, Tokens: slices.Repeat([]int32{1}, int(man.Tokens))})
}

func logger(t *testing.T) *slog.Logger {
	if testing.Verbose() {
		return slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	return slog.New(slog.DiscardHandler)
}
