package nats

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"

	"github.com/batonkv/baton/cmd/dev/servers"
	"github.com/batonkv/baton/sidecar/certs"
	"github.com/batonkv/baton/sidecar/events"
)

// patience ends a test that waits for what never comes.
const patience = 30 * time.Second

func start(t *testing.T, c servers.NATSConfig) *servers.NATS {
	t.Helper()
	s, err := servers.StartNATS(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func config(url string) Config {
	c := Default()
	c.URLs, c.ReconnectWait = []string{url}, 10*time.Millisecond
	return c
}

func open(t *testing.T, c Config) *Publisher {
	t.Helper()
	p, err := Open(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeNow(p) })
	return p
}

// closeNow ends p without waiting for NATS.
func closeNow(p *Publisher) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_ = p.Close(ctx)
}

func subscribe(t *testing.T, url, subject string, opts ...nats.Option) (*nats.Conn, *nats.Subscription) {
	t.Helper()
	nc, err := nats.Connect(url, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	sub, err := nc.SubscribeSync(subject)
	if err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	return nc, sub
}

func next(t *testing.T, sub *nats.Subscription) (string, events.Event) {
	t.Helper()
	m, err := sub.NextMsg(patience)
	if err != nil {
		t.Fatal(err)
	}
	var e events.Event
	if err := json.Unmarshal(m.Data, &e); err != nil {
		t.Fatal(err)
	}
	return m.Subject, e
}

func event(kind events.Kind) events.Event {
	return events.Event{
		Time: time.Unix(9, 0).UTC(), Cluster: "c", Pool: "p", Group: "g", Rank: 2, Incarnation: 77,
		Kind: kind, Handoff: "h1", Bytes: 4096, Elapsed: time.Millisecond,
	}
}

func TestOrder(t *testing.T) {
	s := start(t, servers.NATSConfig{})
	defer s.Stop()
	_, sub := subscribe(t, s.URL(), "baton.v1.c.p.*.*.>")
	p := open(t, config(s.URL()))
	const n = 200
	for range n {
		p.Publish(event(events.Landed))
	}
	for i := range n {
		subject, e := next(t, sub)
		want := event(events.Landed)
		want.Seq = uint64(i + 1)
		if subject != "baton.v1.c.p.g.2.landed" || e != want {
			t.Fatalf("%s %+v; want %+v", subject, e, want)
		}
	}
	if p.Dropped() != 0 {
		t.Errorf("%d dropped", p.Dropped())
	}
}

func TestCloseSendsWhatWaits(t *testing.T) {
	s := start(t, servers.NATSConfig{})
	defer s.Stop()
	_, sub := subscribe(t, s.URL(), "baton.v1.>")
	p := open(t, config(s.URL()))
	p.Publish(event(events.Ready))
	next(t, sub) // connected
	const n = 100
	for range n {
		p.Publish(event(events.Exported))
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := p.Close(ctx); err != nil {
		t.Fatal(err)
	}
	for range n {
		next(t, sub)
	}
	p.Publish(event(events.Exported))
	if p.Dropped() != 1 {
		t.Errorf("%d dropped; want the one after Close", p.Dropped())
	}
	if err := p.Close(ctx); err != nil {
		t.Errorf("a second Close: %v", err)
	}
}

// The server comes late: what fitted the queue arrives, the rest is counted and shows
// as a gap.
func TestServerComesLaterAndGapShows(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	l.Close()
	c := config("nats://" + addr)
	c.Queue = 4
	p := open(t, c)
	const n = 20
	for range n {
		p.Publish(event(events.Moving))
	}
	dropped := p.Dropped()
	if dropped < n-c.queued() || dropped > n-4 {
		t.Fatalf("%d of %d dropped with a queue of 4", dropped, n)
	}
	s := start(t, servers.NATSConfig{Addr: addr})
	defer s.Stop()
	// The publisher may be quicker than the subscriber to find the server; events that
	// it sent before are nobody's. The last event is sent until it is seen.
	_, sub := subscribe(t, s.URL(), "baton.v1.>")
	var last uint64
	for last <= n {
		p.Publish(event(events.Landed))
		_, e := next(t, sub)
		if e.Seq <= last {
			t.Fatalf("seq %d after %d", e.Seq, last)
		}
		if last != 0 && last <= n-dropped && e.Seq > n && e.Seq == last+1 {
			t.Errorf("no gap between %d and %d with %d dropped", last, e.Seq, dropped)
		}
		last = e.Seq
	}
}

// queued is how many events can be under way: the queue's, and the one that the
// owner holds.
func (c Config) queued() uint64 { return uint64(c.Queue) + 1 }

func TestReconnects(t *testing.T) {
	s := start(t, servers.NATSConfig{})
	addr := s.Addr()
	_, sub := subscribe(t, s.URL(), "baton.v1.>")
	c, logged := config(s.URL()), make(chan string, 64)
	c.Log = slog.New(slog.NewTextHandler(writer(logged), nil))
	p := open(t, c)
	p.Publish(event(events.Ready))
	next(t, sub)
	await(t, logged, "nats: connected")
	s.Stop()
	s = start(t, servers.NATSConfig{Addr: addr})
	defer s.Stop()
	_, again := subscribe(t, s.URL(), "baton.v1.>")
	await(t, logged, "nats: connected") // what goes out on a connection before its end is seen is lost with it
	p.Publish(event(events.Landed))
	if _, e := next(t, again); e.Kind != events.Landed || e.Seq != 2 {
		t.Errorf("%+v", e)
	}
}

func TestDownNeverBlocks(t *testing.T) {
	p := open(t, config("nats://127.0.0.1:1"))
	for range 10 * DefaultQueue {
		p.Publish(event(events.Moving))
	}
	closeNow(p)
	if p.Dropped() != 10*DefaultQueue {
		t.Errorf("%d of %d counted", p.Dropped(), 10*DefaultQueue)
	}
}

func TestBadNamesAreDropped(t *testing.T) {
	s := start(t, servers.NATSConfig{})
	defer s.Stop()
	_, sub := subscribe(t, s.URL(), ">")
	p := open(t, config(s.URL()))
	for _, bad := range []string{"", "a.b", ">", "*", "A"} {
		e := event(events.Ready)
		e.Group = bad
		p.Publish(e)
	}
	p.Publish(event(events.Ready))
	if _, e := next(t, sub); e.Seq != 6 || p.Dropped() != 5 {
		t.Errorf("%+v, %d dropped", e, p.Dropped())
	}
}

func TestSignIn(t *testing.T) {
	user, err := nkeys.CreateUser()
	if err != nil {
		t.Fatal(err)
	}
	seed, err := user.Seed()
	if err != nil {
		t.Fatal(err)
	}
	public, err := user.PublicKey()
	if err != nil {
		t.Fatal(err)
	}
	seedFile := filepath.Join(t.TempDir(), "user.nk")
	if err := os.WriteFile(seedFile, seed, 0o600); err != nil {
		t.Fatal(err)
	}
	signed, err := nats.NkeyOptionFromSeed(seedFile)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name   string
		server servers.NATSConfig
		client nats.Option
		set    func(*Config)
	}{
		{"user", servers.NATSConfig{User: "u", Password: "p"}, nats.UserInfo("u", "p"), func(c *Config) { c.User, c.Password = "u", "p" }},
		{"token", servers.NATSConfig{Token: "t"}, nats.Token("t"), func(c *Config) { c.Token = "t" }},
		{"nkey", servers.NATSConfig{NKey: public}, signed, func(c *Config) { c.NKeySeed = seedFile }},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := start(t, c.server)
			defer s.Stop()
			_, sub := subscribe(t, s.URL(), "baton.v1.>", c.client)
			cfg := config(s.URL())
			c.set(&cfg)
			open(t, cfg).Publish(event(events.Ready))
			next(t, sub)
		})
	}
}

