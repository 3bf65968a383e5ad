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
)

// joinClose adds what a close says to err.
func joinClose(ctx context.Context, err error, close func(context.Context) error) error {
	return errors.Join(err, close(context.WithoutCancel(ctx)))
}

// controlCost measures what a hand-off of one block costs beside the copy: two
// sidecars as processes over loopback, engines that answer at once, and an empty gRPC
// call to one of the sidecars in turn.
func controlCost(ctx context.Context, o Options) (out []Result, err error) {
	p, err := pairOfLoads(ctx, dev.Options{Binary: o.Binary}, 1, oneBlock)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, p.close()) }()
	conn, err := grpc.NewClient("passthrough:///"+p.c.Groups[1].Ranks[0].Sidecar.Addr, grpc.WithTransportCredentials(credentials.NewTLS(p.c.ClientTLS("d", 0))))
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	m := measured{loads: p, empty: grpc_health_v1.NewHealthClient(conn)}
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

// measured is the rig of controlCost with its samples, in microseconds.
type measured struct {
	*loads
	empty        grpc_health_v1.HealthClient
	whole, calls []float64
}

// pair is one empty call and one hand-off, from Export to the answer of Import.
func (m *measured) pair(ctx context.Context) error {
	began := time.Now()
	if _, err := m.empty.Check(ctx, &grpc_health_v1.HealthCheckRequest{}); err != nil {
		return fmt.Errorf("empty call: %w", err)
	}
	m.calls = append(m.calls, float64(time.Since(began).Nanoseconds())/1e3)
	whole, err := m.handOff(ctx)
	if err != nil {
		return err
	}
	m.whole = append(m.whole, float64(whole.Nanoseconds())/1e3)
	return nil
}

func (m *measured) results() []Result {
	ratio := Result{Name: "control/one-block", Unit: "x of an empty gRPC call", BaseUnit: "us",
		What: "p50 of Export to admitted, one block, TP1 to TP1", Baseline: m.calls}
	call := Median(m.calls)
	for _, us := range m.whole {
		ratio.Samples = append(ratio.Samples, us/call)
	}
	us := Result{Name: "control/one-block-time", Unit: "us", What: "the same, in time", Samples: m.whole}
	return []Result{AtMost(ratio, 12), AtMost(us, 1000)}
}
