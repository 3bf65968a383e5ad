package bench

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strconv"
)

// loadRate is how `baton load` says its requests in a second.
var loadRate = regexp.MustCompile(`\((\d+)/s\)`)

// loaded measures `baton load` over TCP and TLS beside shared memory: small requests, many at
// once, of every kind, the same in both.
func loaded(ctx context.Context, o Options) ([]Result, error) {
	r := Result{Name: "load/tcp", Unit: "x of requests/s over shared memory", BaseUnit: "requests/s"}
	var rates []float64
	for seed := range max(3, o.Rounds/3) {
		shm, err := loadOnce(ctx, o, seed+1, "shm")
		if err != nil {
			return nil, err
		}
		tcp, err := loadOnce(ctx, o, seed+1, "tcp")
		if err != nil {
			return nil, err
		}
		r.Samples, r.Baseline, rates = append(r.Samples, tcp/shm), append(r.Baseline, shm), append(rates, tcp)
	}
	r.Value, r.Met = Median(r.Samples), true
	r.What = fmt.Sprintf("baton load --requests %d: hand-offs of a few KiB, all kinds", loadRequests)
	r.Note = fmt.Sprintf("%.0f requests/s, shared memory %.0f", Median(rates), Median(r.Baseline))
	return []Result{r}, ctx.Err()
}

const loadRequests = 500

// loadOnce is the requests in a second of one run.
func loadOnce(ctx context.Context, o Options, seed int, backend string) (float64, error) {
	cmd := exec.CommandContext(ctx, o.Binary, "load", "--requests", strconv.Itoa(loadRequests), "--seed", strconv.Itoa(seed), "--disagg-kv-transport-backend", backend)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) } // it stops its children
	out, err := cmd.CombinedOutput()
	if err != nil {
		return 0, fmt.Errorf("baton load over %s: %w: %s", backend, err, out)
	}
	m := loadRate.FindSubmatch(out)
	if m == nil {
		return 0, fmt.Errorf("baton load over %s says no rate: %s", backend, out)
	}
	return strconv.ParseFloat(string(m[1]), 64)
}
