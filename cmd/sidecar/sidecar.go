// Package sidecar is what `baton sidecar` and its wire movers run: it names the implementations
// of everything that package loop drives, opens them in order and closes them in reverse.
package sidecar

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"

	"github.com/batonkv/baton/cmd/config"
	"github.com/batonkv/baton/cmd/dev"
	"github.com/batonkv/baton/discovery"
	"github.com/batonkv/baton/discovery/etcd"
	"github.com/batonkv/baton/lifeline"
	"github.com/batonkv/baton/sidecar/certs"
	"github.com/batonkv/baton/sidecar/control"
	"github.com/batonkv/baton/sidecar/engine"
	"github.com/batonkv/baton/sidecar/events"
	"github.com/batonkv/baton/sidecar/events/nats"
	"github.com/batonkv/baton/sidecar/handoff"
	"github.com/batonkv/baton/sidecar/loop"
	"github.com/batonkv/baton/sidecar/machine"
	"github.com/batonkv/baton/sidecar/metrics"
	"github.com/batonkv/baton/sidecar/peer"
	"github.com/batonkv/baton/sidecar/peer/fd"
	"github.com/batonkv/baton/transfer/choice"
	"github.com/batonkv/baton/transfer/layout"
	"github.com/batonkv/baton/transfer/mover"
	"github.com/batonkv/baton/transfer/staged/nixl"
	"github.com/batonkv/baton/transfer/sums"
)

// Check says what a start would refuse of a configuration whose keys are well, beside the
// certificate: adapters, and paths of NIXL.
func Check(ctx context.Context, c *config.Sidecar) error {
	return errors.Join(checkAdapters(ctx, c), checkNIXL(ctx, &c.Staging))
}

// Certificate is this sidecar's own, which names it.
func Certificate(c *config.Sidecar) (*certs.Identified, error) {
	own, err := c.TLS.Load(time.Now())
	if err != nil {
		return nil, fmt.Errorf("%w: %w", config.ErrConfig, err)
	}
	if want := certs.SidecarID(c.Cluster, c.Tenant, c.Group, c.Rank); own.Identity != want {
		return nil, fmt.Errorf("%w: tls.cert is of %s, this sidecar is %s: its peers would refuse it: make one with baton certs leaf",
			certs.ErrIdentity, own.Identity, want)
	}
	return own, nil
}

// copyGrace is how long a stopping sidecar waits for copies before it ends its mover.
const copyGrace = 3 * time.Second

// parts are what a sidecar is made of, in the order they are opened.
type parts struct {
	cfg      config.Sidecar
	log      *slog.Logger
	self     handoff.Member
	id       *certs.Identified
	registry *etcd.Registry
	pub      events.Publisher
	metrics  *metrics.Metrics
	served   *metrics.Server
	mover    *mover.Mover
	side     *loop.Sidecar
	engines  *engine.Server
	fds      *fd.Server
	peers    *peer.Server
	nixl     nixl.Options                 // with its library, where that is found
	end      choice.End                   // as peers hear it
	running  atomic.Pointer[loop.Sidecar] // what the mover's callbacks reach
	closers  []func() error               // run in reverse
	closing  atomic.Bool
}

// Run runs until ctx ends or the parent does.
func Run(ctx context.Context, c config.Sidecar, own *certs.Identified, log *slog.Logger) (err error) {
	ctx, cancel := lifeline.Context(ctx)
	defer cancel()
	p := &parts{cfg: c, log: log, id: own, self: handoff.Member{Group: c.Group, Rank: layout.Rank(c.Rank), Incarnation: handoff.Incarnation(loop.Random())}}
	defer func() { err = errors.Join(err, p.close()) }()
	if err := p.takeOver(ctx); err != nil {
		return err
	}
	if err := p.outside(ctx); err != nil {
		return err
	}
	if err := p.inside(ctx); err != nil {
		return err
	}
	if err := lifeline.Ready(p.ready()); err != nil {
		return err
	}
	log.Info("sidecar is up", "addr", p.peers.Addr(), "run-dir", c.RunDir, "mover", p.mover.PID())
	return p.side.Run(ctx, copyGrace)
}

func (p *parts) onClose(f func() error) { p.closers = append(p.closers, f) }

func (p *parts) close() error {
	p.closing.Store(true)
	var err error
	for i := len(p.closers) - 1; i >= 0; i-- {
		err = errors.Join(err, p.closers[i]())
	}
	return err
}

