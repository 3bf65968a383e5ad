//go:build !noembed

package servers

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// readyWithin bounds the wait for the accept loop, which comes up in milliseconds.
const readyWithin = 5 * time.Second

// NATS is a running embedded nats-server.
type NATS struct {
	server *server.Server
	scheme string
}

// StartNATS returns once the server accepts connections.
func StartNATS(ctx context.Context, c NATSConfig) (*NATS, error) {
	host, port := "127.0.0.1", server.RANDOM_PORT
	if c.Addr != "" {
		h, p, err := net.SplitHostPort(c.Addr)
		if err != nil {
			return nil, fmt.Errorf("%w: nats addr %q: %w", ErrStart, c.Addr, err)
		}
		n, err := strconv.ParseUint(p, 10, 16)
		if err != nil {
			return nil, fmt.Errorf("%w: nats addr %q: bad port: %w", ErrStart, c.Addr, err)
		}
		if host = h; n != 0 {
			port = int(n)
		}
	}
	opts := &server.Options{
		Host: host, Port: port, NoSigs: true, NoLog: true,
		Username: c.User, Password: c.Password, Authorization: c.Token,
	}
	n := &NATS{scheme: "nats"}
	if c.NKey != "" {
		opts.Nkeys = []*server.NkeyUser{{Nkey: c.NKey}}
	}
	if c.TLS != nil {
		opts.TLS, opts.TLSConfig, opts.TLSTimeout = true, c.TLS, readyWithin.Seconds()
		n.scheme = "tls"
	}
	s, err := server.NewServer(opts)
	if err != nil {
		return nil, fmt.Errorf("%w: nats: %w", ErrStart, err)
	}
	n.server = s
	s.Start()
	within := readyWithin
	if d, ok := ctx.Deadline(); ok {
		within = min(within, time.Until(d))
	}
	if !s.ReadyForConnections(within) {
		n.Stop()
		return nil, fmt.Errorf("%w: nats on %s port %d: is the port in use? choose another", ErrStart, host, port)
	}
	return n, nil
}

// URL is what clients dial, "nats://127.0.0.1:40123".
func (n *NATS) URL() string { return n.scheme + "://" + n.Addr() }

// Addr is the host:port that the server listens on.
func (n *NATS) Addr() string { return n.server.Addr().String() }

// Stop ends the server and waits for it.
func (n *NATS) Stop() {
	n.server.Shutdown()
	n.server.WaitForShutdown()
}
