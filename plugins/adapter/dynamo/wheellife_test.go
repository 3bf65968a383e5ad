package dynamo

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/batonkv/baton/cmd/dev/servers"
	"github.com/batonkv/baton/plugins/adapter"
	"github.com/batonkv/baton/plugins/route"
)

// TestWheelSeesLifeAndDeath: an orderly end removes the instance at once, a killed process
// goes with its lease, and a restart and a wipe of etcd bring the same instance back.
func TestWheelSeesLifeAndDeath(t *testing.T) {
	dir := t.TempDir()
	e, err := servers.StartEtcd(t.Context(), servers.EtcdConfig{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Stop() })
	addr, sec := e.Addr(), etcdSection(e.Endpoint(), "")
	p, ctx := newPeer(t, etcdEnv(e)...), ctxOf(t)
	a, _ := join(t, sec)
	is := func(p *peer, ids ...string) {
		t.Helper()
		p.must(ctx, words{"do": "until", "endpoint": handoffs, "ids": append([]string{}, ids...)}, nil)
	}
	is(p, fmt.Sprint(a.id))
	if err := a.Drain(ctx); err != nil {
		t.Fatal(err)
	}
	is(p)
	alone, id := startAlone(t, sec)
	is(p, id)
	alone()
	is(p)
	b, _ := join(t, sec)
	is(p, fmt.Sprint(b.id))
	for _, wipe := range []bool{false, true} {
		e.Stop()
		if wipe {
			p.kill() // a Dynamo process ends when it loses its lease
			if err := os.RemoveAll(filepath.Join(dir, "etcd")); err != nil {
				t.Fatal(err)
			}
		}
		if e, err = servers.StartEtcd(t.Context(), servers.EtcdConfig{Dir: dir, Addr: addr}); err != nil {
			t.Fatal(err)
		}
		if wipe {
			p = newPeer(t, etcdEnv(e)...)
		}
		is(p, fmt.Sprint(b.id))
		var got []StatusAnswer
		p.must(ctx, words{"do": "call", "endpoint": statuses, "body": words{}}, &got)
		if len(got) != 1 || got[0].State != "serving" || got[0].Group != "d" {
			t.Errorf("%+v", got)
		}
	}
}

// TestKilledGoesWithItsLease: all records of an adapter hang on one lease of the time that its
// configuration says. Once its process is killed nobody renews that, and they go with it.
func TestKilledGoesWithItsLease(t *testing.T) {
	const ttl = 3
	e, ctx := startEtcd(t), ctxOf(t)
	client := must(clientv3.NewFromURL(e.Endpoint()))
	defer client.Close()
	kill, id := startAlone(t, fmt.Appendf(nil, "namespace: dynamo\netcd: {endpoints: ['%s'], ttl: %ds}\nkv: {events: zmq}", e.Endpoint(), ttl))
	records := func() *clientv3.GetResponse {
		t.Helper()
		return must(client.Get(ctx, "v1/", clientv3.WithPrefix()))
	}
	all := records()
	for len(all.Kvs) < 3 && ctx.Err() == nil { // it waits for the directory for a while only
		all = records()
	}
	if len(all.Kvs) != 3 { // the endpoints
		t.Fatalf("%v", all.Kvs)
	}
	lease := clientv3.LeaseID(all.Kvs[0].Lease)
	for _, r := range all.Kvs {
		if n := must(strconv.ParseUint(id, 10, 64)); lease == 0 || clientv3.LeaseID(r.Lease) != lease || !strings.HasSuffix(string(r.Key), fmt.Sprintf("/%x", n)) {
			t.Errorf("%s hangs on %x, not on %x", r.Key, r.Lease, lease)
		}
	}
	if l := must(client.TimeToLive(ctx, lease)); l.GrantedTTL != ttl {
		t.Errorf("granted for %d s, want %d", l.GrantedTTL, ttl)
	}
	kill()
	gone := 0
	for w := range client.Watch(ctx, "v1/", clientv3.WithPrefix(), clientv3.WithRev(all.Header.Revision+1)) {
		for _, e := range w.Events {
			if e.Type != clientv3.EventTypeDelete {
				t.Errorf("%s is written after the end of its process", e.Kv.Key)
			}
		}
		// etcd ends a lease, and deletes what hangs on it, in one step.
		if l := must(client.TimeToLive(ctx, lease)); l.TTL >= 0 {
			t.Errorf("%d records are gone, and their lease has %d s left", len(w.Events), l.TTL)
		}
		if gone += len(w.Events); gone >= len(all.Kvs) {
			break
		}
	}
	if rest := records(); ctx.Err() != nil || len(rest.Kvs) != 0 {
		t.Errorf("%v outlast their lease, %v", rest.Kvs, ctx.Err())
	}
}

// startAlone starts an adapter in a process of its own, and gives what kills it and its id.
func startAlone(t *testing.T, sec []byte) (kill func(), id string) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), envAlone+"="+string(sec))
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	kill = sync.OnceFunc(func() {
		_ = cmd.Process.Kill() // it may have gone
		_ = cmd.Wait()
	})
	t.Cleanup(kill)
	if _, err := fmt.Fscan(out, &id); err != nil {
		t.Fatal(err)
	}
	return kill, id
}

// alone serves as a sidecar's adapter does, until it is killed.
func alone(sec string) error {
	a := &Adapter{Reshard: route.Layouts()}
	if err := a.Configure(context.Background(), []byte(sec)); err != nil {
		return err
	}
	a.Ask(&fake{})
	if err := a.Sync(context.Background(), adapter.State{}); err != nil {
		return err
	}
	fmt.Println(a.id)
	select {}
}

// TestWheelMeetsPressure: a full server refuses in the words that send a client elsewhere.
func TestWheelMeetsPressure(t *testing.T) {
	e := startEtcd(t)
	p, ctx := newPeer(t, etcdEnv(e)...), ctxOf(t)
	a, f := join(t, etcdSection(e.Endpoint(), "calls: 1"))
	f.hold = make(chan struct{})
	p.must(ctx, words{"do": "wait", "endpoint": handoffs}, nil)
	p.must(ctx, words{"do": "begin", "name": "c1", "endpoint": handoffs, "body": importBody(t)}, nil)
	<-f.begun
	err := p.ask(ctx, words{"do": "call", "endpoint": handoffs, "id": fmt.Sprint(a.id), "body": importBody(t)}, nil)
	if err == nil || !strings.Contains(err.Error(), "Server overloaded: 1 calls run") {
		t.Errorf("%v", err)
	}
	other, _ := join(t, etcdSection(e.Endpoint(), ""))
	p.must(ctx, words{"do": "both", "endpoint": handoffs, "n": 2}, nil)
	for range 4 { // the full one is left out
		var got []ImportAnswer
		p.must(ctx, words{"do": "call", "endpoint": handoffs, "body": importBody(t)}, &got)
	}
	if other.id == a.id {
		t.Error("one id for two")
	}
	close(f.hold)
	var got []ImportAnswer
	if p.must(ctx, words{"do": "rest", "name": "c1"}, &got); len(got) != 1 {
		t.Errorf("%+v", got)
	}
}