// outside opens what other processes are: discovery, events, metrics.
func (p *parts) outside(ctx context.Context) (err error) {
	c := p.cfg
	c.Etcd.Log, c.NATS.Log = p.log, p.log
	c.Etcd.Alive = func(pid int32, started uint64) bool { return lifeline.Alive(int(pid), started) }
	if p.registry, err = etcd.Open(ctx, c.Etcd); err != nil {
		return err
	}
	p.onClose(p.registry.Close)
	p.pub = events.Discard{}
	if len(c.NATS.URLs) > 0 {
		if p.pub, err = nats.Open(c.NATS); err != nil {
			return err
		}
	}
	p.onClose(func() error { return shortly(p.pub.Close) })
	p.metrics = metrics.New(c.Cluster, c.Pool, c.Group, strconv.Itoa(int(c.Rank)))
	p.metrics.EventsDropped(p.pub.Dropped)
	return nil
}

// shortly bounds a close.
func shortly(f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	return f(ctx)
}

// inside starts the mover, the loop and its doors.
func (p *parts) inside(ctx context.Context) error {
	c := p.cfg
	exe, err := os.Executable()
	if err != nil {
		return fmt.Errorf("which program to start as mover: %w", err)
	}
	missing := p.findNIXL(ctx, exe)
	if missing != nil && c.Staging.Transport == config.NIXL {
		return fmt.Errorf("staging.transport is %s: %w", config.NIXL, missing)
	}
	if missing != nil {
		level := slog.LevelInfo
		if c.Staging.NIXL.Named() {
			level = slog.LevelWarn
		}
		p.log.Log(ctx, level, "staging goes without NIXL", "err", missing)
	}
	p.end = end(c.Staging, cmp.Or(c.Advertise, c.Listen), missing)
	verify, err := sums.ParseMode(c.Verify)
	if err != nil {
		return fmt.Errorf("%w: verify: %w", config.ErrConfig, err)
	}
	rec, err := p.record()
	if err != nil {
		return err
	}
	p.mover, err = mover.Start(mover.Config{Command: []string{exe, "mover"}, Stderr: os.Stderr,
		Started: func(pid int) error { return lifeline.Mark(filepath.Join(c.RunDir, markFile), pid) },
		Restored: func(pid int) {
			if s := p.running.Load(); s != nil {
				p.log.Warn("mover restarted", "pid", pid)
				s.MoverRestarted(int32(pid))
			}
		},
		Exited: p.moverEnded})
	if err != nil {
		return err
	}
	p.side = loop.New(loop.Config{Machine: machine.Config{Self: p.self, Role: c.Role, Mint: loop.Random, Lease: c.Lease, MaxHold: c.MaxHold,
		Deadline: c.Deadline, MaxImports: int(c.Limits.Imports), MaxSources: int(c.Limits.Exports), Verify: verify},
		Record: rec, Pools: []string{c.Pool}, End: p.end, Backend: p.mover, FDSocket: filepath.Join(c.RunDir, fd.Socket),
		Identify: func(group string, rank int32) string {
			return certs.SidecarID(c.Cluster, c.Tenant, group, rank).URI().String()
		},
		KillMover: p.mover.Kill, MoverPID: func() int32 { return int32(p.mover.PID()) }, Registry: p.registry, Publisher: p.pub, Metrics: p.metrics, Log: p.log})
	p.running.Store(p.side)
	p.onClose(func() error { // the mover's exit ends copies that did not end by themselves
		err := shortly(p.mover.Close)
		if err != nil {
			p.mover.Kill()
			err = p.mover.Close(context.Background())
		}
		return errors.Join(err, p.side.Wait())
	})
	if err := p.stage(ctx, exe); err != nil {
		return err
	}
	return p.doors(ctx)
}

// moverEnded tells of a mover that nobody told to end; pid 0 is one that did not start.
func (p *parts) moverEnded(pid int, err error) {
	switch {
	case p.closing.Load():
	case pid == 0:
		p.log.Warn("mover did not start; it is tried again", "pid", pid, "err", err)
	default:
		p.log.Warn("mover ended; its copies fail and it is started again", "pid", pid, "err", err)
	}
}

