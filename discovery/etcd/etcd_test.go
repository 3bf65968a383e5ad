package etcd

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/batonkv/baton/cmd/dev/servers"
	"github.com/batonkv/baton/discovery"
	"github.com/batonkv/baton/discovery/discoverytest"
	"github.com/batonkv/baton/discovery/internal/feed"
)

// shared is one server for all tests that do not break it.
var shared *servers.Etcd

func TestMain(m *testing.M) {
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "etcd")
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

func start(t *testing.T, c servers.EtcdConfig) *servers.Etcd {
	t.Helper()
	c.Dir = t.TempDir()
	e, err := servers.StartEtcd(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func config(e *servers.Etcd) Config {
	c := Default()
	c.Endpoints = []string{e.Endpoint()}
	return c
}

func open(t *testing.T, c Config) *Registry {
	t.Helper()
	g, err := Open(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { g.Close() })
	return g
}

func record(cluster string, rank int32) discovery.Record {
	return discovery.Record{
		Cluster: cluster, Pool: "pool", Group: "group", Rank: rank, Incarnation: 1, Role: discovery.Both,
		Tenant: "tenant", Host: "host", PID: 1, Addr: "host:1",
	}
}

func TestSuite(t *testing.T) {
	discoverytest.Run(t, func(*testing.T) discoverytest.World {
		return discoverytest.World{
			Open: func(t *testing.T, alive discoverytest.Alive) discovery.Registry {
				c := config(shared)
				c.Alive = alive
				return open(t, c)
			},
			Expire: func(t *testing.T, r discovery.Registration) {
				g := open(t, config(shared))
				if _, err := g.client.Revoke(t.Context(), r.(*registration).lease); err != nil {
					t.Fatal(err)
				}
			},
		}
	})
}

// A holder whose process dies while another waits is replaced before its lease ends,
// and the one that waits says once for whom.
func TestWaitsForProcess(t *testing.T) {
	if _, err := open(t, config(shared)).Register(t.Context(), record("waits", 0)); err != nil {
		t.Fatal(err)
	}
	var said bytes.Buffer
	asked := 0
	c := config(shared)
	c.Log = slog.New(slog.NewTextHandler(&said, nil))
	c.Alive = func(int32, uint64) bool { asked++; return asked < 3 }
	next := record("waits", 0)
	next.Incarnation, next.PID = 2, 2
	if _, err := open(t, c).Register(t.Context(), next); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(said.String(), "rank is held by pid 1 on host host; waiting"); n != 1 || asked != 3 {
		t.Errorf("said %d times, asked %d: %s", n, asked, &said)
	}
}

func TestAbsent(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	l.Close()
	c := Default()
	c.Endpoints, c.DialTimeout = []string{"http://" + addr}, 300*time.Millisecond
	_, err = Open(t.Context(), c)
	if !errors.Is(err, discovery.ErrDown) {
		t.Fatal(err)
	}
	for _, want := range []string{addr, "refused", "etcd.endpoints"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%v: lacks %q", err, want)
		}
	}
}

func TestServerGoesAway(t *testing.T) {
	t.Parallel()
	e := start(t, servers.EtcdConfig{})
	c := config(e)
	c.TTL, c.DialTimeout = time.Second, 300*time.Millisecond
	g := open(t, c)
	reg, err := g.Register(t.Context(), record("away", 0))
	if err != nil {
		t.Fatal(err)
	}
	var stop sync.Once
	var last error
	for _, err := range g.Watch(t.Context(), discovery.Scope{Cluster: "away"}) {
		stop.Do(e.Stop)
		last = err
	}
	if !errors.Is(last, discovery.ErrDown) {
		t.Errorf("watch: %v", last)
	}
	for _, err := range g.Watch(t.Context(), discovery.Scope{Cluster: "away"}) {
		if !errors.Is(err, discovery.ErrDown) {
			t.Errorf("watch again: %v", err)
		}
	}
	if err := reg.Update(t.Context(), record("away", 0)); !errors.Is(err, discovery.ErrDown) && !errors.Is(err, discovery.ErrLost) {
		t.Errorf("update: %v", err)
	}
	<-reg.Lost()
	if _, err := g.Register(t.Context(), record("away", 0)); !errors.Is(err, discovery.ErrDown) {
		t.Errorf("register: %v", err)
	}
}

// The end of the lease closes Lost even while etcd does not answer the watch.
func TestLostWhileWatchHangs(t *testing.T) {
	e := start(t, servers.EtcdConfig{})
	c := config(e)
	c.DialTimeout = 300 * time.Millisecond
	g := open(t, c)
	e.Stop()
	ctx, end := context.WithCancel(t.Context())
	r := &registration{registry: g, key: "/none", end: end, lost: make(chan struct{}), done: make(chan struct{})}
	alive := make(chan *clientv3.LeaseKeepAliveResponse)
	go r.run(ctx, alive, 1)
	close(alive)
	<-r.Lost()
	<-r.done
}

// A server that returns with its data is found again by the same registry.
func TestServerReturns(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	e, err := servers.StartEtcd(t.Context(), servers.EtcdConfig{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	addr := e.Addr()
	g, err := Open(t.Context(), config(e))
	if err != nil {
		t.Fatal(err)
	}
	reg, err := g.Register(t.Context(), record("back", 0))
	if err != nil {
		t.Fatal(err)
	}
	e.Stop()
	if e, err = servers.StartEtcd(t.Context(), servers.EtcdConfig{Dir: dir, Addr: addr}); err != nil {
		t.Fatal(err)
	}
	defer e.Stop()
	defer g.Close()
	r := record("back", 0)
	r.CapacityBlocks = 8
	if err := reg.Update(t.Context(), r); err != nil {
		t.Fatalf("update after the return: %v", err)
	}
	for s, err := range g.Watch(t.Context(), discovery.Scope{Cluster: "back"}) {
		if err != nil || len(s.Records) != 1 || s.Records[0].CapacityBlocks != 8 {
			t.Errorf("%v %+v", err, s)
		}
		break
	}
}

func TestCompaction(t *testing.T) {
	e := start(t, servers.EtcdConfig{})
	defer e.Stop()
	g := open(t, config(e))
	var rev int64
	for range 3 {
		resp, err := g.client.Put(t.Context(), "/elsewhere", "x")
		if err != nil {
			t.Fatal(err)
		}
		rev = resp.Header.Revision
	}
	if _, err := g.client.Compact(t.Context(), rev); err != nil {
		t.Fatal(err)
	}
	var last error
	scope := discovery.Scope{Cluster: "any"}
	for _, err := range g.Watch(t.Context(), scope) {
		if err != nil {
			t.Fatalf("a fresh watch after a compaction: %v", err)
		}
		break
	}
	g.follow(t.Context(), feed.New(), scope, 1, func(_ discovery.Snapshot, err error) bool {
		last = err
		return true
	})
	if !errors.Is(last, discovery.ErrDown) || !strings.Contains(last.Error(), "compacted") {
		t.Errorf("a watch from a compacted revision: %v", last)
	}
}

func TestForeignBytes(t *testing.T) {
	var log bytes.Buffer
	c := config(shared)
	c.Log = slog.New(slog.NewTextHandler(&log, nil))
	g := open(t, c)
	good := record("foreign", 0)
	if _, err := g.Register(t.Context(), good); err != nil {
		t.Fatal(err)
	}
	value, err := discovery.EncodeRecord(good)
	if err != nil {
		t.Fatal(err)
	}
	for key, v := range map[string]string{
		record("foreign", 1).Key():               "garbage",
		record("foreign", 2).Key():               string(value), // another's name
		record("foreign", 3).Key():               strings.Repeat("x", discovery.MaxRecord+1),
		discovery.Root + "foreign/a/b/c/d/e/f/g": "",
	} {
		if _, err := g.client.Put(t.Context(), key, v); err != nil {
			t.Fatal(err)
		}
	}
	for s, err := range g.Watch(t.Context(), discovery.Scope{Cluster: "foreign"}) {
		if err != nil || len(s.Records) != 1 || s.Records[0].Rank != 0 {
			t.Errorf("%v %+v", err, s)
		}
		break
	}
	if n := strings.Count(log.String(), "passed over"); n != 4 {
		t.Errorf("%d of 4 logged: %s", n, log.String())
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if _, err := g.Register(ctx, record("foreign", 1)); !errors.Is(err, discovery.ErrTaken) || !strings.Contains(err.Error(), "delete the key") {
		t.Errorf("register over garbage: %v", err)
	}
}

func TestSignIn(t *testing.T) {
	e := start(t, servers.EtcdConfig{})
	defer e.Stop()
	root := open(t, config(e)).client
	for _, do := range []func() error{
		func() error { _, err := root.RoleAdd(t.Context(), "root"); return err },
		func() error { _, err := root.UserAdd(t.Context(), "root", "secret"); return err },
		func() error { _, err := root.UserGrantRole(t.Context(), "root", "root"); return err },
		func() error { _, err := root.UserAdd(t.Context(), "poor", "pw"); return err },
		func() error { _, err := root.AuthEnable(t.Context()); return err },
	} {
		if err := do(); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct{ user, password, remedy string }{
		{"root", "secret", ""},
		{"root", "wrong", "etcd.password"},
		{"nobody", "x", "etcd.user"},
		{"poor", "pw", "grant the etcd user"},
		{"", "", "etcd.user"},
	} {
		cfg := config(e)
		cfg.User, cfg.Password = c.user, c.password
		g, err := Open(t.Context(), cfg)
		if err == nil {
			g.Close()
		}
		if (err == nil) != (c.remedy == "") || (err != nil && (!errors.Is(err, discovery.ErrDown) || !strings.Contains(err.Error(), c.remedy))) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

func TestConfigCheck(t *testing.T) {
	good := Default()
	good.Endpoints = []string{"http://127.0.0.1:2379"}
	if err := good.Check(); err != nil {
		t.Fatal(err)
	}
	for field, breakIt := range map[string]func(*Config){
		"endpoints: 0":    func(c *Config) { c.Endpoints = nil },
		"endpoints[0]":    func(c *Config) { c.Endpoints = []string{"localhost:2379"} },
		"endpoints[1]":    func(c *Config) { c.Endpoints = []string{"http://a:1", "http://a"} },
		"one kind":        func(c *Config) { c.Endpoints = []string{"http://a:1", "https://a:1"} },
		"dial-timeout":    func(c *Config) { c.DialTimeout = 0 },
		"ttl: 1.5s":       func(c *Config) { c.TTL = 1500 * time.Millisecond },
		"ttl: 0s":         func(c *Config) { c.TTL = 0 },
		"tls: is given":   func(c *Config) { c.TLS.CA = "ca.pem" },
		"key is empty":    func(c *Config) { c.TLS.Cert = "c.pem" },
		"user: goes with": func(c *Config) { c.User = "u" },
		"token: user":     func(c *Config) { c.User, c.Password, c.Token = "u", "p", "t" },
	} {
		c := good
		breakIt(&c)
		if err := c.Check(); !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: %v", field, err)
		}
		if _, err := Open(t.Context(), c); !errors.Is(err, ErrConfig) {
			t.Errorf("%s: opened: %v", field, err)
		}
	}
}
