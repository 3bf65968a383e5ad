// Package nats publishes events over NATS. One goroutine owns the connection and one
// bounded queue feeds it; Publish never blocks and never fails. While NATS is away the
// queue keeps the first events, and those that find it full are dropped and counted:
// their sequence numbers are missing, so readers see the gap.
package nats

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/batonkv/baton/discovery"
	"github.com/batonkv/baton/sidecar/events"
)

// Root is how all subjects begin; the number is the version of the event.
const Root = "baton.v1"

// flushWithin bounds the last flush, besides Close's context.
const flushWithin = 5 * time.Second

// Subject is where e goes: baton.v1.<cluster>.<pool>.<group>.<rank>.<kind>.
func Subject(e events.Event) (string, error) {
	for _, n := range []struct{ field, value string }{
		{"cluster", e.Cluster}, {"pool", e.Pool}, {"group", e.Group}, {"kind", string(e.Kind)},
	} {
		if err := discovery.CheckName(n.field, n.value); err != nil {
			return "", err
		}
	}
	return fmt.Sprintf("%s.%s.%s.%s.%d.%s", Root, e.Cluster, e.Pool, e.Group, e.Rank, e.Kind), nil
}

// Publisher implements events.Publisher for one incarnation of one sidecar.
type Publisher struct {
	queue   chan events.Event
	dropped atomic.Uint64
	log     *slog.Logger
	changed chan struct{} // holds one token when the connection's state may have changed
	stop    chan struct{}
	end     context.CancelFunc
	done    chan struct{}

	mu     sync.Mutex
	seq    uint64
	closed bool
}

// Open starts the publisher. It waits for no server: one that is away is tried again
// for as long as the publisher lives.
func Open(c Config) (*Publisher, error) {
	if len(c.URLs) == 0 {
		return nil, fmt.Errorf("%w: urls: none given; want one such as nats://127.0.0.1:4222", ErrConfig)
	}
	if err := c.Check(); err != nil {
		return nil, err
	}
	opts, err := c.options()
	if err != nil {
		return nil, err
	}
	life, end := context.WithCancel(context.Background())
	p := &Publisher{
		queue: make(chan events.Event, c.Queue), log: c.Log, end: end,
		changed: make(chan struct{}, 1), stop: make(chan struct{}), done: make(chan struct{}),
	}
	if p.log == nil {
		p.log = slog.New(slog.DiscardHandler)
	}
	go p.run(life, strings.Join(c.URLs, ","), append(opts, p.handlers()...))
	return p, nil
}

// handlers are called by nats.go's goroutines; they only log and wake run.
func (p *Publisher) handlers() []nats.Option {
	var told atomic.Value // text of the last failure: each is told once, not at every try
	told.Store("")
	up := func(c *nats.Conn) {
		told.Store("")
		p.log.Info("nats: connected", "url", c.ConnectedUrlRedacted())
		p.wake()
	}
	failed := func(_ *nats.Conn, err error) {
		if err == nil || told.Swap(err.Error()) == err.Error() {
			return
		}
		remedy := "is NATS running there? check nats.urls and nats.tls"
		if errors.Is(err, nats.ErrAuthorization) || errors.Is(err, nats.ErrAuthExpired) || errors.Is(err, nats.ErrAuthRevoked) {
			remedy = "check nats.user, nats.token, nats.nkey-seed or nats.credentials"
		}
		p.log.Warn("nats: not connected, events wait: "+remedy, "err", err)
	}
	return []nats.Option{
		nats.ConnectHandler(up),
		nats.ReconnectHandler(up),
		nats.DisconnectErrHandler(failed),
		nats.ReconnectErrHandler(failed),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
			p.log.Warn("nats: refused: may this user publish to "+Root+".>?", "err", err)
		}),
	}
}

func (p *Publisher) wake() {
	select {
	case p.changed <- struct{}{}:
	default:
	}
}

// Publish implements events.Publisher.
func (p *Publisher) Publish(e events.Event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.seq++
	e.Seq = p.seq
	if p.closed {
		p.dropped.Add(1)
		return
	}
	select {
	case p.queue <- e:
	default:
		p.dropped.Add(1)
	}
}

// Dropped implements events.Publisher: the events that no connection took. Those that
// a connection took and lost with it show as a gap only.
func (p *Publisher) Dropped() uint64 { return p.dropped.Load() }

// Close implements events.Publisher: it sends what waits, if NATS is there, until ctx
// ends, and counts the rest as dropped.
func (p *Publisher) Close(ctx context.Context) error {
	p.mu.Lock()
	if !p.closed {
		p.closed = true
		close(p.stop)
	}
	p.mu.Unlock()
	defer p.end()
	select {
	case <-p.done:
		return nil
	case <-ctx.Done():
		p.end()
		<-p.done
		return fmt.Errorf("nats: close: %w", context.Cause(ctx))
	}
}

// run owns the connection.
func (p *Publisher) run(ctx context.Context, urls string, opts []nats.Option) {
	defer close(p.done)
	nc, err := nats.Connect(urls, opts...)
	if err != nil {
		p.log.Error("nats: no connection is possible, events are dropped", "err", err)
		<-p.stop
		p.dropped.Add(uint64(len(p.queue)))
		return
	}
	defer nc.Close()
	for {
		select {
		case e := <-p.queue:
			p.send(nc, e)
		case <-p.stop:
			p.last(ctx, nc)
			return
		}
	}
}

// last sends what the queue still holds and flushes it.
func (p *Publisher) last(ctx context.Context, nc *nats.Conn) {
	for len(p.queue) > 0 {
		p.send(nc, <-p.queue)
	}
	if !nc.IsConnected() {
		return
	}
	flush, cancel := context.WithTimeout(ctx, flushWithin)
	defer cancel()
	if err := nc.FlushWithContext(flush); err != nil {
		p.log.Warn("nats: the last events may not have gone out", "err", err)
	}
}

// send publishes e once NATS is there; after Close it waits no more.
func (p *Publisher) send(nc *nats.Conn, e events.Event) {
	subject, err := Subject(e)
	if err != nil {
		p.drop(e, err)
		return
	}
	body, err := json.Marshal(e)
	if err != nil {
		p.drop(e, err)
		return
	}
	for {
		if nc.IsConnected() {
			err := nc.Publish(subject, body)
			if err == nil {
				return
			}
			if !errors.Is(err, nats.ErrReconnectBufExceeded) {
				p.drop(e, err)
				return
			}
		}
		select {
		case <-p.changed:
		case <-p.stop:
			if !nc.IsConnected() {
				p.drop(e, nats.ErrDisconnected)
				return
			}
		}
	}
}

func (p *Publisher) drop(e events.Event, err error) {
	p.dropped.Add(1)
	p.log.Debug("nats: an event is dropped", "kind", e.Kind, "seq", e.Seq, "err", err)
}
