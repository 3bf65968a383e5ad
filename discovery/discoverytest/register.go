package discoverytest

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/batonkv/baton/discovery"
)

func registerAndClose(t *testing.T, w World, cluster string) {
	g := w.Open(t, always(true))
	r := record(cluster, 0, 1)
	reg := must(t, g, r)
	if got := until(t, g, all(cluster), count(1)); !reflect.DeepEqual(got[0], r) {
		t.Errorf("the watcher sees %+v, registered was %+v", got[0], r)
	}
	notLost(t, reg)
	closeIt(t, reg)
	waitLost(t, reg)
	until(t, g, all(cluster), count(0))
	wantErr(t, "update after close", reg.Update(patient(t), r), discovery.ErrLost)
	closeIt(t, reg)
	closeIt(t, must(t, g, record(cluster, 0, 2)))
}

func refusesBadRecords(t *testing.T, w World, cluster string) {
	g := w.Open(t, always(true))
	r := record(cluster, 0, 1)
	r.Pool = "a/b"
	_, err := g.Register(patient(t), r)
	wantErr(t, "register", err, discovery.ErrRecord)
	for _, err := range g.Watch(patient(t), discovery.Scope{Cluster: "../x"}) {
		wantErr(t, "watch", err, discovery.ErrRecord)
	}
	reg := must(t, g, record(cluster, 0, 1))
	wantErr(t, "update", reg.Update(patient(t), r), discovery.ErrRecord)
	notLost(t, reg)
}

func takenByLiving(t *testing.T, w World, cluster string) {
	first := must(t, w.Open(t, always(true)), record(cluster, 0, 1))
	alive, ask := asked()
	ctx, cancel := context.WithCancel(patient(t))
	p := register(ctx, w.Open(t, alive), record(cluster, 0, 2))
	<-ask
	cancel()
	_, err := p.wait(t)
	wantErr(t, "register", err, discovery.ErrTaken)
	if err != nil && !strings.Contains(err.Error(), record(cluster, 0, 1).Addr) {
		t.Errorf("the error does not say who holds the rank: %v", err)
	}
	notLost(t, first)
	if err := first.Update(patient(t), record(cluster, 0, 1)); err != nil {
		t.Errorf("update by the holder: %v", err)
	}
}

func takenElsewhere(t *testing.T, w World, cluster string) {
	first := must(t, w.Open(t, always(true)), record(cluster, 0, 1))
	elsewhere, apart := record(cluster, 0, 2), record(cluster, 0, 2)
	elsewhere.Host = "host-b"
	apart.PIDSpace = 1
	for where, r := range map[string]discovery.Record{"host": elsewhere, "PID namespace": apart} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		_, err := w.Open(t, always(false)).Register(ctx, r)
		cancel()
		wantErr(t, "register of a dead process's rank from another "+where, err, discovery.ErrTaken)
	}
	notLost(t, first)
}

func waitsForClose(t *testing.T, w World, cluster string) {
	g := w.Open(t, always(true))
	first := must(t, g, record(cluster, 0, 1))
	alive, ask := asked()
	p := register(patient(t), w.Open(t, alive), record(cluster, 0, 2))
	<-ask
	if err := first.Update(patient(t), record(cluster, 0, 1)); err != nil {
		t.Errorf("update while another waits: %v", err)
	}
	<-ask // the update woke it, and it waits again
	closeIt(t, first)
	second, err := p.wait(t)
	if err != nil {
		t.Fatalf("after the holder closed: %v", err)
	}
	notLost(t, second)
	until(t, g, all(cluster), func(rs []discovery.Record) bool { return len(rs) == 1 && rs[0].Incarnation == 2 })
}

func waitsForExpiry(t *testing.T, w World, cluster string) {
	first := must(t, w.Open(t, always(true)), record(cluster, 0, 1))
	alive, ask := asked()
	p := register(patient(t), w.Open(t, alive), record(cluster, 0, 2))
	<-ask
	w.Expire(t, first)
	second, err := p.wait(t)
	if err != nil {
		t.Fatalf("after the holder expired: %v", err)
	}
	waitLost(t, first)
	notLost(t, second)
}

