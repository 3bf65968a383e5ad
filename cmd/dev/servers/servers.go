package servers

import (
	"context"
	"net"
)

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
