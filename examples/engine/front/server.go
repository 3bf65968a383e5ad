package front

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"
)

// Engine serves requests. The events of a request end with a Result or an Err; when ctx
// ends the request is aborted. The channel has room for all of them.
type Engine interface {
	Submit(ctx context.Context, r Request) (<-chan Event, error)
}

// MaxConns bounds the connections of one server; one more is told ErrBusy.
const MaxConns = 256

// patience is how long a connected caller may take to send its request line.
const patience = 10 * time.Second

// Serve answers the connections of l until ctx ends, and returns once all are done. It
// closes l.
func Serve(ctx context.Context, l net.Listener, e Engine) error {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	defer context.AfterFunc(ctx, func() { _ = l.Close() })()
	slots := make(chan struct{}, MaxConns)
	for {
		conn, err := l.Accept()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("front: accept: %w", err)
		}
		select {
		case slots <- struct{}{}:
			wg.Go(func() {
				defer func() { <-slots }()
				serve(ctx, conn, e)
			})
		default:
			_ = write(conn, failure(ErrBusy))
			_ = conn.Close()
		}
	}
}

// serve runs one connection: its request, then its events. The caller's hanging up
// aborts the request.
func serve(ctx context.Context, conn net.Conn, e Engine) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	r, err := readRequest(conn)
	if err != nil {
		if !errors.Is(err, errSilent) {
			_ = write(conn, failure(err))
		}
		return
	}
	events, err := e.Submit(ctx, r)
	if err != nil {
		_ = write(conn, failure(err))
		return
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		var b [1]byte
		_, _ = conn.Read(b[:]) // a caller sends one line: what comes next is its end
		cancel()
	})
	defer conn.Close() // before the wait: it ends the read
	for ev := range events {
		l := line{}
		switch {
		case ev.Err != nil:
			l = failure(ev.Err)
		case ev.Result != nil:
			l.Done, l.Result = true, ev.Result
		default:
			l.Token, l.Logprob = &ev.Token, ev.Logprob
		}
		if write(conn, l) != nil || ev.Err != nil || ev.Result != nil {
			return
		}
	}
}

// errSilent: the caller hung up without a request, as Dial does.
var errSilent = errors.New("front: no request")

func readRequest(conn net.Conn) (Request, error) {
	if err := conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
		return Request{}, err
	}
	in := bufio.NewScanner(conn)
	in.Buffer(nil, maxLine)
	if !in.Scan() {
		if err := in.Err(); err != nil {
			return Request{}, fmt.Errorf("%w: %w", ErrRequest, err)
		}
		return Request{}, errSilent
	}
	if err := conn.SetReadDeadline(time.Time{}); err != nil {
		return Request{}, err
	}
	return ParseRequest(in.Bytes())
}

// ParseRequest takes one request line.
func ParseRequest(b []byte) (Request, error) {
	var r Request
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(&r); err != nil {
		return Request{}, fmt.Errorf("%w: %w", ErrRequest, err)
	}
	return r, r.Check()
}

func write(conn net.Conn, l line) error { return json.NewEncoder(conn).Encode(l) }
