package dev

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/batonkv/baton/cmd/dev/servers"
	"github.com/batonkv/baton/lifeline"
	"github.com/batonkv/baton/sidecar/certs"
	"github.com/batonkv/baton/sidecar/control/client"
)

// Options is what to bring up.
type Options struct {
	Groups      []Group
	Model       string // a name of the reference engine
	ModelDir    string // of saved weights, instead of Model; "": none
	Seed        uint64
	BlockTokens int32 // tokens of a block; 0: 16
	Blocks      int32 // of each engine
	Slots       int32
	Imports     int32  // that may wait or run at once in a group; 0: the sidecar's own bound
	Parts       bool   // chunks of a block leave the prefill engines as they are computed
	Corrupt     string // what engines damage, those that Damage names; "": nothing
	Verify      string // the sidecars' own word: off, sample or all; "": off
	Backend     string // one of Backends
	Binary      string // baton itself
	Stderr      io.Writer
	LogLevel    string
	LogFormat   string // text or json; "": text
	Progress    func(what string)
	TTL         time.Duration // of a sidecar's registration; 0: its default
	Lease       time.Duration // of a hand-off; 0: the sidecar's default
	Adapters    Adapters      // of the groups; nil: none
	// Restart starts a sidecar again that ends by itself; else that is told on Died.
	Restart bool
	// Place is where a group's processes run; nil, and a nil Place: here.
	Place func(g Group) Place
	// Listen is the address of etcd and NATS, that every Place reaches; "": the loopback.
	Listen string
	// Engine attaches a rank's engine to its sidecar in dir; nil starts a reference
	// engine as a process. Its owner ends it before Close.
	Engine func(ctx context.Context, g *Running, rank int32, dir string) error
	// NoEngines starts none: whoever has engines attaches them to the ranks' directories,
	// and Up does not wait for them.
	NoEngines bool
}

// DefaultBlocks and DefaultSlots are each engine's capacity.
const (
	DefaultBlocks int32 = 256
	DefaultSlots  int32 = 16
)

// Defaults fills what is zero.
func (o Options) Defaults(ctx context.Context) (Options, error) {
	o.Model = cmp.Or(o.Model, "hybrid")
	if o.Blocks == 0 {
		o.Blocks = DefaultBlocks
	}
	if o.Slots == 0 {
		o.Slots = DefaultSlots
	}
	if o.BlockTokens == 0 {
		o.BlockTokens = 16
	}
	if o.Seed == 0 {
		o.Seed = 1
	}
	if o.Backend == "" {
		o.Backend = Backends[0]
	}
	if err := CheckBackend(ctx, o.Backend); err != nil {
		return o, err
	}
	if o.LogLevel == "" {
		o.LogLevel = "warn"
	}
	if o.LogFormat == "" {
		o.LogFormat = "text"
	}
	if o.Stderr == nil {
		o.Stderr = os.Stderr
	}
	if o.Progress == nil {
		o.Progress = func(string) {}
	}
	if o.Binary == "" {
		exe, err := os.Executable()
		if err != nil {
			return o, fmt.Errorf("which program to start as children: %w", err)
		}
		o.Binary = exe
	}
	return o, nil
}

// SidecarReady is the line that `baton sidecar` prints on descriptor 3.
type SidecarReady struct {
	Addr     string `json:"addr"`
	Metrics  string `json:"metrics"`
	Engine   string `json:"engine"` // directory of the engine sockets
	PID      int    `json:"pid"`
	MoverPID int    `json:"mover_pid"`
}

// Rank is one running rank: its sidecar and its engine.
type Rank struct {
	Sidecar SidecarReady
	Engine  EngineReady
	sidecar *lifeline.Child
	engine  *lifeline.Child
}

// EngineReady is the line that `baton engine` prints on descriptor 3.
type EngineReady struct {
	PID     int    `json:"pid"`
	Front   string `json:"front"`    // rank 0 alone
	KVBytes int64  `json:"kv_bytes"` // of this rank's shard of the paged cache
	State   int64  `json:"state_bytes"`
}

