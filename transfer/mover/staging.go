package mover

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os/exec"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/batonkv/baton/transfer"
	"github.com/batonkv/baton/transfer/staged"
)

// WireConfig starts a wire mover.
type WireConfig struct {
	// Command starts the child, which calls ServeWire on lifeline.FirstExtra.
	Command []string
	Env     []string  // of the child; nil: this process's
	Stderr  io.Writer // what the child says; nil: only its last lines are kept
	Setup   Setup
	Arena   transfer.Memory // a memfd of Setup.Bytes; its descriptor stays the caller's
	// Started tells of the child before it maps the arena; an error ends it. nil: nobody.
	Started func(pid int) error
	// StartTimeout bounds the child's start, and then what it makes of Setup. 0: 10 s.
	StartTimeout time.Duration
}

// Setup is what a wire mover is told first.
type Setup struct {
	Transport string // names the wire: "tcp", "nixl"
	Wire      staged.Incarnation
	Group     string // the peer group that it serves
	Bytes     int64  // of the arena
	Chunk     int64  // bytes of a chunk
	Listen    string // host:port, port 0 for any; the host is what peers dial
	Options   json.RawMessage
}

// maxSetup bounds a Setup in JSON.
const maxSetup = 64 << 10

// Wire is a wire mover as its sidecar sees it: one child, from start to exit, which
// nothing starts again. Its fetches are done when the child said so or was seen to exit.
type Wire struct {
	l    *life
	host string
	port int64
}

var _ staged.Wire = (*Wire)(nil)

// StartWire starts the child and waits until it listens.
func StartWire(ctx context.Context, c WireConfig) (*Wire, error) {
	if len(c.Command) == 0 || c.Arena.Kind != transfer.Memfd || c.Setup.Bytes < 1 {
		return nil, errors.New("mover: wire: want a command and an arena that is a memfd")
	}
	return startWire(ctx, c, func(cfg Config) (*life, error) {
		cmd := exec.Command(c.Command[0], c.Command[1:]...)
		cmd.Env, cmd.Stderr = c.Env, c.Stderr
		return spawnChild(cmd, cfg)
	})
}

// WireInProcess is a Wire whose other half is a goroutine of this process, for unit tests.
// Kill closes what open made.
func WireInProcess(ctx context.Context, c WireConfig, open OpenWire) (*Wire, error) {
	return startWire(ctx, c, func(cfg Config) (*life, error) {
		return spawnLocal(func(conn *net.UnixConn, stop <-chan struct{}) error {
			return serveWire(conn, open, stop, nil)
		}, cfg)
	})
}

func startWire(ctx context.Context, c WireConfig, spawn func(Config) (*life, error)) (*Wire, error) {
	host, _, err := net.SplitHostPort(c.Setup.Listen)
	if err != nil {
		return nil, fmt.Errorf("mover: wire: listen: %w", err)
	}
	body, err := json.Marshal(c.Setup)
	if err != nil {
		return nil, fmt.Errorf("mover: wire: setup: %w", err)
	}
	if len(body) > maxSetup {
		return nil, fmt.Errorf("mover: wire: setup of %d bytes, at most %d: shorten its options", len(body), maxSetup)
	}
	cfg := Config{StartTimeout: c.StartTimeout}.withDefaults()
	l, err := spawn(cfg)
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithTimeoutCause(ctx, cfg.StartTimeout, fmt.Errorf("%w: %s is not set up after %v", transfer.ErrMover, c.Setup.Transport, cfg.StartTimeout))
	defer stop()
	w := &Wire{l: l, host: host}
	if c.Started != nil {
		err = c.Started(l.pid)
	}
	fd := -1
	if err == nil {
		fd, err = unix.FcntlInt(uintptr(c.Arena.FD), unix.F_DUPFD_CLOEXEC, 0)
	}
	if err == nil {
		w.port, err = l.ask(ctx, frame{kind: kindSetup, body: body, fds: []int{fd}}, nil)
	}
	if err != nil {
		l.kill(err)
		<-l.gone
		return nil, err
	}
	return w, nil
}

// Addr implements staged.Wire.
func (w *Wire) Addr() string { return net.JoinHostPort(w.host, strconv.FormatInt(w.port, 10)) }

// PID is the child's.
func (w *Wire) PID() int { return w.l.pid }

// Exited closes when the child's exit was seen and all its fetches are done.
func (w *Wire) Exited() <-chan struct{} { return w.l.gone }

// Why is how it ended; after Exited.
func (w *Wire) Why() error { return w.l.diedErr() }

// Kill ends the child: the way out of a fetch, or of a peer's reads, that do not end.
func (w *Wire) Kill(why error) { w.l.kill(why) }

// Offer implements staged.Wire. It waits for the child.
func (w *Wire) Offer(o staged.Exposed) error {
	done := make(chan error, 1)
	w.Expose(o, func(err error) { done <- err })
	return <-done
}

// Expose is Offer with its answer told later, in order, by another goroutine.
func (w *Wire) Expose(o staged.Exposed, done func(error)) {
	w.submit(frame{kind: kindOffer, body: appendChunk(nil, o.Offer, o.Chunk, o.Bytes)}, done)
}

// Withdraw implements staged.Wire.
func (w *Wire) Withdraw(offer uint64) {
	w.l.mu.Lock()
	defer w.l.mu.Unlock()
	if !w.l.dead {
		w.l.send(frame{kind: kindWithdraw, id: offer})
	}
}

// Fetch implements staged.Wire.
func (w *Wire) Fetch(f staged.Fetching, done func(error)) (cancel func()) {
	id := w.submit(frame{kind: kindFetch, body: appendFetching(nil, f)}, done)
	return func() { w.l.cancel(id) }
}

// settled is a request whose end is told by a call.
type settled func(error)

func (s settled) settle(_ int64, err error) { s(err) }

// submit sends a request; done hears its answer, or the child's exit.
func (w *Wire) submit(f frame, done func(error)) (id uint64) {
	w.l.mu.Lock()
	if err := w.l.room(); err != nil {
		w.l.mu.Unlock()
		go done(err) // the caller may hold what done waits for
		return 0
	}
	defer w.l.mu.Unlock()
	w.l.nextID++
	f.id = w.l.nextID
	w.l.tickets[f.id] = settled(done)
	w.l.send(f)
	return f.id
}

// Close implements staged.Wire: the child ends its fetches and exits.
func (w *Wire) Close() error {
	w.l.hangUp()
	<-w.l.gone
	return nil
}
