package tcp

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

// Before TLS, and before the first request of a plain connection, each end says
//
//	"BTNH" | u16 version | u8 security | u8 zero
//
// who dials first, and goes on if the other's is the same. It protects nothing: who changes
// it on the way has the connection refused, since each end alone decides whether it is plain.
const (
	helloBytes = 4 + 2 + 2
	helloMagic = 0x42_54_4e_48
	version    = 1
)

// security is what a connection is after its hello.
type security uint8

const (
	secured security = 1 + iota // TLS 1.3
	plain
	maxSecurity
)

func (s security) String() string {
	if s == plain {
		return "plain TCP"
	}
	return "TLS"
}

var (
	// ErrVersion reports an end of another release.
	ErrVersion = errors.New("tcp: another version of the wire")
	// ErrSecurity reports that one end is plain and the other is not.
	ErrSecurity = errors.New("tcp: plain TCP and TLS do not meet")
)

func appendHello(b []byte, v uint16, s security) []byte {
	return append(be.AppendUint16(be.AppendUint32(b, helloMagic), v), byte(s), 0)
}

// checkHello compares what the other end said with what this one is.
func checkHello(b *[helloBytes]byte, own security) error {
	v, s := be.Uint16(b[4:]), security(b[6])
	switch {
	case be.Uint32(b[:]) != helloMagic:
		return fmt.Errorf("%w: not the greeting of a wire mover", ErrFrame)
	case v != version:
		return fmt.Errorf("%w: it speaks %d, this release %d: run one release on both hosts", ErrVersion, v, version)
	case s == 0 || s >= maxSecurity || b[7] != 0:
		return fmt.Errorf("%w: security %d in a greeting", ErrFrame, s)
	case s != own:
		return fmt.Errorf("%w: it has %s, this end %s: set staging.transport alike on both hosts", ErrSecurity, s, own)
	}
	return nil
}

// security of this Wire's connections.
func (c *Config) security() security {
	if c.Server == nil {
		return plain
	}
	return secured
}

// greet says and hears hello, and makes c what both say that it is. An end of this protocol
// hears this one's hello also when it is refused, so that both know why. It is bounded by
// limit and ctx.
func (w *Wire) greet(ctx context.Context, c net.Conn, dials bool, limit time.Duration) (net.Conn, error) {
	_ = c.SetDeadline(time.Now().Add(limit))
	stop := context.AfterFunc(ctx, func() { c.Close() })
	defer stop()
	own := w.cfg.security()
	say := func() error {
		_, err := c.Write(appendHello(nil, version, own))
		return err
	}
	var b [helloBytes]byte
	if dials {
		if err := say(); err != nil {
			return nil, err
		}
	}
	if _, err := io.ReadFull(c, b[:]); err != nil {
		return nil, fmt.Errorf("no greeting: %w", err)
	}
	err := checkHello(&b, own)
	if !dials && !errors.Is(err, ErrFrame) {
		err = errors.Join(err, say())
	}
	said := c // stop's function reads c at any time
	if err == nil && own == secured {
		said, err = w.secure(ctx, c, dials)
	}
	if err != nil {
		return nil, err
	}
	return said, said.SetDeadline(time.Time{})
}

// secure is the TLS handshake.
func (w *Wire) secure(ctx context.Context, c net.Conn, dials bool) (net.Conn, error) {
	t := tls.Server(c, w.cfg.Server)
	if dials {
		cfg := w.cfg.Client
		if host, _, err := net.SplitHostPort(c.RemoteAddr().String()); cfg.ServerName == "" && err == nil {
			cfg = cfg.Clone()
			cfg.ServerName = host
		}
		t = tls.Client(c, cfg)
	}
	return t, t.HandshakeContext(ctx)
}
