package front

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"

	"github.com/batonkv/baton/proto/errs"
	"github.com/batonkv/baton/sidecar/handoff"
)

// Client asks one engine. It holds no connection; any number of goroutines may use it.
type Client struct{ path string }

// New asks whatever engine listens at path by the time of a request.
func New(path string) *Client { return &Client{path: path} }

// Dial checks that an engine listens at path.
func Dial(ctx context.Context, path string) (*Client, error) {
	c := New(path)
	conn, err := c.dial(ctx)
	if err != nil {
		return nil, err
	}
	return c, conn.Close()
}

func (c *Client) dial(ctx context.Context) (net.Conn, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", c.path)
	if err != nil {
		return nil, fmt.Errorf("front: no engine at %s: %w", c.path, err)
	}
	return conn, nil
}

// Generate is Stream for callers that want tokens alone; token may be nil.
func (c *Client) Generate(ctx context.Context, r Request, token func(int32)) (Result, error) {
	return c.Stream(ctx, r, func(e Event) {
		if token != nil {
			token(e.Token)
		}
	})
}

// Stream runs one request and calls each with the event of each token as it comes. Ending
// ctx aborts the request at the engine. handoff.ErrPeer: the engine ended in the middle of it.
func (c *Client) Stream(ctx context.Context, r Request, each func(Event)) (Result, error) {
	if err := r.Check(); err != nil {
		return Result{}, err
	}
	conn, err := c.dial(ctx)
	if err != nil {
		return Result{}, err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	res, err := exchange(conn, r, each)
	if err != nil && ctx.Err() != nil {
		err = fmt.Errorf("front: %w", context.Cause(ctx))
	}
	return res, err
}

func exchange(conn net.Conn, r Request, each func(Event)) (Result, error) {
	if err := json.NewEncoder(conn).Encode(r); err != nil {
		return Result{}, fmt.Errorf("front: send: %w: %w", handoff.ErrPeer, err)
	}
	in := bufio.NewScanner(conn)
	in.Buffer(nil, maxLine)
	for in.Scan() {
		l, err := decode(in.Bytes())
		switch {
		case err != nil:
			return Result{}, err
		case l.Error != "" && l.Never:
			return Result{}, &never{errs.FromName(l.Name, l.Error)}
		case l.Error != "":
			return Result{}, fmt.Errorf("%w: %w", ErrFailed, errs.FromName(l.Name, l.Error))
		case l.Done:
			return *l.Result, nil
		default:
			each(Event{Token: *l.Token, Logprob: l.Logprob})
		}
	}
	err := in.Err()
	switch {
	case errors.Is(err, bufio.ErrTooLong):
		return Result{}, fmt.Errorf("%w: %w", ErrProtocol, err)
	case err == nil:
		err = errors.New("the engine closed the connection")
	}
	return Result{}, fmt.Errorf("front: receive: %w: %w", handoff.ErrPeer, err)
}

// never is an engine's refusal of a request that it can never serve, in its own words.
type never struct{ error }

func (e *never) Unwrap() []error { return []error{ErrFailed, ErrRequest, e.error} }

// Tell asks which side of a hand-off the engine takes, and whether it takes requests. It
// waits for no step. ErrRequest: the front does not tell.
func (c *Client) Tell(ctx context.Context) (Told, error) {
	r, err := c.Generate(ctx, Request{Mode: Tell}, nil)
	t := Told{Role: r.Reason, Room: max(r.Room, 0), Block: max(r.Block, 0)}
	if err == nil && r.Closed != "" {
		t.Closed = errs.FromName(r.Closed, "the engine takes no new request")
	}
	return t, err
}

// decode takes one line of the engine.
func decode(b []byte) (line, error) {
	var l line
	if err := json.Unmarshal(b, &l); err != nil {
		return line{}, fmt.Errorf("%w: %w", ErrProtocol, err)
	}
	if l.Error == "" && l.Done != (l.Result != nil) || l.Error == "" && !l.Done && l.Token == nil {
		return line{}, fmt.Errorf("%w: %.80q", ErrProtocol, b)
	}
	return l, nil
}
