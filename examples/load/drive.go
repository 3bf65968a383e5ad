package load

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"
)

// Serve takes the one driver of l: its commands until it hangs up or ctx ends. Rank 0
// alone serves. It closes l.
func (r *Rank) Serve(ctx context.Context, l net.Listener) error {
	defer context.AfterFunc(ctx, func() { _ = l.Close() })()
	conn, err := l.Accept()
	_ = l.Close()
	if err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return fmt.Errorf("load: accept the driver: %w", err)
	}
	defer conn.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer context.AfterFunc(ctx, func() { // the last events still go out to a driver that reads
		_ = conn.SetReadDeadline(time.Now())
		_ = conn.SetWriteDeadline(time.Now().Add(time.Second))
	})()
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	wg.Go(func() { r.lead.write(ctx, conn) })
	in := bufio.NewScanner(conn)
	in.Buffer(nil, maxLine)
	for in.Scan() {
		c, err := parse(in.Bytes())
		if err != nil {
			return err
		}
		select {
		case r.lead.commands <- c:
		case <-ctx.Done():
			return nil
		}
	}
	if ctx.Err() != nil {
		return nil
	}
	return in.Err()
}

// write passes events on, several at once when they wait.
func (l *lead) write(ctx context.Context, conn net.Conn) {
	out := bufio.NewWriter(conn)
	enc := json.NewEncoder(out)
	for {
		select {
		case e := <-l.events:
			if enc.Encode(e) != nil {
				return
			}
			if len(l.events) == 0 && out.Flush() != nil {
				return
			}
		case <-ctx.Done():
			for len(l.events) > 0 {
				if enc.Encode(<-l.events) != nil {
					return
				}
			}
			_ = out.Flush()
			return
		}
	}
}

// Client drives one group. Safe for concurrent use.
type Client struct {
	conn net.Conn

	mu  sync.Mutex // guards:
	enc *json.Encoder
}

// Dial connects to rank 0 at path, as its one driver.
func Dial(ctx context.Context, path string) (*Client, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", path)
	if err != nil {
		return nil, fmt.Errorf("load: no engine at %s: %w", path, err)
	}
	return &Client{conn: conn, enc: json.NewEncoder(conn)}, nil
}

// Send gives a command. It waits while the engine does not read.
func (c *Client) Send(cmd Command) error {
	if err := cmd.check(); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.enc.Encode(cmd); err != nil {
		return fmt.Errorf("load: send %s: %w", cmd.Op, err)
	}
	return nil
}

// Events calls each with every event, until Close or the engine's end, which is the
// error.
func (c *Client) Events(each func(Event)) error {
	in := bufio.NewScanner(c.conn)
	in.Buffer(nil, maxLine)
	for in.Scan() {
		var e Event
		if err := json.Unmarshal(in.Bytes(), &e); err != nil {
			return fmt.Errorf("load: event: %w", err)
		}
		each(e)
	}
	if err := in.Err(); err != nil && !errors.Is(err, net.ErrClosed) {
		return fmt.Errorf("load: events: %w", err)
	}
	return nil
}

// Close ends the connection.
func (c *Client) Close() { _ = c.conn.Close() }
