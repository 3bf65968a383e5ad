package etcd

import (
	"fmt"
	"slices"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/batonkv/baton/discovery"
)

// BenchmarkChange measures how long a change takes to reach a watcher among 10,000
// sidecars: from the call of Update to the snapshot that holds it.
func BenchmarkChange(b *testing.B) {
	const others = 10_000
	g, err := Open(b.Context(), config(shared))
	if err != nil {
		b.Fatal(err)
	}
	defer g.Close()
	cluster := fmt.Sprintf("bench-%d", b.N)
	fill(b, g, cluster, others)
	r := record(cluster, others)
	r.Group = "mover"
	reg, err := g.Register(b.Context(), r)
	if err != nil {
		b.Fatal(err)
	}
	var begin time.Time
	var took []time.Duration
	b.ResetTimer()
	for s, err := range g.Watch(b.Context(), discovery.Scope{Cluster: cluster}) {
		if err != nil {
			b.Fatal(err)
		}
		at, found := slices.BinarySearchFunc(s.Records, r, discovery.Compare)
		if !found || len(s.Records) != others+1 || s.Records[at].Instance != r.Instance {
			continue
		}
		if !begin.IsZero() {
			took = append(took, time.Since(begin))
		}
		if len(took) == b.N {
			break
		}
		r.Instance++
		begin = time.Now()
		if err := reg.Update(b.Context(), r); err != nil {
			b.Fatal(err)
		}
	}
	b.StopTimer()
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-µs")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-µs")
}

// fill writes n records, a hundred in a transaction.
func fill(b *testing.B, g *Registry, cluster string, n int32) {
	b.Helper()
	for lo := int32(0); lo < n; lo += 100 {
		var puts []clientv3.Op
		for rank := lo; rank < min(lo+100, n); rank++ {
			r := record(cluster, rank)
			value, err := discovery.EncodeRecord(r)
			if err != nil {
				b.Fatal(err)
			}
			puts = append(puts, clientv3.OpPut(r.Key(), string(value)))
		}
		if _, err := g.client.Txn(b.Context()).Then(puts...).Commit(); err != nil {
			b.Fatal(err)
		}
	}
}
