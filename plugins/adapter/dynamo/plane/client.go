package plane

import (
	"bufio"
	"cmp"
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

	"github.com/nats-io/nats.go"

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
	Address string // ip:port; "": it is called over NATS
	Path    string // over NATS the subject
	Codec   wire.Codec
}

// Client calls endpoints. Its owner calls Close. Safe for concurrent use.
type Client struct {
	ln     net.Listener
	home   netip.AddrPort // the zero address: that by which a worker is reached
	nats   *nats.Conn     // nil: no targets over NATS are called
	told   netip.Addr     // where workers that are called over NATS answer, when home is the zero address
	shakes chan struct{}
	work   sync.WaitGroup

	mu      sync.Mutex // guards:
	pending map[string]chan net.Conn
	open    map[net.Conn]bool // those without a call yet
	closed  bool
}

// Option changes a client that is made.
type Option func(*Client)

// NewClient listens at an ip:port for workers that answer; the unspecified address has each
// worker answer at the address by which it is reached.
func NewClient(listen string, options ...Option) (*Client, error) {
	ln, err := net.Listen("tcp", listen)
	if err != nil {
		return nil, fmt.Errorf("listen for answers of Dynamo's workers: %w", err)
	}
	c := newClient(ln)
	for _, o := range options {
		o(c)
	}
	return c, nil
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
	if c.nats != nil {
		c.nats.Close()
	}
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
	request := c.request
	if t.Address == "" {
		request = c.requestNATS
	}
	if err := request(ctx, t, id, subject, b); err != nil {
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
		return nil, fmt.Errorf("%w: the worker at %s took the call and does not answer: %w", handoff.ErrDeadline, cmp.Or(t.Address, t.Path), late.Err())
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
	text, err := control(id, t.Codec, home, subject)
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
	}
	return refused(t.Address, answer)
}

// control is what a request says of itself.
func control(id string, codec wire.Codec, home netip.AddrPort, subject string) ([]byte, error) {
	ctl, err := wire.NewControl(id, codec, home.String(), subject)
	if err != nil {
		return nil, err
	}
	return wire.JSON.Encode(ctl)
}

// refused is the error of an acknowledgement that is none.
func refused(at, answer string) error {
	switch {
	case strings.HasPrefix(answer, Overloaded):
		return fmt.Errorf("%w: worker at %s: %s", handoff.ErrCapacity, at, answer)
	case strings.HasPrefix(answer, Unavailable):
		return fmt.Errorf("%w: worker at %s: %s", handoff.ErrPeer, at, answer)
	}
	return nil
}

func isTimeout(err error) bool {
	t, ok := errors.AsType[net.Error](err)
	return ok && t.Timeout()
}
