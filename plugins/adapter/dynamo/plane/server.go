// Package plane is Dynamo's request plane, over TCP or NATS: a server whose endpoints any
// Dynamo client calls, and a client that calls any Dynamo worker. Bytes are of package wire.
// Over NATS the request alone goes; the answer comes by a TCP connection as well.
//
// Dynamo bounds little in time: a client whose call was acknowledged waits for ever. Here
// every wait has an end, on both sides. A server acknowledges each request exactly once and
// in order, also one that it refuses; what fails later is an item of the answer, since a
// client takes an instance that fails in any other way out of use.
package plane

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/batonkv/baton/plugins/adapter/dynamo/wire"
)

// Refusals begin with one of these; a client then calls another instance, and this one not
// for some seconds.
const (
	Unavailable = "Server unavailable: "
	Overloaded  = "Server overloaded: "
)

// Why a call's context ended, by context.Cause.
var (
	ErrStopped = errors.New("dynamo: the caller wants no more of the answer")
	ErrKilled  = errors.New("dynamo: the caller is gone")
	ErrClosed  = errors.New("dynamo: the server ends")
)

// Bounds of a server's waits.
const (
	frameWithin = 30 * time.Second // from the first byte of a request to its last
	writeWithin = 10 * time.Second // for a message of an answer to leave
	ackWithin   = 5 * time.Second
	dialWithin  = 5 * time.Second // for the caller to take the call-home connection
	quitWithin  = 2 * time.Second // for the caller to end it, after the last message
	acceptPause = 100 * time.Millisecond
)

// Config is a server. Zero counts and durations have defaults.
type Config struct {
	Listen string // ip:port; port 0 is a free one
	// NATS, when it is not nil, is where calls arrive instead: a path is a subject there. It is
	// the server's, which closes it.
	NATS *nats.Conn
	// Calls bounds what runs at once, 256; more are refused as Overloaded.
	Calls int
	// Waiting bounds those that wait for something to happen (Stream.Wait), 1024: they do not
	// count as running, and keep no other call out.
	Waiting int
	// Bytes bounds the requests that are read or run, together, 256 MiB: one for which there is
	// no room is read past and refused as Overloaded.
	Bytes int64
	// Connections bounds those that are open, 1024; more are closed at once.
	Connections int
	// Longest bounds a call, 10 min.
	Longest time.Duration
	// Homes are networks that may be called home, beside the caller's own address, or those of
	// this host for a caller over NATS, which has none: callers name an address, and a server
	// that dialled any could be led anywhere.
	Homes []netip.Prefix
	Log   *slog.Logger // nil: discards
}

// Call is one request.
type Call struct {
	ID    string
	Path  string
	Codec wire.Codec
	Body  []byte // one value of Codec
}

// Decode reads the request; a body that is wrong is the caller's fault.
func (c Call) Decode(v any) error {
	if err := c.Codec.Decode(c.Body, v); err != nil {
		return Fault(wire.InvalidArgument, "request: %v", err)
	}
	return nil
}

// Fault is an error of a kind (wire.NewFault), which its caller is shown.
func Fault(kind, format string, args ...any) *wire.Fault {
	return wire.NewFault(kind, fmt.Sprintf(format, args...))
}

// Handler answers one call; a *wire.Fault that it returns goes to the caller as it is. ctx
// ends when the caller wants no more, with the cause, and after Config.Longest.
type Handler func(ctx context.Context, c Call, out *Stream) error

// Server answers calls. Safe for concurrent use.
type Server struct {
	cfg                  Config
	ln                   net.Listener
	own                  []netip.Addr // of this host
	room, waits          chan struct{}
	bytes                budget
	ctx                  context.Context
	end                  context.CancelCauseFunc
	accept, calls, conns sync.WaitGroup

	mu       sync.Mutex // guards:
	handlers map[string]Handler
	subs     map[string]*nats.Subscription // over NATS; of each handler
	open     map[net.Conn]bool
	draining bool
}

// Serve starts a server.
func Serve(cfg Config) (*Server, error) {
	if cfg.Calls == 0 {
		cfg.Calls = 256
	}
	if cfg.Waiting == 0 {
		cfg.Waiting = 1024
	}
	if cfg.Bytes == 0 {
		cfg.Bytes = 256 << 20
	}
	if cfg.Connections == 0 {
		cfg.Connections = 1024
	}
	if cfg.Longest == 0 {
		cfg.Longest = 10 * time.Minute
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	own, err := hostAddrs()
	if err != nil {
		if cfg.NATS != nil {
			cfg.NATS.Close()
		}
		return nil, err
	}
	s := &Server{cfg: cfg, own: own, room: make(chan struct{}, cfg.Calls), waits: make(chan struct{}, cfg.Waiting),
		handlers: map[string]Handler{}, subs: map[string]*nats.Subscription{}, open: map[net.Conn]bool{}}
	s.bytes.left.Store(cfg.Bytes)
	s.ctx, s.end = context.WithCancelCause(context.Background())
	if cfg.NATS != nil {
		s.overNATS(cfg.NATS)
		return s, nil
	}
	if s.ln, err = net.Listen("tcp", cfg.Listen); err != nil {
		return nil, fmt.Errorf("listen for Dynamo's calls: %w", err)
	}
	s.accept.Go(s.run)
	return s, nil
}

// hostAddrs are the addresses of this host's interfaces.
func hostAddrs() (own []netip.Addr, err error) {
	all, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("addresses of this host: %w", err)
	}
	for _, a := range all {
		if p, err := netip.ParsePrefix(a.String()); err == nil {
			own = append(own, p.Addr().Unmap())
		}
	}
	return own, nil
}