func takesOver(t *testing.T, w World, cluster string) {
	first := must(t, w.Open(t, always(true)), record(cluster, 0, 1))
	var pid int32
	var started uint64
	g := w.Open(t, func(p int32, s uint64) bool {
		pid, started = p, s
		return false
	})
	second := must(t, g, record(cluster, 0, 2))
	if old := record(cluster, 0, 1); pid != old.PID || started != old.Started {
		t.Errorf("asked whether %d started %d lives; want %d started %d", pid, started, old.PID, old.Started)
	}
	waitLost(t, first)
	wantErr(t, "update by the replaced", first.Update(patient(t), record(cluster, 0, 1)), discovery.ErrLost)
	closeIt(t, first)
	got := until(t, g, all(cluster), count(1))
	if got[0].Incarnation != 2 {
		t.Errorf("the replaced one's close left %+v", got[0])
	}
	notLost(t, second)
	if err := second.Update(patient(t), record(cluster, 0, 2)); err != nil {
		t.Errorf("update by the new one: %v", err)
	}
}

func ownAgain(t *testing.T, w World, cluster string) {
	g := w.Open(t, always(true))
	first := must(t, g, record(cluster, 0, 1))
	second := must(t, g, record(cluster, 0, 1))
	waitLost(t, first)
	closeIt(t, first)
	notLost(t, second)
	until(t, g, all(cluster), count(1))
}

func oneOfManyWins(t *testing.T, w World, cluster string) {
	const n = 6
	ctx, cancel := context.WithCancel(patient(t))
	defer cancel()
	var all []*pending
	won := make(chan *pending, n)
	for i := range n {
		r := record(cluster, 0, uint64(i+1))
		r.Host = fmt.Sprintf("host-%d", i)
		p := register(ctx, w.Open(t, always(true)), r)
		all = append(all, p)
		go func() { <-p.done; won <- p }()
	}
	first := <-won
	if first.err != nil {
		t.Fatalf("the first to return: %v", first.err)
	}
	cancel()
	for _, p := range all {
		if p == first {
			continue
		}
		if _, err := p.wait(t); !errors.Is(err, discovery.ErrTaken) && !errors.Is(err, context.Canceled) {
			t.Errorf("a second one: %v", err)
		}
	}
	notLost(t, first.reg)
}

func update(t *testing.T, w World, cluster string) {
	g := w.Open(t, always(true))
	r := record(cluster, 3, 1)
	reg := must(t, g, r)
	r.Instance, r.Ranks, r.Geometry, r.CapacityBlocks = 99, 4, "abcd", 512
	if err := reg.Update(patient(t), r); err != nil {
		t.Fatal(err)
	}
	until(t, w.Open(t, always(true)), all(cluster), func(rs []discovery.Record) bool {
		return len(rs) == 1 && reflect.DeepEqual(rs[0], r)
	})
	wantErr(t, "another rank", reg.Update(patient(t), record(cluster, 2, 1)), discovery.ErrRecord)
	wantErr(t, "another incarnation", reg.Update(patient(t), record(cluster, 3, 2)), discovery.ErrRecord)
	notLost(t, reg)
}

func expiryIsLost(t *testing.T, w World, cluster string) {
	g := w.Open(t, always(true))
	r := record(cluster, 0, 1)
	reg := must(t, g, r)
	w.Expire(t, reg)
	waitLost(t, reg)
	until(t, g, all(cluster), count(0))
	wantErr(t, "update", reg.Update(patient(t), r), discovery.ErrLost)
	again := must(t, g, r)
	closeIt(t, reg)
	until(t, g, all(cluster), count(1))
	notLost(t, again)
}

func registryClose(t *testing.T, w World, cluster string) {
	g := w.Open(t, always(true))
	reg := must(t, g, record(cluster, 0, 1))
	if err := g.Close(); err != nil {
		t.Fatal(err)
	}
	waitLost(t, reg)
	until(t, w.Open(t, always(true)), all(cluster), count(0))
	if _, err := g.Register(patient(t), record(cluster, 0, 2)); err == nil {
		t.Error("a closed registry registers")
	}
}
