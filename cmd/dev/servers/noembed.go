//go:build noembed

package servers

import (
	"context"
	"fmt"
)

// errNone is why nothing starts in such a build.
var errNone = fmt.Errorf("%w: this baton was built with -tags noembed, without etcd and NATS: use a whole build, or name servers that run", ErrStart)

// Etcd is none.
type Etcd struct{}

// StartEtcd fails.
func StartEtcd(context.Context, EtcdConfig) (*Etcd, error) { return nil, errNone }

// Endpoint is "".
func (*Etcd) Endpoint() string { return "" }

// Addr is "".
func (*Etcd) Addr() string { return "" }

// Stop does nothing.
func (*Etcd) Stop() {}

// NATS is none.
type NATS struct{}

// StartNATS fails.
func StartNATS(context.Context, NATSConfig) (*NATS, error) { return nil, errNone }

// URL is "".
func (*NATS) URL() string { return "" }

// Addr is "".
func (*NATS) Addr() string { return "" }

// Stop does nothing.
func (*NATS) Stop() {}
