// Package baseline measures what a host does by itself, in some tens of milliseconds: what
// a link is compared with, at the same time as it.
package baseline

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"time"
)

const (
	block = 1 << 20 // bytes at once, as chunks of staging are
	warm  = 2       // blocks before the clock starts
	timed = 16
)

// Copy is the rate of one thread's copy of memory, in bytes a second.
func Copy() float64 {
	// Enough blocks that neither end stays in a core's own cache.
	src, dst := make([]byte, 8*block), make([]byte, 8*block)
	for i := range src {
		src[i] = byte(i)
	}
	copy(dst, src)
	began := time.Now()
	for range timed / 8 {
		copy(dst, src)
	}
	return rate(timed, began)
}

// TCP is the rate of one connection from this process to itself, in bytes a second; with
// TLS where both configurations are given. Both ends run here, as on a host that serves and
// reads at once.
func TCP(ctx context.Context, server, client *tls.Config) (float64, error) {
	ctx, stop := context.WithTimeout(ctx, 5*time.Second)
	defer stop()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	defer context.AfterFunc(ctx, func() { l.Close() })()
	sent := make(chan error, 1)
	go func() { sent <- send(ctx, l, server) }()
	r, err := receive(ctx, l.Addr().String(), client)
	l.Close() // also ends a send that nobody met
	if err = errors.Join(err, <-sent); err != nil {
		return 0, err
	}
	return r, nil
}

func send(ctx context.Context, l net.Listener, config *tls.Config) error {
	c, err := l.Accept()
	if err != nil {
		return err
	}
	if config != nil {
		c = tls.Server(c, config)
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	b := make([]byte, block)
	for range warm + timed {
		if _, err := c.Write(b); err != nil {
			return err
		}
	}
	_, err = c.Read(b[:1]) // the reader's word that all came
	return err
}

func receive(ctx context.Context, addr string, config *tls.Config) (float64, error) {
	var d interface {
		DialContext(context.Context, string, string) (net.Conn, error)
	} = &net.Dialer{}
	if config != nil {
		d = &tls.Dialer{Config: config}
	}
	c, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return 0, err
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	b := make([]byte, block)
	var began time.Time
	for i := range warm + timed {
		if i == warm {
			began = time.Now()
		}
		if _, err := io.ReadFull(c, b); err != nil {
			return 0, err
		}
	}
	r := rate(timed, began)
	_, err = c.Write(b[:1])
	return r, err
}

func rate(blocks int, began time.Time) float64 {
	return float64(blocks) * block / max(time.Since(began).Seconds(), 1e-9)
}
