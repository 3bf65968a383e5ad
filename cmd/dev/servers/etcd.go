// Package servers starts and stops an embedded etcd and an embedded nats-server on
// one machine, for `baton dev`, the demo and tests. Nothing else links the servers.
//
// The etcd here trades durability for start time (no fsync, fast ticks), so it never
// serves a real cluster. Stop waits until the listeners and goroutines are gone.
package servers

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
)

// ErrStart says that an embedded server did not come up.
var ErrStart = errors.New("servers: did not start")

// EtcdConfig says where one embedded etcd keeps its data and listens.
type EtcdConfig struct {
	Dir  string // data; made when absent, owned and removed by the caller
	Addr string // host:port; "" is 127.0.0.1 and a free port
	// CA, Cert and Key are PEM files. With Cert and Key the server speaks TLS; with
	// CA it asks clients for a certificate of that CA.
	CA, Cert, Key string
}

// Check says which field stops the server from starting.
func (c EtcdConfig) Check() error {
	switch {
	case c.Dir == "":
		return fmt.Errorf("%w: etcd dir is empty: name a directory for its data", ErrStart)
	case (c.Cert == "") != (c.Key == ""):
		return fmt.Errorf("%w: etcd cert and key go together: give both or neither", ErrStart)
	case c.CA != "" && c.Cert == "":
		return fmt.Errorf("%w: etcd ca without cert: give cert and key too", ErrStart)
	}
	return nil
}

// Etcd is a running embedded etcd.
type Etcd struct {
	server *embed.Etcd
	scheme string
}

// StartEtcd returns once the server answers, or when ctx ends.
func StartEtcd(ctx context.Context, c EtcdConfig) (*Etcd, error) {
	if err := c.Check(); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(c.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("%w: etcd: %w", ErrStart, err)
	}
	scheme := "http"
	if c.Cert != "" {
		scheme = "https"
	}
	addr := c.Addr
	if addr == "" {
		addr = "127.0.0.1:0"
	}
	server, err := embed.StartEtcd(etcdConfig(c, url.URL{Scheme: scheme, Host: addr}))
	if err != nil {
		return nil, fmt.Errorf("%w: etcd on %s: %w", ErrStart, addr, err)
	}
	e := &Etcd{server: server, scheme: scheme}
	select {
	case <-server.Server.ReadyNotify():
		return e, nil
	case err = <-server.Err():
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	e.Stop()
	return nil, fmt.Errorf("%w: etcd on %s: %w", ErrStart, addr, err)
}

func etcdConfig(c EtcdConfig, client url.URL) *embed.Config {
	peer := url.URL{Scheme: "http", Host: "127.0.0.1:0"}
	cfg := embed.NewConfig()
	cfg.Dir = filepath.Join(c.Dir, "etcd")
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	cfg.TickMs, cfg.ElectionMs, cfg.UnsafeNoFsync = 10, 100, true
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = []url.URL{client}, []url.URL{client}
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = []url.URL{peer}, []url.URL{peer}
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	cfg.EnableGRPCGateway = false
	if c.Cert != "" {
		cfg.ClientTLSInfo = transport.TLSInfo{
			CertFile: c.Cert, KeyFile: c.Key, TrustedCAFile: c.CA, ClientCertAuth: c.CA != "",
		}
	}
	return cfg
}

// Endpoint is the URL that clients dial, "http://127.0.0.1:40123".
func (e *Etcd) Endpoint() string { return e.scheme + "://" + e.Addr() }

// Addr is the host:port that the server listens on.
func (e *Etcd) Addr() string { return e.server.Clients[0].Addr().String() }

// Stop ends the server and waits for it. Its data stay in Dir.
func (e *Etcd) Stop() {
	e.server.Close()
	<-e.server.Server.StopNotify()
}
