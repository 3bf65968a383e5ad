package plane

import (
	"bufio"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/batonkv/baton/plugins/adapter/dynamo/wire"
	"github.com/batonkv/baton/sidecar/handoff"
)

// Bounds of a client's waits.
const (
	homeWithin  = 10 * time.Second // from the acknowledgement to the worker's connection
	quietWithin = 5 * time.Minute  // between two messages of an answer
	lastWithin  = time.Second      // from the last item to the sentinel
	shakeWithin = 5 * time.Second
	maxShakes   = 256     // connections that have not said yet which call they answer
	maxShake    = 4 << 10 // bytes of a handshake
)

// Target is an endpoint of one instance.
type Target struct {
	Address string // ip:port
	Path    string
	Codec   wire.Codec
}

// Client calls endpoints. Its owner calls Close. Safe for concurrent use.
type Client struct {
	ln     net.Listener
	home   netip.AddrPort // the zero address: that by which a worker is reached
	shakes chan struct{}
	work   sync.WaitGroup

	mu      sync.Mutex // guards:
	pending map[string]chan net.Conn
	open    map[net.Conn]bool // those without a call yet
	closed  bool
}

// NewClient listens at an ip:port for workers that answer; the unspecified address has each
// worker answer at the address by which it is reached.
func NewClient(listen string) (*Client, error) {
	ln, err := net.Listen("tcp", listen)
	if err != nil {
		return nil, fmt.Errorf("listen for answers of Dynamo's workers: %w", err)
	}
	return newClient(ln), nil
}

func newClient(ln net.Listener) *Client {
	c := &Client{ln: ln, shakes: make(chan struct{}, maxShakes), pending: map[string]chan net.Conn{}, open: map[net.Conn]bool{}}
	c.home = ln.Addr().(*net.TCPAddr).AddrPort()
	c.work.Go(c.run)
	return c
}

// Close ends the client; calls that wait for a worker fail.
func (c *Client) Close() error {
	err := c.ln.Close()
	c.mu.Lock()
	c.closed = true
	for _, ch := range c.pending {
		close(ch)
	}
	c.pending = map[string]chan net.Conn{}
	for conn := range c.open {
		conn.Close()
	}
	c.mu.Unlock()
	c.work.Wait()
	return err
}

// run takes the connections of workers.
func (c *Client) run() {
	for {
		conn, err := c.ln.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // out of descriptors, as a rule
			time.Sleep(acceptPause)
			continue
		}
		select {
		case c.shakes <- struct{}{}:
		default:
			conn.Close()
			continue
		}
		c.work.Go(func() {
			defer func() { <-c.shakes }()
			if !c.arrive(conn) {
				conn.Close()
			}
		})
	}
}

// arrive gives a worker's connection to the call that it answers.
func (c *Client) arrive(conn net.Conn) bool {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return false
	}
	c.open[conn] = true
	c.mu.Unlock()
	err := conn.SetReadDeadline(time.Now().Add(shakeWithin))
	var t wire.TwoPart
	if err == nil {
		t, err = wire.ReadTwoPart(io.LimitReader(conn, maxShake))
	}
	h, e := wire.DecodeHandshake(t)
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.open, conn)
	ch := c.pending[h.Subject]
	if err != nil || e != nil || ch == nil {
		return false
	}
	delete(c.pending, h.Subject)
	ch <- conn // has room for one
	return true
}

// expect has the client know a call that will be answered.
func (c *Client) expect(subject string) (<-chan net.Conn, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, ErrClosed
	}
	ch := make(chan net.Conn, 1)
	c.pending[subject] = ch
	return ch, nil
}

// abandon undoes expect; a connection that came meanwhile is closed.
func (c *Client) abandon(subject string, ch <-chan net.Conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.pending, subject)
	select {
	case conn, ok := <-ch:
		if ok {
			conn.Close()
		}
	default:
	}
}

// Call sends a request and returns when the worker has begun to answer: handoff.ErrCapacity
// and handoff.ErrPeer when it refuses, handoff.ErrDeadline when it is late; then it may run
// nevertheless. The Answer is closed by whoever called.
func (c *Client) Call(ctx context.Context, t Target, body any) (*Answer, error) {
	b, err := t.Codec.Encode(body)
	if err != nil {
		return nil, err
	}
	id, subject := rand.Text(), rand.Text()
	ch, err := c.expect(subject)
	if err != nil {
		return nil, err
	}
	defer c.abandon(subject, ch)
	if err := c.request(ctx, t, id, subject, b); err != nil {
		return nil, err
	}
	late, cancel := context.WithTimeout(ctx, homeWithin)
	defer cancel()
	select {
	case conn, ok := <-ch:
		if !ok {
			return nil, ErrClosed
		}
		a := &Answer{conn: conn, r: bufio.NewReader(conn), codec: t.Codec}
		if err := a.prologue(ctx); err != nil {
			a.Close()
			return nil, err
		}
		return a, nil
	case <-late.Done():
		return nil, fmt.Errorf("%w: the worker at %s took the call and does not answer: %w", handoff.ErrDeadline, t.Address, late.Err())
	}
}

// request sends one, and reads the answer to it: on a connection of its own, so that none
// is ever taken for another's.
func (c *Client) request(ctx context.Context, t Target, id, subject string, body []byte) error {
	conn, err := (&net.Dialer{Timeout: dialWithin}).DialContext(ctx, "tcp", t.Address)
	if err != nil {
		return fmt.Errorf("%w: %w", handoff.ErrPeer, err)
	}
	defer conn.Close()
	home := c.home
	if home.Addr().IsUnspecified() {
		home = netip.AddrPortFrom(conn.LocalAddr().(*net.TCPAddr).AddrPort().Addr(), home.Port())
	}
	ctl, err := wire.NewControl(id, t.Codec, home.String(), subject)
	if err != nil {
		return err
	}
	text, err := wire.JSON.Encode(ctl)
	if err != nil {
		return err
	}
	headers, err := wire.JSON.Encode(struct {
		ID string `json:"request-id"`
	}{id})
	if err != nil {
		return err
	}
	f, err := wire.AppendFrame(nil, wire.Frame{Path: t.Path, Headers: headers, Control: text, Body: body})
	if err != nil {
		return err
	}
	unbind := context.AfterFunc(ctx, func() { conn.Close() })
	defer unbind()
	if err = conn.SetDeadline(time.Now().Add(frameWithin)); err == nil {
		_, err = conn.Write(f)
	}
	if err == nil {
		err = conn.SetReadDeadline(time.Now().Add(ackWithin))
	}
	var answer string
	if err == nil {
		answer, err = wire.ReadAck(conn)
	}
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("%w: worker at %s: %w", handoff.ErrDeadline, t.Address, ctx.Err())
	case isTimeout(err):
		return fmt.Errorf("%w: worker at %s does not acknowledge: %w", handoff.ErrDeadline, t.Address, err)
	case err != nil:
		return fmt.Errorf("%w: worker at %s: %w", handoff.ErrPeer, t.Address, err)
	case strings.HasPrefix(answer, Overloaded):
		return fmt.Errorf("%w: worker at %s: %s", handoff.ErrCapacity, t.Address, answer)
	case strings.HasPrefix(answer, Unavailable):
		return fmt.Errorf("%w: worker at %s: %s", handoff.ErrPeer, t.Address, answer)
	}
	return nil
}

func isTimeout(err error) bool {
	t, ok := errors.AsType[net.Error](err)
	return ok && t.Timeout()
}

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
