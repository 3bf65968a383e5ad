package client

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"

	"github.com/batonkv/baton/proto/version"
	"github.com/batonkv/baton/sidecar/control"
	"github.com/batonkv/baton/sidecar/handoff"
)

// line knows why a connection could not be made, which gRPC tells as text only: a caller
// decides by whether nobody answers or somebody refuses.
type line struct {
	addr string

	mu      sync.Mutex // guards, of the newest attempt:
	failed  error
	refused bool // by a certificate, whichever side's
}

func (l *line) note(err error, refused bool) {
	l.mu.Lock()
	l.failed, l.refused = err, refused
	l.mu.Unlock()
}

// unsent is why a call was not sent: nothing of it can have been done.
type unsent struct{ why error }

func (u *unsent) Error() string { return u.why.Error() }

// down is what the newest attempt met.
func (l *line) down() *unsent {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.refused:
		return &unsent{fmt.Errorf("%w: %s: %w", handoff.ErrDenied, l.addr, l.failed)}
	case l.failed != nil:
		return &unsent{fmt.Errorf("%w: %s is not reached: %w: is the sidecar that advertises it up, and its port open to this host?",
			handoff.ErrPeer, l.addr, l.failed)}
	}
	return &unsent{fmt.Errorf("%w: %s is not reached", handoff.ErrPeer, l.addr)}
}

// reach waits for the connection. What fails here was not sent.
func (l *line) reach(ctx context.Context, conn *grpc.ClientConn) error {
	for {
		s := conn.GetState()
		switch s {
		case connectivity.Ready:
			return nil
		case connectivity.TransientFailure:
			return l.down()
		case connectivity.Shutdown:
			return &unsent{fmt.Errorf("%w: %s: this connection was closed", handoff.ErrPeer, l.addr)}
		case connectivity.Idle:
			conn.Connect()
		}
		if !conn.WaitForStateChange(ctx, s) {
			return &unsent{fmt.Errorf("%w: %s is not reached: %w", handoff.ErrPeer, l.addr, ctx.Err())}
		}
	}
}

// call and stream go before every call: they name this build's versions.
func (l *line) call(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	if err := l.reach(ctx, conn); err != nil {
		return err
	}
	return invoke(versioned(ctx), method, req, reply, conn, opts...)
}

func (l *line) stream(ctx context.Context, desc *grpc.StreamDesc, conn *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	if err := l.reach(ctx, conn); err != nil {
		return nil, err
	}
	return open(versioned(ctx), desc, conn, method, opts...)
}

var mine = version.Format(version.Control())

func versioned(ctx context.Context) context.Context {
	return metadata.AppendToOutgoingContext(ctx, control.VersionsKey, mine)
}

func (l *line) dial(ctx context.Context, addr string) (net.Conn, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		l.note(err, false)
	}
	return c, err
}

// credentials are TLS ones that note which side refused the other's certificate.
func (l *line) credentials(config *tls.Config) credentials.TransportCredentials {
	config = config.Clone()
	if verify := config.VerifyConnection; verify != nil {
		config.VerifyConnection = func(s tls.ConnectionState) error {
			err := verify(s)
			if err != nil {
				l.note(err, true)
			}
			return err
		}
	}
	return &noting{credentials.NewTLS(config), l}
}

type noting struct {
	credentials.TransportCredentials
	l *line
}

func (n *noting) ClientHandshake(ctx context.Context, authority string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	n.l.note(nil, false)
	c, info, err := n.TransportCredentials.ClientHandshake(ctx, authority, raw)
	if err != nil {
		n.l.ended(err)
		return c, info, err
	}
	return &alerted{c, n.l}, info, nil
}

func (n *noting) Clone() credentials.TransportCredentials {
	return &noting{n.TransportCredentials.Clone(), n.l}
}

// ended notes how a connection ended, unless this side has refused it.
func (l *line) ended(err error) {
	var bad *tls.CertificateVerificationError
	var op *net.OpError
	refused := errors.As(err, &bad) || errors.As(err, &op) && op.Op == "remote error" // how crypto/tls tells an alert
	l.mu.Lock()
	if !l.refused {
		l.failed, l.refused = err, refused
	}
	l.mu.Unlock()
}

// alerted hears the alert by which a server refuses this side's certificate: with TLS 1.3
// that comes after the client's handshake has ended.
type alerted struct {
	net.Conn
	l *line
}

func (a *alerted) Read(b []byte) (int, error) {
	n, err := a.Conn.Read(b)
	if err != nil {
		a.l.ended(err)
	}
	return n, err
}

// Write looks, when it fails, for the alert that may lie unread before the end: gRPC
// closes at once. What is read is lost with the connection.
func (a *alerted) Write(b []byte) (int, error) {
	n, err := a.Conn.Write(b)
	if err != nil {
		_ = a.SetReadDeadline(time.Now().Add(alertWait))
		_, _ = a.Read(make([]byte, 1))
	}
	return n, err
}

// alertWait bounds that look: an alert comes before the end of the connection.
const alertWait = 100 * time.Millisecond
