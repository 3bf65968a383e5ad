// Package peer holds the sessions between sidecars: one open stream of one-way
// messages per (dialer, dialed) pair of processes, over mutual TLS.
//
// A session begins with a Hello each way, which fixes both incarnations; a peer that
// restarts is another peer with another session. Loss of a session is one Down. The
// package checks what a message may hold (proto/codec), not what it means, and dials
// only what its owner names.
package peer

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"

	"github.com/batonkv/baton/proto/codec"
	"github.com/batonkv/baton/sidecar/handoff"
	"github.com/batonkv/baton/transfer/choice"
)

// ErrConfig reports a configuration that cannot work.
var ErrConfig = errors.New("peer: bad configuration")

// Config says who this sidecar is and how it is reached.
type Config struct {
	Self   handoff.Member
	Host   string     // host id: equal on one host only
	End    choice.End // how this sidecar can be read; its Name and Host are Self's and Host
	Listen string     // host:port; port 0 takes a free one
	// Server asks for and verifies client certificates; Client shows one and verifies
	// the server's. Both TLS 1.3. How a name is matched is the configurations' matter.
	Server, Client *tls.Config
	Limits         Limits
	Log            *slog.Logger // refused sessions; nil: silent
}

// Limits bound a Server. Zero fields take the defaults.
type Limits struct {
	Queue     int           // messages that wait for one peer; 4096
	Sessions  int           // at one time, both directions; 4096
	Handshake time.Duration // from the first byte to both Hellos; 5 s
}

// Check reports the first field that cannot work.
func (c Config) Check() error {
	switch {
	case c.Self.Group == "" || c.Self.Incarnation == 0:
		return fmt.Errorf("%w: self %v: want a group and an incarnation", ErrConfig, c.Self)
	case c.Listen == "":
		return fmt.Errorf("%w: listen: want host:port", ErrConfig)
	case c.Server == nil || c.Client == nil:
		return fmt.Errorf("%w: tls: want a server and a client configuration: baton certs makes them", ErrConfig)
	case c.Server.ClientAuth != tls.RequireAndVerifyClientCert:
		return fmt.Errorf("%w: tls: the server must require and verify client certificates", ErrConfig)
	case c.Server.MinVersion < tls.VersionTLS13 || c.Client.MinVersion < tls.VersionTLS13:
		return fmt.Errorf("%w: tls: want MinVersion TLS 1.3", ErrConfig)
	case c.Limits.Queue < 0 || c.Limits.Sessions < 0 || c.Limits.Handshake < 0:
		return fmt.Errorf("%w: limits %+v: want 0 (default) or more", ErrConfig, c.Limits)
	}
	_, err := codec.EncodeHello(codec.Hello{Self: c.Self, Host: c.Host, End: c.End})
	return err
}

func (c Config) withDefaults() Config {
	if c.Limits.Queue == 0 {
		c.Limits.Queue = 4096
	}
	if c.Limits.Sessions == 0 {
		c.Limits.Sessions = 4096
	}
	if c.Limits.Handshake == 0 {
		c.Limits.Handshake = 5 * time.Second
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return c
}

// Windows are fixed: control messages are small, and probing for bandwidth adds
// packets. Keepalive finds a peer whose host vanished.
const window = 1 << 20

func serverOptions() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.MaxRecvMsgSize(codec.MaxMessage), grpc.MaxSendMsgSize(codec.MaxMessage),
		grpc.InitialWindowSize(window), grpc.InitialConnWindowSize(window),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 5 * time.Second, Timeout: 3 * time.Second}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}),
	}
}

func dialOptions() []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithInitialWindowSize(window), grpc.WithInitialConnWindowSize(window),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(codec.MaxMessage), grpc.MaxCallSendMsgSize(codec.MaxMessage)),
		// 10 s is the least that a gRPC client takes.
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 3 * time.Second}),
		grpc.WithNoProxy(), grpc.WithDisableServiceConfig(),
	}
}
