// Package door is the listening end of wires: connections of peers, a bounded number at once,
// and all of them ended by Close.
package door

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"
)

// pause follows an Accept that failed, for want of descriptors say.
const pause = 20 * time.Millisecond

// Door listens until Close.
type Door struct {
	listener net.Listener
	most     int
	serve    func(ctx context.Context, c net.Conn)
	ctx      context.Context // ends with Close
	end      context.CancelFunc
	work     sync.WaitGroup

	mu      sync.Mutex
	inside  map[net.Conn]struct{}
	stopped bool
}

// Open listens on host:port, port 0 for any. serve has one connection on a goroutine of its
// own, until ctx ends at the latest, and its return closes that; one beyond most is closed
// at once.
func Open(listen string, most int, serve func(ctx context.Context, c net.Conn)) (*Door, error) {
	l, err := net.Listen("tcp", listen)
	if err != nil {
		return nil, err
	}
	d := &Door{listener: l, most: most, serve: serve, inside: map[net.Conn]struct{}{}}
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
			d.serve(d.ctx, c)
		})
	}
}

// enter keeps a connection for Close.
func (d *Door) enter(c net.Conn) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.stopped || len(d.inside) >= d.most {
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