// Running is one group that is up.
type Running struct {
	Group
	Instance uint64 // of this launch of the engine
	Ranks    []*Rank
	Leader   *client.Client // control service of rank 0's sidecar, as control/dev
}

// Front is the unix socket of rank 0's engine.
func (r *Running) Front() string { return r.Ranks[0].Engine.Front }

// Cluster is what Up brought up. Close it.
type Cluster struct {
	Dir     string
	Etcd    string
	NATS    string
	Groups  []*Running
	opt     Options
	own     *certs.Identified // this process as a control plane
	Servers *servers.Servers  // the cluster's own
	died    chan error        // the first child that ended by itself
	wg      sync.WaitGroup    // who waits for children
	mu      sync.Mutex        // guards, beside what ranks have of their sidecars:
	started []*lifeline.Child // in order
	closing bool
}

// Names that every group of a dev cluster shares.
const cluster, pool, tenant = "dev", "dev", "default"

// Up starts everything and returns when each group's leader reports its roster. On
// an error all that was started is stopped.
func Up(ctx context.Context, opt Options) (c *Cluster, err error) {
	if opt, err = opt.Defaults(ctx); err != nil {
		return nil, err
	}
	dir, err := runDir(longest(opt.Groups))
	if err != nil {
		return nil, err
	}
	c = &Cluster{Dir: dir, opt: opt, died: make(chan error, 1)}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.Close())
			c = nil
		}
	}()
	opt.Progress("starting etcd and NATS")
	if c.Servers, err = servers.Start(ctx, opt.Listen, filepath.Join(dir, "srv")); err != nil {
		return c, err
	}
	c.Etcd, c.NATS = c.Servers.Etcd.Endpoint(), c.Servers.NATS.URL()
	if c.own, err = c.certificates(); err != nil {
		return c, err
	}
	if err = c.groups(ctx); err != nil {
		return c, err
	}
	if !opt.NoEngines {
		opt.Progress("waiting for the groups to be complete")
		if err = c.rosters(ctx); err != nil {
			return c, err
		}
	}
	return c, c.writeControl()
}

// certificates makes a CA and a leaf for every rank, and one for this control plane.
func (c *Cluster) certificates() (*certs.Identified, error) {
	now := time.Now()
	ca, err := certs.NewCA("baton dev", now)
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(c.Dir, "certs")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	if err := ca.Write(dir); err != nil {
		return nil, err
	}
	leaf := func(id certs.Identity) (*certs.Pair, error) {
		return ca.Leaf(certs.LeafConfig{Identity: id, IPs: []net.IP{net.IPv4(127, 0, 0, 1)}, At: now})
	}
	for _, g := range c.opt.Groups {
		for r := range g.Size() {
			pair, err := leaf(certs.SidecarID(cluster, tenant, g.Name, r))
			if err != nil {
				return nil, err
			}
			cert, key := c.certFiles(g, r)
			if err := pair.Write(cert, key); err != nil {
				return nil, err
			}
		}
	}
	own, err := leaf(certs.Identity{Kind: certs.Control, Name: "dev"})
	if err != nil {
		return nil, err
	}
	if err := own.Write(filepath.Join(dir, "control.pem"), filepath.Join(dir, "control-key.pem")); err != nil {
		return nil, err
	}
	return own.Identified(ca.Cert, now)
}

func (c *Cluster) certFiles(g Group, rank int32) (cert, key string) {
	base := filepath.Join(c.Dir, "certs", fmt.Sprintf("%s-%d", g.Name, rank))
	return base + ".pem", base + "-key.pem"
}

