// Package etcd keeps discovery records in etcd: a lease per registration, a key per
// process life that is created only if absent, watches scoped to pools. It decides
// nothing but the takeover rule; every request is bounded by the dial timeout.
package etcd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/batonkv/baton/discovery"
)

// Pings that find a dead connection; etcd refuses more than one in five seconds.
const (
	pingEvery  = 10 * time.Second
	pingWithin = 5 * time.Second
)

// Registry implements discovery.Registry.
type Registry struct {
	cfg    Config
	client *clientv3.Client
	log    *slog.Logger

	mu   sync.Mutex
	open map[*registration]bool
}

// Open connects and asks etcd once, so that a wrong address, certificate or password
// fails here: ErrDown, within the dial timeout.
func Open(ctx context.Context, cfg Config) (*Registry, error) {
	g := &Registry{cfg: cfg, log: cfg.Log, open: map[*registration]bool{}}
	if g.log == nil {
		g.log = slog.New(slog.DiscardHandler)
	}
	var err error
	if g.client, err = cfg.Connect(); errors.Is(err, ErrConfig) {
		return nil, err
	} else if err != nil {
		return nil, g.down("sign in", err)
	}
	ask, cancel := g.bounded(ctx)
	defer cancel()
	if _, err := g.client.Get(ask, discovery.Root, clientv3.WithCountOnly()); err != nil {
		err = g.down("connect", why(err, cfg.dial(ctx)))
		return nil, errors.Join(err, g.client.Close())
	}
	return g, nil
}

// Connect makes a client of c, for others who keep something in etcd. It dials at once
// only to sign in with a password.
func (c Config) Connect() (*clientv3.Client, error) {
	if err := c.Check(); err != nil {
		return nil, err
	}
	tlsConfig, err := c.TLS.Client()
	if err != nil {
		return nil, fmt.Errorf("%w: tls: %w", ErrConfig, err)
	}
	return clientv3.New(clientv3.Config{
		Endpoints:            c.Endpoints,
		DialTimeout:          c.DialTimeout,
		DialKeepAliveTime:    pingEvery,
		DialKeepAliveTimeout: pingWithin,
		TLS:                  tlsConfig,
		Username:             c.User,
		Password:             c.Password,
		Token:                c.Token,
		Logger:               zap.NewNop(),
	})
}

// dialWithin bounds the dial that finds out why etcd does not answer.
const dialWithin = 500 * time.Millisecond

// dial says why the first endpoint cannot be dialled, nil when it can: etcd's client
// reports a missed deadline, and not what it met.
func (c Config) dial(ctx context.Context) error {
	u, err := url.Parse(c.Endpoints[0])
	if err != nil {
		return err
	}
	conn, err := (&net.Dialer{Timeout: dialWithin}).DialContext(ctx, "tcp", u.Host)
	if err != nil {
		return err
	}
	return conn.Close()
}

func why(err, met error) error {
	if met == nil {
		return err
	}
	return fmt.Errorf("%w: %w", err, met)
}

// bounded is ctx with the dial timeout on top.
func (g *Registry) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, g.cfg.DialTimeout)
}

// down is the ErrDown of one request, with what to do about it.
func (g *Registry) down(op string, err error) error {
	remedy := "is etcd running there? check etcd.endpoints and etcd.tls"
	switch {
	case errors.Is(err, rpctypes.ErrAuthFailed), errors.Is(err, rpctypes.ErrUserEmpty),
		errors.Is(err, rpctypes.ErrInvalidAuthToken), errors.Is(err, rpctypes.ErrUserNotFound):
		remedy = "check etcd.user and etcd.password, or etcd.token"
	case errors.Is(err, rpctypes.ErrPermissionDenied):
		remedy = "grant the etcd user read and write of prefix " + discovery.Root
	}
	return fmt.Errorf("%w: etcd at %s: %s: %w: %s", discovery.ErrDown, strings.Join(g.cfg.Endpoints, ", "), op, err, remedy)
}

// Close ends the watches, removes what this registry registered, as far as etcd
// answers in time, and disconnects.
func (g *Registry) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), goodbye)
	defer cancel()
	g.mu.Lock()
	open := g.open
	g.open = nil
	g.mu.Unlock()
	var errs []error
	for r := range open {
		errs = append(errs, r.Close(ctx))
	}
	if err := g.client.Close(); err != nil && !errors.Is(err, context.Canceled) {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// keep notes r, so that Close finds it; false when the registry is closed.
func (g *Registry) keep(r *registration) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.open == nil {
		return false
	}
	g.open[r] = true
	return true
}

func (g *Registry) forget(r *registration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.open, r)
}
