package plane

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"github.com/batonkv/baton/plugins/adapter/dynamo/wire"
	"github.com/batonkv/baton/sidecar/handoff"
)

// Answer is what comes back from one call. It is one goroutine's.
type Answer struct {
	conn    net.Conn
	r       *bufio.Reader
	codec   wire.Codec
	stopped bool
	over    bool
	broken  error // of a message that was not read to its end
}

// read reads a message, for as long as ctx lasts. One that has begun to come when ctx ends is
// lost, and with it what follows.
func (a *Answer) read(ctx context.Context, within time.Duration) (t wire.TwoPart, err error) {
	if a.broken != nil {
		return t, a.broken
	}
	if err := a.conn.SetReadDeadline(time.Now().Add(within)); err != nil {
		return t, err
	}
	cut := make(chan struct{})
	unbind := context.AfterFunc(ctx, func() {
		defer close(cut)
		_ = a.conn.SetReadDeadline(time.Unix(1, 0))
	})
	defer func() {
		if !unbind() {
			<-cut // else it may cut the next read
		}
	}()
	if _, err = a.r.Peek(1); err == nil {
		t, err = wire.ReadTwoPart(a.r)
		a.broken = err
	}
	switch {
	case err == nil:
		return t, nil
	case ctx.Err() != nil:
		return t, ctx.Err()
	case isTimeout(err):
		return t, fmt.Errorf("%w: the worker is silent: %w", handoff.ErrDeadline, err)
	}
	return t, err
}

func (a *Answer) prologue(ctx context.Context) error {
	t, err := a.read(ctx, homeWithin)
	if err != nil {
		return fmt.Errorf("%w: before the answer: %w", handoff.ErrPeer, err)
	}
	p, err := wire.DecodePrologue(t)
	if err == nil && p.Error != nil {
		err = &wire.Fault{Type: wire.Type{Name: wire.Unavailable}, Message: *p.Error}
	}
	return err
}

// Next reads the next item into v. io.EOF: there is none; a *wire.Fault is the worker's
// error, handoff.ErrPeer its loss.
func (a *Answer) Next(ctx context.Context, v any) error {
	data, err := a.NextBare(ctx)
	if err != nil {
		return err
	}
	var n wire.Annotated
	if err := a.codec.Decode(data, &n); err != nil {
		return err
	}
	if n.Event == wire.EventError || n.Error != nil {
		a.over = true
		if n.Error == nil {
			n.Error = &wire.Fault{Type: wire.Type{Name: wire.Unknown}, Message: strings.Join(n.Comment, "; ")}
		}
		return n.Error
	}
	if len(n.Data) == 0 {
		return nil
	}
	return a.codec.Decode(n.Data, v)
}

// NextBare reads the next item as it is, for workers that do not annotate theirs.
func (a *Answer) NextBare(ctx context.Context) (wire.Raw, error) {
	if a.over {
		return nil, io.EOF
	}
	t, err := a.read(ctx, quietWithin)
	if a.stopped && (errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)) {
		a.over = true
		return nil, io.EOF // a worker that was stopped ends without a last item
	}
	if err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF // io.EOF says that the answer was whole
		}
		if !isTimeout(err) && ctx.Err() == nil {
			err = fmt.Errorf("%w: the answer ends before its last item: %w", handoff.ErrPeer, err)
		}
		return nil, err
	}
	if len(t.Header) > 0 {
		return nil, fmt.Errorf("%w: %.40q where an item is expected", wire.ErrMalformed, t.Header)
	}
	var it wire.Item
	if err := a.codec.Decode(t.Body, &it); err != nil {
		return nil, err
	}
	if !it.Final {
		return it.Data, nil
	}
	a.over = true
	_, _ = a.read(ctx, lastWithin) // the sentinel; the answer is whole without it
	return nil, io.EOF
}

// Stop asks the worker to end its answer; items that are under way still come.
func (a *Answer) Stop() error {
	a.stopped = true
	return a.control(wire.Stop)
}

func (a *Answer) control(word string) error {
	if err := a.conn.SetWriteDeadline(time.Now().Add(ackWithin)); err != nil {
		return err
	}
	_, err := a.conn.Write(wire.AppendTwoPart(nil, wire.TwoPart{Header: []byte(word)}))
	return err
}

// Close ends the answer; the worker hears of it when that was not over.
func (a *Answer) Close() {
	if !a.over {
		_ = a.control(wire.Kill) // or it learns it from the end of the connection
	}
	a.conn.Close()
}