// groups starts sidecars, then engines, all groups side by side.
func (c *Cluster) groups(ctx context.Context) error {
	for _, g := range c.opt.Groups {
		r := &Running{Group: g, Instance: rand.Uint64() | 1}
		for rank := range g.Size() {
			k := &Rank{}
			var err error
			if k.sidecar, err = c.startSidecar(g, rank); err != nil {
				return err
			}
			r.Ranks = append(r.Ranks, k)
		}
		c.Groups = append(c.Groups, r)
	}
	c.opt.Progress("starting sidecars and movers")
	if err := c.eachRank(func(g *Running, n int, k *Rank) error {
		if err := k.sidecar.AwaitReady(ctx, &k.Sidecar); err != nil {
			return fmt.Errorf("sidecar %s/%d: %w", g.Name, n, err)
		}
		c.here(g.Group, &k.Sidecar.PID, &k.Sidecar.MoverPID)
		child := k.sidecar
		c.wg.Go(func() { c.attend(g, int32(n), child) })
		switch {
		case c.opt.NoEngines:
			return nil
		case c.opt.Engine != nil:
			return c.opt.Engine(ctx, g, int32(n), k.Sidecar.Engine)
		}
		var err error
		if k.engine, err = c.startEngine(g, int32(n), k.Sidecar.Engine); err != nil {
			return err
		}
		c.wg.Go(func() { // ends with the engine, which Close waits for
			<-k.engine.Exited()
			if err := k.engine.Err(); err != nil { // else it was told to stop
				c.tell(fmt.Errorf("engine %s/%d ended by itself: %w", g.Name, n, err))
			}
		})
		return nil
	}); err != nil {
		return err
	}
	if c.opt.NoEngines || c.opt.Engine != nil {
		return nil
	}
	c.opt.Progress("starting engines")
	return c.eachRank(func(g *Running, n int, k *Rank) error {
		if err := k.engine.AwaitReady(ctx, &k.Engine); err != nil {
			return fmt.Errorf("engine %s/%d: %w", g.Name, n, err)
		}
		c.here(g.Group, &k.Engine.PID)
		return nil
	})
}

func (c *Cluster) eachRank(f func(g *Running, n int, k *Rank) error) error {
	for _, g := range c.Groups {
		for n, k := range g.Ranks {
			if err := f(g, n, k); err != nil {
				return err
			}
		}
	}
	return nil
}

func (c *Cluster) rankDir(g Group, rank int32) string {
	return filepath.Join(c.Dir, rankName(g, rank))
}

func rankName(g Group, rank int32) string { return g.Name + "." + strconv.Itoa(int(rank)) }

// longest is the longest rankName of the groups.
func longest(groups []Group) (name string) {
	for _, g := range groups {
		if n := rankName(g, g.Size()-1); len(n) > len(name) {
			name = n
		}
	}
	return name
}

func (c *Cluster) start(g Group, args ...string) (*lifeline.Child, error) {
	cmd := exec.Command(c.opt.Binary, args...)
	cmd.Stderr = c.opt.Stderr
	start := lifeline.Start
	if p := c.place(g); p != nil {
		start = p.Start
	}
	child, err := start(cmd)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.started = append(c.started, child)
	if c.closing { // Close has passed already
		child.Kill()
	}
	return child, nil
}

// ClientTLS is how this process, as a control plane, calls a rank's sidecar.
func (c *Cluster) ClientTLS(group string, rank int32) *tls.Config {
	return c.own.Client(certs.Expect(certs.SidecarID(cluster, tenant, group, rank)))
}

// Died carries the first child that ended without being asked.
func (c *Cluster) Died() <-chan error { return c.died }

// Close stops engines (rank 0 first, which tells the others), then sidecars (each stops
// its mover), then the servers, and removes the run directory.
func (c *Cluster) Close() error {
	for _, g := range c.Groups {
		if g.Leader != nil {
			g.Leader.Close()
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	var leaders, engines, sidecars []*lifeline.Child
	c.mu.Lock()
	c.closing = true
	started := c.started
	for _, g := range c.Groups {
		for n, k := range g.Ranks {
			if n == 0 {
				leaders = append(leaders, k.engine)
			}
			engines, sidecars = append(engines, k.engine), append(sidecars, k.sidecar)
		}
	}
	c.mu.Unlock()
	stopAll(ctx, leaders)
	stopAll(ctx, engines)
	stopAll(ctx, sidecars)
	stopAll(ctx, started) // what never got a rank
	c.wg.Wait()
	if c.Servers != nil {
		c.Servers.Stop()
	}
	return os.RemoveAll(c.Dir)
}
