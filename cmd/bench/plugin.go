package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/batonkv/baton/cmd/dev"
	"github.com/batonkv/baton/discovery"
	"github.com/batonkv/baton/discovery/etcd"
	"github.com/batonkv/baton/plugins"
	"github.com/batonkv/baton/plugins/host"
	"github.com/batonkv/baton/sidecar/handoff"
)

// importer is what brings a hand-off in: the plugin, or the sidecar itself.
type importer func(ctx context.Context, m handoff.Import) (handoff.Imported, error)

// pluginCost measures what a plugin adds: to an import, to news of discovery, and its own
// start. Sidecars, plugin and etcd are processes of one cluster over loopback.
func pluginCost(ctx context.Context, o Options) (out []Result, err error) {
	p, err := pairOfLoads(ctx, dev.Options{Binary: o.Binary}, 1, oneBlock)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, p.close()) }()
	c := p.c
	start, err := pluginStarts(ctx, o, c)
	if err != nil {
		return nil, err
	}
	h, err := openPlugin(ctx, o, c)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, h.Close()) }()
	through := func(ctx context.Context, m handoff.Import) (handoff.Imported, error) {
		return h.Handoff().Import(ctx, "d", m)
	}
	var via, direct []float64
	for n := range 50 + 20*o.Rounds {
		a, err := oneImport(ctx, p.src[0], fmt.Sprintf("v%d", n), through)
		if err != nil {
			return nil, fmt.Errorf("through the plugin: %w", err)
		}
		b, err := oneImport(ctx, p.src[0], fmt.Sprintf("w%d", n), c.Groups[1].Leader.Import)
		if err != nil {
			return nil, fmt.Errorf("to the sidecar: %w", err)
		}
		if n >= 50 { // connections, caches, schedulers
			via, direct = append(via, a), append(direct, b)
		}
	}
	ratio := Result{Name: "plugin/import", What: "p50 of Import through the plugin, one block", Unit: "x of Import to the sidecar", Baseline: direct, BaseUnit: "us"}
	added := Result{Name: "plugin/import-added", What: "the same less the median of Import to the sidecar", Unit: "us"}
	for _, us := range via {
		ratio.Samples, added.Samples = append(ratio.Samples, us/Median(direct)), append(added.Samples, us-Median(direct))
	}
	watched, err := watchMany(ctx, o, c, h.Cluster())
	return append([]Result{AtMost(ratio, 2), AtMost(added, 300), AtMost(start, 100)}, watched...), err
}

func openPlugin(ctx context.Context, o Options, c *dev.Cluster) (*host.Host, error) {
	return host.Open(ctx, host.Config{Command: []string{o.Binary, "plugin", "--config", c.Control()}, Stderr: os.Stderr})
}

// oneImport is how long bring takes for a fresh hand-off of one block, in microseconds.
func oneImport(ctx context.Context, src *loadEngine, label string, bring importer) (float64, error) {
	man, err := src.export(ctx, label)
	if err != nil {
		return 0, err
	}
	began := time.Now()
	_, err = bring(ctx, src.wants(label, man))
	return float64(time.Since(began).Nanoseconds()) / 1e3, err
}

// pluginStarts is the time from a plugin's start to its first answer about the cluster.
func pluginStarts(ctx context.Context, o Options, c *dev.Cluster) (Result, error) {
	r := Result{Name: "plugin/start", What: "start of the plugin's process to its handshake, and a first call answered", Unit: "ms"}
	var shook []float64
	for range o.Rounds {
		began := time.Now()
		h, err := openPlugin(ctx, o, c)
		if err != nil {
			return r, err
		}
		shook = append(shook, float64(time.Since(began).Microseconds())/1e3)
		_, err = h.Cluster().Groups(ctx)
		r.Samples = append(r.Samples, float64(time.Since(began).Microseconds())/1e3)
		if err = errors.Join(err, h.Close()); err != nil {
			return r, err
		}
	}
	r.Note = fmt.Sprintf("to the handshake alone %s ms", figure(Median(shook)))
	return r, nil
}

// manyGroups are registered beside the two that are there.
const manyGroups = 1000

