package directory

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/batonkv/baton/cmd/dev/servers"
	"github.com/batonkv/baton/discovery/etcd"
)

const limit = time.Minute // of a test's waits: a fault, not a measure

var shared *servers.Etcd

func TestMain(m *testing.M) {
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "dynamo")
		if err != nil {
			panic(err)
		}
		defer os.RemoveAll(dir)
		if shared, err = servers.StartEtcd(context.Background(), servers.EtcdConfig{Dir: dir}); err != nil {
			panic(err)
		}
		defer shared.Stop()
		return m.Run()
	}())
}

func ctxOf(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	return ctx
}

func openEtcd(t *testing.T, endpoint string, ttl time.Duration) *Etcd {
	cfg := etcd.Default()
	cfg.Endpoints, cfg.TTL = []string{endpoint}, ttl
	e, err := OpenEtcd(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close() })
	return e
}

func keep(t *testing.T, b Backend) *Keeper {
	k := Keep(b, 100*time.Millisecond, slog.New(slog.NewTextHandler(t.Output(), nil)))
	t.Cleanup(func() { k.Close(context.Background()) })
	return k
}

// records are those of n endpoints of a namespace.
func records(t *testing.T, namespace string, n int) (all []Record) {
	for i := range n {
		r, err := NewInstance(Endpoint{namespace, "baton", string(rune('a' + i))}, 7, "127.0.0.1:9", "msgpack").Record()
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, r)
	}
	return all
}

// until waits for a snapshot that is right.
func until(t *testing.T, b Backend, prefix, what string, right func(Snapshot) bool) {
	t.Helper()
	ctx := ctxOf(t)
	for ctx.Err() == nil {
		for s, err := range b.Watch(ctx, prefix) {
			if err != nil {
				break // a backend that comes back is asked again
			}
			if right(s) {
				return
			}
		}
	}
	t.Fatalf("never: %s", what)
}

func count(n int) func(Snapshot) bool { return func(s Snapshot) bool { return len(s) == n } }