// doors opens the engine's sockets, the peers' port and the metrics.
func (p *parts) doors(ctx context.Context) (err error) {
	c := p.cfg
	if p.engines, err = engine.Listen(c.RunDir, p.side.Engines(), engine.Options{Queue: int(c.Limits.Queue), Log: p.log}); err != nil {
		return err
	}
	p.onClose(func() error { return shortly(p.engines.Close) })
	if p.fds, err = fd.Listen(filepath.Join(c.RunDir, fd.Socket), p.log); err != nil {
		return err
	}
	p.onClose(p.fds.Close)
	host, _ := hostID(c)
	audit := startAudit(p.log, func(e events.Event) {
		e.Cluster, e.Pool, e.Group, e.Rank, e.Incarnation = c.Cluster, c.Pool, c.Group, c.Rank, uint64(p.self.Incarnation)
		p.pub.Publish(e)
	})
	p.onClose(audit.close)
	probes := health.NewServer() // of the port
	p.peers, err = peer.Listen(peer.Config{Self: p.self, Host: host, End: p.end, Listen: c.Listen, Server: p.id.Server(p.known), Client: p.id.Client(p.known),
		Limits: peer.Limits{Queue: int(c.Limits.Queue), Sessions: int(c.Limits.Peers)}, Log: p.log},
		p.side.Peers(), func(s *grpc.Server) {
			control.Register(s, p.side.Service(), nil, control.WithAudit(audit.hear))
			grpc_health_v1.RegisterHealthServer(s, probes)
		})
	if err != nil {
		return err
	}
	p.onClose(func() error { return shortly(p.peers.Close) })
	p.side.Serve(p.engines, p.peers, p.fds)
	p.speak(ctx)
	probing, enough := context.WithCancel(ctx)
	var prober sync.WaitGroup
	prober.Go(func() { p.probe(probing, probes) })
	p.onClose(func() error { enough(); prober.Wait(); return nil })
	if c.Metrics == "" {
		return nil
	}
	serving, stop := context.WithCancel(ctx)
	if p.served, err = p.metrics.Serve(serving, c.Metrics, p.side.Healthy); err != nil {
		stop()
		return err
	}
	p.onClose(func() error { stop(); return p.served.Wait() })
	return nil
}

// probe keeps what gRPC probes hear within a second of what the sidecar says of itself.
func (p *parts) probe(ctx context.Context, to *health.Server) {
	t := time.NewTicker(time.Second)
	defer t.Stop()
	for ctx.Err() == nil {
		st := grpc_health_v1.HealthCheckResponse_SERVING
		if p.side.Healthy() != nil {
			st = grpc_health_v1.HealthCheckResponse_NOT_SERVING
		}
		to.SetServingStatus("", st)
		select {
		case <-t.C:
		case <-ctx.Done():
		}
	}
}

// known takes the certificates of this cluster's sidecars, and of control planes.
func (p *parts) known(id certs.Identity) error {
	if id.Kind == certs.Sidecar && id.Cluster != p.cfg.Cluster {
		return fmt.Errorf("%w: %s is of another cluster than %s", certs.ErrIdentity, id, p.cfg.Cluster)
	}
	return nil
}

// record is what discovery says of this sidecar; the loop adds the port when it is bound.
func (p *parts) record() (discovery.Record, error) {
	c := p.cfg
	host, err := hostID(c)
	if err != nil {
		return discovery.Record{}, err
	}
	started, err := lifeline.StartTime(os.Getpid())
	if err != nil {
		return discovery.Record{}, err
	}
	space, err := lifeline.PIDSpace()
	if err != nil {
		return discovery.Record{}, err
	}
	return discovery.Record{Cluster: c.Cluster, Pool: c.Pool, Group: c.Group, Rank: c.Rank, Incarnation: uint64(p.self.Incarnation),
		Role: c.Role, Tenant: c.Tenant, Host: host, PID: int32(os.Getpid()), Started: started, PIDSpace: space, Addr: c.Advertise, Transports: names(p.end)}, nil
}

// hostID is equal for processes of one running kernel, whatever their containers say
// of their name: memory can be mapped between those alone. The configuration may say less.
func hostID(c config.Sidecar) (string, error) {
	if c.Host != "" {
		return c.Host, nil
	}
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("host id: %w", err)
	}
	return strings.TrimSpace(string(b)), nil
}

// ready is the line on descriptor 3.
func (p *parts) ready() dev.SidecarReady {
	r := dev.SidecarReady{Addr: p.peers.Addr(), Engine: p.cfg.RunDir, PID: os.Getpid(), MoverPID: p.mover.PID()}
	if p.served != nil {
		r.Metrics = p.served.Addr()
	}
	return r
}
