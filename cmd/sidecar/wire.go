package sidecar

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"time"

	"github.com/batonkv/baton/cmd/config"
	"github.com/batonkv/baton/lifeline"
	"github.com/batonkv/baton/sidecar/baseline"
	"github.com/batonkv/baton/sidecar/certs"
	"github.com/batonkv/baton/sidecar/loop"
	"github.com/batonkv/baton/transfer"
	"github.com/batonkv/baton/transfer/choice"
	"github.com/batonkv/baton/transfer/mover"
	"github.com/batonkv/baton/transfer/staged"
	"github.com/batonkv/baton/transfer/staged/drive"
	"github.com/batonkv/baton/transfer/staged/nixl"
	"github.com/batonkv/baton/transfer/staged/tcp"
)

// What the local mover packs in a second, what one connection brings with TLS, and what a
// chunk costs beside its bytes: packs, fetches and messages of both ends. From
// `baton bench --row staging` on two cores.
const (
	packRate   = 4e9
	streamRate = 1.4e9
	perChunk   = 300 * time.Microsecond
)

// wireOptions are what a wire mover of this program needs beside its Setup.
type wireOptions struct {
	Cluster, Tenant string
	TLS             certs.Files
	Connections     int32
	Plain           bool // TCP without TLS
	NIXL            nixl.Options
}

// stage gives the sidecar its staging, if the configuration has one.
func (p *parts) stage(ctx context.Context, exe string) error {
	c := p.cfg
	if c.Staging.Transport == config.NoStaging {
		return nil
	}
	start, err := p.wireMover(exe)
	if err != nil {
		return err
	}
	costs := staged.Costs{Arena: int64(c.Staging.Arena) << 20, Peers: c.Staging.Peers, Local: packRate, Wire: float64(c.Staging.Rate) * 1e6,
		Stream: streamRate, Latency: c.Staging.RTT, PerChunk: perChunk}
	chunk := int64(c.Staging.Chunk) << 10
	if chunk == 0 {
		chunk = costs.Chunk()
	}
	depth := c.Staging.Depth
	if depth == 0 {
		depth = costs.Depth(chunk)
	}
	return p.side.Stage(ctx, loop.Staging{Chunks: int32(costs.Arena / chunk), Chunk: chunk, Depth: depth, Baseline: p.baseline, Period: probePeriod,
		Start: func(ctx context.Context, r drive.Route, id staged.Incarnation, arena transfer.Memory) (drive.Mover, error) {
			w := start
			w.Stderr = &said{log: p.log.With("peer-group", r.Group, "transport", r.Transport)}
			w.Started = func(pid int) error { return lifeline.Mark(wireMark(p.cfg.RunDir, r), pid) }
			w.Arena, w.Setup.Transport, w.Setup.Wire, w.Setup.Group, w.Setup.Bytes, w.Setup.Chunk = arena, r.Transport, id, r.Group, arena.Len, chunk
			return mover.StartWire(ctx, w)
		}})
}

// wireMover is what all wire movers of this sidecar have alike.
func (p *parts) wireMover(exe string) (mover.WireConfig, error) {
	c := p.cfg
	host, _, err := net.SplitHostPort(c.Listen)
	if err != nil {
		return mover.WireConfig{}, err
	}
	options, err := json.Marshal(wireOptions{c.Cluster, c.Tenant, c.TLS, c.Staging.Connections, c.Staging.Transport == config.TCPPlain, p.nixl})
	if err != nil {
		return mover.WireConfig{}, err
	}
	return mover.WireConfig{Command: []string{exe, "mover", WireArg}, StartTimeout: starting,
		Setup: mover.Setup{Listen: net.JoinHostPort(host, "0"), Options: options}}, nil
}

// probePeriod is the pause between two probes of links that stand, one link each.
const probePeriod = time.Minute

// baseline measures what this host does by itself; what cannot be measured is 0.
func (p *parts) baseline(ctx context.Context) choice.Baseline {
	anybody := func(certs.Identity) error { return nil } // of this cluster's CA
	b := choice.Baseline{Copy: baseline.Copy(), RTT: p.cfg.Staging.RTT}
	var err error
	if b.TLS, err = baseline.TCP(ctx, p.id.Server(anybody), p.id.Client(anybody)); err != nil {
		p.log.Debug("no baseline of TLS", "err", err)
	}
	if b.TCP, err = baseline.TCP(ctx, nil, nil); err != nil {
		p.log.Debug("no baseline of TCP", "err", err)
	}
	return b
}

// WireArg makes `baton mover` a wire mover.
const WireArg = "wire"

// OpenWire makes the wire of a wire mover: only sidecars of the peer group are let in, and
// asked, unless the configuration says plain.
func OpenWire(s mover.Setup, arena []byte) (staged.Wire, error) {
	var o wireOptions
	if err := json.Unmarshal(s.Options, &o); err != nil {
		return nil, fmt.Errorf("options: %w", err)
	}
	c := tcp.Config{Wire: s.Wire, Arena: arena, Chunk: s.Chunk, Listen: s.Listen, Conns: int(o.Connections)}
	if o.Plain {
		return tcp.New(c)
	}
	own, err := o.TLS.Load(time.Now())
	if err != nil {
		return nil, err
	}
	verify := func(id certs.Identity) error {
		if want := certs.SidecarID(o.Cluster, o.Tenant, s.Group, id.Rank); id != want {
			return fmt.Errorf("%w: %s is no sidecar of group %s", certs.ErrIdentity, id, s.Group)
		}
		return nil
	}
	server, client := own.Server(verify), own.Client(verify)
	switch s.Transport {
	case config.TCP:
		c.Server, c.Client = server, client
		return tcp.New(c)
	case config.NIXL:
		return nixl.New(nixl.Config{Wire: s.Wire, Arena: arena, Chunk: s.Chunk, Listen: s.Listen, Server: server, Client: client, Options: o.NIXL})
	}
	return nil, fmt.Errorf("transport %q: this release has %s and %s", s.Transport, config.TCP, config.NIXL)
}