func TestTLS(t *testing.T) {
	dir, now := t.TempDir(), time.Now()
	ca, err := certs.NewCA("test", now)
	if err != nil {
		t.Fatal(err)
	}
	if err := ca.Write(dir); err != nil {
		t.Fatal(err)
	}
	id := certs.Identity{Kind: certs.Control, Name: "nats"}
	leaf, err := ca.Leaf(certs.LeafConfig{Identity: id, IPs: []net.IP{net.IPv4(127, 0, 0, 1)}, At: now})
	if err != nil {
		t.Fatal(err)
	}
	s := start(t, servers.NATSConfig{TLS: &tls.Config{
		MinVersion:   tls.VersionTLS13,
		Certificates: []tls.Certificate{{Certificate: [][]byte{leaf.Cert.Raw}, PrivateKey: leaf.Key}},
	}})
	defer s.Stop()
	caFile := filepath.Join(dir, certs.CAFile)
	_, sub := subscribe(t, s.URL(), "baton.v1.>", nats.RootCAs(caFile))
	c := config(s.URL())
	c.TLS.CA = caFile
	open(t, c).Publish(event(events.Ready))
	next(t, sub)
}

func TestConfigCheck(t *testing.T) {
	if err := config("nats://h:1").Check(); err != nil {
		t.Fatal(err)
	}
	if err := (Config{}).Check(); err != nil {
		t.Errorf("no NATS at all: %v", err)
	}
	for field, breakIt := range map[string]func(*Config){
		"urls[0]":         func(c *Config) { c.URLs = []string{"http://h:1"} },
		"holds a passwor": func(c *Config) { c.URLs = []string{"nats://u:p@h:1"} },
		"key is empty":    func(c *Config) { c.TLS.Cert = "c.pem" },
		"user: goes wit":  func(c *Config) { c.User = "u" },
		"one way":         func(c *Config) { c.Token, c.NKeySeed = "t", "f" },
		"queue: 0":        func(c *Config) { c.Queue = 0 },
		"timeout: 0s":     func(c *Config) { c.Timeout = 0 },
		"reconnect-wait":  func(c *Config) { c.ReconnectWait = 0 },
	} {
		c := config("nats://h:1")
		breakIt(&c)
		if err := c.Check(); !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: %v", field, err)
		}
	}
	missing := filepath.Join(t.TempDir(), "missing")
	for field, breakIt := range map[string]func(*Config){
		"urls: none":  func(c *Config) { c.URLs = nil },
		"nkey-seed":   func(c *Config) { c.NKeySeed = missing },
		"credentials": func(c *Config) { c.Credentials = missing },
		"tls: ":       func(c *Config) { c.TLS.CA = missing },
	} {
		c := config("nats://h:1")
		breakIt(&c)
		if _, err := Open(c); !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: %v", field, err)
		}
	}
}

// A wrong password is told in the log, not to those who publish.
func TestRefusedIsLogged(t *testing.T) {
	s := start(t, servers.NATSConfig{User: "u", Password: "p"})
	defer s.Stop()
	logged := make(chan string, 64)
	c := config(s.URL())
	c.User, c.Password = "u", "wrong"
	c.Log = slog.New(slog.NewTextHandler(writer(logged), nil))
	open(t, c).Publish(event(events.Ready))
	await(t, logged, "check nats.user")
}

// await reads the log until a line that has text.
func await(t *testing.T, logged <-chan string, text string) {
	t.Helper()
	give := time.After(patience)
	for {
		select {
		case line := <-logged:
			if strings.Contains(line, text) {
				return
			}
		case <-give:
			t.Fatalf("never logged: %s", text)
		}
	}
}

type writer chan string

func (w writer) Write(b []byte) (int, error) {
	select {
	case w <- string(bytes.TrimSpace(b)):
	default:
	}
	return len(b), nil
}
