package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health/grpc_health_v1"

	"github.com/batonkv/baton/cmd/dev"
	"github.com/batonkv/baton/discovery"
	"github.com/batonkv/baton/sidecar/handoff"
)

// joinClose adds what a close says to err.
func joinClose(ctx context.Context, err error, close func(context.Context) error) error {
	return errors.Join(err, close(context.WithoutCancel(ctx)))
}

// controlCost measures what a hand-off of one block costs beside the copy: two
// sidecars as processes over loopback, engines that answer at once, and an empty gRPC
// call to one of the sidecars in turn.
func controlCost(ctx context.Context, o Options) (out []Result, err error) {
	c, engines, down, err := pairOfLoads(ctx, o)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, down()) }()
	conn, err := grpc.NewClient("passthrough:///"+c.Groups[1].Ranks[0].Sidecar.Addr, grpc.WithTransportCredentials(credentials.NewTLS(c.ClientTLS("d", 0))))
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	m := measured{c: c, src: engines["p"], dst: engines["d"], empty: grpc_health_v1.NewHealthClient(conn)}
	for range 50 { // connections, caches, schedulers
		if err := m.pair(ctx); err != nil {
			return nil, err
		}
	}
	m.whole, m.calls = nil, nil
	for range 20 * o.Rounds {
		if err := m.pair(ctx); err != nil {
			return nil, err
		}
	}
	return m.results(), nil
}

// pairOfLoads is a cluster of the groups p and d, TP1 each, with engines of this process.
func pairOfLoads(ctx context.Context, o Options) (*dev.Cluster, map[string]*loadEngine, func() error, error) {
	engines := map[string]*loadEngine{}
	c, err := dev.Up(ctx, dev.Options{Binary: o.Binary, LogLevel: "error",
		Groups: []dev.Group{{Name: "p", Role: discovery.Prefill, TP: 1}, {Name: "d", Role: discovery.Decode, TP: 1}},
		Engine: func(ctx context.Context, g *dev.Running, rank int32, dir string) error {
			e, err := attachLoad(ctx, g, rank, dir)
			engines[g.Name] = e
			return err
		}})
	if err != nil {
		return nil, nil, nil, err
	}
	return c, engines, func() (err error) {
		for _, e := range engines {
			err = errors.Join(err, e.close())
		}
		return errors.Join(err, c.Close())
	}, nil
}

// measured is the rig of controlCost with its samples, in microseconds.
type measured struct {
	c            *dev.Cluster
	src, dst     *loadEngine
	empty        grpc_health_v1.HealthClient
	n            int
	whole, calls []float64
}

// pair is one empty call and one hand-off, from Export to the answer of Import.
func (m *measured) pair(ctx context.Context) error {
	began := time.Now()
	if _, err := m.empty.Check(ctx, &grpc_health_v1.HealthCheckRequest{}); err != nil {
		return fmt.Errorf("empty call: %w", err)
	}
	m.calls = append(m.calls, float64(time.Since(began).Nanoseconds())/1e3)
	m.n++
	label := fmt.Sprintf("b%d", m.n)
	began = time.Now()
	man, err := m.src.export(ctx, label)
	if err != nil {
		return err
	}
	_, err = m.c.Groups[1].Leader.Import(ctx, handoff.Import{Label: label, Manifest: man, Tokens: loadPrompt, Deadline: time.Minute})
	if err != nil {
		return err
	}
	m.whole = append(m.whole, float64(time.Since(began).Nanoseconds())/1e3)
	return nil
}

func (m *measured) results() []Result {
	ratio := Result{Name: "control/one-block", Unit: "x of an empty gRPC call", BaseUnit: "us",
		What: "p50 of Export to admitted, one block, TP1 to TP1", Baseline: m.calls}
	call := median(m.calls)
	for _, us := range m.whole {
		ratio.Samples = append(ratio.Samples, us/call)
	}
	us := Result{Name: "control/one-block-time", Unit: "us", What: "the same, in time", Samples: m.whole}
	return []Result{atMost(ratio, 12), atMost(us, 1000)}
}
