// Package mover runs the child process that maps engine memory and copies, and is the
// transfer backend whose calls go to it over a socket pair.
//
// A Mover supervises one child at a time. It decides nothing about hand-offs. Its
// invariant is the ticket's: a ticket is done when the child said so, or when the
// child's exit was seen, whatever became of the socket. Templates travel once per
// link and jobs symbolically; the child lowers.
package mover

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os/exec"
	"runtime"
	"sync"
	"time"

	"github.com/batonkv/baton/transfer"
)

// Config of a Mover.
type Config struct {
	// Command starts the child, which calls Serve on lifeline.FirstExtra: usually
	// os.Executable() and "mover". Unused by InProcess.
	Command []string
	Env     []string  // of the child; nil: this process's
	Stderr  io.Writer // what the child says; nil: only its last lines are kept

	// MaxOpen bounds open tickets; a pull beyond it is refused with ErrFull. 0: 1024.
	MaxOpen int
	// Workers is how many pulls the child copies at once. 0: 2.
	Workers int
	// Look is how long both ends look for each other's message before they sleep: this one
	// from a pull of GPU memory on, the child after one, since a wake takes longer than a small
	// copy. 0: 250 us where there are four processors and more, else not at all. Negative:
	// not at all.
	Look time.Duration

	// A child that exits is started again after RestartMin, doubled for each start
	// that does not live a minute, up to RestartMax. 0: 50 ms and 5 s.
	RestartMin, RestartMax time.Duration
	// StartTimeout bounds a child's start. 0: 10 s.
	StartTimeout time.Duration

	// Started and Exited tell of each child, in order, before it maps anything and
	// after its exit was seen; Exited of pid 0 is a start that failed. An error of Started
	// ends the child before it maps anything. Restored, between
	// them, tells of a child in a dead one's place that maps every region again: the
	// first link that it opens and the first pull that it takes come after. They must
	// not call the Mover back. nil: nobody asks.
	Started  func(pid int) error
	Restored func(pid int)
	Exited   func(pid int, err error)
}

// maxLook bounds Config.Look: processors that look do nothing else.
const maxLook = 10 * time.Millisecond

// stable is how long a child must live for the next start to be prompt again.
const stable = time.Minute

func (c Config) withDefaults() Config {
	def := func(d *time.Duration, to time.Duration) {
		if *d == 0 {
			*d = to
		}
	}
	def(&c.RestartMin, 50*time.Millisecond)
	def(&c.RestartMax, max(5*time.Second, c.RestartMin))
	def(&c.StartTimeout, 10*time.Second)
	if c.MaxOpen == 0 {
		c.MaxOpen = 1024
	}
	if c.Workers == 0 {
		c.Workers = 2
	}
	if c.Look == 0 && runtime.GOMAXPROCS(0) >= 4 {
		c.Look = 250 * time.Microsecond
	}
	c.Look = max(c.Look, 0)
	if c.Started == nil {
		c.Started = func(int) error { return nil }
	}
	if c.Restored == nil {
		c.Restored = func(int) {}
	}
	if c.Exited == nil {
		c.Exited = func(int, error) {}
	}
	return c
}

// Check reports a Config that Start refuses.
func (c Config) Check() error {
	switch d := c.withDefaults(); {
	case len(c.Command) == 0:
		return fmt.Errorf("mover: command: empty: want the baton binary and \"mover\"")
	case d.MaxOpen < 1 || d.MaxOpen > 1<<16:
		return fmt.Errorf("mover: max open: %d: want 1 to %d", c.MaxOpen, 1<<16)
	case d.Workers < 1 || d.Workers > 256:
		return fmt.Errorf("mover: workers: %d: want 1 to 256", c.Workers)
	case d.Look > maxLook:
		return fmt.Errorf("mover: look: %v: want at most %v", c.Look, maxLook)
	case d.RestartMin < 0 || d.RestartMax < d.RestartMin:
		return fmt.Errorf("mover: restart: %v to %v: want 0 < min <= max", c.RestartMin, c.RestartMax)
	case d.StartTimeout < 0:
		return fmt.Errorf("mover: start timeout: %v: want more than 0", c.StartTimeout)
	}
	return nil
}

// Mover implements transfer.Backend. Its owner calls Close.
type Mover struct {
	cfg   Config
	spawn func() (*life, error) // starts one child, which has said hello
	// stopping closes when Close may let the child end: no ticket is open.
	stopping chan struct{}
	ended    chan struct{} // closed when the supervisor has ended

	mu      sync.Mutex
	cur     *life         // the child that takes work; nil between two
	last    *life         // the latest to be started, which Kill kills
	up      chan struct{} // closed while cur is set or closed is; replaced when cur is lost
	regions map[transfer.RegionID]*region
	open    int           // tickets
	idle    chan struct{} // closed and replaced when open falls to 0
	closed  bool
	stopped bool // stopping is closed
}

// Start starts the child and its supervisor. An error says what the child said.
func Start(cfg Config) (*Mover, error) {
	if err := cfg.Check(); err != nil {
		return nil, err
	}
	m := newMover(cfg)
	m.spawn = func() (*life, error) {
		cmd := exec.Command(cfg.Command[0], cfg.Command[1:]...)
		cmd.Env, cmd.Stderr = cfg.Env, cfg.Stderr
		return spawnChild(cmd, m.cfg)
	}
	return m.start()
}

// InProcess is a Mover whose other half is a goroutine of this process: for unit
// tests, which may then use Local memory. Kill lets its copies end first.
func InProcess(cfg Config, c transfer.Copier) (*Mover, error) {
	cfg.Command = []string{"in process"}
	if err := cfg.Check(); err != nil {
		return nil, err
	}
	m := newMover(cfg)
	m.spawn = func() (*life, error) {
		return spawnLocal(func(conn *net.UnixConn, stop <-chan struct{}) error {
			return serve(conn, host{copier: c}, true, stop, nil)
		}, m.cfg)
	}
	return m.start()
}

