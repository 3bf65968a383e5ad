// Package host is a control plane's half of the plugin: Open starts `baton plugin` by
// hashicorp/go-plugin, and gives the interfaces of package plugins over it.
//
// A plugin that ends is started again by the next call. Calls that were in flight return:
// those that may have been done with handoff.ErrInDoubt and ErrHost, the others with
// ErrHost; a Watch goes on by itself. Nothing is lost with a plugin: what it was asked
// lives in the sidecars.
package host

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/batonkv/baton/internal/pause"
	"github.com/batonkv/baton/plugins"
	"github.com/batonkv/baton/sidecar/handoff"
)

// Config is how a plugin is started. Zero durations have defaults.
type Config struct {
	// Command is the program and its arguments: baton plugin --cluster ... It inherits this
	// process's environment, which Env adds to, as KEY=VALUE.
	Command []string
	Env     []string
	// Plain speaks on the plugin's socket without TLS. The socket's directory is this
	// user's alone either way.
	Plain bool
	// Start bounds a start of the plugin, to its first answer; 10 s.
	Start time.Duration
	// Call bounds a call whose context has no deadline, but Import and Watch; 30 s.
	Call time.Duration
	// Backoff is how long after a start that failed the next one begins; it doubles, up to
	// 5 s; 100 ms.
	Backoff time.Duration
	// Log hears what the plugin logs, and of its starts and ends; nil: discards.
	Log *slog.Logger
	// Stderr hears what the plugin writes to standard error as it is; nil: Log alone does.
	Stderr io.Writer
}

// maxBackoff bounds the wait between two starts, and steady is how long a plugin has to
// live for its end to be none of a series.
const (
	maxBackoff = 5 * time.Second
	steady     = time.Second
)

func (c Config) defaults() (Config, error) {
	if len(c.Command) == 0 || c.Command[0] == "" {
		return c, errors.New("host: config: command is empty: name the program and its arguments, such as baton plugin --cluster NAME")
	}
	for _, d := range []struct {
		at    *time.Duration
		first time.Duration
	}{{&c.Start, 10 * time.Second}, {&c.Call, 30 * time.Second}, {&c.Backoff, 100 * time.Millisecond}} {
		if *d.at <= 0 {
			*d.at = d.first
		}
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return c, nil
}

// Host is a control plane's hold on its plugin. Safe for concurrent use. Its owner calls
// Close.
type Host struct {
	cfg  Config
	ctx  context.Context // ends with Close
	stop context.CancelFunc
	over sync.WaitGroup // starts under way, and who waits for ends

	mu       sync.Mutex // guards:
	now      *process   // nil: none runs
	starting *start     // nil: none is under way
	wait     time.Duration
	closed   bool
}

// start is one attempt; done closes after the others are set.
type start struct {
	done chan struct{}
	got  *process
	err  error
}

// Open starts the plugin and returns when it has answered. handoff.ErrVersion: it speaks
// none of this program's versions, and the error names both.
func Open(ctx context.Context, c Config) (*Host, error) {
	c, err := c.defaults()
	if err != nil {
		return nil, err
	}
	h := &Host{cfg: c}
	h.ctx, h.stop = context.WithCancel(context.Background())
	if _, err := h.live(ctx); err != nil {
		return nil, errors.Join(err, h.Close())
	}
	return h, nil
}

// Handoff, Reshard and Cluster are the interfaces.
func (h *Host) Handoff() plugins.Handoff { return handoffs{h} }
func (h *Host) Reshard() plugins.Reshard { return reshards{h} }
func (h *Host) Cluster() plugins.Cluster { return clusters{h} }

// PID is the plugin's process, 0 while none runs.
func (h *Host) PID() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.now == nil {
		return 0
	}
	return h.now.pid()
}

// Close ends the plugin, with the calls on it, and waits for its exit.
func (h *Host) Close() error {
	h.mu.Lock()
	h.closed = true
	p := h.now
	h.now = nil
	h.mu.Unlock()
	h.stop()
	if p != nil {
		p.end()
	}
	h.over.Wait()
	return nil
}

var errClosed = fmt.Errorf("%w: this host was closed", handoff.ErrHost)

// live is the plugin that runs, or the next one, which it starts.
func (h *Host) live(ctx context.Context) (*process, error) {
	h.mu.Lock()
	if h.closed {
		h.mu.Unlock()
		return nil, errClosed
	}
	if p := h.now; p != nil && !p.dead() {
		h.mu.Unlock()
		return p, nil
	}
	s := h.starting
	if s == nil {
		s = &start{done: make(chan struct{})}
		h.starting = s
		before, wait := h.now, h.wait
		h.over.Go(func() { h.start(s, before, wait) })
	}
	h.mu.Unlock()
	select {
	case <-s.done:
		return s.got, s.err
	case <-ctx.Done():
		return nil, fmt.Errorf("%w: the plugin is being started: %w", handoff.ErrHost, ctx.Err())
	}
}

// start makes the next plugin after before, no sooner than wait from here.
func (h *Host) start(s *start, before *process, wait time.Duration) {
	defer close(s.done)
	if before != nil {
		before.end()
		if before.lived() > steady {
			wait = 0
		}
	}
	if pause.For(h.ctx, wait); h.ctx.Err() != nil {
		s.err = errClosed
		return
	}
	ctx, cancel := context.WithTimeout(h.ctx, h.cfg.Start)
	defer cancel()
	s.got, s.err = launch(ctx, h.cfg)
	if s.err != nil {
		h.cfg.Log.Warn("the plugin did not start", "err", s.err)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.starting = nil
	h.wait = min(max(2*wait, h.cfg.Backoff), maxBackoff)
	if h.now = s.got; h.closed && s.got != nil {
		h.now = nil
		h.over.Go(s.got.end)
		s.got, s.err = nil, errClosed
	}
}
