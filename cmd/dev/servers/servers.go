package servers

import "context"

// Servers is one etcd and one NATS, what a cluster on one machine needs.
type Servers struct {
	Etcd *Etcd
	NATS *NATS
}

// Start brings both up on free ports of the loopback. dir holds etcd's data; the
// caller owns it and removes it after Stop.
func Start(ctx context.Context, dir string) (*Servers, error) {
	e, err := StartEtcd(ctx, EtcdConfig{Dir: dir})
	if err != nil {
		return nil, err
	}
	n, err := StartNATS(ctx, NATSConfig{})
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
