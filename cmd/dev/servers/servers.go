// Package servers starts and stops an embedded etcd and an embedded nats-server on
// one machine, for `baton dev`, the demo and tests. Nothing else links the servers.
//
// The etcd here trades durability for start time (no fsync, fast ticks), so it never
// serves a real cluster. Stop waits until the listeners and goroutines are gone.
//
// Built with -tags noembed it links neither, and every start says so.
package servers

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
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

// NATSConfig says where one embedded nats-server listens and whom it lets in.
type NATSConfig struct {
	Addr           string // host:port; "" is 127.0.0.1 and a free port
	TLS            *tls.Config
	User, Password string
	Token          string
	NKey           string // public user nkey, "U…"
}

// Servers is one etcd and one NATS, what a cluster on one machine needs.
type Servers struct {
	Etcd *Etcd
	NATS *NATS
}

// Start brings both up on free ports of host; "" is the loopback. dir holds etcd's data;
// the caller owns it and removes it after Stop.
func Start(ctx context.Context, host, dir string) (*Servers, error) {
	addr := ""
	if host != "" {
		addr = net.JoinHostPort(host, "0")
	}
	e, err := StartEtcd(ctx, EtcdConfig{Dir: dir, Addr: addr})
	if err != nil {
		return nil, err
	}
	n, err := StartNATS(ctx, NATSConfig{Addr: addr})
	if err != nil {
		e.Stop()
		return nil, err
	}
	return &Servers{Etcd: e, NATS: n}, nil
}

// Stop ends both and waits for them.
func (s *Servers) Stop() {
	s.NATS.Stop()
	s.Etcd.Stop()
}