func newMover(cfg Config) *Mover {
	return &Mover{cfg: cfg.withDefaults(), stopping: make(chan struct{}), ended: make(chan struct{}), up: make(chan struct{}),
		regions: map[transfer.RegionID]*region{}, idle: make(chan struct{})}
}

func (m *Mover) start() (*Mover, error) {
	l, err := m.spawn()
	if err != nil {
		return nil, err
	}
	if err := m.begun(l); err != nil {
		l.kill(err)
		<-l.gone
		return nil, l.diedErr()
	}
	m.publish(l)
	go func() { // until Close
		defer close(m.ended)
		m.supervise(l)
	}()
	return m, nil
}

// supervise sees children to their end and starts the next, until Close.
func (m *Mover) supervise(l *life) {
	wait := m.cfg.RestartMin
	for {
		born := time.Now()
		m.attend(l)
		if time.Since(born) > stable {
			wait = m.cfg.RestartMin
		}
		for l = nil; l == nil; wait = min(2*wait, m.cfg.RestartMax) {
			t := time.NewTimer(wait)
			select {
			case <-m.stopping:
				t.Stop()
				return
			case <-t.C:
			}
			next, err := m.spawn()
			if err != nil {
				m.cfg.Exited(0, err)
				continue
			}
			l = next
			err = m.begun(next)
			if err == nil {
				err = m.restore(next)
			}
			if err != nil {
				next.kill(err)
				continue // attend sees its exit
			}
			m.cfg.Restored(next.pid)
			m.publish(next)
		}
	}
}

// attend returns when the exit of l was seen.
func (m *Mover) attend(l *life) {
	select {
	case <-l.gone:
	case <-m.stopping:
		l.hangUp()
		<-l.gone
	}
	m.withdraw(l)
	m.cfg.Exited(l.pid, l.why)
}

// begun tells of a child that maps nothing yet.
func (m *Mover) begun(l *life) error {
	m.mu.Lock()
	m.last = l
	m.mu.Unlock()
	s := settings{uint32(m.cfg.MaxOpen), uint32(m.cfg.Workers), uint64(m.cfg.Look)}
	l.mu.Lock()
	if !l.dead {
		l.push(frame{kind: kindConfig, body: s.append(nil)})
	}
	l.mu.Unlock()
	return m.cfg.Started(l.pid)
}

func (m *Mover) publish(l *life) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.cur = l
	if !m.closed {
		close(m.up)
	}
}

func (m *Mover) withdraw(l *life) {
	m.mu.Lock()
	defer m.mu.Unlock()
	close(l.withdrawn)
	if m.cur != l {
		return
	}
	m.cur = nil
	if !m.closed {
		m.up = make(chan struct{})
	}
}

// restore registers what the previous child had.
func (m *Mover) restore(l *life) error {
	m.mu.Lock()
	all := make([]*region, 0, len(m.regions))
	for _, r := range m.regions {
		all = append(all, r)
	}
	m.mu.Unlock()
	for _, r := range all {
		if err := r.restore(l); err != nil {
			return err
		}
	}
	return nil
}

// child waits for a child that takes work.
func (m *Mover) child(ctx context.Context) (*life, error) {
	for {
		m.mu.Lock()
		l, up, closed := m.cur, m.up, m.closed
		m.mu.Unlock()
		switch {
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case closed:
			return nil, transfer.ErrClosed
		case l != nil && !l.isGone():
			return l, nil
		case l != nil: // the supervisor is about to withdraw it
			up = l.withdrawn
		}
		select {
		case <-up:
		case <-ctx.Done():
		}
	}
}

// PID is the present child's process id, 0 between two.
func (m *Mover) PID() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.cur == nil {
		return 0
	}
	return m.cur.pid
}

// Kill kills the present child: the way out of a copy that never ends. Its tickets
// settle with ErrMover when its exit was seen, and the next child starts.
func (m *Mover) Kill() {
	m.mu.Lock()
	l := m.last
	m.mu.Unlock()
	l.kill(errors.New("killed on request"))
}

// Name implements transfer.Backend.
func (m *Mover) Name() string { return "mover" }

func (m *Mover) fail(op string, peer transfer.PeerID, err error) error {
	return &transfer.OpError{Backend: "mover", Op: op, Peer: peer, Err: err}
}

// Close implements transfer.Backend. When ctx ends first, intake stays stopped, the
// child lives, and Close may be called again, after Kill if need be.
func (m *Mover) Close(ctx context.Context) error {
	m.mu.Lock()
	if !m.closed {
		m.closed = true
		select {
		case <-m.up:
		default:
			close(m.up)
		}
	}
	for m.open > 0 {
		n, idle := m.open, m.idle
		m.mu.Unlock()
		select {
		case <-idle:
		case <-ctx.Done():
			return m.fail("close", "", fmt.Errorf("%w: %d tickets are open: %w", transfer.ErrBusy, n, ctx.Err()))
		}
		m.mu.Lock()
	}
	if !m.stopped {
		m.stopped = true
		close(m.stopping)
	}
	m.mu.Unlock()
	select {
	case <-m.ended:
	case <-ctx.Done():
		return m.fail("close", "", fmt.Errorf("%w: pid %d has not exited: %w", transfer.ErrBusy, m.PID(), ctx.Err()))
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for id, r := range m.regions {
		closeMemory(r.m)
		delete(m.regions, id)
	}
	return nil
}