var backends = map[string]func(*testing.T) Backend{
	"etcd": func(t *testing.T) Backend { return openEtcd(t, shared.Endpoint(), 5*time.Second) },
	"file": func(t *testing.T) Backend {
		f, err := OpenFiles(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		return f
	},
}

// TestKeeper runs on each backend.
func TestKeeper(t *testing.T) {
	for name, open := range backends {
		t.Run(name, func(t *testing.T) {
			b, ns, ctx := open(t), "keeper-"+name, ctxOf(t)
			prefix, k := Instances+ns+"/", keep(t, b)
			all := records(t, ns, 3)
			k.Set(all)
			if err := k.Settled(ctx); err != nil {
				t.Fatal(err)
			}
			until(t, b, prefix, "all are there", func(s Snapshot) bool {
				return slices.EqualFunc(s, all, func(a, b Record) bool { return a.Key == b.Key && string(a.Value) == string(b.Value) })
			})
			k.Set(all[1:])
			if err := k.Settled(ctx); err != nil {
				t.Fatal(err)
			}
			until(t, b, prefix, "one is gone", count(2))
			// Another process' value under our key is not touched.
			other, err := b.Lease(ctx)
			if err != nil {
				t.Fatal(err)
			}
			if err := other.Put(ctx, Record{all[1].Key, []byte(`{}`)}); !errors.Is(err, ErrTaken) {
				t.Errorf("a key is overwritten: %v", err)
			}
			if err := other.Put(ctx, Record{all[0].Key, []byte(`{}`)}); err != nil {
				t.Error(err)
			}
			k.Set(all)
			for err := error(nil); !errors.Is(err, ErrTaken); {
				short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
				if err = k.Settled(short); err == nil || ctx.Err() != nil {
					t.Fatalf("with a foreign record in place: %v", err)
				}
				cancel()
			}
			if err := other.End(ctx); err != nil {
				t.Error(err)
			}
			if err := k.Settled(ctx); err != nil {
				t.Errorf("after the foreign record went: %v", err)
			}
			// Somebody deletes one.
			if err := remove(ctx, b, all[2].Key); err != nil {
				t.Fatal(err)
			}
			until(t, b, prefix, "a deleted one is back", count(3))
			k.Close(ctx)
			until(t, b, prefix, "all are gone", count(0))
		})
	}
}

// remove is what an operator does.
func remove(ctx context.Context, b Backend, key string) error {
	if e, ok := b.(*Etcd); ok {
		_, err := e.client.Delete(ctx, key)
		return err
	}
	name, err := b.(*Files).name(key)
	if err != nil {
		return err
	}
	return os.Remove(name)
}

// TestLeavesOthers: a lease removes what it has put, and not what another has put since.
func TestLeavesOthers(t *testing.T) {
	for name, open := range backends {
		t.Run(name, func(t *testing.T) {
			b, ns, ctx := open(t), "others-"+name, ctxOf(t)
			r := records(t, ns, 2)
			one, err := b.Lease(ctx)
			two, err2 := b.Lease(ctx)
			if err := errors.Join(err, err2); err != nil {
				t.Fatal(err)
			}
			foreign := []Record{{r[0].Key, []byte(`{}`)}, {r[1].Key, []byte(`{}`)}}
			for n := range r {
				if err := errors.Join(one.Put(ctx, r[n]), remove(ctx, b, r[n].Key), two.Put(ctx, foreign[n])); err != nil {
					t.Fatal(err)
				}
			}
			there := func(s Snapshot) bool {
				return slices.EqualFunc(s, foreign, func(a, b Record) bool { return a.Key == b.Key && string(a.Value) == string(b.Value) })
			}
			if err := one.Delete(ctx, r[0].Key); err != nil {
				t.Error(err)
			}
			until(t, b, Instances+ns+"/", "the other's are there", there)
			if err := one.End(ctx); err != nil {
				t.Error(err)
			}
			until(t, b, Instances+ns+"/", "the other's are there after the end", there)
			if err := errors.Join(two.Delete(ctx, r[0].Key), two.End(ctx)); err != nil {
				t.Error(err)
			}
			until(t, b, Instances+ns+"/", "all are gone", count(0))
		})
	}
}

// TestOrder: the records go in the reverse order of their puts.
func TestOrder(t *testing.T) {
	e := openEtcd(t, shared.Endpoint(), 5*time.Second)
	k, ctx := keep(t, e), ctxOf(t)
	before, err := e.client.Get(ctx, Instances+"order/")
	if err != nil {
		t.Fatal(err)
	}
	watch := e.client.Watch(ctx, Instances+"order/", clientv3.WithPrefix(), clientv3.WithRev(before.Header.Revision+1))
	k.Set(records(t, "order", 3))
	if err := k.Settled(ctx); err != nil {
		t.Fatal(err)
	}
	k.Close(ctx)
	var seen []string
	for resp := range watch {
		for _, ev := range resp.Events {
			word := "put "
			if ev.Type.String() == "DELETE" {
				word = "delete "
			}
			seen = append(seen, word+strings.TrimPrefix(string(ev.Kv.Key), Instances+"order/baton/"))
		}
		if len(seen) == 6 {
			break
		}
	}
	if want := []string{"put a/7", "put b/7", "put c/7", "delete c/7", "delete b/7", "delete a/7"}; !slices.Equal(seen, want) {
		t.Errorf("%v, want %v", seen, want)
	}
}

// inPlace waits until a keeper says that its records are in place, or that they are not.
func inPlace(t *testing.T, k *Keeper, want bool) {
	t.Helper()
	for ctx := ctxOf(t); ; {
		k.mu.Lock()
		change := k.change
		k.mu.Unlock()
		if (k.InPlace() == nil) == want {
			return
		}
		select {
		case <-change:
		case <-ctx.Done():
			t.Fatalf("in place: never %v: %v", want, k.InPlace())
		}
	}
}

// TestComesBack: a lost lease, a restart and a wipe of etcd bring the same records back.
func TestComesBack(t *testing.T) {
	dir := t.TempDir()
	server, err := servers.StartEtcd(t.Context(), servers.EtcdConfig{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	addr := server.Addr()
	t.Cleanup(func() { server.Stop() })
	e, ctx := openEtcd(t, server.Endpoint(), 2*time.Second), ctxOf(t)
	k := keep(t, e)
	all := records(t, "back", 2)
	k.Set(all)
	if err := k.Settled(ctx); err != nil {
		t.Fatal(err)
	}
	// present says that both hang on a lease that lives.
	present := func(what string) {
		t.Helper()
		until(t, e, Instances+"back/", what, func(s Snapshot) bool {
			return len(s) == 2 && string(s[0].Value) == string(all[0].Value) && s[0].Key == all[0].Key
		})
	}
	got, err := e.client.Get(ctx, all[0].Key)
	if err != nil || len(got.Kvs) != 1 {
		t.Fatal(err, got)
	}
	if _, err := e.client.Revoke(ctx, leaseOf(got)); err != nil {
		t.Fatal(err)
	}
	present("after the lease was revoked")
	for _, wipe := range []bool{false, true} {
		inPlace(t, k, true)
		server.Stop()
		inPlace(t, k, false)
		if wipe {
			if err := os.RemoveAll(filepath.Join(dir, "etcd")); err != nil {
				t.Fatal(err)
			}
		}
		if server, err = servers.StartEtcd(t.Context(), servers.EtcdConfig{Dir: dir, Addr: addr}); err != nil {
			t.Fatal(err)
		}
		present("after a restart")
		inPlace(t, k, true)
	}
}

// TestFilesOfTheDead: a record that nobody touches is not there, and its key is free.
func TestFilesOfTheDead(t *testing.T) {
	f, err := OpenFiles(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	ctx, r := ctxOf(t), records(t, "dead", 1)[0]
	l, err := f.Lease(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Put(ctx, r); err != nil {
		t.Fatal(err)
	}
	name, err := f.name(r.Key)
	if err != nil || filepath.Base(name) != "dead%2Fbaton%2Fa%2F7" {
		t.Fatal(name, err)
	}
	old := time.Now().Add(-2 * fileDead)
	if err := os.Chtimes(name, old, old); err != nil {
		t.Fatal(err)
	}
	until(t, f, Instances, "it is dead", count(0))
	other, err := f.Lease(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Put(ctx, Record{r.Key, []byte(`{"x":1}`)}); err != nil {
		t.Error(err)
	}
	until(t, f, Instances, "the other's is there", count(1))
	for _, key := range []string{"v2/instances/x", "v1/instances", "v1/../x", "v1//x", "v1/instances/"} {
		if _, err := f.name(key); !errors.Is(err, ErrName) {
			t.Errorf("%s: %v", key, err)
		}
	}
	if err := errors.Join(other.End(ctx), l.End(ctx)); err != nil {
		t.Error(err)
	}
}
