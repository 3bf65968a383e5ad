package e2e

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/batonkv/baton/cmd/dev/servers"
	"github.com/batonkv/baton/discovery"
	"github.com/batonkv/baton/discovery/etcd"
	"github.com/batonkv/baton/sidecar/events"
)

// TestNATSDies: events are for people; hand-offs do not wait for them, and they come
// again when NATS does.
func TestNATSDies(t *testing.T) {
	w := up(t, "tp=2,role=prefill+tp=1,role=decode", "hybrid")
	first := w.events(w.decode)
	w.handoff("before", prompt(1, 30))
	seq := w.next(first, events.Admitted, "before").Seq
	addr := w.Servers.NATS.Addr()
	w.Servers.NATS.Stop()
	for i := range 4 {
		w.handoff(fmt.Sprintf("without %d", i), prompt(2+i, 30))
	}
	back, err := servers.StartNATS(bounded(t), servers.NATSConfig{Addr: addr})
	if err != nil {
		t.Fatal(err)
	}
	w.Servers.NATS = back
	again := w.events(w.decode)
	label := ""
	var e events.Event
	n := 0
	eventually(t, "events come again", func() bool {
		n++
		label = fmt.Sprintf("with %d", n)
		w.handoff(label, prompt(10+n, 20))
		for {
			select {
			case e = <-again:
				if e.Kind == events.Admitted {
					return true
				}
			default:
				return false
			}
		}
	})
	if e.Seq <= seq {
		t.Errorf("event %d after event %d", e.Seq, seq)
	}
}

// TestEtcdDies: what is under way goes on without etcd, and sidecars are found again
// when it is back, with its data or without.
func TestEtcdDies(t *testing.T) {
	w := up(t, "tp=2,role=prefill+tp=1,dp=3,role=decode", "hybrid")
	w.handoff("before", prompt(1, 30))
	for i, dir := range []string{filepath.Join(w.Dir, "srv"), filepath.Join(w.Dir, "lost")} {
		addr := w.Servers.Etcd.Addr()
		w.Servers.Etcd.Stop()
		w.handoff(fmt.Sprintf("without etcd %d", i), prompt(2+i, 30))
		back, err := servers.StartEtcd(bounded(t), servers.EtcdConfig{Dir: dir, Addr: addr})
		if err != nil {
			t.Fatal(err)
		}
		w.Servers.Etcd = back
		w.registered(5)
		// A group that these have not met: its sidecars are found through etcd alone.
		w.between(w.prefill, w.Groups[2+i], fmt.Sprintf("met late %d", i), prompt(5+i, 30))
	}
	select {
	case err := <-w.Died():
		t.Error(err)
	default:
	}
}

// registered waits until etcd holds n sidecars.
func (w *world) registered(n int) {
	w.t.Helper()
	ctx, cancel := context.WithCancel(bounded(w.t))
	defer cancel()
	c := etcd.Default()
	c.Endpoints = []string{w.Etcd}
	reg, err := etcd.Open(ctx, c)
	if err != nil {
		w.t.Fatal(err)
	}
	defer reg.Close()
	for {
		for snap, err := range reg.Watch(ctx, discovery.Scope{Cluster: "dev"}) {
			if err != nil {
				break
			}
			if len(snap.Records) == n {
				return
			}
		}
		if ctx.Err() != nil {
			w.t.Fatalf("there are never %d sidecars registered", n)
		}
	}
}
