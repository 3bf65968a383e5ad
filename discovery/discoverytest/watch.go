package discoverytest

import (
	"context"
	"sync"
	"testing"

	"github.com/batonkv/baton/discovery"
)

func watchNewestWins(t *testing.T, w World, cluster string) {
	const changes = 50
	g := w.Open(t, always(true))
	r := record(cluster, 0, 1)
	reg := must(t, g, r)
	items := 0
	until(t, w.Open(t, always(true)), all(cluster), func(rs []discovery.Record) bool {
		if items++; items == 1 { // a slow reader: everything happens during its first item
			for i := range changes {
				r.Instance = uint64(i + 1)
				if err := reg.Update(patient(t), r); err != nil {
					t.Fatal(err)
				}
			}
		}
		return len(rs) == 1 && rs[0].Instance == changes
	})
	if items > changes+1 {
		t.Errorf("%d items for %d changes", items, changes)
	}
}

func watchScope(t *testing.T, w World, cluster string) {
	g := w.Open(t, always(true))
	for i, pool := range []string{"a", "ab", "b", "c"} {
		r := record(cluster, 0, uint64(i+1))
		r.Pool = pool
		must(t, g, r)
		r.Cluster = cluster + "-x"
		must(t, g, r)
	}
	for _, c := range []struct {
		pools []string
		want  string
	}{
		{nil, "a ab b c "},
		{[]string{"a"}, "a "},
		{[]string{"c", "a", "c"}, "a c "},
		{[]string{"none"}, ""},
	} {
		got := ""
		until(t, g, discovery.Scope{Cluster: cluster, Pools: c.pools}, func(rs []discovery.Record) bool {
			for _, r := range rs {
				if r.Cluster != cluster {
					t.Errorf("pools %v: sees cluster %s", c.pools, r.Cluster)
				}
				got += r.Pool + " "
			}
			return true
		})
		if got != c.want {
			t.Errorf("pools %v: sees %q, want %q", c.pools, got, c.want)
		}
	}
	// A change outside the scope wakes nobody: the next item is the change inside.
	scope := discovery.Scope{Cluster: cluster, Pools: []string{"b", "c"}}
	items := 0
	until(t, g, scope, func(rs []discovery.Record) bool {
		if items++; items == 1 {
			r := record(cluster, 1, 9)
			r.Pool = "a"
			must(t, g, r)
			r.Pool = "b"
			must(t, g, r)
		}
		return len(rs) == 3
	})
	if items != 2 {
		t.Errorf("%d items for one change in scope", items)
	}
}

func watchEnds(t *testing.T, w World, cluster string) {
	g := w.Open(t, always(true))
	ctx, cancel := context.WithCancel(patient(t))
	defer cancel()
	var last error
	for _, err := range g.Watch(ctx, all(cluster)) {
		if last != nil {
			t.Fatal("an item after the error")
		}
		last = err
		cancel()
	}
	wantErr(t, "watch whose context ended", last, context.Canceled)

	last = nil
	for _, err := range g.Watch(patient(t), all(cluster)) {
		if last = err; err == nil {
			if err := g.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
	wantErr(t, "watch of a closed registry", last, discovery.ErrDown)
}

func manyWatchers(t *testing.T, w World, cluster string) {
	const watchers, ranks = 20, 8
	g := w.Open(t, always(true))
	var started, full, empty sync.WaitGroup
	started.Add(watchers)
	full.Add(watchers)
	for range watchers {
		empty.Go(func() {
			stage := 0
			defer func() { // a watcher that failed keeps nobody waiting
				if stage < 1 {
					started.Done()
				}
				if stage < 2 {
					full.Done()
				}
			}()
			for s, err := range g.Watch(patient(t), all(cluster)) {
				if err != nil {
					t.Errorf("watch: %v", err)
					return
				}
				switch {
				case stage == 0:
					stage = 1
					started.Done()
				case stage == 1 && len(s.Records) == ranks:
					stage = 2
					full.Done()
				case stage == 2 && len(s.Records) == 0:
					return
				}
			}
		})
	}
	started.Wait()
	other := w.Open(t, always(true))
	var regs []discovery.Registration
	for rank := range int32(ranks) {
		regs = append(regs, must(t, other, record(cluster, rank, uint64(rank+1))))
	}
	full.Wait()
	for _, r := range regs {
		closeIt(t, r)
	}
	empty.Wait()
}
