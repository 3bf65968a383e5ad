//go:build !noembed

package servers

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"path/filepath"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
)

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
