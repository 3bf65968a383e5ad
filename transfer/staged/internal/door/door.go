// Package door is the listening end of wires: connections of peers, over TLS 1.3 unless the
// owner says plain, a bounded number at once, and all of them ended by Close.
package door

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"sync"
	"time"
)

const (
	maxConns  = 256              // that are served at once
	handshake = 10 * time.Second // for TLS
	dialing   = 10 * time.Second
	pause     = 20 * time.Millisecond // after an Accept that failed
)

// Door listens until Close.
type Door struct {
	listener net.Listener
	ctx      context.Context // ends with Close
	end      context.CancelFunc
	work     sync.WaitGroup
	serve    func(net.Conn)

	mu      sync.Mutex
	inside  map[net.Conn]struct{}
	stopped bool
}

// Open listens on host:port, port 0 for any; server is the TLS of who comes, nil for none.
// serve has one connection on a goroutine of its own, and its return closes that.
func Open(listen string, server *tls.Config, serve func(net.Conn)) (*Door, error) {
	l, err := net.Listen("tcp", listen)
	if err != nil {
		return nil, err
	}
	if server != nil {
		l = tls.NewListener(l, server)
	}
	d := &Door{listener: l, serve: serve, inside: map[net.Conn]struct{}{}}
	d.ctx, d.end = context.WithCancel(context.Background())
	d.work.Go(d.accept)
	return d, nil
}

// Addr is what peers dial.
func (d *Door) Addr() string { return d.listener.Addr().String() }

func (d *Door) accept() {
	for {
		c, err := d.listener.Accept()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			t := time.NewTimer(pause)
			select {
			case <-t.C:
			case <-d.ctx.Done():
			}
			t.Stop()
			continue
		}
		if !d.enter(c) {
			c.Close()
			continue
		}
		d.work.Go(func() {
			defer d.leave(c)
			if d.greet(c) == nil { // who dialled sees the end of the connection
				d.serve(c)
			}
		})
	}
}

// greet does the handshake, which a peer may not drag on.
func (d *Door) greet(c net.Conn) error {
	t, ok := c.(*tls.Conn)
	if !ok {
		return nil
	}
	_ = c.SetDeadline(time.Now().Add(handshake))
	if err := t.HandshakeContext(d.ctx); err != nil {
		return err
	}
	return c.SetDeadline(time.Time{})
}

// enter keeps a connection for Close.
func (d *Door) enter(c net.Conn) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.stopped || len(d.inside) >= maxConns {
		return false
	}
	d.inside[c] = struct{}{}
	return true
}

func (d *Door) leave(c net.Conn) {
	c.Close()
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.inside, c)
}

// Close ends every connection and waits for those who serve them.
func (d *Door) Close() error {
	d.mu.Lock()
	d.stopped = true
	for c := range d.inside {
		c.Close()
	}
	d.mu.Unlock()
	d.end()
	err := d.listener.Close()
	d.work.Wait()
	return err
}

// Dial reaches a Door; client is the TLS, nil for none. ctx bounds dialling alone.
func Dial(ctx context.Context, addr string, client *tls.Config) (net.Conn, error) {
	ctx, stop := context.WithTimeout(ctx, dialing)
	defer stop()
	if client != nil {
		return (&tls.Dialer{Config: client}).DialContext(ctx, "tcp", addr)
	}
	return (&net.Dialer{}).DialContext(ctx, "tcp", addr)
}