// watchMany measures how a change among a thousand groups reaches a watcher through the
// plugin, against one of etcd itself, at the same time.
func watchMany(ctx context.Context, o Options, c *dev.Cluster, watched plugins.Cluster) ([]Result, error) {
	cfg := etcd.Default()
	cfg.Endpoints = []string{c.Etcd}
	reg, err := etcd.Open(ctx, cfg)
	if err != nil {
		return nil, err
	}
	defer reg.Close() // what it cannot take back goes with this run's etcd
	rec := discovery.Record{Cluster: "dev", Pool: "many", Ranks: 1, Instance: 1, Role: discovery.Decode, Tenant: "default", Host: "bench",
		PID: int32(os.Getpid()), Started: 1, Addr: "127.0.0.1:1", Geometry: "00", Transports: []string{"shm"}, CapacityBlocks: 1}
	var last discovery.Registration
	for n := range manyGroups {
		rec.Group, rec.Incarnation = fmt.Sprintf("many-%04d", n), uint64(n+1)
		if last, err = reg.Register(ctx, rec); err != nil {
			return nil, err
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	began := time.Now()
	groups, records := make(chan seen, 1), make(chan seen, 1)
	go tellGroups(ctx, watched, rec.Group, groups)
	first, err := until(ctx, groups, 1)
	if err != nil {
		return nil, err
	}
	change := Result{Name: "plugin/watch-change", Unit: "ms", BaseUnit: "ms", Met: true,
		What: fmt.Sprintf("a change among %d groups, to a watcher through the plugin", manyGroups),
		Note: fmt.Sprintf("the first view of all took %s ms", figure(first.Sub(began).Seconds()*1e3))}
	go tellRecords(ctx, reg, rec.Group, records)
	for n := range o.Rounds {
		rec.CapacityBlocks = 1 << (1 + n%20)
		began := time.Now()
		if err := last.Update(ctx, rec); err != nil {
			return nil, err
		}
		for ch, samples := range map[chan seen]*[]float64{records: &change.Baseline, groups: &change.Samples} {
			at, err := until(ctx, ch, rec.CapacityBlocks)
			if err != nil {
				return nil, err
			}
			*samples = append(*samples, at.Sub(began).Seconds()*1e3)
		}
	}
	change.Value = Median(change.Samples)
	change.Note += fmt.Sprintf("; the change to a watcher of etcd %s ms", figure(Median(change.Baseline)))
	return []Result{change}, nil
}

// tellGroups tells the capacity of group in each view that a plugin gives, until ctx ends.
func tellGroups(ctx context.Context, c plugins.Cluster, group string, to chan seen) {
	for gs := range c.Watch(ctx) { // an error ends it, and until with ctx
		if i := slices.IndexFunc(gs, func(g plugins.Group) bool { return g.Name == group }); i >= 0 {
			tell(ctx, to, gs[i].CapacityBlocks)
		}
	}
}

// tellRecords does so of what etcd has.
func tellRecords(ctx context.Context, r discovery.Registry, group string, to chan seen) {
	for s := range r.Watch(ctx, discovery.Scope{Cluster: "dev"}) {
		if i := slices.IndexFunc(s.Records, func(r discovery.Record) bool { return r.Group == group }); i >= 0 {
			tell(ctx, to, s.Records[i].CapacityBlocks)
		}
	}
}

// seen is a capacity that a watcher was shown, and when.
type seen struct {
	blocks int32
	at     time.Time
}

// tell passes on what was seen, in place of what nobody took.
func tell(ctx context.Context, to chan seen, blocks int32) {
	v := seen{blocks, time.Now()}
	for {
		select {
		case to <- v:
			return
		case <-ctx.Done():
			return
		default:
		}
		select {
		case <-to:
		default:
		}
	}
}

// until waits for blocks, and returns when they were seen.
func until(ctx context.Context, from <-chan seen, blocks int32) (time.Time, error) {
	for {
		select {
		case got := <-from:
			if got.blocks == blocks {
				return got.at, nil
			}
		case <-ctx.Done():
			return time.Time{}, ctx.Err()
		}
	}
}