// Addr is where the server listens, unless calls arrive over NATS.
func (s *Server) Addr() netip.AddrPort { return s.ln.Addr().(*net.TCPAddr).AddrPort() }

// Handle serves path, which replaces what did. It fails over NATS alone.
func (s *Server) Handle(path string, h Handler) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	err := s.subscribe(path)
	if err == nil {
		s.handlers[path] = h
	}
	return err
}

// Drop serves path no more.
func (s *Server) Drop(path string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.handlers, path)
	s.unsubscribe(path)
}

// Close refuses new calls and returns when those that run have ended. When ctx ends first
// it ends them. Nothing of the server is left then.
func (s *Server) Close(ctx context.Context) {
	s.mu.Lock()
	s.draining = true
	s.mu.Unlock()
	if s.ln != nil {
		s.ln.Close()
	}
	s.accept.Wait()
	unbind := context.AfterFunc(ctx, func() { s.end(ErrClosed) })
	s.calls.Wait()
	unbind()
	s.end(ErrClosed)
	s.mu.Lock()
	for c := range s.open {
		c.Close()
	}
	s.mu.Unlock()
	s.conns.Wait()
	s.leaveNATS()
}

func (s *Server) run() {
	for {
		c, err := s.ln.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // out of descriptors, as a rule
			s.cfg.Log.Warn("a connection of a Dynamo client was not taken", "err", err)
			select {
			case <-time.After(acceptPause):
			case <-s.ctx.Done():
			}
			continue
		}
		if !s.keep(c) {
			c.Close()
			continue
		}
		s.conns.Go(func() {
			defer s.forget(c)
			if err := s.requests(c); !errors.Is(err, io.EOF) && !errors.Is(err, net.ErrClosed) {
				s.cfg.Log.Warn("a Dynamo client's connection ended", "client", c.RemoteAddr().String(), "err", err)
			}
		})
	}
}

func (s *Server) keep(c net.Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.draining || len(s.open) >= s.cfg.Connections {
		return false
	}
	s.open[c] = true
	return true
}

func (s *Server) forget(c net.Conn) {
	s.mu.Lock()
	delete(s.open, c)
	s.mu.Unlock()
	c.Close()
}

// requests reads a connection until it ends, and answers each request once, in order.
func (s *Server) requests(c net.Conn) error {
	from := c.RemoteAddr().(*net.TCPAddr).AddrPort().Addr().Unmap()
	r := bufio.NewReaderSize(c, 16<<10)
	for {
		if err := c.SetReadDeadline(time.Time{}); err != nil {
			return err
		}
		if _, err := r.Peek(1); err != nil {
			return err
		}
		if err := c.SetReadDeadline(time.Now().Add(frameWithin)); err != nil {
			return err
		}
		bytes := &held{of: &s.bytes}
		f, err := wire.ReadFrame(r, bytes.more)
		var run func()
		refusal := fmt.Sprintf("%srequests have %d bytes together", Overloaded, s.cfg.Bytes)
		switch {
		case err == nil:
			run, refusal = s.admit(f, from, bytes)
		case !errors.Is(err, wire.ErrRoom):
			bytes.back()
			return err
		}
		if run == nil {
			bytes.back()
		}
		if err = c.SetWriteDeadline(time.Now().Add(ackWithin)); err == nil {
			_, err = c.Write(wire.AppendAck(nil, refusal))
		}
		if run != nil {
			s.conns.Go(run)
		}
		if err != nil {
			return err
		}
	}
}

// admit makes the call of a request, which gives back its bytes, or says why there is none.
func (s *Server) admit(f wire.Frame, from netip.Addr, bytes *held) (run func(), refusal string) {
	ctl, home, codec, err := wire.DecodeControl(f.Control)
	if err != nil {
		return nil, Unavailable + err.Error()
	}
	to := netip.MustParseAddrPort(home.Address).Addr().Unmap() // DecodeControl has parsed it
	switch {
	case s.callsHome(to, from):
	case !from.IsValid():
		return nil, fmt.Sprintf("%scalls over NATS may be answered at addresses of this host or in the networks of call-home, and %v is neither", Unavailable, to)
	default:
		return nil, fmt.Sprintf("%scalls from %v may be answered at that address or in the networks of call-home, and %v is neither", Unavailable, from, to)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.handlers[f.Path]
	switch {
	case s.draining:
		return nil, Unavailable + "draining"
	case h == nil:
		return nil, fmt.Sprintf("%sunknown endpoint %.100q", Unavailable, f.Path)
	}
	select {
	case s.room <- struct{}{}:
	default:
		return nil, fmt.Sprintf("%s%d calls run", Overloaded, s.cfg.Calls)
	}
	s.calls.Add(1)
	return func() {
		defer s.calls.Done()
		defer bytes.back()
		place := s.room
		defer func() { <-place }()
		c := Call{ID: ctl.ID, Path: f.Path, Codec: codec, Body: f.Body}
		if err := s.answer(h, c, home, &place); err != nil {
			s.cfg.Log.Warn("a Dynamo call was not answered", "call", c.ID, "path", c.Path, "err", err)
		}
	}, ""
}

// callsHome says whether a caller at from may be answered at to. One over NATS is from nowhere.
func (s *Server) callsHome(to, from netip.Addr) bool {
	if to == from || slices.ContainsFunc(s.cfg.Homes, func(p netip.Prefix) bool { return p.Contains(to) }) {
		return true
	}
	ours := func(a netip.Addr) bool { return a.IsLoopback() || slices.Contains(s.own, a) }
	return ours(to) && (!from.IsValid() || ours(from))
}
